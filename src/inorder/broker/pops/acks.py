"""Acknowledgements of popped messages, and changes of the time until others see them.

An acknowledgement is in the journal before its answer; under sync flush it is on disk. Success says
that the message does not come again to the group. So one under a token that is over is refused with
208 and changes nothing: without order the copy of the message lies in the retry topic, in order
another consumer may have the queue. Why: decision 54.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from inorder.broker.leases import records as lease_records
from inorder.broker.leases.rules import POPPED, Terms
from inorder.broker.leases.rules import Verdict as LeaseVerdict
from inorder.broker.offsets.rules import Committed
from inorder.broker.pops.checks import check_time
from inorder.broker.pops.records import PopDone, batch_record, no_batch, popped
from inorder.broker.pops.rules import Batch, CheckPoint, Verdict, judge
from inorder.broker.sends.rules import FAQ
from inorder.errors import MessageIllegal, StoreError, TopicNotFound
from inorder.model import GroupQueue
from inorder.wire.codes import ResponseCode
from inorder.wire.requests.pops import AckMessage, BatchAck, ChangeInvisibleTime, decode_receipt

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from inorder.broker.broker import Broker
    from inorder.broker.leases.records import Record
    from inorder.net.accepted import ServerConnection
    from inorder.wire.header import Command


class Refusal(NamedTuple):
    """Why an acknowledgement was not taken."""

    code: int
    remark: str


_OVER: Final = Refusal(
    ResponseCode.NO_MESSAGE, "the time of the message is over, or it was acknowledged"
)


class Acks:
    """Takes acknowledgements, and changes of times."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._table = broker.pop_table
        self._leases = broker.leases
        self._releasing: set[asyncio.Task[None]] = set()

    def cancel(self) -> None:
        """Give up releases that wait for the disk."""
        for task in self._releasing:
            task.cancel()

    # -- requests --------------------------------------------------------------------------------

    def ack(
        self, command: Command, request: AckMessage, connection: ServerConnection
    ) -> Command | Coroutine[Any, Any, Command]:
        """Take one acknowledgement."""
        key = GroupQueue(request.consumer_group, request.topic, request.queue_id)
        self._check_queue(key, connection)
        receipt = decode_receipt(request.extra_info)
        least, end = self._bounds(key)
        if not least <= request.offset <= end:
            remark = (
                f"offset is illegal, key:{key.topic}@{key.queue_id}, commit:{request.offset}, "
                f"store:{least}~{end}"
            )
            return command.reply(ResponseCode.NO_MESSAGE, remark)
        refusal = None
        if receipt.in_order:
            refusal = self._ack_in_order(key, receipt.pop_ms, [request.offset])
        else:
            refusal = self._ack([(key, receipt.pop_ms, [request.offset])])
        return self._settled(command, refusal)

    def ack_batch(
        self, command: Command, acks: list[BatchAck]
    ) -> Command | Coroutine[Any, Any, Command]:
        """Take acknowledgements of several pops."""
        if not acks:
            return command.reply(ResponseCode.NO_MESSAGE)
        refusal = None
        plain = []
        for one in acks:
            key = GroupQueue(one.group, one.topic, one.queue_id)
            least, end = self._bounds(key)
            offsets = [offset for offset in one.offsets if least <= offset <= end]
            if one.topic not in self._broker.topics or not offsets:
                continue
            if one.in_order:
                refusal = self._ack_in_order(key, one.pop_ms, offsets) or refusal
            else:
                plain.append((key, one.pop_ms, offsets))
        refusal = self._ack(plain) or refusal
        return self._settled(command, refusal)

    def change(
        self, command: Command, request: ChangeInvisibleTime, connection: ServerConnection
    ) -> Command | Coroutine[Any, Any, Command]:
        """Change when others see a message."""
        key = GroupQueue(request.consumer_group, request.topic, request.queue_id)
        self._check_queue(key, connection)
        receipt = decode_receipt(request.extra_info)
        least, end = self._bounds(key)
        if not least <= request.offset < end:
            return command.reply(ResponseCode.NO_MESSAGE)
        check_time(self._broker, request.invisible_ms, order=receipt.in_order)
        fields = {"reviveQid": str(receipt.revive_queue)}
        if receipt.in_order:
            refusal = self._change_in_order(key, receipt.pop_ms, request)
            invisible_ms = self._passed_ms(key) + request.invisible_ms
            fields |= {"popTime": str(receipt.pop_ms), "invisibleTime": str(invisible_ms)}
        else:
            pop_ms = self._change(key, receipt.pop_ms, request)
            refusal = None
            if pop_ms is None:
                refusal = _OVER
            fields |= {"popTime": str(pop_ms), "invisibleTime": str(request.invisible_ms)}
        return self._settled(command, refusal, fields)

    def _check_queue(self, key: GroupQueue, connection: ServerConnection) -> None:
        topic = self._broker.topics.get(key.topic)
        if topic is None:
            raise TopicNotFound(f"topic[{key.topic}] not exist, apply first please! \n{FAQ}")
        if not 0 <= key.queue_id < topic.read_queues:
            raise MessageIllegal(
                f"queueId[{key.queue_id}] is illegal, topic:[{key.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queues}] consumer:[/{connection.peer}]"
            )

    def _bounds(self, key: GroupQueue) -> tuple[int, int]:
        store = self._broker.store
        return (
            store.min_offset(key.topic, key.queue_id),
            store.end_offset(key.topic, key.queue_id),
        )

    def _settled(
        self, command: Command, refusal: Refusal | None, fields: dict[str, str] | None = None
    ) -> Command | Coroutine[Any, Any, Command]:
        if refusal is not None:
            answer = command.reply(refusal.code, refusal.remark)
        else:
            answer = command.reply(fields=fields)
        if self._broker.config.store.sync_flush:
            return self._when_settled(answer)
        return answer

    async def _when_settled(self, answer: Command) -> Command:
        await self._broker.lease_journal.settled()
        return answer

    # -- without order ---------------------------------------------------------------------------

    def _ack(self, acks: list[tuple[GroupQueue, int, list[int]]]) -> Refusal | None:
        """Take acknowledgements without order, in one write; refuse what is not in flight."""
        found = [
            (key, pop_ms, self._table.in_hand(key, pop_ms, offsets))
            for key, pop_ms, offsets in acks
        ]
        refusal = None
        if any(len(one[2]) < len(offsets) for one, (*_, offsets) in zip(found, acks, strict=True)):
            refusal = _OVER
        known = [one for one in found if one[2]]
        if not known:
            return refusal
        self._broker.lease_journal.write(
            PopDone(*key, pop_ms, offsets) for key, pop_ms, offsets in known
        )
        for key, pop_ms, offsets in known:
            self.finish(key, pop_ms, offsets)
        return refusal

    def finish(self, key: GroupQueue, pop_ms: int, offsets: list[int]) -> None:
        """Take messages out of flight; the journal has it."""
        was_full = self._table.has_room(key) <= 0
        self._table.finish(key, pop_ms, offsets)
        self._broker.pops.commit_floor(key)
        if not self._table.in_flight(key):
            self._broker.lease_service.popped_ended(key)
            self._broker.pops.wake_group(key.group)
        elif was_full:
            self._broker.pops.wake_group(key.group)

    def _change(self, key: GroupQueue, pop_ms: int, request: ChangeInvisibleTime) -> int | None:
        """Put a message in flight anew; return its token, None if it is not in flight."""
        table, broker = self._table, self._broker
        point = table.point(key, request.offset)
        if point is None or point.pop_ms != pop_ms or point.reviving:
            return None
        now_ms = broker.clock.monotonic_ms()
        new_ms = table.pop_ms([key], broker.clock.now_ms())
        deadline_ms = now_ms + request.invisible_ms
        new = CheckPoint(
            new_ms, request.invisible_ms, deadline_ms, request.offset, {request.offset: None}
        )
        cursor = table.queues[key].cursor
        broker.lease_journal.write([popped(key, new, cursor, broker.store.log.end_position)])
        table.take(key, new, cursor, now_ms)
        broker.housekeeping.pop_deadline(deadline_ms)
        return new_ms

    # -- in order --------------------------------------------------------------------------------

    def _judge(self, key: GroupQueue, pop_ms: int, offset: int) -> Verdict:
        return judge(
            self._table.batches.get(key), self._leases.get(key), self._leases.past(key),
            pop_ms=pop_ms, offset=offset, committed=self._broker.offsets.query(*key),
            ended_ms=self._table.ended_ms(key), in_flight=self._table.in_flight(key),
        )  # fmt: skip

    def _refusal(self, key: GroupQueue, verdict: Verdict, offset: int) -> Refusal | None:
        if verdict is Verdict.STALE:
            return Refusal(
                ResponseCode.NO_MESSAGE,
                f"the pop of offset {offset} lost {key.topic} {key.queue_id}: its time ended and "
                "the queue was given away, or it was reset; nothing is committed",
            )
        if verdict is Verdict.UNKNOWN:
            return Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{key.topic}@{key.group}@{key.queue_id}, commit:{offset}: "
                "it was not popped",
            )
        return None

    def _ack_in_order(self, key: GroupQueue, pop_ms: int, offsets: list[int]) -> Refusal | None:
        """Take acknowledgements of a batch, in one write."""
        refusal = None
        batch = before = self._table.batches.get(key)
        for offset in offsets:
            verdict = self._judge(key, pop_ms, offset)
            if verdict in (Verdict.TAKEN, Verdict.BLOCKS):
                assert batch is not None, "it was judged"
                batch = batch.with_ack(offset)
            else:
                refusal = self._refusal(key, verdict, offset) or refusal
        if batch is not None and batch is not before:
            self._take(key, batch)
        return refusal

    def _take(self, key: GroupQueue, batch: Batch) -> None:
        """Write a batch with further acknowledgements, then apply it."""
        broker, table = self._broker, self._table
        now_ms, end = broker.clock.monotonic_ms(), broker.store.log.end_position
        lease = self._leases.get(key)
        until_ms = batch.blocked_until_ms
        commit = None
        if not batch.was_reset and batch.next_offset > broker.offsets.query(*key):
            commit = lease_records.Commit(*key, batch.next_offset, end, batch.epoch, batch.acks, "")
        records: list[Record] = [] if commit is None else [commit]
        moved = None
        if until_ms is None:
            records.append(no_batch(key, batch, end))
            records.append(lease_records.freed(key, broker.config.name))
        else:
            records.append(batch_record(key, batch, end))
            if lease is not None and until_ms < lease.expires_ms:
                moved = (key, lease.epoch, _terms(until_ms, now_ms))
        broker.lease_service.write_popped([] if moved is None else [moved], records, now_ms)
        if commit is not None:
            broker.offsets.put(*key, commit.offset, broker.clock.now_ms())
            broker.commits.put(key, Committed(batch.epoch, batch.acks, commit.offset))
        if until_ms is None:
            table.end_batch(key)
            self._release(key, batch.epoch if lease is None else lease.epoch)
            return
        table.put_batch(key, batch)
        if moved is not None:
            broker.lease_service.move_popped(key, moved[2], now_ms)

    def _release(self, key: GroupQueue, epoch: int) -> None:
        """Free a queue; under sync flush when that is on disk."""
        broker = self._broker
        if broker.config.store.sync_flush:
            work = self._release_when_settled(key, epoch)
            task = asyncio.get_running_loop().create_task(work, name="release a popped queue")
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)
        else:
            broker.lease_service.release_popped(key, epoch)
            broker.pops.wake_group(key.group)

    async def _release_when_settled(self, key: GroupQueue, epoch: int) -> None:
        try:
            await self._broker.lease_journal.settled()
        except StoreError:  # its time frees the queue; the acknowledgement is refused
            return
        self._broker.lease_service.release_popped(key, epoch)
        self._broker.pops.wake_group(key.group)

    def _passed_ms(self, key: GroupQueue) -> int:
        """Return how long ago the batch of a queue was popped, whatever the wall clock says."""
        batch = self._table.batches.get(key)
        if batch is None:
            return 0
        return self._broker.clock.monotonic_ms() - (batch.until_ms - batch.invisible_ms)

    def _change_in_order(
        self, key: GroupQueue, pop_ms: int, request: ChangeInvisibleTime
    ) -> Refusal | None:
        """Change when a message of a batch is visible, and so when its queue is free."""
        offset = request.offset
        verdict = self._judge(key, pop_ms, offset)
        if verdict not in (Verdict.TAKEN, Verdict.BLOCKS):
            return self._refusal(key, verdict, offset)
        before = self._table.batches[key]
        if offset not in before.unfinished:
            return None
        broker, now_ms = self._broker, self._broker.clock.monotonic_ms()
        batch = before.with_time(offset, now_ms + request.invisible_ms)
        until_ms = batch.blocked_until_ms
        assert until_ms is not None, "a message is not acknowledged"
        lease, terms = self._leases.get(key), _terms(until_ms, now_ms)
        end = broker.store.log.end_position
        if lease is None:
            # Nobody else got the queue: the batch goes on.
            decision = self._leases.decide(key, POPPED, now_ms, epoch=batch.epoch, terms=terms)
            if decision.verdict is not LeaseVerdict.RESUME:
                return self._refusal(key, Verdict.STALE, offset)
            broker.lease_service.grant_popped([decision], [batch_record(key, batch, end)], now_ms)
        else:
            broker.lease_service.write_popped(
                [(key, lease.epoch, terms)], [batch_record(key, batch, end)], now_ms
            )
            broker.lease_service.move_popped(key, terms, now_ms)
        self._table.put_batch(key, batch)
        return None


def _terms(until_ms: int, now_ms: int) -> Terms:
    left_ms = max(0, until_ms - now_ms)
    return Terms(left_ms, left_ms)
