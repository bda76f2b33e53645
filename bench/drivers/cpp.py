"""PyPI's `rocketmq`, the C++ client, as the benchmark times it; runs in a venv of its own.

Asynchronous sends go to the library's C function with two callbacks for all messages: the wheel's
own `send_async` keeps a closure per message in a list that only grows, and gets slower with it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # no other module of the benchmark

from rocketmq.client import Message, Producer, ffi_check  # type: ignore[import-not-found]
from rocketmq.ffi import (  # type: ignore[import-not-found]
    SEND_EXCEPTION_CALLBACK,
    SEND_SUCCESS_CALLBACK,
    dll,
)
from work import BODY, KEY, TAG, TOPIC, numbers  # type: ignore[import-not-found]


def message() -> Any:
    """Return a message as a user of the wheel makes it."""
    made = Message(TOPIC)
    made.set_body(BODY)
    made.set_tags(TAG)
    made.set_keys(KEY)
    return made


def flood(producer: Any, window: int, seconds: float) -> dict[str, float]:
    """Send with a window."""
    free = threading.Semaphore(window)
    failed: list[str] = []

    def stored(_: Any) -> None:
        free.release()

    def refused(error: Any) -> None:
        failed.append(str(error.msg))
        free.release()

    on_success, on_exception = SEND_SUCCESS_CALLBACK(stored), SEND_EXCEPTION_CALLBACK(refused)
    sent = 0
    began, cpu = time.perf_counter(), time.process_time()
    until = began + seconds
    while time.perf_counter() < until:
        free.acquire()
        ffi_check(dll.SendMessageAsync(producer._handle, message(), on_success, on_exception))
        sent += 1
    for _ in range(window):
        free.acquire()
    found: dict[str, float] = numbers(sent, time.perf_counter() - began, time.process_time() - cpu)
    return {**found, "failed": len(failed)}


def one_by_one(producer: Any, _: int, seconds: float) -> dict[str, float]:
    """Send one after the other."""
    took: list[float] = []
    began, cpu = time.perf_counter(), time.process_time()
    until, at = began + seconds, began
    while at < until:
        producer.send_sync(message())
        now = time.perf_counter()
        took.append(now - at)
        at = now
    found: dict[str, float] = numbers(len(took), at - began, time.process_time() - cpu, took)
    return found


def main() -> None:
    """Obey until standard input ends."""
    producer = Producer("bench_cpp")
    producer.set_namesrv_addr(sys.argv[1])
    producer.set_timeout(10_000)
    producer.start()
    producer.send_sync(message())
    print("@ ready", flush=True)
    modes = {"async": flood, "sync": one_by_one}
    for line in sys.stdin:
        _, mode, window, seconds = line.split()
        measured = modes[mode](producer, int(window), float(seconds))
        print("@ " + json.dumps(measured), flush=True)


main()
