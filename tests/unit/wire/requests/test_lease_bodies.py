"""The bodies of leases and commits."""

from __future__ import annotations

import msgspec
import pytest

from inorder.errors import LeaseLost, RemoteProtocolError, SystemError_, broker_error
from inorder.wire.fields import decode_fields, encode_fields
from inorder.wire.requests import leases
from inorder.wire.requests.leases import Lease, LeaseFreeReply, Release

HELD = leases.HeldLease(
    "g", "t", 0, "c", "i", 7, 1, 2, 5000, 1000, stock=False, connected=True, waiting=["d"]
)
BODIES = [
    leases.LeaseBody([leases.QueueWish("t", 0), leases.QueueWish("t", 1, 1 << 40)]),
    leases.LeaseAnswer(
        [
            leases.LeaseGrant(
                "t", 0, 9, fresh=True, offset=4, chapters=[leases.VersionSpan(0, 1, 2)]
            )
        ],
        [leases.LeaseRefusal("t", 1, "other", 1500)],
        generation=3,
    ),
    leases.CommitBody([leases.QueueCommit("t", 0, 9, 1, 100, "100:2c")]),
    leases.CommitAnswer([leases.QueueName("t", 0)], [leases.QueueName("t", 1)]),
    leases.LeasePage([HELD], "t"),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_bodies_come_back_as_they_went(body: leases.LeaseBody) -> None:
    """What is written is read again."""
    assert type(body).decode(body.encode()) == body


def test_the_requests_are_compact() -> None:
    """A queue is a short list, as the protocol says."""
    assert BODIES[0].encode() == b'{"queues":[["t",0,0,0],["t",1,1099511627776,0]]}'
    assert BODIES[2].encode() == b'{"commits":[["t",0,9,1,100,"100:2c"]]}'


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"queues":[["t",-1]]}',
        b'{"queues":[["t",0,-1]]}',
        b'{"queues":[["' + b"t" * 1025 + b'",0]]}',
        b'{"queues":[' + b'["t",0],' * 2048 + b'["t",0]]}',
        b'{"queues":[["\xff",0]]}',
    ],
)
def test_a_malformed_request_is_answered(text: bytes) -> None:
    """It is an error of the request, not of the connection."""
    with pytest.raises(SystemError_):
        leases.LeaseBody.decode(text)


def test_a_map_that_is_too_long_is_refused() -> None:
    """Memory and journal are bounded."""
    long = "0:" + "f" * leases.FINISHED_CHARS_MAX
    with pytest.raises(SystemError_):
        leases.CommitBody.decode(msgspec.json.encode({"commits": [["t", 0, 1, 1, 1, long]]}))


def test_a_malformed_answer_is_a_breach() -> None:
    """The peer is no inorder broker."""
    with pytest.raises(RemoteProtocolError):
        leases.LeaseAnswer.decode(b'{"granted":[{"topic":1}],"refused":[]}')


def test_headers_come_back_as_they_went() -> None:
    """Names on the wire are in camelCase; what may be left out has a default."""
    lease = Lease("g", "c", "i", 5000, 1000)
    assert encode_fields(lease)["leaseMs"] == "5000"
    assert decode_fields(Lease, encode_fields(lease)) == lease
    release = Release("g", "c", "i", "t", 0, 9, 100, "100:2c", 3)
    assert decode_fields(Release, encode_fields(release)) == release
    plain = {"group": "g", "clientId": "c", "instance": "i", "topic": "t", "queueId": "0"}
    assert decode_fields(Release, {**plain, "epoch": "9"}).offset == -1
    assert decode_fields(LeaseFreeReply, encode_fields(LeaseFreeReply("", 0))).holder == ""


def test_a_lost_lease_says_who_has_the_queue() -> None:
    """The fields of the answer reach the exception."""
    lost = broker_error(7120, "gone", {"holder": "other", "epoch": "12"})
    assert isinstance(lost, LeaseLost)
    assert (lost.holder, lost.epoch, lost.retriable) == ("other", 12, False)
