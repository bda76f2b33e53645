"""The request modes and their file, and the answers to members that ask for their queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.broker.assignments.rules import RequestModes, assign
from inorder.errors import BrokerError, TransportError
from inorder.logs import get_logger
from inorder.model import PERM_READ, TopicQueue
from inorder.store.snapshot import Snapshot
from inorder.wire.requests.routes import GetRoute

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.wire.requests.assignments import AssignmentQuery, RequestMode

log = get_logger(__name__)


class Assignments:
    """Shares queues out among members."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.modes = RequestModes()
        folder = broker.config.data_path / "config"
        self.file = Snapshot(broker.files, folder / "messageRequestMode.json")
        self._saved_revision = 0

    def load(self) -> None:
        """Load the file."""
        self.file.load(self.modes.decode)
        self._saved_revision = self.modes.revision

    def put(self, mode: RequestMode) -> None:
        """Set a mode; the request is answered when the file has it."""
        self.modes.put(mode)
        self._save()

    def forget(self, *, group: str = "", topic: str = "") -> None:
        """Forget the modes of a deleted group or topic."""
        if self.modes.forget(group=group, topic=topic):
            self._save()

    def _save(self) -> None:
        self._saved_revision = self.modes.revision
        self._broker.saving.save(self.file, self.modes)

    def save_at_stop(self) -> None:
        """Save the modes if the file may not hold all of them. Raises OSError."""
        if self.modes.revision != self._saved_revision or not self._broker.saving.covers(self.file):
            self.file.save(self.modes.encode())

    def mode(self, topic: str, group: str) -> RequestMode:
        """Return the mode that holds for a group on a topic."""
        config = self._broker.config
        return self.modes.find(
            topic, group, default=config.default_request_mode, share=config.default_pop_share
        )

    async def answer(self, query: AssignmentQuery) -> list[TopicQueue] | None:
        """Return the queues of a member; None: it keeps what it has."""
        queues = await self._queues(query.topic)
        if queues is None:
            return None
        if query.broadcasting or not self._broker.config.server_load_balancer:
            return queues
        ids = self._broker.members.client_ids(query.group)
        return assign(
            self.mode(query.topic, query.group), query.strategy, query.client_id, queues, ids
        )

    async def _queues(self, topic: str) -> list[TopicQueue] | None:
        """Return the readable queues of a topic at all its brokers."""
        found: dict[TopicQueue, None] = {}
        if self._broker.config.namesrv:
            try:
                routes = await self._broker.registration.ask_all(GetRoute(topic))
            except (BrokerError, TransportError) as error:
                log.debug("no route of topic=%s: %s", topic, error)
                return None
            for route in routes:
                for data in route.queues:
                    if data.perm & PERM_READ:
                        for index in range(data.read_queues):
                            found[TopicQueue(topic, data.broker_name, index)] = None
            return sorted(found)
        config = self._broker.topics.get(topic)
        if config is None or not config.readable:
            return None
        name = self._broker.config.name
        return [TopicQueue(topic, name, index) for index in range(config.read_queues)]
