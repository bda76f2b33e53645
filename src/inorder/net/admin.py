"""The admin port: metrics for Prometheus, and health for whoever starts and stops the process.

    /metrics     the numbers; `?families=a,b` only some of them
    /healthz     200: the loop of the process turns. For liveness probes, and nothing else
    /readyz      200: it serves; 503 and the reasons as JSON: it recovers, stops, is not registered
                 `?writes=1`: also 503 while it takes no messages (a full disk)
    /version     what runs, as JSON

Nothing on this port changes anything. A scrape is written in slices: after STEPS steps, or SLICE_S
seconds, the loop serves everybody else. One scrape is made at a time.
"""

from __future__ import annotations

import asyncio
import platform
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Final, Protocol

import inorder
from inorder.accelerated import native
from inorder.clock import stopwatch_s
from inorder.disk import process_usage
from inorder.exposition import OPENMETRICS, TEXT, Family, Page
from inorder.logs import get_logger
from inorder.net.http import HttpServer, Request, Response, as_json, text
from inorder.wire.ids import show_address

log = get_logger(__name__)

STEPS: Final = 128
SLICE_S: Final = 0.001
CHUNK_BYTES: Final = 32 * 1024
FAMILIES_MAX: Final = 64
"""Names in `?families=`."""

PROCESS: Final = (
    Family("process_cpu_seconds_total", "counter", "CPU time of the process"),
    Family("process_resident_memory_bytes", "gauge", "Resident memory of the process"),
    Family("process_open_fds", "gauge", "Open file descriptors of the process"),
    Family("process_max_fds", "gauge", "File descriptors that the process may open"),
    Family("process_start_time_seconds", "gauge", "Start of the process, in seconds since 1970"),
)
BUILD: Final = Family(
    "inorder_build_info", "gauge", "Always 1; the labels say what runs",
    ("version", "python", "loop", "native"),
)  # fmt: skip


def process_lines(page: Page, started_ms: int) -> None:
    """Write what any process of ours tells of itself."""
    used = process_usage()
    values = (
        used.cpu_seconds, used.resident_bytes, used.open_files, used.open_files_max,
        started_ms / 1000,
    )  # fmt: skip
    for family, value in zip(PROCESS, values, strict=True):
        page.begin(family)
        page.put(value)
    page.begin(BUILD)
    page.put(1, *_build())


def _build() -> tuple[str, str, str, str]:
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    compiled = "false" if native is None else "true"
    return inorder.__version__, platform.python_version(), loop, compiled


class Source(Protocol):
    """What an admin port shows."""

    def page(self, *, openmetrics: bool, only: frozenset[str]) -> Page:
        """Return an empty page."""
        ...

    def fill(self, page: Page) -> Iterator[None]:
        """Write all families, step by step."""
        ...

    def unready(self, *, writes: bool) -> Mapping[str, object]:
        """Return why the process does not serve; empty if it does."""
        ...


class AdminPort:
    """The admin port of one server."""

    def __init__(self, source: Source, *, name: str) -> None:
        self._source = source
        self._name = name
        self._scraping = asyncio.Lock()
        self.slices = 0
        """How often a scrape gave the loop back."""
        self.http = HttpServer(
            {
                ("GET", "/"): self._index,
                ("GET", "/metrics"): self._metrics,
                ("GET", "/healthz"): self._healthz,
                ("GET", "/readyz"): self._readyz,
                ("GET", "/version"): self._version,
            },
            name=f"admin port of {name}",
        )

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the address that was bound."""
        address = await self.http.start(host, port)
        log.info(
            "admin port of %s: metrics and health at http://%s", self._name, show_address(*address)
        )
        return address

    async def close(self) -> None:
        """Stop listening."""
        await self.http.close()

    async def _index(self, _: Request) -> Response:
        return text(
            f"inorder {inorder.__version__}: {self._name}\n/metrics /healthz /readyz /version"
        )

    async def _healthz(self, _: Request) -> Response:
        return text("ok")

    async def _readyz(self, request: Request) -> Response:
        reasons = self._source.unready(writes=request.query.get("writes") == "1")
        return as_json({"ready": not reasons, **reasons}, 503 if reasons else 200)

    async def _version(self, _: Request) -> Response:
        names = ("version", "python", "loop", "native")
        return as_json(dict(zip(names, _build(), strict=True)))

    async def _metrics(self, request: Request) -> Response:
        openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
        names = [one for one in request.query.get("families", "").split(",") if one]
        if len(names) > FAMILIES_MAX:
            return text(f"families= takes {FAMILIES_MAX} names", 400)
        page = self._source.page(openmetrics=openmetrics, only=frozenset(names))
        pieces = self._pieces(page)
        headers = {"Vary": "Accept, Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            pieces = _compressed(pieces)
            headers["Content-Encoding"] = "gzip"
        return Response(pieces, 200, OPENMETRICS if openmetrics else TEXT, headers)

    async def _pieces(self, page: Page) -> AsyncIterator[bytes]:
        """Make the page in slices; what is made goes out in pieces of some size."""
        async with self._scraping:
            made, size = [], 0
            async for piece in in_slices(page, self._source.fill(page), self):
                made.append(piece)
                size += len(piece)
                if size >= CHUNK_BYTES:
                    yield b"".join(made)
                    made, size = [], 0
            made.append(page.end())
            yield b"".join(made)


async def in_slices(
    page: Page, steps: Iterator[None], count: AdminPort | None = None
) -> AsyncIterator[bytes]:
    """Take the steps of a page, and give the loop back after each slice of them."""
    taken, ends_s = 0, stopwatch_s() + SLICE_S
    for _ in steps:
        taken += 1
        if taken >= STEPS or stopwatch_s() >= ends_s:
            yield page.take()
            if count is not None:
                count.slices += 1
            await asyncio.sleep(0)
            taken, ends_s = 0, stopwatch_s() + SLICE_S


async def _compressed(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)  # 31: with the head of gzip
    async for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()
