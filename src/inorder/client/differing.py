"""What brokers say of groups whose members subscribe differently: warned of once a minute.

Our broker compares the subscriptions of all members, stock ones too, and tells each of ours with
the answer to its heartbeat. If it is set to, it refuses a member instead (SUBSCRIPTIONS_DIFFER).
"""

from __future__ import annotations

from typing import Final

from inorder.clock import Clock
from inorder.errors import RemoteProtocolError, SubscriptionsDiffer
from inorder.logs import get_logger
from inorder.wire.fastjson import loads

log = get_logger(__name__)

SAY_MS: Final = 60_000
GROUPS_MAX: Final = 1000


class Differing:
    """The warnings of one session."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said_ms: dict[str, int] = {}
        self._refusals: dict[str, SubscriptionsDiffer] = {}

    def taken(self, address: str, text: str | None) -> None:
        """Take the answer of a broker that took us into all groups."""
        self._refusals.pop(address, None)
        for group, why in _by_group(text).items():
            if self._is_due(group):
                log.warning(
                    "members of group=%s have different subscriptions, so that messages are "
                    "skipped or stand still: %s; let all members subscribe the same, or give them "
                    "groups of their own", group, why,
                )  # fmt: skip

    def refused(self, address: str, error: SubscriptionsDiffer) -> None:
        """Take the answer of a broker that did not take us into a group."""
        self._refusals[address] = error
        if self._is_due(error.groups):
            log.error("broker=%s: %s", address, error)

    def refusal(self, group: str) -> SubscriptionsDiffer | None:
        """Return why a broker does not take us into a group."""
        return next(
            (one for one in self._refusals.values() if group in one.groups.split(",")), None
        )

    def _is_due(self, what: str) -> bool:
        now_ms = self._clock.monotonic_ms()
        last_ms = self._said_ms.get(what)
        if last_ms is not None and now_ms - last_ms < SAY_MS:
            return False
        if len(self._said_ms) >= GROUPS_MAX:
            self._said_ms.clear()
        self._said_ms[what] = now_ms
        return True


def _by_group(text: str | None) -> dict[str, str]:
    """Read the field; one that cannot be read says nothing."""
    if not text:
        return {}
    try:
        found = loads(text.encode())
    except RemoteProtocolError:
        return {}
    return {str(group): str(why) for group, why in found.items()} if isinstance(found, dict) else {}
