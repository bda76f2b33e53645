"""Sends in any form: what the hot path does not take, decoded in full and judged rule by rule.

stored before?        answered again, whatever else is the matter (`broker/producers/service.py`)
may it be stored?     RocketMQ's checks in RocketMQ's order (`sendrules.py`)
where?                in its queue, or among the delayed ones (`delayed.py`)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.broker import sendrules
from inorder.broker.producers.service import Claim, Numbering, Stored, told_if_partly_stored
from inorder.broker.ticks import Answers, PartlyStored
from inorder.wire.frame import encode_frame
from inorder.wire.requests.sends import SendMessage

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.hot import HotPath
    from inorder.net.accepted import ServerConnection
    from inorder.wire.header import Command


class GeneralSends:
    """Takes sends as commands."""

    def __init__(self, broker: Broker, hot: HotPath) -> None:
        self._broker = broker
        self._hot = hot
        self._packer = hot.packer
        self._numbering = Numbering(broker)
        self._body_max = broker.config.store.message_bytes_max
        self._id_prefix = broker.store_host.hex().upper()
        self._region_fields = {
            "TRACE_ON": "true" if broker.config.trace_on else "false",
            "MSG_REGION": broker.config.region,
        }

    def send(self, connection: ServerConnection, command: Command, answers: Answers) -> None:
        """Serve a send in any form; raises BrokerError for what is refused."""
        request = SendMessage.from_fields(command.code, command.fields)
        claim = self._numbering.claim(connection, request, command)
        if claim is not None and claim.done:
            self._answer_again(connection, command, request, claim)
            return
        with told_if_partly_stored(0 if claim is None else len(claim.stored)):
            self._store(connection, command, request, claim, answers)

    def _store(
        self,
        connection: ServerConnection,
        command: Command,
        request: SendMessage,
        claim: Claim | None,
        answers: Answers,
    ) -> None:
        sendrules.require_writable(self._broker)
        self._broker.resizing.places.check_queue(
            request.topic, request.queue_id, ours=claim is not None
        )
        target, request = sendrules.admit(
            self._broker, self._hot, connection, request, command.version
        )
        redeliveries = request.redeliveries or 0
        place = target
        if request.batch:
            items = sendrules.require_batch(request, command.body, self._body_max)
            if claim is not None:
                items = items[len(claim.stored) :]
                claim.reserve()
            offset = target.queue.next_offset
            positions = self._packer.put_batch(
                target,
                connection.peer_host,
                bytes(command.body),
                items,
                request.sys_flag,
                request.born_at_ms,
                redeliveries,
                answers.now_ms,
            )
            unique, count = sendrules.unique_key(request.properties or ""), len(items)
        else:
            properties = sendrules.plain_properties(self._broker, request)
            body = bytes(command.body)
            sendrules.require_body(body, self._body_max)
            # Where it is stored: in its queue, or among those that wait for their time.
            place, properties, due_ms = self._broker.delayed.place(
                target, properties, answers.now_ms
            )
            if claim is not None:
                claim.reserve()
            offset = place.queue.next_offset
            position = self._packer.put(
                place,
                connection.peer_host,
                properties.encode(),
                body,
                request.flag,
                request.sys_flag,
                request.born_at_ms,
                redeliveries,
                answers.now_ms,
                due_ms,
            )
            positions = [position]
            unique, count = sendrules.unique_key(properties), 1
        stored = [Stored(offset + at, position, unique) for at, position in enumerate(positions)]
        if claim is not None:
            claim.settle(place, offset, positions)
            if claim.stored:
                stored = claim.stored + stored
                answers = PartlyStored(connection, answers.now_ms)
        if command.is_oneway:
            answers.add_oneway(count)
        else:
            reply = self._reply(command, target.queue_id, stored, unique)
            answers.add(command.request_id, reply, count, command.serializer)
        if isinstance(answers, PartlyStored):
            self._broker.ticks.take(answers)

    def _reply(
        self, command: Command, queue_id: int, stored: list[Stored], unique: str | None
    ) -> bytes:
        """Return the answer of the general way: where the messages lie."""
        first = stored[0].offset
        prefix = self._id_prefix
        fields = {
            "queueId": str(queue_id),
            "msgId": ",".join(
                "" if one.position is None else f"{prefix}{one.position:016X}" for one in stored
            ),
            "queueOffset": str(first),
            **self._region_fields,
        }
        if any(one.offset != first + index for index, one in enumerate(stored)):
            fields["offsets"] = ",".join(str(one.offset) for one in stored)
        if unique:
            fields["transactionId"] = unique
        return encode_frame(command.reply(fields=fields))

    def _answer_again(
        self, connection: ServerConnection, command: Command, request: SendMessage, claim: Claim
    ) -> None:
        """Give the first answer once more, as soon as it could be given the first time."""
        if command.is_oneway:
            return
        stored = claim.stored
        unique = stored[0].unique
        if request.batch:
            unique = sendrules.unique_key(request.properties or "")
        positions = [one.position for one in stored if one.position is not None]
        self._broker.ticks.answer_again(
            connection,
            command,
            self._reply(command, claim.queue_id, stored, unique),
            max(positions, default=-1),
        )
