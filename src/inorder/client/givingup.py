"""Telling callers that it will not be: their time is up, or their broker is gone for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.client.queuelane import QueueLane
from inorder.client.sending import Sending
from inorder.client.state.lane import DONE, UNSENT
from inorder.errors import (
    InorderError,
    OutcomeUnknown,
    PredecessorFailed,
    RequestTimeout,
    SendTimedOut,
)
from inorder.wire.requests.sendframes import SendFields

if TYPE_CHECKING:
    from inorder.client.delivery import Delivery
    from inorder.client.link import Link


def fail_all(link: Link, error: InorderError) -> None:
    """Give up everything that waits for this broker."""
    for lane in link.lanes.values():
        fail_waiting(link, lane, error)


def fail_waiting(link: Link, lane: QueueLane, error: InorderError) -> None:
    """Give up everything that waits for a queue; what is unknown is told to be so."""
    # From the end: of a name, those behind one that failed would be told that instead.
    for sending in reversed([*lane.sent, *lane.waiting, *lane.moved]):
        if sending.state != DONE:
            known = sending.state == UNSENT and not sending.in_doubt
            lane.abandon(sending)
            link.owner.failed(
                sending,
                error if known else OutcomeUnknown(f"{error}; nobody knows of this message"),
            )
    lane.moved.clear()


def fail_behind(owner: Delivery, sending: Sending) -> None:
    """Give up what a named producer has behind a message that failed and is not stored."""
    lane = sending.lane
    if lane is not None and sending.last > lane.confirmed:
        lane.may_come_again(sending)
        for behind in lane.doom(sending):
            owner.failed(behind, predecessor_failed(behind, lane))


def predecessor_failed(sending: Sending, lane: QueueLane) -> PredecessorFailed:
    """Return what the caller of a named producer is told of a message behind one that failed."""
    return PredecessorFailed(
        f"sequence {sending.number} of {lane.queue} was not stored, for one before it failed; send "
        "again from the first one that failed"
    )


def expire(link: Link, lane: QueueLane, sending: Sending) -> None:
    """Tell a caller that its time is up; the message keeps its number if it has one."""
    known = sending.state == UNSENT and not sending.in_doubt
    lane.abandon(sending)
    error: InorderError
    if sending.stored:
        link.owner.stored(sending, lane.queue, SendFields())  # only its receipt is missing
        return
    if not known:
        why = f" ({sending.failure})" if sending.failure is not None else ""
        error = SendTimedOut(
            f"broker {link.broker} did not answer a send in time{why}; the message may or may "
            "not be stored"
        )
    elif sending.failure is not None:
        error = sending.failure
    elif link.error is not None and link.connection is None:
        error = link.error
    elif sending.tries:
        error = RequestTimeout(f"no time was left for {lane.queue}; the message was not sent")
    else:
        error = RequestTimeout(
            f"earlier sends to topic {sending.topic} took all the time; this one was not sent"
        )
    link.owner.failed(sending, error)
