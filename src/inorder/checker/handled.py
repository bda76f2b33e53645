"""Judges of handlers, owners and commits.

    handlers   everything is handled, in order, by one client at a time. First deliveries (C3) and
               first effects (C4) of a queue or a key come in the order of offsets; a rewind repeats
               old messages and is no inversion. Exclusion is C5, fencing C5'.
    owners     an epoch belongs to one owner and grows with each owner. No owner starts a handler or
               commits after the broker granted the queue to another. A handler that began before
               that grant and ends after it has outlived its lease: no one can prevent that, so it
               is counted (`outlived`), and the fence refuses its effect.
    commits    an offset never passes an unfinished message, and never falls (C7)

The C-numbers are those of the properties that every broker test checks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop
from itertools import pairwise
from operator import attrgetter

from inorder.checker.events import Committed, Granted, Handled, HandledResult
from inorder.checker.report import Findings, Handling, Kind, Rules
from inorder.checker.stored import Ledger, StoredView


class Owners:
    """The grants of a history."""

    __slots__ = ("_by_queue",)

    def __init__(self, grants: Iterable[Granted]) -> None:
        self._by_queue: dict[str, list[Granted]] = {}
        for grant in sorted(grants, key=attrgetter("at_ns")):
            self._by_queue.setdefault(grant.queue, []).append(grant)

    @property
    def known(self) -> bool:
        """Return whether the history holds grants."""
        return bool(self._by_queue)

    def judge(
        self, runs: Iterable[Handled], commits: Iterable[Committed], findings: Findings
    ) -> None:
        """Find epochs that do not grow, and handlers and commits that come after the next grant."""
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
        """Return the grant of a later epoch to another client that was made by then."""
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
        successor = self._overtaken(run.queue, run.client, run.epoch, run.start_ns)
        if successor is not None:
            findings.add_message(
                Kind.OVERLAP,
                f"{run.queue}: {run.client} started offset {run.offset} under epoch {run.epoch} "
                f"after {successor.client} was granted epoch {successor.epoch}",
                run,
            )
        elif self._overtaken(run.queue, run.client, run.epoch, run.until_ns) is not None:
            findings.notes["outlived"] += 1

    def _judge_commit(self, commit: Committed, findings: Findings) -> None:
        if commit.epoch is None or commit.reset:
            return
        successor = self._overtaken(commit.queue, commit.client, commit.epoch, commit.at_ns)
        if successor is not None:
            findings.add(
                Kind.STALE_COMMIT,
                f"{commit.queue}: {commit.client} committed {commit.offset} under epoch "
                f"{commit.epoch} after {successor.client} was granted epoch {successor.epoch}",
                queue=commit.queue,
                offset=commit.offset,
            )


Line = tuple[str, str | None]


class HandledView:
    """The handler runs of a history."""

    __slots__ = (
        "_all", "_fenced", "_findings", "_ledger", "_owners", "_rules", "_runs", "_stored",
    )  # fmt: skip

    def __init__(
        self,
        runs: Iterable[Handled],
        ledger: Ledger,
        stored: StoredView,
        rules: Rules,
        findings: Findings,
        *,
        owners: Owners,
    ) -> None:
        self._all = sorted(runs, key=attrgetter("start_ns"))
        self._runs = [run for run in self._all if run.result != HandledResult.PARKED]
        self._ledger = ledger
        self._stored = stored
        self._rules = rules
        self._findings = findings
        self._owners = owners
        self._fenced = bool(self._runs) and all(run.fence is not None for run in self._runs)

    def judge(self) -> None:
        """Find all faults of the handled messages."""
        self._judge_identity()
        self._judge_effects_once()
        if self._rules.complete_handled:
            self._judge_lost()
        if self._rules.handling == Handling.CONCURRENT:
            return
        self._judge_order(self._runs, "first deliveries")
        ended = (run for run in self._runs if run.result == HandledResult.DONE)
        self._judge_order(sorted(ended, key=attrgetter("until_ns")), "effects")
        self._judge_overlaps()
        self._judge_zombies()

    def _judge_identity(self) -> None:
        """C2: a handled message equals its send, and (queue, offset) names one message."""
        names: dict[tuple[str, int], str] = {}
        for run in self._runs:
            place = (run.queue, run.offset)
            if place not in names:
                record = self._stored.by_queue.get(run.queue, {}).get(run.offset)
                names[place] = run.id if record is None else record.id
                if record is None or record.id != run.id:
                    self._ledger.verify(run, self._findings)
            if names[place] != run.id:
                self._findings.add_message(
                    Kind.OFFSET_CONFLICT,
                    f"{run.queue}/{run.offset} named id {names[place]} and was handled as {run.id}",
                    run,
                    offset=run.offset,
                )

    def _judge_effects_once(self) -> None:
        effects: dict[str, Handled] = {}
        for run in self._runs:
            if run.result != HandledResult.DONE:
                continue
            first = effects.setdefault(run.id, run)
            if first is run:
                continue
            if not self._rules.handled_once:
                self._findings.notes["repeated_effects"] += 1
                continue
            self._findings.add_message(
                Kind.DOUBLED,
                f"id {run.id} at {run.queue}/{run.offset} took effect twice, "
                f"by {first.client} and by {run.client}",
                run,
                where="handled",
            )

    def _judge_lost(self) -> None:
        """C1: every acknowledged or stored message has an effect, or is dead-lettered or parked."""
        settled = {run.id for run in self._all if run.settled}
        started = {run.id for run in self._runs}
        for id_ in self._expected():
            if id_ in settled:
                continue
            how = "never succeeded" if id_ in started else "was never handled"
            sent = self._ledger.get(id_)
            copies = self._stored.by_id.get(id_)
            self._findings.add(
                Kind.LOST,
                f"id {id_} {how}",
                queue=copies[0].queue if copies else sent.queue if sent else None,
                key=sent.key if sent else copies[0].key if copies else None,
                id=id_,
                where="handled",
            )

    def _expected(self) -> Iterator[str]:
        for sent in self._ledger.acknowledged():
            yield sent.id
        for id_ in self._stored.by_id:
            known = self._ledger.get(id_)
            if known is None or known.result != "ok":
                yield id_

    def _judge_order(self, runs: Iterable[Handled], what: str) -> None:
        """C3, C4: a running maximum per line; only the first run of each message counts."""
        tops: dict[Line, Handled] = {}
        seen: set[str] = set()
        for run in runs:
            line = self._line(run)
            if run.id in seen or line is None:
                continue
            seen.add(run.id)
            top = tops.get(line)
            if top is None or self._place(run) > self._place(top):
                tops[line] = run
                continue
            self._findings.add_message(
                Kind.INVERTED,
                f"{what} of {run.queue}: offset {run.offset} (key {run.key}) by {run.client} "
                f"came after offset {top.offset} by {top.client}",
                run,
                after_id=top.id,
                where=what,
            )

    def _judge_overlaps(self) -> None:
        """C5: one client per queue; within it, one handler per line."""

        def same_run(a: Handled, b: Handled) -> bool:
            batch = (a.start_ns, a.end_ns) == (b.start_ns, b.end_ns)
            return a.client == b.client and (batch or self._line(a) != self._line(b))

        by_queue: dict[str, list[Handled]] = {}
        by_line: dict[Line, list[Handled]] = {}
        for run in self._runs:
            by_queue.setdefault(run.queue, []).append(run)
            line = self._line(run)
            if line is not None:
                by_line.setdefault(line, []).append(run)
        for runs in by_queue.values():
            if not self._owners.known:  # with grants, the owners' judge decides who may start
                self._sweep(runs, lambda a, b: a.client == b.client)
        for runs in by_line.values():
            self._sweep(runs, lambda a, b: a.client != b.client or same_run(a, b))

    def _sweep(self, runs: list[Handled], compatible: Callable[[Handled, Handled], bool]) -> None:
        """Report each run that starts while an earlier one, not compatible with it, goes on."""
        active: list[Handled] = []
        for run in runs:
            active = [other for other in active if other.until_ns > run.start_ns]
            for other in active:
                if not compatible(other, run):
                    self._findings.add_message(
                        Kind.OVERLAP,
                        f"{run.queue}: {run.client} started offset {run.offset} while "
                        f"{other.client} was handling offset {other.offset}",
                        run,
                        other_id=other.id,
                    )
                    break
            active.append(run)

    def _judge_zombies(self) -> None:
        """C5': no effect ends after another client's effect of a later message since its start."""
        effects: dict[str, list[Handled]] = {}
        done = (run for run in self._runs if run.result == HandledResult.DONE)
        for run in sorted(done, key=attrgetter("until_ns")):
            earlier = effects.setdefault(run.queue, [])
            for other in reversed(earlier):
                if other.until_ns <= run.start_ns:
                    break
                if other.client != run.client and other.offset > run.offset:
                    if (
                        self._owners.known
                    ):  # a handler that outlived its lease: the fence refuses its effect
                        self._findings.notes["late_effects"] += 1
                        break
                    self._findings.add_message(
                        Kind.ZOMBIE_EFFECT,
                        f"{run.queue}: {run.client} finished offset {run.offset} after "
                        f"{other.client} had finished offset {other.offset}",
                        run,
                        other_id=other.id,
                    )
                    break
            earlier.append(run)

    def _line(self, run: Handled) -> Line | None:
        """Return the queue or key whose order the message keeps; None: keyless, handled by key.

        Fences order a key over all its queues.
        """
        if self._rules.handling == Handling.QUEUE:
            return run.queue, None
        if run.key is None:
            return None
        return ("" if self._fenced else run.queue), run.key

    def _place(self, run: Handled) -> int:
        return run.fence if self._fenced and run.fence is not None else run.offset


def judge_commits(
    commits: Iterable[Committed],
    runs: Iterable[Handled],
    stored: StoredView,
    findings: Findings,
) -> None:
    """Compare each commit of a queue with the messages that were finished by then."""
    by_queue: dict[str, list[Committed]] = {}
    for commit in commits:
        by_queue.setdefault(commit.queue, []).append(commit)
    done_at: dict[str, dict[int, int]] = {}
    known: dict[str, set[int]] = {}
    for run in runs:
        known.setdefault(run.queue, set()).add(run.offset)
        if run.settled:
            times = done_at.setdefault(run.queue, {})
            times[run.offset] = min(run.until_ns, times.get(run.offset, run.until_ns))
    for queue in sorted(by_queue):
        offsets = known.get(queue, set()) | stored.by_queue.get(queue, {}).keys()
        _judge_queue(
            sorted(by_queue[queue], key=attrgetter("at_ns")),
            done_at.get(queue, {}),
            offsets,
            findings,
        )


def _judge_queue(
    commits: list[Committed], done_at: dict[int, int], offsets: set[int], findings: Findings
) -> None:
    # The first commit says where the group began: messages below it do not count, unless this
    # history shows that they were delivered.
    waiting = list(offsets)
    heapify(waiting)
    committed = -1
    for commit in commits:
        if commit.reset:
            waiting = [offset for offset in offsets if offset >= commit.offset]
            heapify(waiting)
            committed = commit.offset
            continue
        if commit.offset < committed:
            findings.add(
                Kind.COMMIT_REGRESSION,
                f"{commit.queue}: {commit.client} moved the offset back from {committed} "
                f"to {commit.offset}",
                queue=commit.queue,
                offset=commit.offset,
                before=committed,
            )
        committed = commit.offset
        while waiting and waiting[0] < commit.offset:
            offset = heappop(waiting)
            if done_at.get(offset, commit.at_ns + 1) > commit.at_ns:
                findings.add(
                    Kind.COMMIT_SKIP,
                    f"{commit.queue}: {commit.client} committed {commit.offset}, "
                    f"but offset {offset} was not done",
                    queue=commit.queue,
                    offset=offset,
                    committed=commit.offset,
                )
