"""Before something is destroyed: ask, or be told with `--yes`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from inorder.errors import UsageError

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str, yes: bool) -> None:
    """Return if it is meant; without a terminal there is nobody to ask."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody is there to ask; give --yes to say so")
    typer.confirm(question, abort=True, err=True)
