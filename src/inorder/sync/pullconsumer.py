"""The pull consumer for code that blocks; see `inorder.client.consume.pullconsumer`."""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Iterable, Iterator
from functools import partial

from inorder.client.consume import pullconsumer as twin
from inorder.client.consume.pulls import PullResult
from inorder.client.rules.routes import Duration
from inorder.config import ClientConfig
from inorder.model import ReceivedMessage, TopicQueue
from inorder.sync.portal import lease


class PullConsumer:
    """Reads queues for a group, as fast as the caller polls.

    `namesrv` is `host:9876;host2:9876`, else INORDER_NAMESRV, else NAMESRV_ADDR, else
    127.0.0.1:9876.
    `consume_from` says where to begin in a queue for which the group has committed nothing: at its
    end (`"last"`), its beginning (`"first"`), or a time.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        group: str,
        config: ClientConfig | None = None,
        tls: ssl.SSLContext | None = None,
        consume_from: twin.ConsumeFrom = "last",
    ) -> None:
        self._closed = True  # until there is something to close
        self._async = twin.PullConsumer(
            namesrv, group=group, config=config, tls=tls, consume_from=consume_from
        )
        self._portal = lease()
        self._closed = False

    def queues(self, topic: str, *, wait: Duration = 0) -> list[TopicQueue]:
        """Return the queues of a topic, as the name server knows them now.

        A topic that was just made is known a moment later; `wait` says how long to ask again.
        """
        return self._portal.call(partial(self._async.queues, topic, wait=wait))

    def pull(
        self,
        queue: TopicQueue,
        offset: int,
        *,
        tag: str = "*",
        messages_max: int | None = None,
        wait: Duration = 0,
    ) -> PullResult:
        """Ask for messages from an offset on; wait for the first one for up to `wait` seconds."""
        return self._portal.call(partial(
            self._async.pull, queue, offset, tag=tag, messages_max=messages_max, wait=wait
        ))  # fmt: skip

    def pull_all(
        self, queue: TopicQueue, start: int | None = None, *, tag: str = "*"
    ) -> Iterator[ReceivedMessage]:
        """Return the messages of a queue from `start` (default: the oldest) to its present end."""
        return self._portal.iterate(self._async.pull_all(queue, start, tag=tag))

    def subscribe(self, topic: str, tag: str = "*") -> None:
        """Read all queues of a topic, also those that come later.

        `tag` is `*`, a tag, or several as in `paid || shipped`. Raises TopicNotRouted if nobody
        serves the topic, SubscriptionParseFailed if the tags cannot be read.
        """
        self._portal.call(self._async.subscribe, topic, tag)

    def unsubscribe(self, topic: str) -> None:
        """Read a topic no more; what was read ahead of it is dropped."""
        self._portal.call(self._async.unsubscribe, topic)

    def assign(self, queues: Iterable[TopicQueue], tag: str = "*") -> None:
        """Read exactly these queues, instead of those assigned before."""
        self._portal.call(self._async.assign, queues, tag)

    def assignment(self) -> tuple[TopicQueue, ...]:
        """Return the queues that are read."""
        return self._portal.call(self._async.assignment)

    def poll(
        self, timeout: Duration | None = 1.0, *, messages_max: int | None = None
    ) -> list[ReceivedMessage]:
        """Return messages, of each queue in order; wait for the first one if there is none yet.

        An empty list means that nothing came in time (None: wait as long as it takes). Errors that
        pass are waited out, see `statistics().failing`; others are raised.
        """
        return self._portal.call(partial(self._async.poll, timeout, messages_max=messages_max))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Return messages one by one until the consumer is closed; `poll` is faster."""
        return self._portal.iterate(aiter(self._async))

    def seek(self, queue: TopicQueue, to: twin.Target) -> int:
        """Go on reading a queue elsewhere: an offset, a time, "beginning" or "end".

        Returns the offset. For a time it is that of the first message stored then or later.
        """
        return self._portal.call(self._async.seek, queue, to)

    def position(self, queue: TopicQueue) -> int:
        """Return the offset behind the last message of a queue that poll returned."""
        return self._portal.call(self._async.position, queue)

    def commit(self, queue: TopicQueue | None = None, offset: int | None = None) -> None:
        """Save how far the group is, and wait for the answer.

        Without arguments: for every queue, everything that poll returned is done. With a queue:
        the same for it alone, or everything below `offset` (the queue need not be assigned).
        """
        self._portal.call(self._async.commit, queue, offset)

    def committed(self, queue: TopicQueue) -> int | None:
        """Return the committed offset of the group; None if there is none."""
        return self._portal.call(self._async.committed, queue)

    def pause(self, *queues: TopicQueue) -> None:
        """Return nothing of these queues (default: of all) until `resume`."""
        self._portal.call(self._async.pause, *queues)

    def resume(self, *queues: TopicQueue) -> None:
        """Return messages of these queues (default: of all) again."""
        self._portal.call(self._async.resume, *queues)

    def paused(self) -> tuple[TopicQueue, ...]:
        """Return the queues that are paused."""
        return self._portal.call(self._async.paused)

    def close(self) -> None:
        """Stop reading and let go; nothing is committed."""
        if not self._closed:
            self._closed = True
            self._portal.finish(self._async.close)

    def statistics(self) -> twin.PullConsumerStatistics:
        """Return a snapshot."""
        return self._portal.call(self._async.statistics)

    def __enter__(self) -> PullConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return repr(self._async)
