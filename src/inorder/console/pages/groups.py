"""Pages about groups: why one stands, lag, members, owners over time, offsets, parked keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from inorder.client.admin import ParkedKey, QueueLag, QueueLock
from inorder.console.markup import EMPTY, Html, Node, el, join
from inorder.console.pages.frame import (
    Page,
    Section,
    Viewer,
    asking,
    badge,
    card,
    choice,
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
from inorder.console.reads import GroupPage
from inorder.console.rules import (
    History,
    Level,
    ResetRow,
    Rows,
    Segment,
    again,
    age,
    clear_in,
    path,
    size,
    skipped,
    why,
)
from inorder.model import ReceivedMessage, TopicQueue

QUEUES_DRAWN: Final = 64
COLOURS: Final = 8


def tabs(group: str) -> list[tuple[str, str]]:
    """Return the parts of a group's page."""
    return [
        ("Why", path("groups", group)),
        ("Owners", path("groups", group, "owners")),
        ("Offsets", path("groups", group, "offsets")),
        ("Parked", path("parked", group=group)),
        ("Dead letters", path("groups", group, "dead-letters")),
    ]


def group(page: GroupPage, rows: Rows[QueueLag], history: History, now_ms: int) -> Page:
    """Return one group: what keeps it from its work, its queues, its members."""
    name = page.view.name
    lags = history.lags(name)
    since = min((one.waiting_since_ms for one in page.lags if one.waiting_since_ms), default=0)
    head = facts(
        ("To do", number(sum(one.lag for one in page.lags))),
        ("Oldest", age(now_ms - since) if since else "–"),
        ("Clear in", clear_in(lags[-30:], len(page.view.members))),
        ("Trend", sparkline(lags, f"lag of {name} over the last minutes")),
        ("Members", join(number(len(page.view.members)), " ",
                         sparkline(history.members(name), "members over the last minutes"))),
        ("Queues", number(len(page.lags))),
    )  # fmt: skip
    told = why(name, page.facts)
    causes = join(_head(page.head, name, now_ms), findings(told))
    queues = table(
        "Queues, the most to do first",
        ("Queue", "Topic", "Committed", "End", "To do", "Oldest"),
        [
            (
                f"{one.queue.broker}/{one.queue.index}",
                link(one.queue.topic, path("topics", one.queue.topic)),
                number(one.committed_offset), number(one.end_offset), number(one.lag),
                age(now_ms - one.waiting_since_ms) if one.waiting_since_ms else "–",
            )
            for one in rows.rows
        ],
        numbers=(2, 3, 4), hide_caption=True,
        empty="The group has committed nothing yet.",
    )  # fmt: skip
    return Page(
        name,
        [
            Section("facts", head, live=True),
            Section("why", card("Why does it stand, or does it?", causes), live=True),
            Section("queues", card("Queues", queues,
                                   paging(rows, path("groups", name), "queues")), live=True),
            Section("members", card("Members", _members(page)), live=True),
        ],
        crumbs=(("Groups", "/groups"),),
        tabs=tabs(name), tab=path("groups", name),
        cli=f"inorder group describe {name}",
        data={
            "name": name, "why": told, "oldest": page.head, "queues": rows,
            "members": page.view.members, "differences": page.view.differences,
        },
    )  # fmt: skip


def _head(message: ReceivedMessage | None, group_name: str, now_ms: int) -> Html:
    if message is None:
        return EMPTY
    key = message.key
    story = link("its story", path("keys", topic=message.topic, key=key, group=group_name)) \
        if key else EMPTY  # fmt: skip
    words = f" has waited for {age(now_ms - message.stored_at_ms)}: "
    return el(
        "p", "The oldest unfinished: ",
        join(el("strong", "key ", short(key)), " on ") if key else None,
        link(
            f"{message.topic} {message.queue.broker}/{message.queue.index} @ {message.offset}",
            message_path(message),
        ),
        words, short(message.tag or "no tag", 40), " ", story,
        class_="oldest",
    )  # fmt: skip


def message_path(message: ReceivedMessage) -> str:
    """Return the page of a message."""
    return path(
        "message", topic=message.topic, queue=f"{message.queue.broker}/{message.queue.index}",
        offset=message.offset,
    )  # fmt: skip


def _members(page: GroupPage) -> Html:
    view = page.view
    members = table(
        "Members", ("Client", "Address", "Language", "Version"),
        [(short(one.client_id), one.address, one.language, str(one.version))
         for one in view.members[:200]],
        hide_caption=True, empty="Nobody is online.",
    )  # fmt: skip
    if not view.differences:
        return members
    rows = [
        (one.topic, "(not subscribed)" if wish is None else short(wish), ", ".join(clients))
        for one in view.differences
        for wish, clients in one.views
    ]
    return join(members, table("Different subscriptions", ("Topic", "Subscription", "Members"),
                               rows))  # fmt: skip


def owners(
    name: str, locks: Sequence[QueueLock] | None, rows: Rows[QueueLock], history: History,
    viewer: Viewer, now_ms: int,
) -> Page:  # fmt: skip
    """Return who owns which queue, now and since the console looks."""
    if locks is None:
        body: Node = el(
            "p", "Owners and epochs are not known: Apache RocketMQ does not tell who holds its "
            "locks.", class_="empty",
        )  # fmt: skip
        sections = [Section("owners", join(body))]
    else:
        now = table(
            "Owners now",
            ("Queue", "Topic", "Owner", "Epoch", "Since", "Left", "State", "Take away"),
            [_owner(one, name, at, viewer) for at, one in enumerate(rows.rows)],
            numbers=(3,), hide_caption=True,
            empty="Nobody owns a queue. Groups without order own none.",
        )  # fmt: skip
        seen = history.owners(name)
        sections = [
            Section("timeline", card("Over time", _timeline(seen, now_ms),
                                     el("p", "Brokers keep no history of owners: this is what the "
                                        "console saw, every two seconds while somebody looks.",
                                        class_="faint")), live=True),
            Section("owners", card("Now", now, paging(rows, path("groups", name, "owners"),
                                                      "queues")), live=True),
        ]  # fmt: skip
    return Page(
        f"Owners of {name}", sections,
        crumbs=(("Groups", "/groups"), (name, path("groups", name))),
        tabs=tabs(name), tab=path("groups", name, "owners"), cli=f"inorder locks {name}",
        data={"owners": None if locks is None else rows, "seen": history.owners(name)},
    )  # fmt: skip


def _owner(one: QueueLock, name: str, at: int, viewer: Viewer) -> tuple[Node, ...]:
    state = (
        badge("recalled", Level.WARN)
        if one.recalled
        else badge("connected", Level.OK)
        if one.connected
        else badge("not connected", Level.WARN)
    )
    take = form(
        path("groups", name, "take"), viewer,
        el("input", type="hidden", name="queue",
           value=f"{one.queue.topic}/{one.queue.broker}/{one.queue.index}"),
        field_of("Reason", "reason", required=True, id=f"f-reason-{at}"),
        submit="Take away", danger=True,
        label=f"Take queue {one.queue.broker}/{one.queue.index} away",
    )  # fmt: skip
    return (
        f"{one.queue.broker}/{one.queue.index}", one.queue.topic, short(one.holder or "nobody"),
        str(one.epoch), age(one.age_ms), age(one.remaining_ms), state,
        el("details", el("summary", "take…"), take) if viewer.signed_in else take,
    )  # fmt: skip


def _timeline(seen: Mapping[TopicQueue, Sequence[Segment]], now_ms: int) -> Html:
    if not seen:
        return el("p", "Nothing was seen yet.", class_="empty")
    queues = list(seen)[:QUEUES_DRAWN]
    begin = min(one.since_ms for queue in queues for one in seen[queue])
    begin = max(begin, now_ms - 600_000)
    span = max(1, now_ms - begin)
    names = list(dict.fromkeys(one.holder for queue in queues for one in seen[queue]))
    parts = []
    for at, queue in enumerate(queues):
        y = at * 18
        parts.append(el("text", f"{queue.broker}/{queue.index}", x="0", y=str(y + 12)))
        for one in seen[queue]:
            x = 130 + max(0, one.since_ms - begin) / span * 860
            width = max(2.0, (one.until_ms - max(begin, one.since_ms)) / span * 860)
            label = (
                f"{one.holder or 'nobody'}, epoch {one.epoch}, {age(one.until_ms - one.since_ms)}"
            )
            parts.append(
                el("rect", el("title", label), x=f"{x:.1f}", y=str(y + 2), width=f"{width:.1f}",
                   height="14", rx="2", class_=f"owner o{names.index(one.holder) % COLOURS}")
            )  # fmt: skip
    legend = [
        el("li", el("span", class_=f"swatch o{at % COLOURS}", aria_hidden="true"), short(name))
        for at, name in enumerate(names[:COLOURS])
    ]
    label = f"Owners of {len(queues)} queues over the last {age(span)}; the table has them now"
    return join(
        el("svg", parts, viewBox=f"0 0 1000 {len(queues) * 18}", class_="timeline", role="img",
           aria_label=label),
        el("ul", legend, class_="legend"),
    )  # fmt: skip


def offsets(
    name: str, topics: Sequence[str], topic: str, to: str, rows: Sequence[ResetRow] | None,
    facts_: Mapping[str, str], viewer: Viewer, error: str = "",
) -> Page:  # fmt: skip
    """Return the reset of a group: choose, see what it would do, do it."""
    ask = asking(
        choice("Topic", "topic", [(one, one) for one in topics], topic),
        field_of("To", "to", to, required=True,
                 hint="beginning, end, a time as 2026-11-16T11:00:00Z, or 10m: ten minutes ago"),
        action=path("groups", name, "offsets"), submit="Preview", label="Preview a reset",
    ) if topics else el("p", "The group has no offsets yet.", class_="empty")  # fmt: skip
    sections = [Section("ask", card("Reset to", ask))]
    if error:
        sections.append(Section("failure", el("p", error, class_="failure", role="alert")))
    if rows is not None:
        sections.append(Section("preview", _preview(name, topic, to, rows, facts_, viewer)))
    return Page(
        f"Offsets of {name}", sections,
        crumbs=(("Groups", "/groups"), (name, path("groups", name))),
        tabs=tabs(name), tab=path("groups", name, "offsets"),
        cli=f"inorder offset reset {name} {topic or 'TOPIC'} --to {to or 'TIME'}",
        data={"topics": topics, "preview": rows, "facts": facts_, "error": error},
    )  # fmt: skip


def _preview(
    name: str, topic: str, to: str, rows: Sequence[ResetRow], facts_: Mapping[str, str],
    viewer: Viewer,
) -> Html:  # fmt: skip
    shown = table(
        "What the reset would do", ("Queue", "Now", "To", "Effect"),
        [
            (f"{one.queue.broker}/{one.queue.index}", number(one.now), number(one.to), one.effect)
            for one in rows[:200]
        ],
        numbers=(1, 2), hide_caption=True,
    )  # fmt: skip
    sums = facts(
        ("Handled again", number(again(rows))),
        ("Skipped", number(skipped(rows))),
        *facts_.items(),
    )
    hidden = [
        el("input", type="hidden", name="seen", value=f"{one.queue}:{kind}={value}")
        for one in rows
        for kind, value in (("now", one.now), ("to", one.to))
    ]
    do = form(
        path("groups", name, "offsets"), viewer,
        el("input", type="hidden", name="topic", value=topic),
        el("input", type="hidden", name="to", value=to),
        hidden,
        field_of(f"Type {name} to confirm", "confirm", required=True),
        field_of("Reason", "reason", required=True),
        submit="Reset", danger=True, label=f"Reset {name}",
    )  # fmt: skip
    warning = el(
        "p", "Effects repeat unless handlers compare message.fence. It is refused if an offset "
        "moved back or the target moved since this preview.", class_="faint",
    )  # fmt: skip
    return card("Preview: nothing has changed", sums, shown, warning, do)


def parked(
    rows: Rows[ParkedKey] | None, full: Mapping[tuple[str, str], str], group_name: str,
    groups: Sequence[str], viewer: Viewer, now_ms: int,
) -> Page:  # fmt: skip
    """Return parked keys, with redrive and drop."""
    if rows is None:
        text = ("Parked keys are not known: Apache RocketMQ keeps none. Messages that fail there "
                "block their queue or go to the dead letter topic.")  # fmt: skip
        return Page(
            "Parked keys", [Section("parked", el("p", text, class_="empty"))], data={"parked": None}
        )
    ask = asking(
        choice("Group", "group", [("", "all groups"), *((one, one) for one in groups)], group_name),
        action="/parked", label="Parked keys of a group",
    )  # fmt: skip
    bound = [
        el("p", f"Group {name} parks nothing more at {broker}, its failing keys block: {why_}",
           class_="failure")
        for (name, broker), why_ in sorted(full.items())
    ]  # fmt: skip
    body = table(
        "Parked keys, the longest parked first",
        ("Choose", "Key", "Group", "Topic", "Queue", "Messages", "Parked for", "State", "Error"),
        [_parked_row(one, at, viewer, now_ms) for at, one in enumerate(rows.rows)],
        numbers=(5,), hide_caption=True,
        empty="No key is parked. A key is parked when its handler keeps failing and the consumer "
        "has a Park policy.",
    )  # fmt: skip
    actions = join(
        body,
        el(
            "fieldset", el("legend", "With the chosen keys"),
            field_of("Reason", "reason", hint="Kept in the log; needed to drop."),
            field_of("Most messages a second", "rate", type="number", min="1"),
            el("div",
               el("button", "Redrive", type="submit", name="do", value="redrive",
                  class_="primary"),
               el("button", "Dry run", type="submit", name="do", value="dry"),
               el("button", "Cancel redrive", type="submit", name="do", value="cancel"),
               el("button", "Drop…", type="submit", name="do", value="drop", class_="danger"),
               class_="buttons"),
        ) if viewer.signed_in and rows.rows else None,
    )  # fmt: skip
    if viewer.signed_in and rows.rows:
        body = el(
            "form", el("input", type="hidden", name="csrf", value=viewer.csrf), actions,
            method="post", action="/parked", aria_label="Parked keys",
        )  # fmt: skip
    elif rows.rows:
        body = join(body, el("p", link("Sign in", path("sign-in", back="/parked")),
                             " to redrive or drop keys.", class_="locked"))  # fmt: skip
    return Page(
        "Parked keys",
        [
            Section("ask", join(ask, bound)),
            Section("parked", join(body, paging(rows, "/parked", "keys", group=group_name)),
                    live=not viewer.signed_in),
        ],
        cli=f"inorder parked {group_name}".rstrip(),
        data={
            "parked": rows,
            "full": [{"group": name, "broker": broker, "why": why_}
                     for (name, broker), why_ in sorted(full.items())],
        },
    )  # fmt: skip


def _parked_row(one: ParkedKey, at: int, viewer: Viewer, now_ms: int) -> tuple[Node, ...]:
    value = "\x1f".join((one.group, one.topic, one.key))
    id_ = f"key-{at}"
    box = el("input", type="checkbox", name="key", id=id_, value=encode(value),
             disabled=not viewer.signed_in, aria_label=f"Choose key {one.key}")  # fmt: skip
    state = (
        badge(f"moved to {one.moved_to.broker}/{one.moved_to.index}", "plain")
        if one.moved_to is not None
        else badge("redriving", Level.OK)
        if one.redriving
        else badge("parked", Level.WARN)
    )
    return (
        box,
        link(short(one.key), path("keys", topic=one.topic, key=one.key, group=one.group)),
        link(one.group, path("groups", one.group)),
        one.topic,
        f"{one.queue.broker}/{one.queue.index}",
        join(number(one.messages), el("small", f" {size(one.size_bytes)}")),
        age(now_ms - one.since_ms),
        state,
        el("details", el("summary", short(one.last_error or one.first_error, 60)),
           el("pre", one.last_error or one.first_error)),
    )  # fmt: skip


def encode(value: str) -> str:
    """Return a text that a form gives back unchanged, whatever characters it has."""
    return value.encode("utf-8", "surrogatepass").hex()


def decode(value: str) -> str:
    """Reverse `encode`; damaged: empty."""
    try:
        return bytes.fromhex(value).decode("utf-8", "surrogatepass")
    except ValueError:
        return ""


def drop_page(keys: Sequence[tuple[str, str, str]], reason: str, viewer: Viewer) -> Page:
    """Return the question before parked messages are thrown away."""
    hidden = [
        el("input", type="hidden", name="key", value=encode("\x1f".join(one))) for one in keys
    ]
    body = card(
        f"Throw the messages of {len(keys)} keys away for good?",
        el("ul", [el("li", short(key), f" of group {group_name}") for group_name, _, key in keys]),
        form(
            "/parked", viewer, hidden,
            el("input", type="hidden", name="do", value="drop"),
            el("input", type="hidden", name="sure", value="yes"),
            field_of("Reason", "reason", reason, required=True),
            submit=f"Drop {len(keys)} keys", danger=True,
        ),
        el("p", link("No, go back", "/parked")),
    )  # fmt: skip
    return Page("Drop parked keys", [Section("drop", body)], crumbs=(("Parked", "/parked"),))
