"""A scripted server on the simulated network, for tests of the client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from inorder.client.identity import Identity
from inorder.client.session import Session
from inorder.config import ClientConfig, NetConfig
from inorder.net.accepted import ServerConnection
from inorder.net.server import Server
from inorder.wire.codes import RequestCode, ResponseCode
from inorder.wire.fields import encode_fields
from inorder.wire.frame import RawFrame
from inorder.wire.header import Command, decode_command
from inorder.wire.record import Record, encode
from inorder.wire.requests.offsets import OffsetReply
from inorder.wire.requests.pulls import PullReply
from inorder.wire.requests.routes import BrokerData, QueueData, TopicRoute
from inorder.wire.requests.sends import SendMessage, SendReply, decode_batch
from tests.kit.clock import SimClock
from tests.kit.simloop import Node, SimLoop, run

HOST, PORT = "10.0.0.1", 9876
ADDRESS = f"{HOST}:{PORT}"
QUEUES = 2


class Scripted:
    """A name server and broker that does as told: it keeps messages in lists."""

    def __init__(self, loop: SimLoop, host: str = HOST, name: str = "broker-a") -> None:
        self.name = name
        self.others: list[Scripted] = []
        self.committed: dict[int, int] = {}
        self.loop = loop
        self.host = host
        self.node: Node = loop.node(host)
        self.queues: dict[int, list[Record]] = {index: [] for index in range(QUEUES)}
        self.requests: list[Command] = []
        self.answers: dict[int, list[Callable[[Command], Command | None]]] = {}
        self.topics = {"t"}
        self.server: Server

    async def start(self) -> None:
        async def serve() -> None:
            self.server = Server(self, NetConfig(tls_mode="disabled"), SimClock(self.loop))
            await self.server.start(self.host, PORT)

        await self.node.run(serve())

    def connection_made(self, connection: ServerConnection) -> None:
        pass

    def connection_lost(self, connection: ServerConnection, reason: str) -> None:
        pass

    def frames_received(self, connection: ServerConnection, frames: list[RawFrame]) -> None:
        for frame in frames:
            command = decode_command(frame)
            self.requests.append(command)
            scripted = self.answers.get(command.code)
            answer = scripted.pop(0)(command) if scripted else self.answer(command)
            if answer is not None and not command.is_oneway:
                connection.send(answer)

    def count(self, code: int) -> int:
        return sum(command.code == code for command in self.requests)

    def answer(self, command: Command) -> Command:
        match command.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return self.route(command)
            case RequestCode.SEND_MESSAGE_V2:
                return self.store(command)
            case RequestCode.SEND_BATCH_MESSAGE:
                return self.store_batch(command)
            case RequestCode.PULL_MESSAGE:
                return self.pull(command)
            case RequestCode.GET_MAX_OFFSET:
                offset = len(self.queues[int(command.fields["queueId"])])
                return command.reply(fields=encode_fields(OffsetReply(offset)))
            case RequestCode.GET_MIN_OFFSET:
                return command.reply(fields=encode_fields(OffsetReply(0)))
            case RequestCode.HEART_BEAT | RequestCode.UNREGISTER_CLIENT:
                return command.reply()
            case RequestCode.QUERY_CONSUMER_OFFSET:
                return self.query_offset(command)
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                self.committed[int(command.fields["queueId"])] = int(command.fields["commitOffset"])
                return command.reply()
        return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "unscripted")

    def route(self, command: Command) -> Command:
        if command.fields["topic"] not in self.topics:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, "no route")
        servers = [self, *self.others]
        brokers = tuple(BrokerData("C", s.name, {0: f"{s.host}:{PORT}"}) for s in servers)
        queues = tuple(QueueData(s.name, QUEUES, QUEUES, 6) for s in servers)
        return command.reply(body=TopicRoute(brokers, queues).encode())

    def store(self, command: Command) -> Command:
        request = SendMessage.from_fields_v2(command.fields)
        queue = self.queues[request.queue_id]
        record = Record(
            request.topic,
            request.queue_id,
            len(queue),
            0,
            bytes(command.body),
            (request.properties or "").encode(),
            sys_flag=request.sys_flag,
        )
        queue.append(record)
        reply = SendReply("0" * 32, request.queue_id, record.queue_offset)
        return command.reply(fields=encode_fields(reply))

    def store_batch(self, command: Command) -> Command:
        request = SendMessage.from_fields_v2(command.fields)
        queue = self.queues[request.queue_id]
        first = len(queue)
        for item in decode_batch(command.body):
            queue.append(
                Record(request.topic, request.queue_id, len(queue), 0, item.body, item.properties)
            )
        reply = SendReply("0" * 32, request.queue_id, first)
        return command.reply(fields=encode_fields(reply))

    def query_offset(self, command: Command) -> Command:
        offset = self.committed.get(int(command.fields["queueId"]))
        if offset is None:
            return command.reply(ResponseCode.QUERY_NOT_FOUND, "none")
        return command.reply(fields=encode_fields(OffsetReply(offset)))

    def pull(self, command: Command) -> Command:
        queue = self.queues[int(command.fields["queueId"])]
        offset = int(command.fields["queueOffset"])
        found = queue[offset : offset + 3]
        fields = encode_fields(PullReply(0, offset + len(found), 0, len(queue)))
        if not found:
            return command.reply(ResponseCode.PULL_NOT_FOUND, fields=fields)
        return command.reply(fields=fields, body=b"".join(map(encode, found)))

    def bodies(self) -> list[list[bytes]]:
        return [[record.body for record in self.queues[index]] for index in range(QUEUES)]


def refuse(code: int) -> Callable[[Command], Command]:
    return lambda command: command.reply(code, "scripted")


def silence(_: Command) -> None:
    return None


def session(
    loop: SimLoop, namesrv: str = ADDRESS, *, config: ClientConfig | None = None
) -> Session:
    return Session(
        namesrv,
        clock=SimClock(loop),
        identity=Identity("10.0.0.9", 1, loop.seed),
        config=config or ClientConfig(request_timeout_ms=500, send_timeout_ms=5000),
    )


def over_the_wire(
    scenario: Callable[[Scripted, Session], Awaitable[None]], *, config: ClientConfig | None = None
) -> None:
    async def main(loop: SimLoop) -> None:
        server = Scripted(loop)
        await server.start()
        async with session(loop, config=config) as client:
            await scenario(server, client)
        assert client.statistics().connected == ()

    for seed in range(3):
        run(main, seed)
