"""Random policies: the decision against an evaluator that knows nothing of ranks."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.access.rules import Action, Book, Entry, Kind, PolicyType, User, decide, parse_resource

CASES = 200
NAMES = ("a", "aa", "ab", "aab", "b")
"""Few, so that entries meet."""
RESOURCES = (
    "*",
    *(
        f"{kind}:{name}{star}"
        for kind in ("Topic", "Group")
        for name in NAMES
        for star in ("", "*")
    ),
    "Topic:*",
    "Group:*",
)
ACTIONS = (Action.PUB, Action.SUB, Action.PUB | Action.SUB, Action.ALL)


def plainly(entries: list[Entry], kind: Kind, name: str, action: Action) -> bool:
    """Go through the levels one by one, the most specific first; the first hit decides."""
    texts = {(one.type, str(one.resource)): one for one in entries}
    word = "Topic" if kind is Kind.TOPIC else "Group"
    levels = [
        f"{word}:{name}",
        *(f"{word}:{name[:length]}*" for length in range(len(name), -1, -1)),
    ]
    for policy in (PolicyType.CUSTOM, PolicyType.DEFAULT):
        for level in (*levels, "*"):
            found = texts.get((policy, level))
            if found is not None and found.actions & action:
                return found.allow
    return False


def drawn(draw: Random) -> Entry:
    """Return a random entry."""
    return Entry(
        parse_resource(draw.choice(RESOURCES)),
        draw.choice(ACTIONS),
        draw.random() < 0.5,
        (),
        PolicyType.CUSTOM if draw.random() < 0.8 else PolicyType.DEFAULT,
    )


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32))
def test_the_decision_is_that_of_the_levels(seed: int) -> None:
    """Any of several actions is enough; order of insertion does not matter."""
    draw = Random(seed)
    for _ in range(CASES):
        entries = [drawn(draw) for _ in range(draw.randint(0, 10))]
        kind, name = draw.choice((Kind.TOPIC, Kind.GROUP)), draw.choice(NAMES)
        actions = draw.choice(ACTIONS)
        wanted = any(plainly(entries, kind, name, one) for one in Action.ALL if one & actions)
        book = Book({"u": User("u", b"s")}).with_entries("u", entries, 1)
        assert decide(book.entries["u"], kind, name, actions, b"").allowed is wanted
        unique = list({one.key: one for one in entries}.values())
        draw.shuffle(unique)
        turned = Book({"u": User("u", b"s")}).with_entries("u", unique, 1)
        assert decide(turned.entries["u"], kind, name, actions, b"").allowed is wanted
