"""The checks of `inorder doctor`: facts in, findings out.

A finding says how bad it is, what is the case, why that matters, and what to do. Each check is a
function of its own. `cli/doctor.py` gathers the facts; what could not be asked is a finding, too.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

SKEW_MS: Final = 1000
DISK_WARNING: Final = 0.75
DISK_BROKEN: Final = 0.90
FILES_MIN: Final = 4096
PARKED_LONG_MS: Final = 3_600_000
LAG_OLD_MS: Final = 300_000


class Severity(StrEnum):
    """How bad a finding is."""

    INFO = "info"
    WARNING = "warning"
    BROKEN = "broken"


EXIT_CODES: Final = {Severity.INFO: 0, Severity.WARNING: 1, Severity.BROKEN: 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a person should know, and what to do about it."""

    severity: Severity
    about: str
    """Which broker, group, topic or machine."""
    what: str
    why: str
    todo: str


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What is known of one broker."""

    name: str
    cluster: str
    address: str
    error: str = ""
    """Why it did not answer; empty if it did."""
    is_inorder: bool = False
    skew_ms: int | None = None
    """Its clock minus the clock here; None: it does not tell."""
    disk_ratio: float | None = None
    files_max: int | None = None
    writable: bool = True
    losses: int = 0
    unsupported: Mapping[int, int] = field(default_factory=dict)
    """Requests by codes that it does not serve."""
    host: str = ""
    """The address that it listens on; empty: it does not tell."""
    is_open: bool = False
    """Whoever reaches its port may do everything."""
    access_level: str = ""
    """`log` or `enforce`; empty: it has no users."""
    tls_problem: str = ""
    tls_ends_ms: int = 0
    """Until when its certificate is valid; 0: it has none from a file."""


@dataclass(frozen=True, slots=True)
class OldestFacts:
    """The oldest message that a group has not finished."""

    topic: str
    queue: str
    """Broker and number."""
    offset: int
    key: str | None
    age_ms: int
    behind: int
    """Messages of the queue from this one on."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What is known of one topic with key maps."""

    name: str
    maps: Mapping[str, str]
    """The key maps of the highest version, in words, by broker."""
    missing: tuple[str, ...] = ()
    """Brokers of its maps that do not have it."""
    planned: str = ""
    """The resize under way, in words."""
    away: tuple[str, ...] = ()
    """Brokers that do not answer about the resize."""
    waiting: tuple[tuple[str, int, bool], ...] = ()
    """Groups that read an older version, their messages left, and whether they have members."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What is known of one group."""

    name: str
    members: int
    lag: int
    differences: tuple[str, ...] = ()
    """Topics that its members subscribe differently, each in words."""
    broadcasting: bool = False
    versions: tuple[str, ...] = ()
    """The clients of its members: language and version."""
    locked: int = 0
    """Queues with an owner."""
    oldest: OldestFacts | None = None
    """The message that waits longest, of those that were looked at."""


@dataclass(frozen=True, slots=True)
class ParkedFacts:
    """What is known of one parked key."""

    group: str
    topic: str
    queue: int
    key: str
    messages: int
    age_ms: int
    redriving: bool = False
    last_error: str = ""


def worst(findings: Iterable[Finding]) -> int:
    """Return the exit code of some findings."""
    return max((EXIT_CODES[one.severity] for one in findings), default=0)


def is_loopback(address: str) -> bool | None:
    """Return whether a host is this machine alone; None: it is a name."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return None


def _is_anywhere(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def check_presence(brokers: Iterable[BrokerFacts]) -> Iterator[Finding]:
    """Find a cluster without brokers."""
    if not list(brokers):
        yield Finding(
            Severity.BROKEN, "cluster", "no broker is registered with the name servers",
            "clients find no queue, and every send fails",
            "start a broker with --namesrv, and look at its log for `registered`",
        )  # fmt: skip


def check_addresses(namesrv: str, brokers: Iterable[BrokerFacts]) -> Iterator[Finding]:
    """Find brokers that announce an address which clients cannot reach."""
    servers = [one for one in namesrv.replace(",", ";").split(";") if one]
    elsewhere = [one for one in servers if is_loopback(one) is False]
    for one in brokers:
        if _is_anywhere(one.address):
            yield Finding(
                Severity.BROKEN, f"broker {one.name}", f"it announces {one.address}",
                "that is the address to listen on, and no address to come to",
                "set advertised_host to an address that clients reach",
            )  # fmt: skip
        elif one.error:
            yield Finding(
                Severity.BROKEN, f"broker {one.name}",
                f"its address {one.address} does not answer from here: {one.error}",
                "clients on this machine cannot send to it or read from it",
                "is it up? else set advertised_host, or open the way through the firewall",
            )  # fmt: skip
        elif elsewhere and is_loopback(one.address):
            yield Finding(
                Severity.WARNING, f"broker {one.name}",
                f"it announces {one.address}, and the name server {elsewhere[0]} is no loopback",
                "clients on other machines would look for the broker on their own",
                "set advertised_host to an address of its machine",
            )  # fmt: skip


def check_names(brokers: Iterable[BrokerFacts]) -> Iterator[Finding]:
    """Find addresses that two broker names share: one of them is left over."""
    seen: dict[str, str] = {}
    for one in brokers:
        other = seen.setdefault(one.address, one.name)
        if other != one.name:
            yield Finding(
                Severity.WARNING, f"broker {one.name}",
                f"it has the address of {other}, {one.address}",
                "one of them is not there any more, and its keys find no queue",
                "if a broker was renamed, give it its old name back, or resize its topics",
            )  # fmt: skip


def check_clocks(brokers: Iterable[BrokerFacts]) -> Iterator[Finding]:
    """Find brokers whose clocks differ from the one here."""
    for one in brokers:
        if one.skew_ms is not None and abs(one.skew_ms) > SKEW_MS:
            side = "ahead of" if one.skew_ms > 0 else "behind"
            yield Finding(
                Severity.WARNING, f"broker {one.name}",
                f"its clock is {abs(one.skew_ms) / 1000:.1f} s {side} the clock here",
                "resets by time, ages and messages for a time of day are off by as much",
                "let NTP keep both clocks",
            )  # fmt: skip


def check_disks(brokers: Iterable[BrokerFacts]) -> Iterator[Finding]:
    """Find disks that fill, and brokers that take no messages."""
    for one in brokers:
        if not one.writable:
            yield Finding(
                Severity.BROKEN, f"broker {one.name}", "it takes no messages",
                "sends fail, also those of other keys; reads go on",
                "its log says why: a full disk, or one that failed",
            )  # fmt: skip
        if one.disk_ratio is not None and one.disk_ratio >= DISK_WARNING:
            severity = Severity.BROKEN if one.disk_ratio >= DISK_BROKEN else Severity.WARNING
            yield Finding(
                severity, f"broker {one.name}", f"{one.disk_ratio:.0%} of its disk are used",
                "above 75 % old messages go at any hour, above 90 % sends are refused",
                "add room, or shorten store.retention_hours",
            )  # fmt: skip
        if one.losses:
            yield Finding(
                Severity.BROKEN, f"broker {one.name}", f"it found {one.losses} losses of messages",
                "acknowledged messages are gone, or what a damaged file said",
                "`inorder cluster losses` lists them",
            )  # fmt: skip


def check_limits(brokers: Iterable[BrokerFacts], files_here: int) -> Iterator[Finding]:
    """Find limits of open files that are too low for a server."""
    places = [(f"broker {one.name}", one.files_max) for one in brokers]
    for about, limit in [*places, ("this machine", files_here)]:
        if limit is not None and limit < FILES_MIN:
            severity = Severity.INFO if about == "this machine" else Severity.WARNING
            yield Finding(
                severity, about, f"a process may open {limit} files and connections",
                "a broker with many clients or queues closes new connections at that limit",
                "raise it: ulimit -n 65536, or LimitNOFILE= of systemd",
            )  # fmt: skip


def check_unsupported(
    brokers: Iterable[BrokerFacts], names: Mapping[int, str]
) -> Iterator[Finding]:
    """Find clients that ask for what is not served."""
    for one in brokers:
        for code, count in sorted(one.unsupported.items()):
            yield Finding(
                Severity.WARNING, f"broker {one.name}",
                f"clients sent {count} requests with code {code} ({names.get(code, 'unknown')})",
                "this broker does not serve it, so something that a client wants does not happen",
                "its log names the clients, once a minute; the page `compatibility` has the codes",
            )  # fmt: skip


def check_groups(groups: Iterable[GroupFacts]) -> Iterator[Finding]:
    """Find groups that have messages and nobody to handle them, or that disagree."""
    for one in groups:
        if one.lag and not one.members and not one.broadcasting:
            yield Finding(
                Severity.WARNING, f"group {one.name}",
                f"{one.lag} messages wait, and it has no member",
                "nobody handles them, and retention deletes them one day",
                f"start a consumer, or `inorder group delete {one.name}`",
            )  # fmt: skip
        if one.differences:
            yield Finding(
                Severity.BROKEN, f"group {one.name}",
                "its members subscribe differently: " + "; ".join(one.differences),
                "a queue goes to members that do not want its messages: these are skipped for good",
                "give all members of the group the same topics, tags and filters",
            )  # fmt: skip
        if len(one.versions) > 1:
            yield Finding(
                Severity.INFO, f"group {one.name}",
                "its members are different clients: " + ", ".join(one.versions),
                "they may share queues out by different rules",
                "finish the upgrade, or give each kind a group of its own",
            )  # fmt: skip


def check_stuck(groups: Iterable[GroupFacts]) -> Iterator[Finding]:
    """Find groups with members whose oldest message stands."""
    for one in groups:
        found = one.oldest
        if found is None or not one.members or found.age_ms < LAG_OLD_MS:
            continue
        key = "no key" if found.key is None else f"key {found.key}"
        yield Finding(
            Severity.WARNING, f"group {one.name}",
            f"its oldest unfinished message ({key}, topic {found.topic}, queue {found.queue}, "
            f"offset {found.offset}) waits for {found.age_ms // 60_000} minutes, with "
            f"{found.behind - 1} behind it",
            "its handler fails or takes long, or its queue has no owner; in order, what comes "
            "after it waits too, and of a key always",
            f"`inorder locks list {one.name}` shows the owners, their logs the failures; mend the "
            "handler, add members, or let failing keys be parked: on_failure=Park(...)",
        )  # fmt: skip


def check_key_maps(topics: Iterable[TopicFacts]) -> Iterator[Finding]:
    """Find topics whose brokers disagree about where keys belong."""
    for one in topics:
        if len(set(one.maps.values())) > 1:
            shown = "; ".join(f"{broker}: {text}" for broker, text in sorted(one.maps.items()))
            yield Finding(
                Severity.BROKEN, f"topic {one.name}",
                f"its brokers have different key maps of one version: {shown}",
                "clients send one key to different queues, and its messages overtake each other",
                f"`inorder topic repair {one.name}`",
            )  # fmt: skip
        if one.missing:
            yield Finding(
                Severity.BROKEN, f"topic {one.name}",
                f"its key map names {', '.join(one.missing)}, and the topic is not there",
                "keys that belong there cannot be sent",
                "start that broker with its data; if it is gone for good: "
                f"inorder topic resize {one.name} --queues N --without {one.missing[0]}",
            )  # fmt: skip


def check_resizes(topics: Iterable[TopicFacts]) -> Iterator[Finding]:
    """Find resizes that have not ended, and groups that do not let them end."""
    for one in topics:
        if one.planned:
            away = f"; no answer from {', '.join(one.away)}" if one.away else ""
            yield Finding(
                Severity.WARNING, f"topic {one.name}", f"{one.planned}{away}",
                "once a broker has stopped, keyed sends wait",
                f"inorder topic resize {one.name} --resume; --abort while a broker is missing",
            )  # fmt: skip
        for group, behind, online in one.waiting:
            if not online:
                yield Finding(
                    Severity.WARNING, f"topic {one.name}",
                    f"group {group} has no member and reads from before a resize, "
                    f"{behind} messages to go",
                    "queues that the resize removed stay until the group has read them",
                    f"start a consumer of {group}; if it never comes back: "
                    f"inorder topic resize {one.name} --release {group}",
                )  # fmt: skip


def check_parked(
    parked: Iterable[ParkedFacts], full: Mapping[tuple[str, str], str]
) -> Iterator[Finding]:
    """Find keys that stay parked, redrives that fail, and groups that can park no more."""
    for (group, broker), why in sorted(full.items()):
        yield Finding(
            Severity.BROKEN, f"group {group}", f"broker {broker} parks nothing more: {why}",
            "keys that fail block from now on, and so do the messages behind them",
            f"redrive or drop keys: `inorder parked list {group}`",
        )  # fmt: skip
    old: dict[tuple[str, str], list[ParkedFacts]] = {}
    for one in parked:
        if one.age_ms >= PARKED_LONG_MS or one.last_error:
            old.setdefault((one.group, one.topic), []).append(one)
    for (group, topic), keys in sorted(old.items()):
        oldest = max(keys, key=lambda one: one.age_ms)
        failed = sum(bool(one.last_error) for one in keys)
        yield Finding(
            Severity.WARNING, f"group {group}",
            f"{len(keys)} keys of {topic} are parked, the oldest ({oldest.key}) for "
            f"{oldest.age_ms // 60_000} minutes; redrives of {failed} have failed",
            "the messages of these keys are not handled, and the log is kept for them",
            f"mend the cause, then `inorder redrive {group}`",
        )  # fmt: skip


def check_installation(slower: str) -> Iterator[Finding]:
    """Find what makes this install slower than one from a wheel."""
    if slower:
        yield Finding(
            Severity.INFO, "this machine", f"this install uses {slower}",
            "a server that runs from it is slower", "install inorder from a wheel",
        )  # fmt: skip
