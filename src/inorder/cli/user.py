"""`inorder user create | list | get | update | delete`: who may sign in.

A secret is never an argument, because others see the arguments of a process. `create` makes one and
prints it once; `--secret-stdin` reads one from the standard input.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inorder.cli.failures import fail
from inorder.cli.oncluster import (
    Cluster,
    OutputOption,
    YesOption,
    confirm,
    on_cluster,
)
from inorder.cli.output import Output, as_json, put_page, say, table

if TYPE_CHECKING:
    from inorder.access.rules import User
    from inorder.client.admin.users import UserView

app = typer.Typer(
    no_args_is_help=True,
    help="Users: who may sign in, where access is controlled. Brokers of ours and 5.3's.",
    rich_markup_mode=None,
)

NameArgument = Annotated[str, typer.Argument(help="User.", metavar="NAME")]
StdinOption = Annotated[
    bool, typer.Option("--secret-stdin", help="Read the secret from the first line of stdin.")
]


@app.command()
@on_cluster
def create(
    target: Cluster,
    name: NameArgument,
    *,
    super_: Annotated[bool, typer.Option("--super", help="May do everything.")] = False,
    disabled: Annotated[bool, typer.Option("--disabled", help="May not sign in yet.")] = False,
    session_required: Annotated[
        bool,
        typer.Option("--session-required", help="Only clients of ours, bound to a connection."),
    ] = False,
    secret_stdin: StdinOption = False,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Of a stopped broker: the first user.", metavar="DIR"),
    ] = None,
    key_file: Annotated[
        str, typer.Option("--key-file", help="With --data: access.key_file.", metavar="FILE")
    ] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a user, and print its new secret once. With --data, in the files of a stopped broker:
    so comes the first super user.
    """
    secret = _secret(secret_stdin, make=True)
    if data is not None:
        from inorder.access.rules import User, check_name, check_secret

        check_name(name)
        check_secret(name, secret)
        made = User(name, secret.encode(), super_, not disabled, session_required)
        _create_stopped(made, data, key_file)
    else:
        target.run(
            lambda admin: admin.users.create(
                name,
                secret,
                is_super=super_,
                enabled=not disabled,
                session_required=session_required,
            )
        )
    shown = {} if secret_stdin else {"secret": secret}
    text = f"user {name} created" + ("" if secret_stdin else f"; its secret, shown once: {secret}")
    say(output, text, user=name, super=super_, **shown)


def _create_stopped(user: User, data: str, key_file: str) -> None:
    """Put a user into the file of a broker that does not run."""
    from inorder.access.service import Accounts
    from inorder.access.storage import NAME, open_file
    from inorder.clock import SystemClock
    from inorder.disk import OsFiles

    files, folder = OsFiles(), Path(data)
    files.makedirs(folder)
    files.fsync_dir(folder.absolute().parent)
    try:
        with files.lock(folder / "lock", b""):
            file = open_file(files, folder / "inorder" / NAME, key_file)
            accounts = Accounts(file, SystemClock())
            if user.name in accounts.book.users:
                fail(f"user {user.name} is there already; `inorder user update` changes it")
            accounts.put_user(user, by="inorder user create", peer="")
    except BlockingIOError:
        fail(f"a broker runs in {data}; leave --data out to ask it")


@app.command("list")
@on_cluster
def list_(
    target: Cluster,
    containing: Annotated[
        str, typer.Argument(help="Only names with this in them.", metavar="[TEXT]")
    ] = "",
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the users."""
    _show(target.run(lambda admin: admin.users.list(containing)), output)


@app.command()
@on_cluster
def get(target: Cluster, name: NameArgument, *, output: OutputOption = Output.TABLE) -> None:
    """Show a user, once for each way in which brokers know it."""
    _show(target.run(lambda admin: admin.users.get(name)), output)


@app.command()
@on_cluster
def update(
    target: Cluster,
    name: NameArgument,
    *,
    super_: Annotated[bool | None, typer.Option("--super/--normal", help="Rights.")] = None,
    enable: Annotated[bool | None, typer.Option("--enable/--disable", help="Sign in.")] = None,
    session_required: Annotated[
        bool | None,
        typer.Option("--session-required/--no-session-required", help="Clients of ours only."),
    ] = None,
    new_secret: Annotated[
        bool, typer.Option("--new-secret", help="Make a new secret and print it once.")
    ] = False,
    secret_stdin: StdinOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change a user; a new secret or a lost right counts at once."""
    secret = _secret(secret_stdin, make=new_secret)
    target.run(
        lambda admin: admin.users.update(
            name,
            secret=secret or None,
            is_super=super_,
            enabled=enable,
            session_required=session_required,
        )
    )
    made = new_secret and not secret_stdin
    text = f"user {name} changed" + (f"; its secret, shown once: {secret}" if made else "")
    say(output, text, user=name, **({"secret": secret} if made else {}))


@app.command()
@on_cluster
def delete(
    target: Cluster,
    name: NameArgument,
    *,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a user with all rules."""
    confirm(f"Delete user {name} with all rules?", yes)
    target.run(lambda admin: admin.users.delete(name))
    say(output, f"user {name} deleted", user=name, deleted=True)


def _secret(from_stdin: bool, *, make: bool) -> str:
    """Return the secret of the standard input or a new one; empty: none is wanted."""
    if from_stdin:
        secret = sys.stdin.readline(1024).strip()
        if not secret:
            fail("--secret-stdin: there is no line on the standard input")
        return secret
    if not make:
        return ""
    from inorder.access.storage import new_secret

    return new_secret()


def _show(users: list[UserView], output: Output) -> None:
    if output is Output.JSON:
        rows = [
            {
                "user": one.name,
                "super": one.is_super,
                "enabled": one.enabled,
                "session_required": one.session_required,
                "brokers": list(one.brokers),
            }
            for one in users
        ]
        put_page(as_json(rows))
        return
    cells = [
        (
            one.name,
            "super" if one.is_super else "normal",
            one.enabled,
            one.session_required,
            ", ".join(one.brokers),
        )
        for one in users
    ]
    put_page(table(("user", "type", "enabled", "session required", "brokers"), cells))
