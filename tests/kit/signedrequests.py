"""What reaches the servers of this process, checked: is every request of a client signed?

`inspected()` watches all accepted connections. Each request must have the signature that is
computed again from the bytes that came. Connections get a session with the answers that may give
one, as servers with access control give it; from then on each request must have the mark of that
session, under a higher counter.

A broker's own requests (its registration) are not a client's, and are left out. Loaded as a plugin
(`pytest -p tests.kit.signedrequests`), with credentials in the environment, it inspects all tests.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from inorder.credentials import Credentials
from inorder.net import accepted
from inorder.wire.codes import RequestCode
from inorder.wire.extensions import BOUND, COUNTER, SESSION, ExtensionCode
from inorder.wire.frame import FrameDecoder, RawFrame
from inorder.wire.header import Command, decode_command
from inorder.wire.signature import AK, SIGNATURE, bound, content, sign

GIVES_SESSION = {
    RequestCode.HEART_BEAT,
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    ExtensionCode.PRODUCER_HELLO,
}
BROKERS_OWN = {RequestCode.REGISTER_BROKER, RequestCode.QUERY_DATA_VERSION}


class Inspection:
    """The requests of all connections."""

    def __init__(self, credentials: Credentials, *, sessions: bool = True) -> None:
        self.credentials = credentials
        self.sessions = sessions
        self.of: dict[accepted.ServerConnection, Inspected] = {}

    @property
    def connections(self) -> list[Inspected]:
        """The connections, in the order in which they spoke first."""
        return list(self.of.values())

    @property
    def of_clients(self) -> list[Inspected]:
        """The connections that no broker made."""
        return [one for one in self.connections if not one.of_a_broker]

    @property
    def codes(self) -> Counter[int]:
        """How often each code came from a client."""
        return sum((one.codes for one in self.of_clients), Counter[int]())

    @property
    def oneways(self) -> Counter[int]:
        """How often each code came without asking for an answer."""
        return sum((one.oneways for one in self.of_clients), Counter[int]())

    @property
    def in_sessions(self) -> Counter[int]:
        """How often each code came under a session."""
        return sum((one.in_session for one in self.of_clients), Counter[int]())

    @property
    def wrong(self) -> list[str]:
        """What was wrong, line by line."""
        return [line for one in self.of_clients for line in one.wrong]


class Inspected(FrameDecoder):
    """The decoder of one accepted connection, which looks at what it decodes."""

    __slots__ = (
        "asked", "codes", "counter", "in_session", "inspection", "of_a_broker", "oneways",
        "session", "wrong",
    )  # fmt: skip

    def __init__(self, inspection: Inspection, *args: Any) -> None:
        super().__init__(*args)
        self.inspection = inspection
        self.of_a_broker = False
        self.wrong: list[str] = []
        self.codes: Counter[int] = Counter()
        self.oneways: Counter[int] = Counter()
        self.in_session: Counter[int] = Counter()
        self.asked: set[int] = set()
        self.session = ""
        self.counter = 0

    def receive_data(self, data: bytes) -> list[RawFrame]:
        """Return the frames, inspected."""
        frames = super().receive_data(data)
        for frame in frames:
            self._inspect(decode_command(frame), frame)
        return frames

    def give(self, answer: Command) -> None:
        """Put the session into an answer that may give one."""
        if answer.request_id in self.asked:
            self.asked.discard(answer.request_id)
            if not self.session:
                self.session = f"{id(self):032x}"
            answer.fields[SESSION] = self.session

    def _inspect(self, command: Command, frame: RawFrame) -> None:
        if command.is_response:
            if SIGNATURE in command.fields:
                self.wrong.append(f"a signed answer to {command.code}")
            return
        if command.code in BROKERS_OWN:
            self.of_a_broker = True
        self.codes[command.code] += 1
        self.oneways[command.code] += command.is_oneway
        if command.code in GIVES_SESSION and self.inspection.sessions and not command.is_oneway:
            self.asked.add(command.request_id)
        problem = self._problem(command, frame)
        if problem is not None:
            self.wrong.append(f"request {command.code} {problem}: {sorted(command.fields)}")

    def _problem(self, command: Command, frame: RawFrame) -> str | None:
        fields, who = command.fields, self.inspection.credentials
        secret = who.secret_key.encode()
        if fields.get(AK) != who.access_key:
            return "has no access key"
        if len(json.loads(frame[1], object_pairs_hook=_pairs)) != len(fields):
            return "has a field twice"
        if fields.get(SIGNATURE) != sign(secret, content(fields, frame[2])):
            return "has another signature"
        if SESSION not in fields:
            # The answer that gave the session may not have arrived yet.
            return "left its session" if self.counter else None
        if fields[SESSION] != self.session:
            return "is of another session"
        counter = int(fields[COUNTER])
        expected = bound(secret, self.session, counter, command.code, fields, len(frame[2]))
        if fields[BOUND] != expected:
            return "has another mark"
        if counter != self.counter + 1:
            return f"has the counter {counter} after {self.counter}"
        self.counter = counter
        self.in_session[command.code] += 1
        return None


def _pairs(pairs: list[tuple[str, Any]]) -> Any:
    """Return the pairs of `extFields` as they are, also repeated ones."""
    found = dict(pairs)
    return found["extFields"] if "opaque" in found else pairs


@contextmanager
def inspected(credentials: Credentials, *, sessions: bool = True) -> Iterator[Inspection]:
    """Inspect the connections that servers of this process accept in the block."""
    inspection = Inspection(credentials, sessions=sessions)
    server_side = accepted.ServerConnection
    decoder, send, receive = accepted.FrameDecoder, server_side.send, server_side.data_received
    speaking: list[accepted.ServerConnection] = []

    def decode(*args: Any) -> Inspected:
        # A connection that is idle for long drops its decoder and makes another one.
        (connection,) = speaking
        return inspection.of.setdefault(connection, Inspected(inspection, *args))

    def received(connection: accepted.ServerConnection, data: bytes) -> None:
        speaking[:] = [connection]
        receive(connection, data)

    def give(connection: accepted.ServerConnection, command: Command) -> None:
        if command.is_response and connection in inspection.of:
            inspection.of[connection].give(command)
        send(connection, command)

    accepted.FrameDecoder = decode  # type: ignore[assignment, misc]
    server_side.send = give  # type: ignore[method-assign]
    server_side.data_received = received  # type: ignore[method-assign]
    try:
        yield inspection
    finally:
        accepted.FrameDecoder = decoder  # type: ignore[misc]
        server_side.send = send  # type: ignore[method-assign]
        server_side.data_received = receive  # type: ignore[method-assign]


_run: list[Any] = []


def pytest_configure() -> None:
    """Inspect a whole run, as a plugin."""
    credentials = Credentials.from_environment(os.environ)
    assert credentials is not None, "set INORDER_ACCESS_KEY and INORDER_SECRET_KEY"
    block = inspected(credentials)
    _run.extend((block, block.__enter__()))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what came, and what of it was wrong."""
    block, inspection = _run
    block.__exit__(None, None, None)
    terminalreporter.write_line(f"signed requests by code: {sorted(inspection.codes.items())}")
    terminalreporter.write_line(f"in sessions: {sorted(inspection.in_sessions.items())}")
    for line in Counter(inspection.wrong).most_common(40):
        terminalreporter.write_line(f"WRONG {line}")
