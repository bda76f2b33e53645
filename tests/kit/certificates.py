"""Certificates of an authority, of a server and of clients, for tests."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import trustme

from inorder.config import NetConfig
from inorder.net.tls import client_context


class Certificates:
    """PEM files of an authority, of a server and of clients."""

    def __init__(self, folder: Path, name: str = "broker.example") -> None:
        self.folder = folder
        self.name = name
        self.authority = trustme.CA()
        self.ca = self.put("ca.pem", self.authority.cert_pem.bytes())
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.renew()

    def put(self, name: str, data: bytes) -> Path:
        """Write a file and return its path."""
        path = self.folder / name
        path.write_bytes(data)
        return path

    def renew(self) -> None:
        """Write a new certificate of the server and its key."""
        cert, key = self.pair()
        self.cert.write_bytes(cert)
        self.key.write_bytes(key)

    def pair(self) -> tuple[bytes, bytes]:
        """Return a new certificate of the server and its key."""
        issued = self.authority.issue_cert(self.name)
        return issued.cert_chain_pems[0].bytes(), issued.private_key_pem.bytes()

    def client(self, name: str = "alice", authority: trustme.CA | None = None) -> ssl.SSLContext:
        """Return the context of a client with a certificate of its own."""
        issued = (authority or self.authority).issue_cert("client.example", common_name=name)
        context = client_context(authorities=str(self.ca))
        with issued.private_key_and_cert_chain_pem.tempfile() as path:
            context.load_cert_chain(path)
        return context

    def config(self, **settings: Any) -> NetConfig:
        """Return the settings of a server with these files."""
        found = replace(NetConfig(), tls_certificate=str(self.cert), tls_key=str(self.key))
        if settings.get("tls_client_auth", "none") != "none":
            found = replace(found, tls_trust=str(self.ca))
        return replace(found, **settings)
