"""Whether the members of a group want the same: where they differ, messages are skipped.

The queues of a topic are shared out among the members, and each reads its own with its own tags. If
one wants `paid` and another one `shipped`, each passes over the other's messages in its half of the
queues, and commits that; if one does not subscribe a topic at all, its share of the queues stands
still. So all members of a group must subscribe the same topics with the same tags. A group in which
everybody gets everything (broadcasting) may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from inorder.model import Subscription
from inorder.wire.requests.connections import Difference
from inorder.wire.requests.pulls import ALL, TAG

Wishes = Mapping[str, str]
"""What one member wants: topic to tags, in one spelling."""

CLIENTS_SHOWN_MAX: Final = 3
TOPICS_SHOWN_MAX: Final = 5
WISH_CHARS_MAX: Final = 100
_RETRIES: Final = "%RETRY%"


def wishes_of(subscriptions: Iterable[Subscription]) -> dict[str, str]:
    """Return what a member wants, so that equal wishes are equal texts; without its retry topic."""
    return {one.topic: _wish(one) for one in subscriptions if not one.topic.startswith(_RETRIES)}


def differences(members: Mapping[str, Wishes]) -> tuple[Difference, ...]:
    """Return the topics of which members want different things, and who wants what.

    `members` maps client ids to wishes.
    """
    topics = sorted({topic for wishes in members.values() for topic in wishes})
    found = []
    for topic in topics:
        views: dict[str | None, list[str]] = {}
        for client_id, wishes in members.items():
            views.setdefault(wishes.get(topic), []).append(client_id)
        if len(views) > 1:
            by_size = sorted(views.items(), key=lambda view: (-len(view[1]), view[0] or ""))
            found.append(
                Difference(topic, tuple((wish, tuple(sorted(ids))) for wish, ids in by_size))
            )
    return tuple(found)


def in_words(found: Iterable[Difference]) -> str:
    """Name the subscriptions and members that differ, cut to what a log line holds."""
    texts = [_one_in_words(one) for one in found]
    more = len(texts) - TOPICS_SHOWN_MAX
    return "; ".join(texts[:TOPICS_SHOWN_MAX]) + (f"; and {more} more topics" if more > 0 else "")


def _one_in_words(found: Difference) -> str:
    views = []
    for wish, clients in found.views[:CLIENTS_SHOWN_MAX]:
        shown = ", ".join(clients[:CLIENTS_SHOWN_MAX])
        more = len(clients) - CLIENTS_SHOWN_MAX
        who = shown + (f" and {more} more" if more > 0 else "")
        views.append(f"{'not subscribed' if wish is None else repr(_cut(wish))} by {who}")
    more = len(found.views) - CLIENTS_SHOWN_MAX
    return f"topic {found.topic}: " + ", ".join(views) + (f", {more} others" if more > 0 else "")


def _wish(subscription: Subscription) -> str:
    if subscription.expression_type != TAG:
        return f"{subscription.expression_type}: {subscription.expression}"
    return ALL if subscription.matches_all else " || ".join(sorted(subscription.tags))


def _cut(text: str) -> str:
    return text if len(text) <= WISH_CHARS_MAX else text[:WISH_CHARS_MAX] + "…"
