"""The layers laid over each other: defaults < file < environment < flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

from inorder.logs import get_logger
from inorder.settings.catalog import Catalog, catalog
from inorder.settings.foreign import Foreign, foreign_names, translate
from inorder.settings.sources import read_environment, read_file
from inorder.settings.values import Raw, check_together, parse

log = get_logger(__name__)

Config = TypeVar("Config")


@dataclass(frozen=True, slots=True)
class Value:
    """A setting as it is in force, and who said so."""

    value: Raw
    origin: str


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
        _apply(cls, known, values, foreign, (name, raw, origin))
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
