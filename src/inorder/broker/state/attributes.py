"""Topic attributes: `+name=value` sets, `-name` removes; each name has a set of legal values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from inorder.broker.state.foreign import NOT_HERE
from inorder.errors import InvalidParameter, RemoteProtocolError, SystemError_
from inorder.ordering import keymap

LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Attribute:
    """What an attribute may hold, and whether it may change once the topic exists."""

    changeable: bool
    check: Callable[[str], None]


def parse_changes(text: str) -> dict[str, str]:
    """Read `+a=1,-b` into {"+a": "1", "-b": ""}."""
    changes: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        if equals and "+" not in key:
            raise SystemError_(f"add/alter attribute format is wrong: {key}")
        if not equals and "-" not in key:
            raise SystemError_(f"delete attribute format is wrong: {key}")
        if key in changes:
            raise SystemError_(f"key duplication: {key}")
        changes[key] = value
    return changes


def alter(
    current: Mapping[str, str],
    changes: Mapping[str, str],
    *,
    create: bool,
    known: Mapping[str, Attribute] | None = None,
) -> dict[str, str]:
    """Return the attributes after `changes`; SystemError_ names the first one that is wrong."""
    known = TOPIC_ATTRIBUTES if known is None else known
    result = dict(current)
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if not name or "+" in name or "-" in name:
            raise SystemError_("kv string format wrong.")
        if sign == "+":
            _check(name, value, known, new=create)
            result[name] = value
        elif create:
            raise SystemError_(f"only add attribute is supported while creating topic. key: {name}")
        elif sign == "-":
            if name not in current:
                raise SystemError_(f"attempt to delete a nonexistent key: {name}")
            _check(name, None, known, new=False)
            result.pop(name, None)
        else:
            raise SystemError_(f"wrong format key: {name}")
    return result


def _check(name: str, value: str | None, known: Mapping[str, Attribute], *, new: bool) -> None:
    attribute = known.get(name)
    if attribute is None:
        raise SystemError_(f"unsupported key: {name}")
    if not new and not attribute.changeable:
        raise SystemError_(f"attempt to update an unchangeable attribute. key: {name}")
    if value is not None:
        attribute.check(value)


def _one_of(*allowed: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in allowed:
            raise SystemError_(f"value is not in set: [{', '.join(allowed)}]")

    return check


def _between(low: int, high: int) -> Callable[[str], None]:
    def check(value: str) -> None:
        try:
            number = int(value)
        except ValueError:
            raise SystemError_(f'For input string: "{value}"') from None
        if not low <= number <= high:
            raise SystemError_(f"value is not in range({low}, {high})")

    return check


def _key_map(value: str) -> None:
    try:
        keymap.KeyMap.decode(value)
    except RemoteProtocolError as error:
        raise SystemError_(str(error)) from None


def _but(name: str, check: Callable[[str], None]) -> Callable[[str], None]:
    """Refuse the value of an attribute that RocketMQ has and we have not."""

    def check_here(value: str) -> None:
        check(value)
        if value == NOT_HERE[name]:
            raise InvalidParameter(
                f"{name}={value} is not supported by this broker; make the topic without it"
            )

    return check_here


TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "queue.type": Attribute(False, _but("queue.type", _one_of("BatchCQ", "SimpleCQ"))),
    "cleanup.policy": Attribute(False, _but("cleanup.policy", _one_of("DELETE", "COMPACTION"))),
    "message.type": Attribute(
        True, _one_of("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
    ),
    "reserve.time": Attribute(True, _between(-1, LONG_MAX)),
    keymap.ATTRIBUTE: Attribute(True, _key_map),
}
GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {}
