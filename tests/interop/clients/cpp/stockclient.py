"""Drives PyPI's `rocketmq` (the C++ client) by lines on standard input; see ../README.md."""

from __future__ import annotations

import base64
import sys
import threading
import time
from typing import Any

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, RecvMessage, ffi_check
from rocketmq.ffi import MessageModel, dll

NAMESRV = sys.argv[1]
CONSUMED, REFUSED = 0, 1  # of the C library; its wheel turns an exception into neither
_lock = threading.Lock()
_consumers: dict[str, Any] = {}
_producers: dict[str, Any] = {}
CHANNEL = "ALIYUN"


def say(line: str) -> None:
    """Write a line; the library calls from threads of its own."""
    with _lock:
        sys.stdout.write(f"@ {line}\n")
        sys.stdout.flush()


def where(message: Any) -> str:
    """Say which message this is and where it stood."""
    return f"number={message.body.decode()} queue={message.queue_id} offset={message.queue_offset}"


def now_micros() -> int:
    """Return the time of day in microseconds."""
    return time.time_ns() // 1000


def produce(
    *, topic: str, first: str, count: str, tags: str, queues: str = "4", delay: str = "0",
    user: str = "", secret: str = "",
) -> None:  # fmt: skip
    """Send numbers; the selector takes the queue from the number."""
    mark = f"_{user}_{secret}" if user else ""
    if mark not in _producers:
        producer = Producer(f"stock_producer{mark}")
        producer.set_namesrv_addr(NAMESRV)
        producer.set_timeout(10_000)
        if user:
            producer.set_session_credentials(user, secret, CHANNEL)
        producer.start()
        _producers[mark] = producer
    tag_of = tags.split(",")
    for number in range(int(first), int(first) + int(count)):
        message = Message(topic)
        message.set_body(str(number))
        message.set_keys(f"key-{number}")
        message.set_tags(tag_of[number % len(tag_of)])
        if delay != "0":
            message.set_delay_time_level(int(delay))
        began, queue = now_micros(), number % int(queues)
        result = _producers[mark].send_orderly(message, number, retry_times=0)
        place = f"queue={queue} offset={result.offset}"
        say(f"sent name={topic} number={number} {place} begin={began}")


class Work:
    """A handler: so many milliseconds of work, and some numbers refused so many times."""

    def __init__(self, name: str, work: str, refuse: str) -> None:
        self._name, self._pause_s = name, int(work) / 1000
        pairs = (one.split(":") for one in refuse.split(",") if one)
        self._refusals = {number: int(times) for number, times in pairs}

    def __call__(self, consumer: Any, handle: Any) -> int:
        """Handle a message of the C library."""
        message = RecvMessage(handle)
        tag = message.tags.decode() if isinstance(message.tags, bytes) else message.tags
        what = (
            f"name={self._name} {where(message)} tag={tag} topic={message.topic} "
            f"tries={message.reconsume_times} begin={now_micros()}"
        )
        say(f"begun {what}")
        time.sleep(self._pause_s)
        with _lock:
            number = message.body.decode()
            left = self._refusals[number] = self._refusals.get(number, 0) - 1
        ended = now_micros()
        say(f"{'got' if left < 0 else 'refused'} {what} end={ended} at={ended // 1000}")
        return CONSUMED if left < 0 else REFUSED


def push(
    *, name: str, group: str, topic: str, tags: str, mode: str, work: str = "0", refuse: str = "",
    user: str = "", secret: str = "",
) -> None:  # fmt: skip
    """Start a push consumer."""
    model = MessageModel.BROADCASTING if mode == "broadcast" else MessageModel.CLUSTERING
    consumer = PushConsumer(group, orderly=mode == "orderly", message_model=model)
    consumer.set_namesrv_addr(NAMESRV)
    consumer.set_instance_name(name)
    consumer.set_thread_count(1)
    if user:
        consumer.set_session_credentials(user, secret, CHANNEL)
    ffi_check(dll.Subscribe(consumer._handle, topic.encode(), tags.replace(",", "||").encode()))
    consumer._register_callback(Work(name, work, refuse))
    consumer.start()
    _consumers[name] = consumer


def stop(*, name: str) -> None:
    """Shut a consumer down; the object stays, its destructor would do it a second time."""
    ffi_check(dll.ShutdownPushConsumer(_consumers[name]._handle))


def pull(*, topic: str, group: str, user: str = "", secret: str = "") -> None:
    """Read every queue to its end."""
    consumer = PullConsumer(group)
    consumer.set_namesrv_addr(NAMESRV)
    if user:
        consumer.set_session_credentials(user, secret, CHANNEL)
    consumer.start()
    for message in consumer.pull(topic):
        say(f"pulled {where(message)}")
    _consumers[f"pull of {topic}"] = consumer


def main() -> None:
    """Obey until standard input ends."""
    say("ready")
    verbs = {"produce": produce, "push": push, "stop": stop, "pull": pull}
    for line in sys.stdin:
        verb, *words = line.split()
        try:
            verbs[verb](**dict(word.split("=", 1) for word in words))
            say(f"done verb={verb}")
        except Exception as error:
            reason = base64.b64encode(repr(error).encode()).decode()
            say(f"failed verb={verb} reason={reason}")
    sys.stdout.flush()


main()
