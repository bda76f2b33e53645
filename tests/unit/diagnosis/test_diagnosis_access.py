"""What `inorder doctor` says about open ports, certificates, users and rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inorder.diagnosis.access import (
    DAY_MS,
    UserFacts,
    check_certificates,
    check_open,
    check_users,
)
from inorder.diagnosis.rules import BrokerFacts, Severity

BROKER = BrokerFacts("a", "C", "10.0.0.1:10911", is_inorder=True, host="127.0.0.1")
WARNING, BROKEN = Severity.WARNING, Severity.BROKEN
NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("host", "is_open", "found"),
    [
        ("127.0.0.1", True, []),
        ("::1", True, []),
        ("localhost", True, []),
        ("0.0.0.0", True, [WARNING]),
        ("10.0.0.1", True, [WARNING]),
        ("mq.example", True, [WARNING]),
        ("0.0.0.0", False, []),
        ("", True, []),
    ],
)
def test_no_authentication_beyond_loopback(host: str, is_open: bool, found: list[Severity]) -> None:
    """Loopback may be open; a broker that does not tell is not judged."""
    brokers = [replace(BROKER, host=host, is_open=is_open)]
    assert [one.severity for one in check_open(brokers)] == found


def test_one_broker_of_the_cluster_enforces_nothing() -> None:
    """What is refused at one broker is done at the other."""
    first = replace(BROKER, access_level="enforce")
    second = replace(BROKER, name="b", access_level="log")
    (one,) = check_open([first, second])
    assert (one.severity, one.about) == (WARNING, "broker b")
    assert list(check_open([first, replace(first, name="b")])) == []


@pytest.mark.parametrize(
    ("days", "found"), [(None, []), (14, []), (13, [WARNING]), (0.5, [WARNING]), (0, [BROKEN])]
)
def test_a_certificate_that_ends_soon(days: float | None, found: list[Severity]) -> None:
    """Two weeks before; a certificate that the server made itself has no file and no end here."""
    ends_ms = 0 if days is None else NOW_MS + round(days * DAY_MS)
    findings = check_certificates([replace(BROKER, tls_ends_ms=ends_ms)], NOW_MS)
    assert [one.severity for one in findings] == found


def test_new_certificates_that_are_not_used() -> None:
    """The broker says so; its log says why."""
    (one,) = check_certificates([replace(BROKER, tls_problem="not used")], NOW_MS)
    assert (one.severity, one.what) == (WARNING, "not used")


def test_users_without_a_rule_and_rules_without_a_user() -> None:
    """Super users and disabled ones need none."""
    users = [
        UserFacts("root", is_super=True, enabled=True, brokers=("a",)),
        UserFacts("shop", is_super=False, enabled=True, brokers=("a",)),
        UserFacts("idle", is_super=False, enabled=True, brokers=("a",)),
        UserFacts("gone", is_super=False, enabled=False, brokers=("a",)),
    ]
    found = {one.about: one for one in check_users(users, ["shop", "ghost"], ["a"])}
    assert set(found) == {"user idle", "user ghost"}
    assert "inorder acl set idle" in found["user idle"].todo
    assert "inorder acl delete ghost" in found["user ghost"].todo
    assert {one.severity for one in found.values()} == {WARNING}


def test_users_that_brokers_know_differently() -> None:
    """Not there at one, or with other rights."""
    missing = [UserFacts("root", is_super=True, enabled=True, brokers=("a",))]
    (one,) = check_users(missing, [], ["a", "b"])
    assert "not known to b" in one.what
    differ = [*missing, UserFacts("root", is_super=True, enabled=False, brokers=("b",))]
    (one,) = check_users(differ, [], ["a", "b"])
    assert "brokers differ" in one.what
