"""From a user's handler to an outcome, and back to bytes: what a handler may say.

    return state, [row, …]     done; the key's state is `state` from now on, None forgets it
    return None                done; the state stays as it is, no rows
    raise Retry(after=30)      again later, before anything else of this key
    raise anything else        a failed attempt: again later; after too many a dead letter, or
                               its key is set aside

States are kept as msgpack: whatever is made of dicts, lists, strings, bytes, numbers, datetimes;
or a dataclass or a msgspec.Struct if its type is given. A type that gains fields with defaults
reads what was kept before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from inorder.client.consume.rules.outcomes import Retry
from inorder.errors import UsageError
from inorder.spark.state.lines import Again, Done, Handle
from inorder.spark.state.messages import OrderedMessage

Handler = Callable[[OrderedMessage, Any], Any]

_SAYS = "a handler returns (state, rows) or None"


class BadResult(UsageError):
    """The handler returned what nobody can keep; the query stops."""


def adapted(handler: Handler, columns: Sequence[str], state_type: Any = Any) -> Handle:
    """Return the handler as the rules call it: states are bytes, rows are tuples in order."""
    encode = msgspec.msgpack.Encoder().encode
    decode = msgspec.msgpack.Decoder(state_type).decode
    known = frozenset(columns)
    wide = len(columns)
    kept = Done(keep=True)

    def row(value: Any) -> tuple[object, ...]:
        if type(value) is tuple and len(value) == wide:
            return value
        if isinstance(value, dict):
            if not value.keys() <= known:
                unknown = sorted(value.keys() - known)[0]
                raise BadResult(f"a row has no column {unknown!r}; there are {', '.join(columns)}")
            return tuple(map(value.get, columns))
        if not isinstance(value, tuple | list) or len(value) != wide:
            raise BadResult(
                f"{str(value)[:80]!r} is no row: give a dict or a tuple of {', '.join(columns)}"
            )
        return tuple(value)

    def handle(message: OrderedMessage, state: bytes | None) -> Done | Again:
        # hot: 0.8 us beside the handler.
        try:
            result = handler(message, None if state is None else decode(state))
        except Retry as retry:
            return Again(retry.after_ms, str(retry), failed=False)
        except Exception as error:  # the handler is the user's
            return Again(None, f"{type(error).__name__}: {error}")
        if result is None:
            return kept
        if type(result) is not tuple or len(result) != 2:
            raise BadResult(f"{str(result)[:80]!r}: {_SAYS}")
        new, rows = result
        try:
            data = None if new is None else encode(new)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadResult(f"a state cannot be kept: {error}") from None
        return Done(data, [row(one) for one in rows] if rows else ())

    return handle
