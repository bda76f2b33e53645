"""`inorder acl set | list | get | delete`: what users may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inorder.cli.oncluster import Cluster, OutputOption, YesOption, confirm, on_cluster
from inorder.cli.output import Output, as_json, put_page, say, table

if TYPE_CHECKING:
    from inorder.client.admin.users import RuleView

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
