"""Random policies: the decision against an evaluator that knows nothing of ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inorder.access.rules import Action, Book, Entry, Kind, PolicyType, User, decide, parse_resource

NAMES = st.text("ab", max_size=3)
RESOURCES = st.one_of(
    st.just("*"),
    st.builds(
        lambda kind, name, star: f"{kind}:{name}{star}" if name or star else f"{kind}:a",
        st.sampled_from(["Topic", "Group"]),
        NAMES,
        st.sampled_from(["", "*"]),
    ),
)
SINGLE = [one for one in Action if one.bit_count() == 1]
ACTIONS = st.lists(st.sampled_from(SINGLE), min_size=1, max_size=3).map(
    lambda found: Action(sum(set(found)))
)
ENTRIES = st.lists(
    st.builds(
        lambda resource, actions, allow, kind: Entry(
            parse_resource(resource), actions, allow, (), kind
        ),
        RESOURCES,
        ACTIONS,
        st.booleans(),
        st.sampled_from(PolicyType),
    ),
    max_size=8,
)


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


@given(ENTRIES, st.sampled_from([Kind.TOPIC, Kind.GROUP]), st.text("ab", min_size=1, max_size=4),
       ACTIONS)  # fmt: skip
def test_the_decision_is_that_of_the_levels(
    entries: list[Entry], kind: Kind, name: str, actions: Action
) -> None:
    """Any of several actions is enough; order of insertion does not matter."""
    wanted = any(plainly(entries, kind, name, one) for one in SINGLE if one & actions)
    book = Book({"u": User("u", b"s")}).with_entries("u", entries, 1)
    assert decide(book.entries["u"], kind, name, actions, b"").allowed is wanted
    unique = {one.key: one for one in entries}.values()
    turned = Book({"u": User("u", b"s")}).with_entries("u", reversed(list(unique)), 1)
    assert decide(turned.entries["u"], kind, name, actions, b"").allowed is wanted
