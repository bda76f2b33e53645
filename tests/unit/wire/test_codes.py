"""RocketMQ's numbers."""

from __future__ import annotations

import pytest

from inorder.errors import BROKER_ERRORS, KeyMapChanged, ProducerGap, broker_error
from inorder.wire.codes import VERSION, LanguageCode, RequestCode, ResponseCode
from inorder.wire.extensions import ExtensionAnswer, ExtensionCode


@pytest.mark.parametrize(
    ("member", "number"),
    [
        (RequestCode.SEND_MESSAGE, 10),
        (RequestCode.SEND_MESSAGE_V2, 310),
        (RequestCode.SEND_BATCH_MESSAGE, 320),
        (RequestCode.POP_MESSAGE, 200050),
        (ResponseCode.SUCCESS, 0),
        (ResponseCode.PULL_NOT_FOUND, 19),
        (ResponseCode.GO_AWAY, 1500),
        (LanguageCode.PYTHON, 3),
        (LanguageCode.RUST, 12),
    ],
)
def test_numbers(member: int, number: int) -> None:
    """A member has the number that RocketMQ gives it."""
    assert member == number


def test_version_is_5_3_3() -> None:
    """We report V5_3_3."""
    assert VERSION == 479


def test_every_broker_error_is_a_response_code() -> None:
    """The errors that callers tell apart stand for codes that exist."""
    ours = {int(code) for code in ExtensionAnswer}
    assert set(BROKER_ERRORS) <= {int(code) for code in ResponseCode} | ours
    assert ours.isdisjoint(int(code) for code in ResponseCode)


def test_our_numbers_are_none_of_rocketmqs() -> None:
    """inorder's requests and answers lie in blocks that RocketMQ does not use."""
    assert not {int(code) for code in ExtensionCode} & {int(code) for code in RequestCode}
    assert not {int(code) for code in ExtensionAnswer} & {int(code) for code in ResponseCode}


def test_what_an_answer_says_reaches_its_exception() -> None:
    """Fields become attributes; a broken field leaves the default, not another error."""
    gap = broker_error(7100, "late", {"expected": "7"})
    assert isinstance(gap, ProducerGap)
    assert (gap.expected, gap.remark, gap.fields) == (7, "late", {"expected": "7"})
    changed = broker_error(7110, None, {"version": "x", "map": "2/a:0-1"})
    assert isinstance(changed, KeyMapChanged)
    assert (changed.version, changed.map) == (0, "2/a:0-1")
    assert broker_error(7102, "", None).code == 7102
