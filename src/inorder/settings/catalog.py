"""Which settings there are: the dataclasses of `inorder.config`, flattened to dotted names."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_type_hints

from inorder.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a configuration class."""

    name: str
    """Dotted, as in `store.flush_interval_ms`."""
    type: type
    default: bool | int | float | str
    doc: str
    rocketmq: str | None


class Catalog:
    """The settings of one class, found by our name or by RocketMQ's."""

    def __init__(self, cls: type) -> None:
        self.settings: dict[str, Setting] = {found.name: found for found in _flatten(cls, "")}
        self.by_rocketmq: dict[str, Setting] = {
            setting.rocketmq: setting for setting in self.settings.values() if setting.rocketmq
        }

    def find(self, name: str) -> Setting | None:
        """Return the setting of that name, ours or RocketMQ's."""
        return self.settings.get(name) or self.by_rocketmq.get(name)

    def unknown(self, name: str, where: str) -> ConfigError:
        """Return the error for a name that is none, with the nearest that is."""
        known = [*self.settings, *self.by_rocketmq]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        if not near:
            last = name.rsplit(".", 1)[-1]
            near = [full for full in self.settings if full.rsplit(".", 1)[-1] == last][:1]
        hint = f"did you mean {near[0]!r}?" if near else "`inorder config show` lists all of them"
        return ConfigError(f"unknown setting {name!r} ({where}); {hint}")


_catalogs: dict[type, Catalog] = {}


def catalog(cls: type) -> Catalog:
    """Return the catalog of a configuration class; made once."""
    if cls not in _catalogs:
        _catalogs[cls] = Catalog(cls)
    return _catalogs[cls]


def _flatten(cls: type, prefix: str) -> Iterator[Setting]:
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            yield from _flatten(kind, f"{prefix}{field.name}.")
        else:
            meta = field.metadata
            assert field.default is not dataclasses.MISSING, f"{field.name} has no default"
            yield Setting(
                name=prefix + field.name,
                type=kind,
                default=field.default,
                doc=meta["doc"],
                rocketmq=meta["rocketmq"],
            )
