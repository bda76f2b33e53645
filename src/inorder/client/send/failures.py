"""Failed sends whose futures nobody reads: `flush` and `close` report them.

A failure counts as heard once a caller has read it from the future, or waits for the future when it
fails. The others are counted, a few of them with their text, and reported by the next `flush` or
`close`. How a producer keeps order and speed: decision 11.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Final, Protocol

from inorder.errors import SendsFailed
from inorder.model import SendReceipt

EXAMPLES_MAX: Final = 5


class Asked(Protocol):
    """A future that knows whether a caller waits for its outcome."""

    asked: bool
    unheard_at: int

    @property
    def message(self) -> tuple[str, str | None]:
        """Its topic and its key."""
        ...


class UnseenFailures:
    """Counts the failures of one producer that no caller has seen."""

    def __init__(self) -> None:
        self.count = 0
        self._report = 1  # number of the next report; a failed future keeps it
        self._examples: dict[int, str] = {}

    def failed(self, future: Asked, error: BaseException) -> None:
        """Count a failure, unless a caller waits for the future."""
        if future.asked:
            return
        future.unheard_at = self._report
        self.count += 1
        if len(self._examples) < EXAMPLES_MAX:
            topic, key = future.message
            of_key = "" if key is None else f" key {key!r}"
            self._examples[id(future)] = f"topic {topic}{of_key}: {error}"

    def heard(self, future: Asked) -> None:
        """Note that a caller got the error; a failure counts once, and not after its report."""
        if future.unheard_at == self._report:
            self.count -= 1
            self._examples.pop(id(future), None)
        future.unheard_at = 0

    def take(self) -> SendsFailed | None:
        """Return the report of all unheard failures; after that they count as heard."""
        count, self.count = self.count, 0
        examples, self._examples = list(self._examples.values()), {}
        self._report += 1
        if not count:
            return None
        more = f", and {count - len(examples)} more" if count > len(examples) else ""
        return SendsFailed(
            f"{count} messages of send_nowait failed, and nobody asked for their outcome: "
            f"{'; '.join(examples) or 'keep the futures to see which'}{more if examples else ''}",
            count,
        )


class SendFuture(asyncio.Future[SendReceipt]):
    """The future of `send_nowait` in `inorder.aio`."""

    def __init__(
        self,
        unheard: UnseenFailures,
        message: tuple[str, str | None],
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(loop=loop)
        self.asked = False
        self.message = message  # topic and key
        self.unheard_at = 0
        self._unheard = unheard

    def set_exception(self, exception: type | BaseException, /) -> None:
        if isinstance(exception, BaseException):
            self._unheard.failed(self, exception)
        super().set_exception(exception)

    def result(self) -> SendReceipt:
        if self.unheard_at:
            self._unheard.heard(self)
        found: Any = super().result()
        # A receipt is made when somebody asks for it.
        return SendReceipt(*found) if type(found) is tuple else found

    def exception(self) -> BaseException | None:
        if self.unheard_at:
            self._unheard.heard(self)
        return super().exception()

    def __await__(self) -> Generator[Any, None, SendReceipt]:
        self.asked = True
        try:
            yield from super().__await__()
        finally:
            self.asked = False
            if self.unheard_at:
                self._unheard.heard(self)
        return self.result()

    __iter__ = __await__
