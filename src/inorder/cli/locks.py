"""`inorder locks [GROUP] | locks release`: who owns which queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inorder.cli.offset import BrokerOption
from inorder.cli.oncluster import (
    AnyGroupArgument,
    Cluster,
    GroupArgument,
    ListByDefault,
    OnlyTopicOption,
    OutputOption,
    TopicArgument,
    YesOption,
    confirm,
    on_cluster,
)
from inorder.cli.output import Output, as_json, put_page, say, table

if TYPE_CHECKING:
    from inorder.client.admin import Admin, QueueLock

_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS


app = typer.Typer(
    cls=ListByDefault,
    help="Owners of queues: who has which, since when, who waits (`inorder locks [GROUP]`); take "
    "one away. Brokers of ours only.",
    rich_markup_mode=None,
)


@app.command("list")
@on_cluster
def list_(
    target: Cluster,
    group: AnyGroupArgument = None,
    *,
    topic: OnlyTopicOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List who owns which queues: holder, epoch, age, what is left, and who waits."""
    found = target.run(lambda admin: admin.locks.list(group, topic=topic))
    if output is Output.JSON:
        put_page(as_json([_row(one) for one in found]))
        return
    put_page(
        table(
            ("group", "topic", "broker", "queue", "holder", "epoch", "age", "left", "state",
             "waiting"),
            [
                (one.group, one.queue.topic, one.queue.broker, one.queue.index, one.holder,
                 one.epoch, _span(one.age_ms), _span(one.remaining_ms), _state(one),
                 ", ".join(one.waiting))
                for one in found
            ],
        )
    )  # fmt: skip


@app.command()
@on_cluster
def release(
    target: Cluster,
    group: GroupArgument,
    topic: TopicArgument,
    queue: Annotated[int, typer.Argument(help="Number of the queue.", min=0)],
    *,
    broker: BrokerOption = None,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take a queue from its owner: what that one still does under its epoch is refused."""
    confirm(f"Take queue {queue} of {topic} from its owner in group {group}?", yes)

    async def work(admin: Admin) -> tuple[str, str]:
        found = await admin.topics.find_queue(topic, queue, broker)
        return await admin.locks.release(group, found), found.broker

    holder, place = target.run(work)
    text = f"queue {queue} of {topic} on {place} was taken from {holder}"
    say(output, text, group=group, topic=topic, broker=place, queue=queue, holder=holder)


def _row(one: QueueLock) -> dict[str, object]:
    return {
        "group": one.group, "topic": one.queue.topic, "broker": one.queue.broker,
        "queue": one.queue.index, "holder": one.holder, "instance": one.instance,
        "epoch": one.epoch, "ageMs": one.age_ms, "remainingMs": one.remaining_ms,
        "leaseMs": one.lease_ms, "graceMs": one.grace_ms, "stock": one.stock,
        "connected": one.connected, "waiting": list(one.waiting), "recalled": one.recalled,
    }  # fmt: skip


def _state(one: QueueLock) -> str:
    if not one.holder:
        return "not to be had yet"
    from inorder.wire.requests.leases import POPPED_INSTANCE

    if one.instance == POPPED_INSTANCE:
        return "popped"
    kind = "lock" if one.stock else "lease"
    asked = ", asked back" if one.recalled else ""
    return f"{kind}{asked}" if one.connected else f"{kind}{asked}, not connected"


def _span(span_ms: int) -> str:
    if span_ms < _MINUTE_MS:
        return f"{span_ms / _SECOND_MS:.1f}s"
    if span_ms < _HOUR_MS:
        return f"{span_ms // _MINUTE_MS}m{span_ms % _MINUTE_MS // _SECOND_MS}s"
    return f"{span_ms // _HOUR_MS}h{span_ms % _HOUR_MS // _MINUTE_MS}m"
