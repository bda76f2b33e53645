"""Bytes to values and back: frames, headers, requests, records. No I/O, no clock, no randomness."""
