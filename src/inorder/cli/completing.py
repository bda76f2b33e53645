"""Completion of names in the shell: the topics and groups of the cluster that is meant.

A shell asks while somebody types, so it gets an answer soon or none; whatever fails is silent.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from inorder.cli.profiles import FIELDS
from inorder.cli.target import find_target
from inorder.errors import InorderError
from inorder.escaping import escaped

if TYPE_CHECKING:
    from inorder.client.admin import Admin

PATIENCE_SECONDS: Final = 2.0


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics that begin so."""
    return _complete(ctx, incomplete, "topics")


def complete_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the groups that begin so."""
    return _complete(ctx, incomplete, "groups")


def _complete(ctx: typer.Context, incomplete: str, noun: str) -> list[str]:
    import asyncio

    try:
        names = asyncio.run(_names(ctx, noun))
    except (InorderError, OSError, TimeoutError):
        return []
    return [name for name in names if name.startswith(incomplete) and name == escaped(name)]


async def _names(ctx: typer.Context, noun: str) -> list[str]:
    import asyncio

    from inorder.client.admin import Admin

    options = {name: ctx.params.get(name) for name in (*FIELDS, "profile")}
    target = find_target(options, os.environ)
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with Admin(target.name_servers, tls=target.context()) as admin:
            return await _ask(admin, noun)


async def _ask(admin: Admin, noun: str) -> list[str]:
    return await (admin.topics.names() if noun == "topics" else admin.groups.names())


TopicArgument = Annotated[
    str, typer.Argument(help="Topic.", metavar="TOPIC", autocompletion=complete_topics)
]
GroupArgument = Annotated[
    str, typer.Argument(help="Group.", metavar="GROUP", autocompletion=complete_groups)
]
