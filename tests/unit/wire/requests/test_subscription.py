"""Subscription expressions."""

from __future__ import annotations

import pytest

from inorder.errors import SubscriptionParseFailed
from inorder.wire.requests.pulls import TAGS_MAX, parse_subscription


@pytest.mark.parametrize(
    ("expression", "shown", "tags"),
    [
        (None, "*", ()),
        ("", "*", ()),
        ("*", "*", ()),
        ("A", "A", ("A",)),
        ("A || B ||", "A || B ||", ("A", "B")),
        ("A||A", "A||A", ("A",)),
        ("A|B", "A|B", ("A|B",)),
        ("|| ||", "|| ||", ()),
    ],
)
def test_tags(expression: str | None, shown: str, tags: tuple[str, ...]) -> None:
    """The expression is kept; tags are split, trimmed and counted once."""
    subscription = parse_subscription("T", expression, 5)
    assert (subscription.expression, subscription.tags, subscription.version) == (shown, tags, 5)
    assert len(subscription.tag_hashes) == len(tags)
    assert subscription.matches_all == (shown == "*")


def test_hashes_are_java_hashes() -> None:
    """The index holds these numbers."""
    assert parse_subscription("T", "TagA || TagB").tag_hashes == {2598919, 2598920}


@pytest.mark.parametrize("expression", ["||", "||||", "||".join(map(str, range(TAGS_MAX + 1)))])
def test_unusable_expressions(expression: str) -> None:
    """Operators only, or too many tags."""
    with pytest.raises(SubscriptionParseFailed):
        parse_subscription("T", expression)


def test_other_types_are_not_parsed_here() -> None:
    """An SQL expression is kept as it is."""
    subscription = parse_subscription("T", "a > 5 || b", 1, "SQL92")
    assert (subscription.expression, subscription.tags) == ("a > 5 || b", ())
    assert not subscription.matches_all
