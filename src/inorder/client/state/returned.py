"""What a call of a handler came to, in RocketMQ's words: for hooks.

    the handler                           status (ordered, or without order)     return type
    returns                               SUCCESS, CONSUME_SUCCESS               SUCCESS
    returns nothing, auto-commit is off   SUCCESS                                RETURN_NULL
    returns an Outcome                    that one                               SUCCESS or FAILED
    raises Retry or Reject, Handled(0)    SUSPEND…, RECONSUME_LATER              FAILED
    raises anything else                  SUSPEND…, RECONSUME_LATER              EXCEPTION
    took as long as its time limit        as above                               TIME_OUT, unless it
                                                                                 raised

To return nothing is to be done, unlike in RocketMQ. Only a handler that commits by itself was to
say something.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from inorder.client.policies import Handled, Outcome, Reject, Retry
from inorder.client.state.ordered import is_failure

CONSUME_SUCCESS: Final = "CONSUME_SUCCESS"
RECONSUME_LATER: Final = "RECONSUME_LATER"


class ReturnType(Enum):
    """How a call of a handler ended; RocketMQ's ConsumeReturnType."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"
    EXCEPTION = "EXCEPTION"
    RETURN_NULL = "RETURNNULL"
    FAILED = "FAILED"


class Returned(NamedTuple):
    """What a call came to."""

    status: str
    return_type: ReturnType
    success: bool


def returned(
    result: object,
    error: BaseException | None,
    *,
    ordered: bool,
    auto_commit: bool = True,
    spent_ms: int,
    timeout_ms: int,
) -> Returned:
    """Say what a call came to that returned `result`, or raised `error`, after so long."""
    outcome = _outcome(result, error, ordered=ordered)
    failed = is_failure(outcome, auto_commit=auto_commit and ordered)
    if ordered:
        status = outcome.value
    else:
        status = RECONSUME_LATER if failed else CONSUME_SUCCESS
    if error is not None and not isinstance(error, Retry | Reject):
        kind = ReturnType.EXCEPTION
    elif error is None and result is None and not auto_commit:
        kind = ReturnType.RETURN_NULL
    elif spent_ms >= timeout_ms:
        kind = ReturnType.TIME_OUT
    else:
        kind = ReturnType.FAILED if failed else ReturnType.SUCCESS
    return Returned(status, kind, not failed)


def _outcome(result: object, error: BaseException | None, *, ordered: bool) -> Outcome:
    if error is not None or (not ordered and isinstance(result, Handled) and not result.count):
        return Outcome.SUSPEND
    return result if isinstance(result, Outcome) else Outcome.SUCCESS
