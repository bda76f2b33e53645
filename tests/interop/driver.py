"""A RocketMQ client as a process that is told what to do: commands in, events out.

The lines are described in clients/README.md.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

VERB_TIMEOUT_S = 60.0
Fields = dict[str, str]


class Event(NamedTuple):
    """One line of a driver."""

    kind: str
    fields: Fields


class Message(NamedTuple):
    """A message as a client showed it."""

    number: int
    queue: int
    offset: int
    name: str = ""
    tag: str = ""
    at_ms: int = 0
    topic: str = ""
    tries: int = 0
    """How often it had been delivered before, as the client says."""
    begin_us: int = 0
    end_us: int = 0


class DriverFailed(AssertionError):
    """The client said no, or nothing in time."""


class Driver:
    """One driver process. It ends when its input does, so also when the tests die."""

    def __init__(self, name: str, command: Sequence[str], namesrv: str, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._events: list[Event] = []
        self._by_kind: dict[str, list[Fields]] = defaultdict(list)
        self._changed = threading.Condition()
        self._one_verb = threading.Lock()
        self._log = directory / f"{name}.log"
        # The libraries keep logs and broadcast offsets below the user's home.
        self.name = name
        self.process = subprocess.Popen(
            [*command, namesrv],
            cwd=directory,
            env=os.environ | {"HOME": str(directory), "NAMESRV_ADDR": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(target=self._read, name=f"read {name}", daemon=True)
        self._reader.start()
        self.wait(lambda: any(e.kind == "ready" for e in self._events), "ready")

    @property
    def alive(self) -> bool:
        """Tell whether the process runs."""
        return self.process.poll() is None

    def do(self, verb: str, *, timeout_s: float = VERB_TIMEOUT_S, **options: object) -> list[Event]:
        """Run a verb to its end; return what it said meanwhile. One verb runs at a time."""
        with self._one_verb:
            return self._do(verb, timeout_s, options)

    def _do(self, verb: str, timeout_s: float, options: Mapping[str, object]) -> list[Event]:
        with self._changed:
            begin = len(self._events)
        words = [verb, *(f"{name}={value}" for name, value in options.items())]
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words).encode() + b"\n")
        self.process.stdin.flush()

        def ended() -> bool:
            return any(e.kind in {"done", "failed"} for e in self._events[begin:])

        self.wait(ended, f"end of {verb}", timeout_s=timeout_s)
        with self._changed:
            said = self._events[begin:]
        for event in said:
            if event.kind == "failed":
                reason = base64.b64decode(event.fields["reason"]).decode(errors="replace")
                raise DriverFailed(f"{self.name}: {verb}: {reason}\n{self.tail()}")
        return said

    def wait(
        self, condition: Callable[[], bool], what: str, *, timeout_s: float = VERB_TIMEOUT_S
    ) -> None:
        """Wait for events until something holds."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0 or not self.alive:
                    why = f"not within {timeout_s} s" if self.alive else "it ended"
                    raise DriverFailed(f"{self.name}: {what}: {why}\n{self.tail()}")
                self._changed.wait(min(left, 0.5))

    def messages(self, kind: str, name: str | None = None) -> list[Message]:
        """Return the messages of one kind of event, of one consumer, in the order they came."""
        with self._changed:
            fields = list(self._by_kind[kind])
        return [message_of(one) for one in fields if name is None or one["name"] == name]

    def latest(self, kind: str, count: int) -> list[Message]:
        """Return the last messages of one kind of event."""
        with self._changed:
            return [message_of(fields) for fields in self._by_kind[kind][-count:]]

    def said(self, kind: str) -> list[Fields]:
        """Return the fields of one kind of event."""
        with self._changed:
            return list(self._by_kind[kind])

    def kill(self) -> None:
        """End it at once, without a word to anybody, and read what it had said."""
        self.process.kill()
        self.process.wait()
        self._reader.join(5)

    def freeze(self) -> None:
        """Stop it where it is; its connections stay open."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def tail(self) -> str:
        """Return the end of what the library itself printed."""
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""

    def end(self) -> None:
        """Close its input, which ends it; insist after a while."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(5)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self._reader.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self._log.open("w") as log:
            for raw in self.process.stdout:
                line = raw.decode(errors="replace").rstrip("\n")
                if not line.startswith("@ "):
                    log.write(line + "\n")
                    log.flush()
                    continue
                kind, *words = line[2:].split(" ")
                event = Event(kind, dict(word.partition("=")[::2] for word in words))
                with self._changed:
                    self._events.append(event)
                    self._by_kind[kind].append(event.fields)
                    self._changed.notify_all()


def message_of(fields: Fields) -> Message:
    """Read a message from an event."""
    return Message(
        number=int(fields["number"]),
        queue=int(fields["queue"]),
        offset=int(fields["offset"]),
        name=fields.get("name", ""),
        tag=fields.get("tag", ""),
        at_ms=int(fields.get("at", 0)),
        topic=fields.get("topic", ""),
        tries=int(fields.get("tries", 0)),
        begin_us=int(fields.get("begin", 0)),
        end_us=int(fields.get("end", 0)),
    )


def by_queue(messages: Sequence[Message]) -> dict[int, list[int]]:
    """Return the numbers of each queue in the order given."""
    queues: dict[int, list[int]] = defaultdict(list)
    for message in messages:
        queues[message.queue].append(message.number)
    return dict(queues)
