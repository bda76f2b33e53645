"""Damaged queues: judged at the start, mended while the broker runs, reported."""
