"""`inorder locks`, against a cluster in the process."""

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
from inorder.errors import NotFound
from inorder.model import TopicQueue
from tests.integration.test_howto_pages import run
from tests.kit.commands import CliRunner

pytestmark = pytest.mark.slow


COMMANDS = """\
set -e -o pipefail
inorder locks billing
inorder locks billing --topic orders -o json
inorder locks release billing orders 0 --yes
"""


def test_commands_show_the_owner_and_take_a_queue_away(tmp_path: Path) -> None:
    """The owner is shown, then its queue is taken away; it gets it again under a higher epoch."""
    command = tmp_path / "inorder"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m inorder.cli.main "$@"\n')
    command.chmod(0o755)
    with inorder.testing.broker() as broker:
        with inorder.Producer(broker.namesrv) as producer:
            producer.send("orders", b"created", key="order-1")
        handled = threading.Event()
        consumer = inorder.Consumer(broker.namesrv, group="billing", consume_from="first")

        @consumer.on("orders", order="queue")
        def handle(message: inorder.ReceivedMessage) -> None:
            handled.set()

        with consumer:
            assert handled.wait(20)
            env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "INORDER_NAMESRV": broker.namesrv}
            status, out, errors = asyncio.run(run("bash", "-c", COMMANDS, env=env))
            assert (status, errors) == (0, "")
            assert re.search(r"billing +orders +\S+ +0 +\S+ +\d+ +\S+ +\S+ +lease", out), out
            assert "queue 0 of orders on" in out
            assert "was taken from" in out


def test_who_holds_nothing_is_told() -> None:
    """Nothing to list is an empty table; nothing to take away is an error of one line."""
    with inorder.testing.broker() as broker:
        with inorder.Producer(broker.namesrv) as producer:
            producer.send("orders", b"x", key="k")
        env = {"INORDER_NAMESRV": broker.namesrv}
        listed = CliRunner().invoke(app, ["locks", "-o", "json"], env=env)
        assert (listed.exit_code, json.loads(listed.stdout)) == (0, [])
        words = ["locks", "release", "billing", "orders", "0", "--yes"]
        refused = CliRunner().invoke(app, words, env=env)
        assert refused.exit_code != 0
        assert "nobody in group billing owns queue 0 of orders" in refused.output
        with inorder.Admin(broker.namesrv) as admin:
            (queue, *_) = [one.queue for one in admin.topics.describe("orders").queues]
            assert isinstance(queue, TopicQueue)
            with pytest.raises(NotFound):
                admin.locks.release("billing", queue)
