"""Connections: the only room that knows sockets, TLS and event-loop transports."""
