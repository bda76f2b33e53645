"""Leases: who owns a queue, until when, under which epoch."""
