"""Decisions of the client, without I/O, clock or randomness."""
