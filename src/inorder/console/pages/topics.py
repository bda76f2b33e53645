"""Pages about topics: the list, one topic with its queues, its resize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from inorder.client.admin import QueueView, TopicResize, TopicView
from inorder.console.markup import Html, Node, el, join
from inorder.console.pages.frame import (
    Page,
    Section,
    Viewer,
    asking,
    badge,
    card,
    clock_time,
    facts,
    field_of,
    form,
    link,
    number,
    paging,
    short,
    table,
)
from inorder.console.rules import Level, Rows, path
from inorder.model import PERM_READ, PERM_WRITE, TopicConfig
from inorder.ordering import keymap

HEAT_MAX: Final = 1_000


def tabs(topic: str) -> list[tuple[str, str]]:
    """Return the parts of a topic's page."""
    return [
        ("Queues", path("topics", topic)),
        ("Messages", path("messages", topic=topic)),
        ("Story of a key", path("keys", topic=topic)),
        ("Resize", path("topics", topic, "resize")),
        ("Send", path("topics", topic, "send")),
    ]


def topics(
    rows: Rows[str],
    configs: Mapping[str, Mapping[str, TopicConfig]],
    views: Mapping[str, TopicView | str],
    silent: Sequence[str],
) -> Page:
    """Return a page of topics."""

    def facts_of(name: str) -> tuple[int, int]:
        own = configs.get(name, {})
        versions = {
            keymap.version_of(one.attributes.get(keymap.ATTRIBUTE, "")) for one in own.values()
        }
        return sum(one.write_queues for one in own.values()), max(versions, default=0)

    def row(name: str) -> dict[str, object]:
        view, (queues, version) = views.get(name), facts_of(name)
        found = {"name": name, "queues": queues, "key_map_version": version or None}
        if not isinstance(view, TopicView):
            return {**found, "error": view or "no answer"}
        return {**found, "messages": view.messages, "put_rate": view.put_rate,
                "groups": view.groups}  # fmt: skip

    def cells(name: str) -> tuple[Node, ...]:
        view, (queues, version) = views.get(name), facts_of(name)
        keyed: Node = f"version {version}" if version else "–"
        first = link(name, path("topics", name))
        if not isinstance(view, TopicView):
            return (first, number(queues), keyed, "", "", short(view or "no answer", 60))
        return (
            first, number(queues), keyed, number(view.messages), f"{view.put_rate:,.1f}/s",
            short(", ".join(view.groups) or "–", 60),
        )  # fmt: skip

    missing = el("p", f"No answer from {'; '.join(silent)}", class_="failure") if silent else None
    body = join(
        asking(field_of("Name contains", "word", rows.word), action="/topics", label="Topics"),
        missing,
        table(
            "Topics", ("Topic", "Queues", "Key map", "Messages", "In", "Groups"),
            map(cells, rows.rows), numbers=(1, 3, 4), hide_caption=True,
            empty=join("There is no topic with this name. Send a first message with ",
                       el("code", "inorder send orders hello --key order-42"), "."),
        ),
        paging(rows, "/topics", "topics", word=rows.word),
    )  # fmt: skip
    shown = Rows([row(name) for name in rows.rows], rows.total, rows.page, rows.pages, rows.word)
    return Page(
        "Topics", [Section("topics", body)], cli="inorder topic list",
        data={"topics": shown, "silent": silent},
    )  # fmt: skip


def topic(
    view: TopicView, versions: TopicResize | None, rows: Rows[QueueView], now_ms: int
) -> Page:
    """Return one topic."""
    version = "the broker keeps none" if versions is None else f"version {versions.version}"
    head = facts(
        ("Messages", number(view.messages)),
        ("In", f"{view.put_rate:,.1f}/s"),
        ("Queues", number(len(view.queues))),
        ("Key map", version),
        ("May", _may(view)),
        ("Resize", _resize_word(versions)),
    )
    groups = table(
        "Groups", ("Group",), [(link(one, path("groups", one)),) for one in view.groups],
        hide_caption=True, empty="No group consumes this topic.",
    )  # fmt: skip
    queues = table(
        "Queues", ("Queue", "Broker", "First", "End", "Messages", "Last stored"),
        [
            (
                link(f"{one.queue.index}", path("messages", topic=view.name,
                                                queue=f"{one.queue.broker}/{one.queue.index}")),
                one.queue.broker, number(one.min_offset), number(one.max_offset),
                number(one.messages), clock_time(one.updated_at_ms),
            )
            for one in rows.rows
        ],
        numbers=(0, 2, 3, 4), hide_caption=True,
    )  # fmt: skip
    return Page(
        view.name,
        [
            Section("facts", head, live=True),
            Section("heat", card("Messages by queue", _heat(view)), live=True),
            Section("queues", card("Queues", queues, paging(rows, path("topics", view.name),
                                                            "queues")), live=True),
            Section("groups", card("Groups", groups)),
        ],
        crumbs=(("Topics", "/topics"),),
        tabs=tabs(view.name),
        tab=path("topics", view.name),
        cli=f"inorder topic describe {view.name}",
        data={
            "name": view.name, "messages": view.messages, "put_rate": view.put_rate,
            "configs": view.configs, "groups": view.groups, "queues": rows, "resize": versions,
        },
    )  # fmt: skip


def _may(view: TopicView) -> str:
    perms = {one.perm for one in view.configs.values()}
    words = []
    for perm in sorted(perms):
        read = "read" if perm & PERM_READ else ""
        write = "write" if perm & PERM_WRITE else ""
        words.append(" and ".join(filter(None, (read, write))) or "nothing")
    return ", ".join(words)


def _resize_word(state: TopicResize | None) -> Html:
    if state is None:
        return badge("not known", Level.UNKNOWN)
    if state.plan is not None:
        return badge(f"to {state.planned_queues} queues", Level.WARN)
    if state.waiting:
        return badge(f"{len(state.waiting)} groups behind", Level.WARN)
    return badge("none", Level.OK)


def _heat(view: TopicView) -> Html:
    """Return a bar for each queue: how many messages it holds; the table below has the numbers."""
    queues = view.queues[:HEAT_MAX]
    top = max((one.messages for one in queues), default=0)
    if not top:
        return el("p", "No queue holds a message.", class_="empty")
    width = 1000 / len(queues)
    bars = [
        el(
            "rect",
            el("title", f"{one.queue.broker}/{one.queue.index}: {one.messages:,} messages"),
            x=f"{at * width:.2f}", y=f"{100 - one.messages / top * 96:.2f}",
            width=f"{max(0.4, width - min(4, width * 0.2)):.2f}",
            height=f"{one.messages / top * 96:.2f}",
        )
        for at, one in enumerate(queues)
    ]  # fmt: skip
    label = f"Messages of {len(queues)} queues, at most {top:,}; the numbers are in the table"
    return el("svg", bars, viewBox="0 0 1000 100", class_="heat", role="img", aria_label=label,
              preserveAspectRatio="none")  # fmt: skip


def resize(topic_name: str, state: TopicResize | None, viewer: Viewer, why: str = "") -> Page:
    """Return the resize of a topic: its state, its progress, and the form for another one."""
    here = path("topics", topic_name, "resize")
    if state is None:
        said = why or (
            "This broker keeps no versions of a topic's queues: it is Apache RocketMQ, where "
            "another number of queues breaks the order of keys."
        )
        sections = [Section("none", el("p", said, class_="empty"))]
        return _resize_page(topic_name, sections, None)
    body: list[Node] = [_steps(state), _waiting(state, viewer)]
    if state.plan is not None:
        body.append(
            form(here, viewer, el("input", type="hidden", name="do", value="resume"),
                 submit="Go on with the resize")
        )  # fmt: skip
        if not state.opened:
            body.append(
                form(here, viewer, el("input", type="hidden", name="do", value="abort"),
                     submit="Take the resize back", danger=True)
            )  # fmt: skip
    start = join(
        el("p", "Keys stay in order: producers use the new queues at once, and each group reads "
           "them after it has handled what was sent before. The messages stay where they are."),
        form(
            here, viewer,
            el("input", type="hidden", name="do", value="start"),
            field_of("Queues in all", "queues", str(state.queues), type="number", min="1",
                     max="10000", required=True),
            field_of(f"Type {topic_name} to confirm", "confirm", required=True),
            field_of("Reason", "reason", required=True),
            submit="Resize",
        ),
    )  # fmt: skip
    sections = [
        Section("state", card("Where it stands", *body), live=True),
        Section("start", card("Another number of queues", start)),
    ]
    return _resize_page(topic_name, sections, state)


def _resize_page(
    topic_name: str, sections: Sequence[Section], state: TopicResize | None
) -> Page:  # fmt: skip
    return Page(
        f"Resize {topic_name}", sections,
        crumbs=(("Topics", "/topics"), (topic_name, path("topics", topic_name))),
        tabs=tabs(topic_name), tab=path("topics", topic_name, "resize"),
        cli=f"inorder topic resize {topic_name} --status", data={"resize": state},
    )  # fmt: skip


def _steps(state: TopicResize) -> Html:
    count = len(state.brokers)
    version = state.version
    if state.plan is None:
        opened = ", ".join(f"{name} {queues}" for name, queues in state.brokers.items())
        steps = [("✓", f"version {version} is open: {state.queues} queues ({opened})")]
    else:
        stopped, opened_at = len(state.stopped), len(state.opened)
        done = count if state.opened else stopped
        steps = [
            ("✓", f"decided: {state.queues} → {state.planned_queues} queues, "
                  f"version {state.plan.version}"),
            ("✓" if done == count else "◌", f"stopped at {done} of {count} brokers"),
            ("✓" if opened_at == count else "◌", f"open at {opened_at} of {count} brokers"),
        ]  # fmt: skip
    if state.waiting:
        left = sum(one.behind for one in state.waiting)
        steps.append(("◌", f"{len(state.waiting)} groups have {left:,} older messages to handle"))
    elif state.plan is None:
        steps.append(("✓", "every group reads the present version"))
    if state.closing:
        steps.append(("◌", f"{state.closing} removed queues can be read until all are done"))
    if state.away:
        steps.append(("▲", f"no answer from {', '.join(state.away)}"))
    items = [
        el("li", el("span", mark, class_="mark", aria_hidden="true"), words)
        for mark, words in steps
    ]
    return el("ol", items, class_="steps")


def _waiting(state: TopicResize, viewer: Viewer) -> Html:
    if not state.waiting:
        return Html("")
    rows = [
        (
            link(one.group, path("groups", one.group)),
            f"version {one.version}",
            number(one.behind),
            badge("online", Level.OK) if one.online else badge("offline", Level.WARN),
            "is rewound, rests" if one.rests else ", ".join(one.brokers) or "finished here",
            form(
                path("topics", state.topic, "resize"), viewer,
                el("input", type="hidden", name="do", value="release"),
                el("input", type="hidden", name="group", value=one.group),
                field_of("Reason", "reason", required=True, id=f"f-reason-{at}"),
                submit="Do not wait for it", danger=True,
                label=f"Do not wait for {one.group}",
            ),
        )
        for at, one in enumerate(state.waiting)
    ]  # fmt: skip
    return table(
        "Groups that have yet to handle what is older",
        ("Group", "Reads", "Messages left", "Members", "At", "Not coming back?"),
        rows, numbers=(2,),
    )  # fmt: skip


def send(topic_name: str, viewer: Viewer, sent: str = "") -> Page:
    """Return the form to send a test message."""
    body = form(
        path("topics", topic_name, "send"), viewer,
        field_of("Key", "key", hint="Messages of one key stay in order."),
        field_of("Tag", "tag"),
        el("div", el("label", "Body", for_="f-body"),
           el("textarea", id="f-body", name="body", rows="6"), class_="field wide"),
        submit="Send", label=f"Send a message to {topic_name}",
    )  # fmt: skip
    receipt = el("p", sent, class_="success", role="status") if sent else None
    return Page(
        f"Send to {topic_name}", [Section("send", card("A test message", receipt, body))],
        crumbs=(("Topics", "/topics"), (topic_name, path("topics", topic_name))),
        tabs=tabs(topic_name), tab=path("topics", topic_name, "send"),
        cli=f"inorder send {topic_name} TEXT --key KEY",
    )  # fmt: skip
