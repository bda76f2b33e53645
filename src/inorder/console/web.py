"""The console's side of HTTP: headers that guard pages, forms, cookies, links back.

Every answer carries the headers that keep hostile text in a page harmless: no script, style or
picture but the console's own, and no request to another host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from inorder.console.markup import Html
from inorder.net.http import Refused, Request, Response

BODY_BYTES_MAX: Final = 512 * 1024
FIELDS_MAX: Final = 2_000
HTML: Final = "text/html; charset=utf-8"

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
GUARDS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """What a browser asks for: the parts of the path, the fields of the query and of the form."""

    parts: tuple[str, ...]
    query: Mapping[str, str]
    form: Mapping[str, tuple[str, ...]]
    target: str
    """Path and query, to come back to."""

    def word(self, name: str) -> str:
        """Return a field of the query."""
        return self.query.get(name, "").strip()

    def number(self, name: str, default: int = 1) -> int:
        """Return a number of the query, or the default."""
        value = self.query.get(name, "")
        return int(value) if value.isdecimal() and len(value) < 19 else default

    def sent(self, name: str) -> str:
        """Return a field of the form."""
        return self.form.get(name, ("",))[0]


def parts_of(path: str) -> tuple[str, ...]:
    """Return the parts of a path."""
    return tuple(one for one in path.split("/") if one)


def form_of(request: Request) -> dict[str, tuple[str, ...]]:
    """Return the fields of a form. Raises Refused."""
    if not request.body:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "send a form")
    try:
        fields = parse_qsl(
            request.body.decode("utf-8", "replace"), keep_blank_values=True,
            max_num_fields=FIELDS_MAX, errors="replace",
        )  # fmt: skip
    except ValueError:
        raise Refused(413, f"a form has at most {FIELDS_MAX} fields") from None
    found: dict[str, tuple[str, ...]] = {}
    for name, value in fields:
        found[name] = (*found.get(name, ()), value)
    return found


def cookie_of(request: Request, name: str) -> str:
    """Return a cookie; empty: there is none."""
    for one in request.headers.get("cookie", "").split(";"):
        key, _, value = one.strip().partition("=")
        if key == name:
            return value
    return ""


def page(html: Html, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a page."""
    return Response(html.encode("utf-8", "replace"), status, HTML, dict(headers or {}))


def go(path: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the order to ask for another page."""
    return Response(b"", 303, headers={"Location": path, **(headers or {})})
