"""Connections: the only package that knows sockets, TLS and event-loop transports."""
