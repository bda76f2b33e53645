"""Where one scenario of one client is played: topic and group, processes, a trickle of sends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from bench.remoting import RemotingError
from tests.interop.driver import Message, by_queue
from tests.interop.rawclient import RawClient
from tests.interop.stock import QUEUES, Client, Kind, as_sent, make_topic, running

GET_CONSUMER_CONNECTIONS = 203
PAUSE_S = 0.02
WAIT_S = 60.0
BUSY_S = 10.0
"""What a machine may add to any time while it runs a dozen virtual machines on two cores."""
PROBES_FROM = 1_000_000


class Background:
    """Talks to a broker in a thread while a block runs; connects again if the broker was away."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self.ending.is_set():
            try:
                with RawClient(self.address) as raw:
                    self.talk(raw)
            except (OSError, RemotingError):
                self.ending.wait(0.2)

    def talk(self, raw: RawClient) -> None:
        """Talk over one connection until `ending` is set."""
        raise NotImplementedError


class Trickle(Background):
    """A producer in the background: numbers in turn to the queues, until it is told to end.

    What was not acknowledged is sent again, and order is judged on first copies.
    """

    def __init__(self, address: tuple[str, int], topic: str) -> None:
        super().__init__(address)
        self.sent = 0
        self._topic = topic

    def talk(self, raw: RawClient) -> None:
        """Send a message after each pause."""
        while not self.ending.wait(PAUSE_S):
            number = self.sent
            raw.send_message(self._topic, number % QUEUES, str(number).encode(), {"TAGS": "A"})
            self.sent = number + 1


class Stage:
    """One scenario, one client."""

    def __init__(
        self, name: str, kind: Kind, main: Client, processes: ExitStack, folder: Path
    ) -> None:
        self.name = name
        self.topic = name.replace(".", "_")
        self.kind, self.main = kind, main
        self.mode = "orderly" if kind.orderly else "concurrent"
        self.probes = 0
        self._processes, self._folder = processes, folder
        self._started = 0
        make_topic(main.server, self.topic)

    def start(self, name: str) -> Client:
        """Start another process; the instance of its consumer is called so."""
        self._started += 1
        folder = self._folder / f"{name}{self._started}"
        client = self._processes.enter_context(running(self.kind, self.main.server, folder))
        client.instance = f"{self.name}-{name}".replace(".", "_")
        return client

    def share(self, *clients: Client) -> None:
        """Let clients join the group, one after the other, and wait until they are members."""
        self.begin_at_zero()
        for count, client in enumerate(clients, 1):
            self.push(client)
            self.wait_members(count)

    def push(self, client: Client) -> None:
        """Let a client join the group of this scenario."""
        client.push(self._instance(client), self.topic, group=self.topic, mode=self.mode)

    def trickle(self) -> Trickle:
        """Return a producer for a block."""
        return Trickle(self.main.server.address, self.topic)

    def begin_at_zero(self) -> None:
        """Commit 0: a new group of the C++ client would begin at the end of a queue."""
        with RawClient(self.main.server.address) as raw:
            raw.create_group(self.topic)
            for queue in range(QUEUES):
                raw.commit(self.topic, self.topic, queue, 0)

    def wait_queues(self, client: Client, name: str) -> None:
        """Send probes until a consumer has got one from each queue."""
        with RawClient(client.server.address) as raw:

            def seen() -> bool:
                for queue in range(QUEUES):
                    number = PROBES_FROM + self.probes
                    raw.send_message(self.topic, queue, str(number).encode(), {"TAGS": "probe"})
                    self.probes += 1
                return len({m.queue for m in client.driver.messages("got", name)}) == QUEUES

            self.wait(seen, "a message from each queue", pause_s=0.25)

    def got(self, client: Client) -> list[Message]:
        """Return what a consumer got besides probes."""
        messages = client.driver.messages("got", self._instance(client))
        return [message for message in messages if message.number < PROBES_FROM]

    def wait_members(self, count: int) -> None:
        """Wait until the broker knows so many members of the group."""
        self.wait(lambda: self._members() == count, f"{count} members")

    def wait_share(self, client: Client, *, since: int = 0, within_s: float = WAIT_S) -> None:
        """Wait until a member has got something new from half of the queues."""
        half = QUEUES // 2
        self.wait(lambda: self._owned([client], since) >= half, "half of the queues", within_s)

    def wait_all_queues(
        self, client: Client, trickle: Trickle, *others: Client, within_s: float
    ) -> float:
        """Wait until clients have got something new from every queue; return the seconds."""
        began, since = time.monotonic(), trickle.sent
        clients = [client, *others]
        self.wait(lambda: self._owned(clients, since) == QUEUES, "all queues", within_s)
        return time.monotonic() - began

    def check_first_deliveries(self, clients: Sequence[Client], sent: int) -> None:
        """All that was sent was handled; first deliveries are in order if the client has order."""

        def missing() -> set[int]:
            return set(range(sent)) - {m.number for c in clients for m in self.got(c)}

        self.wait(lambda: not missing(), lambda: f"messages {sorted(missing())[:10]}")
        begun = [m for c in clients for m in c.driver.messages("begun", self._instance(c))]
        begun.sort(key=lambda message: message.begin_us)
        firsts = list({message.number: message for message in reversed(begun)}.values())[::-1]
        firsts.sort(key=lambda message: message.begin_us)
        if self.kind.orderly:
            assert by_queue(firsts) == as_sent(0, sent)

    def wait(
        self,
        condition: Callable[[], bool],
        what: str | Callable[[], str],
        within_s: float = WAIT_S,
        *,
        pause_s: float = 0.05,
    ) -> None:
        """Poll until something holds."""
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                words = what if isinstance(what, str) else what()
                raise AssertionError(f"{self.name}: {words}: not within {within_s} s")
            time.sleep(pause_s)

    def _owned(self, clients: Sequence[Client], since: int) -> int:
        return len({m.queue for c in clients for m in self.got(c) if m.number >= since})

    def _instance(self, client: Client) -> str:
        return client.instance or self.topic

    def _members(self) -> int:
        with RawClient(self.main.server.address) as raw:
            return len(member_ids(raw, self.topic))


def member_ids(raw: RawClient, group: str) -> set[str]:
    """Return the client ids of a group that the broker knows; the plain list is for members."""
    answer = raw.request(GET_CONSUMER_CONNECTIONS, {"consumerGroup": group})
    if answer.code != 0:
        return set()
    return {one["clientId"] for one in json.loads(answer.body)["connectionSet"]}
