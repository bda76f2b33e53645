"""The key maps that a session knows, and the making of a topic's first map.

`KeyMaps` keeps the map of each topic. When name servers or brokers contradict each other it asks
the brokers of all maps and applies `client/rules/keymaps.py`. `Maker` drives the steps by which an
operator or a producer gives a topic its first map; the same rules choose each step.

What the key map is, and who follows it: decision 12. How a first map is made: decision 43.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from inorder.client.api import BrokerApi
from inorder.client.rules import keymaps as rules
from inorder.client.rules.keymaps import Wanted
from inorder.client.rules.resizing import Go, Open, Places, Publish, Stop, Withdraw
from inorder.clock import Clock
from inorder.errors import (
    BrokerError,
    CodeNotSupported,
    ConnectFailed,
    InorderError,
    KeyMapConflict,
    TopicNotFound,
    TopicNotRouted,
    TransportError,
)
from inorder.logs import get_logger
from inorder.model import READ_WRITE
from inorder.ordering.keymap import NAMESPACE, KeyMap
from inorder.tasks import Backoff
from inorder.wire.requests.resizing import (
    ResizeGo,
    ResizeOpen,
    ResizeStatus,
    ResizeStop,
    ResizeView,
    ResizeWithdraw,
)

if TYPE_CHECKING:
    from inorder.client.session import Session

log = get_logger(__name__)

CONFLICT_KEPT_MS: Final = 2000
"""After this time a keyed send, which fails, makes the client ask the brokers again."""
TEXTS_MAX: Final = 16
"""How many maps of a topic are remembered, as told and as void."""


class KeyMaps:
    """The key maps of topics."""

    def __init__(
        self, clock: Clock, broker_named: Callable[[str, str], Awaitable[BrokerApi]]
    ) -> None:
        """`broker_named` returns the requests to a broker of a topic, or raises InorderError."""
        self._clock = clock
        self._broker_named = broker_named
        self._maps: dict[str, KeyMap] = {}
        self._void: dict[str, set[str]] = {}
        self._told: dict[str, set[str]] = {}
        self.conflicts: dict[str, tuple[KeyMapConflict, int]] = {}
        """Topics whose maps contradict each other, with the time of the discovery."""
        self.unfinished: set[str] = set()
        """Topics whose map was not open at all of its brokers the last time."""
        self._settling: dict[str, asyncio.Task[None]] = {}

    def get(self, topic: str) -> KeyMap | None:
        """Return the key map of a topic; None if it has none."""
        return self._maps.get(topic)

    def conflict(self, topic: str) -> KeyMapConflict | None:
        """Return the error for keyed sends to a topic whose maps contradict each other."""
        found = self.conflicts.get(topic)
        return None if found is None else found[0]

    def is_stale(self, topic: str) -> bool:
        """Return whether a conflict is so old that brokers should be asked again."""
        found = self.conflicts.get(topic)
        return found is not None and self._clock.monotonic_ms() - found[1] > CONFLICT_KEPT_MS

    def forget(self, topic: str) -> None:
        """Forget a topic: it was deleted, or its map may be another one now."""
        for table in (self._maps, self._void, self._told, self.conflicts):
            table.pop(topic, None)

    def take(self, topic: str, key_map: KeyMap) -> None:
        """Use a map that a broker holds, unless a newer one is known."""
        known = self._maps.get(topic)
        if known is None or known.version < key_map.version:
            self._maps[topic] = key_map
            self.conflicts.pop(topic, None)

    async def heard(self, topic: str, texts: Iterable[str]) -> None:
        """Take the maps that name servers tell; ask the brokers if they contradict each other."""
        void = self._void.get(topic, set())
        told = [text for text in texts if text and text not in void]
        self._note(topic, told)
        known = self._maps.get(topic)
        found = rules.newest([*told, *([] if known is None else [known.encode()])])
        if len(found) == 1:
            self.take(topic, found[0])
        elif found:
            await self.settle(topic)

    def _note(self, topic: str, texts: Iterable[str]) -> None:
        told = self._told.setdefault(topic, set())
        told.update(list(texts)[: TEXTS_MAX - len(told)])

    async def settle(self, topic: str, told: str = "") -> None:
        """Ask the brokers which map counts; concurrent calls share the work."""
        if told:
            self._note(topic, [told])
        task = self._settling.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(
                self._settle(topic), name=f"map of {topic}"
            )
            self._settling[topic] = task
            task.add_done_callback(lambda done: self._settled(topic, done))
        await asyncio.shield(task)

    def _settled(self, topic: str, task: asyncio.Task[None]) -> None:
        self._settling.pop(topic, None)
        if not task.cancelled():
            task.exception()

    def cancel(self) -> None:
        """Stop asking."""
        for task in self._settling.values():
            task.cancel()

    async def _settle(self, topic: str) -> None:
        known = self._maps.get(topic)
        texts = {*self._told.get(topic, ()), *([] if known is None else [known.encode()])}
        asked: set[str] = set()
        views: dict[str, ResizeView] = {}
        while wanted := rules.brokers_of([*texts, *_maps_of(views)]) - asked:
            asked |= wanted
            names = sorted(wanted)
            answers = await asyncio.gather(*(self._view(topic, name) for name in names))
            views |= {view.broker: view for view in answers if view is not None}
        found = rules.settle(texts, views)
        self.unfinished.discard(topic)
        if any(view.making for view in views.values()):
            self.unfinished.add(topic)
        void = self._void.setdefault(topic, set())
        void.update(list(found.void)[: TEXTS_MAX - len(void)])
        self._told[topic] = set(texts) - found.void
        for text in found.void:
            log.warning("topic=%s: no broker of key map %.200s holds it; ignored", topic, text)
        if found.conflict:
            self._contradict(topic, found.conflict)
            return
        self.conflicts.pop(topic, None)
        if found.map is None:
            self._maps.pop(topic, None)
        elif known is None or known != found.map:
            self._maps[topic] = found.map

    def _contradict(self, topic: str, texts: tuple[str, ...]) -> None:
        error = KeyMapConflict(
            f"topic {topic} has {len(texts)} key maps of one version, {' and '.join(texts)[:400]}: "
            "nobody can say where a key belongs, so nothing with a key is sent to it; mend it with "
            f"`inorder topic repair {topic}`"
        )
        if topic not in self.conflicts:
            log.error("%s", error)
        self.conflicts[topic] = (error, self._clock.monotonic_ms())

    async def _view(self, topic: str, broker: str) -> ResizeView | None:
        """Return a broker's view of the topic; None if it does not answer."""
        try:
            api = await self._broker_named(topic, broker)
            return await api.resize(ResizeStatus(topic))
        except CodeNotSupported:
            return ResizeView(broker, topic, 0, "", 0)  # it knows no key maps
        except InorderError as error:
            log.info("topic=%s broker=%s tells no key map: %s", topic, broker, error)
            return None


def _maps_of(views: dict[str, ResizeView]) -> list[str]:
    return [view.map for view in views.values() if view.map]


MAKES_SINCE: Final = 2
"""Brokers know these steps from this protocol on."""
STEP_TIMEOUT_MS: Final = 20_000
"""Time for a request; a broker syncs its files before it answers."""
STEPS_MAX: Final = 10_000

Addresses = Callable[[], Awaitable[dict[str, str]]]
Spread = Callable[[Mapping[str, ResizeView]], Places]
Request = ResizeStatus | ResizeStop | ResizeGo | ResizeOpen | ResizeWithdraw


class Maker:
    """Makes the first key map of one topic. `addresses` returns the masters by broker name."""

    def __init__(
        self,
        session: Session,
        topic: str,
        addresses: Addresses,
        *,
        perm: int = READ_WRITE,
        order: bool = False,
        auto: bool = False,
    ) -> None:
        self._session = session
        self._topic = topic
        self._addresses = addresses
        self._perm, self._order, self._auto = perm, order, auto
        self._known: dict[str, str] = {}

    async def views(self, brokers: Iterable[str]) -> dict[str, ResizeView] | None:
        """Ask brokers, and all brokers that their plans and maps name, for their views.

        None if a broker does not know these steps. Raises TransportError if one does not answer.
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
        """Make the map, or finish one that another client began; return it when it is open.

        None if a broker does not know these steps. Raises TopicNotFound if sends may not make the
        topic, TopicNotRouted if brokers have it and no name server knows, TransportError if a
        broker does not answer in time.
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
                    # A broker that starts serves before its topics are in the routes. To place
                    # keys by the template meanwhile would split them.
                    raise TopicNotRouted(
                        f"topic {self._topic} is at broker {' and '.join(sorted(views))}, and no "
                        "name server says so yet; the send waits for it"
                    )
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
                # A refusal: another client was faster. The next views say more.
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
        return await api.resize(request, timeout_ms=STEP_TIMEOUT_MS)

    async def _publish(self, text: str) -> None:
        topic = self._topic
        try:
            await self._session.tell_name_servers(lambda api: api.put_kv(NAMESPACE, topic, text))
        except InorderError as error:
            # An inorder name server also has the map from the brokers' registrations.
            log.info("topic=%s: a name server was not told the key map: %s", topic, error)
        self._session.forget_route(topic)
