"""Requests about parked keys (7130 to 7138): park, read, redrive, unpark, drop, move.

A request from an owner is checked against its epoch, judged and put into the log without an await
in between. The mutex of a queue lets one request at a time change it. Why: decision 22.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from inorder.broker.leases.rules import Owner
from inorder.broker.parking.records import Cancelled, Redriven, Redriving
from inorder.broker.parking.rules import ParkedKey
from inorder.errors import GroupNotFound, InvalidParameter, TopicNotFound
from inorder.model import GroupQueue
from inorder.wire.fields import encode_fields
from inorder.wire.requests import parking as requests
from inorder.wire.requests.parking import (
    KEY_CHARS_MAX,
    PAGE_MAX,
    REASON_CHARS_MAX,
    KeyList,
    MoveBody,
    NamedKey,
    OwnedKey,
    ParkAnswer,
    ParkBody,
    ParkedEntry,
    ParkedPage,
    QueueParking,
    RedrivenBody,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from inorder.broker.broker import Broker
    from inorder.broker.router import Call
    from inorder.net.accepted import ServerConnection
    from inorder.wire.header import Command

READ_BYTES_MAX: Final = 4 * 1024 * 1024


async def park(call: Call[requests.Park]) -> Command:
    """Park messages of a queue; the reply follows when they are safe."""
    broker, request = call.broker, call.request
    body = ParkBody.decode(call.command.body)
    place, parking = _place(request), broker.parking
    _check_group(broker, request.group)
    async with parking.exclusive(place):
        _check_owner(broker, call.connection, place, request)
        before = parking.table.version(*place)
        outcomes, remark = await parking.park(place, body.items)
        answer = ParkAnswer(outcomes, before, parking.table.version(*place), remark)
    return call.reply(fields={}, body=answer.encode())


async def keys(call: Call[requests.ParkedKeys]) -> Command:
    """Return what the owner of a queue must know of its parked keys."""
    place, parking = _place(call.request), call.broker.parking
    async with parking.exclusive(place):
        floor = parking.floor(place)
        queue = parking.table.places.get(place)
        owned = [
            OwnedKey(
                one.key, one.end, parking.redrive_scope.redrive_of(place, one), one.rate,
                parking.redrive_scope.older(place, one), one.moved_to is not None, one.moved_by,
                parking.redrive_scope.is_home(place, one),
            )
            for one in (queue.keys.values() if queue is not None else ())
        ]  # fmt: skip
        done = parking.table.done(place, floor)
        answer = QueueParking(parking.table.version(*place), owned, done)
    return call.reply(fields={}, body=answer.encode())


def list_(call: Call[requests.ParkedList]) -> Command:
    """List parked keys for operators."""
    broker, request = call.broker, call.request
    after = _cursor(request.after)
    entries = (
        (place, one)
        for place, one in broker.parking.table.entries(request.group)
        if (*place, one.key) > after
    )
    found = list(islice(entries, PAGE_MAX + 1))
    more = ""
    if len(found) > PAGE_MAX:
        place, one = found[PAGE_MAX - 1]
        more = msgspec.json.encode([*place, one.key]).decode()
    full = {
        group: why
        for group, why in broker.parking.full_groups().items()
        if request.group in ("", group)
    }
    page = ParkedPage([_entry(broker, *one) for one in found[:PAGE_MAX]], full, more)
    return call.reply(fields={}, body=page.encode())


def _cursor(text: str) -> tuple[str, str, int, str]:
    if not text:
        return "", "", -1, ""
    try:
        return msgspec.json.decode(text.encode(), type=tuple[str, str, int, str])
    except msgspec.MsgspecError:
        raise InvalidParameter(f"after={text[:80]} is not the `next` of a page") from None


def _entry(broker: Broker, place: GroupQueue, one: ParkedKey) -> ParkedEntry:
    moved_to = None if broker.parking.redrive_scope.is_home(place, one) else one.moved_to
    return ParkedEntry(
        *place, one.key, len(one.messages), one.size_bytes, one.since_ms,
        one.messages[0].origin if one.messages else -1, one.tries, one.first_error, one.last_error,
        one.redrive, one.rate, one.older_until(None), moved_to, one.sharding_key,
    )  # fmt: skip


def read(call: Call[requests.ParkedRead]) -> Command:
    """Return the records of a key's messages in order, as many as fit."""
    request = call.request
    place = _place(request)
    one = call.broker.parking.table.find(place, request.key)
    records = call.broker.parking.records(
        place, request.key, request.after, max(1, request.max_messages), READ_BYTES_MAX,
        in_order=request.in_order,
    )  # fmt: skip
    reply = requests.ParkedReadReply(0 if one is None else len(one.messages))
    return call.reply(fields=encode_fields(reply), body=b"".join(records))


async def redrive(call: Call[requests.Redrive]) -> Command:
    """Request or cancel the redrive of keys; their owners learn of it soon."""
    broker, request = call.broker, call.request
    count = 0
    for place, named in _by_queue(request.group, KeyList.decode(call.command.body).keys):
        async with broker.parking.exclusive(place):
            notes: list[Redriving | Cancelled] = []
            for name in named:
                one = broker.parking.table.find(place, name.key)
                if one is None or not (
                    request.cancel or broker.parking.redrive_scope.is_home(place, one)
                ):
                    continue
                if request.cancel:
                    notes.append(Cancelled(place.topic, place.queue_id, name.key))
                else:
                    notes.append(Redriving(place.topic, place.queue_id, name.key, name.rate))
            if notes:
                await broker.parking.note(request.group, *notes)
            count += len(notes)
    return call.reply(fields=encode_fields(requests.RedriveReply(count)))


async def redriven(call: Call[requests.Redriven]) -> Command:
    """Record the outcome of a redrive."""
    request = call.request
    body = RedrivenBody.decode(call.command.body)
    place, parking = _place(request), call.broker.parking
    async with parking.exclusive(place):
        if not request.heir:
            _check_owner(call.broker, call.connection, place, request)
        before = parking.table.version(*place)
        await parking.redriven(
            place,
            Redriven(
                place.topic, place.queue_id, _key(request.key), body.done, body.error, body.older
            ),
            successor=request.heir
            and bool(request.instance),  # a job has no instance and no epochs
        )
        reply = requests.RedrivenReply(before, parking.table.version(*place))
    return call.reply(fields=encode_fields(reply))


async def unpark(call: Call[requests.Unpark]) -> Command:
    """Let a key go live if its list did not grow."""
    request = call.request
    place, parking = _place(request), call.broker.parking
    async with parking.exclusive(place):
        if not request.heir:
            _check_owner(call.broker, call.connection, place, request)
        before = parking.table.version(*place)
        why = await parking.unpark(place, _key(request.key), request.end, successor=request.heir)
        reply = requests.UnparkReply(not why, before, parking.table.version(*place), why)
    return call.reply(fields=encode_fields(reply))


async def drop(call: Call[requests.ParkedDrop]) -> Command:
    """Drop messages by an operator's order."""
    request = call.request
    if not 0 < len(request.reason.strip()) <= REASON_CHARS_MAX:
        raise InvalidParameter(f"a drop needs a reason of 1 to {REASON_CHARS_MAX} characters")
    count = 0
    for place, named in _by_queue(request.group, KeyList.decode(call.command.body).keys):
        async with call.broker.parking.exclusive(place):
            for name in named:
                count += await call.broker.parking.drop(
                    place,
                    name.key,
                    reason=request.reason,
                    by=call.connection.peer,
                    first=request.first,
                )
    return call.reply(fields=encode_fields(requests.ParkedDropReply(count)))


async def move(call: Call[requests.ParkMove]) -> Command:
    """Install parked keys that move here with a resize; the reply follows when that is on disk."""
    broker, request = call.broker, call.request
    body = MoveBody.decode(call.command.body)
    if request.topic not in broker.topics:
        raise TopicNotFound(f"topic[{request.topic}] not exist")
    _check_group(broker, request.group)
    busy = await broker.parking.moves.come(request.group, request.topic, body.coming)
    await broker.housekeeping.flush_now()
    reply = requests.ParkMoveReply(len(body.coming) - busy, busy)
    return call.reply(fields=encode_fields(reply))


def _place(
    request: requests.Park
    | requests.ParkedKeys
    | requests.ParkedRead
    | requests.Redriven
    | requests.Unpark,
) -> GroupQueue:
    if not request.group or not request.topic or request.queue_id < 0:
        raise InvalidParameter("a group, a topic and a queue are needed")
    return GroupQueue(request.group, request.topic, request.queue_id)


def _check_group(broker: Broker, group: str) -> None:
    """Refuse an unknown group: what it parks lies in a topic of its name."""
    if broker.find_group(group) is None:
        raise GroupNotFound(f"Group {group} does not exist")


def _check_owner(
    broker: Broker,
    connection: ServerConnection,
    place: GroupQueue,
    request: requests.Park | requests.Redriven | requests.Unpark,
) -> None:
    """Raise LeaseLost unless the request comes from the queue's present owner."""
    owner = Owner(request.client_id, request.instance)
    broker.parking.check_owner(place, owner, request.epoch, connection)


def _key(key: str) -> str:
    if not 0 < len(key) <= KEY_CHARS_MAX:
        raise InvalidParameter(f"a key has 1 to {KEY_CHARS_MAX} characters")
    return key


def _by_queue(group: str, named: Iterable[NamedKey]) -> list[tuple[GroupQueue, list[NamedKey]]]:
    if not group:
        raise InvalidParameter("a group is needed")
    found: defaultdict[GroupQueue, list[NamedKey]] = defaultdict(list)
    for name in named:
        found[GroupQueue(group, name.topic, name.queue_id)].append(name)
    return sorted(found.items())
