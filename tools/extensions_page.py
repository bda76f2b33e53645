"""Makes the page of additions to RocketMQ's protocol from `wire/` (`make_reference.py`)."""

from __future__ import annotations

import ast
import inspect
from enum import IntEnum
from itertools import pairwise
from types import ModuleType
from typing import Any

import msgspec

from inorder import errors
from inorder.wire import extensions
from inorder.wire.fields import wire_names
from inorder.wire.requests import leases, parking, producers, resizing

_HEAD = """\
# Additions to RocketMQ's protocol

Generated from `src/inorder/wire/extensions.py` and `src/inorder/wire/requests` by `make docs`; do
not edit. [Sending exactly once](idempotence.md) explains the sequence numbers of producers.

An Apache RocketMQ broker answers inorder's request codes with 3 and ignores inorder's fields and
properties; a RocketMQ client sends none. RocketMQ uses neither block of numbers.

## Upgrades

Protocol 2 adds `md` and `mq` to sends and `protocol` to PRODUCER_HELLO. Brokers and clients of
protocol 1 and 2 work together, in any order of upgrade: an older broker ignores the new fields, and
a newer one requires them only if the hello says 2. While one of a topic's brokers or a producer
still speaks 1, name servers with different routes can make that producer send one key to two
queues.

The field `batches` of PRODUCER_HELLO's answer belongs to no protocol version. A producer puts
messages of single calls into one request only where the answer has it, and asks PRODUCER_STATE with
`since` only there; to older brokers it sends them one by one.

With protocol 2 a topic gets its first key map by RESIZE_STOP, RESIZE_GO and RESIZE_OPEN. While one
broker of a topic speaks 1, `inorder topic create` stores the map as an attribute of the topic, as
before, and a send creates the topic from the template. Directories of protocol 1 open;
`inorder/resizing.json` has new fields, which an older broker ignores. `inorder/identity.json` is
new, and so is the field `inorderIdentity` of REGISTER_BROKER, which RocketMQ name servers ignore.
"""


_UPGRADES = """
## Upgrading

- The lease journal, `inorder/owners.NNNNNN`, has one more kind of record, `o`: a group consumes a
  topic in order. Older directories open; the broker derives the same from their grants and commits.
  An older broker skips such records and logs that.
- Once a client pops, the lease journal has records of what is popped (`pp`, `pd`, `ps`, `pb`, `pr`,
  `px`). An older broker skips and logs them, and serves no pops; its consumers begin at the group's
  offset, which lies before all messages in flight.
- Grants in the journal may end with `deadline_ms`, and `inorder/start.json` may have
  `waits_until_ms`: when leases that were granted before a start have expired. If the fields are
  missing, the broker waits for the whole lease; an older broker ignores them.
- If a rule refuses a send with SYSTEM_ERROR, the answer to a producer that has sent its hello has
  the field `stored=no`. Older clients ignore it. A newer client treats SYSTEM_ERROR from an older
  broker as an unknown outcome.
- Commits and pulls of queues without a lock carry `onlyUp` to brokers of protocol 2. With an older
  broker a client reads the stored offset before it commits, as with Apache RocketMQ.
- If members of a group have different subscriptions, HEART_BEAT's answer has the field
  `subsDiffer`, and the list of connections has the key `inorderDifferences`. Older clients ignore
  both.
- CONSUMER_SEND_MSG_BACK carries `error`. An older broker ignores it: its dead letters do not say
  why.
"""

_MODULES = (producers, leases, parking, resizing)


def extensions_page() -> str:
    """Return the page."""
    parts = [
        _HEAD,
        "## Fields and properties\n",
        "| name | on the wire | what it is |",
        "|---|---|---|",
    ]
    for name, value, text in _constants(extensions):
        parts.append(f"| `{name}` | `{value}` | {text} |")
    parts += ["", "## Requests\n"]
    classes = {cls.CODE: cls for module in _MODULES for cls in _requests(module)}
    for code in extensions.ExtensionCode:
        parts.append(f"### {int(code)} {code.name}\n")
        found = classes.get(code)
        if found is None:
            continue
        parts += [_prose(found), "", *_fields(found)]
        reply = getattr(inspect.getmodule(found), f"{found.__name__}Reply", None)
        if reply is not None:
            parts += [f"Answer: {_prose(reply)}", "", *_fields(reply)]
    parts += ["## Answers\n", "| code | name | raised as | what it says |", "|---|---|---|---|"]
    documented = _members(extensions.ExtensionAnswer)
    for answer in extensions.ExtensionAnswer:
        raised = errors.BROKER_ERRORS.get(int(answer), errors.BrokerError).__name__
        text = documented.get(answer.name, "")
        parts.append(f"| {int(answer)} | `{answer.name}` | `{raised}` | {text} |")
    return "\n".join(parts) + "\n" + _UPGRADES


def _requests(module: ModuleType) -> list[Any]:
    return [
        cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if cls.__module__ == module.__name__ and hasattr(cls, "CODE")
    ]


def _fields(cls: Any) -> list[str]:
    names = wire_names(cls)
    if not names:
        return []
    texts = _texts(cls)
    lines = ["| field | default | what it is |", "|---|---|---|"]
    for item, name in zip(msgspec.structs.fields(cls), names, strict=True):
        default = "" if item.required else f"`{str(item.default).lower()}`"
        lines.append(f"| `{name}` | {default} | {texts.get(item.name, '')} |")
    return [*lines, ""]


def _texts(cls: Any) -> dict[str, str]:
    """Return the texts of a header's fields, also of those that it inherits."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        if issubclass(one, msgspec.Struct) and one is not msgspec.Struct:
            found |= _members(one)
    return found


def _prose(cls: Any) -> str:
    return inspect.cleandoc(cls.__doc__ or "")


def _constants(module: ModuleType) -> list[tuple[str, object, str]]:
    texts = _documented(ast.parse(inspect.getsource(module)).body)
    return [(name, getattr(module, name), text) for name, text in texts.items()]


def _members(cls: type[IntEnum] | Any) -> dict[str, str]:
    (tree,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(tree, ast.ClassDef), "it is the source of a class"
    return _documented(tree.body)


def _documented(body: list[ast.stmt]) -> dict[str, str]:
    """Return the names that are followed by a text of their own."""
    found = {}
    for statement, after in pairwise(body):
        name: ast.expr
        if isinstance(statement, ast.AnnAssign):
            name = statement.target
        elif isinstance(statement, ast.Assign):
            name = statement.targets[0]
        else:
            continue
        if (
            isinstance(name, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            found[name.id] = " ".join(after.value.value.split())
    return found
