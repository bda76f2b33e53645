"""One group of several client libraries, members killed, frozen and added while messages flow: on
our broker our consumer among Java 4, Java 5, C++ and Go; on Apache RocketMQ as a guest of Java's.

Both run at the same time: most of it is waiting for timers of clients. `make proof-mixed` does it
at random for longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.interop.crowd import Verdict
from tests.interop.mixed import STORIES, Story
from tests.interop.toolchains import Lacking

pytestmark = [pytest.mark.interop, pytest.mark.slow]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Verdict]]]:
    """Play all stories at the same time."""
    with ThreadPoolExecutor(len(STORIES)) as pool:
        yield {
            story.name: pool.submit(story.play, tmp_path_factory.mktemp(story.name))
            for story in STORIES
        }


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_a_mixed_group_handles_all_in_order_and_agrees(
    story: Story, verdicts: dict[str, Future[Verdict]]
) -> None:
    """Every message is handled, first deliveries of a queue come in order, after each change every
    queue has one owner, the one that the allocation gives it, and ours never handles beside it."""
    try:
        verdict = verdicts[story.name].result()
    except Lacking as lacking:
        pytest.skip(f"{story.name} cannot run here: {lacking}")
    print(f"{story.name}\n{verdict}\n{verdict.report.counts}")
    assert verdict.wrong == []
    assert not verdict.report.vacuous
    assert set(verdict.by_member) == story.members
    assert [name for _, name in verdict.counted if name.startswith("ours")] == []
