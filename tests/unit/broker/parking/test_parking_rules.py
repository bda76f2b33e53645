"""The table of parked keys: how it judges requests and applies the events of the log."""

from __future__ import annotations

import pytest

from inorder.broker.parking import storage as parking_storage
from inorder.broker.parking.records import (
    Cancelled,
    Dropped,
    Event,
    Forgotten,
    Installed,
    Moved,
    Parked,
    Redriven,
    Redriving,
    Unparked,
)
from inorder.broker.parking.rules import Limits, ParkingTable, Verdict
from inorder.model import GroupQueue
from inorder.wire.requests.parking import QueuePlace

PLACE = GroupQueue("billing", "orders", 0)
ELSEWHERE = QueuePlace("broker-b", 7)


def parked(offset: int, key: str = "k", *, error: str = "", size: int = 100) -> Parked:
    """Return a message that was parked."""
    return Parked("orders", 0, offset, key, 6 if error else 0, error, 1000 + offset, size, key)


def table_of(*events: Event, limits: Limits | None = None) -> ParkingTable:
    """Return a table after some events."""
    table = ParkingTable(limits)
    for position, event in enumerate(events):
        table.apply("billing", event, position * 1000)
    return table


def judge(table: ParkingTable, offset: int, key: str = "k", **more: object) -> Verdict:
    """Ask about a message."""
    words = {"joins": True, "size": 100, "floor": 0, "now_ms": 2000, **more}
    return table.judge(PLACE, offset, key, **words)[0]  # type: ignore[arg-type]


def origins(table: ParkingTable, key: str = "k") -> list[int]:
    """Return the offsets in a key's list."""
    found = table.find(PLACE, key)
    assert found is not None
    return [message.origin for message in found.messages]


FIRST = parked(5, error="ValueError: no")
JOINED = parked(8)


def saved_and_restored(table: ParkingTable) -> ParkingTable:
    """Return a table as it is after a restart."""
    restored = ParkingTable()
    queues = [parking_storage.encode_queue(place, one) for place, one in table.places.items()]
    saved = parking_storage.encode(queues, replay_from=0, depends_on=0, log_crc=0)
    parking_storage.decode(saved).restore(restored)
    return restored


def test_a_key_keeps_its_first_error_and_its_order() -> None:
    """A key's messages are in the order of their queue, in whatever order they are parked."""
    table = table_of(FIRST, parked(9), parked(8))
    found = table.find(PLACE, "k")
    assert found is not None
    assert (found.first_error, found.tries, found.since_ms) == ("ValueError: no", 6, 1005)
    assert (origins(table), found.end) == ([5, 8, 9], 9)
    assert table.statistics("billing") == (1, 3, 300)


@pytest.mark.parametrize(
    ("events", "offset", "joins", "verdict"),
    [
        ([], 5, False, Verdict.STORE),
        ([], 5, True, Verdict.LIVE),
        ([FIRST], 5, False, Verdict.PARKED),
        ([FIRST], 8, True, Verdict.STORE),
        ([FIRST, JOINED], 8, True, Verdict.PARKED),
        ([FIRST, Redriven("orders", 0, "k", [5]), Unparked("orders", 0, "k")], 5, True,
         Verdict.PARKED),
        ([FIRST, Redriven("orders", 0, "k", [5]), Unparked("orders", 0, "k")], 8, True,
         Verdict.LIVE),
        ([FIRST, Redriven("orders", 0, "k", [5]), Unparked("orders", 0, "k")], 8, False,
         Verdict.STORE),
        ([FIRST, Redriven("orders", 0, "k", [5]), Unparked("orders", 0, "k"),
          Forgotten("orders", 0)], 5, True, Verdict.LIVE),
        ([FIRST, Forgotten("orders", 0)], 5, True, Verdict.PARKED),
    ],
)  # fmt: skip
def test_a_park_is_judged(events: list[Event], offset: int, joins: bool, verdict: Verdict) -> None:
    """A parked message stays parked; a message that joins a live key is live; others are stored."""
    assert judge(table_of(*events), offset, joins=joins) is verdict


def test_what_is_committed_was_done() -> None:
    """A late request for a message below the committed offset parks nothing again."""
    assert judge(ParkingTable(), 5, joins=False, floor=6) is Verdict.PARKED


def test_a_job_parks_below_the_committed_offset_until_its_batch_is_done() -> None:
    """A job's message below the committed offset is stored once, and known when asked again."""
    late = FIRST._replace(until=20)
    assert judge(ParkingTable(), 5, joins=False, floor=10, until=20) is Verdict.STORE
    assert judge(ParkingTable(), 5, joins=False, floor=20, until=20) is Verdict.PARKED
    assert judge(ParkingTable(), 15, joins=False, floor=15, until=20) is Verdict.STORE
    table = table_of(late, Redriven("orders", 0, "k", [5]), Unparked("orders", 0, "k"))
    table.prune(PLACE, 10)
    assert judge(table, 5, joins=False, floor=10, until=20) is Verdict.PARKED
    assert table.done(PLACE, 10) == []
    restored = saved_and_restored(table)
    assert judge(restored, 5, joins=False, floor=10, until=20) is Verdict.PARKED
    restored.prune(PLACE, 20)
    assert PLACE not in restored.places


def test_messages_of_one_request_know_each_other() -> None:
    """A message may join a key that the same request parks."""
    assert judge(ParkingTable(), 8, before=[FIRST]) is Verdict.STORE


@pytest.mark.parametrize(
    ("limits", "key", "now_ms", "said"),
    [
        (Limits(keys_max=1), "other", 2000, "parked_keys_max"),
        (Limits(bytes_max=150), "k", 2000, "parked_bytes_max"),
        (Limits(age_max_ms=500), "k", 1506, "parked_age_max_ms"),
    ],
)
def test_a_bound_refuses_and_says_which(limits: Limits, key: str, now_ms: int, said: str) -> None:
    """At a limit nothing more is parked; below it everything is."""
    table = table_of(FIRST, limits=limits)
    verdict, why = table.judge(PLACE, 9, key, joins=False, size=100, floor=0, now_ms=now_ms)
    assert verdict is Verdict.FULL
    assert said in why
    assert table.full("another group", now_ms, keys=1) == ""
    below = table_of(FIRST).judge(PLACE, 9, key, joins=False, size=100, floor=0, now_ms=now_ms)
    assert below[0] is Verdict.STORE


def test_a_bound_counts_what_the_request_brings() -> None:
    """Ten new keys in one request are ten keys."""
    table = ParkingTable(Limits(keys_max=1))
    assert judge(table, 9, "other", joins=False, before=[FIRST]) is Verdict.FULL
    assert judge(table, 9, "k", joins=False, before=[FIRST]) is Verdict.STORE


def test_a_list_that_grew_does_not_go_live() -> None:
    """The owner says up to where it redrove; a message behind that keeps the key parked."""
    table = table_of(FIRST, Redriven("orders", 0, "k", [5]))
    assert table.may_unpark(PLACE, "k", 5, successor=False) == ""
    table.apply("billing", JOINED, 9000)
    assert "grew" in table.may_unpark(PLACE, "k", 5, successor=False)
    table.apply("billing", Redriven("orders", 0, "k", [8]), 9100)
    assert "grew" in table.may_unpark(
        PLACE, "k", 5, successor=False
    )  # it handled what it did not name
    assert table.may_unpark(PLACE, "k", 8, successor=False) == ""
    assert table.may_unpark(PLACE, "nobody", 8, successor=False) == ""


def test_a_redrive_that_fails_leaves_the_rest_and_the_new_error() -> None:
    """Handled messages are gone, the first error stays, the redrive is over."""
    table = table_of(FIRST, JOINED, Redriving("orders", 0, "k", 500))
    found = table.find(PLACE, "k")
    assert found is not None
    assert (found.redrive, found.rate) == (2001, 500)
    assert table.wants_redrive(PLACE)
    table.apply("billing", Redriven("orders", 0, "k", [5], "KeyError: again"), 9000)
    assert (found.redrive, found.first_error, found.last_error) == (
        0, "ValueError: no", "KeyError: again",
    )  # fmt: skip
    assert origins(table) == [8]
    assert not table.wants_redrive(PLACE)
    table.apply("billing", Redriving("orders", 0, "k", 0), 9100)
    table.apply("billing", Cancelled("orders", 0, "k"), 9200)
    assert not table.wants_redrive(PLACE)


def test_a_dropped_key_goes_live_by_its_owner() -> None:
    """An operator's drop empties the list; only the owner knows that no handler of it runs."""
    table = table_of(FIRST, JOINED, Dropped("orders", 0, "k", [5, 8], "test data"))
    assert origins(table) == []
    assert table.wants_redrive(PLACE)
    assert table.may_unpark(PLACE, "k", 8, successor=False) == ""
    head = table_of(FIRST, JOINED, Dropped("orders", 0, "k", [5], "bad", whole=False))
    assert origins(head) == [8]
    assert not head.wants_redrive(PLACE)


def test_an_unparked_key_leaves_its_offsets_until_they_are_committed() -> None:
    """The next owner skips redriven messages; committed ones are forgotten."""
    table = table_of(FIRST, JOINED, Redriven("orders", 0, "k", [5, 8]), Unparked("orders", 0, "k"))
    assert table.find(PLACE, "k") is None
    assert table.statistics("billing") == (0, 0, 0)
    assert table.done(PLACE, 0) == [(5, 6), (8, 9)]
    assert table.done(PLACE, 6) == [(8, 9)]
    table.prune(PLACE, 6)
    assert table.done(PLACE, 0) == [(8, 9)]
    table.prune(PLACE, 9)
    assert table.version(*PLACE) == 0
    assert not table.places


def test_parked_offsets_are_kept_as_long_as_they_are_parked() -> None:
    """Also below the committed offset, because the offset may be reset."""
    table = table_of(FIRST)
    table.prune(PLACE, 100)
    assert judge(table, 5) is Verdict.PARKED


def test_every_event_changes_the_version() -> None:
    """Also one that changes nothing else: an owner that missed something notices."""
    table = table_of(FIRST)
    assert table.version(*PLACE) == 1
    table.apply("billing", Unparked("orders", 0, "nobody"), 7000)
    assert table.version(*PLACE) == 7001
    assert table.version("billing", "orders", 1) == 0


def test_a_message_stored_again_lies_elsewhere() -> None:
    """A message that is stored again before retention is the same message."""
    table = table_of(FIRST, FIRST)
    found = table.find(PLACE, "k")
    assert found is not None
    assert [(one.origin, one.position) for one in found.messages] == [(5, 1000)]
    assert table.oldest_position() == 1000
    assert table.statistics("billing") == (1, 1, 100)


def test_a_key_that_moves_is_redriven_by_the_new_queue_alone() -> None:
    """Its list stays; the successor, not the old owner, lets it go live when the list is empty."""
    table = table_of(FIRST, Moved("orders", 0, "k", ELSEWHERE))
    assert "moved" in table.may_unpark(PLACE, "k", 5, successor=False)
    assert "grew" in table.may_unpark(PLACE, "k", 5, successor=True)
    table.apply("billing", Redriven("orders", 0, "k", [5]), 9000)
    assert table.may_unpark(PLACE, "k", 5, successor=True) == ""
    assert "not moved" in table_of(FIRST).may_unpark(PLACE, "k", 5, successor=True)


def test_a_key_that_is_redriven_cannot_move_yet() -> None:
    """The release into the next key map waits; a moved key does not move again."""
    table = table_of(FIRST)
    assert table.may_leave(PLACE, "k", ()) is True
    table.apply("billing", Redriving("orders", 0, "k", 0), 9000)
    assert table.may_leave(PLACE, "k", ()) is False
    moved = table_of(FIRST, Moved("orders", 0, "k", ELSEWHERE))
    assert moved.may_leave(PLACE, "k", ()) is None
    assert moved.may_leave(PLACE, "nobody", ()) is None


def test_an_installed_key_is_parked_until_its_older_list_is_drained() -> None:
    """Its messages join it at its new place; nothing is live before the older list is empty."""
    coming = Installed("orders", 0, "k", ELSEWHERE, 500, "ValueError: no", 6, "k")
    table = table_of(coming)
    assert judge(table, 0) is Verdict.STORE
    assert "older" in table.may_unpark(PLACE, "k", -1, successor=False)
    table.apply("billing", Redriven("orders", 0, "k", older=ELSEWHERE), 9000)
    assert table.may_unpark(PLACE, "k", -1, successor=False) == ""
    assert table_of(coming).may_come(PLACE, "k", ELSEWHERE, 2) is None
    assert ParkingTable().may_come(PLACE, "k", ELSEWHERE, 2) is True


def test_older_lists_come_in_the_order_of_the_versions_by_which_they_came() -> None:
    """A replay may bring the older one later; it may bring one again, by an older version."""
    third, places = QueuePlace("broker-c", 0), [QueuePlace("broker-b", n) for n in (0, 1)]
    table = table_of(
        *(Installed("orders", 0, "k", place, 500, version=version)
          for place, version in ((third, 4), (places[0], 2), (places[1], 2)))
    )  # fmt: skip
    found = table.find(PLACE, "k")
    assert found is not None
    assert found.older_until(None) == [*places, third]
    assert (found.older_until(3), found.older_until(1)) == (places, [])
    assert table.may_come(PLACE, "k", third, 4) is None
    assert table.may_come(PLACE, "k", third, 1) is True
    table.apply("billing", Installed("orders", 0, "k", third, 500, version=1), 9000)
    table.apply("billing", Installed("orders", 0, "k", third, 500, version=4), 9100)
    assert found.older_until(None) == [third, *places]
    restored = saved_and_restored(table).find(PLACE, "k")
    assert restored == found


def test_what_is_parked_waits_for_what_a_reset_brings_again() -> None:
    """The table knows it until the group has passed it again, also over restarts."""
    drained = Redriven("orders", 0, "k", [8])
    table = table_of(FIRST, JOINED, Forgotten("orders", 0), drained, Forgotten("orders", 0))
    for one in (table, saved_and_restored(table)):
        one.prune(PLACE, 8)
        assert one.places[PLACE].replay_until == 9
        one.prune(PLACE, 9)
        assert one.places[PLACE].replay_until == 0


def test_what_a_reset_brings_again_is_parked_though_the_group_is_full() -> None:
    """Redrives wait for a replay, so a replay may exceed the limit, up to a higher one."""
    for limits in (Limits(keys_max=1), Limits(bytes_max=100), Limits(age_max_ms=1)):
        table = ParkingTable(limits)
        table.apply("billing", FIRST, 1000)
        table.apply("billing", Forgotten("orders", 0), 2000)
        for key, offset, size, verdict in [
            ("k", 4, 50, Verdict.STORE),
            ("other", 3, 50, Verdict.STORE),
            ("other", 5, 50, Verdict.PARKED),
            ("other", 6, 50, Verdict.FULL),
            ("k", 4, 1600, Verdict.FULL if limits.bytes_max == 100 else Verdict.STORE),
        ]:
            found, _ = table.judge(
                PLACE, offset, key, joins=False, size=size, floor=0, now_ms=10_000
            )
            assert found is verdict, (limits, key, offset)


def test_a_key_does_not_come_back_onto_its_own_older_list() -> None:
    """Otherwise its newest messages would join its oldest: it must be redriven first."""
    table = table_of(FIRST, Moved("orders", 0, "k", ELSEWHERE, 3))
    assert table.may_come(PLACE, "k", ELSEWHERE, 4) is False
    assert table.may_come(PLACE, "k", ELSEWHERE, 3) is False
    assert table.may_come(PLACE, "k", ELSEWHERE, 2) is True, "it comes before that, in a replay"


def test_a_key_that_would_come_back_stays_where_it_can_be_redriven() -> None:
    """A key with an older list in the target queue is not marked: no owner would redrive it."""
    home, away = QueuePlace("broker-a", 0), QueuePlace("broker-a", 1)
    there = PLACE._replace(queue_id=1)
    table = table_of(
        FIRST,
        Moved("orders", 0, "k", away, 2),
        Installed("orders", 1, "k", home, 500, "ValueError: no", 6, "k", 2),
    )
    assert table.left(PLACE, 1) == frozenset(), "it has not left by then"
    assert table.left(PLACE, 2) == table.left(PLACE, 3) == {"k"}
    assert table.left(there, 3) == frozenset()
    assert table.may_leave(there, "k", table.left(PLACE, 3)) is False
    table.apply("billing", Redriven("orders", 0, "k", [5]), 9000)
    assert table.may_leave(there, "k", table.left(PLACE, 3)) is False
    table.apply("billing", Unparked("orders", 0, "k"), 9100)
    assert table.left(PLACE, 3) == frozenset()
    assert table.may_leave(there, "k", table.left(PLACE, 3)) is True
    assert table.may_come(PLACE, "k", away, 3) is True
