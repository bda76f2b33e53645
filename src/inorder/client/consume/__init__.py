"""The consumers."""
