"""Driving a resize: ask the brokers and do the next step (`client/rules/resizing.py`).

The driving client may be killed at any point, and any other can continue. It asks a broker that
does not answer again for a while. Then `InterruptedResize` tells the caller how to resume. How a
resize keeps order: decision 13.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from inorder.client.rules import resizing as rules
from inorder.client.rules.keymaps import newest
from inorder.client.rules.resizing import Goal, TopicResize
from inorder.client.session import Session
from inorder.errors import (
    CodeNotSupported,
    InorderError,
    ResizeUnderWay,
    RouteError,
    TransportError,
    UsageError,
)
from inorder.ordering.keymap import NAMESPACE, KeyMap
from inorder.tasks import Backoff
from inorder.wire.requests.resizing import (
    Plan,
    ResizeDecide,
    ResizeGo,
    ResizeOpen,
    ResizeRelease,
    ResizeStatus,
    ResizeStop,
    ResizeView,
    ResizeWithdraw,
)

if TYPE_CHECKING:
    from inorder.client.admin.cluster import Cluster

T = TypeVar("T")
OnProgress = Callable[[TopicResize], None]
AtBrokers = rules.Decide | rules.Stop | rules.Go | rules.Open | rules.Withdraw

STOP_TIMEOUT_MS: Final = 20_000
"""Time for a request; a broker syncs its log before it answers."""


class Resizer:
    """Drives the resizes of one topic."""

    def __init__(
        self, session: Session, cluster: Cluster, topic: str, without: Iterable[str] = ()
    ) -> None:
        """`without` lists brokers of the map that are gone for good and are not asked."""
        self._session = session
        self._cluster = cluster
        self._topic = topic
        self._without = frozenset(without)

    async def views(self) -> dict[str, ResizeView]:
        """Ask all brokers of the topic's map. Raises UsageError if it has none."""
        addresses = await self._addresses()
        found: dict[str, ResizeView] = {}
        wanted = set(addresses)
        while wanted:
            for name in sorted(wanted):
                if name not in addresses:
                    raise TransportError(
                        f"broker {name} of topic {self._topic} is not registered; start it"
                    )
                found[name] = await self._view(addresses[name])
            mapped = {name for view in found.values() if view.map for name in _brokers(view.map)}
            mapped -= self._without
            if not mapped:
                raise UsageError(
                    f"topic {self._topic} has no key map, so nothing keeps its keys in order; "
                    "`inorder topic create` gives it one, `inorder topic update` other queues"
                )
            wanted = mapped - set(found)
            found = {name: view for name, view in found.items() if name in mapped}
        return found

    async def _addresses(self) -> dict[str, str]:
        await self._cluster.route(self._topic)  # raises TopicNotRouted if no broker has the topic
        masters = await self._cluster.masters()
        return {one.name: one.address for one in masters if one.name not in self._without}

    async def contradicting(self) -> list[KeyMap]:
        """Return the maps of the highest version among brokers; several contradict each other."""
        views, _, _ = await self._answering()
        return newest([view.map for view in views.values()])

    async def _view(self, address: str) -> ResizeView:
        return await self._ask(address, ResizeStatus(self._topic))

    async def _ask(
        self,
        address: str,
        request: ResizeStatus | ResizeDecide | ResizeStop | ResizeGo | ResizeOpen | ResizeWithdraw,
        timeout_ms: int | None = None,
    ) -> ResizeView:
        api = await self._session.broker_at(address)
        try:
            return await api.resize(request, timeout_ms=timeout_ms)
        except CodeNotSupported as error:
            raise UsageError(
                f"the broker at {address} is Apache RocketMQ, which cannot resize a topic in order"
            ) from error

    async def status(self) -> TopicResize:
        """Return the state of the topic, and the brokers that do not answer."""
        views, _, away = await self._answering()
        return replace(rules.summary(self._topic, views), away=away)

    async def run(
        self, goal: Goal, *, timeout_ms: int, on_progress: OnProgress | None = None
    ) -> TopicResize:
        """Do the remaining steps. Raises ResizeUnderWay if another resize must end first."""
        views = await self.views()
        until_ms = self._session.clock.monotonic_ms() + timeout_ms
        while True:
            step = rules.next_step(views, goal)
            if on_progress is not None:
                on_progress(rules.summary(self._topic, views))
            if isinstance(step, rules.UnderWay):
                raise ResizeUnderWay(
                    f"topic {self._topic} is being resized to "
                    f"{len(KeyMap.decode(step.plan.map).queues)} queues; finish that first: "
                    f"inorder topic resize {self._topic} --resume",
                    version=step.plan.version,
                    plan_id=step.plan.id,
                )
            if isinstance(step, rules.Publish):
                await self._publish(step.map)
                return rules.summary(self._topic, await self.views())
            views = {**views, **await self._patiently(partial(self._do, step), until_ms)}

    async def _answering(self) -> tuple[dict[str, ResizeView], dict[str, str], tuple[str, ...]]:
        """Ask the brokers of the topic's map; return views, addresses and missing brokers.

        Raises UsageError if the topic has no map.
        """
        addresses = await self._addresses()
        views: dict[str, ResizeView] = {}
        for name, address in addresses.items():
            with suppress(TransportError):
                view = await self._view(address)
                if view.map:
                    views[name] = view
        if not views:
            raise UsageError(
                f"topic {self._topic} has no key map at any broker that answers, so nothing keeps "
                "its keys in order; `inorder topic create` gives it one, `inorder topic update` "
                "other queues"
            )
        brokers = {name for view in views.values() for name in _brokers(view.map)}
        views = {name: view for name, view in views.items() if name in brokers}
        return views, addresses, tuple(sorted(brokers - views.keys()))

    async def withdraw(self) -> TopicResize:
        """Withdraw a resize that has not begun everywhere; name the brokers that do not answer.

        Raises ResizeUnderWay if it is too late, TransportError if the topic's first broker, which
        decides, does not answer.
        """
        views, addresses, away = await self._answering()
        brokers = {*views, *away}
        first = rules.first_of(views)
        if first not in views:
            raise TransportError(
                f"broker {first} decides about resizes of topic {self._topic}; start it"
            )
        while (step := rules.withdrawal(views)) is not None:
            if isinstance(step, rules.TooLate):
                raise ResizeUnderWay(
                    f"the resize of topic {self._topic} cannot be aborted: brokers may use the "
                    f"new queues. Finish it: inorder topic resize {self._topic} --resume",
                    version=step.plan.version,
                    plan_id=step.plan.id,
                )
            for name in step.brokers:
                try:
                    views[name] = await self._ask_for(step, addresses[name])
                except TransportError:
                    if name == first:
                        raise
                    del views[name]
        found = rules.summary(self._topic, views)
        return replace(found, away=tuple(sorted(brokers - views.keys())))

    async def _do(self, step: AtBrokers) -> dict[str, ResizeView]:
        addresses = await self._addresses()
        brokers = (step.broker,) if isinstance(step, rules.Decide | rules.Go) else step.brokers
        missing = [name for name in brokers if name not in addresses]
        if missing:
            raise TransportError(f"broker {', '.join(missing)} is not registered")
        asked = [self._ask_for(step, addresses[name]) for name in brokers]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return {view.broker: view for view in answers if not isinstance(view, BaseException)}

    async def _ask_for(self, step: AtBrokers, address: str) -> ResizeView:
        plan, topic = step.plan, self._topic
        if isinstance(step, rules.Decide):
            return await self._decide(address, plan)
        if isinstance(step, rules.Withdraw):
            return await self._ask(address, ResizeWithdraw(topic, plan.id), STOP_TIMEOUT_MS)
        if isinstance(step, rules.Go):
            return await self._ask(address, ResizeGo(topic, plan.id, plan.version), STOP_TIMEOUT_MS)
        if isinstance(step, rules.Stop):
            without = ",".join(plan.without)
            stop = ResizeStop(topic, plan.id, plan.version, plan.map, without)
            return await self._ask(address, stop, STOP_TIMEOUT_MS)
        return await self._ask(address, ResizeOpen(topic, plan.id, plan.version), STOP_TIMEOUT_MS)

    async def _decide(self, address: str, plan: Plan) -> ResizeView:
        without = ",".join(plan.without)
        request = ResizeDecide(self._topic, plan.id, plan.version, plan.map, without)
        try:
            return await self._ask(address, request, STOP_TIMEOUT_MS)
        except ResizeUnderWay:
            return await self._view(address)  # another client was faster: the view says more

    async def _patiently(self, call: Callable[[], Awaitable[T]], until_ms: int) -> T:
        """Try again while brokers do not answer, until the time is up."""
        config = self._session.config
        backoff = Backoff(config.retry_first_ms, config.retry_max_ms)
        while True:
            try:
                return await call()
            except (TransportError, RouteError) as error:
                if self._session.clock.monotonic_ms() >= until_ms:
                    raise InterruptedResize(
                        f"topic {self._topic} is not resized yet: {error}. Keyed sends to it may "
                        "have to wait. When all brokers are up again: "
                        f"inorder topic resize {self._topic} --resume; if one is gone for good, "
                        "abort the resize: --abort"
                    ) from error
            await asyncio.sleep(backoff.next_ms() / 1000)

    async def _publish(self, text: str) -> None:
        topic = self._topic
        await self._session.tell_name_servers(lambda api: api.put_kv(NAMESPACE, topic, text))
        self._session.forget_route(topic)

    async def release(self, group: str) -> int:
        """Let a group read the present version, also if it has not finished an older one.

        Only brokers that answer are told. Returns the version.
        """
        views, addresses, _ = await self._answering()
        version = min(view.version for view in views.values())
        for name in sorted(views):
            api = await self._session.broker_at(addresses[name])
            await api.ask(ResizeRelease(self._topic, group, version, force=True))
        return version


class InterruptedResize(InorderError):
    """A resize was begun and not finished: a broker does not answer. It can be resumed."""


def _brokers(text: str) -> set[str]:
    return {broker for broker, _ in KeyMap.decode(text).queues}
