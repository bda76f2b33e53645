"""Delayed messages: levels, delivery, forwarding to a key's new broker."""
