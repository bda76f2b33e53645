"""The filters of groups: heartbeats register them, pulls ask for them, a file holds them.

Nothing waits for the file. If it is older than the table, the next heartbeats bring the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from inorder.broker.filters.rules import CompiledFilters, FilterTable, GroupFilter, filter_of
from inorder.filters.compiled import Filter
from inorder.logs import get_logger
from inorder.model import Subscription
from inorder.store.snapshot import Snapshot

if TYPE_CHECKING:
    from inorder.broker.broker import Broker

log = get_logger(__name__)

COMPILE_CHAR_NS: Final = 1500
"""About how long a character of an expression takes to compile."""
_SAY_MS: Final = 10_000


class FilterService:
    """The table of filters, its file, and the compiled filters."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._compiled = CompiledFilters()
        self.table = FilterTable(self._compiled)
        self.file = Snapshot(
            broker.files, broker.config.data_path / "config" / "consumerFilter.json"
        )
        self._saved_revision = 0
        self._say_ms = 0
        self.spent_ns = 0
        """About how long filters took so far, asked and compiled; a caller sees it grow."""

    def load(self) -> None:
        """Load the file."""
        now_ms = self._broker.clock.now_ms()

        def decode(data: bytes) -> None:
            for problem in self.table.load(data, now_ms):
                log.warning("left out a filter of file=%s: %s", self.file.path, problem)

        self.file.load(decode)
        self._saved_revision = self.table.revision

    def compiled(self, kind: str, text: str) -> Filter:
        """Return the filter of an expression. Raises SubscriptionParseFailed if it is none."""
        if text not in self._compiled:
            self.spent_ns += COMPILE_CHAR_NS * len(text)
        return filter_of(self._compiled, kind, text)

    def get(self, topic: str, group: str) -> GroupFilter | None:
        """Return the filter that the heartbeats of a group registered for a topic."""
        return self.table.get(topic, group)

    def heard(self, group: str, subscriptions: Iterable[Subscription]) -> None:
        """Register the filters of a heartbeat."""
        broker = self._broker
        problems = self.table.register(group, subscriptions, broker.clock.now_ms())
        if problems and broker.clock.monotonic_ms() >= self._say_ms:
            self._say_ms = broker.clock.monotonic_ms() + _SAY_MS
            for problem in problems[:3]:
                log.warning("a filter of group=%s is not kept: %s", group, problem)

    def group_left(self, group: str) -> None:
        """Let the filters of a group die: its last member is gone."""
        self.table.group_left(group, self._broker.clock.now_ms())

    def save_soon(self) -> None:
        """Remove what died long ago, and save the table if it has changed."""
        self._clean()
        if self.table.revision != self._saved_revision:
            self._saved_revision = self.table.revision
            self._broker.saving.save(self.file, self.table)

    def save_at_stop(self) -> None:
        """Save the table if the file may not hold all of it. Raises OSError."""
        self._clean()
        saved = self._broker.saving.covers(self.file)
        if self.table.revision != self._saved_revision or not saved:
            self.file.save(self.table.encode())

    def _clean(self) -> None:
        self.table.clean(self._broker.clock.now_ms(), self._broker.config.filter_keep_ms)
