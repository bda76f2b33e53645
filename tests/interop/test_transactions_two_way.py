"""Pending transactions in a directory on which brokers take turns: each finishes the other's."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.process import free_ports
from inorder.client.api import BrokerApi
from inorder.config import NetConfig
from inorder.model import TopicConfig
from inorder.net.connection import Connection
from inorder.wire.fields import encode_fields
from inorder.wire.header import Command
from inorder.wire.ids import parse_message_id
from inorder.wire.properties import parse
from inorder.wire.record import decode
from inorder.wire.requests.sends import SendMessage
from inorder.wire.requests.transactions import (
    CheckTransactionState,
    EndTransaction,
    TransactionEnd,
)
from tests.crash.load import read_queue
from tests.interop.rocketmq import SMALL_FILES, OurBroker, Running, ended, real_broker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOPIC, GROUP = "InteropHalves", "shop"
SETTINGS = {
    **SMALL_FILES, "transactionTimeOut": 6000, "transactionCheckInterval": 2000,
    "transactionOpBatchInterval": 300,
}  # fmt: skip
EACH = 12
COMMIT, ROLLBACK = TransactionEnd.COMMIT, TransactionEnd.ROLLBACK
RESOLVED_S = 60


class Shop:
    """A producer that ends some transactions, leaves others, and answers for those of before."""

    def __init__(self) -> None:
        self.wanted: dict[str, TransactionEnd] = {}
        self.left: set[str] = set()
        """Pending from an earlier turn."""
        self.asked: Counter[str] = Counter()
        self.answered: set[str] = set()

    async def connect(self, address: tuple[str, int]) -> Connection:
        connection = await Connection.open(
            f"{address[0]}:{address[1]}", NetConfig(), on_request=self._question
        )
        body = b'{"clientID":"shop-1","producerDataSet":[{"groupName":"shop"}]}'
        beat = Command.request(34, {}, body.replace(b"]}", b'],"consumerDataSet":[]}'))
        assert (await connection.request(beat, 10_000)).code == 0
        return connection

    def _question(self, connection: Connection, command: Command) -> None:
        if command.code != CheckTransactionState.CODE:
            return
        id_ = parse(decode(command.body).properties)["UNIQ_KEY"]
        self.asked[id_] += 1
        if id_ in self.left:
            fields = command.fields
            request = EndTransaction(
                GROUP, int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"]),
                int(self.wanted[id_]), True, id_, id_,
            )  # fmt: skip
            connection.notify(Command.request(37, encode_fields(request), oneway=True))
            self.answered.add(id_)

    async def trade(self, connection: Connection, turn: int) -> set[str]:
        """Begin transactions and end most; return those that are left open."""
        open_: set[str] = set()
        for number in range(EACH):
            id_ = f"{turn:02d}{number:02d}".rjust(32, "0")
            now_ms = int(time.time() * 1000)
            text = f"UNIQ_KEY\x01{id_}\x02TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
            header = SendMessage(GROUP, TOPIC, "TBW102", 1, 0, 4, now_ms, 0, text)
            answer = await connection.request(
                Command.request(310, header.to_fields_v2(), id_.encode()), 10_000
            )
            assert answer.code == 0, answer.remark
            self.wanted[id_] = COMMIT if number % 2 else ROLLBACK
            if number % 3 == 2:
                open_.add(id_)
                continue
            _, _, position = parse_message_id(answer.fields["msgId"])
            request = EndTransaction(
                GROUP, int(answer.fields["queueOffset"]), position, int(self.wanted[id_]), False,
                id_, id_,
            )  # fmt: skip
            reply = await connection.request(Command.request(37, encode_fields(request)), 10_000)
            assert reply.code == 0, reply.remark
        return open_


async def turn_of(shop: Shop, server: Running, turn: int, *, last: bool) -> None:
    """Finish what the broker before has left, begin anew; judge in the end."""
    connection = await shop.connect(server.address)
    api = BrokerApi(connection, timeout_ms=10_000)
    if not turn:
        await api.create_topic(TopicConfig(TOPIC, 1, 1))
    before = set(shop.left)
    open_ = await shop.trade(connection, turn)
    deadline = time.monotonic() + RESOLVED_S
    if last:
        shop.left |= open_
    while not shop.left <= shop.answered:
        assert time.monotonic() < deadline, sorted(shop.left - shop.answered)
        await asyncio.sleep(0.1)
    await asyncio.sleep(4)  # for records of ended halves, and for what comes twice
    shop.left = shop.left if last else open_
    ended_ids = shop.wanted.keys() - before - open_ - shop.answered
    assert not ended_ids & shop.asked.keys(), "what was ended is asked about again"
    if last:
        records = await read_queue(api, (TOPIC, 0))
        count = Counter(record.body.decode() for record in records)
        assert count == Counter(id_ for id_, end in shop.wanted.items() if end is COMMIT)
    connection.close()


def test_each_broker_finishes_what_is_pending_in_the_directory_of_the_other(tmp_path: Path) -> None:
    """Halves that one broker took are asked about by the next, and end once, in both directions."""
    store, port = tmp_path / "store", free_ports(1, apart=(-2, 0, 1))[0]
    turns: list[Callable[[], Running]] = [
        lambda: OurBroker(tmp_path, store=store, port=port, settings=SETTINGS),
        lambda: real_broker(tmp_path, store=store, port=port, settings=SETTINGS),
    ] * 2
    shop = Shop()
    for turn, start in enumerate(turns):
        server = start()
        with ended(server):
            asyncio.run(turn_of(shop, server, turn, last=turn == len(turns) - 1))
            server.child.stop()
