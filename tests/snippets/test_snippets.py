"""Every example of the README and the documentation runs when it is pasted.

Each page in a fresh session against a fresh broker, block by block (`run.py`). What a page says
about a block, and what is not run, is in `pages.py`; the list of the latter is short and here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.snippets.pages import PYTHON, SHELL, SPARK, Block, blocks, pages
from tests.snippets.run import run_page

# Page and reason of every block that is not run.
NOT_RUN = [
    ("README.md", "it installs from a clone"),
    ("README.md", "each is a stage of CI, or as long as one"),
    ("README.md", "servers that go on, beside each other and on the same ports"),
    ("docs/howto/coming-from-kafka.md", "it needs confluent-kafka and a Kafka broker"),
    ("docs/howto/coming-from-kafka.md", "it needs confluent-kafka and a Kafka broker"),
    ("docs/howto/containers.md", "it needs a container engine"),
    ("docs/howto/containers.md", "it needs a container engine"),
    ("docs/howto/containers.md", "it needs root"),
    ("docs/howto/resizing.md", "it shows two brokers, one of which is gone"),
    ("docs/howto/resizing.md", "it shows two brokers, one of which is gone"),
    ("docs/howto/resizing.md", "it shows a group that stays away for days"),
    ("docs/howto/resizing.md", "it shows two brokers, and a handler that takes its time"),
    ("docs/howto/resizing.md", "it shows two brokers, one of which is gone"),
    ("docs/howto/resizing.md", "it shows brokers that made the topic apart from each other"),
    ("docs/tutorial/quickstart.md", "it installs from a clone"),
    ("docs/tutorial/quickstart.md", "it is the clone's own environment"),
]
TOPICS = re.compile(
    r"""(?:\.(?:send|send_nowait|send_oneway|on|subscribe)\(\s*|topics\.create\(\s*|topic=)"([\w-]+)"
    |inorder\ (?:topic\ create|send|tail|pipeline\ archive)\ (?:-f\ )?([\w-]+)""",
    re.VERBOSE,
)


def test_what_is_not_run_is_a_short_list() -> None:
    """A block that cannot run says why in the page, and is listed here."""
    found = [(block.page, block.not_run) for page in pages() for block in blocks(page)]
    assert [one for one in found if one[1]] == NOT_RUN


def test_every_page_with_examples_is_found() -> None:
    """The pages that people paste from are among them."""
    assert {"README.md", "docs/tutorial/quickstart.md", "docs/howto/consuming.md"} <= set(pages())
    assert set(SPARK) <= set(pages())
    assert sum(len(blocks(page)) for page in pages()) > 70


def test_each_page_has_topics_of_its_own() -> None:
    """Whoever pastes two pages into one server does not meet the messages of the other."""
    users: dict[str, set[str]] = {}
    for page in pages():
        for block in blocks(page):
            if page == "docs/howto/testing.md" or "def test_" in block.text or block.not_run:
                continue  # a broker of their own
            for match in TOPICS.finditer(block.text):
                users.setdefault(match[1] or match[2], set()).add(page)
    assert len(users) > 10
    assert {topic: sorted(used) for topic, used in users.items() if len(used) > 1} == {}


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in pages() if page not in SPARK])
def test_a_page_runs_block_by_block(page: str) -> None:
    """In one session, in its order: nothing fails, nothing hangs, not a warning is left behind."""
    run_page(page)


@pytest.mark.slow
@pytest.mark.parametrize("page", SPARK)
def test_a_page_of_spark_is_sound_without_it(page: str, tmp_path: Path) -> None:
    """Its Python compiles and uses no name that it does not define; its shell parses."""
    script = tmp_path / "page.py"
    of_python = [block for block in blocks(page) if block.kind == PYTHON]
    for block in of_python:
        compile(block.text, block.where, "exec")
    script.write_text("\n\n".join(block.text for block in of_python))
    check(script, "F821,F811")
    for block in blocks(page):
        if block.kind == SHELL:
            subprocess.run(["bash", "-n", "-c", block.text], check=True, timeout=60)


def check(script: Path, rules: str) -> None:
    """Look at a script with ruff."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", rules, str(script)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_block_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner itself: a wrong name, a hint of a warning and a failed command are failures."""
    from tests.snippets import run

    def page(*found: Block) -> None:
        monkeypatch.setattr(run, "blocks", lambda _: list(found))
        run.run_page("made-up.md")

    good = Block("made-up.md", 1, PYTHON, "x = 1\n")
    page(
        good, Block("made-up.md", 2, PYTHON, "print(x)\n"), Block("made-up.md", 3, SHELL, "true\n")
    )
    for bad, says in (
        (Block("made-up.md", 7, PYTHON, "print(y)\n"), "made-up.md:7.*NameError"),
        (Block("made-up.md", 8, SHELL, "false | true\n"), "made-up.md:8.*exit code 1"),
        (Block("made-up.md", 9, SHELL, "echo hint >&2\n"), "made-up.md:9.*hint"),
        (Block("made-up.md", 9, PYTHON, "import warnings; warnings.warn('w')\n"), "UserWarning"),
        (Block("made-up.md", 9, PYTHON, "import sys; sys.exit()\n"), "made-up.md:9.*SystemExit"),
        (Block("made-up.md", 9, SHELL, "echo a\n", printed="b\n"), "the page shows"),
    ):
        with pytest.raises(run.Failed, match=re.compile(says, re.DOTALL)):
            page(good, bad)
