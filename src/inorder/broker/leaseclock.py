"""Leases and time: what runs out, who falls silent, and what a closed connection shortens.

The loop may be late, and may not have read what has arrived. So nothing expires before some full
turns of the loop have passed after its time, and nothing of a connection that is not read just now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from inorder.broker.state.signs import SignsOfLife
from inorder.logs import get_logger

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.state.leaseterms import Owner
    from inorder.model import TopicQueue
    from inorder.net.accepted import ServerConnection
    from inorder.net.server import Server

log = get_logger(__name__)

EXPIRED_AT_ONCE: Final = 1000
"""Leases that expire in one turn of the loop."""
ROUNDS: Final = 3
"""Turns of the loop in which everything that has arrived is read, whatever loop it is."""


class _Unread:
    """The ids of connections that are not read just now."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def __contains__(self, connection_id: object) -> bool:
        found = self._server.find(connection_id)
        return found is not None and found.is_unread


class LeaseClock:
    """Lets leases and members expire."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._table = broker.leases
        self._signs: SignsOfLife[ServerConnection] = SignsOfLife()
        self._refused_groups: set[str] = set()
        self._looking: asyncio.Task[None] | None = None

    def next_deadline_ms(self) -> int | None:
        """Return when there is something to look at, or None."""
        deadlines = [
            self._table.next_deadline_ms(),
            self._signs.next_deadline_ms(),
            self._table.closed_until_ms or None,
        ]
        return min((one for one in deadlines if one is not None), default=None)

    def is_overdue(self, group: str, queues: Iterable[TopicQueue], owner: Owner) -> bool:
        """Tell whether another one holds one of these queues beyond its time.

        Then `look` before an answer: its renewal may have arrived.
        """
        if not self._table.holds_any(group):
            return False
        now_ms = self._broker.clock.monotonic_ms()
        leases = (self._table.get(group, queue) for queue in queues)
        return any(
            lease is not None and lease.expires_ms <= now_ms and lease.owner != owner
            for lease in leases
        )

    def ring(self) -> int | None:
        """Look if something has run out; return when to ring again if nothing has."""
        now_ms = self._broker.clock.monotonic_ms()
        closed_until_ms = self._table.closed_until_ms
        if (
            self._table.is_due(now_ms)
            or self._signs.is_due(now_ms)
            or 0 < closed_until_ms <= now_ms
        ):
            self.look_soon()
            return None  # it sets the next deadline when it has looked
        return self.next_deadline_ms()

    def look_soon(self) -> asyncio.Task[None]:
        """Read what has arrived, then expire what has run out."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="leases")
        return self._looking

    async def look(self) -> None:
        """Return when what has run out by now has expired."""
        await asyncio.shield(self.look_soon())

    async def _look(self) -> None:
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
        broker, table = self._broker, self._table
        now_ms = broker.clock.monotonic_ms()
        groups, unread = set(), _Unread(broker.server)
        while expired := table.expire(now_ms, spared=unread, count_max=EXPIRED_AT_ONCE):
            groups |= {key.group for key in expired}
            if len(expired) < EXPIRED_AT_ONCE:
                break
            await asyncio.sleep(0)
        for group, connection in self._signs.silent(now_ms, lambda one: one.is_unread):
            if broker.members.silence(group, connection):
                log.warning("a member is silent group=%s peer=%s", group, connection.peer)
                groups.add(group)
        if 0 < table.closed_until_ms <= now_ms:
            self._reopen()
            groups |= self._refused_groups
            self._refused_groups.clear()
        for group in sorted(groups):
            broker.notify_ids_changed(group)
        broker.keeping.lock_deadline_changed()

    def _reopen(self) -> None:
        """Grant queues again: all that was granted and is not known has run out."""
        self._table.closed_until_ms = 0
        try:
            self._broker.owners_file.start.waited()
        except OSError as error:  # then the next start waits once more
            log.error("start.json is not saved error=%s", error)

    def refused(self, group: str) -> None:
        """Tell a group when queues are granted again, if they are not now."""
        if self._table.closed_until_ms:
            self._refused_groups.add(group)

    def sign(self, group: str, connection: ServerConnection, lease_ms: int | None = None) -> None:
        """Note that a member lives; if it was thought silent it is listed again."""
        now_ms = self._broker.clock.monotonic_ms()
        if self._signs.note(group, connection, now_ms, lease_ms):
            notice = self._broker.members.heard(group, connection)
            if notice is not None:
                self._broker.notify_ids_changed(notice.group, notice.connections)
            self._broker.keeping.lock_deadline_changed()

    def left(self, group: str, connection: ServerConnection) -> None:
        """Expect no more of a member that unregistered."""
        self._signs.forget(lambda name, one: name == group and one is connection)

    def connection_lost(self, connection: ServerConnection) -> None:
        """Shorten the leases that a connection renewed last."""
        if len(self._signs):
            self._signs.forget(lambda _, one: one is connection)
        if self._table.connection_lost(connection.id, self._broker.clock.monotonic_ms()):
            self._broker.keeping.lock_deadline_changed()

    def cancel(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
