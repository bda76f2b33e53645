"""Who is signed in, and with whose credentials a request to the cluster is signed.

Every visitor has an `Admin` with its own credentials: what a person may do is decided by the
brokers, and the console adds no right to it. Where the brokers have no users there is nobody to
ask: then a token that the console printed at its start lets its holder change things, and everybody
else may look. The console has no account of its own. Why: decision 57.

    Visitor    a browser session: who, its Admin, its CSRF token, messages for the next page
    Sessions   all of them, and the visitor who is not signed in; bounded, and old ones end
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import ssl
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from inorder.client.admin import Admin
from inorder.client.session import Session
from inorder.clock import Clock
from inorder.config import ClientConfig
from inorder.console.rules import Attempts, Finding, Level
from inorder.console.watch import Watch
from inorder.credentials import Credentials
from inorder.errors import AccessDenied, InorderError
from inorder.logs import get_logger

log = get_logger("inorder.console")

SESSIONS_MAX: Final = 64
SESSION_MS: Final = 8 * 3600 * 1000
LOG_MAX: Final = 200
KNOWN_BUT_REFUSED: Final = ("has no permission to access", "need admin permission", "no permission")
"""How brokers answer a user whose signature is right, and who may not do what was asked."""


class SignInRefused(Exception):
    """Nobody was signed in; the text says why."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One change that was made from this console."""

    at_ms: int
    who: str
    what: str
    reason: str
    outcome: str


@dataclass(slots=True)
class Visitor:
    """A browser session."""

    name: str
    """Who signed in; empty: nobody."""
    session: Session
    """Its connections, which sign with the visitor's credentials."""
    admin: Admin
    watch: Watch
    csrf: str
    seen_ms: int
    signed_in: bool = False
    link: str = ""
    """A sign-in link to show once."""
    notices: deque[Finding] = field(default_factory=lambda: deque(maxlen=8))

    def tell(self, level: Level, text: str) -> None:
        """Show a sentence on the next page."""
        self.notices.append(Finding(level, text))


class Sessions:
    """The visitors of a console."""

    def __init__(
        self,
        namesrv: str,
        clock: Clock,
        *,
        tls: ssl.SSLContext | None = None,
        token: str = "",
        looks: bool = True,
        config: ClientConfig | None = None,
    ) -> None:
        """With `looks`, who is not signed in may look. A given `token` may be used many times."""
        self._namesrv = namesrv
        self._clock = clock
        self._tls = tls
        self._config = config
        self._fixed = bool(token)
        self._tokens: set[str] = {token or secrets.token_urlsafe(24)}
        self._visitors: dict[str, Visitor] = {}
        self._attempts = Attempts()
        self.looks = looks
        self.log: deque[LogLine] = deque(maxlen=LOG_MAX)
        self.nobody = self._visitor("", None)

    def _visitor(self, name: str, credentials: Credentials | None) -> Visitor:
        session = Session(
            self._namesrv, config=self._config, clock=self._clock, tls=self._tls,
            credentials=credentials,
        )  # fmt: skip
        admin = Admin(session)
        return Visitor(
            name, session, admin, Watch(admin, self._clock), secrets.token_urlsafe(24),
            self._clock.now_ms(),
        )  # fmt: skip

    @property
    def token(self) -> str:
        """Return a token that signs somebody in; empty: it was used."""
        return next(iter(self._tokens), "")

    def new_token(self) -> str:
        """Make another token that works once."""
        token = secrets.token_urlsafe(24)
        self._tokens = {*list(self._tokens)[-7:], token} if not self._fixed else self._tokens
        return token if not self._fixed else self.token

    def find(self, id_: str) -> Visitor:
        """Return the visitor of a cookie, or the one who is not signed in."""
        now_ms = self._clock.now_ms()
        visitor = self._visitors.get(id_) if id_ else None
        if visitor is None or now_ms - visitor.seen_ms > SESSION_MS:
            return self.nobody
        visitor.seen_ms = now_ms
        return visitor

    async def by_token(self, token: str) -> str:
        """Sign in the holder of a token; return the cookie. Raises SignInRefused."""
        self._may_try()
        found = next(
            (one for one in self._tokens if hmac.compare_digest(one.encode(), token.encode())), None
        )
        if found is None:
            self._attempts.failed(self._clock.now_ms())
            raise SignInRefused(
                "the token is not valid, or it was used; start the console again for another one"
            )
        if not self._fixed:
            self._tokens.discard(found)
        return await self._admit(self._visitor("operator", None))

    async def by_name(self, name: str, secret: str) -> str:
        """Sign in a user of the brokers; return the cookie. Raises SignInRefused."""
        self._may_try()
        if not name or not secret:
            raise SignInRefused("give a user's name and the secret")
        if not await self.brokers_have_users():
            raise SignInRefused(
                "these brokers have no users, so nobody's secret can be checked; use the link that "
                "the console printed at its start"
            )
        visitor = self._visitor(name, Credentials(name, secret))
        try:
            await visitor.admin.cluster.each(lambda api: api.system_topics())
        except AccessDenied as error:
            if not any(one in str(error).lower() for one in KNOWN_BUT_REFUSED):
                await _close(visitor)
                self._attempts.failed(self._clock.now_ms())
                raise SignInRefused("the brokers do not know this name with this secret") from None
        except InorderError as error:
            await _close(visitor)
            raise SignInRefused(f"the brokers could not be asked: {error}") from None
        return await self._admit(visitor)

    async def brokers_have_users(self) -> bool:
        """Tell whether every broker refuses a request that nobody has signed."""
        try:
            nodes = await self.nobody.admin.cluster.masters()
        except AccessDenied:
            return True
        for node in nodes:
            try:
                await (await self.nobody.admin.cluster.api(node.address)).system_topics()
            except AccessDenied:
                continue
            return False
        return True

    async def leave(self, id_: str) -> None:
        """Sign a visitor out."""
        visitor = self._visitors.pop(id_, None)
        if visitor is not None:
            await _close(visitor)

    def note(self, visitor: Visitor, what: str, reason: str, outcome: str) -> None:
        """Write down who changed what."""
        line = LogLine(self._clock.now_ms(), visitor.name, what, reason, outcome)
        self.log.append(line)
        log.info("who=%s what=%s reason=%s outcome=%s", line.who, what, reason, outcome)

    async def expire(self) -> None:
        """End the sessions of visitors who were not seen for long."""
        now_ms = self._clock.now_ms()
        old = [id_ for id_, one in self._visitors.items() if now_ms - one.seen_ms > SESSION_MS]
        for id_ in old:
            await self.leave(id_)

    async def close(self) -> None:
        """End all sessions."""
        everybody = [*self._visitors.values(), self.nobody]
        self._visitors.clear()
        await asyncio.gather(*map(_close, everybody))

    async def _admit(self, visitor: Visitor) -> str:
        await self.expire()
        if len(self._visitors) >= SESSIONS_MAX:
            await self.leave(min(self._visitors, key=lambda id_: self._visitors[id_].seen_ms))
        visitor.signed_in = True
        id_ = secrets.token_urlsafe(32)
        self._visitors[id_] = visitor
        self.note(visitor, "signed in", "", "done")
        return id_

    def _may_try(self) -> None:
        if not self._attempts.may_try(self._clock.now_ms()):
            raise SignInRefused("too many wrong secrets; wait a minute")


async def _close(visitor: Visitor) -> None:
    await visitor.watch.close()
    await visitor.session.close()
