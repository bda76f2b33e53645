"""HTML as values. A text becomes part of a page only by an escape.

    el("td", message.key, class_="key")        <td class="key">order-42</td>

`el` escapes every child that is not `Html` already, and every attribute. Names, keys and bodies
come from others: what would hide or reverse text is shown as an escape (`inorder.escaping`). No
page joins texts to HTML by itself. Why no template language: decision 57.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Final

from inorder.escaping import escaped

VOID: Final = frozenset({"br", "hr", "img", "input", "link", "meta"})
CELL_CHARS_MAX: Final = 300


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Node = Html | str | int | float | None | Iterable["Node"]
Attribute = str | int | bool | None

EMPTY: Final = Html("")


def text(value: str, limit: int | None = CELL_CHARS_MAX) -> Html:
    """Return a text of others as HTML: nothing in it is markup, hides or reverses; cut if long."""
    return Html(html.escape(escaped(value, limit), quote=True))


def render(node: Node) -> Html:
    """Return a node as HTML; a text is escaped."""
    if node is None:
        return EMPTY
    if isinstance(node, Html):
        return node
    if isinstance(node, str):
        return text(node, None)
    if isinstance(node, int | float):
        return Html(node)
    return Html("".join(render(one) for one in node))


def el(name: str, /, *children: Node, **attributes: Attribute) -> Html:
    """Return an element. `class_` is `class`, `aria_label` is `aria-label`; None is left out."""
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(shown)
        else:
            words.append(f'{shown}="{html.escape(escaped(str(value), None), quote=True)}"')
    start = f"<{' '.join(words)}>"
    if name in VOID:
        return Html(start)
    return Html(f"{start}{render(children)}</{name}>")


def join(*nodes: Node) -> Html:
    """Return nodes one after the other."""
    return render(nodes)
