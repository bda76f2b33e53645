"""Spans of both clients in the SDK's memory: names, links, parents, and what they cost nobody."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    Tracer,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import inorder
from inorder import aio
from inorder.errors import SendsFailed, UsageError
from inorder.otel import Tracing, _injected
from inorder.testing import broker as running_broker

TOPIC = "orders"


class Spans:
    """What was recorded."""

    def __init__(self) -> None:
        self._memory = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self.tracer: Tracer = self.provider.get_tracer("web")

    def named(self, name: str) -> list[ReadableSpan]:
        return [one for one in self._memory.get_finished_spans() if one.name == name]

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found


@pytest.fixture
def spans() -> Iterator[Spans]:
    """Give a provider of its own: the global one stays as it is."""
    found = Spans()
    yield found
    found.provider.shutdown()


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(one.context.trace_id, one.context.span_id) for one in span.links]


def consume(
    namesrv: str, tracing: Tracing, handle: Callable[[Any], None], count: int, **options: Any
) -> None:
    """Run a traced consumer until its handler was called so often."""
    done, calls = threading.Event(), 0
    consumer = inorder.Consumer(namesrv, group="billing", consume_from="first", **tracing.hooks())

    @consumer.on(TOPIC, **options)
    def handler(message: Any) -> None:
        nonlocal calls
        calls += 1
        try:
            handle(message)
        finally:
            if calls >= count:
                done.set()

    thread = threading.Thread(target=consumer.run, daemon=True)
    thread.start()
    try:
        assert done.wait(60)
    finally:
        consumer.close()
        thread.join(60)


def test_one_message_from_the_request_to_the_handler(spans: Spans) -> None:
    """The send is a child of the HTTP request; the handler's trace links to the send."""
    tracing = Tracing(spans.provider)
    with running_broker() as broker:
        with (
            tracing.trace(inorder.Producer(broker.namesrv)) as producer,
            spans.tracer.start_as_current_span("POST /orders", kind=SpanKind.SERVER),
        ):
            producer.send(TOPIC, b"1", key="order-7", tag="paid", keys=("a", "b"))

        def handle(message: inorder.ReceivedMessage) -> None:
            with spans.tracer.start_as_current_span("SELECT"):
                assert "traceparent" in message.properties

        consume(broker.namesrv, tracing, handle, 1)
    request, send = spans.one("POST /orders"), spans.one(f"send {TOPIC}")
    process, select = spans.one(f"process {TOPIC}"), spans.one("SELECT")
    assert send.parent is not None
    assert (send.parent.trace_id, send.parent.span_id) == ids(request)
    assert process.parent is None
    assert linked(process) == [ids(send)]
    assert select.parent is not None
    assert select.parent.span_id == ids(process)[1]
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    attributes = dict(process.attributes or {})
    assert attributes["messaging.consumer.group.name"] == "billing"
    assert attributes["messaging.rocketmq.message.group"] == "order-7"
    assert attributes["inorder.attempt"] == 1
    assert attributes["inorder.redriven"] is False
    assert isinstance(attributes["inorder.fence.sequence"], int)
    sent = dict(send.attributes or {})
    assert sent["messaging.message.id"] == attributes["messaging.message.id"]
    assert sent["messaging.rocketmq.message.keys"] == ("a", "b")
    assert (
        sent["messaging.destination.partition.id"]
        == (attributes["messaging.destination.partition.id"])
    )
    known = {value for value in vars(messaging_attributes).values() if isinstance(value, str)}
    for span in (send, process):
        own = {name for name in span.attributes or {} if name.startswith("messaging.")}
        assert own <= known, "not a name of the semantic conventions"


def test_the_sender_is_the_parent_if_that_is_wanted(spans: Spans) -> None:
    """For systems that show a trace as one tree."""
    tracing = Tracing(spans.provider, parent="message")
    with running_broker() as broker:
        with tracing.trace(inorder.Producer(broker.namesrv)) as producer:
            producer.send(TOPIC, b"1", key="k")
        consume(broker.namesrv, tracing, lambda _message: None, 1)
    assert ids(spans.one(f"process {TOPIC}"))[0] == ids(spans.one(f"send {TOPIC}"))[0]


def test_a_batch_has_links_to_all_its_senders(spans: Spans) -> None:
    """Not one parent: each message was sent in another trace."""
    tracing = Tracing(spans.provider)
    with running_broker() as broker:
        with tracing.trace(inorder.Producer(broker.namesrv)) as producer:
            for future in [producer.send_nowait(TOPIC, b"1", key="k") for _ in range(3)]:
                future.result(30)
            producer.send_batch([inorder.Message(TOPIC, b"2", key="k") for _ in range(2)])
        seen: list[int] = []
        consume(
            broker.namesrv, tracing, lambda batch: seen.append(len(batch)), 1,
            order="queue", batch=16,
        )  # fmt: skip
    sends, batch = spans.named(f"send {TOPIC}"), spans.one(f"send_batch {TOPIC}")
    assert len(sends) == 3
    assert len({ids(one)[0] for one in [*sends, batch]}) == 4
    process = spans.named(f"process {TOPIC}")
    found = [link for one in process for link in linked(one)]
    assert sorted(found) == sorted([*map(ids, sends), ids(batch), ids(batch)])
    assert all(one.parent is None for one in process)


def test_the_async_clients_and_a_poll(spans: Spans) -> None:
    """The same spans; a poll links to what it got, and an empty one has no span."""
    import asyncio

    tracing = Tracing(spans.provider)

    async def run(namesrv: str) -> None:
        async with tracing.trace(aio.Producer(namesrv)) as producer:
            with spans.tracer.start_as_current_span("job"):
                await producer.send(TOPIC, b"1", key="k")
                await producer.send_nowait(TOPIC, b"2", key="k")
        async with tracing.trace(
            aio.PullConsumer(namesrv, group="r", consume_from="first")
        ) as reader:
            await reader.subscribe(TOPIC)
            got: list[inorder.ReceivedMessage] = []
            while len(got) < 2:
                got += await reader.poll(30)
            assert await reader.poll(0) == []

    with running_broker() as broker:
        asyncio.run(run(broker.namesrv))
    job, sends = spans.one("job"), spans.named(f"send {TOPIC}")
    assert {one.parent.span_id for one in sends if one.parent} == {ids(job)[1]}
    polls = spans.named(f"poll {TOPIC}")
    assert sorted(link for one in polls for link in linked(one)) == sorted(map(ids, sends))
    assert all(one.kind is SpanKind.CLIENT for one in polls)


def test_a_parked_key_and_its_redrive(spans: Spans) -> None:
    """A span for the parking with the error, one for those that join, one for each redrive."""
    tracing = Tracing(spans.provider)
    works = threading.Event()

    def handle(message: inorder.ReceivedMessage) -> None:
        if not works.is_set():
            raise ValueError("no such customer")

    with running_broker() as broker:
        with tracing.trace(inorder.Producer(broker.namesrv)) as producer:
            for number in range(2):
                producer.send(TOPIC, b"%d" % number, key="k")
        consumer = inorder.Consumer(
            broker.namesrv, group="billing", consume_from="first", **tracing.hooks()
        )
        done: list[bytes] = []

        @consumer.on(TOPIC, order="key", on_failure=inorder.Park(attempts=1))
        def handler(message: inorder.ReceivedMessage) -> None:
            handle(message)
            done.append(message.body)

        thread = threading.Thread(target=consumer.run, daemon=True)
        thread.start()
        with inorder.Admin(broker.namesrv) as admin:
            wait_until(lambda: len(spans.named(f"park {TOPIC}")) == 2)
            works.set()
            admin.parked.redrive("billing")
            wait_until(lambda: len(done) == 2)
        consumer.close()
        thread.join(60)
    first, joined = spans.named(f"park {TOPIC}")
    assert [bool((one.attributes or {})["inorder.parked.first"]) for one in (first, joined)] == [
        True, False,
    ]  # fmt: skip
    assert [event.name for event in first.events] == ["exception"]
    sends = [ids(one) for one in spans.named(f"send {TOPIC}")]
    assert [linked(first), linked(joined)] == [[sends[0]], [sends[1]]]
    process = spans.named(f"process {TOPIC}")
    redriven = [one for one in process if (one.attributes or {})["inorder.redriven"]]
    assert [linked(one) for one in redriven] == [[sends[0]], [sends[1]]]
    failed = next(one for one in process if one not in redriven)
    assert (failed.attributes or {})["error.type"] == "ValueError"


def wait_until(condition: Callable[[], bool]) -> None:
    ended = threading.Event()
    for _ in range(600):
        if condition():
            return
        ended.wait(0.1)
    raise AssertionError("it did not happen")


def test_a_sampled_key_is_traced_with_all_its_messages(spans: Spans) -> None:
    """A share of the keys, not of the messages; within a sampled span everything is traced."""
    tracing = Tracing(spans.provider, sample=0.5)
    with running_broker() as broker, inorder.Producer(broker.namesrv) as plain:
        producer = tracing.trace(plain)
        for number in range(40):
            producer.send(TOPIC, b"1", key=f"k{number % 20}")
        counts: dict[object, int] = {}
        for one in spans.named(f"send {TOPIC}"):
            key = (one.attributes or {})["messaging.rocketmq.message.group"]
            counts[key] = counts.get(key, 0) + 1
        assert set(counts.values()) == {2}
        assert 3 < len(counts) < 17
        dropped = next(f"k{n}" for n in range(20) if f"k{n}" not in counts)
        with spans.tracer.start_as_current_span("request"):
            producer.send(TOPIC, b"1", key=dropped)
    assert len(spans.named(f"send {TOPIC}")) == 2 * len(counts) + 1


class Pipe:
    """A producer that takes what it is given, for the cost of a wrapper."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, Any, dict[str, Any]]] = []

    def send_nowait(self, topic: str, body: bytes, *, key: Any = None, **values: Any) -> None:
        self.sent.append((topic, body, key, values))

    def send(self, topic: str, body: bytes, *, key: Any = None, **values: Any) -> None:
        self.sent.append((topic, body, key, values))


def test_an_untraced_pipelined_send_costs_three_calls_and_changes_nothing(spans: Spans) -> None:
    """The wrapper, and two of the API that ask whether a span is current; then the send itself."""
    pipe = Tracing(spans.provider, sample=0).trace(Pipe())
    names: list[str] = []

    def called(frame: Any, event: str, _argument: object) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)

    sys.setprofile(called)
    try:
        pipe.send_nowait(TOPIC, b"1", key="k")
    finally:
        sys.setprofile(None)
    assert names.index("send_nowait") <= 3, names
    pipe.send_nowait(TOPIC, b"2", key=7, tag="paid")
    pipe.send_nowait(TOPIC, b"3")
    assert pipe.sent == [
        (TOPIC, b"1", "k", {}),
        (TOPIC, b"2", 7, {"tag": "paid"}),
        (TOPIC, b"3", None, {}),
    ]
    assert not spans.named(f"send {TOPIC}")


def test_an_unsampled_pipelined_send_within_a_sampled_span_is_traced(spans: Spans) -> None:
    """With its own context in the message; a key that is no text goes the same way."""
    pipe = Tracing(spans.provider, sample=0).trace(Pipe())
    with spans.tracer.start_as_current_span("request"):
        pipe.send_nowait(TOPIC, b"1", key="k")
        pipe.send_nowait(TOPIC, b"1", key=7)
    sent = [ids(one) for one in spans.named(f"send {TOPIC}")]
    carried = [values["properties"]["traceparent"][:-3] for *_, values in pipe.sent]
    assert carried == [f"00-{trace_id:032x}-{span_id:016x}" for trace_id, span_id in sent]
    assert len(sent) == 2


def test_arguments_of_a_traced_send_may_be_given_by_name(spans: Spans) -> None:
    """As without tracing."""
    pipe = Tracing(spans.provider).trace(Pipe())
    pipe.send_nowait(topic=TOPIC, body=b"1", key="k")
    pipe.send(topic=TOPIC, body=b"2")
    assert [one[:3] for one in pipe.sent] == [(TOPIC, b"1", "k"), (TOPIC, b"2", None)]
    assert len(spans.named(f"send {TOPIC}")) == 2


def test_the_context_in_a_message_is_that_of_the_propagator(spans: Spans) -> None:
    """Also with a trace state; without an SDK in the process there is none."""
    state = TraceState([("vendor", "value"), ("other", "1")])
    own = SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1), trace_state=state)
    span = NonRecordingSpan(own)
    wanted: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(wanted, set_span_in_context(span, Context()))
    assert _injected(None, span) == wanted
    assert set(wanted) == {"traceparent", "tracestate"}
    assert _injected({"a": "b"}, INVALID_SPAN) == {"a": "b"}


def test_failures_end_their_spans_and_are_still_reported(spans: Spans) -> None:
    """A callback that looks at a future must not count as somebody who has read it."""
    tracing = Tracing(spans.provider)
    with running_broker() as broker:
        producer = tracing.trace(inorder.Producer(broker.namesrv))
        with pytest.raises(inorder.InorderError):
            producer.send("no topic", b"1")
        producer.send_nowait(TOPIC, b"1", queue=inorder.TopicQueue(TOPIC, "gone", 0), timeout=0.3)
        with pytest.raises(SendsFailed):
            producer.close()
    for name in ("send no topic", f"send {TOPIC}"):
        failed = spans.one(name)
        assert not failed.status.is_ok
        assert "error.type" in (failed.attributes or {})


def test_a_context_that_the_caller_has_set_stays(spans: Spans) -> None:
    """Somebody else traces the message."""
    theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    tracing = Tracing(spans.provider)
    with running_broker() as broker:
        with tracing.trace(inorder.Producer(broker.namesrv)) as producer:
            producer.send(TOPIC, b"1", key="k", properties={"traceparent": theirs})
        consume(broker.namesrv, tracing, lambda _message: None, 1)
    (link,) = linked(spans.one(f"process {TOPIC}"))
    assert f"{link[0]:032x}" in theirs


def test_nothing_is_imported_unless_it_is_asked_for() -> None:
    """And where OpenTelemetry is missing, the text says what to install."""
    text = (
        "import sys, inorder, inorder.aio\n"
        "inorder.Producer, inorder.Consumer, inorder.aio.Consumer\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "sys.modules['opentelemetry'] = None\n"
        "try:\n    import inorder.otel\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "traces need OpenTelemetry: pip install 'inorder[otel]'\n"


def test_what_cannot_be_traced_is_refused() -> None:
    """With a way out."""
    with pytest.raises(UsageError, match=r"\*\*tracing\.hooks\(\)"):
        Tracing().trace(object())
    with pytest.raises(UsageError, match="from 0 to 1"):
        Tracing(sample=2)
    with pytest.raises(UsageError, match="'link' or 'message'"):
        Tracing(parent="child")  # type: ignore[arg-type]
