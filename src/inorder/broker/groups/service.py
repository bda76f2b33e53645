"""When clients hear that the members of their group, or the locks on its queues, changed (code 40).

The broker sends the notices at the end of a turn of the loop, at most one per connection. Clients
differ after an unlock:

    Java    notified 100 ms later. A Java consumer that stops unlocks, then commits, then leaves;
            the remaining member must hear of the last step. A Java 5 client that looks too early
            sees the old members, and looks again a second later.
    C++     never notified: it keeps asking for refused queues. It also handles notices in the
            threads that take the replies to pulls, so a few notices would block those.
    others  notified at the end of the turn, except the client that unlocked. A Go consumer that
            stops unlocks, leaves, commits and closes its connection. A notice would make it ask
            for the members of its group at the same time, and a connection that is closed while
            the reply arrives is reset: the broker would lose the commits.

Decision 20 gives the reasons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from inorder.wire.codes import LanguageCode, RequestCode
from inorder.wire.extensions import ROUTE_TOPIC
from inorder.wire.header import Command

if TYPE_CHECKING:
    from inorder.broker.groups.rules import Member, Members
    from inorder.net.accepted import ServerConnection

UNLOCKED_MS: Final = 100
"""How long after an unlock Java members are notified."""
_LATER_OR_NEVER: Final = frozenset((LanguageCode.JAVA, LanguageCode.CPP))


class Notices:
    """Notices that wait for the end of the turn, or for 100 ms."""

    def __init__(self, members: Members[ServerConnection]) -> None:
        self._members = members
        self._now: dict[str, dict[ServerConnection, None]] = {}
        self._later: dict[str, asyncio.TimerHandle] = {}

    def tell(self, group: str, connections: Iterable[ServerConnection] | None = None) -> None:
        """Notify these members of a group, or all, at the end of this turn."""
        everyone = self._members.connections(group)
        targets = everyone if connections is None else tuple(connections)
        if set(everyone) <= set(targets):
            self._cancel(group)
        if not self._now:
            asyncio.get_running_loop().call_soon(self._send)
        self._now.setdefault(group, {}).update(dict.fromkeys(targets))

    def tell_unlocked(self, group: str, *, by: str | None = None) -> None:
        """Notify a group of a free queue; `by` is the id of the client that unlocked it."""
        if others := self._those(
            group, lambda one: one.language not in _LATER_OR_NEVER and one.client_id != by
        ):
            self.tell(group, others)
        if self._java(group) and group not in self._later:
            self._later[group] = asyncio.get_running_loop().call_later(
                UNLOCKED_MS / 1000, self._tell_java, group
            )

    def _tell_java(self, group: str) -> None:
        del self._later[group]
        if java := self._java(group):
            self.tell(group, java)

    def _java(self, group: str) -> list[ServerConnection]:
        return self._those(group, lambda one: one.language == LanguageCode.JAVA)

    def _those(
        self, group: str, wanted: Callable[[Member[ServerConnection]], bool]
    ) -> list[ServerConnection]:
        found = self._members.group(group)
        members = {} if found is None else found.members
        return [connection for connection, member in members.items() if wanted(member)]

    def tell_route(self, topic: str) -> None:
        """Notify all subscribers of a topic that its queues changed."""
        for group in self._members.subscribers(topic):
            for connection in self._members.connections(group):
                connection.notify(
                    Command.request(
                        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                        {"consumerGroup": group, ROUTE_TOPIC: topic},
                        oneway=True,
                    )
                )

    def cancel(self) -> None:
        """Cancel the waiting notices."""
        for group in list(self._later):
            self._cancel(group)

    def _cancel(self, group: str) -> None:
        timer = self._later.pop(group, None)
        if timer is not None:
            timer.cancel()

    def _send(self) -> None:
        notices, self._now = self._now, {}
        for group, connections in notices.items():
            for connection in connections:
                connection.notify(
                    Command.request(
                        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                        {"consumerGroup": group},
                        oneway=True,
                    )
                )
