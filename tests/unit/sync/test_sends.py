"""The future of a blocking `send_nowait`, and the way of its message to the loop."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import CancelledError, as_completed, wait

import pytest

from inorder.client.send.failures import UnseenFailures
from inorder.errors import OutcomeUnknown
from inorder.model import SendReceipt, SendStatus, TopicQueue
from inorder.sync.producer import Outbox, SendFuture, Unmade


def test_ctrl_c_while_a_future_is_made_leaves_nothing_to_say(monkeypatch):
    """What was not made is dropped in silence; the interrupt goes on."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading, "Condition", interrupted)
    unraisable: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    with pytest.raises(KeyboardInterrupt):
        SendFuture(None, ("t", None)).result(0)  # type: ignore[arg-type]
    gc.collect()
    assert unraisable == []


def future(unheard: UnseenFailures | None = None) -> SendFuture:
    return SendFuture(unheard or UnseenFailures(), ("t", "k"))  # type: ignore[arg-type]


PLACE = ("id", TopicQueue("t", "b", 0), 7, SendStatus.OK)
RECEIPT = SendReceipt(*PLACE)


def test_a_future_that_nobody_waits_for_needs_no_lock():
    """Its receipt is made when somebody asks."""
    one = future()
    assert not one.done()
    one.set_result(PLACE)
    assert one._lock is None
    assert one.done()
    assert not one.cancelled()
    assert one.result() == one.result(0) == RECEIPT
    assert one.exception() is None


def test_a_future_wakes_those_who_wait_in_every_way():
    """`result`, callbacks, `wait`, `as_completed`, an event loop; before and after the outcome."""
    found: list[object] = []
    many = [future() for _ in range(5)]
    threads = [
        threading.Thread(target=lambda: found.append(many[0].result(30))),
        threading.Thread(target=lambda: found.append(len(wait(many, 30).done))),
        threading.Thread(target=lambda: found.append(len(list(as_completed(many, 30))))),
        threading.Thread(target=lambda: found.append(asyncio.run(wrapped(many[1])))),
    ]
    for thread in threads:
        thread.start()
    many[2].add_done_callback(lambda done: found.append(done.result()))
    for one in many:
        one.set_result(PLACE)
    for thread in threads:
        thread.join(30)
    many[2].add_done_callback(lambda done: found.append(done.result()))
    assert found.count(RECEIPT) == 4
    assert found.count(5) == 2


async def wrapped(one: SendFuture) -> SendReceipt:
    return await asyncio.wrap_future(one)


def test_cancel_succeeds_until_there_is_an_outcome():
    """The outcome of a cancelled one is dropped; those who wait learn that it is cancelled."""
    gone, there = future(), future()
    assert gone.cancel()
    gone.set_result(PLACE)
    with pytest.raises(CancelledError):
        gone.result(0)
    assert wait([gone], 0).done == {gone}
    there.set_result(PLACE)
    assert not there.cancel()
    assert there.result() == RECEIPT


def test_an_error_counts_until_somebody_asks_for_it():
    """As `flush` reports it."""
    unheard = UnseenFailures()
    one, other = future(unheard), future(unheard)
    for failed in (one, other):
        failed.set_exception(OutcomeUnknown("who knows"))
    assert unheard.count == 2
    assert isinstance(one.exception(), OutcomeUnknown)
    with pytest.raises(OutcomeUnknown):
        one.result()
    assert unheard.count == 1
    other.unheard_at = 0


def test_outcomes_and_callers_may_meet_at_any_moment():
    """Many futures, a thread that waits and one that brings outcomes: nobody waits for ever."""
    many = [future() for _ in range(3000)]
    bringing = threading.Thread(target=lambda: [one.set_result(PLACE) for one in many])
    bringing.start()
    assert all(one.result(30) == RECEIPT for one in many)
    bringing.join(30)


def test_a_cancelled_future_wakes_those_who_wait():
    """`wait` and `as_completed` wait for futures that are done, and nobody else tells them."""
    one, early = future(), future()
    waiting = threading.Thread(target=lambda: wait([one], 30))
    waiting.start()
    assert early.cancel()
    assert early.cancel()
    assert wait([early], 0).done == {early}
    assert list(as_completed([early], 0)) == [early]
    one.cancel()
    waiting.join(20)
    assert not waiting.is_alive()
    for late in (one, early):
        late.set_result(PLACE)
        late.set_exception(OutcomeUnknown("who knows"))
        assert late.cancelled()


def test_newer_pythons_read_the_outcome_in_one_step():
    """asyncio copies it so: the receipt, not what it is made of; an error counts as read."""
    unheard = UnseenFailures()
    stored, failed, gone, pending = (future(unheard) for _ in range(4))
    stored.set_result(PLACE)
    error = OutcomeUnknown("who knows")
    failed.set_exception(error)
    gone.cancel()
    assert stored._get_snapshot() == (True, False, RECEIPT, None)
    assert failed._get_snapshot() == (True, False, None, error)
    assert gone._get_snapshot() == (True, True, None, None)
    assert pending._get_snapshot() == (False, False, None, None)
    assert unheard.count == 0


class Handed:
    """A portal: `put` says that the loop has something to begin, and may stop or fail first."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.entered = threading.Event()
        self.may_go = threading.Event()
        self.error: BaseException | None = None

    def put(self, work: Outbox) -> None:
        self.entered.set()
        assert self.may_go.wait(30)
        if self.error is not None:
            raise self.error
        self.log.append("the loop has it")


class Room:
    left = 0

    def leave(self, messages: int, _: int) -> None:
        self.left += messages


def outbox(portal: Handed, room: Room | None = None) -> Outbox:
    return Outbox(portal, None, room or Room())  # type: ignore[arg-type]


def message() -> Unmade:
    return Unmade(future(), 1, ())


def test_a_message_is_on_its_way_to_the_loop_when_its_call_returns():
    """Another thread has begun to wake the loop and not finished: what the caller does next must
    not come before its message, neither another message of the key nor `flush`.
    """
    portal = Handed()
    box = outbox(portal)
    first = threading.Thread(target=box.put, args=(message(),))
    first.start()
    assert portal.entered.wait(30)

    def call() -> None:
        box.put(message())
        portal.log.append("the call returns")

    second = threading.Thread(target=call)
    second.start()
    second.join(0.2)
    portal.may_go.set()
    first.join(30)
    second.join(30)
    assert portal.log == ["the loop has it", "the call returns"]


def test_a_call_that_fails_strands_no_message_of_another_thread():
    """Ctrl-C ends one call while it wakes the loop; the other one wakes it itself."""
    portal, room = Handed(), Room()
    box = outbox(portal, room)
    portal.error = KeyboardInterrupt()
    ended: list[BaseException] = []

    def interrupted() -> None:
        try:
            box.put(message())
        except KeyboardInterrupt as error:
            portal.error = None
            ended.append(error)

    first = threading.Thread(target=interrupted)
    first.start()
    assert portal.entered.wait(30)
    second = threading.Thread(target=box.put, args=(message(),))
    second.start()
    second.join(0.2)
    portal.may_go.set()
    first.join(30)
    second.join(30)
    assert ended
    assert room.left == 1
    assert portal.log == ["the loop has it"]
