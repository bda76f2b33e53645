"""Audits on demand: the order checker over a topic, in a process of its own.

The console reads the topic's records and the traces of a group's handlers, and writes them as JSON
lines to the process (`python -m inorder.console.audit`), whose answer is a report. Judging a
million messages neither holds the loop of the console nor needs its memory.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final

from inorder.checker import (
    Handled,
    HandledResult,
    Handling,
    Rules,
    Stored,
    check,
    queue_name,
    read_history,
    write_history,
)
from inorder.client.admin import Admin
from inorder.client.rules import traces
from inorder.client.rules.routes import subscribe_queues
from inorder.clock import Clock
from inorder.console import reads
from inorder.errors import InorderError, TopicNotRouted
from inorder.model import ReceivedMessage, TopicQueue
from inorder.tasks import Tasks
from inorder.wire.names import TRACE_TOPIC

MESSAGES_MAX: Final = 1_000_000
JOBS_MAX: Final = 20
RUNNING_MAX: Final = 2
BATCH: Final = 32
FINDINGS_SHOWN: Final = 5


@dataclass(slots=True)
class Job:
    """An audit that runs or has run."""

    number: int
    topic: str
    group: str
    began_ms: int
    total: int = 0
    read: int = 0
    handled: int = 0
    running: bool = True
    in_order: bool | None = None
    text: str = ""


class Audits:
    """The audits of a console; the last ones are kept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks = Tasks("audits")
        self._number = 0
        self.jobs: deque[Job] = deque(maxlen=JOBS_MAX)

    def start(self, admin: Admin, topic: str, group: str) -> Job | None:
        """Begin an audit; None: too many run."""
        if sum(1 for one in self.jobs if one.running) >= RUNNING_MAX:
            return None
        self._number += 1
        job = Job(self._number, topic, group, self._clock.now_ms())
        self.jobs.append(job)
        self._tasks.start(self._run(admin, job), name=f"audit {job.number}")
        return job

    async def close(self) -> None:
        """Stop the audits that run."""
        await self._tasks.stop()

    async def _run(self, admin: Admin, job: Job) -> None:
        try:
            await self._judge(admin, job)
        except (InorderError, OSError) as error:
            job.text = f"the audit failed: {error}"
        finally:
            job.running = False

    async def _judge(self, admin: Admin, job: Job) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "inorder.console.audit",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        try:
            known = await self._stored(admin, job, process.stdin)
            if job.group:
                await self._handled(admin, job, known, process.stdin)
            process.stdin.close()
            output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        _conclude(job, output, errors)

    async def _stored(
        self, admin: Admin, job: Job, out: asyncio.StreamWriter
    ) -> dict[str, tuple[str, int, str | None]]:
        """Write what is stored; return the place and key of each message that a group may trace."""
        queues = subscribe_queues(await admin.cluster.route(job.topic), job.topic)
        bounds = [(one, *await reads.bounds(admin, one)) for one in queues]
        job.total = min(MESSAGES_MAX, sum(end - first for _, first, end in bounds))
        known: dict[str, tuple[str, int, str | None]] = {}
        for queue, first, end in bounds:
            at = first
            while at < end and job.read < MESSAGES_MAX:
                batch = await admin.messages.read(queue, at, count=BATCH)
                if batch.next_offset <= at:
                    break
                at = batch.next_offset
                job.read += len(batch.messages)
                _write(out, (_stored(one) for one in batch.messages))
                await out.drain()
                if job.group:
                    known.update(
                        (one.message_id, (queue_name(queue), one.offset, one.key))
                        for one in batch.messages
                    )
        return known

    async def _handled(
        self, admin: Admin, job: Job, known: dict[str, tuple[str, int, str | None]],
        out: asyncio.StreamWriter,
    ) -> None:  # fmt: skip
        """Write the calls of handlers that a group's clients traced."""
        try:
            route = await admin.cluster.route(TRACE_TOPIC)
        except TopicNotRouted:
            job.text = "there is no trace topic, so only what is stored is judged. "
            return
        begun: dict[str, tuple[int, str]] = {}
        for queue in subscribe_queues(route, TRACE_TOPIC):
            async for view, message_id in _trace_views(admin, queue, job.group):
                if message_id not in known:
                    continue
                if view.kind == "SubBefore":
                    begun[view.call_id] = (view.at_ms, message_id)
                elif view.kind == "SubAfter" and view.call_id in begun:
                    since_ms, _ = begun.pop(view.call_id)
                    place, offset, key = known[message_id]
                    until_ms = max(since_ms, view.at_ms or since_ms + view.spent_ms)
                    result = HandledResult.DONE if view.success else HandledResult.FAILED
                    job.handled += 1
                    event = Handled(job.group, place, offset, message_id, key,
                                    since_ms * 1_000_000, until_ms * 1_000_000, result)  # fmt: skip
                    _write(out, [event])
            await out.drain()


async def _trace_views(
    admin: Admin, queue: TopicQueue, group: str
) -> AsyncIterator[tuple[traces.TraceView, str]]:
    """Give the traces of a group's handlers in a queue of the trace topic."""
    at, end = await reads.bounds(admin, queue)
    while at < end:
        batch = await admin.messages.read(queue, at, count=BATCH)
        if batch.next_offset <= at:
            return
        at = batch.next_offset
        for message in batch.messages:
            for view, message_id in traces.calls_of(message.body):
                if view.group == group:
                    yield view, message_id


def _stored(message: ReceivedMessage) -> Stored:
    return Stored(queue_name(message.queue), message.offset, message.message_id, message.key)


def _write(out: asyncio.StreamWriter, events: Iterable[Stored | Handled]) -> None:
    for line in write_history(events):
        out.write(line.encode() + b"\n")


def _conclude(job: Job, output: bytes, errors: bytes) -> None:
    try:
        report = json.loads(output)
        findings = report["findings"]
    except (ValueError, KeyError, TypeError):
        job.text = f"the checker said: {errors.decode('utf-8', 'replace')[-300:]}"
        return
    job.in_order = bool(report["in_order"])
    kinds = ", ".join(f"{count} {kind}" for kind, count in report["by_kind"].items())
    shown = "; ".join(one["message"] for one in findings[:FINDINGS_SHOWN])
    job.text += f"{kinds}: {shown}" if kinds else "nothing is lost, doubled or inverted"


def main() -> None:
    """Judge the events on stdin; the process of an audit.

    What a group has not handled yet, or did not trace, is not lost.
    """
    rules = Rules(
        handling=Handling.KEY, dense=False, one_queue_per_key=False, acknowledged_min=0,
        complete_handled=False,
    )  # fmt: skip
    report = check(read_history(sys.stdin), rules=rules)
    answer = {
        "in_order": not report.by_kind,
        "by_kind": dict(report.by_kind),
        "findings": [{"message": one.message} for one in report.findings[:FINDINGS_SHOWN]],
    }
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
