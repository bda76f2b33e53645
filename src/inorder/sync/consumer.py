"""The consumer for code that blocks; see `inorder.client.consumer`. Plain handlers run in threads.

Nothing runs before `start`: a module can make a consumer and register handlers when it is imported.
"""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Callable

from inorder.client import consumer as twin
from inorder.client.durations import Duration
from inorder.client.handlers import AfterHandle, BeforeHandle, Handler, Order
from inorder.client.policies import Policy
from inorder.client.pullconsumer import ConsumeFrom, Target
from inorder.client.running import HANDLING
from inorder.client.state.allocation import Allocation
from inorder.client.state.keyed import Keyless, KeyOf
from inorder.config import ClientConfig
from inorder.errors import AlreadyClosed, NotStarted
from inorder.model import TopicQueue
from inorder.sync.portal import Portal
from inorder.sync.portal import lease as lease_portal
from inorder.sync.signals import SignalReceived, signals_raise
from inorder.sync.workers import ThreadWorkers


class Consumer:
    """Calls handlers for the messages of topics, as a member of a group.

    `namesrv` is `host:9876` or `host:9876;host2:9876`, by default that of NAMESRV_ADDR.
    `consume_from` says where to begin in a queue for which the group has committed nothing: at its
    end (`"last"`), its beginning (`"first"`), or a time. With `message_model="broadcasting"` every
    consumer gets everything, and offsets are kept in a file of this machine. `allocation` must be
    the same for all members of a group. `instance` tells two consumers of one group in one process
    apart. `before_handle` and `after_handle` are called around every handler, where it runs.

    `lease` is how long an ordered queue stays ours when nothing is heard of us (5 s), `grace` the
    same once our connection is closed (1 s); in seconds, or a timedelta. A handler that runs longer
    than that after a failure may overlap with the next owner's.

    Plain handlers are called in threads, async ones on the client's own event loop.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        group: str,
        consume_from: ConsumeFrom = "last",
        message_model: twin.MessageModel = "clustering",
        allocation: Allocation | None = None,
        instance: str = "",
        config: ClientConfig | None = None,
        tls: ssl.SSLContext | None = None,
        before_handle: BeforeHandle | None = None,
        after_handle: AfterHandle | None = None,
        lease: Duration | None = None,
        grace: Duration | None = None,
    ) -> None:
        self._portal: Portal | None = None
        self._closed = False
        self._async = twin.Consumer(
            namesrv,
            group=group,
            consume_from=consume_from,
            message_model=message_model,
            allocation=allocation,
            instance=instance,
            config=config,
            tls=tls,
            before_handle=before_handle,
            after_handle=after_handle,
            lease=lease,
            grace=grace,
        )
        self._async._threads = ThreadWorkers

    def on(
        self,
        topic: str,
        *,
        order: Order = "queue",
        tag: str = "*",
        concurrency: int | None = None,
        batch: int = 1,
        on_failure: Policy | None = None,
        auto_commit: bool = True,
        key_of: str | KeyOf | None = None,
        keyless: Keyless = "barrier",
    ) -> Callable[[Handler], Handler]:
        """Decorate the handler of a topic: a function, or a class or object with `handle`.

        It gets a message, or with `batch` above 1 a list of up to so many. To return is to be
        done; `raise Retry(after=seconds)` is to be called again later; any other exception is a
        failed attempt, and `on_failure` says what follows: Block() or DeadLetter(). `tag` is `*`,
        a tag, or several as in `paid || shipped`. With `auto_commit=False` a handler of an ordered
        topic returns Outcome.COMMIT or Outcome.ROLLBACK for all that it got since the last one.

        With `order="key"` up to `concurrency` handlers run at a time, and the messages of one key
        one after the other. The key is the message's own, or what `key_of` says: the name of a
        property, or a function of the message. One without a key waits for all before it and holds
        all behind it, unless `keyless="concurrent"`.
        """
        return self._async.on(
            topic,
            order=order,
            tag=tag,
            concurrency=concurrency,
            batch=batch,
            on_failure=on_failure,
            auto_commit=auto_commit,
            key_of=key_of,
            keyless=keyless,
        )

    def start(self) -> None:
        """Join the group and begin to consume; returns at once, before the first message."""
        if self._closed:
            raise AlreadyClosed("this consumer was closed; make a new one")
        if self._portal is None:
            self._portal = lease_portal()
        self._portal.call(self._async.start)

    def run(self) -> None:
        """Consume until the consumer is closed, or this is interrupted, and close it.

        Ctrl-C and SIGTERM end it cleanly; a second one does not wait for handlers.
        """
        try:
            with signals_raise():
                self.start()
                self._async._runs = True
                self._running().call(self._async._stop_asked.wait)
        except SignalReceived:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Stop pulling, let handlers end, commit, release the queues and leave the group.

        In a handler it cannot wait for its own end: there it only lets `run` return.
        """
        if self._portal is not None and HANDLING.get():
            self._portal.call(self._async._ask_stop)
            return
        if not self._closed:
            self._closed = True
            if self._portal is not None:
                self._portal.finish(self._async.close)

    def pause(self, *queues: TopicQueue) -> None:
        """Pull nothing and start no handler of these queues (default: of all) until `resume`."""
        self._running().call(self._async.pause, *queues)

    def resume(self, *queues: TopicQueue) -> None:
        """Go on with these queues (default: with all)."""
        self._running().call(self._async.resume, *queues)

    def paused(self) -> tuple[TopicQueue, ...]:
        """Return the queues that are paused."""
        return self._running().call(self._async.paused)

    def assignment(self) -> tuple[TopicQueue, ...]:
        """Return the queues that are ours at the moment."""
        return self._running().call(self._async.assignment)

    def seek(self, queue: TopicQueue, to: Target) -> int:
        """Go on with a queue elsewhere: an offset, a time, "beginning" or "end".

        The handlers that run end before; the new offset is committed. Returns the offset.
        """
        return self._running().call(self._async.seek, queue, to)

    def commit(self) -> None:
        """Save how far the group is now, without waiting for the next time that is done anyway."""
        self._running().call(self._async.commit)

    def statistics(self) -> twin.ConsumerStatistics:
        """Return a snapshot."""
        if self._portal is None or self._closed:
            return self._async.statistics()
        return self._portal.call(self._async.statistics)

    def __enter__(self) -> Consumer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_portal", None) is not None and not self._closed:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return repr(self._async)

    def _running(self) -> Portal:
        if self._portal is None:
            raise NotStarted("this consumer has not started; start it first")
        return self._portal
