"""Which name servers are meant, and what is no address of one."""

from __future__ import annotations

import pytest

from inorder.client.rules.nameservers import choose, no_name_server, parse_name_servers
from inorder.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "environment", "meant", "origin"),
    [
        ("a:1", {"INORDER_NAMESRV": "b:1", "NAMESRV_ADDR": "c:1"}, "a:1", "argument"),
        (None, {"INORDER_NAMESRV": "b:1", "NAMESRV_ADDR": "c:1"}, "b:1",
         "environment INORDER_NAMESRV"),
        (None, {"NAMESRV_ADDR": "c:1"}, "c:1", "environment NAMESRV_ADDR"),
        (None, {"INORDER_NAMESRV": " ", "NAMESRV_ADDR": "c:1"}, "c:1",
         "environment NAMESRV_ADDR"),
        (None, {}, "127.0.0.1:9876", "default"),
        ("", {"NAMESRV_ADDR": "c:1"}, "", "argument"),
    ],
)  # fmt: skip
def test_argument_then_ours_then_rocketmqs_then_local(
    given: str | None, environment: dict[str, str], meant: str, origin: str
) -> None:
    """One order of precedence for everybody."""
    assert choose(given, environment) == (meant, origin)


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1; b:2;", ["a:1", "b:2"]),
        ("a:1,b:2", ["a:1", "b:2"]),
        ("mq-1.example_net.com:9876", ["mq-1.example_net.com:9876"]),
        ("[::1]:9876;[fe80::1%eth0]:1", ["[::1]:9876", "[fe80::1%eth0]:1"]),
        ("::1:9876", ["::1:9876"]),  # as RocketMQ writes it
        ("127.0.0.1:65535", ["127.0.0.1:65535"]),
    ],
)
def test_what_is_an_address(text: str, addresses: list[str]) -> None:
    """Names, IPv4 and IPv6, separated as RocketMQ does or by commas."""
    assert parse_name_servers(text) == addresses


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no name server is given; write host:9876"),
        (";", "no name server is given"),
        ("http://127.0.0.1:9876", "without http://; write 127.0.0.1:9876"),
        ("https://mq:9876/path", "without https://; write mq:9876"),
        ("tcp://nonsense", "without tcp://; write 127.0.0.1:9876"),
        ("127.0.0.1:9876/", "without a path; write 127.0.0.1:9876"),
        ("localhost", "it has no port; write localhost:9876"),
        ("::1", "it has no port; write [::1]:9876"),
        ("[::1]", "it has no port; write [::1]:9876"),
        (":9876", "it has no host; write 127.0.0.1:9876"),
        ("mq:", "its port is no number from 1 to 65535"),
        ("mq:0", "its port is no number"),
        ("mq:65536", "its port is no number"),
        ("mq:" + "9" * 5000, "its port is no number"),
        ("mq:98a", "its port is no number"),
        ("mq:\u0661", "its port is no number"),
        ("a b:1", "'a b' is no host name"),
        ("user@mq:1", "'user@mq' is no host name"),
        ("good:1;bad", "name server 'bad'"),
    ],
)
def test_what_is_none_says_what_to_write(text: str, says: str) -> None:
    """Each mistake is named, with the address that was probably meant."""
    with pytest.raises(ConfigError) as error:
        parse_name_servers(text)
    assert says in str(error.value)
    assert len(str(error.value)) < 600


def test_who_said_it_is_said() -> None:
    """An address that comes from the environment is looked for there."""
    with pytest.raises(ConfigError, match=r"name server 'x' \(environment NAMESRV_ADDR\): it has"):
        parse_name_servers("x", "environment NAMESRV_ADDR")
    assert "9876" in no_name_server("mq:10911")
