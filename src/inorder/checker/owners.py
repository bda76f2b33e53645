"""Judge owners by the broker's word: who starts a handler, or commits, after another was granted?

An epoch belongs to one owner and grows with each. A handler that was begun before the next owner
was granted the queue, and ends after that, has outlived its lease: that cannot be prevented, so it
is counted (`outlived`), and the fence refuses its effect.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from operator import attrgetter

from inorder.checker.events import Committed, Granted, Handled
from inorder.checker.report import Findings, Kind


class Owners:
    """The grants of a history."""

    __slots__ = ("_by_queue",)

    def __init__(self, grants: Iterable[Granted]) -> None:
        self._by_queue: dict[str, list[Granted]] = {}
        for grant in sorted(grants, key=attrgetter("at_ns")):
            self._by_queue.setdefault(grant.queue, []).append(grant)

    @property
    def known(self) -> bool:
        """Tell whether the history says who owned what."""
        return bool(self._by_queue)

    def judge(
        self, runs: Iterable[Handled], commits: Iterable[Committed], findings: Findings
    ) -> None:
        """Find epochs that do not grow, handlers that start and commits that count too late."""
        for grants in self._by_queue.values():
            self._judge_epochs(grants, findings)
        for run in runs:
            self._judge_run(run, findings)
        for commit in commits:
            self._judge_commit(commit, findings)

    def _judge_epochs(self, grants: list[Granted], findings: Findings) -> None:
        for before, after in pairwise(grants):
            if after.epoch <= before.epoch and after.client != before.client:
                findings.add(
                    Kind.OVERLAP,
                    f"{after.queue}: {after.client} was granted epoch {after.epoch} after "
                    f"{before.client} had epoch {before.epoch}",
                    queue=after.queue,
                )

    def _overtaken(self, queue: str, client: str, epoch: int, at_ns: int) -> Granted | None:
        """Return the grant to another one, of a later epoch, that was made by then."""
        grants = self._by_queue.get(queue, [])
        count = bisect_right(grants, at_ns, key=attrgetter("at_ns"))
        for grant in reversed(grants[:count]):
            if grant.epoch <= epoch:
                return None
            if grant.client != client:
                return grant
        return None

    def _judge_run(self, run: Handled, findings: Findings) -> None:
        if run.epoch is None:
            return
        heir = self._overtaken(run.queue, run.client, run.epoch, run.start_ns)
        if heir is not None:
            findings.add(
                Kind.OVERLAP,
                f"{run.queue}: {run.client} started offset {run.offset} under epoch {run.epoch} "
                f"after {heir.client} was granted epoch {heir.epoch}",
                queue=run.queue,
                key=run.key,
                id=run.id,
            )
        elif self._overtaken(run.queue, run.client, run.epoch, run.until_ns) is not None:
            findings.notes["outlived"] += 1

    def _judge_commit(self, commit: Committed, findings: Findings) -> None:
        if commit.epoch is None or commit.reset:
            return
        heir = self._overtaken(commit.queue, commit.client, commit.epoch, commit.at_ns)
        if heir is not None:
            findings.add(
                Kind.STALE_COMMIT,
                f"{commit.queue}: {commit.client} committed {commit.offset} under epoch "
                f"{commit.epoch} after {heir.client} was granted epoch {heir.epoch}",
                queue=commit.queue,
                offset=commit.offset,
            )
