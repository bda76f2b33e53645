"""The checks of `inorder doctor` about who may do what: open ports, certificates, users, rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from inorder.diagnosis.rules import BrokerFacts, Finding, Severity, is_loopback

DAY_MS: Final = 86_400_000
CERTIFICATE_DAYS: Final = 14


@dataclass(frozen=True, slots=True)
class UserFacts:
    """A user as some brokers know it; a user that brokers know differently is there twice."""

    name: str
    is_super: bool
    enabled: bool
    brokers: tuple[str, ...]


def check_open(brokers: Iterable[BrokerFacts]) -> Iterator[Finding]:
    """Find brokers that let other machines in without asking who they are."""
    known = [one for one in brokers if one.is_inorder]
    for one in known:
        if one.is_open and one.host and is_loopback(f"{one.host}:0") is not True:
            yield Finding(
                Severity.WARNING, f"broker {one.name}",
                f"it listens on {one.host} without authentication",
                "whoever reaches the port may read, write and delete",
                "make users and set access.level=enforce, ask clients for certificates, or listen "
                "on 127.0.0.1; the page `securing` has the steps",
            )  # fmt: skip
    levels = {one.access_level for one in known}
    if len(levels) > 1 and "enforce" in levels:
        for one in known:
            if one.access_level != "enforce":
                yield Finding(
                    Severity.WARNING, f"broker {one.name}",
                    "it lets everything pass, and other brokers of the cluster enforce rules",
                    "what a user may not do elsewhere is done here",
                    "set access.level=enforce there, too",
                )  # fmt: skip


def check_certificates(brokers: Iterable[BrokerFacts], now_ms: int) -> Iterator[Finding]:
    """Find certificates that end soon, and new ones that are not used."""
    for one in brokers:
        left_ms = one.tls_ends_ms - now_ms
        if one.tls_ends_ms and left_ms < CERTIFICATE_DAYS * DAY_MS:
            ended = left_ms <= 0
            yield Finding(
                Severity.BROKEN if ended else Severity.WARNING, f"broker {one.name}",
                "its certificate has ended" if ended
                else f"its certificate ends in {left_ms // DAY_MS} days",
                "clients that check it cannot connect" if ended
                else "from then on, clients that check it cannot connect",
                "replace the files of net.tls_certificate and net.tls_key; they count without a "
                "restart",
            )  # fmt: skip
        if one.tls_problem:
            yield Finding(
                Severity.WARNING, f"broker {one.name}", one.tls_problem,
                "the former certificate stays in force until it ends",
                "put a certificate and a key there that belong together",
            )  # fmt: skip


def check_users(
    users: Iterable[UserFacts], ruled: Iterable[str], brokers: Iterable[str]
) -> Iterator[Finding]:
    """Find users without rules, rules without users, and users that differ between brokers."""
    everywhere = frozenset(brokers)
    known: dict[str, list[UserFacts]] = {}
    for one in users:
        known.setdefault(one.name, []).append(one)
    rules = set(ruled)
    for name, views in sorted(known.items()):
        missing = sorted(everywhere.difference(*(one.brokers for one in views)))
        if len(views) > 1 or missing:
            what = (
                f"it is not known to {', '.join(missing)}" if missing
                else "brokers differ on whether it is enabled, or a super user"
            )  # fmt: skip
            yield Finding(
                Severity.WARNING, f"user {name}", what,
                "what it asks for succeeds at one broker and is refused at another",
                f"`inorder user get {name}`, then `inorder user create` or `update` it alike",
            )  # fmt: skip
        needs = any(one.enabled and not one.is_super for one in views)
        if needs and name not in rules:
            yield Finding(
                Severity.WARNING, f"user {name}", "it is enabled and has no rule",
                "every request that it signs is refused",
                f"`inorder acl set {name} ...` gives it one; else `inorder user delete {name}`",
            )  # fmt: skip
    for name in sorted(rules - set(known)):
        yield Finding(
            Severity.WARNING, f"user {name}", "there are rules for it, and no such user",
            "whoever makes a user of this name later has these rights at once",
            f"`inorder acl delete {name}`, or make the user",
        )  # fmt: skip
