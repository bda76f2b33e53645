"""Build the documentation site into build/site, without a network: `make site`.

    python -m tools.make_site [FOLDER]

The pages of the repository are plain Markdown that GitHub shows. A copy of them becomes the site:
links to pages outside of docs/ are turned, a linked file of the repository becomes a page of its
own, and the navigation comes from the two pages that list all others. Zensical writes the HTML.
Then each internal link and anchor is followed. Why Zensical: decision 1.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

ROOT: Final = Path(__file__).parents[1]
BUILD: Final = ROOT / "build"
# Pictures of the console that its tests leave; without them the site has no page of them.
SCREENSHOTS: Final = BUILD / "console"
_FENCE: Final = re.compile(r"^(?: *)```.*?^(?: *)```$", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"(\]\()([^)\s]+)(\))")
_LISTED: Final = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)\)")
_LANGUAGES: Final = {".py": "python", ".toml": "toml", ".yml": "yaml", ".json": "json"}
_SHIM: Final = '<script src="https://unpkg.com/iframe-worker/shim" type="text/javascript"></script>'
_POLICY: Final = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "script-src 'self' 'unsafe-inline' file:; style-src 'self' 'unsafe-inline' file:; "
    "img-src 'self' data: file:; connect-src 'self' file:; worker-src 'self' blob: file:; "
    "frame-src 'self' file:; base-uri 'self'; form-action 'none'\">"
)

Nav = list[dict[str, "str | Nav"]]


def navigation() -> Nav:
    """Return the navigation: title -> page or list; pages are named relative to docs/."""
    nav: Nav = [{"Overview": "index.md"}]
    into = nav
    for line in (ROOT / "docs" / "index.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            level, title = line.split(" ", 1)
            if level in ("##", "###"):
                into = []
                parent = nav if level == "##" else _last_list(nav)
                parent.append({title: into})
        elif line.startswith("| ["):
            for title, page in _LISTED.findall(line.split(" | ")[0]):
                into.append({title: _decisions() if page == "decisions/index.md" else page})
    return nav


def _last_list(nav: Nav) -> Nav:
    found = next(iter(nav[-1].values()))
    assert isinstance(found, list)
    return found


def _decisions() -> Nav:
    nav: Nav = [{"All decisions": "decisions/index.md"}]
    for line in (ROOT / "docs" / "decisions" / "index.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("- ["):
            nav += [{title: f"decisions/{page}"} for title, page in _LISTED.findall(line)]
    return nav


def listed(nav: Nav) -> Iterator[str]:
    """Yield every page of a navigation."""
    for entry in nav:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from listed(value)


@dataclass
class Stage:
    """The copy of the pages that the site is made of."""

    folder: Path
    done: set[str] = field(default_factory=set)

    def add(self, name: str) -> str:
        """Copy a file of the repository and all that it links to; return its name in the site."""
        target = self.place_of(name)
        if name in self.done:
            return target
        self.done.add(name)
        path = self.folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".md"):
            path.write_text(self._turned(name, target), encoding="utf-8")
        elif target.endswith(".md"):
            language = _LANGUAGES.get(Path(name).suffix, "text")
            text = (ROOT / name).read_text(encoding="utf-8").rstrip()
            path.write_text(f"# {name}\n\n~~~~{language}\n{text}\n~~~~\n", encoding="utf-8")
        else:
            shutil.copyfile(ROOT / name, path)
        return target

    def place_of(self, name: str) -> str:
        """Return where a file of the repository is in the site."""
        if name.startswith("docs/"):
            return name.removeprefix("docs/")
        if name == "examples/README.md":
            return "examples/index.md"
        if name.endswith((".md", ".png", ".svg")):
            return name if "/" in name else f"project/{name.lower()}"
        return f"{name}.md" if "/" in name else f"project/{name.lower()}.md"

    def _turned(self, name: str, target: str) -> str:
        """Return a page whose links hold in the site."""

        def turn(link: re.Match[str]) -> str:
            address = link[2]
            if re.match(r"[a-z]+:", address) or address.startswith("#"):
                return link[0]
            file, mark, anchor = address.partition("#")
            found = os.path.normpath(os.path.join(os.path.dirname(name), file))
            if not (ROOT / found).is_file():
                raise SystemExit(f"{name} links to {address}, which is no file")
            turned = os.path.relpath(self.add(found), os.path.dirname(target) or ".")
            return f"{link[1]}{turned}{mark}{anchor}{link[3]}"

        text, parts, at = (ROOT / name).read_text(encoding="utf-8"), [], 0
        for fence in _FENCE.finditer(text):
            parts += [_LINK.sub(turn, text[at : fence.start()]), fence[0]]
            at = fence.end()
        return "".join([*parts, _LINK.sub(turn, text[at:])])


def staged_navigation(stage: Stage, nav: Nav) -> Nav:
    """Return the navigation with the names that the site has."""
    turned: Nav = []
    for entry in nav:
        for title, value in entry.items():
            if isinstance(value, str):
                turned.append({title: stage.add(os.path.normpath(f"docs/{value}"))})
            else:
                turned.append({title: staged_navigation(stage, value)})
    return turned


def add_screenshots(stage: Stage, nav: Nav) -> None:
    """Add a page of the console's pictures, if its tests have left any."""
    pictures = sorted(SCREENSHOTS.glob("*.png"))
    if not pictures:
        return
    parts = ["# The console in pictures\n\nThe tests of the console made these pictures.\n"]
    (stage.folder / "console").mkdir(exist_ok=True)
    for picture in pictures:
        shutil.copyfile(picture, stage.folder / "console" / picture.name)
        title = picture.stem.replace("-", " ").replace("_", " ").capitalize()
        parts.append(f"## {title}\n\n![{title}]({picture.name})\n")
    (stage.folder / "console" / "pictures.md").write_text("\n".join(parts), encoding="utf-8")
    nav.append({"Console": "console/pictures.md"})


def build(site: Path) -> None:
    """Build the site into a folder. Raises SystemExit if a page or a link is wrong."""
    work = site.with_name(site.name + "-pages")
    for folder in (work, site):
        shutil.rmtree(folder, ignore_errors=True)
    stage = Stage(work / "pages")
    stage.folder.mkdir(parents=True)
    for page in sorted((ROOT / "docs").rglob("*.md")):
        stage.add(str(page.relative_to(ROOT)))
    nav = staged_navigation(stage, navigation())
    add_screenshots(stage, nav)
    settings = {"docs_dir": "pages", "site_dir": "site", "nav": nav}
    lines = [f"{name}: {json.dumps(value)}\n" for name, value in settings.items()]  # JSON is YAML
    config = work / "mkdocs.yml"
    config.write_text((ROOT / "mkdocs.yml").read_text(encoding="utf-8") + "".join(lines))
    words = [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(config)]
    done = subprocess.run(  # noqa: S603 - ourselves
        words, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"zensical failed:\n{done.stdout}{done.stderr}")
    (work / "site").replace(site)
    _finish(site)
    if broken := broken_links(site):
        raise SystemExit("broken links:\n" + "\n".join(broken))


def _finish(site: Path) -> None:
    """Take out what others would be asked for, and forbid the rest."""
    shim = "worker_from_file.js"
    shutil.copyfile(ROOT / "tools" / "site" / shim, site / "assets" / shim)
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        if _SHIM not in text or "<head>" not in text:
            raise SystemExit(f"{page} is not as this version of Zensical writes it")
        local = f"{os.path.relpath(site, page.parent)}/assets/{shim}"
        text = text.replace(_SHIM, f'<script src="{local}"></script>', 1)
        page.write_text(text.replace("<head>", f"<head>{_POLICY}", 1), encoding="utf-8")


class Page(HTMLParser):
    """What a page of the site loads, where it leads, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag refers to."""
        found = {name: value or "" for name, value in attrs}
        self.anchors.add(found.get("id", ""))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(found.get("href", ""))
        elif "src" in found:
            self.loaded.append(found["src"])


def read_site(site: Path) -> dict[Path, Page]:
    """Return every page of a built site."""
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def broken_links(site: Path) -> list[str]:
    """Return each internal link and file of the built site that leads nowhere."""
    pages, broken = read_site(site.resolve()), []
    for path, page in pages.items():
        if path.name == "404.html":  # its links count from the root of a server
            continue
        for address in [*page.links, *page.loaded]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not to.exists():
                broken.append(f"{path.relative_to(site.resolve())}: {address}")
            elif (
                parts.fragment and to in pages and unquote(parts.fragment) not in pages[to].anchors
            ):
                broken.append(f"{path.relative_to(site.resolve())}: {address}: no such anchor")
    return broken


def main() -> None:
    """Build the site and say where it is."""
    site = Path(sys.argv[1]) if len(sys.argv) > 1 else BUILD / "site"
    build(site)
    count = sum(1 for _ in site.rglob("*.html"))
    print(f"{count} pages, all links good: {site}/index.html")


if __name__ == "__main__":
    main()
