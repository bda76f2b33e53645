"""Drives our own client by lines on standard input, as the stock ones are; see ../README.md."""

from __future__ import annotations

import base64
import sys
import threading
import time

import inorder
from inorder.client.consume.registrations import Order

NAMESRV = sys.argv[1]
MODES: dict[str, Order] = {"orderly": "queue", "concurrent": None, "broadcast": "queue"}
_lock = threading.Lock()
_consumers: dict[str, inorder.Consumer] = {}


def say(line: str) -> None:
    """Write a line; handlers run in threads."""
    with _lock:
        sys.stdout.write(f"@ {line}\n")
        sys.stdout.flush()


def now_micros() -> int:
    """Return the time of day in microseconds."""
    return time.time_ns() // 1000


class Work:
    """A handler: so many milliseconds of work, and some numbers refused so many times."""

    def __init__(self, name: str, work: str, refuse: str) -> None:
        self._name, self._pause_s = name, int(work) / 1000
        pairs = (one.split(":") for one in refuse.split(",") if one)
        self._refusals = {number: int(times) for number, times in pairs}

    def handle(self, message: inorder.ReceivedMessage) -> None:
        """Handle a message; refuse it as a user would, by an exception."""
        number = message.body.decode()
        what = (
            f"name={self._name} number={number} queue={message.queue.index} "
            f"offset={message.offset} tag={message.tag} topic={message.topic} "
            f"tries={message.attempt - 1} begin={now_micros()}"
        )
        say(f"begun {what}")
        time.sleep(self._pause_s)
        with _lock:
            left = self._refusals[number] = self._refusals.get(number, 0) - 1
        ended = now_micros()
        say(f"{'got' if left < 0 else 'refused'} {what} end={ended} at={ended // 1000}")
        if left >= 0:
            raise ValueError(f"number {number} is refused")


def push(
    *, name: str, group: str, topic: str, tags: str, mode: str, work: str = "0", refuse: str = ""
) -> None:
    """Start a consumer."""
    consumer = inorder.Consumer(
        NAMESRV,
        group=group,
        consume_from="first",
        instance=name,
        message_model="broadcasting" if mode == "broadcast" else "clustering",
    )
    handler = Work(name, work, refuse)
    consumer.on(topic, order=MODES[mode], tag=tags.replace(",", "||"))(handler.handle)
    consumer.start()
    _consumers[name] = consumer


def stop(*, name: str) -> None:
    """Close a consumer."""
    _consumers.pop(name).close()


def main() -> None:
    """Obey until standard input ends."""
    say("ready")
    verbs = {"push": push, "stop": stop}
    for line in sys.stdin:
        verb, *words = line.split()
        try:
            verbs[verb](**dict(word.split("=", 1) for word in words))
            say(f"done verb={verb}")
        except Exception as error:
            reason = base64.b64encode(repr(error).encode()).decode()
            say(f"failed verb={verb} reason={reason}")
    for name in list(_consumers):
        stop(name=name)


main()
