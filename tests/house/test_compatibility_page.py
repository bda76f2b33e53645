"""docs/compatibility.md is made by the replay of captured conversations, and kept fresh."""

from __future__ import annotations

import pytest

from tests.golden.replay.report import PAGE, page


@pytest.mark.slow
def test_the_compatibility_page_is_fresh() -> None:
    """The page says what the replay finds; `python -m tests.golden.replay` writes it anew."""
    assert PAGE.read_text(encoding="utf-8") == page()
