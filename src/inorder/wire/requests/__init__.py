"""Typed headers, one dataclass per request and per answer that has fields of its own."""
