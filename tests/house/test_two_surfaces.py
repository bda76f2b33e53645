"""The blocking client and the async one are the same to a reader: names, parameters, results."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import inorder
import inorder.aio
import inorder.testing
from inorder.client import admin as async_nouns
from inorder.sync import admin as nouns
from inorder.sync.producer import Transaction

PAIRS = [
    pytest.param(inorder.Admin, inorder.aio.Admin, id="Admin"),
    *(
        pytest.param(getattr(nouns, name), getattr(async_nouns, name), id=name)
        for name in (
            "Cluster",
            "Topics",
            "Groups",
            "Offsets",
            "Messages",
            "Locks",
            "Parked",
            "Producers",
            "Users",
            "Acls",
        )
    ),
    pytest.param(
        inorder.testing.RunningBroker, inorder.testing.AsyncRunningBroker, id="RunningBroker"
    ),
    pytest.param(inorder.Producer, inorder.aio.Producer, id="Producer"),
    pytest.param(Transaction, inorder.aio.Transaction, id="Transaction"),
    pytest.param(inorder.Consumer, inorder.aio.Consumer, id="Consumer"),
    pytest.param(inorder.PullConsumer, inorder.aio.PullConsumer, id="PullConsumer"),
]
BLOCKING_OF = {pair.values[1]: pair.values[0] for pair in PAIRS}
# The protocols of Python that differ by their nature.
TWINS = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}
OWN = {"__del__"}  # who forgets to close a blocking client is told so
# A noun is made by its Admin. Requests to a single broker belong to the event loop.
# A blocking `send_nowait` waits for room by itself; on an event loop that is `await submit(...)`.
# A transaction is made by its producer, and ends by the block.
INSIDE = {
    "Cluster": {"__init__", "api", "each"},
    "Producer": {"submit"},
    "Transaction": {"__init__", "begin", "leave"},
} | {
    name: {"__init__"}
    for name in (
        "Topics",
        "Groups",
        "Offsets",
        "Messages",
        "Locks",
        "Parked",
        "Producers",
        "Users",
        "Acls",
    )
}

# A Session belongs to an event loop, so the blocking client takes an address only.
ADDRESS = {"namesrv"}


def surface(cls: type) -> dict[str, Any]:
    """Return what a class offers, under the names of the blocking side."""
    return {
        TWINS.get(name, name): value
        for name, value in vars(cls).items()
        if inspect.isfunction(value) and (not name.startswith("_") or name.startswith("__"))
        if name not in INSIDE.get(cls.__name__, ())
    }


def shape(function: Any) -> list[tuple[str, Any, Any]]:
    """Return name, kind and default of each parameter."""
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def blocking(function: Any, hint: Any) -> Any:
    """Return what the blocking twin must return."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is AsyncIterator:
        return Iterator[arguments[0]]  # type: ignore[valid-type]
    if origin is asyncio.Future:
        return Future[arguments[0]]  # type: ignore[valid-type]
    return hint


@pytest.mark.parametrize(("blocking_class", "async_class"), PAIRS)
def test_both_offer_the_same_methods(blocking_class: type, async_class: type) -> None:
    """What one can do the other can."""
    assert set(surface(blocking_class)) - OWN == set(surface(async_class))


@pytest.mark.parametrize(("blocking_class", "async_class"), PAIRS)
def test_signatures_agree(blocking_class: type, async_class: type) -> None:
    """Same parameters, same defaults, same types; same results, awaited."""
    theirs = surface(async_class)
    for name, function in surface(blocking_class).items():
        if name in OWN:
            continue
        twin = theirs[name]
        assert shape(function) == shape(twin), name
        hints, twin_hints = typing.get_type_hints(function), typing.get_type_hints(twin)
        result, twin_result = hints.pop("return"), twin_hints.pop("return")
        for parameter in ADDRESS & hints.keys():
            assert hints.pop(parameter) == str | None
            assert typing.get_args(twin_hints.pop(parameter)) == (
                str, inorder.aio.Session, type(None),
            )  # fmt: skip
        assert hints == twin_hints, name
        expected = blocking(twin, twin_result)
        assert result == BLOCKING_OF.get(twin_result, expected), name


@pytest.mark.parametrize(("blocking_class", "async_class"), PAIRS)
def test_documentation_agrees(blocking_class: type, async_class: type) -> None:
    """Every public method says what it does, and both say the same in their first line."""
    theirs = surface(async_class)
    for name, function in surface(blocking_class).items():
        if name.startswith("_"):
            continue
        first = (function.__doc__ or "").splitlines()[0].split(",")[0]
        assert first, name
        assert first == (theirs[name].__doc__ or "").splitlines()[0].split(",")[0], name
