"""Requests of a resize: decide, stop, open (7140 to 7142), status, release, go, withdraw, rewind.

The states and steps are in `rules.py`. Why: decision 13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.broker.resizing.rules import REWIND_NUMBER_MAX, counts_of
from inorder.broker.topics.checks import check_topic
from inorder.errors import InvalidParameter, TopicNotFound
from inorder.logs import get_logger
from inorder.model import TopicConfig
from inorder.wire.names import validate_group
from inorder.wire.requests.resizing import (
    Plan,
    ResizeDecide,
    ResizeGo,
    ResizeOpen,
    ResizeRelease,
    ResizeRewind,
    ResizeStatus,
    ResizeStop,
    ResizeView,
    ResizeWithdraw,
    encode_resize_view,
)

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.router import Call
    from inorder.wire.header import Command

logger = get_logger(__name__)


async def decide(call: Call[ResizeDecide]) -> Command:
    """Decide the next version of a topic; the first plan wins."""
    request = call.request
    plan = Plan(request.plan_id, request.version, request.map, without=_names(request.without))
    view = await call.broker.resizing.decide(request.topic, plan)
    logger.info(
        "resize decided topic=%s plan=%s version=%d peer=%s map: %s",
        request.topic, plan.id, plan.version, call.connection.peer, plan.map,
    )  # fmt: skip
    return _answer(call.command, view)


async def stop(call: Call[ResizeStop]) -> Command:
    """Stop the present version of a topic, and reply where it ended."""
    request = call.request
    plan = Plan(
        request.plan_id, request.version, request.map, request.base, _names(request.without)
    )
    making = _topic_to_make(call.broker, request)
    return _answer(call.command, await call.broker.resizing.stop(request.topic, plan, making))


def _topic_to_make(broker: Broker, request: ResizeStop) -> TopicConfig | None:
    """Return the topic that the first map creates; None if it had queues here before."""
    if request.base and broker.config.name in counts_of(request.base):
        return None
    missing = request.topic not in broker.topics
    if missing and request.auto and not broker.config.auto_create_topics:
        raise TopicNotFound(
            f"topic[{request.topic}] not exist, and sends make no topics at this broker "
            "(autoCreateTopicEnable)"
        )
    config = TopicConfig(request.topic, perm=request.perm, order=request.order)
    if missing:
        check_topic(broker.topics, config)
    return config


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


async def open_next(call: Call[ResizeOpen]) -> Command:
    """Open the next version of a topic."""
    request = call.request
    view = await call.broker.resizing.open(
        request.topic, request.plan_id, request.version, empty=request.empty
    )
    return _answer(call.command, view)


async def go(call: Call[ResizeGo]) -> Command:
    """Make the plan of a topic final, so that all its brokers may open the next version."""
    request = call.request
    view = await call.broker.resizing.go(request.topic, request.plan_id, request.version)
    return _answer(call.command, view)


async def withdraw(call: Call[ResizeWithdraw]) -> Command:
    """Withdraw the plan of a resize."""
    return _answer(
        call.command, await call.broker.resizing.withdraw(call.request.topic, call.request.plan_id)
    )


async def status(call: Call[ResizeStatus]) -> Command:
    """Return what this broker knows of a topic's versions; the topic need not exist.

    The offsets behind a group's progress are on disk before the reply: others release the group by
    it.
    """
    broker, request = call.broker, call.request
    if request.group:
        _check_name(request.group)
        broker.resizing.track(request.topic, request.group)
    view = broker.resizing.view(request.topic, request.group)
    if request.group:
        await broker.offset_snapshot.saved()
    return _answer(call.command, view)


async def release(call: Call[ResizeRelease]) -> Command:
    """Let a group read a version of a topic."""
    request = call.request
    _check_name(request.group)
    await call.broker.resizing.release(
        request.topic,
        request.group,
        request.version,
        force=request.force,
        rewind_number=request.term,
    )
    return call.reply()


async def rewind(call: Call[ResizeRewind]) -> Command:
    """Pause or resume a rewound group at the request of another broker."""
    request = call.request
    _check_name(request.group)
    unmapped = any(not one.version for one in call.broker.resizing.view(request.topic).past)
    if not 0 < request.term <= REWIND_NUMBER_MAX or request.version < (0 if unmapped else 1):
        raise InvalidParameter(
            f"a group is not rewound to version {request.version} for the {request.term}th time"
        )
    rewinding = call.broker.resizing.rewinding
    if request.over:
        await rewinding.resume(request.topic, request.group, request.term)
    else:
        await rewinding.pause(request.topic, request.group, request.version, request.term)
    return call.reply()


def _check_name(group: str) -> None:
    """Refuse an invalid group name: groups that another broker asks about are remembered."""
    wrong = validate_group(group)
    if wrong is not None:
        raise InvalidParameter(wrong)


def _answer(command: Command, view: ResizeView) -> Command:
    return command.reply(fields={}, body=encode_resize_view(view))
