"""`inorder message get | find | trace | waiting | recall`: single messages."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from inorder.cli.failures import fail
from inorder.cli.oncluster import Cluster, OutputOption, TopicArgument, on_cluster
from inorder.cli.output import (
    RAW_AND_JSON,
    TIME_HELP,
    Output,
    RawOption,
    as_json,
    as_line,
    as_object,
    body_page,
    parse_time,
    put_page,
    say,
    show_time,
    table,
    write_raw,
)
from inorder.clock import SystemClock
from inorder.errors import UsageError
from inorder.wire.names import TRACE_TOPIC

if TYPE_CHECKING:
    from inorder.client.admin import Admin
    from inorder.client.session import Session
    from inorder.model import ReceivedMessage

_STEPS: Final = {"Pub": "sent", "SubBefore": "handler began", "SubAfter": "handler ended"}

app = typer.Typer(no_args_is_help=True, help="Look up messages.", rich_markup_mode=None)


@app.command()
@on_cluster
def get(
    target: Cluster,
    topic: TopicArgument,
    message_id: Annotated[
        str | None, typer.Argument(help="Message id.", metavar="[MESSAGE_ID]")
    ] = None,
    *,
    queue: Annotated[int | None, typer.Option("--queue", help="Instead of an id.", min=0)] = None,
    offset: Annotated[int | None, typer.Option("--offset", help="In --queue.", min=0)] = None,
    broker: Annotated[str | None, typer.Option("--broker", help="Of --queue.")] = None,
    raw: RawOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one message, by its id or by queue and offset."""
    if (message_id is None) == (queue is None) or (queue is None) != (offset is None):
        raise UsageError("give either a message id, or --queue and --offset")

    async def work(admin: Admin) -> list[ReceivedMessage]:
        if message_id is not None:
            return await admin.messages.by_id(topic, message_id)
        assert queue is not None
        assert offset is not None
        where = await admin.topics.find_queue(topic, queue, broker)
        return [await admin.messages.by_offset(where, offset)]

    found = target.run(work)
    if not _put_for_programs(found, output, raw=raw):
        put_page("\n\n".join(_sheet(one) for one in found))


@app.command()
@on_cluster
def find(
    target: Cluster,
    topic: TopicArgument,
    *,
    key: Annotated[str | None, typer.Option("--key", help="A word of its index keys.")] = None,
    begin: Annotated[str | None, typer.Option("--from", help=f"Since {TIME_HELP}.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="Before this time.")] = None,
    count: Annotated[int, typer.Option("-n", "--count", help="At most.", min=1)] = 64,
    raw: RawOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Find messages by key, by the time they were stored, or both."""
    if key is None and begin is None:
        raise UsageError("give --key, or --from, or both")
    now_ms = SystemClock().now_ms()
    since = None if begin is None else parse_time(begin, now_ms)
    until = None if end is None else parse_time(end, now_ms)

    async def work(admin: Admin) -> list[ReceivedMessage]:
        if key is None:
            return await admin.messages.by_time(topic, since, until, count=count)
        return await admin.messages.by_key(topic, key, since=since, until=until, count=count)

    found = target.run(work)
    if found or output is Output.JSON:
        if not _put_for_programs(found, output, raw=raw):
            put_page("\n".join(map(as_line, found)))
    else:
        what = f"key {key}" if key is not None else "that time"
        fail(f"topic {topic} has no message of {what}; only keys given to the producer are found")


@app.command()
@on_cluster
def trace(
    target: Cluster,
    message_id: Annotated[
        str, typer.Argument(help="Id that the producer gave.", metavar="MESSAGE_ID")
    ],
    *,
    trace_topic: Annotated[
        str, typer.Option("--trace-topic", help="Topic of the traces.")
    ] = TRACE_TOPIC,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what clients with trace=True have done with a message: sent it, handled it."""
    found = target.run(lambda admin: admin.messages.traces(message_id, topic=trace_topic))
    if output is Output.JSON:
        put_page(as_json([asdict(one) for one in found]))
    elif found:
        rows = [
            (
                show_time(one.at_ms),
                _STEPS.get(one.kind, one.kind),
                one.group,
                "" if one.success is None else "ok" if one.success else "failed",
                "" if one.success is None else f"{one.spent_ms} ms",
                "" if one.attempt is None else one.attempt,
            )
            for one in found
        ]
        put_page(table(("time", "step", "group", "result", "took", "attempt"), rows))
    else:
        fail(f"no client has traced message {message_id}")


@app.command()
@on_cluster
def waiting(target: Cluster, *, output: OutputOption = Output.TABLE) -> None:
    """Count the messages that wait for their time, by topic and broker."""
    found = target.run(lambda admin: admin.messages.waiting())
    if output is Output.JSON:
        rows = [{"topic": one.topic, "broker": one.broker, "waiting": one.count} for one in found]
        put_page(as_json(rows))
    else:
        cells = [(one.topic, one.broker, one.count) for one in found]
        put_page(table(("topic", "broker", "waiting"), cells))


@app.command()
@on_cluster
def recall(
    target: Cluster,
    topic: TopicArgument,
    handle: Annotated[str, typer.Argument(help="Handle that `send --deliver-at` printed.")],
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """Recall a message that waits for its time, so that it is never delivered."""

    async def work(session: Session, _: Admin) -> str:
        from inorder.client.send.producer import Producer

        async with Producer(session, group="inorder-send") as producer:
            return await producer.recall(topic, handle)

    id_ = target.run_session(work)
    say(output, f"message {id_} is recalled", topic=topic, message_id=id_, recalled=True)


def _put_for_programs(found: list[ReceivedMessage], output: Output, *, raw: bool) -> bool:
    """Print messages as JSON or raw, if so chosen; return whether they were printed."""
    if raw and output is Output.JSON:
        raise UsageError(RAW_AND_JSON)
    for one in found if raw else ():
        write_raw(one)
    if output is Output.JSON:
        put_page(as_json([as_object(one) for one in found]))
    return raw or output is Output.JSON


def _sheet(message: ReceivedMessage) -> str:
    rows = [
        ("topic", message.topic),
        ("queue", f"{message.queue.broker}/{message.queue.index}"),
        ("offset", message.offset),
        ("message id", message.message_id),
        ("born", show_time(message.born_at_ms)),
        ("stored", show_time(message.stored_at_ms)),
        *sorted(message.properties.items()),
    ]
    return f"{table(('name', 'value'), rows)}\n\n{body_page(message)}"
