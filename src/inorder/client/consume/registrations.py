"""The user's handlers by topic: checks of `on(...)`, and how each handler is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from inorder.client.consume.hooks import Hooks
from inorder.client.consume.rules.keyed import Keyless, KeyOf
from inorder.client.consume.rules.outcomes import (
    DeadLetter,
    Policy,
    check_policy,
    default_policy,
    redeliveries_max,
)
from inorder.client.consume.rules.pulls import subscription_of
from inorder.client.consume.workers import Batch, Call, is_async
from inorder.errors import UsageError
from inorder.logs import get_logger
from inorder.model import ReceivedMessage, Subscription
from inorder.wire.names import GROUP_PREFIXES
from inorder.wire.requests.pulls import parse_subscription

log = get_logger(__name__)

Handler = TypeVar("Handler", bound=Callable[..., Any])
Order = Literal["queue", "key"] | None

BATCH_MAX: Final = 1024
CONCURRENCY_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class HandlerRegistration:
    """One topic and its handler."""

    subscription: Subscription
    ordered: bool
    concurrency: int
    batch: int
    policy: Policy
    auto_commit: bool
    call: Call
    is_async: bool
    key_of: KeyOf | None = None
    """With order="key": returns the key of a message."""
    keyless: Keyless = "barrier"

    @property
    def topic(self) -> str:
        """Return the topic."""
        return self.subscription.topic

    @property
    def redeliveries_max(self) -> int:
        """Return how often a message is handed out again, by the policy."""
        return redeliveries_max(self.policy)


def register(
    topic: str,
    handler: Any,
    *,
    order: Order,
    tag: str,
    concurrency: int,
    batch: int,
    on_failure: Policy | None,
    auto_commit: bool,
    hooks: Hooks,
    version: int,
    sql: str | None = None,
    key_of: str | KeyOf | None = None,
    keyless: Keyless = "barrier",
) -> HandlerRegistration:
    """Check a handler and its options. Raises UsageError, SubscriptionParseFailed."""
    if order not in ("queue", "key", None):
        raise UsageError(f"order={order!r}: write order='key', order='queue' or order=None")
    if order != "key" and (key_of is not None or keyless != "barrier"):
        raise UsageError("key_of= and keyless= are for order='key'")
    if keyless not in ("barrier", "concurrent"):
        raise UsageError(f"keyless={keyless!r}: write 'barrier' or 'concurrent'")
    if not topic or topic.startswith(GROUP_PREFIXES):
        raise UsageError(
            f"topic {topic!r} cannot be consumed by a handler; retries of a group come by "
            "themselves, dead letters are read with a PullConsumer"
        )
    _check_range("batch", batch, BATCH_MAX)
    _check_range("concurrency", concurrency, CONCURRENCY_MAX)
    policy = default_policy(order) if on_failure is None else on_failure
    check_policy(policy, order)
    if not auto_commit and order != "queue":
        raise UsageError(
            "auto_commit=False is for order='queue'; otherwise messages are done one by one"
        )
    function = _callable(handler, topic)
    _check_parameters(function, topic, batch)
    return HandlerRegistration(
        subscription_of(topic, tag, sql, version),
        order is not None,
        concurrency,
        batch,
        policy,
        auto_commit,
        hooks.around(
            _batch_call(function, single=batch == 1),
            is_async=is_async(function),
            ordered=order is not None,
            auto_commit=auto_commit,
        ),
        is_async(function),
        _key_function(key_of) if order == "key" else None,
        keyless,
    )


def _key_function(key_of: str | KeyOf | None) -> KeyOf:
    """Return the key function: the message's own key, a property, or the user's function."""
    if key_of is None:
        return lambda message: message.key
    if isinstance(key_of, str):
        return lambda message: message.properties.get(key_of)

    def safely(message: ReceivedMessage) -> str | None:
        try:
            found = key_of(message)
            return None if found is None else str(found)
        except Exception:
            # The user's code, called before any handler: the message counts as one without a key.
            log.exception("key_of failed topic=%s offset=%d", message.topic, message.offset)
            return None

    return safely


def fallback(topic: str) -> HandlerRegistration:
    """Return a handler that fails, for retries of a topic that has no handler here."""

    async def refuse(_: Batch) -> None:
        raise UsageError(
            f"a message of topic {topic} came back to its group, but this consumer has no handler "
            "for that topic; let all consumers of a group subscribe the same topics"
        )

    subscription = parse_subscription(topic, "*")
    return HandlerRegistration(subscription, False, 1, 1, DeadLetter(), True, refuse, True)


def _check_parameters(function: Callable[..., Any], topic: str, batch: int) -> None:
    """Raise UsageError if the handler cannot be called with one argument."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return  # some C functions have no signature
    try:
        signature.bind(None)
    except TypeError as error:
        what = "a list of messages" if batch > 1 else "the message"
        name = getattr(function, "__qualname__", type(function).__name__)
        raise UsageError(
            f"the handler {name}{signature} of topic {topic} cannot be called with {what} alone "
            f"({error}); write it with one parameter, def {getattr(function, '__name__', 'handle')}"
            f"({'messages' if batch > 1 else 'message'})"
        ) from None


def _callable(handler: Any, topic: str) -> Callable[..., Any]:
    """Return the function of a handler: itself, or `handle` of an object or a new instance."""
    if isinstance(handler, type):
        try:
            handler = handler()
        except TypeError as error:
            raise UsageError(
                f"the handler class {handler.__name__} of topic {topic} cannot be made without "
                f"arguments ({error}); give an object of it"
            ) from error
    method = getattr(handler, "handle", None)
    found = method if callable(method) else handler
    if not callable(found):
        raise UsageError(f"{handler!r} is no handler: give a function, or an object with handle()")
    result: Callable[..., Any] = found
    return result


def _batch_call(function: Callable[..., Any], *, single: bool) -> Call:
    """Return a function of a batch that calls the handler with a message or with a list."""

    def call(batch: Batch) -> Any:
        return function(batch[0]) if single else function(list(batch))

    return call


def _check_range(name: str, value: int, limit: int) -> None:
    if not 1 <= value <= limit:
        raise UsageError(f"{name}={value}: give 1 to {limit}")
