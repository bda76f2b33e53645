"""Write the pages of docs/reference that are made from the code.

    python -m tools.make_reference

`tests/house/test_docs.py` fails when a page is older than its source.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from inorder.cli.contents import app
from inorder.config import BrokerConfig, ClientConfig, NameServerConfig
from inorder.settings import Setting, catalog
from inorder.settings.values import allowed
from tools.api_page import api_page
from tools.extensions_page import extensions_page

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"

_CONFIG_HEAD = """\
# Settings

Generated from `src/inorder/config.py` by `make docs`; do not edit.

A later layer overrides an earlier one: defaults < file < environment < flags. `inorder config show`
prints each value and its origin.

- **File**: `--config FILE`, either TOML with the tables `[broker]` and `[nameserver]`
  (`[broker.store]` for `store.…`), or a properties file of RocketMQ (`broker.conf`).
- **Environment**: `INORDER_BROKER__STORE__FLUSH_INTERVAL_MS` is `store.flush_interval_ms` of the
  broker, `INORDER_NAMESERVER__PORT` is `port` of the name server. RocketMQ's `NAMESRV_ADDR` is used
  if `INORDER_BROKER__NAMESRV` is not set.
- **Flags**: the options of `inorder up | nameserver | broker`, and `--set NAME=VALUE` for all
  others. For `inorder up`, `--set` means the broker; write `--set nameserver.NAME=VALUE` for the
  name server.

Every layer accepts inorder's and RocketMQ's names. Under RocketMQ's name a value has its unit:
`flushDiskType=SYNC_FLUSH` is `store.sync_flush=true`, `diskMaxUsedSpaceRatio=75` is a ratio of
0.75, `serverChannelMaxIdleTimeSeconds=120` is 120,000 ms. RocketMQ settings without a meaning for
inorder are listed once in a warning. Settings that ask for a missing feature (a slave, access
control, another store) are refused. An unknown name is an error that suggests the nearest name.

A client gets its settings in code: `Session(…, config=ClientConfig(send_timeout_ms=5000))`.
`inorder.settings.load(ClientConfig, file=…, env=os.environ)` reads them from the table
`[client]` and from
`INORDER_CLIENT__SEND_TIMEOUT_MS`. Credentials are no settings: `inorder.Credentials`, or
`INORDER_ACCESS_KEY` and `INORDER_SECRET_KEY` ([how](../howto/producing.md#credentials)).
"""


_SERVERS = (
    ("Broker", BrokerConfig),
    ("Name server", NameServerConfig),
    ("Client", ClientConfig),
)


def config_page() -> str:
    """Return the page of all settings."""
    parts = [_CONFIG_HEAD]
    for title, cls in _SERVERS:
        parts.append(f"## {title}\n")
        parts.append("| setting | default | what it is | allowed | RocketMQ |")
        parts.append("|---|---|---|---|---|")
        parts += [_config_row(setting) for setting in catalog(cls).settings.values()]
        parts.append("")
    return "\n".join(parts)


def _config_row(setting: Setting) -> str:
    default = str(setting.default).lower() if setting.type is bool else str(setting.default)
    cells = (
        f"`{setting.name}`",
        f"`{default}`" if default else "",
        setting.doc,
        "true, false" if setting.type is bool else allowed(setting),
        f"`{setting.rocketmq}`" if setting.rocketmq else "",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


_CLI_HEAD = """\
# Commands

Generated from `src/inorder/cli` by `make docs`; do not edit.

| exit code | means |
|---|---|
| 0 | done |
| 1 | failed, or (`check`, `demo`) order was not kept; one line on stderr says why |
| 2 | the command line or a setting is wrong, nothing was started |
| 130 | interrupted by Ctrl-C (`tail` and the servers exit with 0: Ctrl-C is how to stop them) |
| 141 | the reader of the output closed it, as in `\\| head` |

Errors are one line on stderr: what happened, to which object, what to do next. Logs and progress go
to stderr; stdout has only the command's result. Every command has `-o json`. There are no colours.

`inorder up`, `nameserver` and `broker` print one line on stdout when they accept connections:
`ready namesrv=HOST:PORT broker=HOST:PORT data=DIR` (a single server prints only its own fields).
Scripts can wait for this line. SIGTERM or SIGINT stops a server cleanly with exit code 0; a second
signal ends the process at once.
"""


def cli_page() -> str:
    """Return the page of all commands."""
    parts = [_CLI_HEAD]
    command: Any = typer.main.get_command(app)
    for words in _commands((), command):
        parts.append(f"## inorder {' '.join(words)}\n")
        parts.append(f"```text\n{_help_of(command, words)}\n```\n")
    return "\n".join(parts)


def _help_of(command: Any, words: tuple[str, ...]) -> str:
    """Return what `--help` prints; of the command itself, which takes long to make of an app."""
    runner = CliRunner()
    with runner.isolation(env={"COLUMNS": "100"}) as (printed, *_):
        name = runner.get_default_prog_name(command)
        command.main([*words, "--help"], prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        return printed.getvalue().decode().strip()


def _commands(words: tuple[str, ...], command: Any) -> list[tuple[str, ...]]:
    children = getattr(command, "commands", None)
    if children is None:
        return [words]
    return [found for name, child in children.items() for found in _commands((*words, name), child)]


PAGES = {
    "config.md": config_page,
    "commands.md": cli_page,
    "api.md": api_page,
    "../design/extensions.md": extensions_page,
}


def main() -> None:
    """Write every page."""
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        (REFERENCE / name).write_text(make())
        print(f"wrote docs/reference/{name}")


if __name__ == "__main__":
    main()
