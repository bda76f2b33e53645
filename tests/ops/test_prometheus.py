"""A real Prometheus scrapes a broker under load; dashboard and alerts find what they ask for."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from inorder import Park
from inorder.aio import Admin, Consumer, Producer
from inorder.broker.metrics.rules import CATALOGUE
from inorder.config import BrokerConfig, NameServerConfig
from inorder.embedded import Embedded
from tests.ops.expressions import ROOT, alerts, dashboard

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's prometheus"),
]

BAD = "bad"


@asynccontextmanager
async def prometheus(folder: Path, *targets: tuple[str, int] | None) -> AsyncIterator[str]:
    """Run Prometheus on a free port; it scrapes the targets every second."""
    addresses = [f"{one[0]}:{one[1]}" for one in targets if one is not None]
    shutil.copy(ROOT / "deploy/prometheus/inorder-alerts.yml", folder)
    (folder / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": ["inorder-alerts.yml"],
                "scrape_configs": [
                    {"job_name": "inorder", "static_configs": [{"targets": addresses}]}
                ],
            }
        )
    )
    probe = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port = probe.sockets[0].getsockname()[1]
    probe.close()
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220 - it starts in no time, and runs beside
            ["prometheus", f"--config.file={folder / 'prometheus.yml'}",
             f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    base = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(60):
            while True:
                with suppress(OSError):
                    await asyncio.to_thread(urllib.request.urlopen, f"{base}/-/ready", None, 5)
                    break
                await asyncio.sleep(0.2)
        yield base
    finally:
        process.terminate()
        process.wait(30)


def ask(base: str, path: str, **query: str) -> Any:
    """Ask the API of Prometheus."""
    url = f"{base}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        found = json.load(answer)
    assert found["status"] == "success", found
    return found["data"]


def values(base: str, expression: str) -> list[float]:
    """Return the values of an expression now, without NaN."""
    found = ask(base, "query", query=expression)["result"]
    return [one for one in (float(row["value"][1]) for row in found) if not math.isnan(one)]


async def load(namesrv: str, stop: asyncio.Event) -> None:
    """Send and consume by key, with a key that fails, an owner that changes, and a lease taken."""
    async with Producer(namesrv) as producer, Admin(namesrv) as admin:
        await producer.send("orders", b"0", key="first")

        def member(name: str) -> Consumer:
            consumer = Consumer(
                namesrv, group="billing", consume_from="first", instance=name, lease=2
            )

            @consumer.on("orders", order="key", on_failure=Park(attempts=1))
            async def handle(message: Any) -> None:
                if message.key == BAD:
                    raise ValueError("planted")

            return consumer

        async def produce() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                key = BAD if number % 50 == 0 else f"key-{number % 7}"
                await producer.send("orders", b"x" * 100, key=key)
                await asyncio.sleep(0.005)

        producing = asyncio.create_task(produce())
        async with member("steady"):
            while not stop.is_set():
                async with member("comes-and-goes"):
                    await asyncio.sleep(1.5)
                for lock in await admin.locks.list("billing"):
                    with suppress(Exception):
                        await admin.locks.release("billing", lock.queue)
                    break
                await asyncio.sleep(0.5)
        await producing


def test_every_query_returns_data(tmp_path: Path) -> None:
    """Each query of the dashboard has a value, and each alert's expression is evaluated."""

    async def scenario() -> None:
        config = BrokerConfig(port=0, data=str(tmp_path / "data"), admin_port=0)
        namesrv = NameServerConfig(port=0, data=str(tmp_path / "n"), admin_port=0)
        folder = tmp_path / "prometheus"
        folder.mkdir()
        async with Embedded(namesrv, config) as pair:
            watch = pair.broker.monitoring
            assert watch is not None
            addresses = (watch.address, pair.namesrv.admin_address)
            async with prometheus(folder, *addresses) as base:
                stop = asyncio.Event()
                working = asyncio.create_task(load(pair.namesrv_address, stop))
                missing: list[str] = ["not asked yet"]
                with suppress(TimeoutError):
                    async with asyncio.timeout(60):
                        while missing:
                            await asyncio.sleep(2)
                            assert not working.done(), working.exception()
                            missing = [
                                one for one in dashboard()
                                if not await asyncio.to_thread(values, base, one)
                            ]  # fmt: skip
                assert missing == []
                assert await asyncio.to_thread(values, base, "up") == [1, 1]
                rules = await asyncio.to_thread(ask, base, "rules")
                groups = [one for group in rules["groups"] for one in group["rules"]]
                assert {one["name"] for one in groups} == set(alerts())
                assert [one for one in groups if one["health"] == "err"] == []
                metadata = await asyncio.to_thread(ask, base, "metadata")
                assert not set(CATALOGUE) - set(metadata) - {f"{name}_total" for name in metadata}
                stop.set()
                await working

    asyncio.run(scenario())
