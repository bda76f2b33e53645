"""The navigation of the site: made from the pages that list all others. `tests/site` builds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.sources import ROOT
from tools import make_site
from tools.make_site import Nav, Stage, add_screenshots, listed, navigation


def test_every_page_is_in_the_navigation() -> None:
    """A page of docs/ that no list names would be found by nobody; none is listed twice."""
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    named = list(listed(navigation()))
    assert len(named) == len(set(named))
    assert pages - set(named) == set()
    assert set(named) - pages == {
        "../ARCHITECTURE.md", "../CONTRIBUTING.md", "../README.md", "../examples/README.md",
    }  # fmt: skip


def test_the_navigation_is_sorted_by_what_a_reader_wants() -> None:
    """To learn, to do, to look up, to understand."""
    titles = [title for entry in navigation() for title in entry]
    assert titles == ["Overview", "Tutorial", "How-to", "Reference", "Design"]


def test_links_are_turned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links out of docs/ lead to copies, files become pages; code and other hosts stay."""
    monkeypatch.setattr(make_site, "ROOT", tmp_path)
    (tmp_path / "docs" / "howto").mkdir(parents=True)
    (tmp_path / "README.md").write_text("[how](docs/howto/a.md#b) [x](https://a.b/c) [y](#z)\n")
    (tmp_path / "tool.py").write_text("print(1)\n")
    page = tmp_path / "docs" / "howto" / "a.md"
    page.write_text(
        "[r](../../README.md)\n```text\n[r](../../README.md)\n```\n[t](../../tool.py)\n"
    )
    stage = Stage(tmp_path / "site")
    assert stage.add("docs/howto/a.md") == "howto/a.md"
    assert (tmp_path / "site" / "howto" / "a.md").read_text() == (
        "[r](../project/readme.md)\n```text\n[r](../../README.md)\n```\n[t](../project/tool.py.md)\n"
    )
    readme = (tmp_path / "site" / "project" / "readme.md").read_text()
    assert readme == "[how](../howto/a.md#b) [x](https://a.b/c) [y](#z)\n"
    assert "print(1)" in (tmp_path / "site" / "project" / "tool.py.md").read_text()
    page.write_text("[gone](gone.md)\n")
    with pytest.raises(SystemExit, match=r"gone\.md, which is no file"):
        Stage(tmp_path / "again").add("docs/howto/a.md")


def test_screenshots_are_shown_if_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without pictures of the console there is no page of them, and no link to one."""
    monkeypatch.setattr(make_site, "SCREENSHOTS", tmp_path / "screenshots")
    stage, nav = Stage(tmp_path / "site"), Nav()
    stage.folder.mkdir()
    add_screenshots(stage, nav)
    assert nav == []
    (tmp_path / "screenshots").mkdir()
    (tmp_path / "screenshots" / "key-story.png").write_bytes(b"png")
    add_screenshots(stage, nav)
    assert nav == [{"Console": "console/pictures.md"}]
    assert "![Key story](key-story.png)" in (stage.folder / "console" / "pictures.md").read_text()
    assert (stage.folder / "console" / "key-story.png").read_bytes() == b"png"
