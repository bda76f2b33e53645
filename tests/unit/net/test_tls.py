"""TLS in memory, and the certificate that nobody had to install."""

from __future__ import annotations

import logging
import ssl
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from inorder.config import NetConfig
from inorder.errors import ConfigError, RemoteProtocolError
from inorder.net.tls import G as GENERATOR
from inorder.net.tls import (
    N,
    ServerTls,
    TlsSession,
    _multiply,
    certificate_end_ms,
    certified_user,
    client_context,
    outgoing_context,
    self_signed_pem,
)
from tests.kit.certificates import Certificates

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
        ({"tls_certificate": "/nowhere/c.pem"}, "belong together"),
        ({"tls_client_auth": "require"}, r"needs net\.tls_trust"),
        ({"tls_client_auth": "optional"}, "tls.server.trustCertPath"),
        ({"tls_client_auth": "require", "tls_trust": "/nowhere/ca.pem"}, "readable PEM file of"),
        ({"tls_users": True}, "nobody is asked"),
        ({"tls_client_key": "k.pem"}, "no use without"),
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


@pytest.mark.parametrize("year", [2031, 2051])
def test_the_end_of_a_certificate_is_read(year: int) -> None:
    """In both forms of time; what is no certificate has no end."""
    ends = datetime(year, 2, 3, 4, 5, 6, tzinfo=UTC)
    issued = trustme.CA().issue_cert("broker.example", not_after=ends)
    pem = b"a line before\n" + issued.cert_chain_pems[0].bytes()
    assert certificate_end_ms(pem) == ends.timestamp() * 1000
    assert certificate_end_ms(pem[:-200]) == 0
    assert certificate_end_ms(b"") == 0


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


def serial(files: Certificates, tls: ServerTls) -> str:
    """Return the serial number of the certificate that a new connection is shown."""
    client = TlsSession(
        client_context(authorities=str(files.ca)),
        server_side=False,
        server_hostname="broker.example",
    )
    shake_hands(client, tls.session(NOW_MS))
    return str(client.peer_certificate()["serialNumber"])


def connected(context: ssl.SSLContext, tls: ServerTls) -> TlsSession:
    """Return the server's side of a new connection that has said a word."""
    client = TlsSession(context, server_side=False, server_hostname="broker.example")
    server = tls.session(NOW_MS)
    client.encrypt([b"hi"])
    assert shake_hands(client, server) == b"hi"
    return server


def test_a_certificate_of_a_client_names_its_user(tmp_path: Path) -> None:
    """The common name is the user where certificates name users, and nobody's elsewhere."""
    files = Certificates(tmp_path)
    tls = ServerTls.from_config(files.config(tls_client_auth="require", tls_users=True))
    assert tls.user_of(connected(files.client("alice"), tls)) == "alice"
    silent = ServerTls.from_config(files.config(tls_client_auth="require"))
    assert silent.user_of(connected(files.client("alice"), silent)) is None


def test_required_certificates_are_checked(tmp_path: Path) -> None:
    """No certificate, and one of another authority, end the handshake; `optional` allows none."""
    files = Certificates(tmp_path)
    tls = ServerTls.from_config(files.config(tls_client_auth="require", tls_users=True))
    nobody = client_context(authorities=str(files.ca))
    stranger = files.client("alice", trustme.CA())
    with pytest.raises(RemoteProtocolError, match="shows no certificate"):
        connected(nobody, tls)
    with pytest.raises(RemoteProtocolError, match="CERTIFICATE_VERIFY_FAILED"):
        connected(stranger, tls)
    tls = ServerTls.from_config(files.config(tls_client_auth="optional", tls_users=True))
    assert tls.user_of(connected(nobody, tls)) is None
    assert tls.user_of(connected(files.client("bob"), tls)) == "bob"
    with pytest.raises(RemoteProtocolError, match="CERTIFICATE_VERIFY_FAILED"):
        connected(stranger, tls)


CN = ((("commonName", "carol"),),)


@pytest.mark.parametrize(
    ("certificate", "user"),
    [
        ({}, None),
        ({"subject": CN}, "carol"),
        ({"subject": CN, "subjectAltName": (("URI", "inorder:user:dan"),)}, "dan"),
        ({"subject": CN, "subjectAltName": (("URI", "https://x/"), ("DNS", "eve"))}, "carol"),
        ({"subjectAltName": (("URI", "inorder:user:a%20b%2Fc"),)}, "a b/c"),
        ({"subjectAltName": (("URI", "inorder:user:a"), ("URI", "inorder:user:b"))}, None),
        ({"subject": ((("commonName", "a"),), (("commonName", "b"),))}, None),
        ({"subject": ((("commonName", "a\nb"),),)}, None),
        ({"subjectAltName": (("URI", "inorder:user:a%00b"),)}, None),
        ({"subject": CN, "subjectAltName": (("URI", "inorder:user:"),)}, None),
        ({"subject": ((("commonName", "x" * 256),),)}, None),
    ],
)
def test_whom_a_certificate_names(certificate: dict[str, object], user: str | None) -> None:
    """The URI wins over the common name; two names, or one that cannot be shown, are none."""
    assert certified_user(certificate) == user


def test_the_lowest_version_can_be_raised(tmp_path: Path) -> None:
    """With tls_min_version=1.3 a client of TLS 1.2 is refused, and one of 1.3 is not."""
    files = Certificates(tmp_path)
    tls = ServerTls.from_config(files.config(tls_min_version="1.3"))
    old = client_context(authorities=str(files.ca))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(RemoteProtocolError, match="UNSUPPORTED_PROTOCOL"):
        connected(old, tls)
    connected(client_context(authorities=str(files.ca)), tls)


def test_encrypted_keys(tmp_path: Path) -> None:
    """The password opens the key; a wrong or missing one is an error, asked for on no terminal."""
    files = Certificates(tmp_path)
    key = load_pem_private_key(files.key.read_bytes(), None)
    sealed = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"open sesame")
    )
    files.key.write_bytes(sealed)
    config = files.config(tls_key_password="open sesame")
    connected(client_context(authorities=str(files.ca)), ServerTls.from_config(config))
    for wrong in ("", "wrong"):
        with pytest.raises(ConfigError, match="tls_key_password must fit") as caught:
            ServerTls.from_config(replace(config, tls_key_password=wrong))
        assert "sesame" not in str(caught.value)
    assert "sesame" not in repr(config)
    with pytest.raises(ssl.SSLError):
        client_context(certificate=str(files.cert), key=str(files.key))


def test_new_files_count_for_new_connections(tmp_path: Path) -> None:
    """A changed pair is taken; an open connection keeps the certificate that it has."""
    files = Certificates(tmp_path)
    tls = ServerTls.from_config(files.config())
    assert tls.watches
    first = serial(files, tls)
    client = TlsSession(
        client_context(authorities=str(files.ca)),
        server_side=False,
        server_hostname="broker.example",
    )
    server = tls.session(NOW_MS)
    shake_hands(client, server)
    tls.refresh(NOW_MS)
    assert tls.reloads == 0
    files.renew()
    tls.refresh(NOW_MS)
    assert tls.reloads == 1
    assert serial(files, tls) != first
    assert client.receive(server.encrypt([b"still there"])) == b"still there"


def test_files_that_do_not_fit_are_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of a pair, a torn file and a missing one: the old context stays, one error is logged."""
    files = Certificates(tmp_path)
    tls = ServerTls.from_config(files.config(tls_client_auth="require"))
    before = tls.session(NOW_MS)._object.context
    old_cert, ca = files.cert.read_bytes(), files.ca.read_bytes()
    cert, key = files.pair()

    def looked(times: int) -> int:
        caplog.clear()
        for _ in range(times):
            tls.refresh(NOW_MS)
        assert tls.session(NOW_MS)._object.context is before
        return len([one for one in caplog.records if one.levelno >= logging.ERROR])

    files.cert.write_bytes(cert)
    assert looked(1) == 0  # the key may be on its way
    assert looked(5) == 1
    assert "belong together" in tls.problem
    files.cert.write_bytes(old_cert[: len(old_cert) // 2])
    assert looked(5) == 1
    files.cert.unlink()
    assert looked(5) == 1
    files.cert.write_bytes(cert)
    files.key.write_bytes(key)
    files.ca.write_bytes(ca[: len(ca) // 2])
    assert looked(5) == 1
    assert "tls_trust" in tls.problem
    files.ca.write_bytes(ca)
    tls.refresh(NOW_MS)
    assert tls.session(NOW_MS)._object.context is not before
    assert (tls.problem, tls.reloads) == ("", 1)


def test_a_pair_replaced_in_two_steps_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A look between the two steps changes nothing and says nothing."""
    files = Certificates(tmp_path)
    tls = ServerTls.from_config(files.config())
    cert, key = files.pair()
    files.cert.write_bytes(cert)
    tls.refresh(NOW_MS)
    files.key.write_bytes(key)
    tls.refresh(NOW_MS)
    assert tls.reloads == 1
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []


def test_a_new_trust_file_counts(tmp_path: Path) -> None:
    """An authority that is gone from the file signs for no new connection; self-signed too."""
    files = Certificates(tmp_path)
    other = trustme.CA()
    config = replace(files.config(tls_client_auth="require"), tls_certificate="", tls_key="")
    tls = ServerTls.from_config(config)
    alice, bob = files.client("alice"), files.client("bob", other)
    for one in (alice, bob):
        one.check_hostname = False
        one.verify_mode = ssl.CERT_NONE
    connected(alice, tls)
    files.ca.write_bytes(other.cert_pem.bytes())
    tls.refresh(NOW_MS)
    connected(bob, tls)
    with pytest.raises(RemoteProtocolError, match="CERTIFICATE_VERIFY_FAILED"):
        connected(alice, tls)


def test_calls_to_other_servers(tmp_path: Path) -> None:
    """Off by default; enforcing alone trusts any, `tls_enable` verifies, and the pair is shown."""
    files = Certificates(tmp_path)
    assert outgoing_context(NetConfig()) is None

    def made(**settings: object) -> ssl.SSLContext:
        context = outgoing_context(files.config(**settings))
        assert context is not None
        return context

    assert made(tls_mode="enforcing").verify_mode is ssl.CERT_NONE
    assert made(tls_enable=True).verify_mode is ssl.CERT_REQUIRED
    assert made(tls_enable=True, tls_client_verify=False).verify_mode is ssl.CERT_NONE
    verified = made(tls_mode="enforcing", tls_client_trust=str(files.ca))
    assert verified.verify_mode is ssl.CERT_REQUIRED
    assert verified.check_hostname
    server = ServerTls.from_config(files.config(tls_client_auth="require", tls_users=True))
    assert server.user_of(connected(verified, server)) is None  # it has no common name
    with pytest.raises(ConfigError, match="tls_client_trust, tls_client_certificate"):
        made(tls_enable=True, tls_client_trust="/nowhere/ca.pem")


def test_a_client_says_what_is_wrong_with_a_certificate(tmp_path: Path) -> None:
    """Another authority, an expired certificate, and another name are told apart."""
    files = Certificates(tmp_path)
    tls = ServerTls.from_config(files.config())
    trusting = client_context(authorities=str(files.ca))
    cases = [
        (client_context(), "broker.example", "does tls_ca name who signed it"),
        (trusting, "other.example", "not valid for 'other.example'; connect by a name"),
        (trusting, "10.0.0.1", "not valid for '10.0.0.1'; connect by an address"),
    ]
    for context, name, words in cases:
        client = TlsSession(context, server_side=False, server_hostname=name)
        with pytest.raises(RemoteProtocolError, match=words):
            shake_hands(client, tls.session(NOW_MS))
    issued = files.authority.issue_cert(
        "broker.example", not_after=datetime(2020, 1, 1, tzinfo=UTC)
    )
    files.cert.write_bytes(issued.cert_chain_pems[0].bytes())
    files.key.write_bytes(issued.private_key_pem.bytes())
    client = TlsSession(trusting, server_side=False, server_hostname="broker.example")
    with pytest.raises(RemoteProtocolError, match="expired; its certificate has to be renewed"):
        shake_hands(client, ServerTls.from_config(files.config()).session(NOW_MS))
