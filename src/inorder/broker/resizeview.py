"""What a broker tells others of a topic's versions, in answer to every request about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.broker.state.resizing import Plan, Versions
from inorder.wire.extensions import PROTOCOL
from inorder.wire.requests.resizing import ChapterView, PlanView, ResizeView

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.resizing import Resizing


def resize_view(broker: Broker, resizing: Resizing, topic: str, group: str) -> ResizeView:
    """Return what is known of a topic, also of one that is not there, and of one group or all."""
    config = broker.topics.get(topic)
    now = Versions() if config is None else resizing.versions(topic)
    names = (
        [group]
        if group
        else sorted(
            {*now.groups, *broker.offsets.groups_of(topic), *broker.members.subscribers(topic)}
        )
    )
    return ResizeView(
        broker.config.name,
        topic,
        now.version,
        now.map,
        resizing.last_version(topic),
        None if now.plan is None else _plan_view(now.plan),
        now.ends,
        now.opened,
        tuple(ChapterView(one.version, one.map, one.ends) for one in now.past),
        tuple(resizing.progress(topic, now, name) for name in names),
        0 if config is None else config.read_queues,
        0 if config is None else config.write_queues,
        now.going,
        now.withdrawn,
        PROTOCOL,
        resizing.is_empty(topic),
        resizing.is_making(topic) or (config is not None and resizing.is_bare(topic)),
        broker.config.auto_create_topics,
    )


def _plan_view(plan: Plan) -> PlanView:
    return PlanView(plan.id, plan.version, plan.map, plan.base, plan.without)
