"""The sends of a producer, many at a time: the compiled module and the Python beside its calls."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.accelerated import native, reason
from inorder.client.send import sender
from inorder.client.send.messages import PART_SLOTS
from inorder.client.send.queues import DONE, UNSENT, Send, compiled
from inorder.config import ClientConfig
from inorder.errors import InorderError
from inorder.sync.futures import SendFuture, SharedFailures
from inorder.sync.producer import Producer
from inorder.sync.room import SharedRoom
from inorder.wire.requests.sendframes import CHOSEN
from tests.kit.twinsends import MAPS, Kind, as_made, in_python, made, receipts, send_queue, travel

needs_compiled = pytest.mark.skipif(native is None, reason=f"compiled module: {reason}")
CONFIG = ClientConfig()
kinds = st.fixed_dictionaries(
    {
        "placed": st.sampled_from(MAPS[:2] * 4 + MAPS),
        "sys_flag": st.sampled_from((0, 0, 0, 0, 1)),
        "joins": st.sampled_from((True, True, True, True, False)),
        "state": st.sampled_from((UNSENT,) * 8 + (DONE,)),
        "cancelled": st.sampled_from((False,) * 8 + (True,)),
        "ours": st.sampled_from((True, True, True, False)),
        "locked": st.booleans(),
        "patient": st.sampled_from((True, True, False)),
        "over": st.sampled_from((False,) * 6 + (True,)),
        "tries": st.sampled_from((0, 0, 0, 2)),
        "size": st.integers(1, 40),
        "key": st.sampled_from((None, "a", "b", "c", "new")),
    }
)


@needs_compiled
@settings(max_examples=400, deadline=None)
@given(st.lists(kinds, max_size=30), st.sampled_from((60, 200, 500, 10_000)))
def test_both_put_the_same_sends_into_a_request(kinds_: list[Kind], bytes_max: int) -> None:
    """Whatever waits: other maps, other flags, cancelled ones, single ones, large ones."""
    with in_python():
        wanted = travel(kinds_, bytes_max)
    assert travel(kinds_, bytes_max) == wanted


@needs_compiled
@settings(max_examples=300, deadline=None)
@given(st.lists(kinds, min_size=1, max_size=20), st.integers(0, 2**62))
def test_both_give_the_same_receipts(kinds_: list[Kind], first: int) -> None:
    """To futures with and without a lock, of another class, cancelled, or told before."""
    with in_python():
        wanted = receipts(kinds_, first)
    found = receipts(kinds_, first)
    assert found == wanted


@needs_compiled
@settings(max_examples=300, deadline=None)
@given(st.lists(kinds, max_size=20))
def test_wanted_grouped_packed_and_written_alike(kinds_: list[Kind]) -> None:
    """Those of callers that went away are dropped; keys that are known go to their queues."""
    assert compiled is not None
    sends = [made(kind, at) for at, kind in enumerate(kinds_)]
    wanted = [send for send in sends if not send.waiter.done()]
    assert compiled.wanted(sends) == wanted
    assert compiled.drain(deque(sends), 7) == sends[:7]
    by_key: dict[str, Any] = {"a": send_queue(1), "b": send_queue(1)}
    groups: dict[Any, list[Send]] = {}
    at, due = compiled.place(sends, 0, "t", by_key, MAPS[1], groups, 990)
    stop = next((n for n, one in enumerate(sends) if one.key not in by_key), len(sends))
    assert at == stop
    assert due == min([990, *(1000 - n for n in range(stop))])
    for queue, group in groups.items():
        assert group == [one for one in sends[:stop] if by_key[one.key or ""] is queue]
    assert sum(map(len, groups.values())) == stop
    for send in sends[:stop]:
        assert send.by_key is True
        assert send.placed == MAPS[1]
        assert send.queue is by_key[send.key or ""]
    again = sum(send.tries > 0 for send in sends)
    tries = [send.tries for send in sends]
    assert compiled.written(sends, self_ := object(), 77) == again
    assert [send.tries for send in sends] == [one + 1 for one in tries]
    assert all(send.sender is self_ and send.written_ms == 77 for send in sends)
    parts = [send.part for send in sends]
    assert compiled.pack(sends, b"h", 5) == sender.pack_items(parts, b"h", 5)


PLAIN: Kind = {
    "placed": MAPS[1], "sys_flag": 0, "joins": True, "state": UNSENT, "cancelled": False,
    "ours": True, "locked": False, "patient": True, "over": False, "tries": 0, "size": 9,
    "key": "a",
}  # fmt: skip


@needs_compiled
@pytest.mark.parametrize(
    "differs",
    [
        {"placed": MAPS[2]}, {"placed": CHOSEN}, {"sys_flag": 1}, {"joins": False},
        {"state": DONE}, {"cancelled": True}, {"cancelled": True, "ours": False},
    ],
)  # fmt: skip
def test_only_what_is_alike_is_taken(differs: Kind) -> None:
    """What differs from the one before stays where it is, with all that is behind it."""
    assert compiled is not None
    first, second, other, behind = (
        made(kind, at) for at, kind in enumerate((PLAIN, PLAIN, PLAIN | differs, PLAIN))
    )
    waiting, taken = deque([second, other, behind]), [first]
    size = second.part.bytes_together
    assert compiled.take_alike(waiting, taken, 9, 10 * size, 4) == 9 * size
    assert taken == [first, second]
    assert list(waiting) == [other, behind]
    assert (second.sequence, second.last, other.sequence) == (5, 5, -1)


@needs_compiled
def test_no_more_is_taken_than_may_be() -> None:
    """Messages and bytes have their limits."""
    assert compiled is not None
    sends = [made(PLAIN, at) for at in range(5)]
    size = sends[0].part.bytes_together
    for most, left, count in ((3, 100 * size, 3), (9, 2 * size, 3), (9, 2 * size - 1, 2)):
        taken = sends[:1]
        compiled.take_alike(deque(sends[1:]), taken, most, left, 0)
        assert len(taken) == count
        for send in sends:
            send.state = UNSENT


class Unlike:
    """A content of another class, with the same slots at the same places."""

    __slots__ = PART_SLOTS

    def __init__(self) -> None:
        for name in PART_SLOTS:
            setattr(self, name, 0)


@needs_compiled
def test_what_is_no_send_is_left_or_refused() -> None:
    """The module never reads the slots of another class."""
    assert compiled is not None
    thing: Any = object()
    for call in (
        lambda: compiled.wanted([thing]), lambda: compiled.pack([thing], b"", 0),
        lambda: compiled.written([thing], None, 0), lambda: compiled.stored([thing], 1, [1], 2),
        lambda: compiled.place([thing], 0, "t", {}, b"", {}, 0),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            call()
    assert compiled.confirm([thing]) == compiled.together([thing]) == 0
    sent = deque([thing])
    compiled.trim(sent)
    assert sent == deque([thing])
    assert compiled.take_alike(deque([thing]), [thing], 9, 5, 0) == 5
    odd = made(PLAIN, 0)
    odd.part = Unlike()  # type: ignore[assignment]
    assert compiled.take_alike(deque([made(PLAIN, 1)]), [odd], 9, 5000, 0) == 5000
    assert compiled.take_alike(deque([odd]), [made(PLAIN, 1)], 9, 5000, 0) == 5000
    with pytest.raises(ValueError, match="which one"):
        compiled.take_alike(deque(), [], 9, 5, 0)
    with pytest.raises(ValueError, match="as many"):
        compiled.stored([], 1, [1], 2)
    with pytest.raises(ValueError, match="negative"):
        compiled.place([], -1, "t", {}, b"", {}, 0)
    empty = Send.__new__(Send)
    with pytest.raises(AttributeError):
        compiled.wanted([empty])


@pytest.fixture(scope="module")
def one() -> Iterator[Producer]:
    """A producer that reaches nobody."""
    with Producer("127.0.0.1:1", config=replace(CONFIG, message_bytes_max=256)) as made_:
        yield made_


bodies = st.one_of(
    st.binary(max_size=300), st.just("text"), st.just(None), st.just(bytearray(b"x"))
)
keys = st.one_of(
    st.none(), st.text(max_size=10), st.text("ab~ \x7f\x1f\x01", max_size=5),
    st.just("k" * 256), st.just("k" * 255), st.just(7),
)  # fmt: skip
topics = st.sampled_from(("orders", "t", "no topic", "", "x" * 128, b"orders", None))


@needs_compiled
@settings(max_examples=400, deadline=None)
@given(topics, bodies, keys)
def test_both_make_the_same_message(one: Producer, topic: Any, body: Any, key: Any) -> None:
    """What the module makes is what Python makes; what Python refuses, the module leaves to it."""
    make = one._maker()
    assert make is not None
    send = make(topic, body, key)
    taken = list(one._outbox._messages)
    one._outbox._messages.clear()
    if send is None:
        assert not taken
        assert (one._room.messages, one._room.bytes) == (0, 0)
        return
    assert taken == [send]
    assert (one._room.messages, one._room.bytes) == (1, len(body))
    one._room.leave(1, len(body))
    future = SendFuture(one._unheard, (topic, key))
    twin = one._async._make_plain(future, *one._ids.next(), topic, body, key)
    assert as_made(send) == as_made(twin)
    assert send.part.ids != twin.part.ids
    assert 0 <= twin.deadline_ms - send.deadline_ms < 1000
    assert 0 <= twin.part.born_at_ms - send.part.born_at_ms < 1000


@needs_compiled
def test_the_module_makes_plain_messages() -> None:
    """The usual ones; and there is no other way that makes the test above pass."""
    with Producer("127.0.0.1:1") as one:
        make = one._maker()
        assert make is not None
        for key in (None, "k", "k" * 255, "a b~"):
            assert make("orders", b"x", key) is not None
        assert (one._room.messages, one._room.bytes) == (4, 4)
        assert make("orders", b"x", "é") is None
        assert make("orders", b"x" * CONFIG.compress_above_bytes, "k") is None
        assert make("orders", b"x" * (CONFIG.compress_above_bytes - 1), "k") is not None
        assert make("no topic", b"x", "k") is None
        assert one._portal.call(make, "orders", b"x", "k") is None  # the loop's own thread
        one._room.pace.allowed = one._room.messages
        assert make("orders", b"x", "k") is None
        one._outbox._messages.clear()
        one._room.leave(one._room.messages, one._room.bytes)


def test_threads_count_room_in_whole_steps() -> None:
    """What all threads and the loop have entered and left is what is there."""
    room = SharedRoom(10**9, 10**9)
    room.pace.allowed = 10**9

    def work() -> None:
        for _ in range(20_000):
            assert room.enter(2, 20)
            room.leave(1, 10)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (room.messages, room.bytes) == (80_000, 800_000)


def test_room_that_comes_while_a_thread_begins_to_wait_is_seen() -> None:
    """A waiting thread goes on long before its time is up."""
    room = SharedRoom(1, 100)
    assert room.enter(1, 1)
    waiting = threading.Thread(target=lambda: [room.wait(30) for _ in range(1)])
    waiting.start()
    room.leave(1, 1)
    waiting.join(20)
    assert not waiting.is_alive()
    assert not room.full


def test_errors_of_the_loop_are_in_the_callers_future() -> None:
    """Nobody can be reached: the future of a message that the module made fails all the same."""
    config = replace(CONFIG, send_timeout_ms=50, retry_max_ms=10, request_timeout_ms=50)
    one = Producer("127.0.0.1:1", config=config)
    for _ in range(3):
        with pytest.raises(InorderError):
            one.send_nowait("orders", b"x", key="k").result(60)
    failed = one.send_nowait("orders", b"x", key="k")
    with pytest.raises(InorderError, match="nobody asked for their outcome: topic orders key 'k'"):
        one.close()
    assert isinstance(failed, SendFuture)
    assert isinstance(one._unheard, SharedFailures)
    assert isinstance(failed.exception(), InorderError)
