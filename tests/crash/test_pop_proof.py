"""Consumers that pop in order, killed and frozen, and a broker that is killed: a sample."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.crash.pops import Plan, run
from tests.kit.pophistory import Ack, Grant, PopHistory, Reset

SEED = int(os.environ.get("INORDER_SEED", "1"))


@pytest.mark.sample
def test_what_is_popped_is_in_order_over_kills_and_frozen_consumers(tmp_path: Path) -> None:
    """Late acknowledgements are refused; `make proof-pops` does it for ten minutes."""
    plan = Plan(seconds=8, seed=SEED, members=3, invisible_ms=1000, pause_s=(0.3, 1.0), rate=25)
    report, figures, wrong = asyncio.run(run(plan, tmp_path))
    print(f"seed={SEED} {figures}")
    assert not wrong, "\n".join(wrong[:20])
    assert report.ok, f"seed={SEED}: {report}"
    assert min(figures.events[what] for what in ("freeze", "kill", "broker")) > 0
    assert figures.counted["stale_acks_refused"] > 0


def batch(token: int, first: int, last: int, sent: int, **more: object) -> Grant:
    """Return a batch of queue 0 that lasts a hundred milliseconds; times in milliseconds."""
    offsets = tuple(range(first, last + 1))
    until_ns = dict.fromkeys(offsets, (sent + 100) * 1_000_000)
    at_ns = (sent + 1) * 1_000_000
    client = str(more.get("client", f"c{token}"))
    return Grant(
        client, f"{client}-{sent}", "t", 0, token, offsets, sent * 1_000_000, at_ns, until_ns
    )


def ack(grant: Grant, offset: int, sent: int, code: int | None = 0) -> Ack:
    """Return an acknowledgement, and note it in its batch."""
    sent_ns = sent * 1_000_000
    grant.asked.setdefault(offset, sent_ns)
    if code == 0:
        grant.taken.setdefault(offset, sent_ns + 1)
    return Ack(grant, (offset,), sent_ns, sent_ns + 1, code)


def words(history: PopHistory) -> list[str]:
    """Return what the judge says."""
    return list(history.judge())


def test_a_clean_history_is_clean() -> None:
    """One batch after the other, each acknowledged; one that timed out begins again."""
    first, second, third = batch(1, 0, 1, 0), batch(2, 2, 4, 10), batch(3, 3, 5, 200)
    acks = [ack(first, 0, 2), ack(first, 1, 3), ack(second, 2, 12), ack(second, 3, 205, 4)]
    history = PopHistory([first, second, third], acks)
    assert words(history) == []
    assert history.stale == 1


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (batch(2, 1, 2, 50), "before t/0 0-1 token 1 of c1 was over"),
        (batch(1, 0, 2, 300), "is not above that of"),
        (batch(2, 2, 3, 300), "begins behind [1]"),
        (batch(2, 0, 3, 300), "0 was acknowledged by"),
    ],
)
def test_what_is_wrong_with_a_batch_is_said(second: Grant, said: str) -> None:
    """Too early; under a token of before; past what is not done; with what is."""
    first = batch(1, 0, 1, 0, client="c1")
    history = PopHistory([first, second], [ack(first, 0, 2)])
    assert any(said in text for text in words(history)), words(history)


def test_what_is_taken_under_an_old_token_is_said() -> None:
    """After the next batch, and under two tokens; a reset allows the latter."""
    first, second = batch(1, 0, 1, 0), batch(2, 0, 1, 300)
    late = ack(first, 0, 310)
    history = PopHistory([first, second], [late])
    assert any("was acknowledged after" in text for text in words(history))
    first, second = batch(1, 0, 1, 0), batch(2, 1, 1, 300)
    acks = [ack(first, 0, 1), ack(first, 1, 2), ack(second, 1, 310)]
    assert any("acknowledged by" in text for text in words(PopHistory([first, second], acks)))
    reset = Reset(0, 0, 5_000_000, 2)
    assert words(PopHistory([first, second], acks, resets=[reset])) == []


def test_a_change_after_the_end_is_said() -> None:
    """It would give the old owner time that is the next one's."""
    first, second = batch(1, 0, 0, 0), batch(2, 0, 0, 300)
    history = PopHistory([first, second], [], [ack(first, 0, 400)])
    history.grants[0].taken.clear()
    assert any("was changed after it was over" in text for text in words(history))
