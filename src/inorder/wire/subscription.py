"""Subscription expressions: which messages of a topic a group wants."""

from __future__ import annotations

from typing import Final

from inorder.errors import SubscriptionParseFailed
from inorder.model import Subscription
from inorder.wire.javahash import java_hash

TAG: Final = "TAG"
SQL92: Final = "SQL92"
ALL: Final = "*"

_OR: Final = "||"
TAGS_MAX: Final = 1024


def parse_subscription(
    topic: str, expression: str | None, version: int = 0, expression_type: str | None = TAG
) -> Subscription:
    """Return the subscription; the hashes come from the tags, never from a peer.

    Raises:
        SubscriptionParseFailed: the expression has operators only, or too many tags.
    """
    kind = expression_type or TAG
    if kind != TAG:
        return Subscription(topic, expression or "", version=version, expression_type=kind)
    if not expression or expression == ALL:
        return Subscription(topic, ALL, version=version)
    parts = expression.split(_OR)
    if len(parts) > TAGS_MAX:
        raise SubscriptionParseFailed(f"more than {TAGS_MAX} tags for the topic {topic}")
    if not any(parts):
        raise SubscriptionParseFailed(f"the expression {expression!r} holds no tag")
    tags = tuple(dict.fromkeys(tag for part in parts if (tag := part.strip())))
    return Subscription(
        topic, expression, tags, frozenset(map(java_hash, tags)), version, expression_type=TAG
    )
