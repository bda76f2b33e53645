"""Backups of a broker's data directory, also while the broker runs, and their restoration."""
