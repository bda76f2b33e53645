"""Transactions killed at any change of the disk, and over power cuts: each is all or nothing.

The first test ends the broker at the nth change of its disk, for every n of a story: halves, ends,
questions, records of ended halves. The second plays senders and their listener over kills and power
cuts under sync flush. In both, what was answered counts, what was not happens once or never, and in
the end nothing is pending. The last one is a sample of `make proof-transactions`, which ends real
processes.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from inorder.client.api import BrokerApi
from inorder.errors import InorderError
from inorder.model import TopicConfig
from inorder.net.connection import Connection
from inorder.wire.fields import encode_fields
from inorder.wire.header import Command
from inorder.wire.ids import parse_message_id
from inorder.wire.properties import parse
from inorder.wire.record import Record, decode, decode_all
from inorder.wire.requests.sends import SendMessage
from inorder.wire.requests.transactions import (
    CheckTransactionState,
    EndTransaction,
    TransactionEnd,
)
from tests.crash import transactions
from tests.crash.load import read_queue
from tests.crash.machine import STORE, Machine
from tests.integration.brokerkit import Rig, running
from tests.kit.disk import FakeFiles, Fault, Killed
from tests.kit.simcluster import stream
from tests.kit.simloop import SimLoop, run

HALVES, ENDED = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
COMMIT, ROLLBACK = TransactionEnd.COMMIT, TransactionEnd.ROLLBACK
EAGER = {
    "transaction_timeout_ms": 0, "transaction_check_interval_ms": 3_600_000,
    "transaction_note_interval_ms": 3_600_000, "transaction_checks_max": 1_000_000,
}  # fmt: skip

deaths = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


def properties(unique: str, group: str = "shop") -> str:
    return f"UNIQ_KEY\x01{unique}\x02TRAN_MSG\x01true\x02PGROUP\x01{group}\x02"


def end_of(half: Command, end: TransactionEnd, unique: str) -> EndTransaction:
    _, _, position = parse_message_id(half.fields["msgId"])
    return EndTransaction(
        "shop", int(half.fields["queueOffset"]), position, int(end), False, unique
    )


class Story:
    """Transactions, step by step; `wanted` is how each must end, `answered` what was answered."""

    def __init__(self) -> None:
        self.halves: dict[str, Command] = {}
        self.ends: dict[str, TransactionEnd] = {}
        self.asked: dict[str, TransactionEnd] = {}

    async def play(self, rig: Rig) -> None:
        for number in range(4):
            unique = f"U{number}"
            born = str(rig.broker.clock.now_ms() - 10)
            answer = await rig.send(unique.encode(), i=properties(unique), f="4", e="1", g=born)
            assert answer.code == 0
            self.halves[unique] = answer
        await self.end(rig, "U0", COMMIT)
        await self.end(rig, "U1", ROLLBACK)
        service = rig.broker.transaction_service
        service.begin_round()  # U2 and U3 are put back
        await self.settled(rig)
        await self.end(rig, "U2", COMMIT)  # by its first half
        service.note_ended()
        await self.settled(rig)
        await self.end(rig, "U3", COMMIT)
        rig.broker.offset_snapshot.save_soon()
        await asyncio.sleep(0.02)

    async def end(self, rig: Rig, unique: str, end: TransactionEnd) -> None:
        self.asked[unique] = end
        request = end_of(self.halves[unique], end, unique)
        answer = await rig.ask(37, encode_fields(request))
        assert answer.code == 0, answer.remark
        self.ends[unique] = end

    async def settled(self, rig: Rig) -> None:
        await rig.ask(30, {"topic": HALVES, "queueId": "0"})
        await asyncio.sleep(0.005)

    async def judge(self, rig: Rig) -> None:
        """End everything again by the same wishes: it has its effect once."""
        table = rig.broker.transactions
        for unique, end in self.ends.items():
            half = self.halves[unique]
            _, _, position = parse_message_id(half.fields["msgId"])
            assert table.get(position) is None, f"{unique} was ended by {end.name}, and is pending"
        for unique, half in self.halves.items():
            end = self.asked.get(unique, COMMIT)
            await rig.ask(37, encode_fields(end_of(half, end, unique)))
        known = {parse_message_id(half.fields["msgId"])[2] for half in self.halves.values()}
        assert not known & {half.origin for half in table}, "what is asked for again ends"
        records = decode_all((await rig.pull(queueId="1")).body)
        count = Counter(record.body.decode() for record in records)
        for unique in self.halves:
            end = self.asked.get(unique, COMMIT)
            assert count.pop(unique, 0) == (end is COMMIT), f"{unique}: {end.name}"
        assert not count, "no half that nobody ended is there"


def killed_at(nth: int, store: object) -> bool:
    """Play the story on a disk that dies at its nth change; tell whether it died at all."""
    story = Story()

    async def first(files: FakeFiles) -> bool:
        try:
            async with running(files, stop=False, store=store, **EAGER) as rig:  # type: ignore[arg-type]
                await rig.send(b"warm", e="2")
                loop, failed = asyncio.get_running_loop(), asyncio.Event()
                loop.set_exception_handler(lambda *_: failed.set())
                files.fail(Fault("change", nth, error=None, kept_bytes=17))
                playing = asyncio.ensure_future(story.play(rig))
                dying = asyncio.ensure_future(failed.wait())
                await asyncio.wait((playing, dying), return_when=asyncio.FIRST_COMPLETED)
                dying.cancel()
                died = not playing.done() or playing.exception() is not None
                playing.cancel()
                return died
        except (Killed, InorderError, OSError):
            return True

    async def second(files: FakeFiles) -> None:
        async with running(files, store=store, **EAGER) as rig:  # type: ignore[arg-type]
            await story.judge(rig)
        async with running(files, stop=False, store=store, **EAGER) as rig:  # type: ignore[arg-type]
            known = {parse_message_id(half.fields["msgId"])[2] for half in story.halves.values()}
            assert not known & {half.origin for half in rig.broker.transactions}

    files = FakeFiles()
    died = False
    try:
        died = asyncio.run(first(files))
    except Killed:
        died = True
    asyncio.run(second(files.kill()))
    gc.collect()  # what the dead process had begun, while its warnings are not listened to
    return died


class TestDeaths:
    """The broker dies in the middle of a change."""

    pytestmark = deaths

    @pytest.mark.parametrize("sync", [False, True])
    def test_killed_at_every_change(self, sync: bool) -> None:
        """From the first half to the saved offsets."""
        store = replace(STORE, sync_flush=sync)
        nth = 1
        while killed_at(nth, store):
            nth += 1
        assert nth > 9, "every request writes"


@dataclass
class Business:
    """The outcomes, each decided once; and what was answered."""

    outcome: dict[str, TransactionEnd] = field(default_factory=dict)
    acknowledged: dict[str, TransactionEnd] = field(default_factory=dict)

    def decide(self, id_: str, end: TransactionEnd) -> TransactionEnd:
        return self.outcome.setdefault(id_, end)


async def trade(machine: Machine, loop: SimLoop, business: Business, name: str) -> None:
    """Send halves and end them, over every end of the broker; leave some open."""
    draw = stream(loop.seed, name)
    numbers = itertools.count()
    connection: Connection | None = None
    while True:
        await asyncio.sleep(draw.uniform(0.0, 0.05))
        try:
            if connection is None or connection.closed:
                connection = await machine.connect()
            id_ = f"{name}-{next(numbers)}"
            now_ms = int(loop.time() * 1000) + 1_700_000_000_000
            header = SendMessage(
                "shop", "trade", "TBW102", 2, draw.randrange(2), 4, now_ms, 0, properties(id_)
            )
            half = await connection.request(
                Command.request(310, header.to_fields_v2(), id_.encode()), 3000
            )
            if half.code or draw.random() < 0.2:
                continue  # the listener ends it
            end = business.decide(id_, COMMIT if draw.random() < 0.7 else ROLLBACK)
            await asyncio.sleep(draw.uniform(0.0, 0.03))
            request = end_of(half, end, id_)
            answer = await connection.request(Command.request(37, encode_fields(request)), 3000)
            if answer.code == 0:
                business.acknowledged[id_] = end
        except (InorderError, OSError):
            connection = None


async def listen(machine: Machine, business: Business) -> None:
    """Answer the questions of every broker that comes: what nobody decided is rolled back."""

    def asked(connection: Connection, command: Command) -> None:
        if command.code != CheckTransactionState.CODE:
            return
        id_ = parse(decode(command.body).properties)["UNIQ_KEY"]
        end = business.decide(id_, ROLLBACK)
        fields = command.fields
        answer = EndTransaction(
            "shop", int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"]), int(end),
            True, id_,
        )  # fmt: skip
        connection.notify(Command.request(37, encode_fields(answer), oneway=True))

    beat = b'{"clientID":"c","producerDataSet":[{"groupName":"shop"}],"consumerDataSet":[]}'
    connection: Connection | None = None
    while True:
        await asyncio.sleep(0.1)
        try:
            if connection is None or connection.closed:
                connection = await machine.connect(asked)
                await connection.request(Command.request(34, {}, beat), 3000)
        except (InorderError, OSError):
            connection = None


async def play(loop: SimLoop, *, power: bool) -> tuple[Business, list[Record], int]:
    """Trade and crash; return the outcomes, what is stored, and what is pending in the end."""
    draw = stream(loop.seed, "plan")
    machine = Machine(
        loop, replace(STORE, sync_flush=power), transaction_timeout_ms=200,
        transaction_check_interval_ms=150, transaction_note_interval_ms=300,
        transaction_checks_max=1_000_000,
    )  # fmt: skip
    business = Business()
    await machine.start()
    api = BrokerApi(await machine.connect(), timeout_ms=10_000)
    await api.create_topic(TopicConfig("trade", 2, 2))
    work = [asyncio.create_task(trade(machine, loop, business, f"p{n}")) for n in range(3)]
    listening = asyncio.create_task(listen(machine, business))
    for _ in range(12):
        await asyncio.sleep(draw.uniform(0.1, 1.0))
        if power and draw.random() < 0.6:
            machine.cut_power()
        elif draw.random() < 0.15:
            await machine.stop()
        else:
            machine.kill()
        await asyncio.sleep(draw.choice((0, draw.uniform(0, 0.5))))
        await machine.start()
    for task in work:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    await asyncio.sleep(5)
    pending = len(machine.broker.transactions)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    api = BrokerApi(await machine.connect(), timeout_ms=10_000)
    records = [one for queue in range(2) for one in await read_queue(api, ("trade", queue))]
    await machine.stop()
    return business, records, pending


@pytest.mark.sample
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("power", [False, True], ids=["kills", "power cuts, sync flush"])
def test_each_transaction_is_all_or_nothing(seed: int, power: bool) -> None:
    """Over kills, or power cuts under sync flush: once by its outcome, and every half resolved."""
    business, records, pending = run(lambda loop: play(loop, power=power), seed)
    count = Counter(record.body.decode() for record in records)
    assert pending == 0
    assert len(business.acknowledged) > 50
    for id_, end in business.acknowledged.items():
        assert business.outcome[id_] is end
    wanted = {id_ for id_, end in business.outcome.items() if end is COMMIT}
    assert {id_ for id_, times in count.items() if times > 1} == set()
    assert count.keys() - wanted == set(), "committed though nobody wanted it"
    # A half whose answer was lost in a kill may not be stored; an acknowledged end is.
    assert {i for i, end in business.acknowledged.items() if end is COMMIT} <= count.keys()


@pytest.mark.sample
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_programs_and_broker_are_killed(tmp_path: Path, flush: str) -> None:
    """`make proof-transactions` kills a hundred times."""
    transactions.run(8, 3, tmp_path, flush)


def test_the_judge_of_the_proof_sees_what_is_wrong() -> None:
    """Messages without a change, changes without a message, doubles, and keys out of order."""
    queue = [{"id": id_, "key": "k"} for id_ in ("b", "a", "x", "x")]
    book = {"a": (1, 2), "b": (3, 4)}
    wrong = transactions.judge({"a", "b", "c"}, [queue], book)
    assert [text.split(":", maxsplit=1)[0] for text in wrong] == [
        "1 paid and without a message", "1 with a message and not paid",
        "1 with several messages",
        "a was committed before b was, and lies behind it",
    ]  # fmt: skip
