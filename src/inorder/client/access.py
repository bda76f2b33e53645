"""One session for many producers and consumers.

A producer or consumer is given a session, or shares one: users with the same name servers and the
same settings on one event loop share a session and its connections. The last user closes it.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from weakref import WeakKeyDictionary

from inorder.client.identity import Identity, MessageIds, chosen_credentials
from inorder.client.nameservers import name_servers
from inorder.client.session import Session
from inorder.clock import Clock, SystemClock
from inorder.config import ClientConfig
from inorder.credentials import Credentials
from inorder.errors import AlreadyClosed, UsageError

_Key = tuple[tuple[str, ...], ClientConfig, ssl.SSLContext | None, Credentials | None, str]


class _Shared:
    """A session and the number of its users."""

    __slots__ = ("session", "users")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.users = 0


_sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Key, _Shared]] = WeakKeyDictionary()


class Access:
    """One user of a session. `open` may be called many times, `close` once."""

    def __init__(
        self,
        namesrv: str | Session | None,
        *,
        config: ClientConfig | None,
        tls: ssl.SSLContext | None,
        credentials: Credentials | None = None,
        instance: str = "",
    ) -> None:
        self.session: Session | None = None
        self._shared: _Shared | None = None
        self._closed = False
        if isinstance(namesrv, Session):
            if any(one is not None for one in (config, tls, credentials)) or instance:
                raise UsageError(
                    "a session has its settings already; leave config=, tls=, credentials= and "
                    "instance= out"
                )
            self.session = namesrv
            self.config = namesrv.config
            self.clock: Clock = namesrv.clock
            self.message_ids = namesrv.message_ids
            self._key: _Key = ((), self.config, None, None, "")
            return
        self.config = config or ClientConfig()
        self.clock = SystemClock()
        self.message_ids = MessageIds(Identity.of_this_process(), self.clock)
        servers = name_servers(namesrv)
        chosen = chosen_credentials(credentials)
        self._key = (tuple(servers), self.config, tls, chosen, instance)

    async def open(self) -> Session:
        """Return the session, started."""
        if self._closed:
            raise AlreadyClosed("this client was closed; make a new one")
        if self.session is not None:
            if self._shared is None:
                await self.session.start()
            return self.session
        shared = _join(asyncio.get_running_loop(), self._key)
        self._shared, self.session = shared, shared.session
        await shared.session.start()
        return shared.session

    async def close(self) -> None:
        """Leave the session: its last user closes a shared one, a given one stays open."""
        self._closed = True
        shared, self._shared = self._shared, None
        if shared is None:
            return
        shared.users -= 1
        if not shared.users:
            of_loop = _sessions[asyncio.get_running_loop()]
            if of_loop.get(self._key) is shared:
                del of_loop[self._key]
            await shared.session.close()


def _join(loop: asyncio.AbstractEventLoop, key: _Key) -> _Shared:
    of_loop = _sessions.setdefault(loop, {})
    shared = of_loop.get(key)
    if shared is None:
        servers, config, tls, credentials, instance = key
        identity = replace(Identity.of_this_process(), instance=instance)
        session = Session(
            ";".join(servers), config=config, tls=tls, credentials=credentials, identity=identity
        )
        shared = of_loop[key] = _Shared(session)
    shared.users += 1
    return shared
