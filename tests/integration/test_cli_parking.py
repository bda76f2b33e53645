"""`inorder parked` and `inorder redrive`, against a cluster in the process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import threading
from pathlib import Path

import pytest

import inorder
import inorder.testing
from inorder.cli.contents import app
from tests.integration.test_howto_pages import run
from tests.kit.cluster import Cluster
from tests.kit.commands import CliRunner

pytestmark = pytest.mark.slow

KEY = "order-13"


def park(namesrv: str, group: str = "billing") -> None:
    """Park a key with three messages, without a consumer."""
    with inorder.Producer(namesrv) as producer, inorder.Admin(namesrv) as admin:
        receipts = [producer.send("orders", str(n).encode(), key=KEY) for n in range(3)]
        first, *others = receipts
        answers = [
            admin.parked.park(group, first.queue, first.offset, KEY, error="ValueError: no"),
            *(admin.parked.park(group, one.queue, one.offset, KEY) for one in others),
        ]
        assert answers == ["parked"] * 3


COMMANDS = """\
set -e -o pipefail
inorder parked
inorder parked billing --topic orders
inorder parked show billing order-13
inorder redrive billing order-13 --dry-run
inorder parked drop billing order-13 --first --reason "customer 7 was deleted" --yes
inorder parked drop billing order-13 --reason "test data" --yes
"""


def test_commands_show_and_drop_what_is_parked(tmp_path: Path) -> None:
    """Each succeeds and says nothing on stderr; in the end nothing is left in the key."""
    command = tmp_path / "inorder"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m inorder.cli.main "$@"\n')
    command.chmod(0o755)

    async def story() -> tuple[int | None, str, str]:
        async with Cluster() as cluster:
            await asyncio.to_thread(park, cluster.namesrv)
            path = f"{tmp_path}:{os.environ['PATH']}"
            env = {"PATH": path, "INORDER_NAMESRV": cluster.namesrv}
            return await run("bash", "-c", COMMANDS, env=env)

    code, out, errors = asyncio.run(story())
    assert (code, errors) == (0, "")
    assert re.search(r"billing +orders +\S+ +\d+ +order-13 +3 ", out), out
    assert "first error: ValueError: no (tried 1 times)" in out
    assert "1 keys with 3 messages of group billing: would be redriven" in out
    assert "1 messages of group billing dropped: customer 7 was deleted" in out
    assert "2 messages of group billing dropped: test data" in out


def test_redrive_waits_for_the_consumer_and_tells_what_failed() -> None:
    """0 when all is live; 1 while something fails again, with the new error."""
    with inorder.testing.broker() as broker:
        park(broker.namesrv)
        env = {"INORDER_NAMESRV": broker.namesrv}

        def shell(*words: str) -> tuple[int, str]:
            done = CliRunner().invoke(app, list(words), env=env)
            return done.exit_code, done.output

        got: list[int] = []
        bad = threading.Event()
        bad.set()
        consumer = inorder.Consumer(broker.namesrv, group="billing", consume_from="first")

        @consumer.on("orders", order="key", on_failure=inorder.Park(attempts=0))
        def handle(message: inorder.ReceivedMessage) -> None:
            if message.body == b"1" and bad.is_set():
                raise KeyError("still")
            got.append(int(message.body))

        with consumer:
            code, out = shell("redrive", "billing", "--wait")
            assert (code, got) == (1, [0]), out
            assert f"still parked: {KEY}, 2 messages: KeyError: 'still'" in out
            found = json.loads(shell("parked", "billing", "-o", "json")[1])
            (one,) = found["keys"]
            assert (one["messages"], one["first_error"], one["last_error"]) == (
                2, "ValueError: no", "KeyError: 'still'",
            )  # fmt: skip
            bad.clear()
            code, out = shell("redrive", "billing", KEY, "--wait", "-o", "json")
            assert (code, got) == (0, [0, 1, 2]), out
            assert json.loads(shell("parked", "-o", "json")[1])["keys"] == []
        code, out = shell("parked", "show", "billing", KEY)
        assert code != 0
