"""Typed headers, one struct per request and per answer that has fields of its own."""
