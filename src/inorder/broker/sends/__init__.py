"""Sends: RocketMQ's checks, the fast path, the bytes of records."""
