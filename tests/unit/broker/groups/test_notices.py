"""When members are told that a group changed."""

from __future__ import annotations

import asyncio
from typing import Any

from inorder.broker.groups.rules import Member, Members
from inorder.broker.groups.service import UNLOCKED_MS, Notices
from inorder.wire.codes import LanguageCode
from inorder.wire.header import Command
from tests.kit.simloop import SimLoop, run

SOON_S = UNLOCKED_MS / 1000


class Client:
    """A member that remembers when it was told."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.told_s: list[float] = []

    def notify(self, command: Command) -> None:
        assert (command.code, command.fields) == (40, {"consumerGroup": "g"})
        self.told_s.append(self._loop.time())


def group_of(loop: SimLoop, *languages: LanguageCode) -> tuple[Any, list[Client]]:
    members: Members[Any] = Members()
    clients = [Client(loop) for _ in languages]
    for number, (client, language) in enumerate(zip(clients, languages, strict=True)):
        members.register_consumer(
            "g",
            Member(client, f"c{number}", language, 433, 0),
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from="",
            subscriptions=[],
        )
    return members, clients


def test_an_unlock_is_told_to_java_a_moment_later() -> None:
    """Java that looks before the leaver has left looks again only a second later."""

    async def main(loop: SimLoop) -> None:
        members, (java, ours) = group_of(loop, LanguageCode.JAVA, LanguageCode.PYTHON)
        notices = Notices(members)
        notices.tell_unlocked("g")
        await asyncio.sleep(SOON_S / 2)
        notices.tell_unlocked("g")
        await asyncio.sleep(1)
        assert java.told_s == [SOON_S]
        assert ours.told_s[0] == 0.0

    run(main)


def test_an_unlock_is_not_told_to_cpp() -> None:
    """C++ asks again by itself; notices take the threads that it needs for the answers of pulls."""

    async def main(loop: SimLoop) -> None:
        members, (java, cpp) = group_of(loop, LanguageCode.JAVA, LanguageCode.CPP)
        notices = Notices(members)
        notices.tell_unlocked("g")
        await asyncio.sleep(1)
        assert (java.told_s, cpp.told_s) == ([SOON_S], [])
        notices.tell("g")
        await asyncio.sleep(1)
        assert (java.told_s, cpp.told_s) == ([SOON_S, 1.0], [1.0])

    run(main)


def test_a_client_that_unlocks_is_not_told_of_its_own_unlock() -> None:
    """A Go client that stops would look at its group while it closes the connection."""

    async def main(loop: SimLoop) -> None:
        members, (stopping, other) = group_of(loop, LanguageCode.GO, LanguageCode.GO)
        notices = Notices(members)
        notices.tell_unlocked("g", by="c0")
        await asyncio.sleep(1)
        assert (stopping.told_s, other.told_s) == ([], [0.0])

    run(main)


def test_who_left_meanwhile_is_told_at_once_and_only_once() -> None:
    """The news of a departure makes that of the unlock before it superfluous."""

    async def main(loop: SimLoop) -> None:
        members, (java, leaver) = group_of(loop, LanguageCode.JAVA, LanguageCode.JAVA)
        notices = Notices(members)
        notices.tell_unlocked("g")
        await asyncio.sleep(SOON_S / 2)
        for notice in members.unregister_consumer("g", leaver).notices:
            notices.tell(notice.group, notice.connections)
        await asyncio.sleep(1)
        assert (java.told_s, leaver.told_s) == ([SOON_S / 2], [])

    run(main)


def test_nobody_is_told_by_a_broker_that_stops() -> None:
    """Timers end with it."""

    async def main(loop: SimLoop) -> None:
        members, (java,) = group_of(loop, LanguageCode.JAVA)
        notices = Notices(members)
        notices.tell_unlocked("g")
        notices.tell_unlocked("unknown")
        notices.cancel()
        await asyncio.sleep(1)
        assert java.told_s == []

    run(main)
