"""The page of what we add to RocketMQ's protocol, made from `wire/`; see `make_reference.py`."""

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
# What we add to RocketMQ's protocol

Made from `src/inorder/wire/extensions.py` and `src/inorder/wire/requests` by `make docs`; do not
edit. What the numbers of producers are for: [Sending exactly once](idempotence.md).

A stock broker answers our request codes with 3 and ignores fields and properties of ours; a stock
client sends none. Both blocks of numbers are unused by RocketMQ.

## Upgrades

Protocol 2 adds `md` and `mq` to sends and `protocol` to PRODUCER_HELLO. Brokers and clients of
protocol 1 and 2 work together, in any order of upgrade: an older broker ignores the new fields, and
a newer one asks for them only where the hello says 2. Until a topic's brokers and a producer both
speak 2, name servers that differ can still make that producer put a key into two queues.

Brokers of protocol 2 give a topic its first key map by RESIZE_STOP, RESIZE_GO and RESIZE_OPEN.
While one broker of a topic speaks 1, `inorder topic create` gives it as an attribute of the
topic, as before, and a send makes the topic by the template. Directories of protocol 1 open;
`inorder/resizing.json` has new fields, which an older broker ignores. `inorder/identity.json` is
new, and so is the field `inorderIdentity` of REGISTER_BROKER, which stock name servers ignore.
"""


_UPGRADES = """
## Upgrading

- The journal of owners, `inorder/owners.NNNNNN`, has one more kind of record, `o`: a group consumes
  a topic in order. Directories of before open; the same follows from their grants and commits. A
  broker of before leaves such records out and says so in its log.
- Grants in that journal may end with `deadline_ms`, and `inorder/start.json` may have
  `waits_until_ms`: when what was granted before a start has run out. Where they are missing the
  whole lease is waited for; a broker of before does not look at them.
- Sends that a rule refuses with SYSTEM_ERROR are answered with the field `stored=no`, to those who
  have said hello. Clients of before ignore it. A client of now takes SYSTEM_ERROR of a broker of
  before as an unknown outcome.
- Commits and pulls of queues without a lock carry `onlyUp` to brokers of protocol 2. With a broker
  of before a client asks for the stored offset before it commits, as with Apache RocketMQ.
- Where members of a group subscribe differently, HEART_BEAT's answer has the field `subsDiffer` and
  the list of connections the key `inorderDifferences`. Clients of before ignore both.
- CONSUMER_SEND_MSG_BACK carries `error`. A broker of before ignores it: its dead letters do not
  say why.
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
    texts = _members(cls)
    lines = ["| field | default | what it is |", "|---|---|---|"]
    for item, name in zip(msgspec.structs.fields(cls), names, strict=True):
        default = "" if item.required else f"`{str(item.default).lower()}`"
        lines.append(f"| `{name}` | {default} | {texts.get(item.name, '')} |")
    return [*lines, ""]


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
