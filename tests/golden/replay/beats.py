"""The heartbeats that trimming left out, made again from what is left.

A consumer is known to the broker by its heartbeats, with a version of each subscription, and a pull
under a newer version is refused. Of a trimmed conversation only the first heartbeats are known; a
later pull that was served shows that there were more, and so does a reply that was pushed to a
client.
"""

from __future__ import annotations

from typing import Any

from inorder.errors import RemoteProtocolError
from inorder.wire import fastjson
from inorder.wire.properties import parse as parse_properties
from tests.golden.replay.capture import Conversation, Row
from tests.golden.replay.state import PULLS

HEART_BEAT = 34
UNREGISTER_CLIENT = 35
CONSUMER_LIST = 38
CHECK_CLIENT_CONFIG = 46
SEND_REPLY = frozenset((324, 325))
PUSH_REPLY = 326
NO_GROUP_OR_NOT_LATEST = frozenset((24, 25))

_NO_GROUP = 24
_NOT_LATEST = 25
_WITH_SUBSCRIPTION = 4


class Beats:
    """Who has told the broker which subscriptions."""

    def __init__(self, conversation: Conversation) -> None:
        self._clients: dict[int, str] = {}
        self._data: dict[str, dict[str, Any]] = {}
        self._told: dict[str, dict[int, dict[str, int]]] = {}
        self._checked: dict[tuple[str, str], dict[str, Any]] = {}
        """The subscriptions that clients asked about, by group and topic."""
        self._producers: set[int] = set()
        self._pushed: dict[str, int] = {}
        for row in conversation.rows:
            if row.is_request and row.command.code == HEART_BEAT and row.command.body:
                self._study(row)
            elif row.is_request and row.command.code == UNREGISTER_CLIENT:
                self._clients.setdefault(row.connection, row.command.fields["clientID"])
            elif not row.to_server and row.command.code == PUSH_REPLY:
                self._pushed.setdefault(_correlation(row), row.connection)

    def _study(self, row: Row) -> None:
        try:
            beat = fastjson.loads(bytes(row.command.body))
        except RemoteProtocolError:  # a probe with garbage: it tells nothing
            return
        self._clients.setdefault(row.connection, beat["clientID"])
        for data in beat.get("consumerDataSet", ()):
            self._data.setdefault(data["groupName"], data)

    def played(self, row: Row) -> None:
        """Note a request that was sent."""
        fields = row.command.fields
        if row.command.code == UNREGISTER_CLIENT and fields.get("consumerGroup"):
            self._told.get(fields["consumerGroup"], {}).pop(row.connection, None)
        elif row.command.code == HEART_BEAT:
            try:
                beat = fastjson.loads(bytes(row.command.body))
            except RemoteProtocolError:  # as above
                return
            self._note(row.connection, beat)
        elif row.command.code == CHECK_CLIENT_CONFIG and b"subString" in bytes(row.command.body):
            body = fastjson.loads(bytes(row.command.body))
            subscription = body["subscriptionData"]
            self._checked[body["group"], subscription["topic"]] = subscription

    def hung_up(self, connection: int) -> None:
        """Note that a connection is gone."""
        for members in self._told.values():
            members.pop(connection, None)
        self._producers.discard(connection)

    def requester(self, row: Row, captured: Row) -> tuple[int, bytes] | None:
        """Return the heartbeat without which a reply cannot be pushed, and its connection."""
        if row.command.code not in SEND_REPLY or captured.command.code != 0:
            return None
        connection = self._pushed[_correlation(row)]
        if connection in self._producers:
            return None
        client = _properties(row)["REPLY_TO_CLIENT"]
        beat = {"clientID": client, "producerDataSet": [{"groupName": "TRIMMED"}]}
        self._note(connection, beat)
        return connection, fastjson.dumps(beat)

    def missing(self, row: Row, captured: Row) -> bytes | None:
        """Return the heartbeat without which a request cannot be answered as it was."""
        code, fields = row.command.code, row.command.fields
        answer = captured.command.code
        if code in PULLS and answer != _NO_GROUP:
            if int(fields.get("sysFlag", _WITH_SUBSCRIPTION)) & _WITH_SUBSCRIPTION:
                return None
            group, topic, version = (
                fields["consumerGroup"],
                fields["topic"],
                int(fields["subVersion"]),
            )
            told = self._told.get(group, {})
            if answer == _NOT_LATEST:
                if any(topic in topics for topics in told.values()):
                    return None
                return self._make(row, group, {topic: version - 1}, "TAG")
            if row.connection in told and version <= max(
                (topics.get(topic, -1) for topics in told.values()), default=-1
            ):
                return None
            return self._make(row, group, {topic: version}, fields.get("expressionType", "TAG"))
        if code == CONSUMER_LIST and answer == 0:
            group = fields["consumerGroup"]
            if row.connection not in self._told.get(group, {}):
                return self._make(row, group, {}, "TAG")
        return None

    def _make(self, row: Row, group: str, versions: dict[str, int], kind: str) -> bytes:
        client = self._clients.get(row.connection, f"client-{row.connection}")
        data = dict(
            self._data.get(group)
            or {
                "groupName": group,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "unitMode": False,
            }
        )
        known = {item["topic"]: item for item in data.get("subscriptionDataSet", ())}
        for told in self._told.get(group, {}).values():
            for topic, version in told.items():
                if topic in known:
                    known[topic] = {**known[topic], "subVersion": version}
        for topic, version in versions.items():
            checked = self._checked.get((group, topic)) if kind != "TAG" else None
            subscription = (
                checked
                or known.get(topic)
                or {
                    "topic": topic,
                    "subString": "*",
                    "expressionType": kind,
                    "tagsSet": [],
                    "codeSet": [],
                    "classFilterMode": False,
                }
            )
            known[topic] = {**subscription, "subVersion": version}
        data["subscriptionDataSet"] = list(known.values())
        beat = {
            "clientID": client,
            "consumerDataSet": [data],
            "producerDataSet": [],
            "heartbeatFingerprint": 0,
            "withoutSub": False,
        }
        self._note(row.connection, beat)
        return fastjson.dumps(beat)

    def _note(self, connection: int, beat: dict[str, Any]) -> None:
        if beat.get("producerDataSet"):
            self._producers.add(connection)
        for data in beat.get("consumerDataSet", ()):
            told = self._told.setdefault(data["groupName"], {}).setdefault(connection, {})
            for item in data.get("subscriptionDataSet", ()):
                told[item["topic"]] = int(item["subVersion"])


def _properties(row: Row) -> dict[str, str]:
    fields = row.command.fields
    return parse_properties(fields.get("i") or fields.get("properties") or "")


def _correlation(row: Row) -> str:
    return _properties(row).get("CORRELATION_ID", "")
