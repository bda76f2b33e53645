"""The table of contents of the command line.

Only what the parser needs is imported here; each command imports what it runs, so that
`inorder version` does not load a broker.
"""

from __future__ import annotations

from typing import Annotated

import typer

from inorder.cli import (
    about,
    acl,
    backup,
    bench,
    check,
    cluster,
    console,
    consume,
    doctor,
    group,
    locks,
    message,
    offset,
    parked,
    pipeline,
    producer,
    send,
    serve,
    settings,
    tail,
    topic,
    user,
)
from inorder.cli.main import HELP

app = typer.Typer(
    name="inorder",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=HELP,
)


@app.callback()
def inorder(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=about.print_version
        ),
    ] = False,
) -> None:
    """Ordered messages: broker, name server and tools that speak Apache RocketMQ's protocol."""


app.command("up")(serve.up)
app.command("nameserver")(serve.nameserver)
app.command("broker")(serve.broker)
app.command("send")(send.send)
app.command("tail")(tail.tail)
app.command("consume")(consume.consume)
app.command("lag")(group.lag)
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(offset.app, name="offset")
app.add_typer(message.app, name="message")
app.add_typer(cluster.app, name="cluster")
app.add_typer(producer.app, name="producer")
app.add_typer(locks.app, name="locks")
app.add_typer(user.app, name="user")
app.add_typer(acl.app, name="acl")
app.add_typer(parked.app, name="parked")
app.command("redrive")(parked.redrive)
app.command("console")(console.console)
app.add_typer(bench.app, name="bench")
app.add_typer(pipeline.app, name="pipeline")
app.command("check")(check.check)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.command("doctor")(doctor.doctor)
app.command("demo")(about.demo)
app.command("version")(about.version)

config_app = typer.Typer(no_args_is_help=True, help="Look at settings.", rich_markup_mode=None)
config_app.command("show")(settings.show)
config_app.command("profiles")(settings.profiles)
app.add_typer(config_app, name="config")
