"""Pictures: what they show is asked of matplotlib, not of pixels."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from inorder.errors import ConfigError
from inorder.spark.jobs.picture import (
    ALARM,
    COLOURS,
    Curve,
    Mark,
    Panel,
    Stretch,
    check_picture,
    figure,
    save_picture,
)

CURVES = [Curve("sent", [0, 5, 10], [0, 100, 3]), Curve("done", [0, 10], [0, 50], filled=True)]
PANELS = [
    Panel("What happened", "messages", CURVES),
    Panel("How fast", "messages per second", [Curve("rate", [0, 10], [9, 1])]),
]


def test_the_extra_is_named_where_matplotlib_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without matplotlib the error says what to install, and no file is left."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for call in (check_picture, lambda path: save_picture(path, "t", PANELS)):
        with pytest.raises(ConfigError, match=r"pip install 'inorder\[plot\]'"):
            call(str(tmp_path / "a.png"))
    assert list(tmp_path.iterdir()) == []


def test_other_files_than_png_are_refused(tmp_path: Path) -> None:
    """The ending says what is drawn."""
    with pytest.raises(ConfigError, match=r"ends with \.png"):
        save_picture(str(tmp_path / "a.jpg"), "t", PANELS)


def test_a_picture_says_what_it_shows() -> None:
    """The figure has title, axes, legends, lines, moments and stretches, in colours that differ."""
    pytest.importorskip("matplotlib")
    drawn = figure(
        "the title", PANELS, subtitle="and more", marks=[Mark("kill -9", 4.0), Mark("back", 9.0)],
        stretches=[Stretch("nobody works", 4.0, 6.0)],
    )  # fmt: skip
    assert [text.get_text() for text in drawn.texts] == ["the title", "and more"]
    first, second = drawn.axes
    assert [axes.get_ylabel() for axes in drawn.axes] == ["messages", "messages per second"]
    assert [axes.get_title(loc="left") for axes in drawn.axes] == ["What happened", "How fast"]
    assert second.get_xlabel() == "seconds since the start"
    legend: Any = first.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["sent", "done", "nobody works"]
    sent, done, kill, back = first.get_lines()
    assert list(sent.get_xdata()) == [0, 5, 10]
    assert list(sent.get_ydata()) == [0, 100, 3]
    assert (sent.get_color(), done.get_color()) == COLOURS[:2]
    assert kill.get_color() == back.get_color() == ALARM
    assert [text.get_text() for text in first.texts] == ["kill -9", "back"]
    assert [text.get_ha() for text in first.texts] == ["left", "right"]  # within the picture
    assert first.get_ylim()[1] > 100  # the words of marks are above the lines


def test_a_picture_of_nothing_is_one(tmp_path: Path) -> None:
    """No panels, no samples, no values above zero: still a picture, in a folder that is made."""
    pytest.importorskip("matplotlib")
    for number, panels in enumerate(
        ([], [Panel("a", "b", [Curve("x", [], [])])], [Panel("a", "b", [Curve("x", [1], [0])])])
    ):
        path = tmp_path / "new" / f"{number}.png"
        save_picture(str(path), "é", panels)
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
