"""Requests about queues that the broker shares out.

    QUERY_ASSIGNMENT (400)               a member asks for its queues of a topic
    SET_MESSAGE_REQUEST_MODE (401)       a group pulls or pops a topic
    GET_ALL_MESSAGE_REQUEST_MODE (402)   all modes

Why: decision 54.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.errors import GroupNotFound, NoPermission, TopicNotFound
from inorder.wire import fastjson
from inorder.wire.names import RETRY_PREFIX
from inorder.wire.requests.assignments import (
    AssignmentQuery,
    decode_mode,
    decode_query,
    encode_assignments,
)

if TYPE_CHECKING:
    from inorder.broker.router import Call, Reply
    from inorder.wire.header import Command


def query_assignment(call: Call[None]) -> Reply:
    """Answer with the queues of a member."""
    return _answer(call, decode_query(call.command.body))


async def _answer(call: Call[None], query: AssignmentQuery) -> Command:
    assignments = call.broker.assignments
    queues = await assignments.answer(query)
    mode = assignments.mode(query.topic, query.group).mode
    return call.reply(body=encode_assignments(queues, mode))


def set_request_mode(call: Call[None]) -> Command:
    """Set how a group works on a topic."""
    broker, mode = call.broker, decode_mode(call.command.body)
    if mode.topic.startswith(RETRY_PREFIX):
        raise NoPermission("retry topic is not allowed to set mode")
    if mode.topic not in broker.topics:
        raise TopicNotFound(f"topic[{mode.topic}] not exist")
    if broker.find_group(mode.group) is None:
        raise GroupNotFound("subscription group does not exist")
    broker.assignments.put(mode)
    return call.reply()


def get_request_modes(call: Call[None]) -> Command:
    """Answer with all modes."""
    return call.reply(body=fastjson.dumps(call.broker.assignments.modes.to_json()))
