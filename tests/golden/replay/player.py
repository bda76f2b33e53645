"""Play a captured conversation against servers and collect their answers.

Every captured connection becomes one real connection, closed after its last frame. Requests go out
in captured order and under their captured ids. The next one waits for the answer, except for a held
pull that a later request answers: its answer is waited for where the capture has it. Rewritten are
only the positions and message ids that the servers gave themselves, and the hold of a pull that the
capture saw run out.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

from inorder.wire.frame import encode_frame
from inorder.wire.header import Command
from tests.golden.replay.beats import HEART_BEAT, NO_GROUP_OR_NOT_LATEST, Beats
from tests.golden.replay.capture import BROKER, NAMESRV, Conversation, Row
from tests.golden.replay.channels import Channel, Servers
from tests.golden.replay.compare import Exchange
from tests.golden.replay.state import PULLS, SENDS, SUSPEND, Hands, Past, past_of, position_of

POP_MESSAGE = 200050
HELD_MS = "5"
END_TRANSACTION = 37
CHECK_TRANSACTION_STATE = 39
_RUN_OUT = frozenset((19, 20, 21, 210))  # nothing came; other answers are given at once

_OWN_IDS_FROM = 0x50000000


@dataclass(slots=True)
class Played:
    """What came of a conversation."""

    exchanges: list[Exchange] = field(default_factory=list)
    unanswered: list[Row] = field(default_factory=list)
    answered_oneway: list[Row] = field(default_factory=list)
    oneway: Counter[tuple[str, int]] = field(default_factory=Counter)
    notified: Counter[int] = field(default_factory=Counter)
    notified_captured: Counter[int] = field(default_factory=Counter)


class Player:
    """One run of one conversation."""

    def __init__(self, conversation: Conversation, servers: Servers) -> None:
        self._conversation = conversation
        self._servers = servers
        self._channels: dict[int, Channel] = {}
        self._own: dict[str, Channel] = {}
        self._own_ids = itertools.count(_OWN_IDS_FROM)
        self._start_ms = start_ms(conversation)
        self._prepares = servers.can_prepare and not conversation.namesrv_only
        past = past_of(conversation) if self._prepares else Past()
        self._hands = Hands(self._ask, past, whole=conversation.whole, before_ms=self._start_ms - 1)
        self._beats = Beats(conversation)
        self._last = {row.connection: row.seq for row in conversation.rows}
        self._halves: dict[str, tuple[str, str]] = {}  # our offset and position of each message
        self._tokens: dict[str, str] = {}  # our time of each pop
        self._played = Played()

    async def play(self) -> Played:
        """Play it from the first frame to the last."""
        if self._prepares:
            await self._hands.prepare()
            await self._servers.settle()
        for row in self._conversation.rows:
            self._servers.set_time(self._start_ms + row.at_ms)
            if row.is_request:
                await self._request(row)
            elif not row.to_server and row.command.is_response:
                await self._answer(row)
            elif not row.to_server:
                if row.command.code == CHECK_TRANSACTION_STATE:
                    self._servers.ask_producers()
                self._played.notified_captured[row.command.code] += 1
            if self._last[row.connection] == row.seq and row.connection in self._channels:
                await self._hang_up(row)
        for channel in self._own.values():
            await channel.close()
        return self._played

    async def _request(self, row: Row) -> None:
        captured = self._answer_of(row)
        if captured is not None and self._took_effect_late(row, captured):
            return
        await self._submit(row, captured)
        if captured is None:
            await self._fence(row)
            if not row.command.is_oneway:
                self._played.unanswered.append(row)
                return
            self._played.oneway[row.peer, row.command.code] += 1
            if self._channels[row.connection].has_answer(row.command.request_id):
                self._played.answered_oneway.append(row)
        elif _is_answered_later(row, captured):
            await self._fence(row)
        else:
            await self._collect(row, captured)

    async def _answer(self, row: Row) -> None:
        assert row.pair is not None
        request = self._conversation.by_seq[row.pair]
        if self._took_effect_late(request, row):
            await self._submit(request, row)
        elif not _is_answered_later(request, row):
            return
        if self._prepares:
            await self._hands.before_answer(request, row)
        await self._collect(request, row)

    def _took_effect_late(self, row: Row, captured: Row) -> bool:
        """Tell whether others still saw no trace of a heartbeat between it and its answer."""
        if row.command.code != HEART_BEAT:
            return False
        body = bytes(row.command.body)
        for one in self._conversation.rows:
            if not row.seq < one.seq < captured.seq or not one.command.is_response:
                continue
            assert one.pair is not None
            request = self._conversation.by_seq[one.pair].command
            if one.command.code == 17 and one.peer == NAMESRV:
                group = request.fields.get("topic", "").removeprefix("%RETRY%")
            elif one.command.code in NO_GROUP_OR_NOT_LATEST and request.code in PULLS:
                group = request.fields["consumerGroup"]
            else:
                continue
            if f'"{group}"'.encode() in body:
                return True
        return False

    async def _submit(self, row: Row, captured: Row | None) -> None:
        if self._prepares:
            await self._hands.before_request(row, captured)
            if row.command.code in SENDS and captured is not None and not captured.command.code:
                self._servers.choose_queue(int(captured.command.fields["queueId"]))
        await self._servers.settle()
        channel = self._channels.get(row.connection)
        if channel is None:
            channel = self._channels[row.connection] = await self._servers.connect(row.peer)
        if self._prepares and captured is not None and not self._conversation.whole:
            beat = self._beats.missing(row, captured)
            if beat is not None:
                await self._ask_on(channel, Command.request(HEART_BEAT, {}, beat))
            asked = self._beats.requester(row, captured)
            if asked is not None:
                requester = self._channels[asked[0]]
                await self._ask_on(requester, Command.request(HEART_BEAT, {}, asked[1]))
        await channel.send(self._rewritten(row, captured))
        self._beats.played(row)

    async def _collect(self, row: Row, captured: Row) -> None:
        ours = await self._channels[row.connection].answer(row.command.request_id)
        self._played.exchanges.append(
            Exchange(self._conversation.name, self._conversation.whole, row, captured.command, ours)
        )
        if "popTime" in ours.fields:
            self._tokens[captured.command.fields.get("popTime", "")] = ours.fields["popTime"]
        if row.command.code in SENDS and captured.command.code == ours.code == 0:
            self._learn_positions(captured.command, ours)
            unique, offset = ours.fields.get("transactionId"), ours.fields["queueOffset"]
            if unique is not None and self._prepares:
                self._halves[unique] = offset, str(position_of(ours.fields["msgId"]))

    def _learn_positions(self, captured: Command, ours: Command) -> None:
        theirs = captured.fields.get("msgId", "").split(",")
        mine = ours.fields.get("msgId", "").split(",")
        for one, other in zip(theirs, mine, strict=False):
            self._hands.positions[position_of(one)] = position_of(other), 1

    def _rewritten(self, row: Row, captured: Row | None) -> bytes:
        command, fields = row.command, row.command.fields
        changed: dict[str, str] = {}
        if captured is not None and _may_be_held(command) and _ran_out(captured):
            changed["pollTime" if command.code == POP_MESSAGE else "suspendTimeoutMillis"] = HELD_MS
        elif "extraInfo" in fields:
            start, token, *rest = fields["extraInfo"].split(" ")
            changed["extraInfo"] = " ".join((start, self._tokens.get(token, token), *rest))
        elif command.code in (33, 36) and row.peer == BROKER and "offset" in fields:
            changed["offset"] = str(self._position(int(fields["offset"])))
        elif command.code == END_TRANSACTION and fields.get("msgId") in self._halves:
            # Any copy of a half ends its transaction.
            half = self._halves[fields["msgId"]]
            changed["tranStateTableOffset"], changed["commitLogOffset"] = half
        if all(fields.get(name) == value for name, value in changed.items()):
            return row.frame
        return encode_frame(
            Command(
                command.code,
                command.request_id,
                command.flag,
                {**fields, **changed},
                command.remark,
                command.body,
                language=command.language,
                version=command.version,
                serializer=command.serializer,
            )
        )

    def _position(self, captured: int) -> int:
        """Return our position for a captured one, also inside of a record that is known."""
        for position, (ours, size) in self._hands.positions.items():
            if position <= captured < position + size:
                return ours + captured - position
        return captured

    def _answer_of(self, row: Row) -> Row | None:
        return self._conversation.by_seq[row.pair] if row.pair is not None else None

    async def _fence(self, row: Row) -> None:
        """Return when each side has read all that the other sent on a connection so far."""
        if row.peer == BROKER:
            command = Command.request(30, {"topic": "TBW102", "queueId": "0"})
        else:
            command = Command.request(106)
        await self._ask_on(self._channels[row.connection], command)

    async def _hang_up(self, row: Row) -> None:
        await self._fence(row)
        self._beats.hung_up(row.connection)
        channel = self._channels.pop(row.connection)
        await channel.close()
        self._played.notified.update(channel.notified)

    async def _ask(
        self,
        peer: str,
        code: int,
        fields: dict[str, str],
        body: bytes = b"",
        *,
        at_ms: int | None = None,
    ) -> Command:
        """Send a request of our own, at a time of the past if need be."""
        channel = self._own.get(peer)
        if channel is None:
            channel = self._own[peer] = await self._servers.connect(peer)
        if peer == NAMESRV:
            await self._servers.settle()
        if at_ms:
            self._servers.set_time(at_ms)
        return await self._ask_on(channel, Command.request(code, fields, body))

    async def _ask_on(self, channel: Channel, command: Command) -> Command:
        command.request_id = next(self._own_ids)
        await channel.send(encode_frame(command))
        return await channel.answer(command.request_id)


def _may_be_held(command: Command) -> bool:
    if command.code == POP_MESSAGE:
        return int(command.fields["pollTime"]) > 0
    return command.code in PULLS and bool(int(command.fields.get("sysFlag", "0")) & SUSPEND)


def _ran_out(captured: Row) -> bool:
    return captured.command.code in _RUN_OUT


def _is_answered_later(row: Row, captured: Row) -> bool:
    """Return whether a pull was held until something happened, which the conversation has later."""
    return _may_be_held(row.command) and not _ran_out(captured)


def start_ms(conversation: Conversation) -> int:
    """Return the wall-clock time of the first frame, by the first send or stored message."""
    for row in conversation.rows:
        if row.is_request and row.command.code in SENDS:
            born = row.command.fields.get("g") or row.command.fields.get("bornTimestamp")
            if born:
                return int(born) - row.at_ms
    stored = [one.stored_at_ms for one in conversation.records()]
    return max(stored, default=1_794_715_000_000)
