"""Tables and JSON of the command line, and errors in words."""

from __future__ import annotations

import errno

import pytest
import typer

from inorder.cli.failures import says_errors
from inorder.cli.output import as_json, table
from inorder.errors import ConfigError, StoreLocked


def test_table_aligns_columns() -> None:
    """Columns are as wide as their widest cell; nothing trails."""
    text = table(("name", "on"), [("a", True), ("longer", None), ("", 3)])
    assert text == "NAME    ON\na       true\nlonger  -\n-       3"


def test_json_keeps_letters() -> None:
    """Text stays readable."""
    assert as_json({"a": "é"}) == '{\n  "a": "é"\n}'


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("no such setting"), 2, "inorder: no such setting"),
        (StoreLocked("data is in use"), 1, "inorder: data is in use"),
        (
            OSError(errno.EADDRINUSE, "port 1 is in use"),
            1,
            "inorder: port 1 is in use; stop what listens there or choose another port",
        ),
        (OSError(errno.EIO, "Input/output error", "/x"), 1, "inorder: /x: Input/output error"),
    ],
)
def test_errors_become_one_line(
    error: Exception, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What users can act on is one line on stderr and an exit code."""

    @says_errors
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as caught:
        command()
    assert caught.value.exit_code == code
    assert capsys.readouterr().err == line + "\n"


def test_bugs_stay_loud() -> None:
    """A bug of inorder is not shown as a mistake of the user."""

    @says_errors
    def command() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        command()
