"""Attacks by number: many connections, many requests, peers that do not read.

Each is a function of the target and a size; it returns what it did, for the report. The witness
runs beside it.
"""

from __future__ import annotations

import contextlib
import random
import resource
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from inorder.wire.frame import encode_frame
from inorder.wire.header import Command
from inorder.wire.signature import AK, SIGNATURE
from tests.garbage import catalogue
from tests.garbage.peer import Address, Peer, raw_frame
from tests.garbage.target import Target, wait_until

RESERVE = 500
"""Descriptors that this process needs for itself."""


def descriptors_for(wanted: int) -> int:
    """Raise the limit of open files as far as allowed; return how many connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = wanted + RESERVE
    if soft < need and (hard == resource.RLIM_INFINITY or soft < hard):
        best = need if hard == resource.RLIM_INFINITY else min(need, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (best, hard))
        soft = best
    return max(1, min(wanted, soft - RESERVE))


@contextlib.contextmanager
def crowd(address: Address, count: int) -> Iterator[list[socket.socket]]:
    """Open connections, and close them at the end."""
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            sockets.append(_connect(address))
        yield sockets
    finally:
        for one in sockets:
            one.close()


def _connect(address: Address) -> socket.socket:
    """Connect from another loopback address each time, as ports are few."""
    one = socket.socket()
    one.bind((f"127.0.0.{random.randrange(2, 250)}", 0))
    one.settimeout(10)
    one.connect(address)
    return one


def idle(
    target: Target, count: int, seconds: float, measure: Callable[[], dict[str, Any]]
) -> dict[str, object]:
    """Connections that say nothing, or one frame, and stay, and then all close at once."""
    possible = descriptors_for(count)
    before = target.memory.now_bytes()
    with crowd(target.broker, possible) as sockets:
        for one in sockets[::2]:
            one.sendall(encode_frame(Command.request(31_999)))
        opening = measure()
        time.sleep(seconds)
        steady = measure()
        held = target.sockets()
        grown = target.memory.now_bytes() - before
    said: dict[str, object] = {
        "connections": possible,
        "open at the broker": held,
        "bytes each": round(grown / possible),
        "worst send while they open (ms)": opening["send_ms"]["max"],
        "until they close (ms)": steady["send_ms"]["max"],
    }
    if possible < count:
        said["note"] = f"{count} were wanted; the limit of open files allows {possible}"
    return said


def slow_loris(target: Target, count: int, seconds: float, interval_s: float) -> dict[str, object]:
    """One byte of a large frame per interval on each connection, until they are closed."""
    frame = raw_frame(b'{"code":310,"opaque":1}', bytes(60_000))
    sent = closed = 0
    with crowd(target.broker, count) as sockets:
        alive = dict(enumerate(sockets))
        deadline = time.monotonic() + seconds
        while alive and time.monotonic() < deadline:
            for index, one in list(alive.items()):
                try:
                    one.sendall(frame[sent : sent + 1])
                    one.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        if not one.recv(1):
                            raise ConnectionResetError
                    one.setblocking(True)
                except ConnectionError:
                    del alive[index]
                    closed += 1
            sent += 1
            time.sleep(interval_s)
        return {"connections": count, "bytes each": sent, "closed by the broker": closed}


def flood(target: Target, seconds: float, dice: random.Random) -> dict[str, object]:
    """Connect, say something or nothing, go away: as fast as one process can."""
    openings = (b"", b"\x16\x03\x01", b"\x00", dice.randbytes(40), b"GET / HTTP/1.0\r\n\r\n")
    deadline = time.monotonic() + seconds
    count = 0
    while time.monotonic() < deadline:
        for address in (target.broker, target.namesrv):
            one = _connect(address)
            with contextlib.suppress(ConnectionError):
                one.sendall(openings[count % len(openings)])
            one.close()
            count += 1
    return {"connections": count}


def forged(user: str | None, body: bytes, number: int) -> bytes:
    """Return a send with a signature that nobody made."""
    fields = catalogue.send_fields("forged")
    if user is not None:
        fields |= {AK: user, SIGNATURE: f"{number:027d}="}
    return encode_frame(Command.request(310, fields, body, request_id=number))


def wrong_signatures(target: Target, seconds: float, rate: int) -> dict[str, object]:
    """Sign wrongly, from one address, over connections that are opened anew when they are slow."""
    sent = 0
    began = time.monotonic()
    peers: list[socket.socket] = []
    with crowd(target.broker, 20) as first:
        peers += first
        while time.monotonic() < began + seconds:
            due = int((time.monotonic() - began) * rate) - sent
            for _ in range(due):
                one = peers[sent % len(peers)]
                with contextlib.suppress(OSError):  # it may be closed, or take no more
                    one.setblocking(False)
                    one.sendall(forged("root" if sent % 2 else f"user{sent}", b"x", sent))
                if sent % 100 == 99:
                    peers.append(_connect(target.broker))
                sent += 1
            time.sleep(0.005)
        for one in peers:
            one.close()
    return {"requests": sent, "connections": len(peers)}


def large_requests(target: Target, count: int) -> dict[str, Any]:
    """Begin requests of 16 MB that are signed by nobody, by somebody unknown, or wrongly."""
    possible = descriptors_for(count)
    said: dict[str, Any] = {"connections": possible}
    for kind, user in (("nobody", None), ("unknown", "stranger"), ("wrong", "root")):
        frame = forged(user, bytes(16_000_000), 1)
        before = target.memory.now_bytes()
        with crowd(target.broker, possible) as sockets:
            for one in sockets:
                with contextlib.suppress(OSError):
                    one.settimeout(1.0)
                    one.sendall(frame[:1_000_000])
            time.sleep(0.3)
            grown = max(0, target.memory.now_bytes() - before)
        said[f"bytes each, {kind}"] = round(grown / possible)
        said[f"bytes of all, {kind}"] = grown
    return said


def fill(target: Target, sizes: dict[str, int]) -> None:
    """Store messages to be pulled by who does not read: scattered, 32 of them in one answer."""
    with Peer(target.broker) as peer:
        for _ in range(40):
            for topic, size in sizes.items():
                peer.call(Command.request(310, catalogue.send_fields(topic), bytes(size)))


def never_read(target: Target, count: int, pulls: int, seconds: float) -> dict[str, object]:
    """Peers that pull and pull and read nothing."""
    # Answers of 115 KiB are copied, those of 250 KiB are views of the log.
    fill(target, {"unread_copies": 3500, "unread_views": 7800})
    target.memory.take_peak_bytes()
    request = b"".join(
        encode_frame(Command.request(11, catalogue.pull_fields(topic), request_id=1))
        for topic in ("unread_copies", "unread_copies", "unread_views")
    )
    offered = 0
    with crowd(target.broker, count) as sockets:
        selector = selectors.DefaultSelector()
        left = {}
        for one in sockets:
            one.setblocking(False)
            selector.register(one, selectors.EVENT_WRITE)
            left[one] = request * (pulls // 3)
            offered += len(left[one])
        deadline = time.monotonic() + seconds
        while left and time.monotonic() < deadline:
            for key, _ in selector.select(0.1):
                sending = key.fileobj
                assert isinstance(sending, socket.socket)
                try:
                    size = sending.send(left[sending][:65_536])
                except BlockingIOError:
                    continue
                except ConnectionError:
                    size = len(left[sending])
                left[sending] = left[sending][size:]
                if not left[sending]:
                    selector.unregister(sending)
                    del left[sending]
        time.sleep(max(0.0, deadline - time.monotonic()))
        selector.close()
    return {
        "connections": count,
        "pulls": count * (pulls // 3 * 3),
        "MiB asked for": offered // len(request) // 2,
    }


def held_pulls(target: Target, count: int, per_connection: int) -> dict[str, object]:
    """Pulls that wait, by the ten thousand, on queues that stay empty and on the witness's."""
    with Peer(target.broker) as peer:
        peer.call(Command.request(310, catalogue.send_fields("held"), b"x"))
    before = target.memory.now_bytes()
    peers = [Peer(target.broker) for _ in range(max(1, count // per_connection))]
    try:
        for index, peer in enumerate(peers):
            peer.socket.settimeout(60)
            frames = []
            for number in range(per_connection):
                fields = catalogue.pull_fields(
                    "held", sysFlag="6", suspendTimeoutMillis="600000",
                    queueOffset="0" if number % 4 else "1",
                    subscription=f"t{index}_{number % 100}", queueId=str(number % 4),
                )  # fmt: skip
                frames.append(encode_frame(Command.request(11, fields, request_id=number + 1)))
            peer.send(b"".join(frames))
        answered = [peer.probe(60) for peer in peers]
        grown = target.memory.now_bytes() - before
        began = time.monotonic()
        with Peer(target.broker) as sender:
            sender.call(Command.request(310, catalogue.send_fields("held"), b"x"), 60)
        woken = time.monotonic() - began
    finally:
        for peer in peers:
            peer.close()
    return {
        "held": len(peers) * per_connection,
        "connections": len(peers),
        "bytes each": round(grown / (len(peers) * per_connection)),
        "answered meanwhile": answered.count(3),
        "a send that wakes a quarter of them (ms)": round(woken * 1000),
    }


def many_names(target: Target, count: int) -> dict[str, object]:
    """Topics and groups that nobody needs, up to the limit and beyond."""
    made = {"topics": 0, "groups": 0, "refused": 0}
    with Peer(target.broker) as peer:
        for index in range(count):
            name = f"auto_{index:07d}_{'x' * 100}"
            answer = peer.call(Command.request(310, catalogue.send_fields(name), b"x"), 30)
            made["topics" if answer is not None and answer.code == 0 else "refused"] += 1
            pull = Command.request(11, catalogue.pull_fields("garbage", consumerGroup=name))
            answer = peer.call(pull, 30)
            made["groups" if answer is not None and answer.code != 26 else "refused"] += 1
    return dict(made)


def reaped(target: Target, expected: int, timeout_s: float) -> bool:
    """Wait until the connections of the attack are gone."""
    return wait_until(lambda: target.sockets() <= expected, timeout_s)
