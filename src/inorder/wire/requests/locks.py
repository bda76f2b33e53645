"""Queue locks; what is asked for stands in the bodies."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from inorder.wire.codes import RequestCode


class LockBatch(msgspec.Struct, frozen=True):
    """Lock queues for a client; the body is a LockBatchBody, the answer LockedQueues."""

    CODE: ClassVar = RequestCode.LOCK_BATCH_MQ


class UnlockBatch(msgspec.Struct, frozen=True):
    """Give queues back; the body is a LockBatchBody."""

    CODE: ClassVar = RequestCode.UNLOCK_BATCH_MQ
