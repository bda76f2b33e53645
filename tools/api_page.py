"""Makes the page of the Python API from signatures and docstrings (`make_reference.py`)."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import textwrap
from pathlib import Path
from typing import Any

import inorder
import inorder.aio
import inorder.errors
import inorder.spark
import inorder.spark.jobs
import inorder.testing

WIDTH = 96

_HEAD = """\
# Python API

Made from the code by `make docs`; do not edit.

`inorder` is for code that blocks. `inorder.aio` has the same classes for asyncio: the same methods,
to be awaited, and `async with` instead of `with`. Durations are seconds or a `timedelta`, times are
a `datetime`. Settings have [their own page](config.md), and so has [what each error
says](errors.md).
"""

# Title -> names of a module, in the order in which one reads them.
_SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Sending", "inorder", ("Producer", "Message", "SendReceipt")),
    ("Sending", "inorder.client.send.producer", ("ProducerStatistics",)),
    ("Consuming", "inorder", (
        "Consumer", "Retry", "Block", "DeadLetter", "Park", "Handled", "Outcome", "ReceivedMessage",
        "Average", "AverageByCircle", "ConsistentHash", "ByConfig", "ByMachineRoom",
        "MachineRoomNearby",
    )),
    ("Pulling", "inorder", ("PullConsumer", "TopicQueue")),
    ("Pulling", "inorder.aio", ("PullResult", "PullStatus")),
    ("Pulling", "inorder.client.consume.pullconsumer", ("PullConsumerStatistics",)),
    ("Operating", "inorder", ("Admin", "GroupConfig")),
    ("Operating", "inorder.sync.admin", (
        "Topics", "Groups", "Offsets", "Messages", "Cluster", "Producers",
    )),
    ("Operating", "inorder.client.admin", (
        "TopicView", "QueueView", "GroupView", "GroupMember", "QueueLag", "QueueOffsets",
        "BrokerNode", "Batch", "ProducerView",
    )),
    ("asyncio", "inorder.aio", ("Session",)),
    ("Testing", "inorder.testing", (
        "broker", "RunningBroker", "MovableClock", "check", "Rules", "Handling", "Sent", "Stored",
        "Handled", "Committed", "Report", "Finding", "Kind", "queue_name", "read_history",
        "read_csv_history", "write_history",
    )),
    ("A server in your process", "inorder", ("Embedded",)),
)  # fmt: skip

# Documented on pages of their own.
_ELSEWHERE = {
    "BrokerConfig", "ClientConfig", "ConsumerConfig", "NameServerConfig", "NetConfig",
    "StoreConfig",
}  # fmt: skip


# Given to other classes; what else it can do is for them.
_ONLY_MADE = {"Session"}


def api_page() -> str:
    """Return the page."""
    parts = [_HEAD]
    title = ""
    named: set[str] = set(_ELSEWHERE)
    for section, module_name, names in _SECTIONS:
        if section != title:
            title = section
            parts.append(f"## {title}\n")
        module = importlib.import_module(module_name)
        for name in names:
            if hasattr(module, name):  # what is not built yet is left out
                named.add(name)
                parts.append(_entry(name, getattr(module, name), module_name))
    rest = [
        name
        for name in sorted(inorder.__all__)
        if name not in named and name != "__version__" and not _is_error(getattr(inorder, name))
    ]
    if rest:
        parts.append("## More names\n")
        parts += [_entry(name, getattr(inorder, name), "inorder") for name in rest]
    parts.append("## Spark\n")
    parts.append("These need `pip install 'inorder[spark]'`.\n")
    for package in (inorder.spark, inorder.spark.jobs):
        parts += [_source_entry(package, name) for name in package.__all__]
    parts.append(_errors())
    return "\n".join(parts)


def _source_entry(package: Any, name: str) -> str:
    """Return a name of a package whose modules need Spark: read, not imported."""
    module = package._PUBLIC[name].removeprefix("inorder.").replace(".", "/")
    source = (Path(inorder.__file__).parent / f"{module}.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    constants = {
        node.target.id: node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value
    }
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            call = f"class {name}"
            if isinstance(node, ast.FunctionDef):
                call = _call_of(node, constants)
            parts = [f"### {package.__name__}.{name}\n", _code(call)]
            parts.append(f"{ast.get_docstring(node) or ''}\n")
            if isinstance(node, ast.ClassDef):
                parts += _fields_of(node)
            return "\n".join(parts)
    raise LookupError(f"{package.__name__}.{name} is not in {module}.py")


def _call_of(node: ast.FunctionDef, constants: dict[str, ast.expr]) -> str:
    """Return a call as one would write it; constants of the module as what they are."""
    for defaults in (node.args.defaults, node.args.kw_defaults):
        for at, value in enumerate(defaults):
            if isinstance(value, ast.Name) and value.id in constants:
                defaults[at] = constants[value.id]
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{node.name}({ast.unparse(node.args)}){returned}"
    if len(line) <= WIDTH:
        return line
    whole, parameters = node.args, []
    spare = len(whole.args) - len(whole.defaults)
    for at, one in enumerate(whole.args):
        default = "" if at < spare else f" = {ast.unparse(whole.defaults[at - spare])}"
        parameters.append(f"{ast.unparse(one)}{default},")
    if whole.kwonlyargs:
        parameters.append("*,")
    for one, value in zip(whole.kwonlyargs, whole.kw_defaults, strict=True):
        parameters.append(f"{ast.unparse(one)}{f' = {ast.unparse(value)}' if value else ''},")
    return f"{node.name}(\n{textwrap.indent(chr(10).join(parameters), '    ')}\n){returned}"


def _fields_of(node: ast.ClassDef) -> list[str]:
    """Return the fields of a dataclass, each with the text below it, and its properties."""
    found = []
    for at, line in enumerate(node.body):
        if isinstance(line, ast.FunctionDef) and not line.name.startswith("_"):
            kind = ast.unparse(line.returns) if line.returns else ""
            found.append(f"- `{line.name}`: `{kind}` {ast.get_docstring(line)}")
        if isinstance(line, ast.AnnAssign) and not ast.unparse(line.target).startswith("_"):
            after = node.body[at + 1] if at + 1 < len(node.body) else None
            said = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                said = " " + " ".join(str(after.value.value).split())
            kind = ast.unparse(line.annotation)
            found.append(f"- `{ast.unparse(line.target)}`: `{kind}`{said}")
    return [*found, ""]


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, inorder.errors.InorderError)


def _entry(name: str, value: Any, module: str) -> str:
    """Return a class or a function with all that is public of it."""
    shown = f"{module}.{name}" if module in ("inorder", "inorder.aio", "inorder.testing") else name
    parts = [f"### {shown}\n"]
    if isinstance(value, type) and issubclass(value, enum.Enum):
        parts += [_doc(value), *(f"- `{member.name}` = `{member.value!r}`" for member in value), ""]
        return "\n".join(parts)
    if inspect.isfunction(value):
        return "\n".join([*parts, _code(_signature(name, value)), _doc(value)])
    parts += [_code(_constructor(name, value, module)), _doc(value)]
    for attribute, member in vars(value).items():
        if attribute.startswith("_") or name in _ONLY_MADE:
            continue
        if isinstance(member, property):
            parts.append(f"**`.{attribute}`** {_first(member.fget)}\n")
        elif inspect.isfunction(member):
            call = _code(_signature(attribute, member))
            parts += [f"#### {name}.{attribute}\n", call, _doc(member)]
    return "\n".join(parts)


def _constructor(name: str, cls: type, module: str) -> str:
    if module == "inorder.sync.admin":
        return f"admin.{name.lower()}  # of an inorder.Admin"
    if issubclass(cls, BaseException) and "__init__" not in vars(cls):
        return name
    return _signature(name, cls)


def _signature(name: str, function: Any) -> str:
    """Return a call as one would write it, one parameter a line if it is long."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    shown = signature.replace(parameters=parameters)
    if inspect.isclass(function):
        shown = shown.replace(return_annotation=inspect.Signature.empty)
    prefix = "async " if inspect.iscoroutinefunction(function) else ""
    line = f"{prefix}{name}{_plain(str(shown))}"
    if len(line) <= WIDTH:
        return line
    lines, star = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            lines.append("*,")
        star = star or parameter.kind is parameter.VAR_POSITIONAL
        lines.append(f"{_plain(str(parameter))},")
    returned = str(shown).rpartition(")")[2]
    body = textwrap.indent("\n".join(lines), "    ")
    return f"{prefix}{name}(\n{body}\n){_plain(returned)}"


def _plain(text: str) -> str:
    """Return a signature as it is written: no quotes, no inner names of modules."""
    return _unquoted(text.replace("twin.", "").replace("<factory>", "..."))


def _unquoted(text: str) -> str:
    """Take the quotes off annotations; those of default values stay."""
    out, rest = "", text
    while True:
        before, mark, after = rest.partition(": '")
        arrow_before, arrow, arrow_after = rest.partition("-> '")
        if arrow and (not mark or len(arrow_before) < len(before)):
            before, after, keep = arrow_before, arrow_after, "-> "
        elif mark:
            keep = ": "
        else:
            return out + rest
        annotation, _, rest = after.partition("'")
        out += before + keep + annotation


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _doc(value: Any) -> str:
    doc = inspect.getdoc(value) or ""
    if dataclasses.is_dataclass(value) and doc.startswith(f"{getattr(value, '__name__', '')}("):
        doc = ""
    return f"{doc}\n"


def _first(value: Any) -> str:
    paragraph = (inspect.getdoc(value) or "").partition("\n\n")[0]
    return " ".join(paragraph.splitlines())


def _errors() -> str:
    """Return every error: what it derives from, whether it may pass, its code."""
    module = inorder.errors
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, module.InorderError)
    ]
    lines = [
        "## Errors\n",
        "All are in `inorder.errors`. *Retriable*: the same call may succeed later without a change"
        "\nby the caller. *Code*: that of RocketMQ's answer.\n",
        "| error | derives from | retriable | code | when |",
        "|---|---|---|---|---|",
    ]
    for error in found:
        code = getattr(error, "code", "") if issubclass(error, module.BrokerError) else ""
        base = "" if error is module.InorderError else f"`{error.__bases__[0].__name__}`"
        what = _first(error).replace("|", "\\|")
        retriable = "yes" if error.retriable else "no"
        lines.append(f"| `{error.__name__}` | {base} | {retriable} | {code} | {what} |")
    return "\n".join([*lines, ""])
