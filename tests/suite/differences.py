"""What Apache RocketMQ does otherwise than our broker, as a user of our client sees it.

Each line belongs to tests that show both sides: `cluster.differs("name")` is true on RocketMQ.
docs/reference/on-rocketmq.md is made from this table by `python -m tests.suite.differences`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "on-rocketmq.md"

HEAD = """\
# The client on Apache RocketMQ

Made by `python -m tests.suite.differences`; do not edit.

One test-suite (`tests/suite`) holds for our broker, in `make test`, and for Apache RocketMQ 5.3.3,
in `make interop`: sending by key, by selector, in batches, packed and one-way; pulling, seeking by
offset and time, committing and going on; consuming as a member of a group, in order, concurrently
and broadcasting; finding by key, id, offset and time; every verb of `Admin`. Nothing of it is left
out on RocketMQ. What comes out differently there is in this table, and the tests assert both sides.

| | on inorder | on Apache RocketMQ 5.3.3 |
|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """One line of the table."""

    name: str
    what: str
    ours: str
    theirs: str

    @property
    def row(self) -> str:
        """Return the line of the page."""
        return f"| {self.what} | {self.ours} | {self.theirs} |\n"


DIFFERENCES = (
    Difference(
        "stored-once",
        "a send whose answer was lost",
        "is sent again and stored once; the receipt names the first copy",
        "is sent again and stored a second time, behind the first copy: ordered, at least once",
    ),
    Difference(
        "numbered-sends",
        "sends of one key that nobody waits for",
        "many are on their way at once, in order",
        "one at a time for each queue, in order; the client says so once in its log",
    ),
    Difference(
        "resize",
        "another number of queues for a topic in use",
        "`topics.resize`: keys stay in order; `topics.update(queues=)` is refused",
        "`topics.update(queues=)`: keys move at once and may overtake; `resize` is refused",
    ),
    Difference(
        "who-holds-locks",
        "`inorder locks`, `admin.locks`: who owns which queue",
        "listed with epoch, age and who waits; an operator can take a queue away",
        "refused: it does not tell",
    ),
    Difference(
        "fences",
        "a queue of an ordered consumer",
        "is its own by a lease with an epoch; `message.fence` has a sequence and the epoch",
        "is its own by RocketMQ's lock; `message.fence` has neither; the client says so once",
    ),
    Difference(
        "parking",
        "a key that keeps failing, with `on_failure=Park(…)`",
        "is set aside, and the others go on",
        "is refused with `UsageError` when the consumer starts; by a query of Spark in its first "
        "batch, before a handler runs",
    ),
    Difference(
        "named-producers",
        "a named producer: `Producer(id=…)`, `send(sequence=…)`",
        "a pipeline that runs again stores nothing a second time",
        "is refused with `UsageError`, before anything is sent",
    ),
    Difference(
        "shown-at-once",
        "an acknowledged message",
        "can be pulled, found by key and counted at once",
        "can be pulled a moment later, and found by key after another: indexes follow the log",
    ),
    Difference(
        "runtime-at-start",
        "`cluster.runtime`",
        "answers at once",
        "fails with `SystemError_` (NoSuchElementException) in the first second of the broker",
    ),
    Difference(
        "run-time-settings",
        "`cluster.update_settings`",
        "is refused with `NoPermission` unless the broker was started with `remote_config`",
        "is taken from everybody",
    ),
)

BY_NAME = {difference.name: difference for difference in DIFFERENCES}


def page() -> str:
    """Return the page."""
    return HEAD + "".join(difference.row for difference in DIFFERENCES)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
