"""Leases of queues: take and renew, give back, commit, list, take away. See `wire/extensions.py`.

What is asked for and answered stands in the bodies (`wire/bodies/leases.py`). `instance` is a
random text of each consumer object: the owner is (client id, instance), so that the replacement of
a frozen process is a new owner, whatever its client id.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from inorder.wire.extensions import ExtensionCode
from inorder.wire.fields import Int32


class Lease(msgspec.Struct, frozen=True):
    """Take or renew queues of a group; the body is a LeaseBody, the answer's a LeaseAnswer."""

    CODE: ClassVar = ExtensionCode.LEASE

    group: str
    client_id: str
    instance: str
    lease_ms: int
    """How long a lease lasts without a renewal, 500 to 120,000."""
    grace_ms: int
    """What is left of it when the connection that renewed it last is closed; at most the lease."""


class Release(msgspec.Struct, frozen=True):
    """Commit and give a queue back, in one request; answered when it is durable by the flush mode.

    A repeat is answered like the first, as long as the broker remembers; else LEASE_LOST.
    """

    CODE: ClassVar = ExtensionCode.RELEASE

    group: str
    client_id: str
    instance: str
    topic: str
    queue_id: Int32
    epoch: int
    offset: int = -1
    """The offset to commit; -1 for none."""
    finished: str = ""
    """What is finished above it."""
    number: int = 0
    """The number of this commit; it grows within an epoch."""


class Commit(msgspec.Struct, frozen=True):
    """Commit queues under their epochs; it renews their leases. Body CommitBody, CommitAnswer."""

    CODE: ClassVar = ExtensionCode.COMMIT

    group: str
    client_id: str
    instance: str


class Leases(msgspec.Struct, frozen=True):
    """List leases, a page at a time; the answer's body is a LeasePage."""

    CODE: ClassVar = ExtensionCode.LEASES

    group: str = ""
    """Of this group alone; empty: of all."""
    after: str = ""
    """`next` of the page before."""


class LeaseFree(msgspec.Struct, frozen=True):
    """Take a queue away from its owner, by an operator's order."""

    CODE: ClassVar = ExtensionCode.LEASE_FREE

    group: str
    topic: str
    queue_id: Int32


class LeaseFreeReply(msgspec.Struct, frozen=True):
    """Who had it; empty if nobody did."""

    holder: str
    epoch: int
