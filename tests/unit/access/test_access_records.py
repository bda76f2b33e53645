"""The file of users and rules, and what tools read and send."""

from __future__ import annotations

import json

import pytest

from inorder.access.records import (
    acl_info,
    changed_user,
    decode_book,
    encode_book,
    entries_of,
    new_user,
    plain,
    subject_name,
    unplain,
    user_info,
)
from inorder.access.rules import Book, User
from inorder.access.storage import sealing
from inorder.errors import BrokerError, InvalidParameter, NoPermission, RemoteProtocolError
from inorder.wire.requests.users import (
    AclInfo,
    UserInfo,
    decode_acl,
    decode_acl_request,
    decode_acls,
    decode_user,
    decode_user_request,
    decode_users,
    encode_list,
)

ACL = (
    b'{"policies":[{"entries":[{"actions":["Pub","Sub"],"decision":"Allow",'
    b'"resource":"Topic:orders*","sourceIps":["10.0.0.0/8"]}],"policyType":"Custom"}],'
    b'"subject":"User:alice"}'
)
USER = b'{"password":"a-secret","userStatus":"enable","userType":"Normal","username":"alice"}'


def book() -> Book:
    users = {
        "alice": User("alice", b"a-secret", True, True, True),
        "bob": User("bob", "gehäim".encode(), enabled=False),
    }
    made = Book(users).with_entries("bob", entries_of(decode_acl_request(ACL)), 5)
    return made.with_entries("alice", entries_of(decode_acl_request(ACL)), 6)


def test_the_file_is_read_as_it_was_written() -> None:
    """With plain and with encrypted secrets."""
    assert decode_book(encode_book(book(), plain), unplain) == book()
    seal, unseal = sealing(bytes(32), lambda count: bytes(range(count)))
    sealed = encode_book(book(), seal)
    assert b"a-secret" not in sealed
    assert decode_book(sealed, unseal) == book()
    # Written before there was a key: read, and encrypted with the next change.
    assert decode_book(encode_book(book(), plain), unseal) == book()


def test_an_encrypted_secret_is_bound_to_key_and_name() -> None:
    """Another key, no key, or a secret that was moved to another user: the file is refused."""
    seal, unseal = sealing(bytes(32), bytes)
    sealed = encode_book(book(), seal)
    _, other = sealing(b"k" * 32, bytes)
    rows = json.loads(sealed)
    rows["users"][1]["secret"] = rows["users"][0]["secret"]
    for data, read in ((sealed, other), (sealed, unplain), (json.dumps(rows).encode(), unseal)):
        with pytest.raises(RemoteProtocolError):
            decode_book(data, read)


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.update(format=2),
        lambda rows: rows.update(more=1),
        lambda rows: rows["users"].append(rows["users"][0]),
        lambda rows: rows["users"][0].update(secret=""),
        lambda rows: rows["users"][0].update(name="a\nb"),
        lambda rows: rows["users"][0].update(supper=True),
        lambda rows: rows["entries"][0].update(user="nobody"),
        lambda rows: rows["entries"][0].update(resource="Topic:a*b"),
        lambda rows: rows["entries"][0].update(actions=["Fly"]),
        lambda rows: rows["entries"][0].update(sources=["10.0.0"]),
        lambda rows: rows["entries"][0].pop("allow"),
        lambda rows: rows.pop("version"),
    ],
)
def test_a_file_that_is_not_exactly_this_is_refused(change: object) -> None:
    """Half of the rules are other rules."""
    rows = json.loads(encode_book(book(), plain))
    change(rows)  # type: ignore[operator]
    with pytest.raises(RemoteProtocolError):
        decode_book(json.dumps(rows).encode(), unplain)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b'{"format":1}'])
def test_rubbish_is_refused(data: bytes) -> None:
    """Also a file that was cut."""
    with pytest.raises(RemoteProtocolError):
        decode_book(data, unplain)


def test_rocketmqs_bodies_are_read_and_written() -> None:
    """The two examples of RocketMQ 5.3, byte for byte but for the password."""
    info = decode_user_request(USER)
    assert (info.name, info.password, info.type, info.status) == (
        "alice", "a-secret", "Normal", "enable",
    )  # fmt: skip
    user = new_user("alice", info)
    assert user == User("alice", b"a-secret")
    assert user_info(user).encode() == USER.replace(b'"password":"a-secret",', b"")
    entries = entries_of(decode_acl_request(ACL))
    shown = acl_info("alice", entries)
    assert shown is not None
    assert shown.encode() == ACL
    assert acl_info("alice", entries, "Group") is None


def test_answers_are_read_back() -> None:
    """One, several, none."""
    infos = [UserInfo("a", None, "Super", "enable"), UserInfo("b", None, "Normal", "disable")]
    assert decode_users(encode_list(infos)) == infos
    assert decode_user(infos[0].encode()) == infos[0]
    acls = [decode_acl_request(ACL)]
    assert decode_acls(encode_list(acls)) == acls
    assert decode_acl(acls[0].encode()) == acls[0]
    assert (decode_user(b""), decode_acl(b""), decode_users(b""), decode_acls(b"")) == (
        None, None, [], [],
    )  # fmt: skip
    assert encode_list([]) == b""


def test_absent_values_of_a_change_stay() -> None:
    """The password too: tools get users without it, and may send them back."""
    user = User("alice", b"a-secret", True, True, True)
    assert changed_user(user, UserInfo("alice")) == user
    assert changed_user(user, UserInfo("alice", "")) == user
    changed = changed_user(user, UserInfo("alice", "another-one", "normal", "DISABLE", False))
    assert changed == User("alice", b"another-one", False, False, False)


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (b'{"entries":[{"actions":["Pub"],"decision":"Allow"}]}', "The resource is null."),
        (b'{"entries":[{"resource":"Topic:a","decision":"Allow"}]}', "The actions is empty."),
        (b'{"entries":[{"resource":"Topic:a","actions":["Any"],"decision":"Allow"}]}',
         "The actions can not be Any."),
        (b'{"entries":[{"resource":"Topic:a","actions":["Pub"]}]}',
         "The decision is null or illegal."),
        (b'{"entries":[{"resource":"Topic:a","actions":["Pub"],"decision":"Allow",'
         b'"sourceIps":["x"]}]}', "The source ip is invalid."),
    ],
)  # fmt: skip
def test_refusals_have_rocketmqs_words(body: bytes, remark: str) -> None:
    """Code 16, as there."""
    with pytest.raises(NoPermission) as caught:
        entries_of(decode_acl_request(b'{"policies":[%b]}' % body))
    assert caught.value.remark == remark


def test_words_that_are_none_are_refused() -> None:
    """Types, states, policies and subjects."""
    for wrong in (
        lambda: new_user("alice", UserInfo("alice", "a-secret", "Boss")),
        lambda: new_user("alice", UserInfo("alice", "a-secret", "Super", "on")),
        lambda: new_user("alice", UserInfo("alice")),
        lambda: subject_name("alice"),
        lambda: subject_name("Group:alice"),
        lambda: entries_of(AclInfo.from_json({"policies": [{"policyType": "X", "entries": [{}]}]})),
    ):
        with pytest.raises(BrokerError):
            wrong()
    assert subject_name("user:alice") == "alice"
    with pytest.raises(InvalidParameter):
        new_user(" ", UserInfo("", "a-secret"))
