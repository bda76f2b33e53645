"""What the Python clients of Kafka and of inorder send and handle, and whether all of it was right.

Nothing but the standard library: the drivers run under three Pythons. Messages have a number. The
number is in the body, and the number names the key. So a body tells everything that is checked: was
each message stored and handled once, in the order of its key, and is it where its receipt says.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

KEYS = tuple(f"key-{number:03}" for number in range(1000))
BODY_BYTES = 200
HELD_MAX = 8_000
"""Futures that a driver holds before it reads the older half: less than a producer's own limit."""
UNIT_S = 300.0
"""A unit that takes longer is given up."""
_NUMBER_BYTES = 8
_FILLING = b"x" * (BODY_BYTES - _NUMBER_BYTES)
_SHOWN = 3

Handled = tuple[str | bytes | None, bytes]
"""Key and body, as a handler read them."""
Place = tuple[int, int]
"""Queue and offset."""


def bodies(count: int) -> list[bytes]:
    """Return the bodies of messages 0 to `count`."""
    return [number.to_bytes(_NUMBER_BYTES, "big") + _FILLING for number in range(count)]


def key_of(number: int) -> str:
    """Return the key of a message."""
    return KEYS[number % len(KEYS)]


def number_of(body: bytes) -> int:
    """Return the number of a message; -1 if this is no body of ours."""
    if len(body) != BODY_BYTES or body[_NUMBER_BYTES:] != _FILLING:
        return -1
    return int.from_bytes(body[:_NUMBER_BYTES], "big")


def wrong_effects(handled: Iterable[Handled], count: int, *, in_order: bool) -> list[str]:
    """Return what is wrong with the messages that handlers got, in the order in which they did."""
    wrong: list[str] = []
    times, last = [0] * count, dict.fromkeys(KEYS, -1)
    for key, body in handled:
        number = number_of(body)
        if not 0 <= number < count:
            wrong.append(f"a body that nobody sent: {body[:16]!r}")
            continue
        wanted = key_of(number)
        if (key.decode() if isinstance(key, bytes) else key) != wanted:
            wrong.append(f"message {number} has key {key!r}, not {wanted}")
        times[number] += 1
        if in_order and number <= last[wanted]:
            wrong.append(f"{wanted}: message {number} handled after {last[wanted]}")
        last[wanted] = number
    lost, repeated = times.count(0), sum(many > 1 for many in times)
    if lost:
        wrong.append(f"{lost} of {count} messages not handled, first {times.index(0)}")
    if repeated:
        wrong.append(f"{repeated} messages handled more than once")
    return _few(wrong)


def wrong_storage(
    stored: Mapping[int, Sequence[bytes]], receipts: Sequence[Place], count: int
) -> list[str]:
    """Return what is wrong with a topic after `count` sends.

    `stored` has the bodies of each queue from offset 0; `receipts` has a place for each number.
    """
    wrong: list[str] = []
    found: dict[int, Place] = {}
    last: dict[str, Place] = {}
    of_key: dict[str, int] = {}
    for queue, held in stored.items():
        for offset, body in enumerate(held):
            number = number_of(body)
            if not 0 <= number < count:
                wrong.append(f"a body that nobody sent: {body[:16]!r}")
                continue
            if number in found:
                wrong.append(f"message {number} stored twice: {found[number]}, {(queue, offset)}")
            found[number] = (queue, offset)
            key = key_of(number)
            if last.get(key, (queue, 0))[0] != queue:
                wrong.append(f"{key} is in queues {last[key][0]} and {queue}")
            elif number <= of_key.get(key, -1):
                wrong.append(f"{key}: message {number} stored after {of_key[key]}")
            last[key], of_key[key] = (queue, offset), number
    if len(found) != count:
        wrong.append(f"{count - len(found)} of {count} messages not stored")
    if len(receipts) != count:
        wrong.append(f"{len(receipts)} receipts for {count} messages")
    false = [number for number, place in enumerate(receipts) if found.get(number) != place]
    if false:
        first = false[0]
        wrong.append(
            f"{len(false)} receipts are wrong, first of message {first}: {receipts[first]}, "
            f"stored at {found.get(first)}"
        )
    return _few(wrong)


def _few(wrong: list[str]) -> list[str]:
    """Return some of many complaints, the last ones among them: they count."""
    if len(wrong) <= 2 * _SHOWN:
        return wrong
    left_out = f"... {len(wrong) - 2 * _SHOWN} more"
    return [*wrong[:_SHOWN], left_out, *wrong[-_SHOWN:]]


class Clock:
    """Times one unit: what the process needs between its two ends, and says so to the bench."""

    def __init__(self) -> None:
        self.began = self.ended = False
        self._lock = threading.Lock()
        self._at = self._cpu = self._seconds = self._cpu_s = 0.0

    def begin(self) -> None:
        """Start, unless another thread has."""
        with self._lock:
            if not self.began:
                say("began")
                self._at, self._cpu = time.perf_counter(), time.process_time()
                self.began = True

    def end(self) -> None:
        """Stop, unless another thread has."""
        with self._lock:
            if not self.ended:
                self._cpu_s = time.process_time() - self._cpu
                self._seconds = time.perf_counter() - self._at
                self.ended = True
                say("ended")

    def report(self, count: int, wrong: list[str]) -> dict[str, object]:
        """Return the numbers of a unit of `count` messages."""
        return {
            "messages_per_s": count / self._seconds,
            "client_cpu_us_per_message": self._cpu_s / count * 1e6,
            "seconds": self._seconds,
            "wrong": wrong,
        }


class Effects:
    """What handlers did: they append to `seen`, call `begin` before the first, `end` after all."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.seen: list[Handled] = []
        self.clock = Clock()
        self.done = threading.Event()

    def end(self) -> None:
        """The last message was handled."""
        self.clock.end()
        self.done.set()

    def wait(self) -> None:
        """Wait for the end; not for ever, for a message may be lost: the check tells which."""
        self.done.wait(UNIT_S)
        self.give_up()

    def give_up(self) -> None:
        """End, unless that has happened."""
        if not self.done.is_set():
            self.clock.begin()
            self.end()


def obey(verbs: Mapping[str, Callable[..., dict[str, object]]]) -> None:
    """Do what the lines of standard input say: a verb and its words. Answer each with a report."""
    say("ready")
    for line in sys.stdin:
        verb, *words = line.split()
        say(json.dumps(verbs[verb](*words)))


def say(text: str) -> None:
    """Tell the bench something."""
    print(f"@ {text}", flush=True)
