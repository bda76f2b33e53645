"""The page of a group's dead letters: by cause, one by one, and once more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from inorder.console.letters import Cause, Letter
from inorder.console.markup import Html, Node, el, join
from inorder.console.pages.frame import (
    Page,
    Section,
    Viewer,
    asking,
    card,
    clock_time,
    field_of,
    form,
    link,
    number,
    paging,
    short,
    table,
)
from inorder.console.pages.groups import encode, tabs
from inorder.console.rules import Rows, path
from inorder.escaping import escaped_body

EMPTY: Final = (
    "No message of this group was given up. A message becomes a dead letter when its last retry "
    "has failed, or when the consumer has a DeadLetter policy."
)


def dead_letters(
    name: str, rows: Rows[Letter], found: Sequence[Cause], read: int, total: int, viewer: Viewer
) -> Page:
    """Return the newest dead letters of a group, with their causes and the form to send again."""
    base = path("groups", name, "dead-letters")
    return Page(
        f"Dead letters of {name}",
        [
            Section("causes", card("By cause", _causes(found, read, total))),
            Section("ask", asking(
                field_of("Key, topic or cause", "word", rows.word), action=base,
                label="Some dead letters",
            )),
            Section("letters", card("One by one, the newest first", _letters(base, rows, viewer))),
        ],
        crumbs=(("Groups", "/groups"), (name, path("groups", name))),
        tabs=tabs(name), tab=base,
        cli=f"inorder pipeline dead-letters {name}",
        data={"causes": found, "letters": rows, "read": read, "total": total},
    )  # fmt: skip


def _causes(found: Sequence[Cause], read: int, total: int) -> Html:
    shown = table(
        "Causes of the dead letters", ("Cause", "Topic", "Letters", "Keys", "First", "Last"),
        [
            (
                short(one.cause, 200),
                link(one.origin, path("topics", one.origin)) if one.origin else "not known",
                number(one.letters), number(one.keys), clock_time(one.first_ms),
                clock_time(one.last_ms),
            )
            for one in found[:50]
        ],
        numbers=(2, 3), hide_caption=True, empty=EMPTY,
    )  # fmt: skip
    if read >= total:
        return shown
    about = (
        f"Of the newest {read:,} of {total:,} dead letters. Messages has the older ones, and "
        "the job inorder pipeline dead-letters takes all of them."
    )
    return join(shown, el("p", about, class_="faint"))


def _letters(base: str, rows: Rows[Letter], viewer: Viewer) -> Html:
    shown = table(
        "Dead letters",
        ("Choose", "Died", "Key", "From", "Cause", "Attempts", "Body"),
        [_row(one, at, viewer) for at, one in enumerate(rows.rows)],
        numbers=(5,), hide_caption=True,
        empty=EMPTY if not rows.word else "No dead letter has this word.",
    )  # fmt: skip
    pages = paging(rows, base, "dead letters", word=rows.word)
    if not rows.rows:
        return shown
    if not viewer.signed_in:
        hint = el("p", link("Sign in", path("sign-in", back=base)), " to send them again.",
                  class_="locked")  # fmt: skip
        return join(shown, hint, pages)
    actions = el(
        "fieldset", el("legend", "With the chosen dead letters"),
        field_of("Reason", "reason", hint="Kept in the log."),
        el("div",
           el("button", "Send again", type="submit", name="do", value="send", class_="primary"),
           el("button", "Dry run", type="submit", name="do", value="dry"), class_="buttons"),
        el("p", "They go to the topics that they came from, in the order in which they died. What "
           "was sent again before is left out. Every group of the topic gets them.",
           class_="faint"),
    )  # fmt: skip
    whole = el(
        "form", el("input", type="hidden", name="csrf", value=viewer.csrf), shown, actions,
        method="post", action=base, aria_label="Dead letters",
    )  # fmt: skip
    return join(whole, pages)


def _row(one: Letter, at: int, viewer: Viewer) -> tuple[Node, ...]:
    to = path("message", topic=one.queue.topic, queue=f"{one.queue.broker}/{one.queue.index}",
              offset=one.offset)  # fmt: skip
    box = el(
        "input", type="checkbox", name="letter", id=f"letter-{at}", value=encode(one.place),
        disabled=not viewer.signed_in or not one.origin,
        aria_label=f"Choose dead letter {one.offset} of {one.queue.broker}",
    )  # fmt: skip
    story = path("keys", topic=one.origin, key=one.key, group=one.group)
    return (
        box,
        link(clock_time(one.stored_at_ms), to),
        link(short(one.key, 40), story) if one.key and one.origin else short(one.key or "–", 40),
        link(one.origin, path("topics", one.origin)) if one.origin else "not known",
        el("details", el("summary", short(one.cause, 60)), el("pre", one.cause)),
        number(one.attempts),
        el("code", short(escaped_body(one.body, 100), 100), class_="body"),
    )


def again(place: str, group: str, viewer: Viewer) -> Html:
    """Return what the page of one dead letter has beside those of other messages."""
    base = path("groups", group, "dead-letters")
    return card(
        "Dead letter",
        el("p", link(f"All dead letters of {group}", base)),
        form(
            base, viewer,
            el("input", type="hidden", name="letter", value=encode(place)),
            el("input", type="hidden", name="do", value="send"),
            field_of("Reason", "reason", hint="Kept in the log."),
            submit="Send again", label="Send this dead letter again",
        ),
    )  # fmt: skip
