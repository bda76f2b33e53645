"""RocketMQ's numbers."""

from __future__ import annotations

import pytest

from inorder.errors import BROKER_ERRORS
from inorder.wire.codes import VERSION, LanguageCode, RequestCode, ResponseCode


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
    assert set(BROKER_ERRORS) <= {int(code) for code in ResponseCode}
