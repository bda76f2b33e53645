"""What a call of a handler came to, as hooks are told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from inorder.client.consume.hooks import HandleContext, Hooks
from inorder.client.consume.rules.outcomes import (
    Handled,
    Outcome,
    Reject,
    Retry,
    ReturnType,
    returned,
)
from inorder.model import ReceivedMessage, TopicQueue
from inorder.testing.clock import FakeClock

LATER, SUSPEND = "RECONSUME_LATER", Outcome.SUSPEND.value
QUEUE = TopicQueue("orders", "broker-a", 3)
MESSAGE = ReceivedMessage("orders", QUEUE, 7, b"", {}, "id", 0, 0)


@pytest.mark.parametrize(
    ("ordered", "result", "error", "spent_ms", "expected"),
    [
        (False, None, None, 0, ("CONSUME_SUCCESS", ReturnType.SUCCESS, True)),
        (False, "whatever", None, 0, ("CONSUME_SUCCESS", ReturnType.SUCCESS, True)),
        (False, Handled(2), None, 0, ("CONSUME_SUCCESS", ReturnType.SUCCESS, True)),
        (False, Handled(0), None, 0, (LATER, ReturnType.FAILED, False)),
        (False, Handled(1, ValueError()), None, 0, (LATER, ReturnType.EXCEPTION, False)),
        (False, Handled(1, Retry()), None, 0, (LATER, ReturnType.FAILED, False)),
        (False, Outcome.SUSPEND, None, 0, (LATER, ReturnType.FAILED, False)),
        (False, Outcome.ROLLBACK, None, 0, (LATER, ReturnType.FAILED, False)),
        (False, None, Retry(5), 0, (LATER, ReturnType.FAILED, False)),
        (False, None, Reject("no"), 0, (LATER, ReturnType.FAILED, False)),
        (False, None, ValueError(), 0, (LATER, ReturnType.EXCEPTION, False)),
        (False, None, None, 999, ("CONSUME_SUCCESS", ReturnType.SUCCESS, True)),
        (False, None, None, 1000, ("CONSUME_SUCCESS", ReturnType.TIME_OUT, True)),
        (False, Handled(0), None, 1000, (LATER, ReturnType.TIME_OUT, False)),
        (False, None, ValueError(), 1000, (LATER, ReturnType.EXCEPTION, False)),
        (True, None, None, 0, ("SUCCESS", ReturnType.SUCCESS, True)),
        (True, Handled(2), None, 0, ("SUCCESS", ReturnType.SUCCESS, True)),
        (True, Handled(1), None, 0, (SUSPEND, ReturnType.FAILED, False)),
        (True, Handled(1, ValueError()), None, 0, (SUSPEND, ReturnType.EXCEPTION, False)),
        (True, Outcome.COMMIT, None, 0, ("COMMIT", ReturnType.SUCCESS, True)),
        (True, Outcome.ROLLBACK, None, 0, ("ROLLBACK", ReturnType.SUCCESS, True)),
        (True, Outcome.SUSPEND, None, 0, (SUSPEND, ReturnType.FAILED, False)),
        (True, None, Retry(), 0, (SUSPEND, ReturnType.FAILED, False)),
        (True, None, ValueError(), 0, (SUSPEND, ReturnType.EXCEPTION, False)),
        (True, None, None, 1000, ("SUCCESS", ReturnType.TIME_OUT, True)),
    ],
)
def test_what_a_call_came_to(
    ordered: bool,
    result: object,
    error: BaseException | None,
    spent_ms: int,
    expected: tuple[str, ReturnType, bool],
) -> None:
    """RocketMQ's status and return type; its time limit is 1 s here."""
    found = returned(result, error, ordered=ordered, spent_ms=spent_ms, timeout_ms=1000, batch=2)
    assert found == expected


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, ("SUCCESS", ReturnType.RETURN_NULL, True)),  # taken, and nothing was committed
        (Outcome.SUCCESS, ("SUCCESS", ReturnType.SUCCESS, True)),
        (Outcome.ROLLBACK, ("ROLLBACK", ReturnType.FAILED, False)),
    ],
)
def test_a_handler_that_commits_by_itself_was_to_say_something(
    result: object, expected: tuple[str, ReturnType, bool]
) -> None:
    """With auto-commit off."""
    found = returned(result, None, ordered=True, auto_commit=False, spent_ms=0, timeout_ms=1000)
    assert found == expected


def play(hooks: Hooks, handler: Any, *, is_async: bool) -> Any:
    """Call a handler once, with hooks around it."""
    if not is_async:
        return hooks.around(handler, is_async=False, ordered=True, auto_commit=True)([MESSAGE])

    async def soon(batch: Any) -> Any:
        return handler(batch)

    call = hooks.around(soon, is_async=True, ordered=True, auto_commit=True)
    return asyncio.run(call([MESSAGE]))


@pytest.mark.parametrize("is_async", [False, True])
def test_hooks_get_the_context_of_their_call(is_async: bool) -> None:
    """Group, topic, queue, messages; afterwards what it came to, how long, and own notes."""
    seen: list[HandleContext] = []
    clock = FakeClock()

    def before(context: HandleContext) -> None:
        assert (context.status, context.return_type) == ("", None)
        context.notes["span"] = "begun"

    def handle(batch: Any) -> Outcome:
        clock.advance(30)
        return Outcome.COMMIT

    hooks = Hooks(before, seen.append, "billing", 1000, clock)
    assert play(hooks, handle, is_async=is_async) is Outcome.COMMIT
    (one,) = seen
    assert (one.group, one.topic, one.queue, one.messages) == (
        "billing", "orders", QUEUE, (MESSAGE,)
    )  # fmt: skip
    assert (one.status, one.return_type, one.success) == ("COMMIT", ReturnType.SUCCESS, True)
    assert (one.error, one.spent_ms, one.notes) == (None, 30, {"span": "begun"})


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_hook_that_raises_is_logged_and_decides_nothing(
    is_async: bool, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the handler does is what counts; the other hook is called, too."""
    calls: list[str] = []

    def before(context: HandleContext) -> None:
        calls.append("before")
        raise RuntimeError("a broken hook")

    def after(context: HandleContext) -> None:
        calls.append("after")
        raise RuntimeError("another one")

    def handle(batch: Any) -> str:
        calls.append("handle")
        if fails:
            raise ValueError("of the handler")
        return "done"

    hooks = Hooks(before, after, "billing", 1000, FakeClock())
    if fails:
        with pytest.raises(ValueError, match="of the handler"):
            play(hooks, handle, is_async=is_async)
    else:
        assert play(hooks, handle, is_async=is_async) == "done"
    assert calls == ["before", "handle", "after"]
    said = [record.getMessage() for record in caplog.records]
    assert [text.split()[0] for text in said] == ["before_handle", "after_handle"]
    assert "group=billing topic=orders" in said[0]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("wanted", [False, True])
def test_hooks_run_only_for_the_calls_that_they_are_for(wanted: bool, is_async: bool) -> None:
    """The handler runs either way; the question gets the messages of the call."""
    calls: list[str] = []
    hooks = Hooks(
        lambda _: calls.append("before"), lambda _: calls.append("after"), "billing", 1000,
        FakeClock(), when=lambda batch: bool(batch) and wanted,
    )  # fmt: skip

    def handle(_batch: object) -> str:
        calls.append("handle")
        return "done"

    assert play(hooks, handle, is_async=is_async) == "done"
    assert calls == (["before", "handle", "after"] if wanted else ["handle"])
