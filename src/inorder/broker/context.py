"""What a handler may use of the broker.

A handler is a plain function of (broker, connection, command). It returns the answer, None if there
is none (or not yet), or a coroutine that the router runs when it has to wait for something. A
BrokerError that it raises becomes the answer. `BrokerLike` is the whole of what handlers rely on,
so that their tests can do with a small fake.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from random import Random

    from inorder.broker.admin.rules import BrokerStats
    from inorder.broker.damage.storage import Losses
    from inorder.broker.delays.rules import Delays
    from inorder.broker.groups.rules import Departure, GroupTable, Members
    from inorder.broker.leases.rules import LeaseTable
    from inorder.broker.leases.service import LeaseExpiry, LeaseService
    from inorder.broker.leases.storage import LeaseJournal
    from inorder.broker.locks.rules import QueueLocks
    from inorder.broker.locks.service import LockService
    from inorder.broker.offsets.rules import Manner, OffsetTable, Ruling
    from inorder.broker.parking.service import Parking
    from inorder.broker.producers.rules import ProducerTable
    from inorder.broker.resizing.rules import Plan
    from inorder.broker.topics.rules import TopicTable
    from inorder.clock import Clock
    from inorder.config import BrokerConfig
    from inorder.disk import Files
    from inorder.model import GroupConfig, TopicConfig
    from inorder.net.accepted import ServerConnection
    from inorder.store.store import Store
    from inorder.wire.header import Command
    from inorder.wire.record import Record
    from inorder.wire.requests.resizing import ResizeView


class RegistrationLike(Protocol):
    """The broker's standing with the name servers."""

    def topic_changed(self, config: TopicConfig) -> None:
        """Tell the name servers of a topic soon."""
        ...

    def refresh(self) -> None:
        """Tell the name servers everything again soon."""
        ...

    async def register_now(self) -> None:
        """Return when the name servers that are up know the present topics, or after a while."""
        ...


class HousekeepingLike(Protocol):
    """The broker's timers."""

    def lock_deadline_changed(self) -> None:
        """Look at the earliest lock deadline again."""
        ...

    async def flush_now(self) -> None:
        """Return when everything written so far is durable, queues and index too."""
        ...

    async def save_offsets_now(self) -> None:
        """Return when the offsets as they are now are in their file."""
        ...


class ServerLike(Protocol):
    """The listening side."""

    @property
    def connections(self) -> Iterable[ServerConnection]:
        """Return the open connections."""
        ...


class NumbersFileLike(Protocol):
    """The file of numbering producers."""

    async def save_now(self) -> None:
        """Return when all that is known now is on disk, and nothing older is left there."""
        ...


class RewindingLike(Protocol):
    """The groups that were set back."""

    def version_touched(self, topic: str, group: str, targets: Mapping[int, int]) -> int | None:
        """Return the version that is past of which new offsets bring back or skip something."""
        ...

    async def rest(self, topic: str, group: str, version: int, term: int | None = None) -> None:
        """Give a group nothing more: it is set back into a version."""
        ...

    async def tell(self, topic: str, group: str) -> None:
        """Have the other brokers know that a group rests."""
        ...

    def rests(self, topic: str, group: str) -> bool:
        """Tell whether a group gets nothing."""
        ...

    async def group_deleted(self, group: str) -> None:
        """Forget how far a group was that was deleted with its offsets."""
        ...

    async def go_on(self, topic: str, group: str, term: int) -> None:
        """Let a group read again that was set back."""
        ...


class ResizingLike(Protocol):
    """The versions of the key maps of topics."""

    def view(self, topic: str, group: str = "") -> ResizeView:
        """Return what is known of a topic."""
        ...

    def heed(self, topic: str, group: str) -> None:
        """Look after a group that another broker asks about."""
        ...

    def is_empty(self, topic: str) -> bool:
        """Tell whether a topic holds nothing here."""
        ...

    def last_version(self, topic: str) -> int:
        """Return the highest version that the name ever had here."""
        ...

    @property
    def rewinding(self) -> RewindingLike: ...

    def read_queues(self, config: TopicConfig) -> int:
        """Return how many queues of a topic hold something."""
        ...

    async def decide(self, topic: str, plan: Plan) -> ResizeView:
        """Decide the next version."""
        ...

    async def stop(self, topic: str, plan: Plan, making: TopicConfig | None = None) -> ResizeView:
        """Close the present version."""
        ...

    async def go(self, topic: str, plan_id: str, version: int) -> ResizeView:
        """Let the next version be begun."""
        ...

    async def open(
        self, topic: str, plan_id: str, version: int, *, empty: bool = False
    ) -> ResizeView:
        """Begin the next version."""
        ...

    async def withdraw(self, topic: str, plan_id: str) -> ResizeView:
        """Take a plan back."""
        ...

    async def release(
        self, topic: str, group: str, version: int, *, force: bool, term: int = 0
    ) -> None:
        """Let a group read a version."""
        ...

    async def delete(self, topic: str, version: int) -> None:
        """Forget a topic, but not its last version."""
        ...


class BrokerLike(Protocol):
    """The broker as handlers see it."""

    config: BrokerConfig

    @property
    def started_ms(self) -> int: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def files(self) -> Files: ...
    @property
    def address(self) -> str: ...
    @property
    def store_host(self) -> bytes: ...
    @property
    def random(self) -> Random: ...
    @property
    def store(self) -> Store: ...
    @property
    def topics(self) -> TopicTable: ...
    @property
    def groups(self) -> GroupTable: ...
    @property
    def offsets(self) -> OffsetTable: ...
    @property
    def delays(self) -> Delays: ...

    @property
    def losses(self) -> Losses: ...
    @property
    def members(self) -> Members[ServerConnection]: ...
    @property
    def locks(self) -> QueueLocks: ...
    @property
    def leases(self) -> LeaseTable: ...
    @property
    def lease_service(self) -> LeaseService: ...
    @property
    def lock_service(self) -> LockService: ...
    @property
    def lease_expiry(self) -> LeaseExpiry: ...
    @property
    def lease_journal(self) -> LeaseJournal: ...
    @property
    def server(self) -> ServerLike: ...
    @property
    def producers(self) -> ProducerTable[ServerConnection]: ...
    @property
    def parking(self) -> Parking: ...
    @property
    def producer_snapshot(self) -> NumbersFileLike: ...
    @property
    def stats(self) -> BrokerStats: ...
    @property
    def registration(self) -> RegistrationLike: ...
    @property
    def housekeeping(self) -> HousekeepingLike: ...
    @property
    def resizing(self) -> ResizingLike: ...

    def count(self) -> None:
        """Bring the statistics up to date."""
        ...

    def find_group(self, name: str) -> GroupConfig | None:
        """Return a group, made and saved if the settings allow it."""
        ...

    def ensure_topic(self, name: str, *, queues: int, sys_flag: int = 0) -> TopicConfig:
        """Return a topic that the broker needs itself, made if it is not there."""
        ...

    def append(
        self,
        record: Record,
        queue_id: int,
        *,
        level: int,
        connection: ServerConnection,
        answer: Command,
        oneway: bool,
    ) -> None:
        """Store a message of the broker's own making, after a delay if `level` says so.

        The answer is sent when that is safe by the flush mode.
        """
        ...

    def save_topics(self) -> None:
        """Persist the topics after a change."""
        ...

    def save_groups(self) -> None:
        """Persist the groups after a change."""
        ...

    def commit_offset(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        connection: ServerConnection,
        *,
        manner: Manner,
        look: bool = False,
    ) -> Ruling:
        """Store a group's progress if it may be; with `look` only say what would become of it."""
        ...

    def notify_ids_changed(
        self, group: str, connections: Iterable[ServerConnection] | None = None
    ) -> None:
        """Send NOTIFY_CONSUMER_IDS_CHANGED to connections, by default all of the group."""
        ...

    def notify_unlocked(self, group: str) -> None:
        """Tell a group that a queue is free."""
        ...

    def apply_departure(self, departure: Departure[ServerConnection]) -> None:
        """Shorten the locks of clients that went, and tell the groups."""
        ...

    def wake(self, topic: str, queue_id: int) -> None:
        """Look again at the pulls held for a queue."""
        ...

    def topic_gone(self, topic: str) -> None:
        """Answer the pulls held for a deleted topic."""
        ...


Handler = Callable[
    [BrokerLike, "ServerConnection", "Command"],
    "Command | Coroutine[Any, Any, Command | None] | None",
]
