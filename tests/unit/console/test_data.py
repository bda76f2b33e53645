"""A page as data: which path means which page, and how values are written."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from inorder.console.data import head, page_parts, path_of, plain
from inorder.console.rules import Level
from inorder.model import TopicQueue


@pytest.mark.parametrize(
    ("at", "path", "parts"),
    [
        ("/", "/overview.json", ()),
        ("/topics", "/topics.json", ("topics",)),
        (
            "/groups/a%25/owners?page=2",
            "/groups/a%25/owners.json?page=2",
            ("groups", "a%", "owners"),
        ),
    ],
)
def test_every_page_has_a_path_of_data(at: str, path: str, parts: tuple[str, ...]) -> None:
    """The query stays behind it."""
    assert path_of(at) == path
    where = path.partition("?")[0].replace("%25", "%")
    assert page_parts(tuple(filter(None, where.split("/")))) == parts


def test_other_paths_are_no_data() -> None:
    """Neither pages nor an ending without a name."""
    assert page_parts(()) is None
    assert page_parts(("topics",)) is None
    assert page_parts(("topics", ".json")) is None


@dataclass(slots=True)
class Shown:
    """A value of a page."""

    queue: TopicQueue
    at: datetime
    _own: int = 1
    hidden: object = field(default=None, repr=False)


def test_values_are_written_as_json_has_them() -> None:
    """Dataclasses by their fields, enumerations by their value, keys of mappings as texts."""
    queue = TopicQueue("t", "a", 1)
    value = {
        "one": Shown(queue, datetime(2026, 1, 2, tzinfo=UTC)), "level": Level.BAD,
        "rows": (1, 2.5, None, True), queue: {"x"},
    }  # fmt: skip
    assert json.loads(json.dumps(plain(value))) == {
        "one": {"queue": {"topic": "t", "broker": "a", "index": 1},
                "at": "2026-01-02T00:00:00+00:00"},
        "level": "bad", "rows": [1, 2.5, None, True], "t/a/1": ["x"],
    }  # fmt: skip
    with pytest.raises(TypeError):
        plain(object())


def test_bodies_are_text_or_base64() -> None:
    """A body is cut between characters."""
    assert plain("é".encode()) == {"text": "é"}
    assert plain(b"\xff") == {"base64": "/w=="}
    assert head("aé".encode(), 2) == b"a"
    assert head(b"abc", 2) == b"ab"
    assert head(b"\x80" * 9, 6) == b"\x80\x80"
    assert head(b"ab", 2) == b"ab"
