"""TLS without a socket: an SSLObject between two memory buffers.

The server learns from the first byte of a connection whether it is TLS, so the session is put in
between afterwards, inside the connection. It needs nothing of the event loop and works the same on
a loop that lives in memory.

Without a configured certificate a server makes its own on the first TLS connection
(`net/selfsigned.py`): it keeps listeners out and proves nothing about who the server is.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from inorder.errors import ConfigError, RemoteProtocolError
from inorder.net.selfsigned import self_signed_pem

if TYPE_CHECKING:
    from inorder.config import NetConfig
    from inorder.net.output import Buffer

READ_BYTES = 256 * 1024
TLS_MODES = ("disabled", "permissive", "enforcing")


class TlsSession:
    """One TLS connection, sans I/O: ciphertext in, plaintext out, and the reverse."""

    __slots__ = ("_incoming", "_object", "_outgoing", "_unsent", "established")

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_side,
            server_hostname=server_hostname,
        )
        self._unsent: list[Buffer] = []
        self.established = False

    def start(self) -> bytes:
        """Begin the handshake (clients) and return the bytes to send."""
        self._handshake()
        return self._outgoing.read()

    def receive(self, data: bytes) -> bytes:
        """Take ciphertext and return the plaintext that it completes.

        Ask `outgoing()` afterwards, also when this raises: there may be an answer or an alert.
        Raises RemoteProtocolError if the peer's bytes are not TLS that we accept.
        """
        self._incoming.write(data)
        if not self.established and not self._handshake():
            return b""
        pieces = []
        try:
            while piece := self._object.read(READ_BYTES):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            pass  # the peer said goodbye; the end of the stream follows
        except ssl.SSLError as error:
            raise RemoteProtocolError(f"broken TLS: {error.reason or error}") from error
        return b"".join(pieces)

    def encrypt(self, parts: Iterable[Buffer]) -> bytes:
        """Return the ciphertext of the parts; before the end of the handshake they are kept."""
        if not self.established:
            self._unsent.extend(parts)
            return b""
        for part in parts:
            self._object.write(part)
        return self._outgoing.read()

    def outgoing(self) -> bytes:
        """Return the bytes that the session wants to send on its own account."""
        return self._outgoing.read()

    def _handshake(self) -> bool:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise RemoteProtocolError(f"a failed TLS handshake: {error.reason or error}") from error
        self.established = True
        for part in self._unsent:
            self._object.write(part)
        self._unsent.clear()
        return True


class ServerTls:
    """The certificate of a server, loaded or made when the first client wants TLS."""

    def __init__(self, certificate: str = "", key: str = "") -> None:
        if bool(certificate) != bool(key):
            raise ConfigError("tls_certificate and tls_key must be set together")
        self._certificate = certificate
        self._key = key
        self._context: ssl.SSLContext | None = None

    @classmethod
    def from_config(cls, config: NetConfig) -> ServerTls:
        """Check the settings; configured files are read now, so that a mistake shows at start."""
        if config.tls_mode not in TLS_MODES:
            modes = ", ".join(TLS_MODES)
            raise ConfigError(f"tls_mode={config.tls_mode!r}: must be one of {modes}")
        tls = cls(config.tls_certificate, config.tls_key)
        if config.tls_certificate and config.tls_mode != "disabled":
            tls._context = _load(config.tls_certificate, config.tls_key)
        return tls

    def session(self, now_ms: int) -> TlsSession:
        """Return the server side of a new TLS connection."""
        if self._context is None:
            if self._certificate:
                self._context = _load(self._certificate, self._key)
            else:
                self._context = _self_signed(now_ms)
        return TlsSession(self._context, server_side=True)

    def __repr__(self) -> str:
        return f"ServerTls({self._certificate or 'self-signed'!r})"


def client_context(
    *, authorities: str | None = None, trust_any: bool = False, certificate: str = "", key: str = ""
) -> ssl.SSLContext:
    """Return the context of TLS clients.

    `trust_any` accepts every certificate, as RocketMQ's clients do by default; it protects
    against listening only. `authorities` is a PEM file; None means those of the system.
    """
    context = ssl.create_default_context(cafile=authorities)
    if trust_any:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate, key or None)
    return context


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _load(certificate: str, key: str) -> ssl.SSLContext:
    context = _server_context()
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"tls_certificate={certificate!r} with tls_key={key!r}: {error}; "
            "both must be readable PEM files that belong together"
        ) from error
    return context


def _self_signed(now_ms: int) -> ssl.SSLContext:
    context = _server_context()
    # The ssl module reads certificates from files only; this one is gone (and was 0600) at once.
    try:
        with tempfile.TemporaryDirectory(prefix="inorder-tls-") as folder:
            path = Path(folder) / "self-signed.pem"
            path.touch(mode=0o600)
            path.write_bytes(self_signed_pem("inorder", now_ms=now_ms))
            context.load_cert_chain(path)
    except OSError as error:
        raise ConfigError(
            f"no self-signed certificate could be made ({error}); "
            "set tls_certificate and tls_key, or tls_mode=disabled"
        ) from error
    return context
