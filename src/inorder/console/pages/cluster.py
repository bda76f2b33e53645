"""Pages about the whole cluster: overview, brokers, settings, audit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from inorder.console.audit import Job
from inorder.console.markup import Html, Node, el, join
from inorder.console.pages.frame import (
    Page,
    Section,
    Viewer,
    asking,
    badge,
    card,
    choice,
    clock_time,
    facts,
    field_of,
    findings,
    form,
    link,
    number,
    paging,
    short,
    sparkline,
    table,
)
from inorder.console.rules import (
    BrokerRow,
    Finding,
    GroupRow,
    History,
    Level,
    Rows,
    age,
    attention,
    clear_in,
    path,
)
from inorder.console.sessions import LogLine
from inorder.console.watch import Snapshot

GROUPS_SHOWN: Final = 20


def overview(shot: Snapshot, history: History, now_ms: int) -> Page:
    """Return the first page: is it fine, and if not, where to look."""
    found = attention(shot.brokers, shot.groups.values(), shot.parked or (), shot.full, now_ms)
    bad = sum(1 for one in found if one.level is Level.BAD)
    if not shot.brokers:
        head = el("p", badge("unknown", Level.UNKNOWN), " No broker is registered yet.",
                  class_="verdict")  # fmt: skip
        found = []
    elif found:
        words = f" {len(found)} {'things need' if len(found) > 1 else 'thing needs'} you."
        level = Level.BAD if bad else Level.WARN
        head = el("p", badge("look", level), words, class_="verdict")
    else:
        head = el("p", badge("fine", Level.OK), " Nothing needs you.", class_="verdict")
    return Page(
        "Overview",
        [
            Section("state", join(head, findings(found) if found else None), live=True),
            Section("rates", _rates(shot, now_ms), live=True),
            Section("groups", card("Groups", _groups(shot, history, now_ms)), live=True),
        ],
        cli="inorder lag",
        data={
            "needs": found,
            "brokers": shot.brokers,
            "groups": _oldest_first(shot, now_ms),
            "parked": None if shot.parked is None else len(shot.parked),
        },
    )


def _rates(shot: Snapshot, now_ms: int) -> Html:
    def total(name: str) -> Html:
        values = [one.rate(name) for one in shot.brokers if not one.error]
        known = [one for one in values if one is not None]
        return Html(f"{sum(known):,.1f}/s") if known else Html("–")

    oldest = min((row.oldest_ms for row in shot.groups.values() if row.oldest_ms), default=0)
    disks = [one.disk_ratio for one in shot.brokers if one.disk_ratio is not None]
    parked = "not known" if shot.parked is None else f"{len(shot.parked):,} keys"
    return facts(
        ("In", total("putTps")),
        ("Out", total("getTransferredTps")),
        ("Oldest to do", age(now_ms - oldest) if oldest else "–"),
        ("Parked", parked),
        ("Disk", f"{max(disks):.0%}" if disks else "–"),
        ("Brokers", f"{sum(1 for one in shot.brokers if not one.error)} of {len(shot.brokers)}"),
    )


def _groups(shot: Snapshot, history: History, now_ms: int) -> Html:
    cells = [
        (
            link(row.name, path("groups", row.name)),
            number(row.lag),
            age(now_ms - row.oldest_ms) if row.oldest_ms else "–",
            sparkline(history.lags(row.name), f"lag of {row.name} over the last minutes"),
            clear_in(history.lags(row.name)[-30:], row.members),
            number(row.members),
        )
        for row in _oldest_first(shot, now_ms)
    ]
    more = len(shot.group_names) - len(cells)
    return join(
        table(
            "Groups, the oldest message to do first",
            ("Group", "To do", "Oldest", "Trend", "Clear in", "Members"),
            cells,
            numbers=(1, 5),
            hide_caption=True,
            empty="No group has consumed yet.",
        ),
        el("p", link(f"{more:,} more groups", "/groups")) if more > 0 else None,
    )


def _oldest_first(shot: Snapshot, now_ms: int) -> list[GroupRow]:
    rows = sorted(shot.groups.values(), key=lambda row: (row.oldest_ms or now_ms, -row.lag))
    return rows[:GROUPS_SHOWN]


def brokers(rows: Sequence[BrokerRow]) -> Page:
    """Return the brokers, each with its own error."""
    cells = [
        (
            link(one.name, path("settings", broker=one.name)),
            one.address,
            one.cluster,
            badge("no answer", Level.BAD) if one.error else badge("answers", Level.OK),
            one.error
            or join(short(one.version, 40), " · in ", number(one.rate("putTps")), "/s · disk ",
                    "–" if one.disk_ratio is None else f"{one.disk_ratio:.0%}"),
        )
        for one in rows
    ]  # fmt: skip
    body = table(
        "Brokers", ("Broker", "Address", "Cluster", "State", "What it says"), cells,
        empty="No broker is registered with the name servers.", hide_caption=True,
    )  # fmt: skip
    return Page(
        "Brokers", [Section("brokers", body, live=True)], cli="inorder cluster brokers",
        data={"brokers": rows},
    )  # fmt: skip


def settings(
    names: Sequence[str],
    broker: str,
    rows: Rows[tuple[str, str]] | None,
    error: str,
    viewer: Viewer,
    own: Mapping[str, str],
    log: Iterable[LogLine],
    link_made: str = "",
    *,
    with_links: bool = False,
) -> Page:
    """Return the settings of a broker and of the console, and what was changed from here."""
    choose = asking(
        choice("Broker", "broker", [(one, one) for one in names], broker),
        field_of("Name contains", "word", rows.word if rows else ""),
        action="/settings", label="Settings of a broker",
    )  # fmt: skip
    if error:
        shown: Node = el("p", error, class_="failure")
    elif rows is None:
        shown = el("p", "No broker is registered.", class_="empty")
    else:
        shown = join(
            table(
                f"Settings of {broker}, under RocketMQ's names", ("Name", "Value"),
                [(name, short(value, 200)) for name, value in rows.rows], hide_caption=True,
            ),
            paging(rows, "/settings", "settings", broker=broker, word=rows.word),
            el("p", "Brokers do not tell where a value comes from; ", el("code", "inorder config"),
               " on the broker's machine does.", class_="faint"),
        )  # fmt: skip
    change = form(
        "/settings", viewer,
        el("input", type="hidden", name="broker", value=broker),
        field_of("Setting", "name", required=True, hint="One that may change at run time."),
        field_of("New value", "value", required=True),
        field_of("Reason", "reason", required=True),
        submit="Change the setting", danger=True,
    )  # fmt: skip
    links = form("/links", viewer, submit="Make a sign-in link for another person")
    made = el("p", "Works once: ", el("code", link_made)) if link_made else None
    told = list(reversed(list(log)))
    lines = [
        (clock_time(one.at_ms), one.who, one.what, one.reason or "–", one.outcome) for one in told
    ]
    operated = table(
        "What was changed from this console since it started",
        ("Time", "Who", "What", "Reason", "Outcome"), lines, hide_caption=True,
        empty="Nothing was changed from this console since it started.",
    )  # fmt: skip
    return Page(
        "Settings",
        [
            Section("broker", card("Broker", choose, shown)),
            Section("change", card("Change", change)),
            Section("console", card("Console", facts(*own.items()), made,
                                    links if with_links else None)),
            Section("log", card("Operator log", operated)),
        ],
        cli=f"inorder cluster settings {broker}" if broker else "inorder cluster settings BROKER",
        data={"broker": broker, "error": error, "settings": rows, "console": own, "log": told},
    )  # fmt: skip


def audit(
    topics: Sequence[str], topic: str, group: str, jobs: Sequence[Job], viewer: Viewer
) -> Page:
    """Return the audits that run or ran, and the form for another one."""
    start = form(
        "/audit", viewer,
        field_of("Topic", "topic", topic, required=True, list="topics"),
        field_of("Group", "group", group, hint="Empty: only what is stored is judged."),
        el("datalist", [el("option", value=one) for one in topics[:200]], id="topics"),
        submit="Run the audit",
    )  # fmt: skip
    rows = [
        (
            f"#{one.number}",
            join(one.topic, el("span", f" · {one.group}") if one.group else None),
            clock_time(one.began_ms),
            join(number(one.read), f" messages, {one.handled:,} calls of handlers"),
            _job_state(one),
            one.text,
        )
        for one in reversed(jobs)
    ]
    told = table(
        "Audits", ("Report", "Of", "Begun", "Judged", "State", "Findings"), rows,
        empty="No audit was run since the console started.", hide_caption=True,
    )  # fmt: skip
    about = el(
        "p", "The order checker reads what is stored, and what clients with trace=True told of "
        "their handlers: lost, doubled, inverted. It runs in a process of its own, over up to "
        "1,000,000 messages; for more: ",
        el("code", "inorder pipeline audit"), ".", class_="faint",
    )  # fmt: skip
    return Page(
        "Audit",
        [Section("start", card("Was order kept?", about, start)),
         Section("reports", card("Reports", told), live=True)],
        cli="inorder check FILE", data={"audits": jobs},
    )  # fmt: skip


def _job_state(job: Job) -> Html:
    if job.running:
        done = el("progress", value=job.read, max=max(1, job.total),
                  aria_label=f"Audit {job.number}")  # fmt: skip
        return join(done, f" {job.read:,} of {job.total:,}")
    if job.in_order is None:
        return badge("failed", Level.WARN)
    return badge("in order", Level.OK) if job.in_order else badge("NOT in order", Level.BAD)


def find(word: str, found: Sequence[Finding], scope: Node) -> Page:
    """Return what a search has found."""
    body = findings(found) if found else el("p", "No topic, group or parked key is called so.",
                                            class_="empty")  # fmt: skip
    sections = [Section("found", card("Names", body))]
    if scope:
        sections.append(Section("scope", card("Keys and messages", scope)))
    return Page(f"Find {word}", sections, data={"word": word, "found": found})


def group_table(
    rows: Rows[str], shot: Snapshot, history: History, now_ms: int
) -> Page:  # fmt: skip
    """Return a page of all groups."""

    def cells(name: str) -> tuple[Node, ...]:
        row: GroupRow | None = shot.groups.get(name)
        if row is None:
            return (link(name, path("groups", name)), "reading…", "", "", "", "")
        if row.error:
            return (link(name, path("groups", name)), short(row.error), "", "", "", "")
        return (
            link(name, path("groups", name)),
            short(", ".join(row.topics), 60),
            number(row.lag),
            age(now_ms - row.oldest_ms) if row.oldest_ms else "–",
            clear_in(history.lags(name)[-30:], row.members),
            number(row.members),
        )

    body = join(
        asking(field_of("Name contains", "word", rows.word), action="/groups", label="Groups"),
        table(
            "Groups", ("Group", "Topics", "To do", "Oldest", "Clear in", "Members"),
            map(cells, rows.rows), numbers=(2, 5), hide_caption=True,
            empty="No group with this name. A group is there once a consumer has started.",
        ),
        paging(rows, "/groups", "groups", word=rows.word),
    )  # fmt: skip
    known = [shot.groups.get(name) or {"name": name} for name in rows.rows]
    return Page(
        "Groups", [Section("groups", body, live=True)], cli="inorder group list",
        data={"groups": replace(rows, rows=known)},  # type: ignore[arg-type]
    )  # fmt: skip
