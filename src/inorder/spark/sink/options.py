"""The options of the sink, and the columns that it takes. How it writes: decision 34."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inorder.errors import ConfigError
from inorder.spark.cluster import (
    NAMES,
    NOBODY,
    Login,
    Servers,
    Tls,
    chosen_servers,
    common_name,
    read_tls,
)

if TYPE_CHECKING:
    pass

LINEAGE: Final = ("source_topic", "source_broker", "source_queue", "source_offset")
OWN: Final = ("producer", "sequence")
COLUMNS: Final = (
    "body", "topic", "key", "tag", "keys", "properties", "delay_level", *LINEAGE, *OWN,
)  # fmt: skip
EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"

_KNOWN: Final = {"namesrv": "namesrv", "nameserver": "namesrv", "topic": "topic", "path": "topic",
                 "sinkid": "sinkId", "delivery": "delivery", "checkpointlocation": ""}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The checked options of a sink."""

    namesrv: str
    topic: str | None
    delivery: str
    sink_id: str
    columns: tuple[str, ...]
    tls: Tls | None = None
    login: Login = NOBODY

    @property
    def servers(self) -> Servers:
        """Return the servers to write to."""
        return Servers(self.namesrv, self.tls, self.login)


def parse(options: Mapping[str, str], columns: list[str]) -> SinkOptions:
    """Read the options of `write` or `writeStream`, and check the columns."""
    given: dict[str, str] = {}
    for name, value in options.items():
        wanted = _KNOWN.get(name.lower(), common_name(name))
        if wanted is None:
            raise ConfigError(
                f"the sink has no option {name!r}; it has namesrv, topic, delivery, sinkId, "
                f"{', '.join(NAMES)}"
            )
        given[wanted] = value
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise ConfigError(f"the sink knows no column {unknown[0]!r}; it has {', '.join(COLUMNS)}")
    if "body" not in columns:
        raise ConfigError("the sink needs a column body, binary or string")
    if not given.get("topic") and "topic" not in columns:
        raise ConfigError("say where to: the option topic, or a column topic")
    delivery = given.get("delivery", EXACTLY_ONCE)
    if delivery not in (EXACTLY_ONCE, AT_LEAST_ONCE):
        raise ConfigError(f"delivery: {delivery!r} is neither {EXACTLY_ONCE} nor {AT_LEAST_ONCE}")
    if delivery == EXACTLY_ONCE:
        _check_identity(columns, given.get("sinkId", ""))
    return SinkOptions(
        chosen_servers(given.get("namesrv")),
        given.get("topic"),
        delivery,
        given.get("sinkId", ""),
        tuple(columns),
        read_tls(given),
        Login.of(given.get("credentials_file")),
    )


def _check_identity(columns: list[str], sink_id: str) -> None:
    own = all(name in columns for name in OWN)
    if not own and not all(name in columns for name in LINEAGE):
        raise ConfigError(
            f"{EXACTLY_ONCE} needs to know where each row comes from: the columns "
            f"{', '.join(LINEAGE)} (inorder.spark.lineage makes them), or {' and '.join(OWN)}; "
            f"or say delivery={AT_LEAST_ONCE}"
        )
    if not own and not sink_id:
        raise ConfigError(
            f"{EXACTLY_ONCE} needs the option sinkId: a name for this pipeline that stays the same "
            "over restarts and that no other pipeline has"
        )
