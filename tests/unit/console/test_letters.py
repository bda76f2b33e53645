"""Dead letters: where they came from, why they died, and how they are sent again."""

from __future__ import annotations

from inorder.console.letters import causes, in_order, letter_of, places, properties_again
from inorder.model import ReceivedMessage, TopicQueue

DEAD = "%DLQ%billing"


def dead(offset: int = 0, at_ms: int = 5, redeliveries: int = 1, **properties: str
         ) -> ReceivedMessage:  # fmt: skip
    """Return a message of the dead letter topic."""
    queue = TopicQueue(DEAD, "a", 0)
    return ReceivedMessage(DEAD, queue, offset, b"x" * 200, properties, "id", 1, at_ms,
                           redeliveries)  # fmt: skip


def test_a_letter_says_its_topic_and_cause() -> None:
    """Whoever made it; without a cause the number of attempts stands for one."""
    ours = letter_of(dead(7, RETRY_TOPIC="orders", INORDER_DEAD_ERROR="ValueError: no",
                          __SHARDINGKEY="k"))  # fmt: skip
    assert (ours.origin, ours.cause, ours.key) == ("orders", "ValueError: no", "k")
    assert (ours.place, ours.group, len(ours.body)) == ("%DLQ%billing|a|0|7", "billing", 100)
    other = letter_of(dead(redeliveries=16, DLQ_ORIGIN_TOPIC="orders"))
    assert (other.origin, other.cause) == ("orders", "failed 16 times")
    assert letter_of(dead()).origin == ""
    assert letter_of(dead()).cause == "failed 1 time"


def test_causes_are_counted_by_topic_the_most_frequent_first() -> None:
    """Letters and keys, the first and the last."""
    found = causes(
        letter_of(dead(at, at_ms=at, RETRY_TOPIC=topic, INORDER_DEAD_ERROR=cause,
                       __SHARDINGKEY=key))
        for at, (topic, cause, key) in enumerate(
            [("b", "one", "k"), ("a", "two", "k"), ("a", "two", "l"), ("b", "two", "k")]
        )
    )  # fmt: skip
    assert [(one.cause, one.origin, one.letters, one.keys) for one in found] == [
        ("two", "a", 2, 2), ("one", "b", 1, 1), ("two", "b", 1, 1)
    ]  # fmt: skip
    assert (found[0].first_ms, found[0].last_ms) == (1, 2)


def test_letters_are_in_the_order_in_which_they_died() -> None:
    """Those of one moment by their offsets."""
    letters = [letter_of(dead(at, at_ms=ms)) for at, ms in ((3, 9), (2, 5), (1, 5))]
    assert [one.offset for one in in_order(letters)] == [1, 2, 3]


def test_a_letter_is_sent_again_with_its_own_properties_and_its_place() -> None:
    """What a broker or the former sending added stays behind."""
    found = properties_again(
        dead(4, colour="red", RETRY_TOPIC="orders", DLQ_ORIGIN_TOPIC="o", INORDER_DEAD_ERROR="e",
             UNIQ_KEY="u", DELAY="3", inorder_source="orders|a|1|2")
    )  # fmt: skip
    assert found == {"colour": "red", "inorder_source": "%DLQ%billing|a|0|4"}


def test_places_of_a_form_are_read_and_others_left_out() -> None:
    """A place that is none chooses nothing."""
    assert places(["%DLQ%g|a|0|7", "", "x", "%DLQ%g|a|-1|7", "%DLQ%g||0|7"]) == [
        (TopicQueue("%DLQ%g", "a", 0), 7)
    ]
