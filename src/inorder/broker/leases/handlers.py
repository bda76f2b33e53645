"""Requests about leases: take (7120), release (7121), commit (7122), list (7123), free (7124).

`service.py` grants and journals leases; `rules.py` decides. Decisions 15 and 17 give the reasons.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

import msgspec

from inorder.broker.leases.rules import NOBODY, Owner, Terms
from inorder.errors import GroupNotFound, InvalidParameter
from inorder.logs import get_logger
from inorder.model import GroupQueue
from inorder.wire.fields import encode_fields
from inorder.wire.requests.leases import (
    FINISHED_CHARS_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    PAGE_MAX,
    Commit,
    CommitBody,
    HeldLease,
    Lease,
    LeaseBody,
    LeaseFree,
    LeaseFreeReply,
    LeasePage,
    Leases,
    QueueCommit,
    Release,
)
from inorder.wire.shapes import BODY_NAME_CHARS_MAX

if TYPE_CHECKING:
    from inorder.broker.broker import Broker
    from inorder.broker.router import Call, Reply
    from inorder.wire.header import Command

logger = get_logger(__name__)

INSTANCE_CHARS_MAX: Final = 64


def lease(call: Call[Lease]) -> Reply:
    """Grant, renew or refuse queues to an inorder client.

    If another owner holds one of them past its deadline, the broker first reads pending input.
    """
    broker, request = call.broker, call.request
    wishes = LeaseBody.decode(call.command.body).queues
    owner = _owner(request.client_id, request.instance)
    if not LEASE_MS_MIN <= request.lease_ms <= LEASE_MS_MAX:
        raise InvalidParameter(
            f"a lease of {request.lease_ms} ms: it may be {LEASE_MS_MIN} to {LEASE_MS_MAX} ms"
        )
    if request.grace_ms < 0:
        raise InvalidParameter(f"a grace of {request.grace_ms} ms is below 0")
    if broker.find_group(request.group) is None:
        raise GroupNotFound(f"Group {request.group} does not exist")
    terms = Terms(request.lease_ms, min(request.grace_ms, request.lease_ms))

    def answer() -> Command:
        found = broker.lease_service.lease(request.group, owner, terms, wishes, call.connection)
        return call.reply(fields={}, body=found.encode())

    async def answer_later() -> Command:
        await broker.lease_expiry.check()
        return answer()

    keys = [GroupQueue(request.group, one.topic, one.queue_id) for one in wishes]
    if broker.lease_expiry.is_overdue(keys, owner):
        return answer_later()
    return answer()


def release(call: Call[Release]) -> Reply:
    """Commit and release a queue; the next owner is notified as soon as that is safe."""
    request = call.request
    owner = _owner(request.client_id, request.instance)
    if len(request.finished) > FINISHED_CHARS_MAX:
        raise InvalidParameter(f"a map of {len(request.finished)} characters is too long")
    one = QueueCommit(
        request.topic, request.queue_id, request.epoch, request.number, request.offset,
        request.finished,
    )  # fmt: skip
    finish = call.broker.lease_service.release(request.group, owner, one)
    if finish is None:
        return call.reply(fields={})
    return _answer_after(finish, call.reply(fields={}))


async def _answer_after(work: Coroutine[Any, Any, None], answer: Command) -> Command:
    await work
    return answer


def commit(call: Call[Commit]) -> Reply:
    """Take the commits of an inorder client; reply when they are safe by the flush mode."""
    broker, request = call.broker, call.request
    owner = _owner(request.client_id, request.instance)
    commits = CommitBody.decode(call.command.body).commits
    found = broker.lease_service.commit(request.group, owner, commits, call.connection)
    answer = call.reply(fields={}, body=found.encode())
    if broker.config.store.sync_flush:
        return _answer_after(broker.lease_journal.settled(), answer)
    return answer


def _owner(client_id: str, instance: str) -> Owner:
    if not 0 < len(client_id) <= BODY_NAME_CHARS_MAX:
        raise InvalidParameter(f"an owner has a client id of 1 to {BODY_NAME_CHARS_MAX} characters")
    if not 0 < len(instance) <= INSTANCE_CHARS_MAX or not instance.isalnum():
        raise InvalidParameter(
            f"an owner has an instance of 1 to {INSTANCE_CHARS_MAX} letters and digits"
        )
    return Owner(client_id, instance)


def list_leases(call: Call[Leases]) -> Command:
    """List the owners of queues, one page at a time, sorted."""
    broker, request = call.broker, call.request
    after = _after(request.after)
    open_ids = {member.id for member in broker.server.connections}
    found: list[HeldLease] = []
    last = after
    for group in [request.group] if request.group else sorted(broker.leases.groups()):
        if group < after[0]:
            continue
        for key in sorted(broker.leases.held(group)):
            place = (group, key.topic, broker.config.name, key.queue_id)
            if place <= after:
                continue
            if len(found) == PAGE_MAX:
                return _page(call.command, found, last)
            found.append(_shown(broker, key, open_ids))
            last = place
    return _page(call.command, found, None)


def _after(text: str) -> tuple[str, str, str, int]:
    if not text:
        return ("", "", "", -1)
    try:
        return msgspec.json.decode(text, type=tuple[str, str, str, int])
    except (msgspec.MsgspecError, UnicodeError):
        raise InvalidParameter(f"after={text[:80]!r} is not the `next` of a page") from None


def _page(
    command: Command, found: list[HeldLease], last: tuple[str, str, str, int] | None
) -> Command:
    following = "" if last is None else msgspec.json.encode(last).decode()
    return command.reply(fields={}, body=LeasePage(found, following).encode())


def _shown(broker: Broker, key: GroupQueue, open_ids: set[int]) -> HeldLease:
    lease = broker.leases.get(key)
    assert lease is not None, "it was listed a moment ago"
    now_ms = broker.clock.monotonic_ms()
    nobody = lease.owner == NOBODY
    return HeldLease(
        key.group,
        key.topic,
        key.queue_id,
        lease.client_id,
        # Who knows the instance could speak for the owner.
        "" if nobody or broker.guard is not None else lease.owner.instance,
        lease.epoch,
        now_ms - lease.granted_ms,
        max(0, lease.expires_ms - now_ms),
        lease.lease_ms,
        lease.terms.grace_ms,
        stock=lease.owner.is_rocketmq,
        connected=lease.connection in open_ids,
        waiting=[owner.client_id for owner in broker.leases.waiting(key)],
        recalled=lease.is_revoked,
    )


def free(call: Call[LeaseFree]) -> Command:
    """Force the release of a queue; for operators."""
    request = call.request
    key = GroupQueue(request.group, request.topic, request.queue_id)
    holder, epoch = call.broker.lease_service.force_release(key)
    if holder:
        logger.warning(
            "a queue was released by force group=%s topic=%s queue=%d holder=%s peer=%s",
            *key, holder, call.connection.peer,
        )  # fmt: skip
    return call.reply(fields=encode_fields(LeaseFreeReply(holder, epoch)))
