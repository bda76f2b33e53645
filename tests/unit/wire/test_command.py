"""Commands as values."""

from __future__ import annotations

from inorder.wire.codes import VERSION, LanguageCode
from inorder.wire.header import Command


def test_a_signature_is_not_shown() -> None:
    """A log line with a request must not help to guess a secret."""
    fields = {"topic": "T", "AccessKey": "alice", "Signature": "s1", "inorderBound": "s2"}
    shown = repr(Command.request(11, {**fields, "SecurityToken": "s3"}))
    assert "alice" in shown
    assert not any(secret in shown for secret in ("s1", "s2", "s3"))


def test_a_request_has_no_flags() -> None:
    """A plain request is neither answer nor oneway, and says who sent it."""
    command = Command.request(11, {"topic": "T"}, b"body", request_id=5)
    assert (command.is_response, command.is_oneway) == (False, False)
    assert (command.language, command.version) == (LanguageCode.PYTHON, VERSION)
    assert (command.fields, command.body, command.request_id) == ({"topic": "T"}, b"body", 5)


def test_a_oneway_request_says_so() -> None:
    """The oneway bit is set."""
    assert Command.request(15, oneway=True).flag == 2


def test_an_answer_repeats_id_and_serializer() -> None:
    """An answer goes back to the request that it answers, in the same encoding."""
    answer = Command.request(11, request_id=-9, serializer=1).reply(19, "nothing")
    assert (answer.request_id, answer.serializer, answer.flag) == (-9, 1, 1)
    assert (answer.code, answer.remark) == (19, "nothing")
    assert answer.is_response


def test_no_fields_and_empty_fields_differ() -> None:
    """Both read as an empty dict, and only one of them is written."""
    request = Command.request(11)
    assert request.reply().fields == request.reply(fields={}).fields == {}
    assert (request.reply().has_fields, request.reply(fields={}).has_fields) == (False, True)


def test_equal_commands_have_equal_parts() -> None:
    """Equality looks at every field, and nothing else is equal."""
    assert Command.request(1) == Command.request(1)
    assert Command.request(1) != Command.request(1, request_id=1)
    assert Command.request(1) != 1


def test_repr_tells_the_kind() -> None:
    """A log line shows what it is."""
    assert "answer code=0" in repr(Command.request(1).reply())
    assert "oneway code=1" in repr(Command.request(1, oneway=True))
