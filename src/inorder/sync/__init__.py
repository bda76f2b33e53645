"""The client for code that blocks: each object calls its async counterpart through one portal."""
