"""What may be sent, and what the broker makes of it: RocketMQ's checks, in RocketMQ's order.

Everything here is decided before a byte is stored. A message that asks for something this broker
does not do yet (a timer, a transaction) is refused with a clear error and is never stored as a
plain one.

Sends in any form: what the hot path does not take, decoded in full and judged rule by rule.

stored before?        answered again, whatever else is the matter (`broker/producers/service.py`)
may it be stored?     RocketMQ's checks in RocketMQ's order (`broker/sends/rules.py`)
where?                in its queue, or among the delayed ones (`broker/delays/service.py`)
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from inorder.broker.producers.service import Claim, Numbering, Stored, told_if_partly_stored
from inorder.broker.sends.rules import (
    FAQ,
    INNER_BATCH_BITS,
    TRANSACTION_BITS,
    describe,
    is_special,
    level_in,
    not_served,
    refuse_special,
    require_batch,
    require_body,
    unique_key,
    with_separator,
)
from inorder.broker.ticks import Answers, PartlyStored
from inorder.errors import (
    GroupNotFound,
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    ServiceNotAvailable,
    SystemBusy,
    TopicNotFound,
)
from inorder.model import PERM_WRITE, TopicConfig
from inorder.wire import properties as props
from inorder.wire.extensions import PREDECESSOR, PRODUCER_ID, SEQUENCE
from inorder.wire.frame import encode_frame
from inorder.wire.names import (
    DEAD_LETTER_PREFIX,
    NOT_SENDABLE_TOPICS,
    PARK_PREFIX,
    RETRY_PREFIX,
    validate_topic,
)
from inorder.wire.requests.sends import SendMessage

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.sends.packing import Target
    from inorder.broker.sends.service import FastSends
    from inorder.net.accepted import ServerConnection
    from inorder.wire.header import Command
_MAX_RETRIES_VERSION: Final = 121


def admit(
    broker: Broker, hot: FastSends, connection: ServerConnection, request: SendMessage, version: int
) -> tuple[Target, SendMessage]:
    """Check a send and return the queue it goes to, or raise the refusal."""
    topic = _topic_for(broker, request)
    if request.queue_id >= max(topic.read_queues, topic.write_queues):
        raise InvalidParameter(
            f"request queueId[{request.queue_id}] is illegal, {describe(topic)} "
            f"Producer: {connection.peer}"
        )
    if request.topic.startswith(RETRY_PREFIX):
        request, topic = _retry(broker, request, topic, version)
    if request.sys_flag & INNER_BATCH_BITS:
        raise not_served("inner batches", request.topic)
    if request.sys_flag & TRANSACTION_BITS:
        raise not_served("transactional (prepared) messages", request.topic)
    queue_id = request.queue_id
    if queue_id < 0:
        queue_id = broker.random.randrange(max(1, topic.write_queues))
    return hot.target(topic.name, queue_id), request


def _topic_for(broker: Broker, request: SendMessage) -> TopicConfig:
    name = request.topic
    topic = broker.topics.get(name)
    if not broker.config.perm & PERM_WRITE and topic is not None and topic.order:
        raise NoPermission(f"the broker[{broker.address}] sending message is forbidden")
    invalid = validate_topic(name)
    if invalid is not None:
        raise InvalidParameter(invalid)
    if name in NOT_SENDABLE_TOPICS or name.startswith(PARK_PREFIX):
        raise NoPermission(f"Sending message to topic[{name}] is forbidden.")
    if topic is not None:
        return topic
    topic = broker.create_topic_on_send(name, request.default_topic, request.default_topic_queues)
    if topic is None:
        raise TopicNotFound(f"topic[{name}] not exist, apply first please!\n{FAQ}")
    return topic


def _retry(
    broker: Broker, request: SendMessage, topic: TopicConfig, version: int
) -> tuple[SendMessage, TopicConfig]:
    """Apply the rules of a retry topic: after the last attempt it goes to the dead letters."""
    if request.batch:
        raise MessageIllegal(f"batch request does not support retry group {request.topic}")
    group_name = request.topic[len(RETRY_PREFIX) :]
    group = broker.find_group(group_name)
    if group is None:
        raise GroupNotFound(f"subscription group not exist, {group_name}")
    most = group.retry_max_times
    if version >= _MAX_RETRIES_VERSION and request.redeliveries_max is not None:
        most = request.redeliveries_max
    # A group that holds locks consumes in order, and gives a message back only to be rid of it.
    ordered = broker.locks.holds_any(group_name)
    if (request.redeliveries or 0) <= most and not ordered:
        return request, topic
    letters = broker.ensure_topic(DEAD_LETTER_PREFIX + group_name, queues=1)
    kept = props.parse(request.properties or "")
    for name in (PRODUCER_ID, SEQUENCE, PREDECESSOR):  # of the message that this is a copy of
        kept.pop(name, None)
    kept["DELAY"] = "-1"
    request = replace(request, topic=letters.name, queue_id=0, properties=props.join(kept))
    return request, letters


def plain_properties(broker: Broker, request: SendMessage) -> str:
    """Return the properties to store, or refuse what asks for more than a delay."""
    text = request.properties or ""
    if is_special(text):
        found = props.parse(text)
        delayed = level_in(found) > 0
        refuse_special(found, request.topic, delayed=delayed, redeliveries=request.redeliveries)
        if found.pop("POP_CK", None) is not None:
            text = props.join(found)
    return with_unique_key(broker, text)[0]


def with_unique_key(broker: Broker, properties: str) -> tuple[str, str]:
    """Return the properties and their UNIQ_KEY, which is made if there is none."""
    unique = unique_key(properties)
    if unique is not None:
        return properties, unique
    unique = broker.unique_ids.next(broker.clock.now_ms())
    return with_separator(properties) + f"UNIQ_KEY\x01{unique}\x02", unique


def require_writable(broker: Broker) -> None:
    """Refuse while the store takes no writes or too much waits to become durable."""
    reason = broker.unwritable_reason
    if reason is not None:
        raise ServiceNotAvailable(f"service not available now, {reason}")
    if broker.ticks.unsettled_bytes > broker.config.store.pending_bytes_max:
        raise SystemBusy("[OVERLOAD]the broker has too many bytes waiting for the disk, try later")


class GeneralSends:
    """Takes sends as commands."""

    def __init__(self, broker: Broker, hot: FastSends) -> None:
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
        require_writable(self._broker)
        self._broker.resizing.placement.check_queue(
            request.topic, request.queue_id, ours=claim is not None
        )
        target, request = admit(self._broker, self._hot, connection, request, command.version)
        redeliveries = request.redeliveries or 0
        place = target
        if request.batch:
            items = require_batch(request, command.body, self._body_max)
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
            unique, count = unique_key(request.properties or ""), len(items)
        else:
            properties = plain_properties(self._broker, request)
            body = bytes(command.body)
            require_body(body, self._body_max)
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
            unique, count = unique_key(properties), 1
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
            unique = unique_key(request.properties or "")
        positions = [one.position for one in stored if one.position is not None]
        self._broker.ticks.answer_again(
            connection,
            command,
            self._reply(command, claim.queue_id, stored, unique),
            max(positions, default=-1),
        )
