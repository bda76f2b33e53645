"""The audit log of running servers: changes of operators, and a disk that fails."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from inorder.config import AuditConfig, BrokerConfig, NameServerConfig, NetConfig
from inorder.disk import OsFile, OsFiles
from inorder.embedded import Embedded
from inorder.net.connection import Connection
from inorder.wire.header import Command
from tests.integration.brokerkit import PATIENT_MS, SMALL, send_fields
from tests.kit.certificates import Certificates

TOPIC = {
    "topic": "orders", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
    "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip


def pair(tmp_path: Path, net: NetConfig, files: OsFiles | None = None) -> Embedded:
    """Return servers with audit logs."""
    audit = AuditConfig(mode="on")
    return Embedded(
        NameServerConfig(port=0, data=str(tmp_path / "n"), net=net, audit=audit),
        BrokerConfig(port=0, data=str(tmp_path / "b"), net=net, audit=audit, store=SMALL),
        files=files,
    )


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of an audit log."""
    path = folder / "audit" / "audit.log"
    return [json.loads(one) for one in path.read_text().splitlines()] if path.exists() else []


def test_changes_of_operators_are_told(tmp_path: Path) -> None:
    """Who did what to which topic, group or key, also in vain; the work of clients is not told."""
    certificates = Certificates(tmp_path, "127.0.0.1")
    net = certificates.config(tls_mode="enforcing", tls_client_auth="require", tls_users=True)
    asked: tuple[tuple[int, dict[str, str], bytes], ...] = (
        (17, TOPIC, b""),
        (200, {}, b'{"groupName":"g","consumeEnable":true}'),
        (310, send_fields(b="orders"), b"the body of a message"),
        (34, {}, b'{"clientID":"c","producerDataSet":[]}'),
        (25, {}, b"brokerName=open sesame"),
        (215, {"topic": "no\r\nsuch"}, b""),
    )

    async def story() -> None:
        servers = pair(tmp_path, net)
        await servers.start()
        alice = certificates.client("alice")
        broker = await Connection.open(servers.broker_address, NetConfig(), tls=alice)
        for code, fields, body in asked:
            await broker.request(Command.request(code, fields, body), PATIENT_MS)
        namesrv = await Connection.open(servers.namesrv_address, NetConfig(), tls=alice)
        kept = {"namespace": "n", "key": "k", "value": "open sesame"}
        await namesrv.request(Command.request(100, kept), PATIENT_MS)
        broker.close()
        namesrv.close()
        await servers.stop()

    asyncio.run(story())
    found = lines(tmp_path / "b")
    assert {one["user"] for one in found} == {"alice"}
    assert [(one["code"], one["resource"]) for one in found] == [
        (17, "Topic:orders"),
        (200, "Group:g"),
        (25, "Setting:brokerName"),
        (215, "Topic:no\\r\\nsuch"),
    ]
    assert [one["verdict"] for one in found[:3]] == ["done", "done", "answered 16"]
    told = [(one["user"], one["resource"]) for one in lines(tmp_path / "n") if one["code"] == 100]
    assert told == [("alice", "Namespace:n,Key:k")]
    for folder in ("b", "n"):
        text = (tmp_path / folder / "audit" / "audit.log").read_text()
        assert "sesame" not in text
        assert "body of a message" not in text


class NoAudit(OsFiles):
    """A disk that has room for all but the audit log."""

    def open(self, path: Path, *, create: bool = False, size: int | None = None) -> OsFile:
        if path.parent.name == "audit":
            raise OSError(28, "No space left on device")
        return super().open(path, create=create, size=size)


def test_a_disk_full_of_audit_stops_nobody(tmp_path: Path) -> None:
    """Topics are created and messages stored as ever; the lines are lost, and counted."""

    async def story() -> None:
        servers = pair(tmp_path, NetConfig(), NoAudit())
        await servers.start()
        connection = await Connection.open(servers.broker_address, NetConfig())
        for number in range(20):
            made = {**TOPIC, "topic": f"t{number}"}
            answer = await connection.request(Command.request(17, made), PATIENT_MS)
            assert answer.code == 0
            sent = Command.request(310, send_fields(b=f"t{number}"), b"x")
            assert (await connection.request(sent, PATIENT_MS)).code == 0
        connection.close()
        audit = servers.broker.audit
        await servers.stop()
        assert (audit.written_total, audit.lost_total) == (0, 20)

    asyncio.run(story())
