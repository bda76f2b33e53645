"""What is lost or forgotten at a broker: told to whom it concerns, and how to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inorder.client.givingup import fail_waiting, predecessor_failed
from inorder.client.queuelane import QueueLane
from inorder.client.sending import Sending
from inorder.client.state.lane import Resolution
from inorder.errors import MessagesLost, OutcomeUnknown
from inorder.logs import get_logger
from inorder.wire.requests.sendframes import SendFields

if TYPE_CHECKING:
    from inorder.client.link import Link

log = get_logger(__name__)


def begin_again(link: Link, lane: QueueLane, lost: tuple[int, int] | None, new_id: str) -> None:
    """Report what is lost, and go on: under a new id, or, with a name, not at all."""
    if lost is not None:
        link.owner.lost += lost[1] - lost[0] + 1
        log.error(
            "messages lost producer=%s queue=%s numbers=%d..%d: they were acknowledged, and "
            "the broker has lost the end of its log",
            lane.producer_id, lane.queue, *lost,
        )  # fmt: skip
    else:
        log.warning(
            "forgotten producer=%s queue=%s: going on under a new id",
            lane.producer_id, lane.queue,
        )  # fmt: skip
    if link.owner.named:
        if lost is not None:
            lane.confirmed = lane.tail = lost[0] - 1
        lane.highest = lane.confirmed
        error = MessagesLost(
            f"{lane.queue} has nothing of producer {lane.producer_id} behind "
            f"{lane.confirmed}: messages that were acknowledged are lost; send again from there"
        )
        fail_waiting(link, lane, error)
        return
    for sending in lane.restart():
        link.owner.stored(sending, lane.queue, SendFields())
    lane.use_id(new_id)
    lane.ready = False


def resolved(
    link: Link, lane: QueueLane, found: Resolution[Sending], new_id: str | None = None
) -> None:
    """Tell callers what the broker's word means, and go on."""
    for sending in found.unvouched:
        link.owner.failed(
            sending,
            OutcomeUnknown(
                f"{lane.queue} knows nothing of producer {lane.producer_id} any more; this "
                "message may or may not be stored"
            ),
        )
    for sending in found.doomed:
        link.owner.failed(sending, predecessor_failed(sending, lane))
    if found.lost or found.forgotten:
        begin_again(link, lane, found.lost, new_id or link.owner.new_id())
    link.owner.lane_drained(lane)
