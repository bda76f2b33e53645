"""The consumer for code that blocks: the async consumer, with plain handlers in threads.

Nothing runs before `start`, so a module can create a consumer and register handlers on import.

`run` ends on SIGINT and SIGTERM. The signal handler raises nothing: an exception at an arbitrary
line of the main thread could leave a lock held or a wake-up unsent. It only asks the consumer to
stop, and `run` returns when the consumer has stopped. How handlers run and stop: decision 29.
"""

from __future__ import annotations

import signal
import ssl
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Final

from inorder.client.consume import consumer as twin
from inorder.client.consume.hooks import Hook, HooksWhen, ParkHook
from inorder.client.consume.pullconsumer import Target
from inorder.client.consume.registrations import Handler, Order
from inorder.client.consume.rules.assignment import Allocation
from inorder.client.consume.rules.keyed import Keyless, KeyOf
from inorder.client.consume.rules.outcomes import Policy
from inorder.client.consume.workers import in_handler
from inorder.client.rules.routes import Duration
from inorder.config import ClientConfig
from inorder.credentials import Credentials
from inorder.errors import AlreadyClosed, NotStarted
from inorder.logs import get_logger
from inorder.model import TopicQueue
from inorder.sync.portal import Ending, Portal, blocking, on_loop
from inorder.sync.portal import lease as lease_portal
from inorder.sync.workers import ThreadWorkers

log = get_logger(__name__)

_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_ask(end: Callable[[], None]) -> Iterator[None]:
    """Call `end` at the first SIGINT or SIGTERM. In other threads than the main one, do nothing.

    The second signal meets the handlers from before: it ends the program by default.
    """
    before: dict[int, Any] = {}

    def restore() -> None:
        for number in list(before):
            signal.signal(number, before.pop(number))

    def received(number: int, frame: FrameType | None) -> None:
        restore()
        end()

    try:
        for number in _NUMBERS:
            before[number] = signal.signal(number, received)
    except ValueError:
        pass  # only the main thread gets signals; this is another one
    try:
        yield
    finally:
        restore()


class Consumer:
    """Calls handlers for the messages of topics, as a member of a group.

    `namesrv` is `host:9876;host2:9876`, else INORDER_NAMESRV, else NAMESRV_ADDR, else
    127.0.0.1:9876.
    `credentials` sign every request, else INORDER_ACCESS_KEY and INORDER_SECRET_KEY do, if set.
    `consume_from` says where to begin in a queue for which the group has committed nothing: at its
    end (`"last"`), its beginning (`"first"`), half an hour before now (`"timestamp"`), or a time.
    With `message_model="broadcasting"` every consumer gets every message, and offsets are kept in a
    file on this machine. `allocation` must be the same for all members of a group. `instance` tells
    two consumers of one group in one process apart. `before_handle` and `after_handle` get a
    HandleContext before and after every call of a handler, in its thread; with `hooks_when` only if
    it returns true for the messages of the call. `after_park` gets a
    ParkContext when the broker has parked messages; it runs on the client's own thread and must not
    block.

    `lease` is how long this consumer owns an ordered queue without a renewal (5 s), `grace` how
    long it owns the queue after its connection is lost (1 s); in seconds, or a timedelta. A handler
    that runs longer than that after a failure may overlap with the next owner's.

    With `trace` the client writes RocketMQ's message traces, which `mqadmin` and dashboards show,
    to the brokers' trace topic (`traceTopicEnable`).

    Plain handlers are called in threads, async ones on the client's own event loop.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        group: str,
        consume_from: twin.BeginFrom = "last",
        message_model: twin.MessageModel = "clustering",
        allocation: Allocation | None = None,
        instance: str = "",
        config: ClientConfig | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        before_handle: Hook | None = None,
        after_handle: Hook | None = None,
        after_park: ParkHook | None = None,
        hooks_when: HooksWhen | None = None,
        lease: Duration | None = None,
        grace: Duration | None = None,
        trace: bool = False,
    ) -> None:
        self._portal: Portal | None = None
        self._closed = False
        self._ending = Ending()
        self._async = twin.Consumer(
            namesrv,
            group=group,
            consume_from=consume_from,
            message_model=message_model,
            allocation=allocation,
            instance=instance,
            config=config,
            tls=tls,
            credentials=credentials,
            before_handle=before_handle,
            after_handle=after_handle,
            after_park=after_park,
            hooks_when=hooks_when,
            lease=lease,
            grace=grace,
            trace=trace,
        )
        self._async._threads = ThreadWorkers

    def on(
        self,
        topic: str,
        *,
        order: Order = "queue",
        tag: str = "*",
        sql: str | None = None,
        concurrency: int | None = None,
        batch: int = 1,
        on_failure: Policy | None = None,
        auto_commit: bool = True,
        key_of: str | KeyOf | None = None,
        keyless: Keyless = "barrier",
    ) -> Callable[[Handler], Handler]:
        """Decorate the handler of a topic: a function, or a class or object with `handle`.

        The handler gets a message, or with `batch` above 1 a list of up to `batch` messages of one
        queue (with `order="key"`: of one key). When it returns, the message is done; of a list,
        Handled says which messages are. To a message that asks for a reply it may return a Reply.
        After `raise Retry(after=seconds)` it is called again later. Any other exception is a failed
        attempt, and `on_failure` says what follows: Block(), DeadLetter() or, with `order="key"`,
        Park(). `tag` is `*`, a tag, or several as in `paid || shipped`. `sql` is an SQL92
        expression over the properties instead, as in `amount > 100 AND country = 'de'`. With
        `auto_commit=False` a handler of an ordered topic returns Outcome.COMMIT or Outcome.ROLLBACK
        for all messages since its last such result.

        With `order="key"` up to `concurrency` handlers run at a time, and the messages of one key
        run one after the other. The key is the message's own, or comes from `key_of`: the name of a
        property, or a function of the message. A message without a key waits for all messages
        before it and holds up all after it, unless `keyless="concurrent"`.
        """
        return self._async.on(
            topic,
            order=order,
            tag=tag,
            sql=sql,
            concurrency=concurrency,
            batch=batch,
            on_failure=on_failure,
            auto_commit=auto_commit,
            key_of=key_of,
            keyless=keyless,
        )

    def start(self) -> None:
        """Join the group and begin to consume; returns at once, before the first message.

        Waits until a name server answers; AlreadyClosed is raised if the consumer is closed
        meanwhile. Brokers and topics that do not exist yet are waited for in the background.
        """
        self._lease().call(self._async.start)

    def run(self) -> None:
        """Consume until the consumer is closed, or this call is interrupted; then close it.

        Ctrl-C and SIGTERM end the call cleanly: when it returns, every handler has ended, finished
        messages are committed, and the consumer has left the group. A second signal does not wait
        for handlers.
        """
        portal, asked = self._lease(), False

        def end() -> None:
            nonlocal asked
            asked = True
            portal.poke(self._async._begin_close)

        try:
            with signals_ask(end):
                self.start()
                portal.call(self._async._stop_asked.wait)
        except AlreadyClosed:
            if not asked:
                raise
        finally:
            self.close()

    def close(self, timeout: Duration | None = None) -> None:
        """Stop pulling, wait for handlers, commit, release the queues and leave the group.

        Several threads may call it; each call returns when all of that is done. In a handler, or in
        a task or thread that a running handler has started, it returns at once, because it would
        wait for itself: no further handler starts, and `run`, or a `close` elsewhere, waits for the
        rest. A thread counts as started by the handler only if it has the handler's context, as
        with `asyncio.to_thread`. With `order=None` handlers still get the messages before one that
        was begun, so that all that is done can be committed.

        `timeout` is how long to wait for handlers, in seconds or as a timedelta; by default
        `consumer.close_timeout_ms`, 30 s. Of several timeouts the earliest end counts. A handler
        that runs longer is left behind: its result is not committed, and its queue goes to another
        consumer when the lease has expired.
        """
        portal = self._portal
        if portal is not None and in_handler(self._async):
            if portal.is_here:
                self._async._begin_close(timeout)
            else:
                portal.call(self._async._begin_close, timeout)
            return
        self._closed = True
        if portal is not None:
            self._ending.close(portal, partial(self._async.close, timeout))

    pause = on_loop(twin.Consumer.pause)
    resume = on_loop(twin.Consumer.resume)
    paused = on_loop(twin.Consumer.paused)
    assignment = on_loop(twin.Consumer.assignment)

    def seek(self, queue: TopicQueue, to: Target) -> int:
        """Continue a queue at another offset: an offset, a time, "beginning" or "end".

        Waits until the queue's handlers have ended and the new offset is committed; in a handler it
        does not wait. Returns the offset.
        """
        wait = not in_handler(self._async)
        return self._running().call(partial(self._async._seek, queue, to, wait=wait))

    commit = blocking(twin.Consumer.commit)

    def statistics(self) -> twin.ConsumerStatistics:
        """Return a snapshot of the counters."""
        if self._portal is None or self._closed:
            return self._async.statistics()
        return self._portal.call(self._async.statistics)

    def __enter__(self) -> Consumer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception as failed:
            if error is None:
                raise
            # The block's own error goes on.
            group = self._async._group
            log.warning("a consumer of group=%s was not closed cleanly: %s", group, failed)

    def __del__(self) -> None:
        if getattr(self, "_portal", None) is not None and not self._closed:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return repr(self._async)

    def _lease(self) -> Portal:
        if self._closed:
            raise AlreadyClosed("this consumer was closed; make a new one")
        if self._portal is None:
            self._portal = lease_portal(self._async, handles=True)
        return self._portal

    def _running(self) -> Portal:
        if self._portal is None:
            raise NotStarted("this consumer has not started; start it first")
        return self._portal
