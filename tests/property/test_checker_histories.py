"""The order checker against generated histories: silent on good ones, never on a planted fault."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from inorder.checker import (
    Committed,
    Event,
    Handled,
    HandledResult,
    Kind,
    Sent,
    SentResult,
    Stored,
    check,
)

KEYS = ("a", "b", "c", None)


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Return what a correct system leaves behind: interleaved producers, two queues, a consumer."""
    script = draw(
        st.lists(
            st.tuples(st.sampled_from(("p1", "p2")), st.sampled_from(KEYS)), min_size=2, max_size=40
        )
    )
    events: list[Event] = []
    ends = {"q0": draw(st.integers(0, 5)), "q1": 0}
    sequences: dict[tuple[str, str | None], int] = {}
    clock = 0
    for number, (producer, key) in enumerate(script):
        outcome = draw(st.sampled_from(("ok", "ok", "ok", "unknown", "vanished", "failed")))
        sequence = sequences[producer, key] = sequences.get((producer, key), 0) + 1
        id_ = f"m{number}"
        queue = "q0" if key in ("a", None) else "q1"
        result = SentResult.UNKNOWN if outcome == "vanished" else SentResult(outcome)
        offset = ends[queue]
        acknowledged = result is SentResult.OK
        events.append(
            Sent(
                producer,
                key,
                sequence,
                id_,
                result,
                queue if acknowledged else None,
                offset if acknowledged else None,
            )
        )
        if outcome in ("vanished", "failed"):
            continue
        ends[queue] += 1
        events.append(Stored(queue, offset, id_, key, sequence))
        for attempt in range(draw(st.integers(1, 2)), 0, -1):
            result_of_run = HandledResult.DONE if attempt == 1 else HandledResult.FAILED
            events.append(Handled("c", queue, offset, id_, key, clock, clock + 2, result_of_run))
            clock += draw(st.integers(2, 5))
        events.append(Committed("c", queue, offset + 1, clock))
    return draw(st.permutations(events))


def pick(draw: st.DataObject, choices: list[Event]) -> Event | None:
    """Return one of the events, None if there are none."""
    return draw.draw(st.sampled_from(choices)) if choices else None


@given(histories())
def test_a_correct_history_never_has_findings(history: list[Event]) -> None:
    """Interleaving, time-outs, refusals and retries are all legal."""
    assert not check(history).findings


@given(histories(), st.data())
def test_a_planted_loss_is_always_found(history: list[Event], data: st.DataObject) -> None:
    """Take away a record that was acknowledged."""
    acknowledged = {e.id for e in history if isinstance(e, Sent) and e.result is SentResult.OK}
    victim = pick(data, [e for e in history if isinstance(e, Stored) and e.id in acknowledged])
    others = [e for e in history if isinstance(e, Stored) and e is not victim]
    if victim is None or not others:
        return
    report = check([e for e in history if e is not victim])
    assert any(f.kind is Kind.LOST and f.detail["id"] == victim.id for f in report.findings)


@given(histories(), st.data())
def test_a_planted_duplicate_is_always_found(history: list[Event], data: st.DataObject) -> None:
    """Store a record once more at the end of its queue."""
    records = [e for e in history if isinstance(e, Stored)]
    victim = pick(data, records)
    if victim is None:
        return
    end = 1 + max(e.offset for e in records if e.queue == victim.queue)
    report = check([*history, replace(victim, offset=end)])
    assert any(f.kind is Kind.DOUBLED and f.detail["id"] == victim.id for f in report.findings)


@given(histories(), st.data())
def test_a_planted_swap_is_always_found(history: list[Event], data: st.DataObject) -> None:
    """Exchange the places of two acknowledged records of one producer, key and queue."""
    sends = {e.id: e for e in history if isinstance(e, Sent) and e.result is SentResult.OK}
    lines: dict[tuple[str, str | None], list[Stored]] = {}
    for event in history:
        if isinstance(event, Stored) and event.key is not None and event.id in sends:
            lines.setdefault((sends[event.id].producer, event.key), []).append(event)
    pairs = [line for line in lines.values() if len(line) > 1]
    if not pairs:
        return
    one, two = data.draw(st.permutations(data.draw(st.sampled_from(pairs))))[:2]
    swapped = {one.id: replace(one, offset=two.offset), two.id: replace(two, offset=one.offset)}
    events = [swapped[e.id] if isinstance(e, Stored) and e.id in swapped else e for e in history]
    assert Kind.INVERTED in check(events).by_kind


@given(histories(), st.data())
def test_a_planted_second_effect_is_always_found(history: list[Event], data: st.DataObject) -> None:
    """Handle a message again, long after."""
    runs = [e for e in history if isinstance(e, Handled) and e.result is HandledResult.DONE]
    victim = pick(data, runs)
    if victim is None:
        return
    again = replace(victim, client="c2", start_ns=10**6, end_ns=10**6 + 1)
    report = check([*history, again])
    assert any(f.kind is Kind.DOUBLED and f.detail["id"] == victim.id for f in report.findings)


@given(histories(), st.data())
def test_a_planted_early_commit_is_always_found(history: list[Event], data: st.DataObject) -> None:
    """Commit past a message before its handler ended."""
    victim = pick(data, [e for e in history if isinstance(e, Handled)])
    if victim is None:
        return
    early = Committed("c", victim.queue, victim.offset + 1, at_ns=victim.start_ns - 1)
    done_before = any(
        isinstance(e, Handled) and e.id == victim.id and e.settled and e.until_ns < victim.start_ns
        for e in history
    )
    assert not done_before
    assert Kind.COMMIT_SKIP in check([*history, early]).by_kind
