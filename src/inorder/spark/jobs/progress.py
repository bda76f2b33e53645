"""How far a job is, reported while it runs, and what went wrong, without the layers of Spark.

    summary = follow(query, watch)      until the query ends; its error is raised as an InorderError

Spark keeps the progress of the last hundred micro-batches. Each says from where to where it read
(`startOffset`, `endOffset`) and where the queues end (`latestOffset`).

An InorderError in a task or in the source reaches the driver as text inside a Java error inside a
Python error. Users get the sentence that was written for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from inorder import errors
from inorder.spark.source.rules import Places, from_json

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_OURS: Final = re.compile(r"^(?:\w+Error: )?inorder\.[\w.]*?\b([A-Z]\w+): (.+)$", re.MULTILINE)
_SENTENCE_MAX: Final = 500


def as_ours(error: BaseException) -> errors.InorderError:
    """Return the InorderError inside a Spark error; else a short one that names it."""
    if isinstance(error, errors.InorderError):
        return error
    text = str(error)
    found = _OURS.findall(text)
    if found:
        name, sentence = found[-1]
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, errors.ConfigError | errors.UsageError):
            return kind(sentence.strip())
        return errors.InorderError(sentence.strip())
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return errors.InorderError(f"Spark: {first[:_SENTENCE_MAX] or type(error).__name__}")


POLL_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Step:
    """How far a job is: messages done, and in all as far as is known."""

    done: int
    total: int | None = None
    batch: int | None = None
    messages_per_s: float = 0.0

    @property
    def lag(self) -> int | None:
        """Return how many messages are still to be done."""
        return None if self.total is None else max(0, self.total - self.done)


Watch = Callable[[Step], None]


def unwatched(_: Step) -> None:
    """Ignore a step: for jobs without a watch."""


@dataclass(slots=True)
class Followed:
    """The progress of a query while it was followed."""

    done: int = 0
    batches: int = 0
    last_batch: int = -1
    began: int | None = None

    def take(self, progress: Mapping[str, Any]) -> Step | None:
        """Add one micro-batch; None if it is known already, or brought nothing."""
        batch = int(progress["batchId"])
        source = progress["sources"][0]
        end = places_of(source.get("endOffset"))
        # The first micro-batch of all has no start; where it began travels with every offset.
        start = places_of(source.get("startOffset")) or places_of(source.get("endOffset"), "init")
        if batch <= self.last_batch or not end:
            return None
        self.last_batch = batch
        count = sum(max(0, offset - start.get(queue, 0)) for queue, offset in end.items())
        self.done += count
        self.batches += bool(count)
        latest = places_of(source.get("latestOffset")) or end
        behind = sum(max(0, offset - end.get(queue, 0)) for queue, offset in latest.items())
        took_s = max(progress.get("durationMs", {}).get("triggerExecution", 0), 1) / 1000
        return Step(self.done, self.done + behind, batch, count / took_s)


def follow(query: StreamingQuery, watch: Watch = unwatched) -> Followed:
    """Tell the steps of a query until it ends; stop it if the caller is interrupted.

    Raises the error of the query as an InorderError.
    """
    found = Followed()
    try:
        ended = False
        while not ended:
            try:
                ended = bool(query.awaitTermination(POLL_S))
            finally:
                _tell(query, found, watch)
    except KeyboardInterrupt:
        query.stop()
        raise
    except Exception as error:  # Spark wraps errors of tasks in its own
        raise as_ours(error) from error
    return found


def _tell(query: StreamingQuery, found: Followed, watch: Watch) -> None:
    for progress in query.recentProgress:
        step = found.take(progress)
        if step is not None:
            watch(step)


def places_of(offset: object, part: str = "q") -> Places:
    """Return the places of an offset as Spark's progress shows it; nothing for the very start."""
    value = json.loads(offset) if isinstance(offset, str) else offset
    if not isinstance(value, dict) or part not in value:
        return {}
    return from_json(value[part], "progress")
