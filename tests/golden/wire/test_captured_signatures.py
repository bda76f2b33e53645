"""The signed requests that were captured from C++ and ali-ons clients."""

from __future__ import annotations

import pytest

from inorder.wire.header import Command
from inorder.wire.signature import AK, SIGNATURE, content, sign
from tests.golden.wire.test_captured_frames import command_of, rows

SECRETS = {"RocketMQ": b"12345678", "": b""}


def signed(name: str) -> list[Command]:
    found = [command_of(frame) for _, frame in rows(name)]
    return [command for command in found if SIGNATURE in command.fields and not command.is_response]


@pytest.mark.parametrize(("name", "count"), [("rocketmq-cpp-0.4.4", 36), ("ali-ons-3.12.0", 3)])
def test_the_signature_of_a_stock_client_is_computed_again(name: str, count: int) -> None:
    """Every signed frame of the capture has the signature that we compute."""
    commands = signed(name)
    assert len(commands) == count
    for command in commands:
        secret = SECRETS[command.fields[AK]]
        assert sign(secret, content(command.fields, command.body)) == command.fields[SIGNATURE]


@pytest.mark.parametrize("name", ["rocketmq-cpp-0.4.4", "ali-ons-3.12.0"])
def test_a_change_is_seen(name: str) -> None:
    """Another value, body or secret gives another signature."""
    for command in signed(name):
        secret, fields, body = SECRETS[command.fields[AK]], command.fields, bytes(command.body)
        changed = fields | {AK: fields[AK] + "x"}
        found = command.fields[SIGNATURE]
        assert sign(secret, content(changed, body)) != found
        assert sign(secret, content(fields, body + b"x")) != found
        assert sign(secret + b"x", content(fields, body)) != found
