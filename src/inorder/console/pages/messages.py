"""Pages about messages: search, one message, the story of a key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from inorder.client.rules.traces import TraceView
from inorder.console.data import BODY_BYTES_MAX, ROW_BYTES_MAX, head
from inorder.console.letters import letter_of
from inorder.console.markup import EMPTY, Html, Node, el, join
from inorder.console.pages import letters
from inorder.console.pages import topics as topic_pages
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
    link,
    number,
    short,
    table,
)
from inorder.console.pages.groups import message_path
from inorder.console.reads import Found
from inorder.console.rules import Level, path
from inorder.console.story import Evidence, Kind, Step, Verdict
from inorder.escaping import escaped_body, escaped_json
from inorder.model import ReceivedMessage, TopicQueue
from inorder.wire.names import DEAD_LETTER_PREFIX

HEX_BYTES_MAX: Final = 4096
LIVE_SCAN_MAX: Final = 20_000
"""A story for which more messages are looked at is not told anew every two seconds."""
BAD: Final = frozenset({Kind.FAILED, Kind.SEND_FAILED, Kind.DEAD, Kind.DROPPED})
WARN: Final = frozenset(
    {Kind.PARKED, Kind.JOINED, Kind.RETRIED, Kind.RETURNED, Kind.MOVED, Kind.CANCELLED,
     Kind.FORGOTTEN}
)  # fmt: skip
GOOD: Final = frozenset({Kind.HANDLED, Kind.REDRIVEN, Kind.LIVE, Kind.COMMITTED})


def messages(
    topic: str, topics: Sequence[str], asked: dict[str, str], found: Found | None,
    queues: Sequence[TopicQueue], error: str = "",
) -> Page:  # fmt: skip
    """Return a search of a topic's messages, and what it has found."""
    names = [(f"{one.broker}/{one.index}", f"{one.broker}/{one.index}") for one in queues[:1000]]
    ask = asking(
        field_of("Topic", "topic", topic, required=True, list="topics"),
        el("datalist", [el("option", value=one) for one in topics[:200]], id="topics"),
        choice("Queue", "queue", [("", "all"), *names], asked.get("queue", "")),
        field_of("Key", "key", asked.get("key", "")),
        field_of("Message id", "id", asked.get("id", "")),
        field_of("Stored since", "since", asked.get("since", ""), placeholder="10m"),
        field_of("Offset", "offset", asked.get("offset", ""), type="number", min="0"),
        field_of("Tag", "tag", asked.get("tag", "")),
        action="/messages", submit="Find", label="Find messages",
    )  # fmt: skip
    sections = [Section("ask", card("Find messages", ask))]
    if error:
        sections.append(Section("failure", el("p", error, class_="failure", role="alert")))
    if found is not None:
        live = not any(asked.get(one) for one in ("key", "id", "since", "offset"))
        sections.append(Section("found", _found(topic, asked, found), live=live))
    return Page(
        f"Messages of {topic}" if topic else "Messages",
        sections,
        crumbs=(("Topics", "/topics"), (topic, path("topics", topic))) if topic else (),
        tabs=topic_pages.tabs(topic) if topic else (),
        tab=path("messages", topic=topic),
        cli=f"inorder message find {topic or 'TOPIC'} --from 10m",
        data={"topic": topic, "found": found and _rows(found), "error": error},
    )  # fmt: skip


def _rows(found: Found) -> Found:
    short_ = [replace(one, body=head(one.body, ROW_BYTES_MAX)) for one in found.messages]
    return replace(found, messages=short_)


def _found(topic: str, asked: dict[str, str], found: Found) -> Html:
    said = f"{len(found.messages):,} shown, {found.how}" if found.how else ""
    if found.scanned:
        said += f"; looked at {found.scanned:,} messages"
    rows = [
        (
            clock_time(one.stored_at_ms),
            link(f"{one.queue.broker}/{one.queue.index} @ {one.offset}", message_path(one)),
            link(short(one.key, 40), path("keys", topic=topic, key=one.key)) if one.key else "–",
            short(one.tag or "–", 30),
            el("code", short(escaped_body(one.body, 100), 100), class_="body"),
        )
        for one in found.messages
    ]
    older: Node = None
    if found.next_offset is not None:
        older = el("nav", link("following ›", path(
            "messages", topic=topic, queue=asked.get("queue", ""), offset=found.next_offset,
        )), class_="paging", aria_label="Pages of messages")  # fmt: skip
    return join(
        el("p", said, class_="faint") if said else None,
        el("p", f"The search is not complete: it {found.cut}.", class_="failure")
        if found.cut else None,
        table(
            f"Messages of {topic}", ("Stored", "Place", "Key", "Tag", "Body"), rows,
            hide_caption=True, empty="There is no such message.",
        ),
        older,
    )  # fmt: skip


def message(one: ReceivedMessage, traces: Sequence[TraceView] | str, viewer: Viewer) -> Page:
    """Return one message; a dead letter with the form to send it again."""
    topic = one.topic
    head = facts(
        ("Topic", link(topic, path("topics", topic))),
        ("Place", f"{one.queue.broker}/{one.queue.index} @ {one.offset}"),
        ("Key", link(short(one.key), path("keys", topic=topic, key=one.key)) if one.key else "–"),
        ("Stored", clock_time(one.stored_at_ms)),
        ("Made", clock_time(one.born_at_ms)),
        ("Id", el("code", short(one.message_id or "–"))),
    )
    shown = table(
        "Properties", ("Name", "Value"),
        [(short(name), short(value, 400)) for name, value in sorted(one.properties.items())],
        hide_caption=True, empty="It has none.",
    )  # fmt: skip
    if isinstance(traces, str):
        steps: Node = el("p", traces, class_="faint")
    else:
        steps = table(
            "What clients traced", ("Time", "Step", "Group", "Result"),
            [
                (clock_time(each.at_ms), each.kind, each.group,
                 "–" if each.success is None else f"{'ok' if each.success else 'failed'}, "
                 f"{each.spent_ms} ms")
                for each in traces
            ],
            hide_caption=True, empty="No client traced this message: trace=True turns it on.",
        )  # fmt: skip
    where = f"{one.queue.broker}/{one.queue.index}"
    near = [link("next in the queue", path("messages", topic=topic, queue=where,
                                           offset=one.offset + 1))]  # fmt: skip
    if one.key:
        near.insert(0, link("the story of its key", path("keys", topic=topic, key=one.key)))
    return Page(
        f"Message {one.offset} of {topic}",
        [
            Section("facts", head),
            Section("body", card("Body", body_of(one.body))),
            Section("properties", card("Properties", shown)),
            Section("traces", card("Traces", steps)),
            Section("again", _again(one, viewer)),
            Section("near", el("p", [join(each, " ") for each in near], class_="near")),
        ],
        crumbs=(("Topics", "/topics"), (topic, path("topics", topic))),
        cli=f"inorder message get {topic} --queue {one.queue.index} --offset {one.offset} "
        f"--broker {one.queue.broker}",
        data={"message": one, "body_bytes": len(one.body), "traces": traces},
    )  # fmt: skip


def _again(one: ReceivedMessage, viewer: Viewer) -> Html:
    if not one.topic.startswith(DEAD_LETTER_PREFIX):
        return EMPTY
    letter = letter_of(one)
    return letters.again(letter.place, letter.group, viewer)


def body_of(body: bytes) -> Html:
    """Return a body as JSON, text or hexadecimal; the first part of a huge one."""
    part = body[:BODY_BYTES_MAX]
    cut = (
        el("p", f"The first {BODY_BYTES_MAX:,} of {len(body):,} bytes.", class_="faint")
        if len(part) < len(body)
        else None
    )
    if not body:
        return el("p", "The body is empty.", class_="empty")
    try:
        value = json.loads(part)
        shown = escaped_json(json.dumps(value, indent=2, ensure_ascii=False))
        return join(el("p", "JSON", class_="faint"), el("pre", _kept(shown)), cut)
    except (ValueError, RecursionError):
        pass
    try:
        part.decode()
    except UnicodeDecodeError as error:
        return join(
            el("p", f"Not UTF-8 from byte {error.start} on; in hexadecimal:", class_="faint"),
            el("pre", _kept(_hex(part[:HEX_BYTES_MAX]))),
            cut,
        )
    text = escaped_body(part, None, keep="\n\t")
    return join(el("p", "Text", class_="faint"), el("pre", _kept(text)), cut)


def _kept(value: str) -> Html:
    """Return lines of an escaped text; `el` would show their ends as escapes."""
    return Html("\n".join(join(line) for line in value.replace("\t", "    ").split("\n")))


def _hex(data: bytes) -> str:
    lines = []
    for at in range(0, len(data), 16):
        part = data[at : at + 16]
        printable = "".join(chr(one) if 0x20 <= one < 0x7F else "." for one in part)
        lines.append(f"{at:08x}  {part.hex(' '):<47}  {printable}")
    return "\n".join(lines)


# The story of a key.


def key_form(topics: Sequence[str], topic: str, key: str, group: str, since: str) -> Html:
    """Return the form that asks for a key."""
    return asking(
        field_of("Topic", "topic", topic, required=True, list="topics"),
        el("datalist", [el("option", value=one) for one in topics[:200]], id="topics"),
        field_of("Key", "key", key, required=True),
        field_of("Group", "group", group, hint="Empty: all groups."),
        field_of("Stored since", "since", since, placeholder="7d"),
        action="/keys", submit="Tell its story", label="The story of a key",
    )  # fmt: skip


def ask_key(form: Html, error: str = "") -> Page:
    """Return the page that asks for a key."""
    about = el(
        "p", "Everything that happened to the messages of one key, in one line of time: sent, "
        "stored, delivered, retried, parked, moved by a resize, redriven, committed.",
        class_="faint",
    )  # fmt: skip
    failure = el("p", error, class_="failure", role="alert") if error else None
    return Page("The story of a key", [Section("ask", card("Which key?", about, failure, form))])


def story(
    told: Evidence, steps: Sequence[Step], verdicts: Sequence[Verdict], form: Html, spent_ms: int
) -> Page:
    """Return the story of a key."""
    scanned = (
        f"Looked at {told.scanned:,} messages in {spent_ms:,} ms; {len(told.messages)} are of "
        "this key."
    )
    live = told.scanned <= LIVE_SCAN_MAX
    queues = sorted({one.queue for one in told.messages})
    places = ", ".join(f"{one.broker}/{one.index}" for one in queues) or "–"
    head = facts(
        ("Messages", number(len(told.messages))),
        ("Queues", places),
        ("Key map versions", ", ".join(str(one.number) for one in told.versions) or "not known"),
        ("Groups", ", ".join(told.groups) or "–"),
    )
    unknown = [el("li", one) for one in told.not_known]
    line: Node = el("ol", [_step(one) for one in steps], class_="story") if steps else el(
        "p", "No message of this key was found. It may be deleted by age, or sent under another "
        "key or topic.", class_="empty",
    )  # fmt: skip
    return Page(
        f"Key {told.key} of {told.topic}",
        [
            Section("facts", head, live=live),
            Section("verdict", join(map(_verdict, verdicts)), live=live),
            Section("story", card(
                "Its story", el("p", scanned, class_="faint"),
                el("p", f"The scan is not complete: it {told.cut}.", class_="failure")
                if told.cut else None,
                line,
            ), live=live),
            Section("unknown", card("What is not told", el("ul", unknown, class_="list"))
                    if unknown else EMPTY),
            Section("ask", card("Another key", form)),
        ],
        crumbs=(("Topics", "/topics"), (told.topic, path("topics", told.topic)),
                ("Keys", path("keys", topic=told.topic))),
        cli=f"inorder message find {told.topic} --key {told.key}",
        data={
            "topic": told.topic, "key": told.key, "steps": steps, "groups": told.groups,
            "verdicts": [
                {"group": one.group, "stored": one.stored, "handled": one.handled,
                 "below_offset": one.below_offset, "in_order": one.in_order,
                 "findings": one.report and one.report.by_kind}
                for one in verdicts
            ],
            "versions": [one.number for one in told.versions], "not_known": told.not_known,
            "scanned": told.scanned, "cut": told.cut,
        },
    )  # fmt: skip


def _verdict(one: Verdict) -> Html:
    counts = f"{one.stored} stored, {one.below_offset} below the group's offset"
    if one.report is None:
        return el(
            "p", badge("not judged", Level.UNKNOWN), f" Group {one.group}: {counts}. No handler "
            "of it is in the trace topic, so the order checker has nothing to judge.",
            class_="verdict",
        )  # fmt: skip
    if one.in_order:
        return el(
            "p", badge("in order", Level.OK), f" Group {one.group}: {counts}, {one.handled} "
            "handled, none lost, doubled or inverted.", class_="verdict",
        )  # fmt: skip
    kinds = ", ".join(f"{count} {kind}" for kind, count in one.report.by_kind.items())
    first = one.report.findings[0].message if one.report.findings else ""
    return el(
        "p", badge("NOT in order", Level.BAD), f" Group {one.group}: {counts}: {kinds}. {first}",
        class_="verdict",
    )  # fmt: skip


def _step(one: Step) -> Html:
    colour = (
        Level.BAD if one.kind in BAD else Level.WARN if one.kind in WARN
        else Level.OK if one.kind in GOOD else "plain"
    )  # fmt: skip
    place = ""
    if one.queue is not None:
        place = f"{one.queue.broker}/{one.queue.index}"
        place += f" @ {one.offset}" if one.offset is not None else ""
        place += f" v{one.version}" if one.version else ""
    to = (
        path("message", topic=one.queue.topic, queue=f"{one.queue.broker}/{one.queue.index}",
             offset=one.offset)
        if one.queue is not None and one.offset is not None else ""
    )  # fmt: skip
    return el(
        "li",
        el("span", clock_time(one.at_ms) if one.at_ms else "time not kept", class_="when"),
        el("span", badge(one.kind, colour), class_="kind"),
        el(
            "span",
            el("span", link(place, to) if to else place, class_="place"),
            el("span", one.group, class_="group") if one.group else None,
            el("span", short(one.text, 400)),
            el(
                "span", "derived from " if one.derived else "from ", one.source,
                class_="source derived" if one.derived else "source",
            ),
            class_="what",
        ),
        class_=f"step {colour}",
        data_kind=one.kind,
    )  # fmt: skip
