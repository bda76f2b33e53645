"""Queue locks; what is asked for stands in the bodies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inorder.wire.codes import RequestCode


@dataclass(frozen=True, slots=True)
class LockBatch:
    """Lock queues for a client; the body is a LockBatchBody, the answer LockedQueues."""

    CODE: ClassVar = RequestCode.LOCK_BATCH_MQ


@dataclass(frozen=True, slots=True)
class UnlockBatch:
    """Give queues back; the body is a LockBatchBody."""

    CODE: ClassVar = RequestCode.UNLOCK_BATCH_MQ
