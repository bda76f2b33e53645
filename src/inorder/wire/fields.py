"""Typed headers to header fields and back, by a plan that is made once per class.

The wire name is the Python name in camelCase unless `msgspec.field(name=...)` says otherwise.
`Int32` marks a value that RocketMQ holds in 32 bits. A field without a default is required.

Headers are msgspec structs, because a hundred frozen dataclasses would take a quarter of a broker's
start. The headers of a send have a second set of names (the letters of SEND_MESSAGE_V2); they are
dataclasses with both names in the metadata.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from inorder.errors import SystemError_
from inorder.wire.shapes import INT_CHARS_MAX

Int32 = Annotated[int, 32]

_T = TypeVar("_T")
_Convert = Callable[[str, str], Any]
_Plan = tuple[tuple[str, str, _Convert, bool, Any], ...]

_TEXT_SHOWN_MAX: Final = 40

_plans: dict[tuple[type, str], _Plan] = {}


def decode_fields(cls: type[_T], fields: dict[str, str], *, names: str = "wire") -> _T:
    """Return the typed header; unknown fields are ignored.

    Raises:
        SystemError_: a required field is missing, or one is malformed; the remark names it.
    """
    values = []
    get = fields.get
    for _, wire, convert, required, default in _plan(cls, names):
        text = get(wire)
        if text is None or (text == "" and convert is not _text):
            if required:
                raise SystemError_(f"the header field {wire} is missing")
            values.append(default)
        else:
            values.append(convert(wire, text))
    return cls(*values)


def encode_fields(obj: object, *, names: str = "wire") -> dict[str, str]:
    """Return the fields of a typed header; `None` is left out."""
    fields: dict[str, str] = {}
    for name, wire, _, _, _ in _plan(type(obj), names):
        value = getattr(obj, name)
        if value is None:
            continue
        if value is True:
            fields[wire] = "true"
        elif value is False:
            fields[wire] = "false"
        else:
            fields[wire] = str(value)
    return fields


def wire_names(cls: type, *, names: str = "wire") -> tuple[str, ...]:
    """Return the names that a class has on the wire, in the order of its fields."""
    return tuple(entry[1] for entry in _plan(cls, names))


def _plan(cls: type, names: str) -> _Plan:
    plan = _plans.get((cls, names))
    if plan is None:
        plan = _plans[cls, names] = tuple(_entries(cls, names))
    return plan


def _entries(cls: type, names: str) -> list[tuple[str, str, _Convert, bool, Any]]:
    hints = get_type_hints(cls, include_extras=True)
    entries = []
    for name, wire, required, default in _declared(cls, names):
        entries.append(
            (name, wire or _camel_case(name), _converter(hints[name]), required, default)
        )
    return entries


def _declared(cls: type, names: str) -> Iterator[tuple[str, str | None, bool, Any]]:
    """Give name, own wire name, whether it is required, and default of each field."""
    if issubclass(cls, msgspec.Struct):
        for one in msgspec.structs.fields(cls):
            own = one.encode_name if one.encode_name != one.name else None
            yield one.name, own, one.required, None if one.required else one.default
        return
    for item in dataclasses.fields(cls):  # type: ignore[arg-type]  # it is one
        required = item.default is dataclasses.MISSING
        yield item.name, item.metadata.get(names), required, None if required else item.default


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _converter(hint: Any) -> _Convert:
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (arg for arg in get_args(hint) if arg is not NoneType)
    if hint == Int32:
        return _int32
    return {str: _text, int: _int64, bool: _bool, float: _float}[hint]


def _text(_wire: str, text: str) -> str:
    return text


def _int64(wire: str, text: str) -> int:
    return _integer(wire, text, 64)


def _int32(wire: str, text: str) -> int:
    return _integer(wire, text, 32)


def _integer(wire: str, text: str, bits: int) -> int:
    if len(text) <= INT_CHARS_MAX and "_" not in text:
        try:
            value = int(text)
        except ValueError:
            pass
        else:
            if -(1 << (bits - 1)) <= value < 1 << (bits - 1):
                return value
    raise SystemError_(
        f"the header field {wire} is not a {bits}-bit integer: {text[:_TEXT_SHOWN_MAX]!r}"
    )


def _bool(_wire: str, text: str) -> bool:
    return text == "1" or text.lower() == "true"


def _float(wire: str, text: str) -> float:
    try:
        value = float(text[:_TEXT_SHOWN_MAX])
    except ValueError:
        value = float("nan")
    if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN
        raise SystemError_(f"the header field {wire} is not a number: {text[:_TEXT_SHOWN_MAX]!r}")
    return value
