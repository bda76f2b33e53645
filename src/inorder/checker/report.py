"""The checker's contract and its report.

`Rules` says what a history is held to: the defaults are the whole contract, each switch gives one
part up. A report holds findings by kind, counts, and whether there was anything to judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from inorder.escaping import escaped

if TYPE_CHECKING:
    from inorder.checker.events import Handled, Sent, Stored

SHOWN_MAX: Final = 20
"""How many findings the text of a report names; `Report.findings` holds more."""


class Kind(StrEnum):
    """The kinds of faults of a history."""

    LOST = "lost"
    DOUBLED = "doubled"
    INVERTED = "inverted"
    PHANTOM = "phantom"
    ABORTED_READ = "aborted_read"
    CORRUPT = "corrupt"
    GAP = "gap"
    SPLIT_KEY = "split_key"
    OFFSET_CONFLICT = "offset_conflict"
    OVERLAP = "overlap"
    ZOMBIE_EFFECT = "zombie_effect"
    COMMIT_SKIP = "commit_skip"
    COMMIT_REGRESSION = "commit_regression"
    STALE_COMMIT = "stale_commit"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, with enough detail to look for it in a log."""

    kind: Kind
    queue: str | None
    key: str | None
    message: str
    detail: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict. `findings` is cut at the rules' maximum, `by_kind` counts them all."""

    findings: tuple[Finding, ...]
    by_kind: Mapping[Kind, int]
    counts: Mapping[str, int]
    vacuous: bool

    @property
    def ok(self) -> bool:
        """Return whether there was something to judge and nothing is wrong with it."""
        return not self.by_kind and not self.vacuous

    def __str__(self) -> str:
        counts = " ".join(f"{name}={count}" for name, count in self.counts.items())
        if self.vacuous:
            return f"vacuous ({counts}): too few acknowledged sends to prove anything"
        if not self.by_kind:
            return f"in order ({counts})"
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.by_kind.items())
        lines = [f"NOT in order: {kinds} ({counts})"]
        lines += [f"  {escaped(str(finding))}" for finding in self.findings[:SHOWN_MAX]]
        more = sum(self.by_kind.values()) - SHOWN_MAX
        if more > 0:
            lines.append(f"  and {more} more")
        return "\n".join(lines)


class Findings:
    """Collects findings up to a maximum and counts all."""

    __slots__ = ("_counts", "_kept", "_maximum", "notes")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._kept: list[Finding] = []
        self._counts: Counter[Kind] = Counter()
        self.notes: Counter[str] = Counter()

    def add(
        self,
        kind: Kind,
        message: str,
        *,
        queue: str | None = None,
        key: str | None = None,
        **detail: object,
    ) -> None:
        """Record one finding."""
        self._counts[kind] += 1
        if len(self._kept) < self._maximum:
            self._kept.append(Finding(kind, queue, key, message, detail))

    def add_message(
        self, kind: Kind, text: str, message: Sent | Stored | Handled, **detail: object
    ) -> None:
        """Record a finding about one message, with its queue, its key and its id."""
        self.add(kind, text, queue=message.queue, key=message.key, id=message.id, **detail)

    def report(self, counts: Mapping[str, int], *, vacuous: bool) -> Report:
        """Close the list."""
        by_kind = {kind: self._counts[kind] for kind in Kind if self._counts[kind]}
        notes = {name: self.notes[name] for name in sorted(self.notes)}
        return Report(tuple(self._kept), by_kind, {**counts, **notes}, vacuous)


class Handling(StrEnum):
    """Which messages wait for each other in a consumer."""

    QUEUE = "queue"
    """One handler per queue, in the order of offsets."""
    KEY = "key"
    """One handler per key, in the order of offsets of the key."""
    CONCURRENT = "concurrent"
    """No order: only loss, doubles and phantoms are looked for."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The promises to check.

    `stored_once` off: a retried send may leave copies; order is judged on first copies.
    `handled_once` off: an effect may repeat after a fault; order is judged on first effects.
    `one_queue_per_key` off: for topics whose number of queues changed.
    `dense` off: what was read is filtered (by tag, say), so offsets may have holes.
    `complete_stored`, `complete_handled`: the history holds everything that was stored or handled,
    so what is missing is lost; None = yes if it holds any such event.
    `acknowledged_min`: with fewer acknowledged sends the history proves nothing.
    """

    stored_once: bool = True
    handled_once: bool = True
    one_queue_per_key: bool = True
    dense: bool = True
    handling: Handling = Handling.QUEUE
    complete_stored: bool | None = None
    complete_handled: bool | None = None
    acknowledged_min: int = 1
    findings_max: int = 1000
