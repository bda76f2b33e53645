"""What a job tells while it runs, and what its errors say."""

from __future__ import annotations

from typing import Any

import pytest

from inorder.errors import ConfigError, InorderError
from inorder.spark.jobs.lag import Sample, samples_of, summed
from inorder.spark.jobs.progress import Followed, as_ours


def progress(batch: int, start: dict[str, int] | None, end: dict[str, int]) -> dict[str, Any]:
    def offset(queues: dict[str, int]) -> dict[str, Any]:
        begin = {"orders": {"broker-a": {"0": 5, "1": 0}}}
        return {"v": 1, "init": begin, "q": {"orders": {"broker-a": queues}}}

    return {
        "batchId": batch,
        "timestamp": "2026-11-15T12:00:00.500Z",
        "durationMs": {"triggerExecution": 500},
        "sources": [
            {
                "startOffset": None if start is None else offset(start),
                "endOffset": offset(end),
                "latestOffset": offset({"0": 100, "1": 50}),
            }
        ],
    }


def test_steps_follow_the_micro_batches() -> None:
    """Each micro-batch counts once, with its rate and what is left."""
    found = Followed()
    first = found.take(progress(0, {"0": 0, "1": 0}, {"0": 30, "1": 20}))
    assert first is not None
    assert (first.done, first.total, first.lag, first.messages_per_s) == (50, 150, 100, 100.0)
    assert found.take(progress(0, {"0": 0, "1": 0}, {"0": 30, "1": 20})) is None
    second = found.take(progress(1, {"0": 30, "1": 20}, {"0": 100, "1": 50}))
    assert second is not None
    assert (second.done, second.lag, found.batches) == (150, 0, 2)


def test_the_first_micro_batch_counts_from_where_the_stream_began() -> None:
    """It has no start offset; the stream began at 5 and 0."""
    first = Followed().take(progress(0, None, {"0": 30, "1": 20}))
    assert first is not None
    assert first.done == 45


def test_lag_is_in_the_progress_of_a_query() -> None:
    """What was done and what was stored, queue by queue, at the time of the progress."""
    found = samples_of([progress(0, None, {"0": 30, "1": 20})], "archive")
    assert [(one.queue, one.lag) for one in found] == [(0, 70), (1, 30)]
    assert summed(found) == {found[0].at_ms: (100, 50, 150)}
    assert Sample(0, "g", "t", "b", 0, 9, 7).lag == 0


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("[X] Traceback (most recent call last):\n  File\ninorder.errors.ConfigError: say it\n\n",
         ConfigError, "say it"),
        ("Job aborted\npyspark…\ninorder.spark.planning.DataLoss: 3 to 5 are gone\n\tat java",
         InorderError, "3 to 5 are gone"),
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited\nmore", InorderError,
         "Spark: [JAVA_GATEWAY_EXITED] Java gateway process exited"),
    ],
)  # fmt: skip
def test_an_error_of_ours_is_found_under_those_of_spark(
    text: str, kind: type[InorderError], says: str
) -> None:
    """Users read the sentence that was written for them."""
    found = as_ours(RuntimeError(text))
    assert type(found) is kind
    assert str(found) == says
