"""TLS without a socket, and certificates for servers that have none.

A `TlsSession` is an SSLObject between two memory buffers. The first byte of a connection says
whether it is TLS, so the session is put in between afterwards, inside the connection. It needs
nothing from the event loop and works the same on an in-memory loop.

Servers accept TLS without configuration, as RocketMQ's do, so they need a certificate. Python's ssl
module cannot make one, and a program or package for it would be one more thing to install. This
file makes one from the standard library: one P-256 key, one signature, a dozen DER structures. The
key signs itself once; OpenSSL does all later work with it. Such a certificate keeps eavesdroppers
out and proves nothing about the server's identity. Why: decision 8.

`ServerTls` holds the context of new connections and watches the files behind it: a new certificate
counts without a restart. `client_context` and `outgoing_context` are for the asking side.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import ssl
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from inorder.config import NetConfig, tls_fault
from inorder.errors import ConfigError, RemoteProtocolError
from inorder.logs import get_logger

if TYPE_CHECKING:
    from inorder.net.transport import Buffer

logger = get_logger(__name__)

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


def certificate_end_ms(pem: bytes) -> int:
    """Return until when the first certificate of a PEM text is valid; 0 if it does not tell."""
    head, foot = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
    try:
        text = pem.split(head, 1)[1].split(foot, 1)[0]
        (_, whole), *_ = _items(base64.b64decode(text))
        (_, body), *_ = _items(whole)
        # Serial, algorithm, issuer, validity; the version stands before them, if at all.
        _, _, _, (_, validity), *_ = [one for one in _items(body) if one[0] != 0xA0]
        _, (tag, moment) = _items(validity)
        written = moment.decode("ascii")
        if tag == UTC_TIME:  # years of two digits, from 1950 on (RFC 5280)
            written = ("20" if written < "50" else "19") + written
        end = datetime.strptime(written, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
        return round(end.timestamp() * 1000)
    except (ValueError, IndexError):
        return 0


def _items(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Return the tags and contents of DER items that follow each other."""
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            length = size & 0x7F
            size = int.from_bytes(data[at : at + length], "big")
            at += length
        yield tag, data[at : at + size]
        at += size


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
            raise RemoteProtocolError(f"broken TLS: {tls_problem(error)}") from error
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

    def peer_certificate(self) -> Mapping[str, Any]:
        """Return the fields of the peer's certificate; empty if none was shown and checked."""
        return self._object.getpeercert() or {}

    def _handshake(self) -> bool:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise RemoteProtocolError(f"a failed TLS handshake: {tls_problem(error)}") from error
        self.established = True
        for part in self._unsent:
            self._object.write(part)
        self._unsent.clear()
        return True


class ServerTls:
    """The TLS of a server: the context of new connections, and a watch on its files.

    Without a certificate one is made when the first client wants TLS. Files that are named are
    read at the start, so that a mistake shows there. `refresh` looks for new ones.
    """

    def __init__(self, config: NetConfig | None = None) -> None:
        self._config = config = config or NetConfig()
        names = (config.tls_certificate, config.tls_key, config.tls_trust)
        self._paths = tuple(Path(name) for name in names if name)
        self._context: ssl.SSLContext | None = None
        self._in_force = self._stamps()
        self._unusable: _Stamps | None = None
        self._reported: _Stamps | None = None
        self.problem = ""
        """What keeps the files that are there now from being used."""
        self.reloads = 0
        self.ends_ms = 0
        """Until when the certificate of the file in force is valid; 0: there is none."""

    @classmethod
    def from_config(cls, config: NetConfig) -> ServerTls:
        """Check the settings; configured files are read now, so that a mistake shows at start."""
        if config.tls_mode not in TLS_MODES:
            modes = ", ".join(TLS_MODES)
            raise ConfigError(f"tls_mode={config.tls_mode!r}: must be one of {modes}")
        fault = tls_fault(config)
        if fault:
            raise ConfigError(fault)
        tls = cls(config)
        if config.tls_mode != "disabled":
            if config.tls_certificate:
                tls._context = tls._read()
            else:
                _server_context(config)
        return tls

    @property
    def watches(self) -> bool:
        """Return whether there are files to look at."""
        return bool(self._paths) and self._config.tls_mode != "disabled"

    def session(self, now_ms: int) -> TlsSession:
        """Return the server side of a new TLS connection."""
        if self._context is None:
            self._context = self._made(now_ms)
        return TlsSession(self._context, server_side=True)

    def user_of(self, session: TlsSession) -> str | None:
        """Return the user that the client's certificate names, if certificates name users."""
        return certified_user(session.peer_certificate()) if self._config.tls_users else None

    def refresh(self, now_ms: int) -> None:
        """Take the files in force if they have changed and fit together, else keep what is there.

        Certificate and key are often replaced one after the other. So files that do not fit are
        looked at once more before anything is said about them.
        """
        stamps = self._stamps()
        if stamps == self._in_force:
            self._unusable, self.problem = None, ""
            return
        if stamps == self._unusable == self._reported:
            return
        try:
            self._context = self._made(now_ms)
        except ConfigError as error:
            if stamps == self._unusable:
                self._reported, self.problem = stamps, str(error)
                logger.error("new TLS files are not used, the former ones stay: %s", error)
            self._unusable = stamps
            return
        self._in_force, self._unusable, self.problem = stamps, None, ""
        self.reloads += 1
        logger.info("new TLS files in force files=%s", ", ".join(str(one) for one in self._paths))

    def _made(self, now_ms: int) -> ssl.SSLContext:
        if self._config.tls_certificate:
            return self._read()
        return _self_signed(self._config, now_ms)

    def _read(self) -> ssl.SSLContext:
        context = _load(self._config)
        self.ends_ms = certificate_end_ms(Path(self._config.tls_certificate).read_bytes())
        return context

    def _stamps(self) -> _Stamps:
        return tuple(_stamp(path) for path in self._paths)

    def __repr__(self) -> str:
        return f"ServerTls({self._config.tls_certificate or 'self-signed'!r})"


_Stamps = tuple[tuple[int, ...], ...]


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what changes with the content of a file, or with the file that a link means."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns


USER_URI: Final = "inorder:user:"
USER_CHARS_MAX: Final = 255


def certified_user(certificate: Mapping[str, Any]) -> str | None:
    """Return the user that a checked certificate names: URI `inorder:user:NAME`, else common name.

    A certificate that names several users names nobody, and so does an unprintable name.
    """
    uris = {
        unquote(value.removeprefix(USER_URI))
        for kind, value in certificate.get("subjectAltName", ())
        if kind == "URI" and value.startswith(USER_URI)
    }
    subject = certificate.get("subject", ())
    names = uris or {value for part in subject for name, value in part if name == "commonName"}
    if len(names) != 1:
        return None
    (name,) = names
    return name if name.isprintable() and 0 < len(name) <= USER_CHARS_MAX else None


_ADVICE: Final[Mapping[str, str]] = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other side asks for a certificate (--tls-cert)",
    "TLSV1_ALERT_UNKNOWN_CA": "the other side does not trust who signed our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other side does not accept our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the other side does not accept our certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the other side wants a higher version of TLS",
    "UNSUPPORTED_PROTOCOL": "the other side offers a version of TLS below tls_min_version",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client shows no certificate",
    "WRONG_VERSION_NUMBER": "the other side does not speak TLS",
}
_VERIFY_ADVICE: Final[Mapping[int, str]] = {
    9: "check the clocks of both sides",
    10: "its certificate has to be renewed",
    62: "connect by a name that its certificate holds",
    64: "connect by an address that its certificate holds",
}
"""By the numbers of OpenSSL: not yet valid, expired, another name, another address."""


def tls_problem(error: OSError) -> str:
    """Return what went wrong in TLS, in OpenSSL's words and in ours."""
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = _VERIFY_ADVICE.get(error.verify_code, "does tls_ca name who signed it?")
        return f"CERTIFICATE_VERIFY_FAILED: {error.verify_message.rstrip('.')}; {advice}"
    if not isinstance(error, ssl.SSLError) or not error.reason:
        return str(error)
    known = _ADVICE.get(error.reason)
    return f"{error.reason}: {known}" if known else error.reason


def client_context(
    *,
    authorities: str | None = None,
    trust_any: bool = False,
    certificate: str = "",
    key: str = "",
    key_password: str = "",
) -> ssl.SSLContext:
    """Return the context of TLS clients.

    `trust_any` accepts every certificate, as RocketMQ's clients do by default; it protects
    against listening only. `authorities` is a PEM file; None means those of the system.
    """
    context = ssl.create_default_context(cafile=authorities)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if trust_any:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key or None, key_password)
    return context


def outgoing_context(config: NetConfig) -> ssl.SSLContext | None:
    """Return the context of a server's own calls to other servers; None: no TLS.

    Where TLS is enforced and nothing is set for calls, they trust any certificate.
    """
    if not config.tls_enable and config.tls_mode != "enforcing":
        return None
    checked = config.tls_client_verify and bool(config.tls_enable or config.tls_client_trust)
    if config.tls_client_certificate:
        pair = (config.tls_client_certificate, config.tls_client_key)
        password = config.tls_client_key_password
    else:
        pair, password = (config.tls_certificate, config.tls_key), config.tls_key_password
    try:
        return client_context(
            authorities=config.tls_client_trust or None, trust_any=not checked,
            certificate=pair[0], key=pair[1], key_password=password,
        )  # fmt: skip
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(filter(None, (config.tls_client_trust, *pair)))
        raise ConfigError(
            f"no TLS towards other servers with {named}: {error}; tls_client_trust, "
            "tls_client_certificate and tls_client_key must be readable PEM files"
        ) from None


_VERSIONS: Final[Mapping[str, ssl.TLSVersion]] = {
    "1.2": ssl.TLSVersion.TLSv1_2,
    "1.3": ssl.TLSVersion.TLSv1_3,
}
_CLIENT_AUTH: Final[Mapping[str, ssl.VerifyMode]] = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}


def _server_context(config: NetConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.tls_min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.verify_mode = _CLIENT_AUTH[config.tls_client_auth]
    if config.tls_client_auth != "none":
        try:
            context.load_verify_locations(config.tls_trust)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"tls_trust={config.tls_trust!r}: {error}; it must be a readable PEM file of "
                "certificates"
            ) from None
    return context


def _load(config: NetConfig) -> ssl.SSLContext:
    context = _server_context(config)
    certificate, key = config.tls_certificate, config.tls_key
    try:
        context.load_cert_chain(certificate, key, config.tls_key_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"tls_certificate={certificate!r} with tls_key={key!r}: {error}; "
            "both must be readable PEM files that belong together, and tls_key_password must fit "
            "if the key is encrypted"
        ) from None
    return context


def _self_signed(config: NetConfig, now_ms: int) -> ssl.SSLContext:
    context = _server_context(config)
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
