"""The table of idempotent producers: runs of replies, rollback, bounds, fencing."""

from __future__ import annotations

import pytest

from inorder.broker.producers import rules as module
from inorder.broker.producers.rules import Producer, ProducerQueueState, ProducerTable
from inorder.errors import InvalidParameter, ProducersFull, ProducerStale, ProducerUnknown


def made(
    table: ProducerTable[str], producer_id: str, connection: str = "c", *, named: bool = False
) -> Producer[str]:
    """Say hello."""
    return table.hello(producer_id, 1, connection, named=named)


def counted(table: ProducerTable[str], producer_id: str = "p") -> ProducerQueueState[str]:
    """Return the state of a new producer on a queue."""
    return table.add_queue(made(table, producer_id), "T", 0)


def test_answers_are_found_in_runs() -> None:
    """Offsets that follow one another are one run; others begin a new one."""
    table: ProducerTable[str] = ProducerTable()
    numbers = counted(table)
    for number, offset in enumerate([5, 6, 7, 20, 21, 30]):
        table.stored(numbers, number, offset)
    assert [numbers.find(number) for number in range(6)] == [5, 6, 7, 20, 21, 30]
    assert numbers.find(6) is None
    assert numbers.find(-1) is None
    assert len(numbers.runs) == 2 * 3


def test_gaps_of_a_named_producer_have_no_answer() -> None:
    """Between 10 and 20 nothing was stored, so nothing is remembered."""
    table: ProducerTable[str] = ProducerTable()
    numbers = counted(table)
    for offset, number in enumerate([10, 20, 21]):
        table.stored(numbers, number, offset)
    assert [numbers.find(number) for number in (9, 10, 15, 20, 21)] == [None, 0, None, 1, 2]


def test_a_message_that_lies_elsewhere_has_a_run_of_its_own() -> None:
    """A delayed message is remembered by its position; numbers around it keep their offsets."""
    table: ProducerTable[str] = ProducerTable()
    numbers = counted(table)
    for number, value in enumerate([0, -2 - 4096, 1, 2]):
        table.stored(numbers, number, value)
    assert [numbers.find(number) for number in range(4)] == [0, -4098, 1, 2]


def test_at_least_the_last_1024_answers_are_kept() -> None:
    """Where no two offsets follow one another the oldest answers go, the numbers stay."""
    table: ProducerTable[str] = ProducerTable()
    numbers = counted(table)
    for number in range(5000):
        table.stored(numbers, number, 2 * number)
    assert [numbers.find(number) for number in range(5000 - 1024, 5000)] == list(
        range(2 * (5000 - 1024), 10_000, 2)
    )
    assert len(numbers.runs) <= 2 * 1024 * 3
    assert numbers.find(0) is None
    assert numbers.last == 4999


@pytest.mark.parametrize("settled", range(8))
def test_a_failed_tick_takes_its_numbers_back(settled: int) -> None:
    """Wherever in the runs the tick began, what was there before is there again."""
    offsets = [3, 4, 10, 11, 12, 20, 30, 31]
    table: ProducerTable[str] = ProducerTable()
    numbers = counted(table)
    for number, offset in enumerate(offsets[:settled]):
        table.stored(numbers, number, offset)
    table.settle()
    for number, offset in enumerate(offsets[settled:], settled):
        table.stored(numbers, number, offset)
    table.roll_back()
    assert numbers.last == settled - 1
    assert [numbers.find(number) for number in range(9)] == [
        *offsets[:settled], *[None] * (9 - settled),
    ]  # fmt: skip
    for number, offset in enumerate(offsets[settled:], settled):
        table.stored(numbers, number, offset + 100)
    table.settle()
    assert [numbers.find(number) for number in range(8)] == [
        *offsets[:settled], *[offset + 100 for offset in offsets[settled:]],
    ]  # fmt: skip


def test_settled_leaves_out_the_open_tick() -> None:
    """What a snapshot takes is what is written, and the table itself does not change."""
    table: ProducerTable[str] = ProducerTable()
    numbers = counted(table)
    table.stored(numbers, 0, 0)
    table.settle()
    table.stored(numbers, 1, 7)
    assert numbers.settled().last == 0
    assert numbers.settled().find(1) is None
    assert numbers.last == 1
    assert numbers.find(1) == 7


def test_the_idle_anonymous_producer_is_forgotten_and_told() -> None:
    """At the limit the longest idle one goes; its connection gets UNKNOWN, not STALE."""
    table: ProducerTable[str] = ProducerTable(producers_max=10)
    for index in range(10):
        table.stored(table.add_queue(made(table, f"p{index}", f"c{index}"), "T", 0), 0, index)
    table.settle()
    first = table.queue_state("p0", "T", 0)
    assert first is not None
    table.stored(first, 1, 10)
    table.settle()
    made(table, "new")
    assert len(table) == 10
    assert table.find("p1") is None
    assert table.queue_state("p1", "T", 0) is None
    assert table.find("p0") is not None
    with pytest.raises(ProducerUnknown):
        table.speaker("p1", "c1")
    with pytest.raises(ProducerStale):
        table.speaker("p1", "another")


def test_who_may_have_been_forgotten_is_not_taken_for_new() -> None:
    """A hello with an older memory is refused if the producer is not known any more."""
    table: ProducerTable[str] = ProducerTable(producers_max=2)
    memory = table.memory
    made(table, "a")
    made(table, "b")
    made(table, "c")
    with pytest.raises(ProducerUnknown):
        table.hello("a", 2, "c2", named=False, memory=memory)
    assert table.hello("c", 2, "c2", named=False, memory=memory).id == "c"
    table.hello("fresh", 1, "c2", named=False, memory=-1)


def test_names_are_never_forgotten() -> None:
    """A new name at its bound is refused; anonymous producers keep a tenth of the room."""
    table: ProducerTable[str] = ProducerTable(producers_max=10)
    for index in range(9):
        made(table, f"name{index}", named=True)
    with pytest.raises(ProducersFull):
        made(table, "one more", named=True)
    for index in range(5):
        made(table, f"p{index}")
    assert table.names == [f"name{index}" for index in range(9)]
    assert len(table) == 10


def test_a_dropped_name_begins_again() -> None:
    """Drop says on how many queues it was known, and makes room."""
    table: ProducerTable[str] = ProducerTable()
    producer = made(table, "job", named=True)
    for queue_id in range(3):
        table.stored(table.add_queue(producer, "T", queue_id), 10, queue_id)
    assert table.drop_name("job") == 3
    assert table.drop_name("job") is None
    table.roll_back()
    assert table.queue_state("job", "T", 0) is None


def test_a_deleted_topic_is_forgotten() -> None:
    """Numbers on its queues go, those on others stay."""
    table: ProducerTable[str] = ProducerTable()
    producer = made(table, "p")
    for topic in ("A", "B"):
        table.stored(table.add_queue(producer, topic, 0), 0, 0)
    table.settle()
    assert table.drop_topic("A") == 1
    assert list(producer.queues) == [("B", 0)]
    assert table.on_queue("A", 0) == {}


def test_the_last_to_say_hello_speaks() -> None:
    """A lower incarnation is refused, an equal or higher one over another connection takes over."""
    table: ProducerTable[str] = ProducerTable()
    table.hello("p", 5, "c1", named=False)
    with pytest.raises(ProducerStale) as raised:
        table.hello("p", 4, "c2", named=False)
    assert raised.value.highest == 5
    assert table.speaker("p", "c1").highest == 5
    table.hello("p", 5, "c2", named=False)
    with pytest.raises(ProducerStale):
        table.speaker("p", "c1")
    table.connection_lost("c1")
    assert table.speaker("p", "c2").id == "p"
    table.connection_lost("c2")
    with pytest.raises(ProducerStale):
        table.speaker("p", "c2")


def test_a_name_is_not_an_anonymous_id() -> None:
    """The kinds do not mix."""
    table: ProducerTable[str] = ProducerTable()
    made(table, "p", named=True)
    with pytest.raises(InvalidParameter):
        made(table, "p")


def test_queues_are_bounded_too() -> None:
    """A producer that uses more queues than there is room for makes idle ones go, never itself."""
    table: ProducerTable[str] = ProducerTable(producers_max=2)
    idle, busy = made(table, "idle"), made(table, "busy")
    table.add_queue(idle, "T", 0)
    for queue_id in range(1, 8):
        table.add_queue(busy, "T", queue_id)
    table.add_queue(busy, "T", 8)
    assert table.find("idle") is None
    with pytest.raises(ProducersFull):
        table.add_queue(busy, "T", 9)


def test_remembered_answers_are_bounded_in_total(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old answers of idle producers go first; numbers stay, and the latest answer of each."""
    monkeypatch.setattr(module, "RUNS_TOTAL_MAX", 100)
    table: ProducerTable[str] = ProducerTable()
    first, second = counted(table, "first"), counted(table, "second")
    for number in range(60):
        for numbers in (first, second):
            table.stored(numbers, number, 2 * number)
        table.settle()
    assert (first.last, second.last) == (59, 59)
    assert (first.find(59), second.find(59)) == (118, 118)
    assert len(first.runs) + len(second.runs) <= 100 * 3


@pytest.mark.parametrize("known", [[], [0, 1, 2], [0, 1, 2, 3, 4]])
def test_replay_ends_where_the_log_does(known: list[int]) -> None:
    """Whatever a snapshot knew of the messages behind it, counting them again changes nothing."""
    table: ProducerTable[str] = ProducerTable()
    for number in known:
        table.replayed("p", "T", 0, number, 3 * number, named=False)
    for number in range(5):
        table.replayed("p", "T", 0, number, 3 * number, named=False)
    numbers = table.queue_state("p", "T", 0)
    assert numbers is not None
    assert numbers.last == 4
    assert [numbers.find(number) for number in range(6)] == [0, 3, 6, 9, 12, None]


def test_replay_of_a_name_that_began_again() -> None:
    """The log is right: a topic that was deleted and made again has the later, lower numbers."""
    table: ProducerTable[str] = ProducerTable()
    for offset, number in enumerate([10, 20, 50]):
        table.replayed("job", "T", 0, number, offset, named=True)
    table.replayed("job", "T", 0, 5, 0, named=True)
    numbers = table.queue_state("job", "T", 0)
    assert numbers is not None
    assert numbers.last == 5
    assert [numbers.find(number) for number in (5, 10, 50)] == [0, None, None]


def test_hellos_without_end_cost_nothing() -> None:
    """One connection that speaks for ever new producers is remembered for a bounded number."""
    table: ProducerTable[str] = ProducerTable(producers_max=10)
    for index in range(5000):
        made(table, f"p{index}")
    assert len(table) == 10
    assert len(table._spoken["c"]) == 10
    assert len(table._forgotten["c"]) == module.FORGOTTEN_MAX
    table.connection_lost("c")
    assert not table._spoken
    assert not table._forgotten


def test_places_are_told_in_runs() -> None:
    """From a number on, as far as remembered; of what lies elsewhere it is not told."""
    table: ProducerTable[str] = ProducerTable()
    numbers = counted(table)
    for number, value in enumerate([5, 6, 7, 20, 21, -2 - 4096, 30]):
        table.stored(numbers, number, value)
    assert list(numbers.places(0, 1024)) == [(5, 3), (20, 2), (-1, 1), (30, 1)]
    assert list(numbers.places(1, 3)) == [(6, 2), (20, 1)]
    assert list(numbers.places(6, 1024)) == [(30, 1)]
    assert list(numbers.places(7, 1024)) == []


def test_places_that_are_forgotten_are_unknown() -> None:
    """One by one; the rest is told."""
    table: ProducerTable[str] = ProducerTable()
    numbers = counted(table)
    for number, value in enumerate([5, 6, 20, 21]):
        table.stored(numbers, number, value)
    numbers.forget_runs()
    assert list(numbers.places(0, 1024)) == [(-1, 1), (-1, 1), (20, 2)]
