"""Requests that are signed on one connection, and refusals that are explained."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from inorder.credentials import Credentials
from inorder.errors import AccessDenied, LocalProtocolError, NoPermission, broker_error, is_denial
from inorder.net.signing import Signer, explain
from inorder.wire.frame import FRAME_BYTES_MAX, FrameDecoder, encode_frame
from inorder.wire.header import BINARY, Command, decode_command
from inorder.wire.requests.sendframes import SendTemplate, by_map, json_text
from inorder.wire.signature import bound, content, sign

ALICE = Credentials("alice", "sécret")
SECRET = "sécret".encode()
OURS = {
    "AccessKey",
    "Signature",
    "SecurityToken",
    "inorderSession",
    "inorderCounter",
    "inorderBound",
}
SESSION = "5e55" * 8


def template(topic: str = "orders") -> SendTemplate:
    made = SendTemplate(
        group="g%", topic=topic, template_topic="TBW102", template_queues=4, queue_id=3, broker="b"
    )
    made.set_producer("P%1", named=True)
    return made


def in_session(credentials: Credentials = ALICE) -> Signer:
    signer = Signer(credentials)
    signer.learn(Command(0, fields={"inorderSession": SESSION}))
    return signer


def read(frame: bytes) -> Command:
    (raw,) = FrameDecoder().receive_data(frame)
    return decode_command(raw)


def check(command: Command, counter: int = 0) -> None:
    """Compare signature and mark with what a server computes."""
    fields = command.fields
    assert fields["AccessKey"] == "alice"
    assert fields["Signature"] == sign(SECRET, content(fields, command.body))
    assert ("inorderSession" in fields) == bool(counter)
    if counter:
        assert (fields["inorderSession"], fields["inorderCounter"]) == (SESSION, str(counter))
        expected = bound(SECRET, SESSION, counter, command.code, fields, len(command.body))
        assert fields["inorderBound"] == expected


@pytest.mark.parametrize("serializer", [0, BINARY])
@pytest.mark.parametrize("body", [b"", b"body", memoryview(b"view")])
def test_a_command_gets_its_signature(serializer: int, body: bytes | memoryview) -> None:
    """With its other fields, flags, body and id as they were; the command itself stays as it is."""
    fields = {"topic": "Täg", "n": "1"}
    command = Command.request(
        11, dict(fields), body, request_id=7, oneway=True, serializer=serializer
    )
    got = read(encode_frame(Signer(ALICE).signed(command)))
    check(got)
    assert {name: text for name, text in got.fields.items() if name not in OURS} == fields
    assert (got.code, got.request_id, got.is_oneway, got.body) == (11, 7, True, bytes(body))
    assert command.fields == fields


def test_a_command_without_fields_is_signed() -> None:
    """Its header gets fields."""
    check(read(encode_frame(Signer(ALICE).signed(Command.request(206)))))


def test_a_retry_is_signed_anew() -> None:
    """With its changed fields, without the fields of the first time."""
    signer = Signer(ALICE)
    first = signer.signed(Command.request(310, {"j": "0"}, b"x"))
    first.fields["j"] = "1"
    again = signer.signed(first)
    check(again)
    assert again.fields["Signature"] != first.fields["Signature"]


def test_a_token_is_sent_and_signed() -> None:
    """As Java clients do."""
    signed = Signer(Credentials("alice", "sécret", "tok")).signed(Command.request(11, {"z": "1"}))
    assert signed.fields["SecurityToken"] == "tok"
    check(signed)


def test_a_session_is_marked_with_a_rising_counter() -> None:
    """From the answer that gave it on; another session begins at 1."""
    signer = Signer(ALICE)
    check(signer.signed(Command.request(34, {}, b"{}")))
    signer.learn(Command(0, fields={"inorderSession": SESSION}))
    check(signer.signed(Command.request(11, {"a": "b"})), 1)
    signer.learn(Command(0, fields={}))
    signer.learn(Command(0, fields={"inorderSession": SESSION}))
    check(signer.signed(Command.request(11, {"a": "b"})), 2)
    signer.learn(Command(0, fields={"inorderSession": "0" * 32}))
    assert signer.signed(Command.request(11)).fields["inorderCounter"] == "1"


@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize("batch", [False, True])
def test_the_frame_of_a_send_is_signed(session: bool, batch: bool) -> None:
    """Made from a template, with properties that JSON escapes; all else stays as it was."""
    properties = json_text('KEYS\x01k "1"\x02TAGS\x01\\ä€\x02 "extFields":{ \x02')
    numbers = () if batch else (5, 4)
    frame = template('o"r%s').frame(
        9, properties, b"bo%dy", numbers=numbers, born_at_ms=12, batch=batch, oneway=True,
        placed=by_map(3, "d"),
    )  # fmt: skip
    signer = in_session() if session else Signer(ALICE)
    got, before = read(signer.signed_frame(frame)), read(frame)
    check(got, int(session))
    assert {n: text for n, text in got.fields.items() if n not in OURS} == before.fields
    got.fields = before.fields
    assert got == before


def test_the_head_of_a_send_is_signed_with_the_body_beside_it() -> None:
    """For bodies that are large: head and body together are the frame."""
    made, body = template(), b"b" * 100
    signer, twin = in_session(), in_session()
    head = made.head(9, b"", len(body), (1, 0))
    assert signer.signed_head(head, body) + body == twin.signed_frame(head + body)


def test_a_signed_frame_may_become_too_long() -> None:
    """Then it is refused here, as one without a signature would be."""
    made = template()
    room = FRAME_BYTES_MAX - len(made.head(1, b"", 0, (1, 0)))
    body = bytes(room)
    head = made.head(1, b"", len(body), (1, 0))
    with pytest.raises(LocalProtocolError, match="is above the limit"):
        Signer(ALICE).signed_head(head, body)


def test_a_signer_shows_no_secret() -> None:
    """Only who signs."""
    assert repr(Signer(ALICE)) == "Signer('alice')"


@dataclass
class Said:
    """An answer."""

    code: int
    remark: str | None


ACL_1 = (
    "org.apache.rocketmq.acl.common.AclException: {}, "
    "org.apache.rocketmq.acl.plain.PlainPermissionManager.validate(PlainPermissionManager.java:712)"
)


@pytest.mark.parametrize(
    ("code", "remark", "says"),
    [
        (16, "check signature failed.", "failed (access key alice); check both keys"),
        (16, "User:alice is disabled.", "User:alice is disabled (access key alice); check both"),
        (
            16,
            "User:alice has no permission to access Topic:orders from 10.0.0.1, no matched "
            "policies.",
            "Topic:orders from 10.0.0.1, no matched policies (access key alice); whoever",
        ),
        (1, ACL_1.format("No default permission for topic:orders"), "topic:orders (access key"),
        (1, ACL_1.format("No acl config for alice"), "No acl config for alice (access key alice)"),
        (1, "org.apache.rocketmq.acl.common.AclException: Check signature failed for "
         "accessKey=alice", "accessKey=alice (access key alice); check both keys"),
    ],
)  # fmt: skip
def test_a_refusal_says_who_and_what_to_do(code: int, remark: str, says: str) -> None:
    """ACL 1.0 and 2.0 and ours become one error, which names the user and the way out."""
    answer = Said(code, remark)
    assert explain(answer, Signer(ALICE))
    error = broker_error(answer.code, answer.remark)
    assert type(error) is AccessDenied
    assert error.code == 16
    assert not error.retriable
    assert says in str(error)
    assert "sécret" not in str(error)
    assert "AclException" not in str(error)


def test_a_refusal_of_a_client_without_credentials_says_so() -> None:
    """It names the argument and the environment."""
    answer = Said(16, "username cannot be null.")
    assert explain(answer, None)
    assert answer.remark is not None
    assert answer.remark.startswith("username cannot be null; this client has no credentials")
    assert "INORDER_ACCESS_KEY" in answer.remark
    signed_elsewhere = Said(16, "check signature failed.")
    assert explain(signed_elsewhere, None)
    assert signed_elsewhere.remark == "check signature failed."


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (16, "Sending message to topic[x] is forbidden."),
        (16, None),
        (1, "java.lang.NullPointerException"),
        (1, None),
        (1, "check signature failed."),
        (17, "topic not exist: AclException: x"),
    ],
)
def test_other_answers_stay_as_they_are(code: int, remark: str | None) -> None:
    """A topic that may not be written to is no matter of users."""
    answer = Said(code, remark)
    assert not explain(answer, Signer(ALICE))
    assert (answer.code, answer.remark) == (code, remark)
    assert not is_denial(code, remark)
    assert type(broker_error(16, "forbidden")) is NoPermission
