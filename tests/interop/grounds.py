"""Where a pair of consumers is put to the test: ours or Apache RocketMQ, with a broker that can be
started again and a road to it that can die without a word.

Where a road shall die clients are given 127.0.0.2 as the broker's address. There a relay listens
and passes on: it can end a connection towards the client and keep its other half open, so that the
broker sees a client that says nothing any more, as after the loss of a router.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from bench.process import Child, free_ports
from tests.interop.rocketmq import OurBroker, OurNameServer, Running, real_broker, real_name_server

RELAY_HOST = "127.0.0.2"
CHUNK_BYTES = 1 << 16


class Relay:
    """Passes connections on to a broker."""

    def __init__(self, broker: tuple[str, int]) -> None:
        self._broker = broker
        self._links: list[tuple[socket.socket, socket.socket]] = []
        self._silenced: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listening = socket.create_server((RELAY_HOST, broker[1]))
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def links(self) -> int:
        """Return how many connections there have been."""
        with self._lock:
            return len(self._links)

    def silence(self, since: int) -> None:
        """End the connections that came after the first `since`, for their clients only."""
        with self._lock:
            chosen = self._links[since:]
            self._silenced |= {client for client, _ in chosen}
        for client, _ in chosen:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def cut(self, since: int) -> None:
        """End the connections that came after the first `since`, for both ends."""
        with self._lock:
            chosen = self._links[since:]
        for link in chosen:
            for end in link:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End everything."""
        self._listening.close()
        with self._lock:
            ends = [end for link in self._links for end in link]
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:  # closed
                return
            try:
                server = socket.create_connection(self._broker)
            except OSError:  # the broker is away
                client.close()
                continue
            with self._lock:
                self._links.append((client, server))
            for source, target in ((client, server), (server, client)):
                pump = threading.Thread(target=self._pump, args=(source, target), daemon=True)
                pump.start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        """Pass bytes on, and the end of them, unless the broker shall not hear of it."""
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                with suppress(OSError):
                    target.sendall(data)
        with self._lock:
            silenced = source in self._silenced
        if not silenced:
            with suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)


class Ground:
    """A name server, a broker and, if clients shall be `relayed`, the relay before it.

    A relay would hide that a broker which is away refuses connections.
    """

    def __init__(self, name: str, *, relayed: bool = False) -> None:
        self.name = name
        self._shown = RELAY_HOST if relayed else "127.0.0.1"
        self.directory = Path(tempfile.mkdtemp(prefix="inorder-ground-"))
        self._port = free_ports(1, apart=(-2, 0, 1))[0]
        self.address = ("127.0.0.1", self._port)
        ours = name == "inorder"
        names = OurNameServer(self.directory) if ours else real_name_server(self.directory)
        self.namesrv = names.address
        self._names: Child = names.child
        self._broker = self._start()
        self.relay = Relay(self.address)

    def restart(self) -> None:
        """Stop the broker as one should and start it again."""
        self._broker.child.stop()
        self._broker = self._start()

    def stop(self) -> None:
        """End all processes and delete the data."""
        self.relay.close()
        self._broker.child.kill()
        self._names.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self) -> Running:
        make = OurBroker if self.name == "inorder" else real_broker
        return make(
            self.directory,
            store=self.directory / "store",
            port=self._port,
            namesrv=self.namesrv,
            settings={"brokerIP1": self._shown},
        )
