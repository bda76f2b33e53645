"""The built site: no network while it is built, none while it is read, no broken link, a search."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("zensical", reason="`make site` installs it")

from tests.house.sources import ROOT
from tools.make_site import Page, broken_links, read_site

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# What a reader does: opens the search, types, and reads how many results there are.
TYPE_AND_READ = """<script>
addEventListener("load", async () => {
  const pause = () => new Promise((done) => setTimeout(done, 100));
  let box = null, found = null;
  for (let turn = 0; turn < 200 && !found; turn++) {
    const roots = [...document.querySelectorAll("div")].map((one) => one.shadowRoot);
    const root = roots.find((one) => one && one.querySelector("input[aria-label=Search]"));
    if (!root) document.querySelector(".md-search__button").click();
    else if (!box) {
      box = root.querySelector("input[aria-label=Search]");
      box.value = "redrive";
      box.dispatchEvent(new Event("input", { bubbles: true, composed: true }));
    } else found = /(\\d+) results/.exec(root.textContent);
    await pause();
  }
  document.title = found ? `found ${found[1]}` : "found nothing";
});
</script>"""
WITHOUT_NETWORK = ["unshare", "--map-root-user", "--net"]
# Where the program of the theme would load something from others, if a page had such an element.
LOADED_LATER = re.compile(r'class="[^"]*\b(mermaid|glightbox|pyodide|ace)\b')
OTHERS_TAKEN = re.compile(r'<(?:script|img|iframe|link)[^>]*(?:src|href)="?(?:https?:)?//')


def isolated() -> list[str]:
    """Return how to start a program without a network, if this machine lets us."""
    if shutil.which("unshare") is None:
        return []
    tried = subprocess.run([*WITHOUT_NETWORK, "true"], capture_output=True, check=False)
    return WITHOUT_NETWORK if tried.returncode == 0 else []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Build the site, without a network where that can be had."""
    folder = tmp_path_factory.mktemp("site") / "site"
    subprocess.run(
        [*isolated(), sys.executable, "-m", "tools.make_site", str(folder)],
        cwd=ROOT, check=True, timeout=120,
    )  # fmt: skip
    yield folder
    shutil.rmtree(folder.parent)


@pytest.mark.slow
def test_every_page_and_every_link_is_there(site: Path) -> None:
    """Each page of docs/ is a page of the site; each internal link and anchor leads somewhere."""
    docs = ROOT / "docs"
    for page in docs.rglob("*.md"):
        assert (site / page.relative_to(docs)).with_suffix(".html").is_file()
    assert broken_links(site) == []
    links = [link for page in read_site(site).values() for link in page.links]
    assert sum("#" in link and not link.startswith("#") for link in links) >= 15


@pytest.mark.slow
def test_a_broken_link_is_found(site: Path) -> None:
    """A file that is missing, and an anchor that is missing, are both named."""
    page = site / "glossary.html"
    text = page.read_text()
    page.write_text(text + '<a href="howto/nowhere.html">x</a><a href="index.html#nowhere">y</a>')
    try:
        assert broken_links(site) == [
            "glossary.html: howto/nowhere.html",
            "glossary.html: index.html#nowhere: no such anchor",
        ]
    finally:
        page.write_text(text)


@pytest.mark.slow
def test_nothing_is_asked_of_others(site: Path) -> None:
    """Pages and style sheets take nothing from other hosts, and a policy forbids what is left."""
    pages = read_site(site)
    assert len(pages) > 100
    for path, page in pages.items():
        text = path.read_text()
        assert not [address for address in page.loaded if re.match(r"(https?:)?//", address)]
        assert not OTHERS_TAKEN.search(text)
        assert not LOADED_LATER.search(text)
        policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
        assert policy is not None
        assert "default-src 'none'" in policy[1]
        assert "http" not in policy[1]
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?(https?:)?//", sheet.read_text())


@pytest.mark.slow
def test_search_has_every_page(site: Path) -> None:
    """The index of the search is in the site, for pages over HTTP and for pages from disk."""
    index = json.loads((site / "search.json").read_text())
    found = {item["location"].partition("#")[0] for item in index["items"]}
    docs = ROOT / "docs"
    assert found >= {
        str(page.relative_to(docs).with_suffix(".html")) for page in docs.rglob("*.md")
    }
    assert any("redrive" in item["text"].lower() for item in index["items"])
    assert (site / "search.js").read_text().startswith("var __index = {")
    scripts = Page(site / "howto" / "parking.html").loaded
    assert "../assets/worker_from_file.js" in scripts
    assert (site / "assets" / "worker_from_file.js").is_file()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="it needs Chromium")
def test_search_works_in_pages_from_disk(site: Path, tmp_path: Path) -> None:
    """A browser without a network opens a file, and its search finds what is on other pages."""
    assert CHROMIUM is not None
    text = (site / "glossary.html").read_text()
    page = site / "typed.html"
    page.write_text(text.replace("</body>", f"{TYPE_AND_READ}</body>"))
    try:
        done = subprocess.run(
            [*isolated(), CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
             f"--user-data-dir={tmp_path}", "--virtual-time-budget=60000", f"file://{page}"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    finally:
        page.unlink()
    title = re.search(r"<title>found (\w+)</title>", done.stdout)
    assert title is not None, done.stderr
    assert title[1] != "nothing"
    assert int(title[1]) > 10
