"""Who is told that the members of a group, or the locks on its queues, changed (code 40), and when.

At the end of the turn, each connection once, whatever happened in it. Only after an unlock Java
members are told a little later: a Java consumer that stops unlocks, then commits, then leaves, and
the member that stays must hear of the last. A Java 5 client that looks too early sees the old
members, and looks again a second later. C++ members are never told of an unlock: they ask again and
again for what they were refused. And they handle notices in as many threads as there are cores, the
same that take the answers of pulls: a few notices too many and none is left for those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from inorder.wire.codes import LanguageCode, RequestCode
from inorder.wire.extensions import ROUTE_TOPIC
from inorder.wire.header import Command

if TYPE_CHECKING:
    from inorder.broker.groups.rules import Members
    from inorder.net.accepted import ServerConnection

UNLOCKED_MS: Final = 100
"""How long Java members wait for the news of an unlock."""
_LATER_OR_NEVER: Final = frozenset((LanguageCode.JAVA, LanguageCode.CPP))


class Notices:
    """Notices that wait for the end of the turn, or for a moment."""

    def __init__(self, members: Members[ServerConnection]) -> None:
        self._members = members
        self._now: dict[str, dict[ServerConnection, None]] = {}
        self._later: dict[str, asyncio.TimerHandle] = {}

    def tell(self, group: str, connections: Iterable[ServerConnection] | None = None) -> None:
        """Tell these members of a group, or all, at the end of this turn."""
        everyone = self._members.connections(group)
        targets = everyone if connections is None else tuple(connections)
        if set(everyone) <= set(targets):
            self._cancel(group)
        if not self._now:
            asyncio.get_running_loop().call_soon(self._send)
        self._now.setdefault(group, {}).update(dict.fromkeys(targets))

    def tell_unlocked(self, group: str) -> None:
        """Tell that a queue is free; unless everyone is told of more before that."""
        if others := self._speaking(group, lambda language: language not in _LATER_OR_NEVER):
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
        return self._speaking(group, lambda language: language == LanguageCode.JAVA)

    def _speaking(self, group: str, wanted: Callable[[int], bool]) -> list[ServerConnection]:
        found = self._members.group(group)
        members = {} if found is None else found.members
        return [connection for connection, member in members.items() if wanted(member.language)]

    def tell_route(self, topic: str) -> None:
        """Tell all who subscribe to a topic that its queues changed."""
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
        """Tell nobody any more."""
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
