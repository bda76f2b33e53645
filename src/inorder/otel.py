"""OpenTelemetry traces of producers and consumers; needs `pip install 'inorder[otel]'`.

    tracing = inorder.otel.Tracing()
    producer = tracing.trace(inorder.Producer())
    consumer = inorder.Consumer(group="billing", **tracing.hooks())
    reader = tracing.trace(inorder.PullConsumer())

Both clients, blocking and async. Nothing else of inorder imports OpenTelemetry, and a client that
is not traced runs no line of this module. The library uses the API alone; without an SDK in the
process its spans are empty.

A message carries the W3C context of its `send` span in the properties `traceparent` and
`tracestate`, where OpenTelemetry's instrumentation of RocketMQ's Java client writes and reads them.
A handler's span begins a trace of its own and links to the senders of its messages; with
`parent="message"` and a single message it is a child of the sender's span. Names and attributes are
those of the semantic conventions for messaging 1.44; what no convention names begins with
`inorder.`. Why spans are sampled by key: decision 59.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final, Literal, TypeVar
from zlib import crc32

from inorder.clock import SystemClock
from inorder.errors import UsageError
from inorder.model import Fence, Message, ReceivedMessage, SendReceipt, TopicQueue, key_text

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError("traces need OpenTelemetry: pip install 'inorder[otel]'") from error

import inorder
from inorder.client.consume.hooks import HandleContext, ParkContext

T = TypeVar("T")

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
LINKS_MAX: Final = 128
"""Messages of one span that get a link each; an SDK drops more."""
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_OF_PROXIES: Final = "TRACE_CONTEXT"
"""Where RocketMQ's proxy stores the context of its gRPC clients."""
_NOTE: Final = "inorder.otel"
_BUCKETS: Final = 1 << 16
_MASK: Final = _BUCKETS - 1
_CLOCK: Final = SystemClock()
_W3C: Final = TraceContextTextMapPropagator()
_Attributes = dict[str, Any]


class Tracing:
    """Makes the spans of clients.

    `sample` is the share of *keys* whose messages are traced, by a hash of the key: of such a key
    every message, so that its order can be read. A message that is sent within a sampled span, or
    was, is always traced. Without a key the message id counts. `keys=False` leaves keys out of the
    spans. `tracer_provider` is the global one unless it is given.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        sample: float = 1.0,
        parent: Literal["link", "message"] = "link",
        keys: bool = True,
    ) -> None:
        if not 0 <= sample <= 1:
            raise UsageError(f"sample={sample}: give a share of the keys, from 0 to 1")
        if parent not in ("link", "message"):
            raise UsageError(f"parent={parent!r}: write 'link' or 'message'")
        self._tracer = trace.get_tracer(
            "inorder", inorder.__version__, tracer_provider, schema_url=SCHEMA_URL
        )
        self._below = round(sample * _BUCKETS)
        self._child = parent == "message"
        self._keys = keys

    def __repr__(self) -> str:
        return f"Tracing(sample={self._below / _BUCKETS:g})"

    # -- what is sampled -------------------------------------------------------------------------

    def _drawn(self, key: str | None) -> bool:
        """Return whether messages of a key are traced."""
        # hot: 0.3 µs
        return crc32((key or "").encode("utf-8", "replace")) & _MASK < self._below

    def _wanted(self, _topic: object, values: Mapping[str, Any]) -> bool:
        """Return whether a send is traced."""
        # hot: 0.4 µs
        key = values.get("key")
        if type(key) is not str:
            key = "" if key is None else key_text(key)
        return crc32(key.encode("utf-8", "replace")) & _MASK < self._below or _inside()

    def _wanted_batch(self, messages: Sequence[Message], _values: object) -> bool:
        return any(self._drawn(one.key) for one in messages) or _inside()

    # -- producers and pull consumers ------------------------------------------------------------

    def trace(self, client: T) -> T:
        """Trace the sends of a producer, or the polls of a pull consumer; return it.

        Raises:
            UsageError: it is neither; for a Consumer give `**tracing.hooks()` to its constructor.
        """
        wrappers: dict[str, Callable[..., Any]] = {
            "send": self._sending, "send_oneway": self._sending, "request": self._sending,
            "send_nowait": self._pipelining, "send_batch": self._batch, "poll": self._polling,
        }  # fmt: skip
        found = [name for name in wrappers if callable(getattr(client, name, None))]
        if not found:
            raise UsageError(
                f"{type(client).__name__} sends and polls nothing; a Consumer is traced by "
                "Consumer(..., **tracing.hooks())"
            )
        for name in found:
            setattr(client, name, wrappers[name](getattr(client, name)))
        return client

    def _sending(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def begin(topic: str, values: MutableMapping[str, Any]) -> Span:
            key = values.get("key")
            key = None if key is None else key_text(key)
            attributes = self._of_send(topic, "send") | self._of_key(key)
            if values.get("tag"):
                attributes["messaging.rocketmq.message.tag"] = values["tag"]
            if values.get("keys"):
                attributes["messaging.rocketmq.message.keys"] = list(values["keys"])
            span = self._tracer.start_span(
                f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes
            )
            values["properties"] = _injected(values.get("properties"), span)
            return span

        return _around(call, self._wanted, begin, "topic")

    def _pipelining(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `send_nowait`, which costs so little that each step of a wrapper shows.

        A send with a key and nothing else, which nobody traces, is passed on as it came: no dict is
        made of its arguments, and nothing is built for a span.
        """
        traced = self._sending(call)
        below, current_context = self._below, contexts.get_current

        # hot: 0.2 µs
        @functools.wraps(call)
        def pipelined(topic: str, body: Any, *, key: Any = None, **values: Any) -> Any:
            if not values and type(key) is str:
                drawn = crc32(key.encode("utf-8", "replace")) & _MASK < below
                if not drawn and not ((current := current_context()) and _is_sampled(current)):
                    return call(topic, body, key=key)
            return traced(topic, body, key=key, **values)

        return pipelined

    def _batch(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def begin(messages: Sequence[Message], values: MutableMapping[str, Any]) -> Span:
            topic = messages[0].topic
            attributes = self._of_send(topic, "send_batch")
            attributes["messaging.batch.message_count"] = len(messages)
            span = self._tracer.start_span(
                f"send_batch {topic}", kind=SpanKind.PRODUCER, attributes=attributes
            )
            values["messages"] = [_with_context(one, span) for one in messages]
            return span

        return _around(call, self._wanted_batch, begin, "messages")

    def _of_send(self, topic: str, name: str) -> _Attributes:
        return {
            "messaging.system": "rocketmq",
            "messaging.operation.name": name,
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
            "messaging.rocketmq.namespace": "",
        }

    def _of_key(self, key: str | None) -> _Attributes:
        if key is None:
            return {"messaging.rocketmq.message.type": "normal"}
        found = {"messaging.rocketmq.message.type": "fifo"}
        if self._keys:
            found["messaging.rocketmq.message.group"] = key
        return found

    def _polling(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def received(messages: list[ReceivedMessage], began_ns: int) -> None:
            traced = [one for one in messages if self._is_traced(one)]
            if traced:
                topic = traced[0].topic
                attributes = self._of_receive(topic, "poll", "receive", "")
                attributes["messaging.batch.message_count"] = len(messages)
                self._tracer.start_span(
                    f"poll {topic}", kind=SpanKind.CLIENT, attributes=attributes,
                    links=_links(traced), start_time=began_ns,
                ).end()  # fmt: skip

        if inspect.iscoroutinefunction(call):

            @functools.wraps(call)
            async def polled_async(*args: Any, **values: Any) -> Any:
                began_ns = _CLOCK.now_ms() * 1_000_000
                messages = await call(*args, **values)
                received(messages, began_ns)
                return messages

            return polled_async

        @functools.wraps(call)
        def polled(*args: Any, **values: Any) -> Any:
            began_ns = _CLOCK.now_ms() * 1_000_000
            messages = call(*args, **values)
            received(messages, began_ns)
            return messages

        return polled

    # -- consumers -------------------------------------------------------------------------------

    def hooks(self) -> dict[str, Any]:
        """Return the arguments of a Consumer that is to be traced.

        A handler runs within its `process` span, so that spans of its own become children.
        """
        return {
            "before_handle": self._before,
            "after_handle": self._after,
            "after_park": self._parked,
            "hooks_when": self._is_any_traced,
        }

    def _is_traced(self, message: ReceivedMessage) -> bool:
        """Return whether the sender traced a message, or its key is one that is traced."""
        if self._drawn(message.key or message.message_id):
            return True
        found = _context_of(message)
        return found is not None and found.trace_flags.sampled

    def _is_any_traced(self, messages: Sequence[ReceivedMessage]) -> bool:
        return any(map(self._is_traced, messages))

    def _before(self, call: HandleContext) -> None:
        traced = [one for one in call.messages if self._is_traced(one)]
        first = call.messages[0]
        attributes = self._of_receive(call.topic, "process", "process", call.group)
        attributes |= _of_queue(call.queue)
        if len(call.messages) > 1:
            attributes["messaging.batch.message_count"] = len(call.messages)
        else:
            attributes |= self._of_key(first.key) | _of_message(first)
        parent: Context = Context()
        sender = _context_of(first)
        if self._child and len(call.messages) == 1 and sender is not None:
            parent = trace.set_span_in_context(trace.NonRecordingSpan(sender), parent)
        span = self._tracer.start_span(
            f"process {call.topic}", context=parent, kind=SpanKind.CONSUMER,
            attributes=attributes, links=_links(traced),
        )  # fmt: skip
        call.notes[_NOTE] = span, contexts.attach(trace.set_span_in_context(span))

    def _after(self, call: HandleContext) -> None:
        span, token = call.notes.pop(_NOTE, (None, None))
        if span is None:
            return
        contexts.detach(token)
        span.set_attribute("inorder.status", call.status)
        if isinstance(call.error, inorder.Retry):
            span.add_event("retry", {"inorder.retry.after_ms": call.error.after_ms or 0})
        elif call.error is not None:
            _failed(span, call.error)
        span.end()

    def _parked(self, parked: ParkContext) -> None:
        traced = [one for one in parked.messages if self._is_traced(one)]
        if not traced:
            return
        topic = parked.queue.topic
        attributes = self._of_receive(topic, "park", "settle", parked.group)
        attributes |= _of_queue(parked.queue) | self._of_key(parked.key)
        attributes["inorder.parked.first"] = parked.error is not None
        if len(parked.messages) > 1:
            attributes["messaging.batch.message_count"] = len(parked.messages)
        span = self._tracer.start_span(
            f"park {topic}", context=Context(), kind=SpanKind.CLIENT, attributes=attributes,
            links=_links(traced),
        )  # fmt: skip
        if parked.error is not None:
            span.record_exception(parked.error)
        span.end()

    def _of_receive(self, topic: str, name: str, kind: str, group: str) -> _Attributes:
        found = {
            "messaging.system": "rocketmq",
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
            "messaging.destination.name": topic,
            "messaging.rocketmq.namespace": "",
        }
        return found | {"messaging.consumer.group.name": group} if group else found


def _around(
    call: Callable[..., Any],
    wanted: Callable[[Any, Mapping[str, Any]], bool],
    begin: Callable[[Any, MutableMapping[str, Any]], Span],
    name: str,
) -> Callable[..., Any]:
    """Return the call of a producer with a span around it, where one is wanted.

    `name` is that of the first argument, which callers may give by its name.
    """
    if inspect.iscoroutinefunction(call):

        async def within(span: Span, args: Any, values: dict[str, Any]) -> Any:
            try:
                result = await call(*args, **values)
            except BaseException as failure:
                _end(span, None, failure)
                raise
            _end(span, result, None)
            return result

        @functools.wraps(call)
        def traced_async(*args: Any, **values: Any) -> Any:
            first = args[0] if args else values.get(name)
            if first is None or not wanted(first, values):
                return call(*args, **values)
            span = begin(first, values)
            return within(span, _replaced(args, values, name), values)

        return traced_async

    @functools.wraps(call)
    def traced(*args: Any, **values: Any) -> Any:
        first = args[0] if args else values.get(name)
        if first is None or not wanted(first, values):
            return call(*args, **values)
        span = begin(first, values)
        try:
            result = call(*_replaced(args, values, name), **values)
        except BaseException as failure:
            _end(span, None, failure)
            raise
        if hasattr(result, "add_done_callback"):
            result.add_done_callback(functools.partial(_end_of_future, span))
        else:
            _end(span, result, None)
        return result

    return traced


def _replaced(args: tuple[Any, ...], values: dict[str, Any], name: str) -> tuple[Any, ...]:
    """Return the arguments with what `begin` has put under the name of the first one."""
    return (values.pop(name), *args[1:]) if args and name in values else args


def _inside() -> bool:
    """Return whether a sampled span is current."""
    current = contexts.get_current()
    return bool(current) and _is_sampled(current)


def _is_sampled(current: Context) -> bool:
    return trace.get_current_span(current).get_span_context().trace_flags.sampled


def _end_of_future(span: Span, future: Any) -> None:
    """End the span of `send_nowait`. The outcome stays unread: a failure is still reported."""
    if future.cancelled():
        _end(span, None, asyncio.CancelledError())
        return
    kind: Any = type(future)
    base = _base_of(kind)
    failure = base.exception(future)
    _end(span, None if failure is not None else base.result(future), failure)


@functools.cache
def _base_of(cls: type) -> Any:
    """Return the class of the standard library: a future of ours counts who asks, it only tells."""
    return next(one for one in cls.__mro__ if one.__module__.partition(".")[0] != "inorder")


def _end(span: Span, result: Any, failure: BaseException | None) -> None:
    if failure is not None:
        _failed(span, failure)
    elif isinstance(result, SendReceipt):
        span.set_attributes({"messaging.message.id": result.message_id, **_of_queue(result.queue)})
    elif type(result) is tuple:  # a receipt that nobody has asked for yet
        span.set_attributes({"messaging.message.id": result[0], **_of_queue(result[1])})
    span.end()


def _failed(span: Span, failure: BaseException) -> None:
    span.set_attribute("error.type", type(failure).__qualname__)
    span.set_status(StatusCode.ERROR, str(failure)[:200])
    span.record_exception(failure)


def _injected(properties: Mapping[str, str] | None, span: Span) -> dict[str, str]:
    """Return properties with the context of a span, unless the caller set one."""
    found = dict(properties or {})
    own = span.get_span_context()
    if TRACEPARENT not in found and own.is_valid:
        # As the propagator writes it, without a context made for it.
        found[TRACEPARENT] = f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"
        if own.trace_state:
            found[TRACESTATE] = own.trace_state.to_header()
    return found


def _with_context(message: Message, span: Span) -> Message:
    properties = _injected(message.properties, span)
    return Message(
        message.topic, message.body, message.key, message.tag, message.keys, properties,
        message.flag,
    )  # fmt: skip


def _context_of(message: ReceivedMessage) -> SpanContext | None:
    """Return the context that a message carries."""
    properties = message.properties
    if TRACEPARENT not in properties:
        if _OF_PROXIES not in properties:
            return None
        properties = {TRACEPARENT: properties[_OF_PROXIES]}
    found = trace.get_current_span(_W3C.extract(properties, Context())).get_span_context()
    return found if found.is_valid else None


def _links(messages: Iterable[ReceivedMessage]) -> list[Link]:
    found = []
    for message in messages:
        sender = _context_of(message)
        if sender is not None:
            found.append(Link(sender, {"messaging.message.id": message.message_id}))
            if len(found) == LINKS_MAX:
                break
    return found


def _of_queue(queue: TopicQueue) -> _Attributes:
    return {"messaging.destination.partition.id": f"{queue.broker}:{queue.index}"}


def _of_message(message: ReceivedMessage) -> _Attributes:
    fence = message.fence
    found: dict[str, Any] = {
        "messaging.message.id": message.message_id,
        "inorder.offset": message.offset,
        "inorder.attempt": message.attempt,
        "inorder.redriven": isinstance(message.fencing, Fence),  # it kept that of its origin
    }
    if message.tag is not None:
        found["messaging.rocketmq.message.tag"] = message.tag
    if fence.sequence is not None:
        found["inorder.fence.sequence"] = fence.sequence
    if fence.epoch is not None:
        found["inorder.epoch"] = fence.epoch
    return found
