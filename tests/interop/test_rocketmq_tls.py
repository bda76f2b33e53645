"""RocketMQ's Java client over TLS, where the servers accept nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

import inorder
from bench.remoting import RemotingError
from bench.systems import start_ours
from inorder.net.tls import client_context
from tests.interop import toolchains
from tests.interop.driver import Driver, DriverFailed, by_queue
from tests.interop.rawclient import GET_MAX_OFFSET, RawClient
from tests.interop.stock import KINDS, as_sent
from tests.interop.toolchains import JAVA_5, Lacking

pytestmark = [pytest.mark.interop, pytest.mark.slow]

READY = re.compile(r"^ready namesrv=127\.0\.0\.1:(\d+) broker=127\.0\.0\.1:(\d+) ", re.MULTILINE)


def test_a_java_client_works_where_plain_text_is_refused(tmp_path: Path) -> None:
    """With `tls.server.mode=enforcing` plain connections are closed; `tls.enable=true` works.

    The settings of `inorder up` are the broker's; the name server takes both, and Java uses TLS.
    """
    kind = next(kind for kind in KINDS if kind.name == "java-5.3.3-tls")
    try:
        command = kind.command()
    except Lacking as lacking:
        pytest.skip(f"{kind.name} cannot run here: {lacking}")
    flags = {"broker-port": 0, "namesrv-port": 0, "data": tmp_path / "data"}
    settings = {"tls.server.mode": "enforcing"}
    server = start_ours("up", tmp_path, flags=flags, settings=settings)
    try:
        server.wait_until(lambda: READY.search(server.output()) is not None, timeout_s=30)
        ready = READY.search(server.output())
        assert ready is not None
        broker = ("127.0.0.1", int(ready.group(2)))
        with RawClient(broker) as raw, pytest.raises((RemotingError, OSError)):
            raw.request(GET_MAX_OFFSET, {"topic": "TBW102", "queueId": 0})
        driver = Driver(kind.name, command, f"127.0.0.1:{ready.group(1)}", tmp_path / "client")
        try:
            driver.do("produce", topic="made_by_sending", first=0, count=100, tags="A")
            driver.do(
                "push", name="r", group="g", topic="made_by_sending", tags="*", mode="concurrent"
            )
            driver.wait(lambda: len(driver.messages("got")) >= 100, "100 messages")
            assert by_queue(driver.messages("got")) == as_sent(0, 100)
        finally:
            driver.end()
    finally:
        server.kill()


def pair(folder: Path, name: str, authority: trustme.CA) -> tuple[Path, Path]:
    """Write a certificate and its key, as PKCS#8: Java reads no other form."""
    issued = authority.issue_cert("127.0.0.1", common_name=name)
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    cert_path, key_path = folder / f"{name}.pem", folder / f"{name}-key.pem"
    cert_path.write_bytes(issued.cert_chain_pems[0].bytes())
    key_path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return cert_path, key_path


def test_a_java_client_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    """With RocketMQ's keys for mutual TLS: a stranger's certificate does nothing, ours works.

    Java checks the authority of the servers, too (`tls.client.authServer`).
    """
    authority, stranger = trustme.CA(), trustme.CA()
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    server_pair = pair(tmp_path, "server", authority)
    pairs = {
        "mallory": pair(tmp_path, "mallory", stranger),
        "alice": pair(tmp_path, "alice", authority),
    }

    def command(name: str) -> list[str]:
        cert, key = pairs[name]
        return toolchains.java(
            JAVA_5, "-Dtls.enable=true", "-Dtls.test.mode.enable=false",
            "-Dtls.client.authServer=true", f"-Dtls.client.trustCertPath={ca}",
            f"-Dtls.client.certPath={cert}", f"-Dtls.client.keyPath={key}",
        )()  # fmt: skip

    try:
        commands = {name: command(name) for name in pairs}
    except Lacking as lacking:
        pytest.skip(f"the Java client cannot run here: {lacking}")
    settings = {
        "tls.server.mode": "enforcing", "tls.test.mode.enable": "false",
        "tls.server.certPath": server_pair[0], "tls.server.keyPath": server_pair[1],
        "tls.server.need.client.auth": "require", "tls.server.authClient": "true",
        "tls.server.trustCertPath": ca,
    }  # fmt: skip
    flags = {"broker-port": 0, "namesrv-port": 0, "data": tmp_path / "data"}
    server = start_ours("up", tmp_path, flags=flags, settings=settings)
    try:
        server.wait_until(lambda: READY.search(server.output()) is not None, timeout_s=30)
        ready = READY.search(server.output())
        assert ready is not None
        namesrv = f"127.0.0.1:{ready.group(1)}"
        send = {"topic": "made_by_sending", "first": 0, "count": 100, "tags": "A"}
        driver = Driver("mallory", commands["mallory"], namesrv, tmp_path / "mallory")
        try:
            with pytest.raises(DriverFailed):
                driver.do("produce", **send)
        finally:
            driver.end()
        context = client_context(
            authorities=str(ca), certificate=str(pairs["alice"][0]), key=str(pairs["alice"][1])
        )
        with inorder.Admin(namesrv, tls=context) as admin:
            assert "made_by_sending" not in admin.topics.names()
            driver = Driver("alice", commands["alice"], namesrv, tmp_path / "alice")
            try:
                driver.do("produce", **send)
                driver.do(
                    "push", name="r", group="g", topic="made_by_sending", tags="*",
                    mode="concurrent",
                )  # fmt: skip
                driver.wait(lambda: len(driver.messages("got")) >= 100, "100 messages")
                assert by_queue(driver.messages("got")) == as_sent(0, 100)
            finally:
                driver.end()
            assert "made_by_sending" in admin.topics.names()
    finally:
        server.kill()
