"""Which queues a member gets that asks the broker, and the file of modes."""

from __future__ import annotations

import pytest

from inorder.broker.assignments import rules
from inorder.broker.assignments.rules import ModesFull, RequestModes, assign
from inorder.errors import RemoteProtocolError
from inorder.model import TopicQueue
from inorder.wire.requests.assignments import POP, PULL, RequestMode

QUEUES = [TopicQueue("T", broker, index) for broker in ("b1", "b2") for index in range(2)]
ANY = [TopicQueue("T", "b1", -1), TopicQueue("T", "b2", -1)]
IDS = ["c3", "c1", "c2"]


def mode(name: str, share: int = 0) -> RequestMode:
    return RequestMode("T", "G", name, share)


@pytest.mark.parametrize(
    ("how", "strategy", "client", "ids", "wanted"),
    [
        (mode(PULL), "AVG", "c1", IDS, QUEUES[:2]),
        (mode(PULL), "AVG", "c2", IDS, QUEUES[2:3]),
        (mode(PULL), "AVG", "c3", IDS, QUEUES[3:]),
        (mode(PULL), "AVG_BY_CIRCLE", "c1", IDS, [QUEUES[0], QUEUES[3]]),
        (mode(PULL), "AVG", "cx", IDS, []),
        (mode(PULL), "NONE", "c1", IDS, None),
        (mode(PULL), "AVG", "c1", [], None),
        (mode(PULL), "AVG", " ", IDS, None),
        (mode(POP), "AVG", "c1", IDS, ANY),
        (mode(POP, -1), "AVG", "cx", IDS, ANY),
        (mode(POP, 2), "AVG", "c1", IDS, ANY),
        (mode(POP, 1), "AVG", "c1", IDS, QUEUES[:3]),
        (mode(POP, 1), "AVG", "c3", IDS, [QUEUES[3], *QUEUES[:2]]),
        (mode(POP, 1), "AVG", "c5", ["c1", "c2", "c3", "c4", "c5"], [QUEUES[0]]),
        (mode(POP, 1), "AVG", "cx", IDS, []),
    ],
)
def test_queues_are_shared_out_as_in_rocketmq(
    how: RequestMode, strategy: str, client: str, ids: list[str],
    wanted: list[TopicQueue] | None,
) -> None:  # fmt: skip
    """By strategy; a group that pops shares queues, down to all members on all queues."""
    assert assign(how, strategy, client, list(reversed(QUEUES)), ids) == wanted


def test_no_queues_are_no_answer() -> None:
    """The member keeps what it has."""
    assert assign(mode(PULL), "AVG", "c1", [], IDS) is None


@pytest.mark.parametrize(
    ("topic", "default", "found"),
    [("T", PULL, (PULL, 0)), ("T", POP, (POP, 3)), ("%RETRY%G", POP, (PULL, 0))],
)
def test_a_mode_that_was_not_set_is_the_default(
    topic: str, default: str, found: tuple[str, int]
) -> None:
    """Retry topics are pulled."""
    known = RequestModes().find(topic, "G", default=default, share=3)
    assert (known.mode, known.share) == found


def test_the_file_is_rocketmq_s() -> None:
    """It is read back; what another broker wrote is read too."""
    table = RequestModes()
    table.put(mode(POP, 4))
    table.put(RequestMode("U", "G", PULL))
    again = RequestModes()
    again.decode(table.encode())
    assert again.to_json() == table.to_json()
    again.decode(
        b'{"messageRequestModeMap":{"T":{"G":{"consumerGroup":"G","mode":"POP",'
        b'"popShareQueueNum":4,"topic":"T"}}}}'
    )
    assert again.get("T", "G") == mode(POP, 4)
    assert again.forget(topic="T")
    assert not again.forget(group="G")
    assert again.to_json() == {"messageRequestModeMap": {}}


@pytest.mark.parametrize("data", [b"[]", b'{"messageRequestModeMap":{"T":{"G":{"mode":"X"}}}}'])
def test_a_file_of_garbage_is_not_read(data: bytes) -> None:
    """The caller sets it aside."""
    with pytest.raises(RemoteProtocolError):
        RequestModes().decode(data)


def test_modes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known pair can always be changed."""
    monkeypatch.setattr(rules, "MODES_MAX", 1)
    table = RequestModes()
    table.put(mode(POP))
    table.put(mode(PULL))
    with pytest.raises(ModesFull):
        table.put(RequestMode("U", "G"))
