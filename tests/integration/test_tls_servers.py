"""TLS of brokers and name servers over real sockets: modes, clients, new certificates."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

import inorder.aio
from inorder.config import BrokerConfig, NameServerConfig, NetConfig
from inorder.embedded import Embedded
from inorder.errors import ConfigError, ConnectFailed, ConnectionLost, TransportError
from inorder.net.blocking import BlockingConnection
from inorder.net.connection import Connection
from inorder.net.tls import client_context
from inorder.wire.header import Command
from tests.integration.brokerkit import PATIENT_MS, SMALL, send_fields
from tests.kit.certificates import Certificates

HOST = "127.0.0.1"


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    """Certificates of servers on the loopback."""
    return Certificates(tmp_path, HOST)


@asynccontextmanager
async def serving(tmp_path: Path, net: NetConfig, **broker: Any) -> AsyncIterator[Embedded]:
    """Run a name server and a broker with these settings of connections."""
    pair = Embedded(
        NameServerConfig(port=0, data=str(tmp_path / "namesrv"), net=net),
        BrokerConfig(port=0, data=str(tmp_path / "data"), store=SMALL, net=net, **broker),
    )
    await pair.start()
    try:
        yield pair
    finally:
        await pair.stop()


async def stored(pair: Embedded, context: ssl.SSLContext | None) -> int:
    """Send a message and return the answer's code."""
    connection = await Connection.open(pair.broker_address, NetConfig(), tls=context)
    answer = await connection.request(Command.request(310, send_fields(), b"hi"), PATIENT_MS)
    connection.close()
    return answer.code


def test_enforcing_executes_no_plain_request(tmp_path: Path, files: Certificates) -> None:
    """Plain text is closed before a frame is read, at both servers; by TLS the same works."""

    async def story() -> None:
        async with serving(tmp_path, files.config(tls_mode="enforcing")) as pair:
            for address in (pair.broker_address, pair.namesrv_address):
                plain = await Connection.open(address, NetConfig())
                plain.notify(Command.request(310, send_fields(), b"one-way"))
                with pytest.raises(ConnectionLost, match="does it accept TLS only"):
                    await plain.request(Command.request(310, send_fields(), b"hi"), PATIENT_MS)
            fields = {"namespace": "n", "key": "k", "value": "v"}
            plain = await Connection.open(pair.namesrv_address, NetConfig())
            with pytest.raises(ConnectionLost):
                await plain.request(Command.request(100, fields), PATIENT_MS)
            assert "Orders" not in pair.broker.topics
            assert pair.broker.server.statistics().frames_received == 0
            context = client_context(authorities=str(files.ca))
            assert await stored(pair, context) == 0
            assert "Orders" in pair.broker.topics
            asking = await Connection.open(pair.namesrv_address, NetConfig(), tls=context)
            kept = await asking.request(
                Command.request(101, {"namespace": "n", "key": "k"}), PATIENT_MS
            )
            assert kept.code == 22
            asking.close()

    asyncio.run(story())


def test_disabled_refuses_tls(tmp_path: Path) -> None:
    """The handshake is closed with a text that says so; plain text is served."""

    async def story() -> None:
        async with serving(tmp_path, NetConfig(tls_mode="disabled")) as pair:
            with pytest.raises(ConnectFailed, match="does it accept TLS there"):
                await Connection.open(
                    pair.broker_address, NetConfig(), tls=client_context(trust_any=True)
                )
            assert await stored(pair, None) == 0
            assert pair.broker.server.statistics().tls_connections_total == 0

    asyncio.run(story())


def test_required_certificates_and_the_users_that_they_name(
    tmp_path: Path, files: Certificates
) -> None:
    """Without a certificate, or with a stranger's, nothing is executed; a good one names a user."""
    net = files.config(tls_mode="enforcing", tls_client_auth="require", tls_users=True)

    async def story() -> None:
        async with serving(tmp_path, net) as pair:
            nobody = client_context(authorities=str(files.ca))
            for context, words in (
                (nobody, "asks for a certificate"),
                (files.client("mallory", trustme.CA()), "does not trust who signed"),
            ):
                with pytest.raises(TransportError, match=words):
                    await stored(pair, context)
            assert "Orders" not in pair.broker.topics
            assert pair.broker.server.statistics().frames_received == 0
            alice = await Connection.open(
                pair.broker_address, NetConfig(), tls=files.client("alice")
            )
            await alice.request(Command.request(310, send_fields(), b"hi"), PATIENT_MS)
            assert [one.tls_user for one in pair.broker.server.connections] == ["alice"]
            alice.close()

    asyncio.run(story())


def test_weak_versions_are_refused(tmp_path: Path, files: Certificates) -> None:
    """TLS 1.1 never connects; TLS 1.2 does unless 1.3 is the lowest version."""

    def limited(version: ssl.TLSVersion) -> ssl.SSLContext:
        context = client_context(trust_any=True)
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = version
        context.maximum_version = version
        return context

    async def story() -> None:
        async with serving(tmp_path, files.config()) as pair:
            with pytest.warns(DeprecationWarning, match="TLSv1_1"):
                weak = limited(ssl.TLSVersion.TLSv1_1)
            with pytest.raises(ConnectFailed, match=r"PROTOCOL_VERSION|UNSUPPORTED|NO_PROTOCOLS"):
                await stored(pair, weak)
            assert await stored(pair, limited(ssl.TLSVersion.TLSv1_2)) == 0
        async with serving(tmp_path / "3", files.config(tls_min_version="1.3")) as pair:
            with pytest.raises(ConnectFailed, match="wants a higher version of TLS"):
                await stored(pair, limited(ssl.TLSVersion.TLSv1_2))
            assert await stored(pair, limited(ssl.TLSVersion.TLSv1_3)) == 0

    asyncio.run(story())


def test_new_certificates_under_load_lose_no_acknowledgement(
    tmp_path: Path, files: Certificates
) -> None:
    """Certificates change ten times while messages flow and clients come and go."""
    net = files.config(tls_mode="enforcing", tls_reload_interval_ms=10)

    async def story() -> None:
        async with serving(tmp_path, net) as pair:
            server = pair.broker.server
            context = client_context(authorities=str(files.ca))
            done = asyncio.Event()
            receipts: list[int] = []

            async def send_steadily() -> None:
                async with inorder.aio.Producer(pair.namesrv_address, tls=context) as producer:
                    while not done.is_set():
                        receipt = await producer.send("orders", b"x", key="k")
                        receipts.append(receipt.offset)

            async def come_and_go() -> int:
                count = 0
                while not done.is_set():
                    assert await stored(pair, context) == 0
                    count += 1
                return count

            sending = asyncio.ensure_future(send_steadily())
            visiting = asyncio.ensure_future(come_and_go())
            for turn in range(1, 11):
                before = len(receipts)
                files.renew()
                async with asyncio.timeout(30):
                    while server.tls.reloads < turn or len(receipts) < before + 5:  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
            done.set()
            await sending
            assert await visiting > 0
            assert receipts == list(range(len(receipts)))
            assert len(receipts) >= 50
            found = {one.queue_id for one in pair.broker.store.queues_of("orders")}
            ends = [pair.broker.store.end_offset("orders", one) for one in found]
            assert max(ends) == len(receipts)

    asyncio.run(story())


def test_a_torn_certificate_keeps_the_old_one(tmp_path: Path, files: Certificates) -> None:
    """Half a file is reported once; clients connect as before."""
    net = files.config(tls_reload_interval_ms=10)

    async def story() -> None:
        async with serving(tmp_path, net) as pair:
            files.cert.write_bytes(files.cert.read_bytes()[:300])
            tls = pair.broker.server.tls
            async with asyncio.timeout(30):
                while not tls.problem:  # noqa: ASYNC110 - what is waited for has no event
                    await asyncio.sleep(0.005)
            assert "readable PEM files" in tls.problem
            assert await stored(pair, client_context(authorities=str(files.ca))) == 0

    asyncio.run(story())


def test_brokers_check_their_name_server(tmp_path: Path, files: Certificates) -> None:
    """`tls_enable` registers by TLS where the authority is trusted, and not with a stranger."""
    namesrv = NameServerConfig(port=0, data=str(tmp_path / "n"), net=files.config())
    net = NetConfig(tls_enable=True, tls_client_trust=str(files.ca))
    stranger = files.put("stranger.pem", trustme.CA().cert_pem.bytes())

    async def registered(folder: str, net: NetConfig) -> int:
        pair = Embedded(
            namesrv, BrokerConfig(port=0, data=str(tmp_path / folder), store=SMALL, net=net)
        )
        await pair.start()
        assert pair._namesrv is not None
        server = pair._namesrv.statistics().server
        listed = len(pair._namesrv.routes.cluster_info().brokers)
        await pair.stop()
        assert server.tls_connections_total > 0
        return listed

    assert asyncio.run(registered("a", net)) == 1
    assert asyncio.run(registered("b", replace(net, tls_client_trust=str(stranger)))) == 0
    with pytest.raises(ConfigError, match="readable PEM files"):
        asyncio.run(registered("c", replace(net, tls_client_trust="/nowhere/ca.pem")))


def test_a_blocking_client_says_what_is_wrong(tmp_path: Path, files: Certificates) -> None:
    """The wrong authority, TLS to a plain port, and plain text to an enforcing port."""

    async def story() -> None:
        async with (
            serving(tmp_path, files.config(tls_mode="enforcing")) as strict,
            serving(tmp_path / "2", NetConfig(tls_mode="disabled")) as plain,
        ):

            def ask(address: str, tls: ssl.SSLContext | None) -> None:
                with BlockingConnection(address, tls=tls) as connection:
                    connection.request(Command.request(28))

            asked = asyncio.to_thread
            with pytest.raises(ConnectFailed, match=r"CERTIFICATE_VERIFY_FAILED.*tls_ca name"):
                await asked(ask, strict.broker_address, client_context())
            with pytest.raises(ConnectFailed, match="does the server accept TLS there"):
                await asked(ask, plain.broker_address, client_context(trust_any=True))
            with pytest.raises(ConnectionLost, match="does it accept TLS only"):
                await asked(ask, strict.broker_address, None)
            await asked(ask, strict.broker_address, client_context(authorities=str(files.ca)))

    asyncio.run(story())
