"""The pure half of the HTTP server: heads, targets, routes, events."""

from __future__ import annotations

import pytest

from inorder.net.http import (
    HEADERS_MAX,
    Refused,
    Request,
    Response,
    Routes,
    event,
    parse_head,
    split_target,
    text,
)


def test_a_head_is_read() -> None:
    """Names of headers are in small letters; lines of one name are joined."""
    head = parse_head(b"GET /a?b=c HTTP/1.1\r\nHost: x\r\nAccept: a \r\naccept:b\r\nX-E:")
    assert (head.method, head.target, head.version) == ("GET", "/a?b=c", "HTTP/1.1")
    assert head.headers == {"host": "x", "accept": "a, b", "x-e": ""}
    assert (head.body_bytes, head.keep_alive) == (0, True)


@pytest.mark.parametrize(
    ("lines", "keep"),
    [
        ("GET / HTTP/1.1\r\nHost: x", True),
        ("GET / HTTP/1.1\r\nHost: x\r\nConnection: TE, Close", False),
        ("GET / HTTP/1.0", False),
        ("GET / HTTP/1.0\r\nConnection: Keep-Alive", True),
    ],
)
def test_who_keeps_a_connection(lines: str, keep: bool) -> None:
    """HTTP/1.1 keeps it unless told otherwise, HTTP/1.0 the other way round."""
    assert parse_head(lines.encode()).keep_alive is keep


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"", 400),
        (b"GET /", 400),
        (b"GET  / HTTP/1.1\r\nHost: x", 400),
        (b"GET / HTTP/2.0\r\nHost: x", 505),
        (b"G(T / HTTP/1.1\r\nHost: x", 400),
        (b"GET a HTTP/1.1\r\nHost: x", 400),
        (b"GET http://x/ HTTP/1.1\r\nHost: x", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: x", 400),
        (b"GET / HTTP/1.1", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: x", 400),
        (b"GET / HTTP/1.1\r\nHost : x", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\n folded: y", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\nC: d", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\x00", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nnothing", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2", 400),
        ("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: \u00b2".encode("latin-1"), 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked", 501),
        (b"GET / HTTP/1.1\r\nHost: x" + b"\r\nA: b" * HEADERS_MAX, 431),
    ],
)
def test_what_is_ambiguous_is_refused(head: bytes, status: int) -> None:
    """A head that two readers could read in two ways is read in none."""
    with pytest.raises(Refused) as caught:
        parse_head(head)
    assert caught.value.status == status


def test_a_target_is_split() -> None:
    """Path and query are decoded; of a field that comes twice the last counts."""
    assert split_target("/a%20b/c?x=%C3%A9&y=&x=2") == ("/a b/c", {"x": "2", "y": ""})


@pytest.mark.parametrize(
    "target", ["/%ff", "/?a=%ff", "/a/../b", "/%2e%2e/b", "/./a", "/a%00", "/?" + "a=b&" * 65]
)
def test_targets_that_are_not_plain_are_refused(target: str) -> None:
    """No path climbs, and every escape is UTF-8."""
    with pytest.raises(Refused) as caught:
        split_target(target)
    assert caught.value.status == 400


async def _one(_: Request) -> Response:
    return text("1")


async def _two(_: Request) -> Response:
    return text("2")


async def _three(_: Request) -> Response:
    return text("3")


ROUTES = Routes(
    {
        ("GET", "/a"): _one,
        ("POST", "/a"): _two,
        ("GET", "/s/*"): _two,
        ("GET", "/s/x/*"): _three,
        ("GET", "/s/x/y"): _one,
    }
)


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        ("GET", "/a", _one),
        ("HEAD", "/a", _one),
        ("POST", "/a", _two),
        ("GET", "/s/1", _two),
        ("GET", "/s/", _two),
        ("GET", "/s/x/1", _three),
        ("GET", "/s/x/y", _one),
    ],
)
def test_the_longest_route_that_fits_counts(method: str, path: str, found: object) -> None:
    """A whole path comes before a part of it, and a long part before a short one."""
    assert ROUTES.find(method, path) is found


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/b", 404), ("GET", "/s", 404), ("PUT", "/a", 405), ("POST", "/s/1", 405)],
)
def test_routes_that_do_not_exist(method: str, path: str, status: int) -> None:
    """An unknown path is 404, an unknown method of a known path 405."""
    with pytest.raises(Refused) as caught:
        ROUTES.find(method, path)
    assert caught.value.status == status


def test_an_event_is_framed() -> None:
    """Every line of the data has its own field, so that no data ends the event."""
    assert event("a\nb\r\nc", name="n\n", number="7") == (
        b"event: n\nid: 7\ndata: a\ndata: b\ndata: c\n\n"
    )


def test_an_empty_value_of_a_repeated_header_leaves_no_space() -> None:
    """A head says the same when it is written again."""
    head = parse_head(b"GET / HTTP/1.1\r\nHost: x\r\nAccept: a\r\nAccept:")
    again = parse_head(b"GET / HTTP/1.1\r\nHost: x\r\nAccept: " + head.headers["accept"].encode())
    assert again.headers["accept"] == head.headers["accept"] == "a,"
