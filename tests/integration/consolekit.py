"""A console in the process, a cluster behind it, and a browser without scripts."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import inorder.aio
from inorder.cli.output import parse_time
from inorder.clock import SystemClock
from inorder.config import BrokerConfig, NameServerConfig
from inorder.console.app import Console
from inorder.console.sessions import Sessions
from inorder.disk import OsFiles
from inorder.embedded import Embedded
from tests.integration.brokerkit import SMALL

PATIENT_S = 30.0


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def text(self) -> str:
        """Return the words of the page, without its elements."""
        plain = re.sub(r"<(script|style).*?</\1>", " ", self.body, flags=re.S)
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", plain)).split())

    def csrf(self) -> str:
        """Return the token of the page's forms."""
        found = re.search(r'name="csrf" value="([^"]+)"', self.body)
        return found[1] if found else ""

    def form(self, label: str) -> dict[str, list[str]]:
        """Return the fields of the form with this label."""
        for one in re.findall(r"<form.*?</form>", self.body, flags=re.S):
            if f'aria-label="{label}"' in one:
                fields: dict[str, list[str]] = {}
                for each in re.findall(r"<input [^>]*>", one):
                    name, value = (re.search(rf'\b{word}="([^"]*)"', each) for word in
                                   ("name", "value"))  # fmt: skip
                    if name and "checkbox" not in each:
                        fields.setdefault(name[1], []).append(unescape(value[1] if value else ""))
                return fields
        raise AssertionError(f"no form {label}: {self.text[:500]}")

    def steps(self) -> list[str]:
        """Return the kinds of the steps of a story."""
        return [unescape(one) for one in re.findall(r'data-kind="([^"]+)"', self.body)]


@dataclass
class Browser:
    """Cookies, and requests as a browser makes them."""

    address: str
    cookies: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str, **headers: str) -> Answer:
        """Ask for a page."""
        return await self._ask("GET", path, b"", headers)

    async def post(self, path: str, fields: dict[str, Any], **headers: str) -> Answer:
        """Send a form, as this console's own page would; a header that is empty is left out."""
        body = urlencode(fields, doseq=True).encode()
        own = {
            "Origin": f"http://{self.address}",
            "Sec-Fetch-Site": "same-origin",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        return await self._ask("POST", path, body, {**own, **headers})

    async def submit(self, page: str, label: str, action: str, **fields: Any) -> Answer:
        """Fill in a form of a page, send it, and follow to the next page."""
        shown = await self.get(page)
        answer = await self.post(action, {**shown.form(label), **fields})
        return await self.follow(answer)

    async def follow(self, answer: Answer) -> Answer:
        """Go where an answer leads."""
        return await self.get(answer.headers["location"]) if answer.status == 303 else answer

    async def sign_in(self, token: str) -> None:
        """Sign in with the printed token."""
        answer = await self.post("/enter", {"token": token})
        assert answer.status == 303, answer.text

    async def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        fields = {"Host": self.address, "Connection": "close", "Content-Length": str(len(body))}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            fields["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        lines = [f"{name}: {value}" for name, value in fields.items() if value]
        writer.write("\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode() + body)
        try:
            async with asyncio.timeout(PATIENT_S):
                return self._read(await reader.read())
        finally:
            writer.close()

    def _read(self, data: bytes) -> Answer:
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        if "set-cookie" in headers:
            name, _, value = headers["set-cookie"].partition(";")[0].partition("=")
            self.cookies[name] = value
        return Answer(int(first.split()[1]), headers, body.decode())


@dataclass
class Site:
    """A cluster with a console."""

    pair: Embedded
    address: str
    token: str
    sessions: Sessions

    def browser(self) -> Browser:
        """Return a browser without cookies."""
        return Browser(self.address)

    async def operator(self) -> Browser:
        """Return a browser that is signed in by the token."""
        browser = self.browser()
        await browser.sign_in(self.token)
        return browser

    def admin(self, **options: Any) -> inorder.aio.Admin:
        """Return an Admin beside the console."""
        return inorder.aio.Admin(self.pair.namesrv_address, **options)


@asynccontextmanager
async def site(tmp_path: Path, *, access: Any = None, looks: bool = True) -> AsyncIterator[Site]:
    """Run both servers and a console; with `access`, servers with users."""
    more = {} if access is None else {"access": access}
    pair = Embedded(
        NameServerConfig(port=0, data=str(tmp_path / "names"), **more),
        BrokerConfig(
            port=0,
            data=str(tmp_path / "data"),
            store=SMALL,
            trace_topic=True,
            remote_config=True,
            **more,
        ),
        files=OsFiles(),
    )
    async with pair, console(pair.namesrv_address, looks=looks) as (address, sessions):
        yield Site(pair, address, sessions.token, sessions)


@asynccontextmanager
async def console(namesrv: str, *, looks: bool = True) -> AsyncIterator[tuple[str, Sessions]]:
    """Run a console of a cluster."""
    clock = SystemClock()
    sessions = Sessions(namesrv, clock, looks=looks)
    running = Console(sessions, clock, name_servers=namesrv, read_time=parse_time)
    host, port = await running.start("127.0.0.1", 0)
    try:
        yield f"{host}:{port}", sessions
    finally:
        await running.stop()


async def until(condition: Callable[[], Awaitable[Any]], seconds: float = PATIENT_S) -> Any:
    """Wait until something holds; return it."""
    async with asyncio.timeout(seconds):
        while True:
            found = await condition()
            if found:
                return found
            await asyncio.sleep(0.05)


async def live_events(address: str, path: str, count: int) -> list[tuple[str, Any]]:
    """Return the first events that a live page sends."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"GET /live?{urlencode({'at': path})} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode()
    )
    found: list[tuple[str, Any]] = []
    name = ""
    try:
        async with asyncio.timeout(PATIENT_S):
            while len(found) < count:
                line = (await reader.readline()).decode().rstrip("\n")
                assert line or name or not reader.at_eof(), "the stream has ended"
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    found.append((name, json.loads(line.removeprefix("data: "))))
    finally:
        writer.close()
    return found
