"""The name servers of a session. They share nothing, so each may know what another does not.

    ask       the one that answered last; if it fails, the others in turn
    ask_all   all at once: routes and key maps, of which each may know another part
    tell      all, one after the other

A silent name server is no veto. Once one has answered, the session waits a little for the others,
and hardly at all for one that was late the last time. `name_servers` finds the addresses, also in
the environment of the process. Why all name servers are asked: decision 44.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from inorder.client.api import NameServerApi
from inorder.client.rules.nameservers import choose, no_name_server, parse_name_servers
from inorder.errors import CodeNotSupported, ConfigError, InorderError, TransportError
from inorder.logs import get_logger
from inorder.net.pool import Pool
from inorder.tasks import Tasks
from inorder.wire.names import AUTO_CREATE_TOPIC

log = get_logger(__name__)

T = TypeVar("T")
Call = Callable[[NameServerApi], Awaitable[T]]

OTHERS_WAIT_MS: Final = 1000
"""How long to wait for the others when one has answered."""
SILENT_WAIT_MS: Final = 20
"""The same if each of them was silent the last time."""


class NameServers:
    """The name servers of one session, over its pool."""

    def __init__(self, addresses: list[str], pool: Pool, tasks: Tasks, *, timeout_ms: int) -> None:
        self.addresses = addresses
        self._pool = pool
        self._tasks = tasks
        self._timeout_ms = timeout_ms
        self._current = 0
        self._silent: set[str] = set()
        self._proven: set[str] = set()  # answered a request that only name servers know

    @property
    def current(self) -> str:
        """The name server that answered last."""
        return self.addresses[self._current]

    def __str__(self) -> str:
        return ";".join(self.addresses)

    async def ask(self, call: Call[T]) -> T:
        """Ask the name server that answered last; if it fails, the others in turn."""
        for _ in range(len(self.addresses)):
            try:
                return await self._call(self.current, call)
            except (TransportError, ConfigError) as error:
                failure: InorderError = error
                log.info("name server failed address=%s error=%s", self.current, error)
                self._current = (self._current + 1) % len(self.addresses)
        raise failure

    async def tell(self, call: Call[None]) -> None:
        """Tell every name server. Raises the first failure, after all were told."""
        failures = []
        for address in self.addresses:
            try:
                await self._call(address, call)
            except InorderError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    async def ask_all(self, call: Call[T]) -> dict[str, T | InorderError]:
        """Ask all at once; return the answers in the order of the addresses.

        Name servers that did not answer while others did are left out.
        """
        if len(self.addresses) == 1:
            return {self.current: await self._try(self.current, call)}
        asked = {
            address: self._tasks.start(self._try(address, call), name=f"ask {address}")
            for address in self.addresses
        }
        pending = set(asked.values())
        while pending:
            one_answered = any(not _failed(task) for task in asked.values() if task.done())
            late = [address for address, task in asked.items() if not task.done()]
            patience = SILENT_WAIT_MS if self._silent.issuperset(late) else OTHERS_WAIT_MS
            done, pending = await asyncio.wait(
                pending,
                timeout=patience / 1000 if one_answered else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not done:
                break
        self._silent.update(address for address, task in asked.items() if not task.done())
        heard = [one for one, task in asked.items() if task.done() and not _failed(task)]
        if heard and self.current not in heard:
            self._current = self.addresses.index(heard[0])
        return {
            address: task.result()
            for address, task in asked.items()
            if task.done() and not task.cancelled()
        }

    async def _try(self, address: str, call: Call[T]) -> T | InorderError:
        try:
            answer = await self._call(address, call)
        except InorderError as error:
            if not isinstance(error, TransportError):
                self._silent.discard(address)
            return error
        self._silent.discard(address)
        return answer

    async def _call(self, address: str, call: Call[T]) -> T:
        """Ask one. Raises ConfigError if the server is no name server."""
        connection = await self._pool.get(address)
        api = NameServerApi(connection, timeout_ms=self._timeout_ms)
        try:
            answer = await call(api)
        except CodeNotSupported as error:
            if address in self._proven or await _is_name_server(api):
                raise
            raise ConfigError(no_name_server(address)) from error
        self._proven.add(address)
        return answer


async def _is_name_server(api: NameServerApi) -> bool:
    """Return whether the server answers a request that every name server and no broker knows."""
    try:
        await api.route(AUTO_CREATE_TOPIC)
    except CodeNotSupported:
        return False
    except InorderError:
        pass  # it knows the request
    return True


def _failed(task: asyncio.Task[T | InorderError]) -> bool:
    return task.cancelled() or isinstance(task.result(), TransportError | ConfigError)


def name_servers(given: str | None) -> list[str]:
    """Return the addresses: given, of INORDER_NAMESRV, of NAMESRV_ADDR, or of `inorder up`.

    Raises ConfigError for an impossible address.
    """
    return parse_name_servers(*choose(given, os.environ))
