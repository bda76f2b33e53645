"""TLS in memory, and the certificate that nobody had to install."""

from __future__ import annotations

import ssl
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from inorder.config import NetConfig
from inorder.errors import ConfigError, RemoteProtocolError
from inorder.net.tls import G as GENERATOR
from inorder.net.tls import N, ServerTls, TlsSession, _multiply, client_context, self_signed_pem

NOW_MS = int(datetime.now(UTC).timestamp() * 1000)


def shake_hands(client: TlsSession, server: TlsSession) -> bytes:
    """Carry bytes between both until the server has plaintext; return it."""
    plain, data = b"", client.start()
    for _ in range(5):
        plain += server.receive(data)
        client.receive(server.outgoing())
        data = client.outgoing()
    return plain


def test_both_directions_and_what_was_queued_before_the_handshake() -> None:
    """Output of before the handshake is sent when it is done, then bytes flow both ways."""
    server = ServerTls().session(NOW_MS)
    client = TlsSession(client_context(trust_any=True), server_side=False, server_hostname="x")
    assert client.encrypt([b"early ", memoryview(b"words")]) == b""
    assert shake_hands(client, server) == b"early words"
    assert client.established
    assert server.established
    big = b"z" * 1_000_000
    assert client.receive(server.encrypt([big])) == big


def test_bytes_may_arrive_one_at_a_time() -> None:
    """How the network cuts TLS records does not matter."""
    server = ServerTls().session(NOW_MS)
    client = TlsSession(client_context(trust_any=True), server_side=False)
    shake_hands(client, server)
    cipher = client.encrypt([b"hello"])
    assert b"".join(server.receive(cipher[i : i + 1]) for i in range(len(cipher))) == b"hello"


def test_garbage_is_a_protocol_error() -> None:
    """What starts like TLS and is not is refused, before and after the handshake."""
    with pytest.raises(RemoteProtocolError, match="handshake"):
        ServerTls().session(NOW_MS).receive(b"\x16\x03\x01\x00\x05hello")
    server = ServerTls().session(NOW_MS)
    client = TlsSession(client_context(trust_any=True), server_side=False)
    shake_hands(client, server)
    with pytest.raises(RemoteProtocolError, match="broken TLS"):
        server.receive(b"\x17\x03\x03\x00\x05hello")


def test_a_client_that_verifies_refuses_a_self_signed_certificate() -> None:
    """trust_any is a decision, not the default."""
    server = ServerTls().session(NOW_MS)
    client = TlsSession(client_context(), server_side=False, server_hostname="inorder")
    with pytest.raises(RemoteProtocolError, match="CERTIFICATE_VERIFY_FAILED"):
        shake_hands(client, server)


def test_configured_files_are_used(tmp_path: Path) -> None:
    """With tls_certificate and tls_key a client that trusts the authority connects."""
    authority = trustme.CA()
    certificate = authority.issue_cert("broker.example")
    pem, key, ca = (str(tmp_path / name) for name in ("cert.pem", "key.pem", "ca.pem"))
    certificate.cert_chain_pems[0].write_to_path(pem)
    certificate.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(ca)
    config = replace(NetConfig(), tls_certificate=pem, tls_key=key)
    server = ServerTls.from_config(config).session(NOW_MS)
    client = TlsSession(
        client_context(authorities=ca), server_side=False, server_hostname="broker.example"
    )
    client.encrypt([b"hi"])
    assert shake_hands(client, server) == b"hi"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tls_mode": "maybe"}, "must be one of disabled, permissive, enforcing"),
        ({"tls_certificate": "/nowhere/c.pem"}, "set together"),
        ({"tls_certificate": "/nowhere/c.pem", "tls_key": "/nowhere/k.pem"}, "readable PEM"),
    ],
)
def test_wrong_settings_show_at_start(settings: dict[str, str], message: str) -> None:
    """A mistake is found when the server is made, not by the first client."""
    with pytest.raises(ConfigError, match=message):
        ServerTls.from_config(replace(NetConfig(), **settings))


def test_the_self_signed_certificate_is_sound() -> None:
    """Another library finds key, signature, name and dates in order."""
    pem = self_signed_pem("inorder", now_ms=NOW_MS)
    certificate = x509.load_pem_x509_certificate(pem)
    key = load_pem_private_key(pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert certificate.public_key() == key.public_key()
    certificate.verify_directly_issued_by(certificate)
    assert certificate.not_valid_before_utc < datetime.now(UTC)
    assert certificate.not_valid_after_utc.year >= datetime.now(UTC).year + 9
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == ["inorder"]


def test_two_self_signed_certificates_differ() -> None:
    """Key and serial number are new each time."""
    first, second = (self_signed_pem("inorder", now_ms=NOW_MS) for _ in range(2))
    assert first != second
    assert (
        x509.load_pem_x509_certificate(first).serial_number
        != x509.load_pem_x509_certificate(second).serial_number
    )


@pytest.mark.parametrize("factor", [1, 2, 3, 112233445566778899, N - 1])
def test_the_curve_agrees_with_another_library(factor: int) -> None:
    """Multiples of the generator are those of P-256."""
    numbers = ec.derive_private_key(factor, ec.SECP256R1()).public_key().public_numbers()
    assert _multiply(factor, GENERATOR) == (numbers.x, numbers.y)


def test_the_order_of_the_generator() -> None:
    """N times the generator is the point at infinity."""
    assert _multiply(N, GENERATOR) is None


def test_old_protocol_versions_are_refused() -> None:
    """TLS 1.2 is the oldest that a server accepts."""
    context = client_context(trust_any=True)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    session = TlsSession(context, server_side=False)
    session.encrypt([b"1.2"])
    assert shake_hands(session, ServerTls().session(NOW_MS)) == b"1.2"
    assert session._object.version() == "TLSv1.2"
    assert ServerTls().session(NOW_MS)._object.context.minimum_version == ssl.TLSVersion.TLSv1_2
