"""Writes RocketMQ's message traces: `trace=True` of producers and consumers.

The traces of sends and of handlers wait in a bounded list, and a task sends them to the trace topic
every second, many in one message. A trace that finds no room, or no trace topic, is dropped and
counted: nothing waits for a trace. Handlers append in their own threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from inorder.client.rules import traces
from inorder.client.rules.routes import publish_queues
from inorder.client.rules.traces import Trace, Traced
from inorder.client.session import Session
from inorder.clock import Clock
from inorder.errors import InorderError
from inorder.logs import get_logger
from inorder.model import Message, ReceivedMessage, SendReceipt
from inorder.tasks import Tasks, periodic
from inorder.wire import properties as names
from inorder.wire.names import AUTO_CREATE_TOPIC, TRACE_TOPIC
from inorder.wire.requests.sends import SendMessage

log = get_logger(__name__)

WAITING_MAX: Final = 2048
"""Traces that wait to be sent, as in Java."""
FLUSH_MS: Final = 1000
TRACES_PER_MESSAGE: Final = 100
CLOSE_S: Final = 5.0
"""How long `close` waits at most for traces to be stored."""
_NOTE: Final = "inorder.trace"

BeforeSend = Callable[[Message], Message | None]
AfterSend = Callable[[Message, SendReceipt | None, BaseException | None], None]
Hook = Callable[[Any], None]
"""A function that takes the HandleContext of a consumer."""


class Tracer:
    """The traces of one producer or consumer."""

    def __init__(self, group: str, kind: str, clock: Clock) -> None:
        self.dropped = 0
        self._group = group
        self._sender = f"_INNER_TRACE_PRODUCER-{group}-{kind}"
        self._clock = clock
        self._waiting: deque[Trace] = deque()
        self._sends: dict[int, tuple[Message, int]] = {}
        self._session: Session | None = None
        self._tasks = Tasks(f"traces of {group}")
        self._turn = 0

    def start(self, session: Session) -> None:
        """Begin to send traces."""
        if self._session is None:
            self._session = session
            work = periodic(self.flush, interval_ms=FLUSH_MS, clock=self._clock, name="traces")
            self._tasks.start(work, name="traces")

    async def close(self) -> None:
        """Send the traces that wait, for a while; then stop."""
        await self._tasks.stop()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.flush()
        except TimeoutError:
            self.dropped += len(self._waiting)
        if self.dropped:
            log.warning("traces were dropped group=%s count=%d", self._group, self.dropped)

    def _put(self, trace: Trace) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self.dropped += 1
        else:
            self._waiting.append(trace)

    async def flush(self) -> None:
        """Send the traces that wait."""
        while self._waiting and self._session is not None:
            count = min(len(self._waiting), TRACES_PER_MESSAGE)
            taken = [self._waiting.popleft() for _ in range(count)]
            try:
                for body, keys in traces.cut(taken):
                    await self._send(self._session, body, keys)
            except asyncio.CancelledError:  # `close` sends them: better twice than not at all
                self._waiting.extendleft(reversed(taken))
                raise

    async def _send(self, session: Session, body: str, keys: tuple[str, ...]) -> None:
        try:
            queues = publish_queues(await session.route(TRACE_TOPIC), TRACE_TOPIC)
            if not queues:
                raise InorderError(f"no broker takes messages of {TRACE_TOPIC}")
            self._turn += 1
            queue = queues[self._turn % len(queues)]
            found = {
                names.UNIQ_KEY: session.message_ids.next(),
                names.KEYS: " ".join(keys),
                names.WAIT: "true",
            }
            request = SendMessage(
                self._sender, TRACE_TOPIC, AUTO_CREATE_TOPIC, 1, queue.index, 0,
                self._clock.now_ms(), 0, names.join(found),
            )  # fmt: skip
            await (await session.master_of(queue)).send_message(request, body.encode())
        except InorderError as error:
            self.dropped += body.count(traces.END)
            session.say_once(
                "traces", "traces are dropped: %s; start a broker with traceTopicEnable=true", error
            )

    # Producers.

    def before_send(self, hook: BeforeSend | None) -> BeforeSend:
        """Return a hook that notes when a send begins, after the user's own."""

        def before(message: Message) -> Message:
            found = (None if hook is None else hook(message)) or message
            while len(self._sends) >= WAITING_MAX:  # refused before they were sent
                del self._sends[next(iter(self._sends))]
            self._sends[id(found)] = found, self._clock.now_ms()
            return found

        return before

    def after_send(self, hook: AfterSend | None) -> AfterSend:
        """Return a hook that writes the trace of a send, before the user's own."""

        def after(
            message: Message, receipt: SendReceipt | None, error: BaseException | None
        ) -> None:
            self._sent(message, receipt)
            if hook is not None:
                hook(message, receipt, error)

        return after

    def _sent(self, message: Message, receipt: SendReceipt | None) -> None:
        now_ms = self._clock.now_ms()
        _, began_ms = self._sends.pop(id(message), (message, now_ms))
        session, address = self._session, None
        if session is not None and receipt is not None:
            address = session.master_address(receipt.queue)
        self._put(
            traces.sent(
                at_ms=began_ms,
                group=self._group,
                topic=message.topic,
                message=Traced("" if receipt is None else receipt.message_id, message.keys),
                tag=message.tag,
                store_host=address or "null",
                body_bytes=len(message.body),
                spent_ms=now_ms - began_ms,
                success=receipt is not None,
            )
        )

    # Consumers.

    def before_handle(self, hook: Hook | None) -> Hook:
        """Return a hook that writes that a handler begins, before the user's own."""

        def before(context: Any) -> None:
            call_id = f"{context.messages[0].message_id}-{context.messages[0].attempt}"
            context.notes[_NOTE] = call_id
            for message in context.messages:
                if _is_traced(message):
                    at_ms = self._clock.now_ms()
                    self._put(
                        traces.begun(
                            at_ms=at_ms,
                            group=self._group,
                            call_id=call_id,
                            message=_traced(message),
                        )
                    )
            if hook is not None:
                hook(context)

        return before

    def after_handle(self, hook: Hook | None) -> Hook:
        """Return a hook that writes that a handler has ended, after the user's own."""

        def after(context: Any) -> None:
            if hook is not None:
                hook(context)
            kind = "" if context.return_type is None else context.return_type.value
            for message in context.messages:
                if _is_traced(message):
                    self._put(
                        traces.ended(
                            at_ms=self._clock.now_ms(),
                            group=self._group,
                            call_id=str(context.notes.get(_NOTE, "")),
                            message=_traced(message),
                            spent_ms=context.spent_ms // len(context.messages),
                            success=context.success,
                            return_type=kind,
                        )
                    )

        return after


def _is_traced(message: ReceivedMessage) -> bool:
    return message.properties.get(names.TRACE_ON) != "false"


def _traced(message: ReceivedMessage) -> Traced:
    keys = tuple(message.properties.get(names.KEYS, "").split())
    return Traced(message.message_id, keys, message.redeliveries)
