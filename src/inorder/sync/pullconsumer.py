"""The pull consumer for code that blocks: the methods of the async one, each a blocking call.

What a pull consumer is, and what it leaves to its user: decision 28.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from inorder.client.consume import pullconsumer as twin
from inorder.config import ClientConfig
from inorder.credentials import Credentials
from inorder.model import ReceivedMessage, TopicQueue
from inorder.sync.portal import Closeable, Portal, blocking, lease, on_loop


class PullConsumer(Closeable):
    """Reads queues for a group, as fast as the caller polls.

    `namesrv` is `host:9876;host2:9876`, else INORDER_NAMESRV, else NAMESRV_ADDR, else
    127.0.0.1:9876.
    `credentials` sign every request, else INORDER_ACCESS_KEY and INORDER_SECRET_KEY do, if set.
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
        credentials: Credentials | None = None,
        consume_from: twin.ConsumeFrom = "last",
    ) -> None:
        self._async = twin.PullConsumer(
            namesrv,
            group=group,
            config=config,
            tls=tls,
            credentials=credentials,
            consume_from=consume_from,
        )
        self._portal = lease()
        self._closed = False

    queues = blocking(twin.PullConsumer.queues)
    pull = blocking(twin.PullConsumer.pull)

    def pull_all(
        self,
        queue: TopicQueue,
        start: int | None = None,
        *,
        tag: str = "*",
        sql: str | None = None,
    ) -> Iterator[ReceivedMessage]:
        """Return the messages of a queue from `start` (default: the oldest) to its present end."""
        return self._portal.iterate(self._async.pull_all(queue, start, tag=tag, sql=sql))

    subscribe = blocking(twin.PullConsumer.subscribe)
    unsubscribe = blocking(twin.PullConsumer.unsubscribe)
    assign = blocking(twin.PullConsumer.assign)
    assignment = on_loop(twin.PullConsumer.assignment)
    poll = blocking(twin.PullConsumer.poll)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Return messages one by one until the consumer is closed; `poll` is faster."""
        return self._portal.iterate(aiter(self._async))

    seek = blocking(twin.PullConsumer.seek)
    position = blocking(twin.PullConsumer.position)
    commit = blocking(twin.PullConsumer.commit)
    committed = blocking(twin.PullConsumer.committed)
    pause = on_loop(twin.PullConsumer.pause)
    resume = on_loop(twin.PullConsumer.resume)
    paused = on_loop(twin.PullConsumer.paused)

    def close(self) -> None:
        """Stop reading and close the connections; nothing is committed."""
        if not self._closed:
            self._closed = True
            self._portal.finish(self._async.close)

    statistics = on_loop(twin.PullConsumer.statistics)

    def __enter__(self) -> PullConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._async)

    def _running(self) -> Portal:
        return self._portal
