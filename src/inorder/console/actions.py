"""What the console changes: each change is one request of the visitor, with a reason, and logged.

A change is done with the visitor's own credentials, so a broker with users refuses what the visitor
may not do. The answer is the path of the page to go on with, or a page that asks once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

from inorder.client.send.producer import Producer
from inorder.clock import Clock
from inorder.console import letters, reads
from inorder.console.audit import Audits
from inorder.console.pages import groups
from inorder.console.pages.frame import Page, Viewer
from inorder.console.rules import Level, path, still_true
from inorder.console.sessions import Sessions, Visitor
from inorder.console.web import Ask
from inorder.errors import InorderError, NotFound, UsageError
from inorder.model import ReceivedMessage, TopicQueue
from inorder.wire.names import dead_letter_topic
from inorder.wire.properties import KEYS

Answer = str | Page
ReadTime = Callable[[str, int], datetime]
"""Reads a time that a person has written, given the present time."""
RESIZE_WAIT_S: Final = 10.0
QUEUES_MAX: Final = 10_000
GROUP: Final = "inorder-console"


class Actions:
    """The changes that visitors ask for."""

    def __init__(
        self, sessions: Sessions, audits: Audits, clock: Clock, read_time: ReadTime
    ) -> None:
        self._sessions = sessions
        self._audits = audits
        self._clock = clock
        self._read_time = read_time
        self._one_sends_again = asyncio.Lock()

    async def do(self, ask: Ask, visitor: Visitor) -> Answer:
        """Do what a form wants; what goes wrong is told on the next page."""
        back = path(*ask.parts)
        try:
            action = self._action(ask)
            answer = await action(ask, visitor)
            await visitor.watch.refresh()
            return answer
        except (InorderError, OSError) as error:
            visitor.tell(Level.BAD, f"Not done: {error}")
            self._sessions.note(
                visitor, "/".join(ask.parts), ask.sent("reason"), f"failed: {error}"
            )
            return back

    def _action(self, ask: Ask) -> Callable[[Ask, Visitor], Awaitable[Answer]]:
        match ask.parts:
            case ("parked",):
                return self._parked
            case ("groups", _, "offsets"):
                return self._reset
            case ("groups", _, "dead-letters"):
                return self._send_again
            case ("groups", _, "take"):
                return self._take
            case ("topics", _, "resize"):
                return self._resize
            case ("topics", _, "send"):
                return self._send
            case ("audit",):
                return self._audit
            case ("settings",):
                return self._setting
            case ("links",):
                return self._link
        raise NotFound("there is no such change")

    def _done(self, visitor: Visitor, what: str, reason: str, outcome: str) -> None:
        visitor.tell(Level.OK, outcome)
        self._sessions.note(visitor, what, reason, outcome)

    async def _parked(self, ask: Ask, visitor: Visitor) -> Answer:
        chosen = [groups.decode(one).split("\x1f") for one in ask.form.get("key", ())]
        keys = [(one[0], one[1], one[2]) for one in chosen if len(one) == 3]
        if not keys:
            raise UsageError("choose at least one key")
        do, reason, rate = ask.sent("do"), ask.sent("reason").strip(), ask.sent("rate").strip()
        if do == "drop" and ask.sent("sure") != "yes":
            return groups.drop_page(keys, reason, _viewer(visitor))
        if rate and not rate.isdecimal():
            raise UsageError(f"{rate!r} is no number of messages a second")
        by_place: dict[tuple[str, str], list[str]] = {}
        for group, topic, key in keys:
            by_place.setdefault((group, topic), []).append(key)
        parked = visitor.admin.parked
        for (group, topic), names in by_place.items():
            named = f"{', '.join(names[:5])}{'…' if len(names) > 5 else ''} of {group}"
            match do:
                case "redrive" | "dry":
                    found = await parked.redrive(
                        group, names, topic=topic, rate=float(rate) if rate else None,
                        dry_run=do == "dry",
                    )  # fmt: skip
                    count = sum(one.messages for one in found)
                    if do == "dry":
                        visitor.tell(Level.UNKNOWN, f"{count} messages of {len(found)} keys would "
                                     f"be redriven ({named}); nothing has changed")  # fmt: skip
                    else:
                        self._done(visitor, f"redrive {named}", reason,
                                   f"{count} messages of {len(found)} keys go to the consumers "
                                   f"again, each key in order ({named})")  # fmt: skip
                case "cancel":
                    found = await parked.cancel(group, names, topic=topic)
                    self._done(visitor, f"cancel redrive {named}", reason,
                               f"{len(found)} redrives are taken back ({named})")  # fmt: skip
                case "drop":
                    dropped = await parked.drop(group, names, reason=reason, topic=topic)
                    self._done(visitor, f"drop {named}", reason,
                               f"{dropped} messages are thrown away ({named})")  # fmt: skip
                case _:
                    raise UsageError("redrive, dry run, cancel or drop")
        return path("parked")

    async def _reset(self, ask: Ask, visitor: Visitor) -> Answer:
        group, topic, to = ask.parts[1], ask.sent("topic"), ask.sent("to")
        reason = _confirmed(ask, group)
        target: datetime | str = (
            to if to in ("beginning", "end") else self._read_time(to, self._clock.now_ms())
        )
        rows = await reads.reset_preview(visitor.admin, group, topic, target)
        if not still_true(_seen(ask), rows):
            raise UsageError("offsets have moved since the preview; look at it once more")
        await visitor.admin.offsets.reset(group, topic, target)  # type: ignore[arg-type]
        self._done(visitor, f"reset {group} on {topic} to {to}", reason,
                   f"group {group} goes on at {to} of {topic}")  # fmt: skip
        return path("groups", group)

    async def _send_again(self, ask: Ask, visitor: Visitor) -> Answer:
        group, do, reason = ask.parts[1], ask.sent("do"), ask.sent("reason").strip()
        if do not in ("send", "dry"):
            raise UsageError("send or dry run")
        chosen = letters.places([groups.decode(one) for one in ask.form.get("letter", ())])
        topic = dead_letter_topic(group)
        if not chosen or any(queue.topic != topic for queue, _ in chosen):
            raise UsageError("choose at least one dead letter")
        async with self._one_sends_again:  # who comes second finds what the first has sent
            read = visitor.admin.messages.by_offset
            found = [letters.letter_of(await read(*place)) for place in dict.fromkeys(chosen)]
            if not all(one.origin for one in found):
                raise UsageError("a chosen dead letter does not say which topic it came from")
            there = await reads.sent_again(visitor.admin, self._clock, found)
            wanted = [one for one in letters.in_order(found) if one.place not in there]
            were = "was" if len(there) == 1 else "were"
            before = f"; {len(there)} {were} sent again before" if there else ""
            if do == "dry":
                visitor.tell(Level.UNKNOWN, f"{_letters(len(wanted))} would be sent again"
                             f"{before}; nothing has changed")  # fmt: skip
                return path(*ask.parts)
            sent = 0
            try:
                async with Producer(visitor.session, group=GROUP) as producer:
                    for one in wanted:
                        await _send_letter(producer, await read(one.queue, one.offset), one)
                        sent += 1
            except InorderError as error:
                raise InorderError(f"{error}; {sent} of {len(wanted)} were sent again") from error
        self._done(visitor, f"send {_letters(sent)} of {group} again", reason,
                   f"{_letters(sent)} sent again, to the topics of origin{before}")  # fmt: skip
        return path(*ask.parts)

    async def _take(self, ask: Ask, visitor: Visitor) -> Answer:
        group, reason = ask.parts[1], _reason(ask)
        topic, broker, index = (*ask.sent("queue").rsplit("/", 2), "", "")[:3]
        if not index.isdecimal():
            raise UsageError("name a queue")
        holder = await visitor.admin.locks.release(group, TopicQueue(topic, broker, int(index)))
        self._done(visitor, f"take {broker}/{index} of {topic} from {holder}", reason,
                   f"queue {broker}/{index} of {topic} is taken away from {holder}")  # fmt: skip
        return path("groups", group, "owners")

    async def _resize(self, ask: Ask, visitor: Visitor) -> Answer:
        topic, topics = ask.parts[1], visitor.admin.topics
        match ask.sent("do"):
            case "start":
                reason, queues = _confirmed(ask, topic), ask.sent("queues")
                if not queues.isdecimal() or not 1 <= int(queues) <= QUEUES_MAX:
                    raise UsageError(f"{queues!r}: give 1 to {QUEUES_MAX} queues")
                state = await topics.resize(topic, queues=int(queues), wait=RESIZE_WAIT_S)
                outcome = f"topic {topic} has {state.queues} queues, version {state.version}"
                self._done(visitor, f"resize {topic} to {queues}", reason, outcome)
            case "resume":
                state = await topics.resize(topic, wait=RESIZE_WAIT_S)
                outcome = f"topic {topic} has {state.queues} queues, version {state.version}"
                self._done(visitor, f"go on with the resize of {topic}", "", outcome)
            case "abort":
                await topics.abort_resize(topic)
                outcome = f"the resize of {topic} is taken back"
                self._done(visitor, f"abort the resize of {topic}", "", outcome)
            case "release":
                reason, group = _reason(ask), ask.sent("group")
                version = await topics.release_group(topic, group)
                self._done(visitor, f"release {group} on {topic}", reason,
                           f"group {group} reads version {version} of {topic}")  # fmt: skip
            case _:
                raise UsageError("start, resume, abort or release")
        return path("topics", topic, "resize")

    async def _send(self, ask: Ask, visitor: Visitor) -> Answer:
        topic = ask.parts[1]
        async with Producer(visitor.session, group=GROUP) as producer:
            receipt = await producer.send(
                topic, ask.sent("body").encode(), key=ask.sent("key") or None,
                tag=ask.sent("tag").strip() or None,
            )  # fmt: skip
        place = f"{receipt.queue.broker}/{receipt.queue.index}"
        outcome = f"message {receipt.message_id} is stored at {place} @ {receipt.offset}"
        self._done(visitor, f"send to {topic}", "", outcome)
        return path("message", topic=topic, queue=place, offset=receipt.offset)

    async def _audit(self, ask: Ask, visitor: Visitor) -> Answer:
        topic, group = ask.sent("topic").strip(), ask.sent("group").strip()
        await visitor.admin.topics.configs(topic)
        job = self._audits.start(visitor.admin, topic, group)
        if job is None:
            raise UsageError("two audits run already; wait for one of them")
        self._done(visitor, f"audit {topic}", "", f"audit #{job.number} of {topic} has begun")
        return path("audit", topic=topic, group=group)

    async def _setting(self, ask: Ask, visitor: Visitor) -> Answer:
        broker, name, value = ask.sent("broker"), ask.sent("name").strip(), ask.sent("value")
        reason = _reason(ask)
        before = (await visitor.admin.cluster.settings(broker)).get(name, "not set")
        await visitor.admin.cluster.update_settings(broker, {name: value})
        self._done(visitor, f"{name} of {broker}: {before} → {value}", reason,
                   f"{name} of broker {broker} is {value} now")  # fmt: skip
        return path("settings", broker=broker, word=name)

    async def _link(self, ask: Ask, visitor: Visitor) -> Answer:
        if await self._sessions.brokers_have_users():
            raise UsageError("these brokers have users; everybody signs in with a name")
        visitor.link = path("enter", token=self._sessions.new_token())
        self._done(visitor, "make a sign-in link", "", "a sign-in link was made; it is shown below")
        return path("settings")


async def _send_letter(producer: Producer, message: ReceivedMessage, one: letters.Letter) -> None:
    await producer.send(
        one.origin, message.body, key=message.key, tag=message.tag,
        keys=tuple(message.properties.get(KEYS, "").split()),
        properties=letters.properties_again(message),
    )  # fmt: skip


def _letters(count: int) -> str:
    return f"{count} dead letter{'' if count == 1 else 's'}"


def _viewer(visitor: Visitor) -> Viewer:
    return Viewer(visitor.name, visitor.signed_in, visitor.csrf, "")


def _reason(ask: Ask) -> str:
    reason = ask.sent("reason").strip()
    if not reason:
        raise UsageError("give a reason; it is kept in the log")
    return reason


def _confirmed(ask: Ask, name: str) -> str:
    if ask.sent("confirm").strip() != name:
        raise UsageError(f"type {name} to confirm")
    return _reason(ask)


def _seen(ask: Ask) -> dict[str, int]:
    found = {}
    for one in ask.form.get("seen", ()):
        place, equals, value = one.rpartition("=")
        if equals and value.isdecimal():
            found[place] = int(value)
    return found
