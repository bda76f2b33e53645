"""`inorder`: where the command line starts.

A server should start at once, so a small parser of its own reads `inorder up`, `nameserver` and
`broker`: loading all commands takes as long as half of a server's start. Everything else is in
`contents.py`.
"""

from __future__ import annotations

import sys
from typing import Final

import typer

HELP: Final = {"help_option_names": ["-h", "--help"]}
SERVERS: Final = ("up", "nameserver", "broker")


def main() -> None:
    """Run the command line."""
    if len(sys.argv) > 1 and sys.argv[1] in SERVERS:
        servers()()
    else:
        from inorder.cli.contents import app

        app()


def servers() -> typer.Typer:
    """Return the parser of the commands that start servers."""
    from inorder.cli import serve

    app = typer.Typer(
        name="inorder",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        add_completion=False,
        context_settings=HELP,
    )
    for name in SERVERS:
        app.command(name)(getattr(serve, name))
    return app


if __name__ == "__main__":
    main()
