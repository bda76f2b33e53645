"""SEND_REPLY_MESSAGE (324) and SEND_REPLY_MESSAGE_V2 (325): the reply to a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.wire.requests.sends import SendMessage

if TYPE_CHECKING:
    from inorder.broker.router import Call, Reply


def send_reply(call: Call[None]) -> Reply:
    """Push a reply to the client that asked, and store it."""
    request = SendMessage.from_fields(call.command.code, call.command.fields)
    return call.broker.replies.take(call.connection, call.command, request)
