"""The well-behaved client: sends and pulls all the time, and writes down what it notices.

`python -m tests.garbage.witness HOST:PORT TOPIC` runs in a process of its own, so that the attack
does not slow down its clock. A line on stdin names a phase and starts its count; the answer on
stdout is what happened since the line before ("look" starts no count). It sends at fixed times,
whatever the answers do: a broker that stops for a second is seen by every request of that second.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from inorder.config import NetConfig
from inorder.credentials import Credentials
from inorder.net.connection import Connection
from inorder.wire.header import Command
from inorder.wire.record import decode

LOOK = "look"
INTERVAL_S = 0.005
SEND_TIMEOUT_MS = 30_000
SUSPEND_MS = 5000
GROUP = "witness_group"
NAMESRV_INTERVAL_S = 0.05


class Witness:
    """Sends numbered messages at fixed times and pulls them back."""

    def __init__(self, address: str, namesrv: str, topic: str) -> None:
        self._address = address
        self._namesrv = namesrv
        self._topic = topic
        self._sent_at: dict[int, float] = {}
        self._next_pulled = 0
        self._pending: set[asyncio.Task[None]] = set()
        self.reset()

    def reset(self) -> None:
        """Begin a phase."""
        self.sends_ms: list[float] = []
        self.deliveries_ms: list[float] = []
        self.routes_ms: list[float] = []
        self.own_ms: list[float] = []
        self.errors: list[str] = []

    def result(self) -> dict[str, Any]:
        """Return what happened in this phase."""
        return {
            "send_ms": _percentiles(self.sends_ms),
            "delivery_ms": _percentiles(self.deliveries_ms),
            "route_ms": _percentiles(self.routes_ms),
            "own_ms": _percentiles(self.own_ms),
            "waiting": len(self._sent_at),
            "errors": self.errors[:5],
            "error_count": len(self.errors),
        }

    async def run(self) -> None:
        """Send, pull and ask for routes until cancelled."""
        who = Credentials.from_environment(os.environ)
        sender = await Connection.open(self._address, NetConfig(), credentials=who)
        puller = await Connection.open(self._address, NetConfig(), credentials=who)
        namesrv = await Connection.open(self._namesrv, NetConfig(), credentials=who)
        await self._send(sender, -1, time.monotonic())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_all(sender))
            group.create_task(self._pull_all(puller))
            group.create_task(self._ask_all(namesrv))

    async def _send_all(self, connection: Connection) -> None:
        number = 0
        due = time.monotonic()
        while True:
            due += INTERVAL_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.own_ms.append((time.monotonic() - due) * 1000)
            self._sent_at[number] = due
            task = asyncio.create_task(self._send(connection, number, due))
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)
            number += 1

    async def _send(self, connection: Connection, number: int, due: float) -> None:
        fields = {
            "a": "witness", "b": self._topic, "c": "TBW102", "d": "1", "e": "0", "f": "0",
            "g": str(int(time.time() * 1000)), "h": "0", "i": "TAGS\x01w\x02", "j": "0",
            "k": "false", "m": "false",
        }  # fmt: skip
        request = Command.request(310, fields, str(number).encode())
        try:
            answer = await connection.request(request, SEND_TIMEOUT_MS)
        except Exception as error:  # whatever it is, it was noticed
            self.errors.append(f"send {number}: {error!r}")
            return
        if answer.code != 0 or answer.fields.get("queueOffset") != str(number + 1):
            self.errors.append(f"send {number}: code {answer.code} {answer.remark} {answer.fields}")
        self.sends_ms.append((time.monotonic() - due) * 1000)

    async def _pull_all(self, connection: Connection) -> None:
        offset = 1
        while True:
            fields = {
                "consumerGroup": GROUP, "topic": self._topic, "queueId": "0",
                "queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0",
                "suspendTimeoutMillis": str(SUSPEND_MS), "subscription": "*", "subVersion": "0",
                "expressionType": "TAG",
            }  # fmt: skip
            try:
                answer = await connection.request(Command.request(11, fields), SEND_TIMEOUT_MS)
            except Exception as error:
                self.errors.append(f"pull {offset}: {error!r}")
                return
            if answer.code == 19:
                continue
            if answer.code != 0:
                self.errors.append(f"pull {offset}: code {answer.code} {answer.remark}")
                await asyncio.sleep(0.1)
                continue
            offset += self._take(bytes(answer.body))
            if int(answer.fields["nextBeginOffset"]) != offset:
                self.errors.append(f"pull: next {answer.fields['nextBeginOffset']} for {offset}")

    def _take(self, body: bytes) -> int:
        at = count = 0
        now = time.monotonic()
        while at < len(body):
            record = decode(body, at)
            if record.body != str(self._next_pulled).encode():
                self.errors.append(f"pulled {record.body[:20]!r}, expected {self._next_pulled}")
            due = self._sent_at.pop(self._next_pulled, None)
            if due is not None:
                self.deliveries_ms.append((now - due) * 1000)
            self._next_pulled += 1
            at += record.size
            count += 1
        return count

    async def _ask_all(self, connection: Connection) -> None:
        while True:
            await asyncio.sleep(NAMESRV_INTERVAL_S)
            due = time.monotonic()
            request = Command.request(105, {"topic": self._topic})
            try:
                answer = await connection.request(request, SEND_TIMEOUT_MS)
            except Exception as error:
                self.errors.append(f"route: {error!r}")
                return
            if answer.code != 0 or b"broker-a" not in bytes(answer.body):
                self.errors.append(f"route: code {answer.code} {bytes(answer.body[:100])!r}")
            self.routes_ms.append((time.monotonic() - due) * 1000)


def _percentiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {"count": 0, "p50": 0.0, "p99": 0.0, "max": 0.0}
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "p50": round(ordered[len(ordered) // 2], 2),
        "p99": round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], 2),
        "max": round(ordered[-1], 2),
    }


async def _main(address: str, namesrv: str, topic: str) -> None:
    witness = Witness(address, namesrv, topic)
    running = asyncio.create_task(witness.run())
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    while line := await lines.get():
        if running.done():
            witness.errors.append(f"the client ended: {running.exception()!r}")
        print(json.dumps(witness.result()), flush=True)
        if line.strip() != LOOK:
            witness.reset()
    running.cancel()


class WitnessProcess:
    """The witness as the attack sees it."""

    def __init__(
        self, broker: tuple[str, int], namesrv: tuple[str, int],
        secrets: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """`secrets` are variables of its environment: its credentials."""
        root = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "tests.garbage.witness", f"{broker[0]}:{broker[1]}",
                f"{namesrv[0]}:{namesrv[1]}", "witness",
            ],
            cwd=root, env={"PYTHONPATH": str(root / "src"), **secrets}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def take(self) -> dict[str, Any]:
        """Return what it noticed since the last call, and begin a new count."""
        return self._ask("phase")

    def look(self) -> dict[str, Any]:
        """Return what it noticed so far, and go on counting."""
        return self._ask(LOOK)

    def _ask(self, word: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        result: dict[str, Any] = json.loads(self._process.stdout.readline())
        return result

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:4]))
