"""Every command, one by one: its form options, its help, how it fails and asks."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import typer

import inorder
from inorder.cli.contents import app
from inorder.cli.failures import says_errors
from inorder.cli.main import SERVERS, servers
from inorder.cli.oncluster import confirm
from inorder.errors import UsageError
from tests.kit.commands import CliRunner

ESCAPE = "\x1b"


def commands(words: tuple[str, ...], command: Any) -> dict[tuple[str, ...], Any]:
    """Return all commands by their words."""
    children = getattr(command, "commands", None)
    if children is None:
        return {words: command}
    found: dict[tuple[str, ...], Any] = {}
    for name, child in children.items():
        found |= commands((*words, name), child)
    return found


COMMANDS = commands((), typer.main.get_command(app))
DESTRUCTIVE = {
    ("parked", "drop"),
    ("topic", "delete"),
    ("topic", "resize"),
    ("group", "delete"),
    ("offset", "set"),
    ("producer", "drop"),
    ("locks", "release"),
    ("offset", "reset"),
    ("user", "delete"),
    ("acl", "delete"),
}


def test_the_verbs_that_were_promised_are_there() -> None:
    """Nouns and verbs of the issue."""
    wanted = "up nameserver broker topic group cluster send tail offset message lag bench demo"
    assert {words[0] for words in COMMANDS} >= {*wanted.split(), "config", "version", "check"}
    for words in (("config", "show"), ("config", "profiles"), ("bench", "send"), ("bench", "pull")):
        assert words in COMMANDS


@pytest.mark.parametrize("words", COMMANDS, ids="-".join)
def test_every_command_speaks_json_and_explains_itself(words: tuple[str, ...]) -> None:
    """-o table|json, a sentence of help, help for every option, no colours."""
    assert [one.opts for one in COMMANDS[words].params if not one.help] == []
    shown = CliRunner().invoke(app, [*words, "--help"])
    assert shown.exit_code == 0
    assert ESCAPE not in shown.stdout
    assert "-o, --output <table|json>" in shown.stdout
    assert len(COMMANDS[words].help or "") > 10


@pytest.mark.parametrize("words", sorted(COMMANDS), ids="-".join)
def test_destructive_verbs_want_a_yes(words: tuple[str, ...]) -> None:
    """Those that take something away ask, and only those."""
    options = {name for one in COMMANDS[words].params for name in one.opts}
    assert ({"--yes", "-y"} <= options) == (words in DESTRUCTIVE)


def test_without_a_terminal_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script must say --yes; a person is asked, and no means no."""
    confirm("Delete?", True)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    with pytest.raises(UsageError, match=r"Delete\? Nobody is there to ask; give --yes"):
        confirm("Delete?", False)
    asked: list[str] = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", lambda text, **_: asked.append(text))
    confirm("Delete?", False)
    assert asked == ["Delete?"]


def test_an_interrupt_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 130 and no word, as a shell expects."""

    @says_errors
    def command() -> None:
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as caught:
        command()
    assert caught.value.exit_code == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("command", SERVERS)
def test_the_short_parser_of_servers_says_the_same(command: str) -> None:
    """Which parser reads a command cannot be seen from outside."""
    runner = CliRunner()
    for words in (["--help"], ["--no-such-option"], ["--broker-port", "x"], ["word"]):
        short, whole = (runner.invoke(one, [command, *words]) for one in (servers(), app))
        assert (short.output, short.exit_code) == (whole.output, whole.exit_code)


@pytest.mark.parametrize("words", [("-h",), ("topic", "-h"), ("topic", "create", "-h")])
def test_h_is_help_everywhere(words: tuple[str, ...]) -> None:
    """`-h` does what `--help` does, on every level."""
    short = CliRunner().invoke(app, list(words))
    long = CliRunner().invoke(app, [*words[:-1], "--help"])
    assert short.exit_code == 0
    assert short.stdout == long.stdout
    assert short.stdout.startswith("Usage:")


def test_h_is_help_of_servers_too() -> None:
    """The small parser of servers knows it as well."""
    done = CliRunner().invoke(servers(), ["up", "-h"])
    assert (done.exit_code, "Start a name server and a broker" in done.stdout) == (0, True)


def test_version_is_one_line() -> None:
    """`--version` prints name and version, as other tools do."""
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"inorder {inorder.__version__}\n")
