"""The command line in this process. Its parser is made once; typer makes it again for each call."""

from __future__ import annotations

from functools import cache

import typer.testing
from typer.main import get_command

typer.testing._get_command = cache(get_command)

CliRunner = typer.testing.CliRunner
