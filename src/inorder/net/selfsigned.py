"""A self-signed certificate from the standard library alone.

Servers accept TLS without any configuration, as RocketMQ's do, and that takes a certificate.
Python's ssl module cannot make one; a program or a package for it would be one more thing to
install, and a process started because a stranger connected. What is needed is little: one P-256
key, one signature, a dozen DER structures. The key signs itself here once; all later use of it is
OpenSSL's. Nobody can verify who owns such a certificate, so nothing depends on its strength
beyond the key being random.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from datetime import UTC, datetime, timedelta

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
