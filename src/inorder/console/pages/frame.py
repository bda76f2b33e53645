"""What all pages share: the frame, tables, forms, paging, and the pages for errors and sign-in.

A page is a list of sections. A live section is sent again when it has changed
(`console/app.py`). A page works without scripts: they add live values, keys and the theme.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from inorder.console.data import path_of
from inorder.console.markup import EMPTY, Attribute, Html, Node, el, join, text
from inorder.console.rules import Finding, Level, Rows, path
from inorder.errors import InorderError

NAVIGATION: Final = (
    ("Overview", "/", "o"),
    ("Topics", "/topics", "t"),
    ("Groups", "/groups", "g"),
    ("Messages", "/messages", "m"),
    ("Keys", "/keys", "k"),
    ("Parked", "/parked", "p"),
    ("Brokers", "/brokers", "b"),
    ("Audit", "/audit", "a"),
    ("Settings", "/settings", "s"),
)
KEYS: Final = (
    ("/", "search"),
    ("g then o t g m k p b a s", "go to a page, by its underlined letter"),
    ("j, k", "next and previous row"),
    ("Enter", "open the row"),
    ("r", "read again"),
    ("l", "live on and off"),
    ("?", "this list"),
)
MARKS: Final = {Level.BAD: "▲", Level.WARN: "▲", Level.OK: "✓", Level.UNKNOWN: "?"}
WORDS: Final = {
    Level.BAD: "Needs you",
    Level.WARN: "Look at this",
    Level.OK: "Fine",
    Level.UNKNOWN: "Not known",
}


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page."""

    id: str
    html: Html
    live: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A page without its frame."""

    title: str
    sections: Sequence[Section]
    crumbs: Sequence[tuple[str, str]] = ()
    tabs: Sequence[tuple[str, str]] = ()
    tab: str = ""
    """The path of the tab that is open."""
    cli: str = ""
    """The command that shows the same."""
    status: int = 200
    data: Mapping[str, object] = field(default_factory=dict)
    """What the page shows, for `.json`; empty: the page is only a form."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who sees the page, as far as the frame shows it."""

    name: str
    signed_in: bool
    csrf: str
    cluster: str
    parked: int = 0
    seen_ms: int = 0
    error: str = ""
    notices: Sequence[Finding] = field(default_factory=tuple)
    version: str = ""


def clock_time(at_ms: int | None, *, day: bool = True) -> Html:
    """Return a time in UTC, to the millisecond; `–` if there is none."""
    if not at_ms or not 0 < at_ms < 253_402_300_800_000:
        return Html("–")
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    form = "%Y-%m-%d %H:%M:%S" if day else "%H:%M:%S"
    shown = f"{moment.strftime(form)}.{moment.microsecond // 1000:03d}"
    return el("time", shown, datetime=moment.isoformat(timespec="milliseconds"), class_="mono")


def link(shown: Node, to: str, **attributes: Attribute) -> Html:
    """Return a link within the console."""
    return el("a", shown, href=to, **attributes)


def badge(words: str, level: Level | str) -> Html:
    """Return a short word with a colour; the word alone says it too."""
    return el("span", words, class_=f"badge {level}")


def number(value: float | None) -> Html:
    """Return a number with separators."""
    return Html("–") if value is None else Html(f"{value:,.0f}")


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[Node]],
    *,
    empty: Node = "There is nothing here.",
    numbers: Iterable[int] = (),
    hide_caption: bool = False,
) -> Html:
    """Return a table with a caption, or a sentence if it has no rows."""
    right = set(numbers)
    body = [
        el(
            "tr",
            [
                el("th", cell, scope="row", class_="num" if at in right else None)
                if at == 0
                else el("td", cell, class_="num" if at in right else None)
                for at, cell in enumerate(cells)
            ],
        )
        for cells in rows
    ]
    if not body:
        return el("div", el("p", empty), class_="empty")
    head = el(
        "tr",
        [
            el("th", one, scope="col", class_="num" if at in right else None)
            for at, one in enumerate(heads)
        ],
    )
    whole = el(
        "table",
        el("caption", caption, class_="hidden" if hide_caption else None),
        el("thead", head),
        el("tbody", body),
    )
    return el("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def card(heading: str, *body: Node, level: int = 2, aside: Node = None) -> Html:
    """Return a box with a heading."""
    return el(
        "section", el("div", el(f"h{level}", heading), aside, class_="card-head"), body,
        class_="card",
    )  # fmt: skip


def facts(*pairs: tuple[str, Node]) -> Html:
    """Return names and values side by side."""
    return el(
        "dl",
        [el("div", el("dt", name), el("dd", value)) for name, value in pairs],
        class_="facts",
    )


def findings(found: Iterable[Finding]) -> Html:
    """Return sentences, each with its level and a link."""
    rows = [
        el(
            "li",
            el("span", MARKS[one.level], class_="mark", aria_hidden="true"),
            el("span", WORDS[one.level], class_="hidden"),
            el("span", link(one.text, one.link) if one.link else one.text),
            class_=one.level,
        )
        for one in found
    ]
    return el("ul", rows, class_="findings")


def field_of(label: str, name: str, value: str = "", **attributes: Any) -> Html:
    """Return a labelled input."""
    id_ = attributes.pop("id", f"f-{name}")
    hint = attributes.pop("hint", "")
    return el(
        "div",
        el("label", label, for_=id_),
        el(
            "input",
            type=attributes.pop("type", "text"),
            id=id_,
            name=name,
            value=value,
            autocomplete=attributes.pop("autocomplete", "off"),
            aria_describedby=f"{id_}-hint" if hint else None,
            **attributes,
        ),
        el("small", hint, id=f"{id_}-hint") if hint else None,
        class_="field",
    )


def choice(label: str, name: str, options: Iterable[tuple[str, str]], chosen: str = "") -> Html:
    """Return a labelled list to choose from."""
    id_ = f"f-{name}"
    shown = [el("option", word, value=value, selected=value == chosen) for value, word in options]
    return el("div", el("label", label, for_=id_), el("select", shown, id=id_, name=name),
              class_="field")  # fmt: skip


def form(
    action: str,
    viewer: Viewer,
    *body: Node,
    submit: str,
    danger: bool = False,
    label: str | None = None,
) -> Html:
    """Return a form that changes something; who is not signed in sees why there is none."""
    if not viewer.signed_in:
        return el(
            "p", f"{submit}: ", link("sign in", path("sign-in", back=action)), " first.",
            class_="locked",
        )  # fmt: skip
    return el(
        "form",
        el("input", type="hidden", name="csrf", value=viewer.csrf),
        body,
        el("button", submit, type="submit", class_="danger" if danger else "primary"),
        method="post",
        action=action,
        class_="form",
        aria_label=label or submit,
    )


def asking(*body: Node, action: str, submit: str = "Show", label: str = "") -> Html:
    """Return a form that only asks."""
    return el(
        "form", body, el("button", submit, type="submit"), method="get", action=action,
        class_="form line", role="search", aria_label=label or submit,
    )  # fmt: skip


def paging(rows: Rows[Any], base: str, noun: str, **query: str) -> Html:
    """Return where one is among many rows, and links to the next and the previous."""
    shown = f"{len(rows.rows):,} of {rows.total:,} {noun}"
    links: list[Node] = []
    if rows.page > 1:
        links.append(link("‹ previous", _paged(base, rows.page - 1, query), rel="prev"))
    if rows.pages > 1:
        links.append(el("span", f"page {rows.page} of {rows.pages}"))
    if rows.page < rows.pages:
        links.append(link("next ›", _paged(base, rows.page + 1, query), rel="next"))
    return el("nav", el("span", shown), links, class_="paging", aria_label=f"Pages of {noun}")


def _paged(base: str, page: int, query: dict[str, str]) -> str:
    return base + path(page=page, **query)[1:]


def sparkline(points: Sequence[tuple[int, int]], label: str) -> Html:
    """Return a small picture of samples (time, value); the label says the same in words."""
    if len(points) < 2:
        return el("span", "–", class_="faint")
    begin, end = points[0][0], points[-1][0]
    top = max(4.0, 1.1 * max(value for _, value in points))
    spots = " ".join(
        f"{(at - begin) / max(1, end - begin) * 98 + 1:.1f},{22 - value / top * 20:.1f}"
        for at, value in points
    )
    return el(
        "svg",
        el("title", label),
        el("polyline", points=spots),
        viewBox="0 0 100 24",
        class_="spark",
        role="img",
        aria_label=label,
        preserveAspectRatio="none",
    )


def whole(page: Page, viewer: Viewer, at: str) -> Html:
    """Return the document."""
    title = f"{page.title} – inorder"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
        el("link", rel="stylesheet", href="/static/console.css"),
        el("link", rel="icon", href="/static/icon.svg", type="image/svg+xml"),
        el("script", src="/static/console.js", type="module"),
    )
    body = el(
        "body",
        el("a", "Skip to the content", href="#main", class_="skip"),
        _header(viewer, at),
        el(
            "main",
            _crumbs(page),
            el("h1", page.title),
            _tabs(page),
            _notices(viewer),
            [
                el("div", one.html, id=one.id, data_live=one.live, class_="section")
                for one in page.sections
            ],
            _cli(page, at),
            id="main",
            tabindex="-1",
        ),
        el("div", id="said", class_="hidden", role="status", aria_live="polite"),
        _help(),
    )
    return Html(f"<!doctype html>{el('html', head, body, lang='en')}")


def _header(viewer: Viewer, at: str) -> Html:
    items = [
        el(
            "li",
            link(
                join(name, el("span", viewer.parked, class_="count"))
                if name == "Parked" and viewer.parked
                else name,
                to,
                aria_current="page" if _is_at(to, at) else None,
                data_key=key,
            ),
        )
        for name, to, key in NAVIGATION
    ]
    if viewer.signed_in:
        who: Node = el(
            "form",
            el("input", type="hidden", name="csrf", value=viewer.csrf),
            el("span", viewer.name, class_="who"),
            el("button", "Sign out", type="submit"),
            method="post",
            action="/sign-out",
        )
    else:
        who = join(badge("read-only", "plain"), link("Sign in", path("sign-in", back=at)))
    return el(
        "header",
        el(
            "div",
            link(join(el("span", "in", class_="in"), "order"), "/", class_="brand"),
            el("span", viewer.cluster, class_="cluster", title="name servers"),
            el(
                "form",
                el("label", "Find a key, id, topic or group", for_="find", class_="hidden"),
                el(
                    "input", type="search", id="find", name="q",
                    placeholder="Find a key, id, topic or group  ( / )", autocomplete="off",
                ),
                action="/find",
                method="get",
                role="search",
                class_="find",
            ),
            el("span", el("span", "●", class_="dot", aria_hidden="true"),
               el("span", "not live", id="freshness"), class_="fresh", hidden=True),
            el("button", "Theme", type="button", id="theme", class_="quiet"),
            el("div", who, class_="user"),
            class_="bar",
        ),
        el("nav", el("ul", items), aria_label="Pages", class_="pages"),
    )  # fmt: skip


def _is_at(to: str, at: str) -> bool:
    plain = at.partition("?")[0]
    return plain == to if to == "/" else plain == to or plain.startswith(f"{to}/")


def _crumbs(page: Page) -> Html:
    if not page.crumbs:
        return EMPTY
    items = [el("li", link(name, to)) for name, to in page.crumbs]
    return el("nav", el("ol", items), aria_label="Where you are", class_="crumbs")


def _tabs(page: Page) -> Html:
    if not page.tabs:
        return EMPTY
    items = [
        el("li", link(name, to, aria_current="page" if to == page.tab else None))
        for name, to in page.tabs
    ]
    return el("nav", el("ul", items), aria_label="Parts of this page", class_="tabs")


def _notices(viewer: Viewer) -> Html:
    shown = list(viewer.notices)
    if viewer.error:
        shown.append(Finding(Level.BAD, f"The last look at the cluster failed: {viewer.error}"))
    return EMPTY if not shown else el("div", findings(shown), role="alert", class_="notices")


def _cli(page: Page, at: str) -> Html:
    has_data = page.data and page.status == 200
    if not page.cli and not has_data:
        return EMPTY
    command = (
        "The same on the command line: ", el("code", page.cli, id="cli"),
        el("button", "Copy", type="button", class_="quiet", data_copy="cli"),
    ) if page.cli else ()  # fmt: skip
    data = link("as JSON", path_of(at), type="application/json") if has_data else None
    return el("p", command, " · " if command and data else None, data, class_="cli")


def _help() -> Html:
    rows = [el("div", el("dt", el("kbd", keys)), el("dd", what)) for keys, what in KEYS]
    return el(
        "dialog", el("h2", "Keys", id="help-title"), el("dl", rows, class_="facts"),
        el("form", el("button", "Close", type="submit"), method="dialog"),
        id="help", aria_labelledby="help-title",
    )  # fmt: skip


# Errors and sign-in.


def error_page(title: str, error: InorderError | str, status: int, hint: Node = None) -> Page:
    """Return a page that says what failed, and what to do next."""
    body = el("div", el("p", str(error)), el("p", hint) if hint else None, class_="empty bad")
    return Page(title, [Section("error", body)], status=status, data={"error": str(error)})


def sign_in_page(back: str, *, with_users: bool | None, failure: str = "") -> Page:
    """Return the page to sign in: by name at brokers with users, by the printed link elsewhere."""
    said = el("p", failure, role="alert", class_="failure") if failure else None
    by_name = card(
        "With a user of the brokers",
        el(
            "form",
            el("input", type="hidden", name="back", value=back),
            field_of("User", "name", autocomplete="username", required=True),
            field_of("Secret", "secret", type="password", autocomplete="current-password",
                     required=True),
            el("button", "Sign in", type="submit", class_="primary"),
            method="post", action="/sign-in", class_="form",
        ),
        el("p", "Every request to the brokers is signed with this user's secret. What the user may "
           "not do, the brokers refuse. The secret stays in the memory of the console until you "
           "sign out.", class_="faint"),
    )  # fmt: skip
    by_token = card(
        "With the token of this console",
        el("p", "These brokers have no users. Everybody who reaches the console may look; who has "
           "the token may change things. The console printed it at its start, as a link."),
        el(
            "form",
            el("input", type="hidden", name="back", value=back),
            field_of("Token", "token", type="password", autocomplete="one-time-code",
                     required=True),
            el("button", "Sign in", type="submit", class_="primary"),
            method="post", action="/enter", class_="form",
        ),
    )  # fmt: skip
    shown = [by_name] if with_users else [by_token] if with_users is False else [by_name, by_token]
    return Page("Sign in", [Section("sign-in", join(said, shown))])


def enter_page(token: str) -> Page:
    """Return the page behind the printed link: one button, so that no prefetch uses the link up."""
    body = card(
        "You have the link of this console",
        el("p", "Whoever has it may change things in this cluster. It works once."),
        el(
            "form",
            el("input", type="hidden", name="token", value=token),
            el("button", "Sign in", type="submit", class_="primary", autofocus=True),
            method="post",
            action="/enter",
            class_="form",
        ),
    )
    return Page("Sign in", [Section("enter", body)])


def short(value: str, limit: int = 80) -> Html:
    """Return a text of others, cut."""
    return text(value, limit)
