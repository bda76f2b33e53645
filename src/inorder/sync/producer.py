"""The producer for code that blocks; see `inorder.client.producer` for what each method does."""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from inorder.client import producer as twin
from inorder.client.checks import checked_delay
from inorder.client.durations import Duration
from inorder.client.sending import AfterSend, BeforeSend, Selector
from inorder.config import ClientConfig
from inorder.model import Message, SendReceipt, TopicQueue
from inorder.sync.express import Express
from inorder.sync.portal import Future, lease

_NO_WISHES = (None, None, None, None)


class Producer:
    """Sends messages to the cluster that a name server knows; may be used by many threads.

    `namesrv` is `host:9876` or `host:9876;host2:9876`, by default that of NAMESRV_ADDR. `id` names
    the producer: then every send gives its `sequence`, and the last one of that name to start is
    the one that may send. The hooks `before_send` and `after_send` run on the client's own thread:
    they must not block, nor call the client.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        group: str = twin.GROUP,
        id: str | None = None,
        config: ClientConfig | None = None,
        tls: ssl.SSLContext | None = None,
        before_send: BeforeSend | None = None,
        after_send: AfterSend | None = None,
    ) -> None:
        self._closed = True  # until there is something to close
        self._async = twin.Producer(
            namesrv, group=group, id=id, config=config, tls=tls, before_send=before_send,
            after_send=after_send,
        )  # fmt: skip
        self._portal = lease(self._async)
        # Who may send by itself: nobody looks at its messages, and they need no secrets.
        plain = tls is None and id is None and before_send is None and after_send is None
        self._express = Express(self._async, self._portal) if plain else None
        self._closed = False

    def start(self) -> None:
        """Make ready to send; the first send does it as well. Connects to nobody yet."""
        self._portal.call(self._async.start)

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: TopicQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        sequence: int | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        timeout: Duration | None = None,
    ) -> SendReceipt:
        """Store a message and return where it is.

        Messages of one key are stored in the order of the calls. `queue`, or the function
        `selector(queues, message, arg)`, chooses the queue instead of the key. `sequence` is the
        number that the caller of a named producer gives the message. With `delay_level` consumers
        get it later: 1 is the broker's shortest delay, a second, 18 its longest, two hours. Raises
        TransportError when the time is up and the outcome is unknown; a BrokerError when the broker
        refused the message.
        """
        level = 0
        if delay_level is not None or deliver_at is not None:
            level = checked_delay(delay_level, deliver_at)
        express = self._express
        if express is not None:
            if (
                (queue, selector, sequence, timeout) == _NO_WISHES
                and not level
                and not self._portal.posted
            ):
                sent = express.send(topic, body, key, tag, keys, properties)
                if sent is not None:
                    return sent
            else:
                express.interrupted()
        receipt: SendReceipt = self._portal.post(
            self._async._begin, topic, body, key, tag, keys, properties, queue, selector, arg,
            sequence, timeout, False, level,
        )  # fmt: skip
        return receipt

    def send_nowait(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: TopicQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        sequence: int | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        timeout: Duration | None = None,
    ) -> Future[SendReceipt]:
        """Take a message and return at once; the future has what `send` would return."""
        level = checked_delay(delay_level, deliver_at)
        return self._portal.post_nowait(
            self._async._begin, topic, body, key, tag, keys, properties, queue, selector, arg,
            sequence, timeout, False, level,
        )  # fmt: skip

    def send_oneway(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: TopicQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        sequence: int | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Write a message to its broker's connection and learn nothing of its fate.

        It keeps its place in the line of its queue. It may be lost without a word.
        """
        self._portal.post(
            self._async._begin, topic, body, key, tag, keys, properties, queue, selector, arg,
            sequence, timeout, True,
        )  # fmt: skip

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: TopicQueue | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        sequences: Sequence[int] | None = None,
        timeout: Duration | None = None,
    ) -> list[SendReceipt]:
        """Store messages of one topic, one request for each queue; return their receipts.

        Messages of one queue are stored in their order; more than `batch_bytes_max` of them go in
        several requests. Those without a key go to one queue together. `sequences` are the numbers
        of a named producer, one for each message. Raises the error if there was one request,
        BatchIncomplete if some of several failed.
        """
        return self._portal.call(partial(
            self._async.send_batch, messages, queue=queue, selector=selector, arg=arg,
            sequences=sequences, timeout=timeout,
        ))  # fmt: skip

    def flush(self) -> None:
        """Wait until every message that was handed over has its outcome."""
        self._portal.call(self._async.flush)

    def close(self) -> None:
        """Take no more messages, wait for the outcome of those on their way, let go."""
        if not self._closed:
            self._closed = True
            if self._express is not None:
                self._express.close()
            self._portal.finish(self._async.close)

    def statistics(self) -> twin.ProducerStatistics:
        """Return a snapshot."""
        statistics: twin.ProducerStatistics = self._portal.call(self._async.statistics)
        alone = 0 if self._express is None else self._express.sent
        return replace(statistics, sent=statistics.sent + alone)

    def __enter__(self) -> Producer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return repr(self._async)
