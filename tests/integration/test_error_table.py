"""docs/reference/errors.md says what a user sees: each case is provoked and compared."""

from __future__ import annotations

import pytest

from tests.integration.errortable import CASES, HEAD, PAGE, Case, row


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_an_error_says_what_the_page_says(case: Case):
    """Class, text and way out; `python -m tests.integration.errortable` writes the page anew."""
    assert row(case) in PAGE.read_text(encoding="utf-8").splitlines(keepends=True)


def test_the_page_has_a_line_for_each_case():
    """No more, no less, in their order."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.startswith(HEAD)
    lines = text.removeprefix(HEAD).splitlines()
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == [c.what for c in CASES]


def test_the_cases_that_users_meet_first_are_there():
    """What everyone gets wrong once."""
    wanted = {
        "wrong host", "closed port", "all name servers down", "send to an unknown topic",
        "no route: the broker of the topic left", "no permission to write",
        "no permission to read", "message too big", "bad tag expression", "broker busy",
    }  # fmt: skip
    assert wanted <= {case.what for case in CASES}
