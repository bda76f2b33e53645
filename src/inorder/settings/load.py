"""Loading settings: defaults < file < environment < flags, each value with its origin.

A source (a TOML file, a RocketMQ properties file, the environment) gives pairs of a name and a raw
value. `load` lays the sources over each other, and only then checks the names. Where settings come
from: decision 2.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

from inorder.config import BrokerConfig, ClientConfig, NameServerConfig
from inorder.errors import ConfigError
from inorder.logs import get_logger
from inorder.settings.rocketmq import OTHER_NAMES, Foreign, foreign_names, translate
from inorder.settings.values import Catalog, Raw, Value, catalog, check_together, parse

log = get_logger(__name__)

# A settings file is read whole; a larger one is a mistake.
FILE_BYTES_MAX = 1024 * 1024

_SECTIONS: Mapping[type, str] = {
    BrokerConfig: "broker",
    NameServerConfig: "nameserver",
    ClientConfig: "client",
}


def section_of(cls: type) -> str:
    """Return the name of a configuration class in files and in the environment."""
    return _SECTIONS[cls]


def read_file(path: Path, cls: type) -> dict[str, Raw]:
    """Read the settings that a file has for `cls`."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(
            f"settings file {path} cannot be read: {error.strerror}; check --config"
        ) from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"settings file {path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"settings file {path} is not UTF-8 text") from None
    if path.suffix == ".toml":
        return dict(_toml(path, text, cls))
    return dict(_properties(path, text))


def _toml(path: Path, text: str, cls: type) -> Iterator[tuple[str, Raw]]:
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"settings file {path} is not TOML: {error}") from None
    for name, table in tables.items():
        if name not in _SECTIONS.values() or not isinstance(table, dict):
            raise ConfigError(
                f"settings file {path} has {name!r} at its top level; "
                "put settings into the tables [broker], [nameserver] and [client]"
            )
    yield from _flatten(path, tables.get(section_of(cls), {}), "")


def _flatten(path: Path, table: dict[str, Any], prefix: str) -> Iterator[tuple[str, Raw]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(path, value, f"{prefix}{name}.")
        elif isinstance(value, bool | int | float | str):
            yield prefix + name, value
        else:
            raise ConfigError(f"{prefix}{name} ({path}) is neither text, number nor true or false")


_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_PLAIN = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_PAIR = re.compile(r"((?:\\.|[^\\=:\s])+)[ \t\f]*[=: \t\f]?[ \t\f]*(.*)", re.DOTALL)


def _properties(path: Path, text: str) -> Iterator[tuple[str, Raw]]:
    for number, line in _logical_lines(text):
        found = _PAIR.fullmatch(line)
        if found is None or not re.search(r"[=:]", line):
            raise ConfigError(f"line {number} of {path} is not name=value: {line[:60]!r}")
        yield _unescape(found[1]), _unescape(found[2]).strip()


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Join continued lines, drop comments; each with the number of its first line."""
    joined, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        part = line.lstrip()
        if not joined:
            start = number
            if not part or part[0] in "#!":
                continue
        backslashes = len(part) - len(part.rstrip("\\"))
        if backslashes % 2:
            joined += part[:-1]
            continue
        yield start, joined + part
        joined = ""
    if joined:
        yield start, joined


def _unescape(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _PLAIN.get(code, code)

    return _ESCAPE.sub(one, text)


def read_environment(env: Mapping[str, str], cls: type) -> dict[str, tuple[str, str]]:
    """Return name -> (value, variable) of the settings of `cls` in the environment.

    `INORDER_BROKER__STORE__FLUSH_INTERVAL_MS` is `store.flush_interval_ms` of the broker;
    RocketMQ's own NAMESRV_ADDR and ROCKETMQ_HOME count where inorder's variable is not set.
    """
    found: dict[str, tuple[str, str]] = {}
    if cls is BrokerConfig and env.get("NAMESRV_ADDR"):
        found["namesrv"] = (env["NAMESRV_ADDR"], "NAMESRV_ADDR")
    if cls is BrokerConfig and env.get("ROCKETMQ_HOME"):
        found["access.rocketmq_home"] = (env["ROCKETMQ_HOME"], "ROCKETMQ_HOME")
    prefix = f"INORDER_{section_of(cls).upper()}__"
    for variable in sorted(env):
        if variable.startswith(prefix):
            name = variable.removeprefix(prefix).lower().replace("__", ".")
            found[name] = (env[variable], variable)
    return found


Config = TypeVar("Config")


@dataclass(frozen=True, slots=True)
class Loaded(Generic[Config]):
    """A configuration with the origin of each value."""

    config: Config
    values: Mapping[str, Value]
    """By dotted name, every setting of the class."""
    ignored: tuple[str, ...]
    """RocketMQ's settings that were given and have no meaning here."""


def load(
    cls: type[Config],
    *,
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Raw] | None = None,
) -> Config:
    """Return the settings of `cls` from all layers; warn once of those without a meaning here."""
    loaded = load_with_origins(cls, file=file, env=env, flags=flags)
    if loaded.ignored:
        log.warning(
            "settings of RocketMQ without a meaning here, ignored: %s", ", ".join(loaded.ignored)
        )
    return loaded.config


def load_with_origins(
    cls: type[Config],
    *,
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Raw] | None = None,
) -> Loaded[Config]:
    """Return the settings of `cls` with the origin of each value.

    Raises:
        ConfigError: a name is unknown, a value has the wrong type or range, two settings
            contradict each other, or a setting of RocketMQ asks for what inorder does not have.
    """
    known = catalog(cls)
    values = {name: Value(found.default, "default") for name, found in known.settings.items()}
    foreign = Foreign()
    for name, raw, origin in _layers(cls, file, env or {}, flags or {}):
        _apply(cls, known, values, foreign, (OTHER_NAMES.get(name, name), raw, origin))
    foreign.settle(values)
    config = _build(cls, "", values)
    check_together(config)
    root = str(values["data"].value) if "data" in values else ""
    return Loaded(config, values, foreign.ignored(root))


def _layers(
    cls: type, file: Path | None, env: Mapping[str, str], flags: Mapping[str, Raw]
) -> Iterator[tuple[str, Raw, str]]:
    if file is not None:
        for name, raw in read_file(file, cls).items():
            yield name, raw, f"file {file}"
    for name, (text, variable) in read_environment(env, cls).items():
        yield name, text, f"environment {variable}"
    for name, raw in flags.items():
        yield name, raw, "flag"


def _apply(
    cls: type,
    known: Catalog,
    values: dict[str, Value],
    foreign: Foreign,
    given: tuple[str, Raw, str],
) -> None:
    name, raw, origin = given
    setting = known.find(name)
    if setting is None:
        if name not in foreign_names(cls):
            raise known.unknown(name, origin)
        foreign.add(name, raw, origin)
        return
    if setting.secret and origin == "flag":
        variable = f"INORDER_{section_of(cls)}__{setting.name.replace('.', '__')}".upper()
        raise ConfigError(
            f"{setting.name}: a command line shows a secret to everybody on the machine; put it "
            f"into the settings file, or into the environment as {variable}"
        )
    if name == setting.rocketmq:
        raw = translate(setting, raw, origin)
    values[setting.name] = Value(parse(setting, raw, origin), origin)


def _build(cls: type[Config], prefix: str, values: Mapping[str, Value]) -> Config:
    hints = get_type_hints(cls)
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # every Config is a dataclass
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            arguments[field.name] = _build(kind, f"{prefix}{field.name}.", values)
        else:
            arguments[field.name] = values[prefix + field.name].value
    return cls(**arguments)
