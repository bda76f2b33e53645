"""Address patterns of RocketMQ's ACL files."""

from __future__ import annotations

import pytest

from inorder.access.addresses import NoPattern, networks


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", None),
        ("*.*.*.*", None),
        ("*:*:*:*:*:*:*:*", None),
        ("10.1.1.7", ("10.1.1.7/32",)),
        (" 10.1.1.7 ", ("10.1.1.7/32",)),
        ("2001:db8::7", ("2001:db8::7/128",)),
        ("2001:0DB8:0:0:0:0:0:7", ("2001:db8::7/128",)),
        ("::ffff:10.1.1.7", ("10.1.1.7/32",)),
        ("10.1.1.7,10.1.1.9", ("10.1.1.7/32", "10.1.1.9/32")),
        ("10.1.1.{1,2,9}", ("10.1.1.1/32", "10.1.1.2/32", "10.1.1.9/32")),
        ("2001:db8::{1,a}", ("2001:db8::1/128", "2001:db8::a/128")),
        ("10.1.1.*", ("10.1.1.0/24",)),
        ("10.1.*.*", ("10.1.0.0/16",)),
        ("10.*.*.*", ("10.0.0.0/8",)),
        ("10.1.4-7.*", ("10.1.4.0/22",)),
        ("10.1.1.1-4", ("10.1.1.1/32", "10.1.1.2/31", "10.1.1.4/32")),
        ("10.1.1.0-0", ("10.1.1.0/32",)),
        ("2001:db8:0:0:0:0:0:*", ("2001:db8::/112",)),
        ("2001:db8::10-1f:*", ("2001:db8::10:0/108",)),
        ("2001:db8:*:*:*:*:*:*", ("2001:db8::/32",)),
    ],
)
def test_patterns_are_networks(pattern: str, expected: tuple[str, ...] | None) -> None:
    """Each way of writing addresses is the networks that it covers."""
    assert networks(pattern) == expected


@pytest.mark.parametrize(
    "pattern",
    [
        "", "10", "10.1.1", "10.1.1.256", "10.1.1.1.1", "localhost", "10.1.1.0/24", "10.1.1.5-1",
        "10.1.1.1-256", "10.1.*.5", "10.1.1-2.5", "10.{1,2}.1.1", "10.1.1.{}", "{1,2}",
        "10.1.1.1{1,2}", "10.1.1.{1,2", "10.1.1.{1,300}", "10.1.1.1,", "10.1.1.1,10.1.1.*",
        "fe80::1%eth0", "2001:db8::*:1", "1:2:3:4:5:6:7:8:*", "::1::*", "10.1.1.-5",
        "10.1.1.\u0661", "x" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    """A wrong pattern matches nobody by accident: it is an error."""
    with pytest.raises(NoPattern):
        networks(pattern)
