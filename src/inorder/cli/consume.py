"""`inorder consume app:consumer`: run a consumer that a module defines, until a signal comes.

SIGINT or SIGTERM stops it cleanly: handlers end, offsets are committed, queues are released. A
second signal does not wait. At the end the command prints its counts.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inorder.cli.failures import EXIT_FAILED, LogLevel, says_errors, setup_logging
from inorder.cli.output import Output, as_json, put_line, put_page, table
from inorder.errors import ConnectFailed, UsageError

if TYPE_CHECKING:
    from inorder.client.consume.consumer import Consumer as AsyncConsumer
    from inorder.client.consume.consumer import ConsumerStatistics
    from inorder.sync.consumer import Consumer


@says_errors
def consume(
    target: Annotated[
        str,
        typer.Argument(
            help="Module and name of a Consumer, or of a function that returns one.",
            metavar="MODULE:NAME",
        ),
    ],
    *,
    app_dir: Annotated[
        str, typer.Option("--app-dir", help="Where the module is looked for.")
    ] = ".",
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="What to log.")
    ] = LogLevel.INFO,
    output: Annotated[Output, typer.Option("-o", "--output", help="Form.")] = Output.TABLE,
) -> None:
    """Run a consumer until SIGINT or SIGTERM, then say what it did."""
    setup_logging(log_level)
    consumer = find_consumer(target, app_dir)
    try:
        statistics = _run(consumer)
    except ConnectFailed as error:
        raise ConnectFailed(
            f"{error}; start a server with `inorder up`, or give the consumer another name server "
            "(INORDER_NAMESRV or NAMESRV_ADDR counts where it names none)"
        ) from error
    put_page(_shown(statistics, output), flush=True)
    if statistics.running:
        put_line(
            f"inorder: {statistics.running} handlers did not end in time; what they did is not "
            "committed (consumer.close_timeout_ms)",
            err=True,
        )
        raise typer.Exit(EXIT_FAILED)


def find_consumer(target: str, app_dir: str) -> Consumer | AsyncConsumer:
    """Import a module and return its consumer. Raises UsageError that says what is wrong."""
    import importlib

    module_name, colon, name = target.partition(":")
    if not module_name or not colon or not name:
        raise UsageError(f"{target!r}: write MODULE:NAME, as in app:consumer")
    if app_dir not in sys.path:
        sys.path.insert(0, app_dir)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there; something that it imports is not
        raise UsageError(
            f"there is no module {module_name} in {app_dir!r}; go to its folder, or name that "
            "with --app-dir"
        ) from None
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"module {module_name} has no {name}; {_hint(module)}")
        found = getattr(found, part)
    if callable(found) and not _is_consumer(found):
        found = found()
    if not _is_consumer(found):
        raise UsageError(f"{target} is no Consumer but {found!r:.80}; {_hint(module)}")
    consumer: Consumer | AsyncConsumer = found
    return consumer


def _hint(module: Any) -> str:
    names = sorted(name for name, value in vars(module).items() if _is_consumer(value))
    return f"its consumers are: {', '.join(names)}" if names else "it has no consumer"


def _is_consumer(value: object) -> bool:
    from inorder.client.consume.consumer import Consumer as AsyncConsumer
    from inorder.sync.consumer import Consumer

    return isinstance(value, AsyncConsumer | Consumer)


def _run(consumer: Consumer | AsyncConsumer) -> ConsumerStatistics:
    from inorder.sync.consumer import Consumer

    if isinstance(consumer, Consumer):
        consumer.run()
    else:
        import asyncio

        asyncio.run(_run_async(consumer))
    return consumer.statistics()


async def _run_async(consumer: AsyncConsumer) -> None:
    import asyncio
    import signal

    loop = asyncio.get_running_loop()
    running = loop.create_task(consumer.run(), name="consumer")

    def stop(number: int) -> None:
        loop.remove_signal_handler(number)  # a second one ends the process
        running.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        await running
    except asyncio.CancelledError:
        if not running.cancelled():
            raise


def _shown(statistics: ConsumerStatistics, output: Output) -> str:
    values = {field.name: getattr(statistics, field.name) for field in fields(statistics)}
    queues = {f"{q.topic}/{q.broker}/{q.index}": at for q, at in statistics.queues.items()}
    if output is Output.JSON:
        return as_json(values | {"queues": queues})
    del values["queues"]
    return table(("what", "count"), list(values.items()))
