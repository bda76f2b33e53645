"""The audit log: who was refused what, and who changed what. No secrets and no bodies."""
