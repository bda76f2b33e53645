"""What the audit log holds: which requests change something, and the line of an event.

A line is one JSON object. Its texts come from peers, so they are cut, and what a terminal obeys is
escaped. Of a body only names are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from inorder.config import BrokerConfig, NameServerConfig
from inorder.errors import ProtocolError
from inorder.escaping import escaped, escaped_json
from inorder.wire import fastjson
from inorder.wire.codes import RequestCode
from inorder.wire.extensions import ExtensionCode

TEXT_MAX: Final = 255
NAMES_MAX: Final = 20
BODY_BYTES_MAX: Final = 64 * 1024
"""A body that is larger is not read for names."""
DEPTH_MAX: Final = 4


def audits(config: BrokerConfig | NameServerConfig) -> bool:
    """Return whether a server keeps an audit log; by default where users are checked."""
    mode = config.audit.mode
    return mode == "on" or (mode == "auto" and config.access.effective_level != "off")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the audit log tells of."""

    event: str
    """`refused`, `changed` or `lost`."""
    user: str
    peer: str
    code: int
    resource: str = ""
    action: str = ""
    verdict: str = ""
    rule: str = ""
    reason: str = ""
    request_id: int = 0


def line(event: Event, now_ms: int) -> bytes:
    """Return the line of an event, with its newline."""
    time = datetime.fromtimestamp(now_ms / 1000, UTC)
    found: dict[str, str | int] = {
        "time": f"{time:%Y-%m-%dT%H:%M:%S}.{now_ms % 1000:03}Z",
        "event": event.event,
        "user": _text(event.user),
        "peer": _text(event.peer),
        "code": event.code,
        "request": request_name(event.code),
        "resource": _text(event.resource),
        "action": _text(event.action),
        "verdict": _text(event.verdict),
        "rule": _text(event.rule),
        "reason": _text(event.reason),
        "id": event.request_id,
    }
    return escaped_json(msgspec.json.encode(found).decode()).encode("ascii", "replace") + b"\n"


def lost_line(count: int, now_ms: int) -> bytes:
    """Return the line that tells how many lines could not be written."""
    event = Event("lost", "", "", 0, reason=f"{count} lines could not be written")
    return line(event, now_ms)


def _text(value: str) -> str:
    return escaped(value, TEXT_MAX).encode("ascii", "backslashreplace").decode()


def request_name(code: int) -> str:
    """Return the name of a request code; empty if it has none."""
    for codes in (RequestCode, ExtensionCode):
        try:
            return codes(code).name
        except ValueError:
            continue
    return ""


_Resource = Callable[[Mapping[str, str], bytes], str]


@dataclass(frozen=True, slots=True)
class Change:
    """A request that changes something: the action, and how its resource is found."""

    action: str
    resource: _Resource


def _of(**kinds: str) -> _Resource:
    """Take the resource from header fields: `Topic="topic"`."""

    def resource(fields: Mapping[str, str], body: bytes) -> str:
        return ",".join(f"{kind}:{fields[name]}" for kind, name in kinds.items() if name in fields)

    return resource


def _in_body(**kinds: str) -> _Resource:
    """Take names from a JSON body, wherever it has the key."""

    def resource(fields: Mapping[str, str], body: bytes) -> str:
        if len(body) > BODY_BYTES_MAX:
            return f"({len(body)} bytes)"
        try:
            value = fastjson.loads(body)
        except (ProtocolError, ValueError):
            return ""
        return _joined(
            f"{kind}:{name}" for kind, key in kinds.items() for name in _names(value, key)
        )

    return resource


def _joined(names: Iterator[str]) -> str:
    found = list(names)
    more = "" if len(found) <= NAMES_MAX else f" and {len(found) - NAMES_MAX} more"
    return ",".join(found[:NAMES_MAX]) + more


def _names(value: Any, key: str, depth: int = 0) -> Iterator[str]:
    if depth > DEPTH_MAX:
        return
    if isinstance(value, dict):
        for name, one in value.items():
            if name == key and isinstance(one, str):
                yield one
            else:
                yield from _names(one, key, depth + 1)
    elif isinstance(value, list):
        for one in value:
            yield from _names(one, key, depth + 1)


def _settings(fields: Mapping[str, str], body: bytes) -> str:
    """Name the settings of a body of `name=value` lines, without their values."""
    if len(body) > BODY_BYTES_MAX:
        return f"({len(body)} bytes)"
    lines = body.decode(errors="replace").splitlines()
    return _joined(f"Setting:{one.partition('=')[0].strip()}" for one in lines if "=" in one)


def _nothing(fields: Mapping[str, str], body: bytes) -> str:
    return ""


_TOPIC: Final = _of(Topic="topic")
_TOPIC_AND_GROUP: Final = _of(Topic="topic", Group="group")
_USER: Final = _of(User="username")
_SUBJECT_IN_HEADER: Final = _of(Subject="subject", Resource="resource")
_RESOURCES_IN_BODY: Final = _in_body(Resource="resource")


def _rules(fields: Mapping[str, str], body: bytes) -> str:
    """Name whose rules a request changes, and the resources of the rules."""
    found = (_SUBJECT_IN_HEADER(fields, body), _RESOURCES_IN_BODY(fields, body) if body else "")
    return ",".join(filter(None, found))


_KEY: Final = _of(Namespace="namespace", Key="key")
_BROKER: Final = _of(Broker="brokerName")

CHANGES: Final[Mapping[int, Change]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: Change("Update", _TOPIC),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: Change("Update", _in_body(Topic="topicName")),
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: Change("Update", _TOPIC),
    RequestCode.DELETE_TOPIC_IN_BROKER: Change("Delete", _TOPIC),
    RequestCode.UPDATE_BROKER_CONFIG: Change("Update", _settings),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Change("Update", _in_body(Group="groupName")),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Change(
        "Update", _in_body(Group="groupName")
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Change("Delete", _of(Group="groupName")),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: Change("Update", _TOPIC_AND_GROUP),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Change("Update", _TOPIC_AND_GROUP),
    RequestCode.CLONE_GROUP_OFFSET: Change("Update", _of(Topic="topic", Group="destGroup")),
    RequestCode.SET_MESSAGE_REQUEST_MODE: Change(
        "Update", _in_body(Topic="topic", Group="consumerGroup")
    ),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: Change("Update", _of(Topic="topic", Message="msgId")),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: Change("Delete", _nothing),
    RequestCode.CLEAN_UNUSED_TOPIC: Change("Delete", _nothing),
    RequestCode.DELETE_EXPIRED_COMMITLOG: Change("Delete", _nothing),
    RequestCode.AUTH_CREATE_USER: Change("Create", _USER),
    RequestCode.AUTH_UPDATE_USER: Change("Update", _USER),
    RequestCode.AUTH_DELETE_USER: Change("Delete", _USER),
    RequestCode.AUTH_CREATE_ACL: Change("Create", _rules),
    RequestCode.AUTH_UPDATE_ACL: Change("Update", _rules),
    RequestCode.AUTH_DELETE_ACL: Change("Delete", _rules),
    ExtensionCode.PRODUCER_DROP: Change("Delete", _of(Producer="producerId")),
    ExtensionCode.LEASE_FREE: Change("Update", _of(Topic="topic", Group="group", Queue="queueId")),
    ExtensionCode.REDRIVE: Change("Update", _TOPIC_AND_GROUP),
    ExtensionCode.PARKED_DROP: Change("Delete", _TOPIC_AND_GROUP),
    ExtensionCode.RESIZE_DECIDE: Change("Update", _TOPIC),
    ExtensionCode.RESIZE_STOP: Change("Update", _TOPIC),
    ExtensionCode.RESIZE_OPEN: Change("Update", _TOPIC),
    ExtensionCode.RESIZE_RELEASE: Change("Update", _TOPIC_AND_GROUP),
    ExtensionCode.RESIZE_GO: Change("Update", _TOPIC),
    ExtensionCode.RESIZE_WITHDRAW: Change("Update", _TOPIC),
    ExtensionCode.RESIZE_REWIND: Change("Update", _TOPIC_AND_GROUP),
    RequestCode.PUT_KV_CONFIG: Change("Update", _KEY),
    RequestCode.DELETE_KV_CONFIG: Change("Delete", _KEY),
    RequestCode.UNREGISTER_BROKER: Change("Delete", _BROKER),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: Change("Update", _BROKER),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: Change("Update", _BROKER),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: Change("Delete", _TOPIC),
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: Change("Create", _TOPIC),
    RequestCode.UPDATE_NAMESRV_CONFIG: Change("Update", _settings),
}
"""The requests that change something, of brokers and of name servers."""
