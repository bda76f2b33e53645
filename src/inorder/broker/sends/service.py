"""Sends: from the bytes of a send request to a record in the log's buffer.

All of it is synchronous; the router calls it with all frames of one `data_received`. A record is
packed straight into the log's pending buffer and gets its queue offset there (`packing.py`). The
replies wait in the tick (`broker/ticks.py`) until the bytes are written or durable.

There are four entries:

    a run of frames                  the plain single sends at its front, compiled  `take_plain`
    {"code":310, … {"code":320, …   typed decoder straight from the header bytes   `send_v2`
    {"code":10, …                    the same with long field names                 `send_long`
    anything else                    a decoded Command                              `send_command`

The first three are the fast path. It serves plain messages for known queues; an idempotent producer
must send its next sequence number. Single sends and plain batches go through the compiled module,
where there is one. It takes only messages whose fields, flags and properties are all on its list of
plain ones, and leaves the others unchanged to the next entry. Every send that the fast path does
not take (a delay, a transaction, an unknown topic, an unusual property) goes to the general path,
which judges it in this order:

1. Was it stored before? Then the first reply is repeated, whatever else is wrong
   (`broker/producers/service.py`).
2. May it be stored? RocketMQ's checks in RocketMQ's order (`checks.py`, `rules.py`).
3. Where? In its queue, in the queue of its delay level (`broker/delays/service.py`), in that of
   timers (`broker/timers/service.py`), or in that of halves (`broker/transactions/service.py`).

Why sends have two implementations: decision 37.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, Final

import msgspec

from inorder.accelerated import native
from inorder.broker.producers.service import (
    Claim,
    SequenceChecks,
    Stored,
    has_sequences,
    in_turn,
    items_in_turn,
    lacks_map,
    told_if_partly_stored,
)
from inorder.broker.sends.checks import (
    admit,
    plain_properties,
    require_writable,
    with_unique_key,
)
from inorder.broker.sends.packing import Packer, Target
from inorder.broker.sends.rules import (
    TRANSACTION_BITS,
    require_batch,
    require_body,
    split_batch,
    unique_key,
)
from inorder.broker.ticks import PartlyStored, PendingReplies
from inorder.errors import InorderError
from inorder.store.keyindex import prefix_hash
from inorder.wire.codes import VERSION, RequestCode
from inorder.wire.frame import encode_frame
from inorder.wire.header import (
    BINARY,
    BINARY_FIELDS_AT,
    BINARY_OPAQUE_AT,
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    Command,
    encode_header,
)
from inorder.wire.names import NOT_SENDABLE_TOPICS, PARK_PREFIX, RETRY_PREFIX, TIMER_TOPIC
from inorder.wire.record import crc32
from inorder.wire.requests.producers import MARK, MARK_BYTES
from inorder.wire.requests.sends import SendMessage
from inorder.wire.shapes import I32, I64

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.producers.rules import ProducerQueueState
    from inorder.native import Place, PlainSends
    from inorder.net.accepted import ServerConnection
    from inorder.wire.frame import RawFrame


_TARGETS_MAX: Final = 200_000
_CHECKED_PREFIXES: Final = (RETRY_PREFIX, PARK_PREFIX)
_SPECIAL_BITS: Final = 0xCC  # transactions, inner batches
_SEPARATOR: Final = "\x02"
_FRAME: Final = struct.Struct(">II").pack
_NO_BATCH: Final = ("false", "0")
_encode: Final = msgspec.json.encode

SEND_CODES: Final = frozenset(
    (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
)


class _SendFields(msgspec.Struct):
    b: str  # topic
    e: I32  # queue
    f: I32  # sys flag
    g: I64  # born
    h: I32  # flag
    a: str = ""
    c: str = ""
    d: I32 = 0
    i: str = ""  # properties
    j: I32 = 0
    l: I32 = -1  # noqa: E741  # RocketMQ's letter
    m: str = "false"
    mv: str = ""  # inorder's fields: version of the key map, its digest,
    md: str = ""
    mq: str = ""  # and whether the caller chose the queue


class _LongSendFields(
    msgspec.Struct,
    rename={
        "a": "producerGroup",
        "b": "topic",
        "c": "defaultTopic",
        "d": "defaultTopicQueueNums",
        "e": "queueId",
        "f": "sysFlag",
        "g": "bornTimestamp",
        "h": "flag",
        "i": "properties",
        "j": "reconsumeTimes",
        "l": "maxReconsumeTimes",
        "m": "batch",
    },
):
    """The same fields under the long names of code 10; names of a base class would stay short."""

    b: str
    e: I32
    f: I32
    g: I64
    h: I32
    a: str = ""
    c: str = ""
    d: I32 = 0
    i: str = ""
    j: I32 = 0
    l: I32 = -1  # noqa: E741  # RocketMQ's letter
    m: str = "false"
    mv: str = ""
    md: str = ""
    mq: str = ""


class _SendHeader(msgspec.Struct):
    opaque: I32
    extFields: _SendFields  # RocketMQ's name
    flag: int = 0


class _LongSendHeader(msgspec.Struct):
    opaque: I32
    extFields: _LongSendFields
    flag: int = 0


class Sends:
    """Serves send requests: puts records into the log's buffer and prepares the replies."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self._clock = broker.clock
        self._decode = msgspec.json.Decoder(_SendHeader, strict=False).decode
        self._decode_long = msgspec.json.Decoder(_LongSendHeader, strict=False).decode
        self._targets: dict[tuple[str, int], Target] = {}
        self._checked_targets: dict[tuple[str, int], Target] = {}
        self._note_sequence = broker.producers.stored
        self._body_max = broker.config.store.message_bytes_max
        self._id_prefix = broker.store_host.hex().upper().encode()
        region, trace = broker.config.region, "true" if broker.config.trace_on else "false"
        suffix = f"MSG_REGION\x01{region}\x02TRACE_ON\x01{trace}\x02"
        suffix += f"CLUSTER\x01{broker.config.cluster}\x02"
        self.packer = Packer(broker.store, broker.store_host, suffix.encode(), self._body_max)
        self._put = self.packer.put
        self._split = None if native is None else native.split
        self._sequences = SequenceChecks(broker)
        self._region_fields = {"TRACE_ON": trace, "MSG_REGION": region}
        region_json = msgspec.json.encode(region).replace(b"%", b"%%")
        head = b'{"code":0,"extFields":{"queueId":"%d",'
        fields = b'","TRACE_ON":"' + trace.encode() + b'","MSG_REGION":' + region_json
        fields += b',"queueOffset":"'
        flags = b'"},"flag":1,"language":"PYTHON","opaque":'
        end = b',"serializeTypeCurrentRPC":"JSON","version":' + str(VERSION).encode() + b"}"
        tail = fields + b"%d" + flags + b"%d" + end
        unique = b'"transactionId":%s,'
        self._ok = head + unique + b'"msgId":"' + self._id_prefix + b"%016X" + tail
        self._ok_with_ids = head + unique + b'"msgId":"%s' + tail
        self._ok_without_id = head + b'"msgId":"%s' + tail
        self._plain: PlainSends | None = None
        if native is not None:
            texts = (head[: -len(b'%d",')], b'","msgId":"', fields % (), flags, end)
            self._plain = self._make_plain(native.PlainSends, suffix.encode(), texts)

    def _make_plain(
        self, kind: type[PlainSends], suffix: bytes, texts: tuple[bytes, ...]
    ) -> PlainSends:
        broker = self._broker
        command = Command(0, fields=self._region_fields, serializer=BINARY)
        header = encode_header(command)
        return kind(
            self._store.log, self.packer.took_run, broker.producers.stored_many, crc32,
            broker.store_host, suffix, self._body_max, self._id_prefix, texts,
            header[:BINARY_OPAQUE_AT], header[BINARY_FIELDS_AT:],
        )  # fmt: skip

    # -- entries ---------------------------------------------------------------------------------

    @property
    def compiled(self) -> bool:
        """Return whether `take_plain` may be called."""
        return self._plain is not None

    # hot: 0.6 µs a message, once a read
    def take_plain(
        self,
        connection: ServerConnection,
        frames: list[RawFrame],
        index: int,
        replies: PendingReplies,
    ) -> int:
        """Serve the plain single sends from an index on; return the index of the first other one.

        That one has changed nothing.
        """
        assert self._plain is not None, "the module is compiled"
        before = self.packer.messages
        try:
            return self._plain.take(
                frames, index, connection, connection.peer_host, replies.now_ms, replies.frames
            )
        finally:  # also after an error: what is stored is written and answered
            replies.count += self.packer.messages - before

    def send_v2(
        self, connection: ServerConnection, header: bytes, body: bytes, replies: PendingReplies
    ) -> bool:
        """Serve code 310 or 320 from its raw JSON header; False: it needs the general path.

        False also for a send that will be refused: the general path finds the reason.
        """
        try:
            return self._send(connection, self._decode(header), body, replies)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, InorderError):
            return False

    def send_long(
        self, connection: ServerConnection, header: bytes, body: bytes, replies: PendingReplies
    ) -> bool:
        """Serve code 10 likewise."""
        try:
            return self._send(connection, self._decode_long(header), body, replies)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, InorderError):
            return False

    def _send(
        self,
        connection: ServerConnection,
        request: _SendHeader | _LongSendHeader,
        body: bytes,
        replies: PendingReplies,
    ) -> bool:
        # hot: 5.1 µs with decoding and packing (bench/hotpath.py); one function, since calls cost.
        fields = request.extFields
        properties, flag = fields.i, request.flag
        if (
            fields.f & _SPECIAL_BITS
            or flag & FLAG_RESPONSE
            or "DELAY" in properties
            or "TIMER_D" in properties
            or "TRAN_MSG" in properties
            or "POP_CK" in properties
            or "INNER_" in properties
        ):
            return False
        target = self._targets.get((fields.b, fields.e))
        if target is None or (fields.mv and fields.mv != target.map_version):
            return False
        if fields.m not in _NO_BATCH:
            return fields.m == "true" and self._batch(connection, request, target, body, replies)
        if not body or len(body) > self._body_max:
            return False
        start = properties.rfind("UNIQ_KEY\x01")
        if (start > 0 and properties[start - 1] == _SEPARATOR) or not start:
            end = properties.find(_SEPARATOR, start)
            unique = properties[start + 9 : end] if end >= 0 else properties[start + 9 :]
        else:
            unique = ""
        state = None
        start = properties.find(MARK)
        if start >= 0 and target.producers is not None:
            turn = in_turn(connection, target.producers, properties, start)
            if turn is None or not unique:
                return False
            state, number = turn
            if fields.md != target.map_digest and lacks_map(
                fields, target, state.producer, properties
            ):
                return False
        if not unique:
            properties, unique = with_unique_key(self._broker, properties)
        offset = target.queue.next_offset
        position = self._put(
            target,
            connection.peer_host,
            properties.encode(),
            body,
            fields.h,
            fields.f,
            fields.g,
            fields.j,
            replies.now_ms,
        )
        if state is not None:
            self._note_sequence(state, number, offset)
        replies.count += 1
        if not flag & FLAG_ONEWAY:
            opaque = request.opaque
            # Client text goes into JSON through the encoder, which escapes it.
            header = self._ok % (target.queue_id, _encode(unique), position, offset, opaque)
            size = len(header)
            replies.frames.append(_FRAME(size + 4, size) + header)
        return True

    def _batch(
        self,
        connection: ServerConnection,
        request: _SendHeader | _LongSendHeader,
        target: Target,
        body: bytes,
        replies: PendingReplies,
    ) -> bool:
        if self._split is not None and self._compiled(connection, request, target, body, replies):
            return True
        fields = request.extFields
        items = split_batch(body, self._body_max)
        if items is None:
            return False
        sequenced: list[tuple[ProducerQueueState[ServerConnection], int]] = []
        if target.producers is not None and MARK_BYTES in body:
            found = items_in_turn(connection, target.producers, body, items)
            if found is None or (found and lacks_map(fields, target, found[0][0].producer, body)):
                return False
            sequenced = found
        offset = target.queue.next_offset
        positions = self.packer.put_batch(
            target,
            connection.peer_host,
            body,
            items,
            fields.f,
            fields.g,
            fields.j,
            replies.now_ms,
        )
        for index, (state, number) in enumerate(sequenced):
            self._note_sequence(state, number, offset + index)
        self._reply_to_batch(request, target, self._ids(positions), len(positions), offset, replies)
        return True

    def _compiled(
        self,
        connection: ServerConnection,
        request: _SendHeader | _LongSendHeader,
        target: Target,
        body: bytes,
        replies: PendingReplies,
    ) -> bool:
        """Store a plain batch by the compiled module; False: it is not plain, nothing is stored."""
        # hot: 0.25 µs a message, 3 µs a batch
        assert self._split is not None, "the module is compiled"
        batch = self._split(body, self._body_max)
        if batch is None:
            return False
        fields, state = request.extFields, None
        if batch.producer is not None and target.producers is not None:
            state = target.producers.get(batch.producer.decode())
            if (
                state is None
                or state.producer.connection is not connection
                or state.producer.named is not batch.named
                or state.last != batch.before
                or lacks_map(fields, target, state.producer, body)
            ):
                return False
        offset = target.queue.next_offset
        self.packer.put_plain(
            target, connection.peer_host, batch, fields.f, fields.g, fields.j, replies.now_ms
        )
        if state is not None:
            self._broker.producers.stored_many(state, array("q", batch.numbers()), offset)
        ids = batch.ids(self._id_prefix)
        self._reply_to_batch(request, target, ids, batch.count, offset, replies)
        return True

    def _reply_to_batch(
        self,
        request: _SendHeader | _LongSendHeader,
        target: Target,
        ids: bytes,
        count: int,
        offset: int,
        replies: PendingReplies,
    ) -> None:
        if request.flag & FLAG_ONEWAY:
            replies.add_oneway(count)
            return
        unique = unique_key(request.extFields.i)
        replies.add(self._ok_frame(target.queue_id, unique, ids, offset, request.opaque), count)

    # -- the general path ------------------------------------------------------------------------

    def send_command(
        self, connection: ServerConnection, command: Command, replies: PendingReplies
    ) -> None:
        """Serve a send in any form. Raises BrokerError for a refusal."""
        request = SendMessage.from_fields(command.code, command.fields)
        claim = self._sequences.claim(connection, request, command)
        if claim is not None and claim.done:
            self._reply_again(connection, command, request, claim)
            return
        with told_if_partly_stored(0 if claim is None else len(claim.stored)):
            self._append(connection, command, request, claim, replies)

    def _home_of(
        self, target: Target, properties: str, *, half: bool, now_ms: int
    ) -> tuple[Target, str, int | None]:
        """Return where to store a message, its properties there, and its tag code if it waits."""
        if half:  # its delay counts from the commit on
            place, properties = self._broker.transaction_service.place(target, properties)
            return place, properties, None
        return self._broker.delayed.place(target, properties, now_ms)

    def _append(
        self,
        connection: ServerConnection,
        command: Command,
        request: SendMessage,
        claim: Claim | None,
        replies: PendingReplies,
    ) -> None:
        require_writable(self._broker)
        self._broker.resizing.placement.check_queue(
            request.topic, request.queue_id, inorder_client=claim is not None
        )
        target, request = admit(self._broker, self, connection, request, command.version)
        redeliveries = request.redeliveries or 0
        place, handle = target, None
        if request.batch:
            items = require_batch(request, command.body, self._body_max)
            if claim is not None:
                items = items[len(claim.stored) :]
                claim.reserve()
            offset = target.queue.next_offset
            positions = self.packer.put_batch(
                target,
                connection.peer_host,
                bytes(command.body),
                items,
                request.sys_flag,
                request.born_at_ms,
                redeliveries,
                replies.now_ms,
            )
            unique, count = unique_key(request.properties or ""), len(items)
        else:
            properties, half = plain_properties(self._broker, request)
            body = bytes(command.body)
            require_body(body, self._body_max)
            place, properties, tag_code = self._home_of(
                target, properties, half=half, now_ms=replies.now_ms
            )
            if claim is not None:
                claim.reserve()
            offset = place.queue.next_offset
            position = self.packer.put(
                place,
                connection.peer_host,
                properties.encode(),
                body,
                request.flag,
                request.sys_flag & ~TRANSACTION_BITS if half else request.sys_flag,
                request.born_at_ms,
                redeliveries,
                replies.now_ms,
                tag_code,
            )
            if half:
                self._broker.transaction_service.stored(
                    offset, position, properties,
                    born_at_ms=request.born_at_ms, now_ms=replies.now_ms,
                )  # fmt: skip
            positions = [position]
            unique, count = unique_key(properties), 1
            if place.topic == TIMER_TOPIC and tag_code is not None:
                handle = self._broker.timers.packed(offset, tag_code, properties)
        stored = [Stored(offset + at, position, unique) for at, position in enumerate(positions)]
        if claim is not None:
            claim.settle(place, offset, positions)
            if claim.stored:
                stored = claim.stored + stored
                replies = PartlyStored(connection, replies.now_ms)
        if command.is_oneway:
            replies.add_oneway(count)
        else:
            reply = self._reply(command, target.queue_id, stored, unique, handle)
            replies.add(reply, count)
        if isinstance(replies, PartlyStored):
            self._broker.ticks.take(replies)

    def _reply(
        self,
        command: Command,
        queue_id: int,
        stored: list[Stored],
        unique: str | None,
        handle: str | None = None,
    ) -> bytes:
        """Return the reply frame of the general path."""
        first = stored[0].offset
        prefix = self._id_prefix.decode()
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
        if handle is not None:
            fields["recallHandle"] = handle
        return encode_frame(command.reply(fields=fields))

    def _reply_again(
        self, connection: ServerConnection, command: Command, request: SendMessage, claim: Claim
    ) -> None:
        """Repeat the first reply, as soon as the record is safe."""
        if command.is_oneway:
            return
        stored = claim.stored
        unique = stored[0].unique
        if request.batch:
            unique = unique_key(request.properties or "")
        positions = [one.position for one in stored if one.position is not None]
        handle = None
        if "TIMER_D" in (request.properties or "") and positions:
            handle = self._broker.timers.handle_at(positions[0])
        self._broker.ticks.reply_again(
            connection,
            self._reply(command, claim.queue_id, stored, unique, handle),
            max(positions, default=-1),
        )

    # -- replies ---------------------------------------------------------------------------------

    def _ids(self, positions: list[int]) -> bytes:
        prefix = self._id_prefix
        return prefix + (b"," + prefix).join([b"%016X" % position for position in positions])

    def _ok_frame(
        self, queue_id: int, unique: str | None, ids: bytes, offset: int, opaque: int
    ) -> bytes:
        if unique is None:
            header = self._ok_without_id % (queue_id, ids, offset, opaque)
        else:
            header = self._ok_with_ids % (queue_id, _encode(unique), ids, offset, opaque)
        size = len(header)
        return _FRAME(size + 4, size) + header

    # -- targets ---------------------------------------------------------------------------------

    def target(self, topic: str, queue_id: int) -> Target:
        """Return the cached target of a queue, to which the broker may store messages.

        The fast path finds those to which every client may send. A message that waited may go
        where no client may send any more: to a queue that was removed, or a topic that is gone.
        """
        key = (topic, queue_id)
        found = self._targets.get(key) or self._checked_targets.get(key)
        if found is None:
            targets = self._targets if self._is_open(topic, queue_id) else self._checked_targets
            if len(targets) >= _TARGETS_MAX:
                targets.clear()
                if self._plain is not None and targets is self._targets:
                    self._plain.forget()
            found = targets[key] = self._make_target(topic, queue_id)
            if self._plain is not None and targets is self._targets:
                self._plain.add(self._place(found))
        return found

    def _is_open(self, topic: str, queue_id: int) -> bool:
        """Return whether plain sends to a queue need no further check; `admit` makes the checks."""
        if topic in NOT_SENDABLE_TOPICS or topic.startswith(_CHECKED_PREFIXES):
            return False
        config = self._broker.topics.get(topic)
        return (
            config is not None
            and queue_id < max(config.read_queues, config.write_queues)
            and self._broker.resizing.placement.takes(topic, queue_id)
        )

    @staticmethod
    def _place(target: Target) -> Place:
        """Return a queue as the compiled module needs it."""
        assert native is not None, "the module is compiled"
        made: Place = native.Place(
            target.topic_bytes, target.topic_part, target.magic, target.queue_id, target.queue,
            target.producers, target.map_version.encode(), target.map_digest.encode(),
            prefix_hash(target.topic),
        )  # fmt: skip
        return made

    def _make_target(self, topic: str, queue_id: int) -> Target:
        send_map = self._broker.resizing.placement.send_map(topic)
        return Target(
            topic,
            queue_id,
            self._store.queue(topic, queue_id),
            self._broker.producers.on_queue(topic, queue_id) if has_sequences(topic) else None,
            send_map.version,
            send_map.digest,
        )

    def forget_targets(self) -> None:
        """Clear the cache: a topic, a permission or a queue count changed."""
        self._targets.clear()
        self._checked_targets.clear()
        if self._plain is not None:
            self._plain.forget()
