"""Driving the making of a first key map (`state/making.py`), by an operator or a producer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from inorder.client.state import making as rules
from inorder.client.state.making import Wanted
from inorder.client.state.resizing import Go, Open, Places, Publish, Stop, Withdraw
from inorder.errors import (
    BrokerError,
    CodeNotSupported,
    ConnectFailed,
    InorderError,
    TopicNotFound,
    TransportError,
)
from inorder.logs import get_logger
from inorder.model import PERM_READ, PERM_WRITE
from inorder.ordering.keymap import NAMESPACE
from inorder.tasks import Backoff
from inorder.wire.requests.resizing import (
    ResizeGo,
    ResizeOpen,
    ResizeStatus,
    ResizeStop,
    ResizeView,
    ResizeWithdraw,
    decode_resize_view,
)

if TYPE_CHECKING:
    from inorder.client.session import Session

log = get_logger(__name__)

MAKES_SINCE: Final = 2
"""The protocol of brokers that know this way."""
STEP_TIMEOUT_MS: Final = 20_000
"""A broker syncs its files before it answers."""
STEPS_MAX: Final = 10_000

Addresses = Callable[[], Awaitable[dict[str, str]]]
Spread = Callable[[Mapping[str, ResizeView]], Places]
Request = ResizeStatus | ResizeStop | ResizeGo | ResizeOpen | ResizeWithdraw


class Maker:
    """Makes the first map of one topic. `addresses` returns where brokers take writes, by name."""

    def __init__(
        self,
        session: Session,
        topic: str,
        addresses: Addresses,
        *,
        perm: int = PERM_READ | PERM_WRITE,
        order: bool = False,
        auto: bool = False,
    ) -> None:
        self._session = session
        self._topic = topic
        self._addresses = addresses
        self._perm, self._order, self._auto = perm, order, auto
        self._known: dict[str, str] = {}

    async def views(self, brokers: Iterable[str]) -> dict[str, ResizeView] | None:
        """Ask brokers, and all that their plans and maps name; None if one does not know this way.

        Raises TransportError if one does not answer.
        """
        self._known = await self._addresses()
        found: dict[str, ResizeView] = {}
        wanted = set(brokers)
        while wanted:
            names = sorted(wanted)
            try:
                asked = (self._ask(name, ResizeStatus(self._topic)) for name in names)
                answers = await asyncio.gather(*asked)
            except CodeNotSupported:
                return None
            found |= {view.broker: view for view in answers}
            if any(view.protocol < MAKES_SINCE for view in answers):
                return None
            wanted = rules.mentioned(found) - found.keys()
        return found

    async def make(self, brokers: Iterable[str], spread: Spread, *, timeout_ms: int) -> str | None:
        """Make the map, or finish what another one began; return it when it is open everywhere.

        None if a broker does not know this way. Raises TopicNotFound if sends may not make the
        topic, TransportError if a broker does not answer in time.
        """
        session, names = self._session, set(brokers)
        until_ms = session.clock.monotonic_ms() + timeout_ms
        backoff = Backoff(session.config.retry_first_ms, session.config.retry_max_ms)
        wanted = None
        for _ in range(STEPS_MAX):
            try:
                views = await self.views(names)
                if views is None:
                    return None
                if self._auto and rules.is_there(views):
                    return None  # a send makes missing topics, and gives no map to others
                if wanted is None or any(wanted.id in view.withdrawn for view in views.values()):
                    wanted = Wanted(session.message_ids.at(session.clock.now_ms()), spread(views))
                step = rules.next_step(views, wanted)
                if isinstance(step, Publish):
                    await self._publish(step.map)
                    return step.map
                await self._do(step)
                backoff.reset()
            except TopicNotFound:
                raise
            except (TransportError, BrokerError) as error:
                # Refused: another one was there in the meantime. The next look says more.
                if session.clock.monotonic_ms() >= until_ms:
                    raise
                log.info("topic=%s is not made yet: %s", self._topic, error)
                await asyncio.sleep(backoff.next_ms() / 1000)
        raise TransportError(f"topic {self._topic} was not made in {STEPS_MAX} steps; try again")

    async def _do(self, step: Stop | Go | Open | Withdraw) -> None:
        plan, topic = step.plan, self._topic
        if isinstance(step, Go):
            await self._ask(step.broker, ResizeGo(topic, plan.id, plan.version))
            return
        request: Request
        if isinstance(step, Stop):
            request = ResizeStop(
                topic, plan.id, plan.version, plan.map, base=plan.base, perm=self._perm,
                order=self._order, auto=self._auto,
            )  # fmt: skip
        elif isinstance(step, Open):
            request = ResizeOpen(topic, plan.id, plan.version, empty=step.empty)
        else:
            request = ResizeWithdraw(topic, plan.id)
        await asyncio.gather(*(self._ask(name, request) for name in step.brokers))

    async def _ask(self, name: str, request: Request) -> ResizeView:
        address = self._known.get(name) or self._session.address_of(name)
        if address is None:
            raise ConnectFailed(
                f"no name server knows broker {name}, which is to have queues of {self._topic}"
            )
        api = await self._session.broker_at(address)
        return decode_resize_view((await api.ask(request, timeout_ms=STEP_TIMEOUT_MS)).body)

    async def _publish(self, text: str) -> None:
        topic = self._topic
        try:
            await self._session.tell_name_servers(lambda api: api.put_kv(NAMESPACE, topic, text))
        except InorderError as error:
            # Those of ours have it from the brokers' registrations, too.
            log.info("topic=%s: a name server was not told the key map: %s", topic, error)
        self._session.forget_route(topic)
