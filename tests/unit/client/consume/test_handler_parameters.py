"""Handlers that cannot be called with what they get are refused when they are registered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from inorder.client.consume.hooks import Hooks
from inorder.client.consume.registrations import register
from inorder.errors import UsageError


class Service:
    """Ways to write a handler on an object."""

    def one(self, message: Any) -> None: ...

    def none(self) -> None: ...

    async def soon(self, message: Any) -> None: ...

    async def none_soon(self) -> None: ...

    @staticmethod
    def static(message: Any) -> None: ...


class Callee:
    def __call__(self, message: Any) -> None: ...


class CalleeWithout:
    async def __call__(self) -> None: ...


class Handles:
    def handle(self, message: Any) -> None: ...


class HandlesNothing:
    def handle(self) -> None: ...


class NeedsArguments:
    def __init__(self, database: Any) -> None: ...

    def handle(self, message: Any) -> None: ...


async def soon(message: Any) -> None: ...


async def none_soon() -> None: ...


def registered(handler: Any, batch: int = 1) -> Any:
    return register(
        "orders", handler, order=None, tag="*", concurrency=1, batch=batch, on_failure=None,
        auto_commit=True, hooks=Hooks(), version=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    "handler",
    [
        lambda message: None,
        lambda message, extra=1: None,
        lambda *messages: None,
        lambda message, **rest: None,
        soon,
        Service().one,
        Service().soon,
        Service.static,
        Callee(),
        Handles,
        Handles(),
        partial(lambda prefix, message: None, "x"),
        partial(lambda message, *, prefix: None, prefix="x"),
        [].append,
        print,
    ],
)
def test_what_takes_one_parameter_is_a_handler(handler: Callable[..., Any]) -> None:
    """Functions, methods, partials, objects, classes; others may have defaults."""
    assert registered(handler).topic == "orders"


@pytest.mark.parametrize(
    "handler",
    [
        lambda: None,
        lambda message, second: None,
        lambda message, *, needed: None,
        lambda *, message: None,
        none_soon,
        Service().none,
        Service().none_soon,
        Service.one,  # not bound: its self is missing
        CalleeWithout(),
        HandlesNothing,
        HandlesNothing(),
        NeedsArguments,
        partial(lambda message: None, "taken"),
    ],
)
def test_others_are_refused_with_what_to_write(handler: Callable[..., Any]) -> None:
    """None or two required parameters, required keywords; the topic is named."""
    with pytest.raises(UsageError, match="topic orders cannot be") as caught:
        registered(handler)
    assert "one parameter" in str(caught.value) or "give an object" in str(caught.value)


def test_a_handler_of_batches_is_told_that_it_gets_a_list() -> None:
    """So its author knows what the parameter is."""
    with pytest.raises(UsageError, match="a list of messages"):
        registered(lambda: None, batch=8)
