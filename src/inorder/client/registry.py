"""The clients of this process, for whoever measures them. None is kept alive by it.

What a client has counted stays when the client is gone, so that no total of a process goes down. It
is kept by kind and group. `GROUPS_MAX` groups have a name of their own for as long as the process
runs; the consumers of further ones count together as `other`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final, Literal
from weakref import ref

Kind = Literal["producer", "consumer", "reader"]

COUNTED: Final[Mapping[Kind, tuple[str, ...]]] = {
    "producer": ("sent", "failed", "retries", "lost", "refused"),
    "consumer": (
        "handled", "failed", "parked", "sent_back", "dead_lettered", "dropped", "pulled",
        "outlived", "rebalances",
    ),
    "reader": (),
}  # fmt: skip
"""What only grows in the statistics of a client."""
GROUPS_MAX: Final = 1000
OTHER: Final = "other"

Totals = dict[tuple[Kind, str], dict[str, int]]

_LOCK: Final = threading.Lock()
"""Clients of several loops, and whoever reads."""


class Entry:
    """A client: what it is, and what it had counted when somebody looked last."""

    __slots__ = ("_client", "counts", "group", "kind")

    def __init__(self, client: Any, kind: Kind, group: str) -> None:
        self._client = ref(client)
        self.kind = kind
        self.group = group
        self.counts = dict.fromkeys(COUNTED[kind], 0)

    @property
    def client(self) -> Any:
        """Return the client, None if it is gone."""
        return self._client()

    def note(self, statistics: Any) -> None:
        """Remember the counters of a snapshot. An older one changes nothing."""
        with _LOCK:
            for name, known in self.counts.items():
                self.counts[name] = max(known, getattr(statistics, name))


class Registry:
    """The clients, and the totals of those that are gone. Any thread may ask."""

    def __init__(self, *, groups_max: int = GROUPS_MAX) -> None:
        self._entries: dict[int, Entry] = {}
        self._gone: Totals = {}
        self._groups: set[str] = set()
        self._groups_max = groups_max
        self._fold_at = 64

    def made(self, client: Any, kind: Kind, group: str = "") -> None:
        """Note a client; `group` is that of a consumer."""
        with _LOCK:
            if len(self._entries) >= self._fold_at or id(client) in self._entries:
                self._fold()
                self._fold_at = 64 + 2 * len(self._entries)
            if group not in self._groups:
                if len(self._groups) < self._groups_max:
                    self._groups.add(group)
                else:
                    group = OTHER
            self._entries[id(client)] = Entry(client, kind, group)

    def closed(self, client: Any) -> None:
        """Keep the counters of a client that was closed: it may be gone at the next look."""
        entry = self._entries.get(id(client))
        if entry is not None and entry.client is client:
            entry.note(client.statistics())

    def look(self) -> tuple[list[tuple[Entry, Any]], Totals]:
        """Return the clients that are alive, and the totals of those that are gone."""
        with _LOCK:
            self._fold()
            found = [(entry, entry.client) for entry in self._entries.values()]
            gone = {name: dict(counts) for name, counts in self._gone.items()}
        for entry, client in found:
            if client is None:  # since the line above; its counts are folded next time
                _add(gone, entry)
        return [pair for pair in found if pair[1] is not None], gone

    def _fold(self) -> None:
        """Move the counters of clients that are gone into the totals."""
        for name, entry in list(self._entries.items()):
            if entry.client is None:
                del self._entries[name]
                _add(self._gone, entry)


def _add(totals: Totals, entry: Entry) -> None:
    if entry.counts:
        found = totals.setdefault((entry.kind, entry.group), dict.fromkeys(entry.counts, 0))
        for name, count in entry.counts.items():
            found[name] += count


_REGISTRY: Final = Registry()
made: Final = _REGISTRY.made
closed: Final = _REGISTRY.closed
look: Final = _REGISTRY.look


def clients() -> list[Any]:
    """Return the clients that are alive."""
    return [client for _, client in look()[0]]
