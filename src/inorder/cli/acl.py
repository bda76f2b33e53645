"""`inorder acl set | list | get | delete | import`: what users may do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from inorder.cli.failures import fail
from inorder.cli.oncluster import Cluster, OutputOption, YesOption, confirm, on_cluster
from inorder.cli.output import Output, as_json, put_line, put_page, say, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from inorder.access.plainacl import Remark
    from inorder.access.rules import Book
    from inorder.client.admin import Admin
    from inorder.client.admin.users import RuleView

_CREATED: Final = "created"
_THERE: Final = "is there already, and stays as it is"

app = typer.Typer(
    no_args_is_help=True,
    help="Rules: what users may do, where access is controlled.",
    rich_markup_mode=None,
)

UserArgument = Annotated[str, typer.Argument(help="User.", metavar="USER")]
DefaultOption = Annotated[
    bool, typer.Option("--default", help="Counts where no other rule matches.")
]


@app.command("set")
@on_cluster
def set_(
    target: Cluster,
    user: UserArgument,
    resources: Annotated[
        list[str],
        typer.Argument(help="Topic:NAME, Group:PREFIX*, Cluster:*, or *.", metavar="RESOURCE..."),
    ],
    *,
    actions: Annotated[
        str,
        typer.Option("--actions", help="Pub, Sub, Create, Update, Delete, Get, List; or All."),
    ],
    deny: Annotated[bool, typer.Option("--deny", help="Refuse instead of allow.")] = False,
    source: Annotated[
        list[str] | None,
        typer.Option("--source", help="Only from this address or network; repeatable."),
    ] = None,
    default: DefaultOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Add a rule for each resource, or replace the one that is there."""
    target.run(
        lambda admin: admin.acls.set(
            user,
            resources,
            [one for one in actions.split(",") if one.strip()],
            allow=not deny,
            sources=source or (),
            default=default,
        )
    )
    what = "is denied" if deny else "may do"
    say(
        output,
        f"user {user} {what} {actions} on {', '.join(resources)}",
        user=user,
        resources=resources,
        actions=actions,
        allow=not deny,
    )


@app.command("list")
@on_cluster
def list_(
    target: Cluster,
    *,
    user: Annotated[str, typer.Option("--user", help="Users with this in their name.")] = "",
    resource: Annotated[str, typer.Option("--resource", help="Resources with this in them.")] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """List the rules of all users."""
    _show(target.run(lambda admin: admin.acls.list(user, resource)), output)


@app.command()
@on_cluster
def get(target: Cluster, user: UserArgument, *, output: OutputOption = Output.TABLE) -> None:
    """Show the rules of a user."""
    _show(target.run(lambda admin: admin.acls.get(user)), output)


@app.command()
@on_cluster
def delete(
    target: Cluster,
    user: UserArgument,
    resource: Annotated[
        str | None, typer.Argument(help="Without, all rules.", metavar="[RESOURCE]")
    ] = None,
    *,
    default: DefaultOption = False,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete the rule for a resource, or all rules of a user."""
    if resource is None:
        confirm(f"Delete all rules of user {user}?", yes)
    target.run(lambda admin: admin.acls.delete(user, resource, default=default))
    what = "all rules" if resource is None else f"the rule for {resource}"
    say(output, f"{what} of user {user} deleted", user=user, resource=resource, deleted=True)


@app.command("import")
@on_cluster
def import_(
    target: Cluster,
    files: Annotated[
        list[Path],
        typer.Argument(
            help="plain_acl.yml, acl/*.yml, or RocketMQ's home with conf/.", metavar="FILE..."
        ),
    ],
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only report; nothing is asked and nothing changed.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Of a stopped broker: into its files.", metavar="DIR"),
    ] = None,
    key_file: Annotated[
        str, typer.Option("--key-file", help="With --data: access.key_file.", metavar="FILE")
    ] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Make users and rules of RocketMQ 4's ACL files, with their keys. A user who is there already
    stays as it is. Each line of the files that is not kept as it stands is reported.
    """
    from inorder.access.plainfiles import read_given

    book, remarks = read_given(files)
    outcomes = dict.fromkeys(book.users, "would be created")
    if not dry_run and data is not None:
        outcomes = _import_stopped(book, data, key_file)
    elif not dry_run:
        outcomes = target.run(lambda admin: _import(admin, book))
    _report(book, outcomes, remarks, output)


async def _import(admin: Admin, book: Book) -> dict[str, str]:
    """Create each user with its rules, what is denied first; return what became of it."""
    from inorder.access.rules import PolicyType, action_names
    from inorder.errors import BrokerError

    outcomes = {}
    for name, user in book.users.items():
        try:
            await admin.users.create(name, user.secret.decode(), is_super=user.is_super)
        except BrokerError as error:
            if "is existed" not in error.remark:
                raise
            outcomes[name] = _THERE
            continue
        alike: dict[Any, list[str]] = {}
        for one in sorted(book.entries.get(name, ()), key=lambda one: one.allow):
            kind = one.allow, one.actions, one.sources, one.type
            alike.setdefault(kind, []).append(str(one.resource))
        for (allow, actions, sources, policy), resources in alike.items():
            await admin.acls.set(
                name,
                resources,
                action_names(actions),
                allow=allow,
                sources=map(str, sources),
                default=policy is PolicyType.DEFAULT,
            )
        outcomes[name] = _CREATED
    return outcomes


def _import_stopped(book: Book, data: str, key_file: str) -> dict[str, str]:
    """Put users and rules into the file of a broker that does not run, all or none."""
    from inorder.access.plainbook import merged
    from inorder.access.rules import Book, Version
    from inorder.access.storage import NAME, open_file
    from inorder.clock import SystemClock
    from inorder.disk import OsFiles

    files, folder = OsFiles(), Path(data)
    files.makedirs(folder)
    try:
        with files.lock(folder / "lock", b""):
            file = open_file(files, folder / "inorder" / NAME, key_file)
            own = file.load() or Book()
            both = merged(own, book)
            version = Version(SystemClock().now_ms(), own.version.counter + 1)
            file.save(Book(both.users, both.entries, version))
    except BlockingIOError:
        fail(f"a broker runs in {data}; leave --data out to ask it")
    return {name: _THERE if name in own.users else _CREATED for name in book.users}


def _report(
    book: Book, outcomes: Mapping[str, str], remarks: Sequence[Remark], output: Output
) -> None:
    if output is Output.JSON:
        users = [
            {
                "user": name,
                "super": user.is_super,
                "rules": len(book.entries.get(name, ())),
                "outcome": outcomes[name],
            }
            for name, user in book.users.items()
        ]
        lines = [
            {
                "file": one.place.file,
                "line": one.place.line,
                "column": one.place.column,
                "text": one.text,
            }
            for one in remarks
        ]
        put_page(as_json({"users": users, "remarks": lines}))
        return
    cells = [
        (name, "super" if user.is_super else "normal", len(book.entries.get(name, ())),
         outcomes[name])
        for name, user in book.users.items()
    ]  # fmt: skip
    put_page(table(("user", "type", "rules", "outcome"), cells))
    for one in remarks:
        put_line(str(one))


def _show(rules: list[RuleView], output: Output) -> None:
    if output is Output.JSON:
        rows = [
            {
                "user": one.user,
                "resource": one.resource,
                "actions": list(one.actions),
                "allow": one.allow,
                "sources": list(one.sources),
                "default": one.default,
                "brokers": list(one.brokers),
            }
            for one in rules
        ]
        put_page(as_json(rows))
        return
    cells = [
        (
            one.user,
            one.resource,
            ", ".join(one.actions),
            "allow" if one.allow else "deny",
            ", ".join(one.sources),
            "default" if one.default else "",
            ", ".join(one.brokers),
        )
        for one in rules
    ]
    headings = ("user", "resource", "actions", "decision", "sources", "type", "brokers")
    put_page(table(headings, cells))
