"""Markup escapes: no text of others is ever part of a page's structure."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from inorder.console import web
from inorder.console.markup import Html, el, join, text
from inorder.console.pages import groups, messages
from inorder.console.pages.frame import Page, Section, Viewer, error_page, sign_in_page, whole
from inorder.console.rules import Finding, Level
from inorder.net.http import Refused, Request

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</textarea></style></title><b>",
    "\u202egnp.exe",
    "a\x00b\x1b[31m",
    "&lt;",
    "\ud800",
    "{{7*7}}",
]


class Seen(HTMLParser):
    """Collects elements, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def parsed(html: Html) -> Seen:
    seen = Seen()
    seen.feed(html)
    return seen


@pytest.mark.parametrize("value", HOSTILE)
def test_a_text_is_never_markup(value: str) -> None:
    """As a child and as an attribute: one element comes out, with the attribute that was given."""
    seen = parsed(el("p", value, title=value))
    assert seen.tags == ["p"]
    assert [name for name, _ in seen.attributes] == ["title"]
    assert not any(ord(one) < 0x20 or one in "\u202e\ud800" for one in "".join(seen.words))


def test_html_stays_html() -> None:
    """What was made by `el` is not escaped again; None and False are left out."""
    assert el("p", el("b", "x"), None, 7) == "<p><b>x</b>7</p>"
    assert el("input", disabled=False, required=True, value=0) == '<input required value="0">'
    assert join("a<", Html("<br>")) == "a&lt;<br>"
    assert text("x" * 400).endswith("(400 characters)")


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_pages_have_the_frame_alone(value: str) -> None:
    """Titles, crumbs, notices, names and errors: the only script is the console's own file."""
    page = Page(value, [Section("a", el("p", value))], crumbs=((value, "/"),), cli=value)
    viewer = Viewer(value, True, "csrf", value, notices=[Finding(Level.BAD, value)], error=value)
    for one in (page, error_page(value, value, 404), sign_in_page(value, with_users=None,
                                                                  failure=value)):  # fmt: skip
        seen = parsed(whole(one, viewer, "/"))
        assert seen.tags.count("script") == 1
        assert "img" not in seen.tags
        assert not any(name.startswith("on") for name, _ in seen.attributes)
        assert "style" not in {name for name, _ in seen.attributes}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"a": "<b>", "c": [1]}', "&quot;a&quot;: &quot;&lt;b&gt;&quot;"),
        (b"plain <b>\nnext", "plain &lt;b&gt;\nnext"),
        (b"\xff\x00<b>", "ff 00 3c 62 3e"),
        (b"", "The body is empty"),
        (b"[" * 70_000, "[[[["),
        ("\u202e".encode(), "\\u202e"),
        (b"x" * 70_000, "The first 65,536 of 70,000 bytes"),
    ],
)
def test_bodies(body: bytes, words: str) -> None:
    """JSON, text or hexadecimal, cut if huge; nothing in it is markup."""
    shown = messages.body_of(body)
    assert words in shown
    assert "<b>" not in shown


@pytest.mark.parametrize("value", [*HOSTILE, "plain", ""])
def test_keys_come_back_from_a_form_unchanged(value: str) -> None:
    """A key may hold anything; the form gives back exactly that."""
    assert groups.decode(groups.encode(value)) == value
    assert groups.decode("zz") == ""


def request(body: bytes = b"", **headers: str) -> Request:
    return Request("POST", "/", {}, {one.replace("_", "-"): headers[one] for one in headers}, body)


def test_forms() -> None:
    """Fields that come twice are kept in order; another kind of body is refused."""
    kind = "application/x-www-form-urlencoded; charset=utf-8"
    assert web.form_of(request(b"key=a&key=b&x=%3C", content_type=kind)) == {
        "key": ("a", "b"), "x": ("<",),
    }  # fmt: skip
    assert web.form_of(request()) == {}
    with pytest.raises(Refused):
        web.form_of(request(b"{}", content_type="application/json"))
    with pytest.raises(Refused):
        web.form_of(request(b"a=1&" * 3000, content_type=kind))


def test_cookies_and_numbers() -> None:
    """The named cookie alone counts; a number that is none is the default."""
    one = request(cookie="a=1; inorder=xyz; inorder2=no")
    assert (web.cookie_of(one, "inorder"), web.cookie_of(one, "b")) == ("xyz", "")
    ask = web.Ask((), {"page": "7", "bad": "-1", "huge": "9" * 40}, {}, "/")
    assert (ask.number("page"), ask.number("bad"), ask.number("huge"), ask.number("no", 3)) == (
        7, 1, 1, 3,
    )  # fmt: skip
