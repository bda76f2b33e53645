"""Judge the commits: an offset never passes a message that is not done, and never falls (C7)."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop
from operator import attrgetter

from inorder.checker.events import Committed, Handled
from inorder.checker.report import Findings, Kind
from inorder.checker.stored import StoredView


def judge_commits(
    commits: Iterable[Committed],
    runs: Iterable[Handled],
    stored: StoredView,
    findings: Findings,
) -> None:
    """Replay each queue's commits in time against what was done by then."""
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
    # The first commit says where the group began: what lies below was never its business, unless
    # this history shows that it was handed out.
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
