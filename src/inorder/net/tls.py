"""TLS without a socket, and certificates for servers that have none.

A `TlsSession` is an SSLObject between two memory buffers. The first byte of a connection says
whether it is TLS, so the session is put in between afterwards, inside the connection. It needs
nothing from the event loop and works the same on an in-memory loop.

Servers accept TLS without configuration, as RocketMQ's do, so they need a certificate. Python's ssl
module cannot make one, and a program or package for it would be one more thing to install. This
file makes one from the standard library: one P-256 key, one signature, a dozen DER structures. The
key signs itself once; OpenSSL does all later work with it. Such a certificate keeps eavesdroppers
out and proves nothing about the server's identity. Why: decision 8.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import ssl
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from inorder.errors import ConfigError, RemoteProtocolError

if TYPE_CHECKING:
    from inorder.config import NetConfig
    from inorder.net.transport import Buffer

VALID_DAYS = 3650

# Curve P-256 (FIPS 186-4): y^2 = x^3 - 3x + B over the field of P; G has the order N.
P = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
Point = tuple[int, int] | None

EC_PUBLIC_KEY = bytes.fromhex("06072a8648ce3d0201")
PRIME256V1 = bytes.fromhex("06082a8648ce3d030107")
ECDSA_WITH_SHA256 = bytes.fromhex("06082a8648ce3d040302")
COMMON_NAME = bytes.fromhex("0603550403")
SUBJECT_ALT_NAME = bytes.fromhex("0603551d11")

SEQUENCE, SET, INTEGER, BIT_STRING, OCTET_STRING = 0x30, 0x31, 0x02, 0x03, 0x04
UTF8_STRING, UTC_TIME, GENERALIZED_TIME = 0x0C, 0x17, 0x18
UTC_TIME_YEAR_MAX = 2049


def self_signed_pem(name: str, *, now_ms: int) -> bytes:
    """Return a new key and its certificate, valid from yesterday on, as one PEM text."""
    private = secrets.randbelow(N - 1) + 1
    point = _multiply(private, G)
    assert point is not None, "a private key below N has a public point"
    public = b"\x04" + point[0].to_bytes(32, "big") + point[1].to_bytes(32, "big")
    start = datetime.fromtimestamp(now_ms / 1000, UTC) - timedelta(days=1)
    unsigned = _certificate_body(name, public, start)
    signature = _sign(private, unsigned)
    algorithm = _der(SEQUENCE, ECDSA_WITH_SHA256)
    certificate = _der(SEQUENCE, unsigned, algorithm, _der(BIT_STRING, b"\x00", signature))
    key = _der(
        SEQUENCE,
        _integer(1),
        _der(OCTET_STRING, private.to_bytes(32, "big")),
        _der(0xA0, PRIME256V1),
        _der(0xA1, _der(BIT_STRING, b"\x00", public)),
    )
    return _pem("EC PRIVATE KEY", key) + _pem("CERTIFICATE", certificate)


def _certificate_body(name: str, public: bytes, start: datetime) -> bytes:
    subject = _der(
        SEQUENCE, _der(SET, _der(SEQUENCE, COMMON_NAME, _der(UTF8_STRING, name.encode())))
    )
    alternative = _der(SEQUENCE, _der(0x82, name.encode()))
    extension = _der(SEQUENCE, SUBJECT_ALT_NAME, _der(OCTET_STRING, alternative))
    return _der(
        SEQUENCE,
        _der(0xA0, _integer(2)),  # version 3
        _integer(secrets.randbits(63) | 1),
        _der(SEQUENCE, ECDSA_WITH_SHA256),
        subject,
        _der(SEQUENCE, _time(start), _time(start + timedelta(days=VALID_DAYS))),
        subject,
        _der(
            SEQUENCE,
            _der(SEQUENCE, EC_PUBLIC_KEY, PRIME256V1),
            _der(BIT_STRING, b"\x00", public),
        ),
        _der(0xA3, _der(SEQUENCE, extension)),
    )


def _sign(private: int, data: bytes) -> bytes:
    """Return the DER form of an ECDSA signature with SHA-256."""
    digest = int.from_bytes(hashlib.sha256(data).digest(), "big")
    while True:
        nonce = secrets.randbelow(N - 1) + 1
        point = _multiply(nonce, G)
        if point is None:
            continue
        r = point[0] % N
        s = pow(nonce, -1, N) * (digest + r * private) % N
        if r and s:
            return _der(SEQUENCE, _integer(r), _integer(s))


def _add(left: Point, right: Point) -> Point:
    if left is None:
        return right
    if right is None:
        return left
    if left[0] == right[0]:
        if (left[1] + right[1]) % P == 0:
            return None
        slope = (3 * left[0] * left[0] - 3) * pow(2 * left[1], -1, P) % P
    else:
        slope = (right[1] - left[1]) * pow(right[0] - left[0], -1, P) % P
    x = (slope * slope - left[0] - right[0]) % P
    return x, (slope * (left[0] - x) - left[1]) % P


def _multiply(factor: int, point: Point) -> Point:
    total: Point = None
    while factor:
        if factor & 1:
            total = _add(total, point)
        point = _add(point, point)
        factor >>= 1
    return total


def _der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _integer(value: int) -> bytes:
    return _der(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _time(moment: datetime) -> bytes:
    if moment.year <= UTC_TIME_YEAR_MAX:
        return _der(UTC_TIME, moment.strftime("%y%m%d%H%M%SZ").encode())
    return _der(GENERALIZED_TIME, moment.strftime("%Y%m%d%H%M%SZ").encode())


def _pem(label: str, data: bytes) -> bytes:
    text = base64.b64encode(data).decode()
    lines = [text[i : i + 64] for i in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""]).encode()


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
