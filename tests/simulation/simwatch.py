"""The broker's own account of a run: who was granted which queue, what was committed, by whom.

A `Watch` stands beside the verbs of a running broker and writes down what they did. It also lets
requests arrive twice, when told to.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from inorder.broker.broker import Broker
from inorder.checker import queue_name
from inorder.errors import InorderError, LeaseLost
from inorder.model import GroupQueue, TopicQueue
from inorder.net.accepted import ServerConnection
from inorder.ordering.finished import FinishedMap
from inorder.wire.frame import RawFrame
from tests.model.traces import Happened

if TYPE_CHECKING:
    from tests.simulation.simlosses import Cut
    from tests.simulation.simworld import World

TOPIC: Final = "orders"
GROUP: Final = "billing"
QUEUES_MAX: Final = 8


class Watch:
    """Writes down what one broker does, for one of its lives."""

    def __init__(self, world: World, broker: Broker, *, how: str, cut: Cut | None) -> None:
        """`how` the life before ended, empty if there was none; `cut`: it may have lost something.

        What is left is noted there.
        """
        self._world = world
        self._broker = broker
        self._how, self._cut = how, cut
        self._settling: set[asyncio.Future[None]] = set()
        self._recalled: dict[tuple[str, int], int] = {}
        server: Any = broker.server
        self._listen, server.start = server.start, self.listen
        lease_service: Any = broker.lease_service
        self._lease, lease_service.lease = lease_service.lease, self.lease
        self._commit, lease_service.commit = lease_service.commit, self.commit
        self._release, lease_service.release = lease_service.release, self.release
        self._check_pull, lease_service.check_pull = lease_service.check_pull, self.check_pull
        self._force_release = lease_service.force_release
        lease_service.force_release = self.force_release
        self._revoke, lease_service.revoke = lease_service.revoke, self.revoke
        lock_service: Any = broker.lock_service
        self._client_left, lock_service.client_left = lock_service.client_left, self.client_left
        self._lock_batch, lock_service.lock_batch = lock_service.lock_batch, self.lock_batch
        offset_service: Any = broker.offset_service
        self._reset, offset_service.reset = offset_service.reset, self.reset
        self._commit_offset, offset_service.commit = offset_service.commit, self.commit_offset
        parking: Any = broker.parking
        self._park, parking.park = parking.park, self.park
        broker.server.handler = Copies(world, broker)

    def lease(self, group: str, owner: Any, terms: Any, wishes: Any, connection: Any) -> Any:
        """Note who gets what."""
        self._check_revoked()
        wishes = list(wishes)
        answer = self._lease(group, owner, terms, wishes, connection)
        asked = {(wish.topic, wish.queue_id): wish.epoch for wish in wishes}
        for grant in answer.granted:
            epoch = asked[grant.topic, grant.queue]
            self._trace(
                "ask", owner, group, (grant.topic, grant.queue), epoch=epoch, answer="granted",
                new_epoch=grant.epoch, fresh=grant.fresh,
            )  # fmt: skip
            self._heard(grant.topic, grant.queue, grant.epoch)
            if grant.fresh:
                self._world.granted(self._queue(grant.topic, grant.queue), owner, grant.epoch)
        config = self._broker.topics.get(TOPIC)
        for refusal in answer.refused:
            if config is None or refusal.queue >= config.read_queues:
                continue  # a resize took it away
            epoch = asked[refusal.topic, refusal.queue]
            place = (refusal.topic, refusal.queue)
            self._trace("ask", owner, group, place, epoch=epoch, answer="refused")
        return answer

    def _trace(
        self, kind: str, owner: Any, group: str, place: tuple[str, int], **more: Any
    ) -> None:
        """Note a step of a queue, for the model."""
        topic, queue_id = place
        if (group, topic) != (GROUP, TOPIC):
            return
        committed = self._broker.offsets.query(group, topic, queue_id)
        name = "" if owner is None else f"{owner.client_id} {owner.instance}"
        step = Happened(kind, name, committed=committed, **more)
        self._world.traces.setdefault(queue_name(self._queue(topic, queue_id)), []).append(step)

    def commit(self, group: str, owner: Any, commits: Any, connection: Any) -> Any:
        """Note what a commit changed."""
        self._check_revoked()
        commits = list(commits)
        before = [self._known(group, one) for one in commits]
        answer = self._commit(group, owner, commits, connection)
        taken = {(one.topic, one.queue_id) for one in answer.taken}
        for one, known in zip(commits, before, strict=True):
            self._changed(group, owner, one, known)
            place = (one.topic, one.queue_id)
            answer_of_it = "taken" if place in taken else "lost"
            if place in taken:
                self._heard(*place, one.epoch)
            self._trace("commit", owner, group, place, answer=answer_of_it, **self._step(one))
        return answer

    def check_pull(self, fields: Any, connection: Any) -> None:
        """Note that an owner's pull renewed its lease."""
        self._check_pull(fields, connection)
        if (fields.group, fields.topic) == (GROUP, TOPIC):
            self._heard(fields.topic, fields.queue_id, fields.epoch)

    def _heard(self, topic: str, queue_id: int, epoch: int) -> None:
        """Note when an owner was heard of: it trusts its lease from a little before on."""
        now_ms = self._broker.clock.monotonic_ms()
        self._world.heard[self._queue(topic, queue_id)] = (epoch, now_ms)

    def _look_at_ends(self) -> None:
        """After a start no lease may end while its owner trusts it."""
        for key, lease in self._broker.leases.held(GROUP).items():
            queue = self._queue(key.topic, key.queue_id)
            epoch, heard_ms = self._world.heard.get(queue, (0, 0))
            trusted_ms = heard_ms + lease.terms.trust_ms
            if lease.epoch == epoch and lease.expires_ms < trusted_ms:
                self._world.problems.append(
                    f"P2: the lease of {lease.client_id} on {queue} ends at {lease.expires_ms} ms, "
                    f"and it may trust it until {trusted_ms} ms"
                )

    def release(self, group: str, owner: Any, one: Any) -> Any:
        """Note what its commit changed."""
        self._check_revoked()
        known = self._known(group, one)
        place = (one.topic, one.queue_id)
        step = self._step(one)
        try:
            finish = self._release(group, owner, one)
        except LeaseLost:
            self._trace("release", owner, group, place, answer="lost", **step)
            raise
        kind = "release" if finish is None else "leaving"
        self._trace(kind, owner, group, place, answer="taken", **step)
        if finish is not None:
            finish = self._freed(finish, owner, group, place, one.epoch)
        self._changed(group, owner, one, known)
        self._world.say(f"{owner.client_id} released {one.topic}/{one.queue_id} at {one.offset}")
        self._world.note_freed()
        return finish

    async def _freed(
        self, finish: Any, owner: Any, group: str, place: tuple[str, int], epoch: int
    ) -> None:
        """Note when a release that waits for the disk frees the queue."""
        await finish
        self._trace("freed", owner, group, place, epoch=epoch)
        self._world.note_freed()

    def _step(self, one: Any) -> dict[str, int]:
        """Return what a commit says, and where its queue ends."""
        end = self._broker.store.end_offset(one.topic, one.queue_id)
        return {"epoch": one.epoch, "number": one.number, "offset": one.offset, "end": end}

    def reset(self, group: str, topic: str, targets: dict[int, int]) -> None:
        """Note an operator's order."""
        self._reset(group, topic, targets)
        for queue_id in targets:
            lease = self._broker.leases.get(GroupQueue(group, topic, queue_id))
            epoch = 0 if lease is None else lease.epoch
            self._trace("reset", None, group, (topic, queue_id), new_epoch=epoch)
            self.look(TopicQueue(topic, self._broker.config.name, queue_id), group, reset=True)
            if self._broker.config.store.sync_flush:
                self._settle(partial(self._trace, "kept", None, group, (topic, queue_id)))

    def force_release(self, key: GroupQueue) -> tuple[str, int]:
        """Note an operator's order."""
        holder, epoch = self._force_release(key)
        if holder:
            self._trace("taken", None, key.group, key[1:])
        return holder, epoch

    def revoke(self, key: GroupQueue) -> bool:
        """Note that a lease is void that has run out; one that stands is void when it does."""
        lease = self._broker.leases.get(key)
        found: bool = self._revoke(key)
        if found and lease is None:
            self._trace("taken", None, key.group, key[1:])
        elif lease is not None and lease.is_revoked and key.group == GROUP:
            self._recalled[key[1:]] = lease.epoch
        return found

    def _check_revoked(self) -> None:
        """Note which leases have run out that were asked back: nobody goes on under them."""
        for (topic, queue_id), epoch in list(self._recalled.items()):
            lease = self._broker.leases.get(GroupQueue(GROUP, topic, queue_id))
            if lease is None or lease.epoch != epoch:
                del self._recalled[topic, queue_id]
                if lease is None:
                    self._trace("taken", None, GROUP, (topic, queue_id))

    def client_left(
        self, group: str, client_id: str, connection: ServerConnection, *, gone: bool
    ) -> bool:
        """Note what a client that leaves has forgotten."""
        held = set(self._broker.leases.held(group))
        found: bool = self._client_left(group, client_id, connection, gone=gone)
        for key in held - set(self._broker.leases.held(group)):
            self._trace("left", None, group, key[1:])
        return found

    def lock_batch(
        self, group: str, queues: Any, client_id: str, connection: ServerConnection, *,
        frees_omitted: bool,
    ) -> Any:  # fmt: skip
        """Note what a RocketMQ client gets: whoever had it goes on under no epoch of before."""
        self._check_revoked()
        granted = self._lock_batch(
            group, queues, client_id, connection, frees_omitted=frees_omitted
        )
        for queue in granted:
            lease = self._broker.leases.get(GroupQueue.of(group, queue))
            assert lease is not None, "it was granted"
            if lease.granted_ms == self._broker.clock.monotonic_ms():
                self._trace("taken", None, group, (queue.topic, queue.index))
                self._world.granted(queue, lease.owner, lease.epoch)
        return granted

    def commit_offset(
        self, group: str, topic: str, queue_id: int, offset: int, connection: ServerConnection,
        **options: Any,
    ) -> Any:  # fmt: skip
        """Judge a commit without an epoch: no consumer takes an offset back."""
        before = self._broker.offsets.query(group, topic, queue_id)
        ruling = self._commit_offset(group, topic, queue_id, offset, connection, **options)
        after = self._broker.offsets.query(group, topic, queue_id)
        if after < before:
            self._world.problems.append(
                f"P4: {connection.peer} took {topic}/{queue_id} back from {before} to {after}"
            )
        return ruling

    async def listen(self, host: str, port: int) -> Any:
        """Note what the broker knows before its port opens."""
        if self._how:
            self._look_at_ends()
            config = self._broker.topics.get(TOPIC)
            for queue_id in range(QUEUES_MAX):  # also those that a resize has taken away
                self._trace(self._how, None, GROUP, (TOPIC, queue_id))
                lease = self._broker.leases.get(GroupQueue(GROUP, TOPIC, queue_id))
                if lease is not None and lease.is_revoked:
                    self._recalled[TOPIC, queue_id] = lease.epoch
            self._look_at_parked()
            for queue_id in range(0 if config is None else config.read_queues):
                self.look(self._queue(TOPIC, queue_id), GROUP, reset=self._cut is not None)
            if self._cut is not None:
                for queue in self._broker.store.queues_of(TOPIC):
                    name = queue_name(self._queue(TOPIC, queue.queue_id))
                    self._cut.ends[name] = queue.visible_offset
        return await self._listen(host, port)

    def _look_at_parked(self) -> None:
        """Note what the life before had set aside when it ended, and could tell nobody."""
        told = {(queue, offset) for queue, offset, _, _ in self._world.aside}
        for place, one in self._broker.parking.table.entries(GROUP):
            queue = self._queue(place.topic, place.queue_id)
            for message in one.messages:
                if (queue_name(queue), message.origin) not in told:
                    self._world.parked(queue, message.origin, one.key)

    async def park(self, place: Any, items: Any) -> Any:
        """Note what was set aside."""
        outcomes, remark = await self._park(place, items)
        queue = self._queue(place.topic, place.queue_id)
        for item, outcome in zip(items, outcomes, strict=True):
            if outcome == "parked":
                self._world.parked(queue, item.offset, item.key)
        return outcomes, remark

    def look(self, queue: TopicQueue, group: str, *, reset: bool = False) -> None:
        """Note what the broker has, after a start or a reset."""
        offset = self._broker.offsets.query(group, queue.topic, queue.index)
        if offset >= 0 or reset:
            self._world.committed(queue, "broker", max(0, offset), reset=reset)

    def _settle(self, note: Callable[[], None]) -> None:
        settling = asyncio.ensure_future(self._when_settled(note))
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)

    async def _when_settled(self, note: Callable[[], None]) -> None:
        with contextlib.suppress(InorderError):
            await self._broker.lease_journal.settled()
            note()

    def _queue(self, topic: str, queue_id: int) -> TopicQueue:
        return TopicQueue(topic, self._broker.config.name, queue_id)

    def _known(self, group: str, one: Any) -> tuple[int, int, int]:
        last = self._broker.commits.get(GroupQueue(group, one.topic, one.queue_id))
        offset = self._broker.offsets.query(group, one.topic, one.queue_id)
        return offset, 0 if last is None else last.epoch, 0 if last is None else last.number

    def _changed(self, group: str, owner: Any, one: Any, before: tuple[int, int, int]) -> None:
        now = self._known(group, one)
        if now == before:
            return
        queue = self._queue(one.topic, one.queue_id)
        note = partial(
            self._world.committed, queue, owner.client_id, now[0], epoch=one.epoch,
            at_ns=self._world.now_ns(),
        )  # fmt: skip
        if self._broker.config.store.sync_flush:
            # Until it is on disk nobody was told of it, and a power cut may take it.
            self._settle(note)
        else:
            note()
        last = self._broker.commits.get(GroupQueue(group, one.topic, one.queue_id))
        if last is not None and last.finished:
            self._world.finished(queue, FinishedMap.decode(last.finished).above)


class Copies:
    """A frame handler that passes frames on, and while told to passes some again, later."""

    def __init__(self, world: World, broker: Broker) -> None:
        self._world = world
        self._broker = broker

    def connection_made(self, connection: ServerConnection) -> None:
        """Pass it on."""
        self._broker.connection_made(connection)

    def connection_lost(self, connection: ServerConnection, reason: str) -> None:
        """Pass it on."""
        self._broker.connection_lost(connection, reason)

    def frames_received(self, connection: ServerConnection, frames: list[RawFrame]) -> None:
        """Pass the frames on; keep copies of some."""
        draw = self._world.copying
        if draw is not None:
            for serializer, header, body in frames:
                if draw.random() < 0.3:
                    frame = (serializer, bytes(header), bytes(body))
                    loop = asyncio.get_running_loop()
                    loop.call_later(draw.uniform(0.0, 1.5), self._again, connection, frame)
        self._broker.frames_received(connection, frames)

    def _again(self, connection: ServerConnection, frame: RawFrame) -> None:
        if not connection.closed:
            self._world.say("a request arrived again")
            self._broker.frames_received(connection, [frame])
