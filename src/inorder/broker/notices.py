"""Who is told that the members of a group, or the locks on its queues, changed (code 40), and when.

At the end of the turn, each connection once, whatever happened in it. Only after an unlock Java
members are told a little later: a Java consumer that stops unlocks, then commits, then leaves, and
the member that stays must hear of the last. A Java 5 client that looks too early sees the old
members, and looks again a second later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from inorder.wire.codes import LanguageCode, RequestCode
from inorder.wire.command import Command

if TYPE_CHECKING:
    from inorder.broker.state.members import Members
    from inorder.net.server import ServerConnection

UNLOCKED_MS: Final = 100
"""How long Java members wait for the news of an unlock."""


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
        """Tell all that a queue is free; unless everyone is told of more before that."""
        found = self._members.group(group)
        if found is None:
            return
        java = [c for c, m in found.members.items() if m.language == LanguageCode.JAVA]
        others = [c for c in found.members if c not in java]
        if others:
            self.tell(group, others)
        if java and group not in self._later:
            self._later[group] = asyncio.get_running_loop().call_later(
                UNLOCKED_MS / 1000, self.tell, group
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
