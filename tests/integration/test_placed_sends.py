"""What a keyed send must say of the map that chose its queue, on every way in (A13)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from inorder.broker.sends import service as send_service
from inorder.errors import KeyMapChanged, broker_error
from inorder.ordering.keymap import KeyMap, digest_of
from inorder.wire.header import Command
from tests.integration.brokerkit import Rig, running
from tests.integration.idempotentkit import Sender, stored_numbers

MAP = "4/broker-a:0-7"
OTHER = "4/broker-a:0-3"
KEYED = "__SHARDINGKEY\x01k\x02"
CHANGED = 7110
Send = Callable[[Sender, int, dict[str, str]], Awaitable[Command]]


async def _single(sender: Sender, number: int, fields: dict[str, str]) -> Command:
    return await sender.send(number, **fields)


async def _general(sender: Sender, number: int, fields: dict[str, str]) -> Command:
    return await sender.send(number, serializer=1, **fields)


async def _batch(sender: Sender, number: int, fields: dict[str, str]) -> Command:
    return await sender.send_batch([number], **fields)


async def _bulk(sender: Sender, number: int, fields: dict[str, str]) -> Command:
    return await sender.send_batch(list(range(number, number + 300)), **fields)


WAYS: dict[str, tuple[Send, int]] = {
    "fast": (_single, 1),
    "general": (_general, 1),
    "batch": (_batch, 1),
    "bulk": (_bulk, 300),
}


def play(
    story: Callable[[Rig, Sender], Awaitable[None]], *, protocol: int | None, text: str = MAP
) -> None:
    """Run a story against a broker that holds a map."""

    async def whole() -> None:
        async with running() as rig:
            fields = {
                "topic": "Orders", "defaultTopic": "TBW102", "readQueueNums": "8",
                "order": "false", "writeQueueNums": "8", "perm": "6",
                "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
                "attributes": f"+inorder.keymap={text}" if text else "",
            }  # fmt: skip
            assert (await rig.ask(17, fields)).code == 0
            sender = Sender(rig)
            assert (await sender.hello(protocol=protocol)).code == 0
            await story(rig, sender)

    asyncio.run(whole())


def _says(version: str = "4", text: str = MAP) -> dict[str, str]:
    return {"mv": version, "md": KeyMap.decode(text).digest}


TABLE = [
    # what the send says, with a key, whether protocol 2 stores it, whether protocol 1 does
    (_says(), True, True, True),
    ({}, True, False, True),
    ({"mv": "4"}, True, False, True),
    (_says(text=OTHER), True, False, True),
    (_says("3"), True, False, False),
    ({"mq": "1"}, True, True, True),
    ({}, False, True, True),
]


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("says", "keyed", "second", "first"), TABLE)
def test_a_keyed_send_of_ours_names_its_map_on_every_way(  # noqa: PLR0917 - a table
    says: dict[str, str], keyed: bool, second: bool, first: bool, way: str, compiled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Refused with the map, nothing stored; older clients are judged by the version as before."""
    if not compiled:
        monkeypatch.setattr(send_service, "native", None)
    send, count = WAYS[way]
    for protocol, stored in ((2, second), (None, first)):

        async def story(rig: Rig, sender: Sender, stored: bool = stored) -> None:
            fields = {**says, "extra": KEYED if keyed else ""}
            # The first on a queue goes the general way, the second the one that is meant.
            opening = await send(sender, 0, {**_says(), "extra": KEYED})
            assert opening.code == 0, opening.remark
            answer = await send(sender, count, dict(fields))
            if stored:
                assert answer.code == 0, answer.remark
            else:
                error = broker_error(answer.code, answer.remark, answer.fields)
                assert isinstance(error, KeyMapChanged)
                assert (error.version, error.map) == (4, MAP)
            assert len(stored_numbers(rig)) == count * (1 + stored)
            again = await send(sender, 0, dict(fields))
            assert (again.code, again.fields["queueOffset"]) == (0, "0"), "a duplicate comes first"

        play(story, protocol=protocol)


def test_a_topic_without_a_map_asks_for_nothing() -> None:
    """Keyed sends of ours go as they did; one that names a map is told that there is none."""

    async def story(rig: Rig, sender: Sender) -> None:
        assert (await sender.send(0, extra=KEYED)).code == 0
        assert (await sender.send(1, extra=KEYED)).code == 0
        refused = await sender.send(2, extra=KEYED, **_says())
        assert (refused.code, refused.fields["version"], refused.fields["map"]) == (
            CHANGED,
            "0",
            "",
        )

    play(story, protocol=2, text="")


def test_digests_tell_maps_of_one_version_apart() -> None:
    """Of the text as we write it, in whatever form a broker holds it."""
    assert digest_of(MAP) != digest_of(OTHER)
    assert KeyMap.decode("4/broker-a:0-3/broker-a:4-7").digest == KeyMap.decode(MAP).digest
