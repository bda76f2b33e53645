"""The examples of a page: fenced blocks, in the order in which a reader meets them.

A comment right above a fence says what is special about a block:

    <!-- not run: it needs a cluster -->   never run, and on the short list of `test_snippets.py`
    <!-- until Ctrl-C -->                  goes on; it is stopped when it has said something
    <!-- stays -->                         a server of this page, for the blocks that follow
    <!-- in the file app.py -->            is not run but saved, for the blocks that follow
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON, SHELL, TEST = "python", "shell", "test"
# They start Spark: run where it is installed (`make spark`), read everywhere.
SPARK = ("docs/howto/ordered-processing.md", "docs/howto/pipeline-jobs.md", "docs/howto/spark.md")
KINDS = {"python": PYTHON, "py": PYTHON, "bash": SHELL, "sh": SHELL, "console": SHELL}
# Not meant to be run: what is printed, files, other languages.
OTHERS = {"text", "toml", "java", "dockerfile", "properties", "json", "yaml"}

_FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?(?P<indent> *)```(?P<language>\w*)\n"
    r"(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """One example: where it stands, what it is, what it says."""

    page: str
    line: int
    kind: str
    text: str
    not_run: str = ""
    goes_on: bool = False
    stays: bool = False
    saved_as: str = ""
    printed: str = ""
    """What a block of `console` shows below its commands."""

    @property
    def where(self) -> str:
        """Return the page and the line, as an editor takes them."""
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Return the pages that readers paste from. The API reference holds signatures."""
    docs = ROOT / "docs"
    found = [ROOT / "README.md", *docs.glob("*.md")]
    for folder in ("tutorial", "howto", "reference"):
        found += (docs / folder).glob("*.md")
    names = sorted(str(path.relative_to(ROOT)) for path in found)
    return [name for name in names if name != "docs/reference/api.md" and blocks(name)]


def blocks(page: str) -> list[Block]:
    """Return the examples of a page that could run."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(text):
        language, mark = fence["language"], fence["mark"] or ""
        if language in OTHERS and not mark.startswith("in the file "):
            continue
        if language not in {*KINDS, *OTHERS}:
            raise AssertionError(f"{page}: a block in {language or 'no language'}; name one")
        body = "\n".join(line.removeprefix(fence["indent"]) for line in fence["text"].splitlines())
        kind = KINDS.get(language, SHELL)
        printed = ""
        if language == "console":
            lines = body.splitlines()
            printed = "".join(f"{line}\n" for line in lines if not line.startswith("$ "))
            body = "\n".join(line[2:] for line in lines if line.startswith("$ "))
        if kind == PYTHON and re.search(r"^(async )?def test_", body, re.MULTILINE):
            kind = TEST
        found.append(
            Block(
                page,
                text.count("\n", 0, fence.start("text")) + 1,
                kind,
                body + "\n",
                not_run=mark.removeprefix("not run: ") if mark.startswith("not run: ") else "",
                goes_on=mark == "until Ctrl-C",
                stays=mark == "stays",
                saved_as=mark.removeprefix("in the file ")
                if mark.startswith("in the file ")
                else "",
                printed=printed,
            )
        )
    return found
