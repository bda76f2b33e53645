"""A scripted broker that knows numbered sends and key maps, and can be slow, busy and forgetful."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from inorder.client.session import Session
from inorder.config import ClientConfig
from inorder.net.accepted import ServerConnection
from inorder.ordering.keymap import KeyMap
from inorder.ordering.sequence import Verdict, expected, judge_batch
from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.extensions import ExtensionAnswer, ExtensionCode
from inorder.wire.fields import encode_fields
from inorder.wire.frame import RawFrame
from inorder.wire.header import Command, decode_command
from inorder.wire.properties import parse
from inorder.wire.record import Record
from inorder.wire.requests.nameserver import GetKvReply
from inorder.wire.requests.producers import (
    ProducerHelloReply,
    ProducerStateReply,
    offsets_text,
)
from inorder.wire.requests.resizing import ResizeView, encode_resize_view
from inorder.wire.requests.sends import SendMessage, SendReply, decode_batch
from tests.kit.simloop import SimLoop, run
from tests.unit.client.scripted import HOST, Scripted, session

SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
Stored = tuple[str, int, int]  # producer, number, offset


class Numbering(Scripted):
    """Keeps the numbers of producers; `hold` keeps sends of a connection until `let_go`."""

    def __init__(self, loop: SimLoop, host: str = HOST, name: str = "broker-a") -> None:
        super().__init__(loop, host, name)
        self.numbers: dict[int, list[Stored]] = {index: [] for index in self.queues}
        self.bound: dict[str, tuple[int, ServerConnection]] = {}
        self.kv: dict[str, str] = {}
        self.key_map: KeyMap | None = None
        self.hold = False
        self.held: list[tuple[ServerConnection, Command]] = []
        self.most_unanswered = 0
        self.versions: list[str | None] = []
        self.batches = 0
        """The capability that lets producers put messages of single calls into one request."""
        self.poison: bytes | None = None
        """A body that is refused, and which message of a request it is in, is told."""
        self.names_poison = True

    def frames_received(self, connection: ServerConnection, frames: list[RawFrame]) -> None:
        for frame in frames:
            command = decode_command(frame)
            if command.code in SENDS and self.hold:
                self.held.append((connection, command))
                self.most_unanswered = max(self.most_unanswered, len(self.held))
            else:
                self.serve(connection, command)

    def let_go(self, count: int | None = None) -> None:
        """Serve the oldest of what is held."""
        count = len(self.held) if count is None else count
        taken, self.held = self.held[:count], self.held[count:]
        for connection, command in taken:
            self.serve(connection, command)

    def serve(self, connection: ServerConnection, command: Command) -> None:
        self.requests.append(command)
        self.speaker = connection
        scripted = self.answers.get(command.code)
        answer = scripted.pop(0)(command) if scripted else self.answer(command)
        if answer is not None and not command.is_oneway and not connection.closed:
            connection.send(answer)

    def answer(self, command: Command) -> Command:
        match command.code:
            case ExtensionCode.PRODUCER_HELLO:
                return self.hello(command)
            case ExtensionCode.PRODUCER_STATE:
                return self.state(command)
            case ExtensionCode.RESIZE_STATUS:
                held = self.key_map
                view = ResizeView(
                    self.name, command.fields["topic"], 0 if held is None else held.version,
                    "" if held is None else held.encode(), 0,
                )  # fmt: skip
                return command.reply(body=encode_resize_view(view))
            case RequestCode.GET_KV_CONFIG:
                value = self.kv.get(command.fields["key"])
                if value is None:
                    return command.reply(ResponseCode.QUERY_NOT_FOUND, "none")
                return command.reply(fields=encode_fields(GetKvReply(value)))
        return super().answer(command)

    def hello(self, command: Command) -> Command:
        who, incarnation = command.fields["producerId"], int(command.fields["incarnation"])
        highest = self.bound.get(who, (0, None))[0]
        if incarnation < highest:
            return command.reply(
                ExtensionAnswer.PRODUCER_STALE, "old", fields={"highest": str(highest)}
            )
        self.bound[who] = (incarnation, self.speaker)
        return command.reply(
            fields=encode_fields(ProducerHelloReply(1, incarnation, batches=self.batches))
        )

    def state(self, command: Command) -> Command:
        queue_id, who = int(command.fields["queueId"]), command.fields["producerId"]
        last, since = self.last(queue_id, who), int(command.fields["since"])
        offsets = None
        if self.batches and 0 <= since <= (-1 if last is None else last):
            known = {n: offset for w, n, offset in self.numbers[queue_id] if w == who}
            assert last is not None
            offsets = offsets_text((known.get(n, -1), 1) for n in range(since, last + 1))
        reply = ProducerStateReply(
            last is not None, expected(last, named=False), -1 if last is None else last, offsets
        )
        return command.reply(fields=encode_fields(reply))

    def last(self, queue_id: int, who: str) -> int | None:
        return max((n for w, n, _ in self.numbers[queue_id] if w == who), default=None)

    def store(self, command: Command) -> Command:
        properties = SendMessage.from_fields_v2(command.fields).properties or ""
        return self.store_numbered(command, [(bytes(command.body), properties.encode())])

    def store_batch(self, command: Command) -> Command:
        items = [(item.body, item.properties) for item in decode_batch(command.body)]
        return self.store_numbered(command, items)

    def store_numbered(self, command: Command, items: list[tuple[bytes, bytes]]) -> Command:
        request = SendMessage.from_fields_v2(command.fields)
        found = [parse(properties) for _, properties in items]
        who = found[0]["INORDER_PID"]
        if self.bound.get(who, (0, None))[1] is not self.speaker:
            return command.reply(ExtensionAnswer.PRODUCER_STALE, "not greeted here")
        numbers = [
            (int(one["INORDER_SEQ"]), int(one["INORDER_PREV"]) if "INORDER_PREV" in one else None)
            for one in found
        ]
        last = self.last(request.queue_id, who)
        verdict, done = judge_batch(last, numbers)
        version = command.fields.get("mv")
        if verdict is not Verdict.DUPLICATE:
            self.versions.append(version)
            if self.key_map is not None and version and int(version) != self.key_map.version:
                return command.reply(
                    ExtensionAnswer.KEY_MAP_CHANGED,
                    "another map",
                    fields={"version": str(self.key_map.version), "map": self.key_map.encode()},
                )
        if verdict is Verdict.UNKNOWN:
            return command.reply(ExtensionAnswer.PRODUCER_UNKNOWN, "who?")
        if verdict is Verdict.GAP:
            wanted = expected(last, named=numbers[0][1] is not None)
            return command.reply(
                ExtensionAnswer.PRODUCER_GAP, "gap", fields={"expected": str(wanted)}
            )
        bodies = [body for body, _ in items]
        if self.poison in bodies:
            index = {"index": str(bodies.index(self.poison))} if self.names_poison else {}
            return command.reply(ResponseCode.MESSAGE_ILLEGAL, "poison", fields=index)
        self.keep(request, who, items[done:], [number for number, _ in numbers[done:]])
        known = {n: offset for w, n, offset in self.numbers[request.queue_id] if w == who}
        offsets = [known.get(number, -1) for number, _ in numbers]
        reply = encode_fields(SendReply("0" * 32, request.queue_id, offsets[0]))
        if offsets[-1] - offsets[0] != len(offsets) - 1:
            reply["offsets"] = ",".join(map(str, offsets))
        return command.reply(fields=reply)

    def keep(
        self, request: SendMessage, who: str, items: list[tuple[bytes, bytes]], numbers: list[int]
    ) -> None:
        queue = self.queues[request.queue_id]
        for (body, properties), number in zip(items, numbers, strict=True):
            offset = len(queue)
            self.numbers[request.queue_id].append((who, number, offset))
            queue.append(Record(request.topic, request.queue_id, offset, 0, body, properties))

    def sent(self) -> list[list[bytes]]:
        """Return the bodies of each request of sends, in the order of the requests."""
        found = []
        for request in self.requests:
            if request.code == RequestCode.SEND_MESSAGE_V2:
                found.append([bytes(request.body)])
            elif request.code == RequestCode.SEND_BATCH_MESSAGE:
                found.append([item.body for item in decode_batch(request.body)])
        return found

    def store_some(self, count: int) -> Callable[[Command], Command]:
        """Store the first messages of a request, and answer that the outcome is unknown."""

        def store(command: Command) -> Command:
            request = SendMessage.from_fields_v2(command.fields)
            items = [(one.body, one.properties) for one in decode_batch(command.body)][:count]
            numbers = [int(parse(properties)["INORDER_SEQ"]) for _, properties in items]
            who = parse(items[0][1])["INORDER_PID"]
            self.keep(request, who, items, numbers)
            return command.reply(ResponseCode.SYSTEM_ERROR, "who knows")

        return store

    def lose_answer(self, command: Command) -> None:
        """Carry a request out, and cut its connection before the answer."""
        self.answer(command)
        self.speaker.abort("the answer is lost")

    def lose_request(self, _: Command) -> None:
        """Cut the connection before a request is carried out."""
        self.speaker.abort("the request is lost")

    def stored(self) -> list[bytes]:
        """Return the bodies of the queue that has most."""
        return max(self.bodies(), key=len)


def numbered(
    scenario: Callable[[Numbering, Session], Awaitable[None]],
    *,
    config: ClientConfig | None = None,
    batches: bool = False,
) -> None:
    """Play a scenario on a few seeds of the network."""

    async def main(loop: SimLoop) -> None:
        server = Numbering(loop)
        server.batches = int(batches)
        await server.start()
        async with session(loop, config=config) as client:
            await scenario(server, client)
        assert client.statistics().connected == ()

    for seed in range(5):
        run(main, seed)


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that the simulation will bring about."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came")
