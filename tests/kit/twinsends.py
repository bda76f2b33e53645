"""Sends of a producer in two copies: one for the compiled module, one for the Python beside it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from inorder.client.send import producer, queues, router, sender
from inorder.client.send.messages import PART_SLOTS, Outgoing
from inorder.client.send.queues import SEND_SLOTS, Send, SendQueue
from inorder.clock import SystemClock
from inorder.config import ClientConfig
from inorder.model import SendReceipt, SendStatus, TopicQueue
from inorder.sync import producer as blocking
from inorder.sync.futures import SendFuture, SharedFailures
from inorder.sync.room import SharedRoom
from inorder.tasks import Backoff
from inorder.wire.requests.sendframes import CHOSEN, SendTemplate, by_map

QUEUE = TopicQueue("t", "b", 0)
MAPS = (b"", by_map(1, "aa"), by_map(2, "bb"), CHOSEN)
USING = (queues, router, sender, producer)

Kind = dict[str, Any]


@contextmanager
def in_python() -> Iterator[None]:
    """Leave the module out."""
    there = [module.compiled for module in USING]  # type: ignore[attr-defined]
    try:
        for module in USING:
            module.compiled = None  # type: ignore[attr-defined]
        yield
    finally:
        for module, compiled in zip(USING, there, strict=True):
            module.compiled = compiled  # type: ignore[attr-defined]


class Other:
    """A future of another class, as the loop's."""

    def __init__(self) -> None:
        self.found: object = None

    def done(self) -> bool:
        return self.found is not None

    def set_result(self, result: Any, /) -> None:
        self.found = result

    def set_exception(self, exception: Any, /) -> None:
        self.found = exception


def made(kind: Kind, at: int) -> Send:
    """Return a send; `body`, `raw` and `flag` have usual values if a kind has none."""
    waiter: Any = Other()
    if kind["ours"]:
        waiter = SendFuture(None, ("t", None))  # type: ignore[arg-type]
        if kind["locked"]:
            waiter.add_done_callback(id)
    if kind["cancelled"]:
        if kind["ours"]:
            waiter.cancel()
        else:
            waiter.found = CancelledError()
    body = kind.get("body", b"x" * kind["size"])
    raw, flag = kind.get("raw", b"p\x01v"), kind.get("flag", at)
    part = Outgoing((f"ID{at}",), body, b"", at, kind["sys_flag"], flag, raw=raw)
    send = Send("t", kind["key"], part, None, 1000 - at, waiter)
    send.size = kind["size"]
    for name in ("placed", "joins", "state", "patient", "over", "tries"):
        setattr(send, name, kind[name])
    return send


def shown(send: Send) -> list[object]:
    """Return what is to be equal, in a form that can be compared."""
    found: list[object] = []
    for name in SEND_SLOTS:
        value = getattr(send, name)
        if name == "part":
            value = [getattr(value, one) for one in PART_SLOTS]
        elif name == "waiter":
            value = outcome(value)
        found.append((name, value))
    return found


def outcome(waiter: Any) -> object:
    """Return what a future has."""
    if isinstance(waiter, Other):
        found = waiter.found
        if type(found) is tuple:  # a caller of `send_nowait` sees a receipt
            found = SendReceipt(*found)
        return type(found) if isinstance(found, BaseException) else found
    if not waiter.done():
        return "pending"
    return "cancelled" if waiter.cancelled() else waiter.result(0)


def send_queue(bytes_max: int) -> SendQueue:
    """Return a queue whose broker takes requests of several messages."""
    template = SendTemplate(
        group="g", topic="t", template_topic="TBW102", template_queues=4, queue_id=0, broker="b"
    )
    queue = SendQueue(
        None, QUEUE, template, "0123456789abcdef", window=8, named=False,  # type: ignore[arg-type]
        backoff=Backoff(1, 2), bytes_max=bytes_max,
    )  # fmt: skip
    queue.connected(idempotent=True, batches=True)
    return queue


def travel(kinds_: list[Kind], bytes_max: int) -> list[object]:
    """Let sends go through a queue; return all that is to be seen of that."""
    queue, found = send_queue(bytes_max), []
    sends = [made(kind, at) for at, kind in enumerate(kinds_)]
    queue.waiting.extend(sends)
    while taken := queue.take():
        found.append([send.part.ids[0] for send in taken])
        found.append((queue.tail, queue.in_flight, queue.messages, queue.requests))
        if len(taken) == 1:
            queue.confirm(taken[0])
        else:
            queue.confirm_load(taken)
        found.append((queue.confirmed, len(queue.sent), len(queue.waiting)))
    return [*found, *map(shown, sends)]


class Ended:
    """What `_stored_together` uses of a producer and its room."""

    _after_send = None
    _tell_stored = producer.Producer._tell_stored
    _submitting = ()

    def __init__(self) -> None:
        self._waiting, self._sent = 100, 0
        self._room = self
        self.left: tuple[int, int] | None = None
        self._idle = threading.Event()

    def leave(self, messages_: int, bytes_: int) -> None:
        self.left = (messages_, bytes_)

    def _pace(self, *_: object) -> None:
        pass


def receipts(kinds_: list[Kind], first: int) -> list[object]:
    """Let sends be stored; return all that is to be seen of that."""
    ended, sends = Ended(), [made(kind, at) for at, kind in enumerate(kinds_)]
    offsets = range(first, first + len(sends))
    producer.Producer._stored_together(ended, sends, QUEUE, offsets, SendStatus.OK)  # type: ignore[arg-type]
    return [ended.left, ended._waiting, ended._sent, *map(shown, sends)]


def as_made(send: Send) -> list[object]:
    """Return all of a message but its id, its times and its future."""
    part = send.part
    assert part.raw is not None
    id_ = part.ids[0].encode()
    assert id_ in part.raw
    found = [(name, getattr(send, name)) for name in SEND_SLOTS]
    content = [(name, getattr(part, name)) for name in PART_SLOTS if name not in ("ids", "raw")]
    skipped = ("part", "waiter", "deadline_ms")
    return [
        [one for one in found if one[0] not in skipped],
        [one for one in content if one[0] != "born_at_ms"],
        part.raw.replace(id_, b"ID"), len(id_),
        [(name, getattr(send.waiter, name)) for name in ("_state", "_result", "_lock", "message",
                                                         "asked", "unheard_at")],
    ]  # fmt: skip


class Making:
    """A blocking producer as far as it makes plain messages: no thread, no loop."""

    def __init__(self, config: ClientConfig) -> None:
        clock = SystemClock()
        self.config = config
        self.room = SharedRoom(1 << 20, 1 << 40)
        self.taken: deque[Send] = deque()
        self._ids = blocking.SharedIds(clock)
        self._unheard = SharedFailures(clock)
        self._async: Any = SimpleNamespace(_config=config, _clock=clock)
        itself: Any = SimpleNamespace(
            _async=self._async, _room=self.room, _ids=self._ids, _unheard=self._unheard,
            _portal=SimpleNamespace(_ident=0), _outbox=SimpleNamespace(_messages=self.taken),
        )  # fmt: skip
        self.make: Any = blocking.Producer._maker(itself)

    def twin(self, topic: Any, body: Any, key: Any) -> Send:
        """Return the same message, made in Python; raise what is wrong with it."""
        future = SendFuture(self._unheard, (topic, key))
        ids = self._ids.next()
        return producer.Producer._make_plain(self._async, future, *ids, topic, body, key)
