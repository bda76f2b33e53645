"""Who this client is: address, process, client id, the ids of its messages, and credentials."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from inorder.clock import Clock
from inorder.credentials import Credentials
from inorder.errors import UsageError
from inorder.wire.ids import UniqueIds

# An address for documentation. A datagram socket "connected" to it sends nothing, but learns which
# of the machine's addresses faces the network.
_SOMEWHERE = ("192.0.2.1", 9)
_PER_MS = 50_000  # message ids that stay distinct within one millisecond


@dataclass(frozen=True, slots=True)
class Identity:
    """Distinguishes one client from all others. `random32` differs from start to start."""

    ip: str
    pid: int
    random32: int
    instance: str = ""

    @classmethod
    def of_this_process(cls) -> Identity:
        """Return a new identity of this process."""
        return cls(local_ip(), os.getpid(), random.SystemRandom().getrandbits(32))

    @property
    def client_id(self) -> str:
        """The id that brokers know, as RocketMQ writes it: `ip@pid#number`."""
        return f"{self.ip}@{self.instance or f'{self.pid}#{self.random32}'}"


def chosen_credentials(given: Credentials | None) -> Credentials | None:
    """Return the credentials given, else those of the environment. Raises ConfigError."""
    if given is not None and not isinstance(given, Credentials):
        raise UsageError(f"credentials= takes inorder.Credentials, not {type(given).__name__}")
    return given or Credentials.from_environment(os.environ)


class MessageIds:
    """Makes the unique ids of messages (UNIQ_KEY): one series per identity."""

    __slots__ = ("_clock", "at", "series")

    at: Callable[[int], str]
    """Returns an id that no other message has, for a caller that has read the clock."""

    def __init__(self, identity: Identity, clock: Clock) -> None:
        self.series = UniqueIds(identity.ip, identity.pid, identity.random32)
        self._clock = clock
        self.at = self.series.next

    def next(self) -> str:
        """Return an id that no other message has."""
        return self.series.next(self._clock.now_ms())

    def some(self, count: int, now_ms: int) -> list[str]:
        """Return many ids. Those beyond `_PER_MS` get the times of later milliseconds."""
        return [self.series.next(now_ms + at // _PER_MS) for at in range(count)]


def new_id(message_ids: MessageIds) -> str:
    """Return a unique id for a producer or a consumer: 16 hex digits."""
    return blake2b(message_ids.next().encode(), digest_size=8).hexdigest()


def local_ip() -> str:
    """Return the address of this machine; loopback if it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_SOMEWHERE)
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
