"""RocketMQ's signature, and the mark that binds a request to its connection."""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct

import pytest

from inorder.wire.signature import Keys, bound, content, contents, sign

FIELDS = {"topic": "orders", "AccessKey": "alice", "_K": "x", "a": "1", "Signature": "old"}
SECRET = b"a secret"
MARK = bound(SECRET, "5e55", 7, 11, {"a": "12", "b": "3"}, 4)


def test_content_joins_the_values_in_the_order_of_their_names() -> None:
    """Capitals come first, then `_`, then small letters; the old signature is left out."""
    assert content(FIELDS, b"body") == (b"alicex1orders", b"body")


def test_content_leaves_names_out_on_demand() -> None:
    """A name that is to be left out does not count."""
    assert content(FIELDS, b"", without=("a", "_K")) == (b"aliceorders", b"")


def test_values_count_as_utf_8() -> None:
    """Text beyond ASCII counts with its UTF-8 bytes, half a surrogate pair as in Java."""
    assert content({"a": "é€😀", "b": "\ud800"}, b"") == ("é€😀?".encode(), b"")


def test_sign_is_hmac_sha1_in_base64() -> None:
    """The key is the secret, the message the values and the body."""
    expected = base64.b64encode(hmac.new(SECRET, b"alicebody", hashlib.sha1).digest()).decode()
    assert sign(SECRET, content({"AccessKey": "alice"}, memoryview(b"body"))) == expected
    assert len(expected) == 28


def test_contents_of_an_ordinary_request_are_one() -> None:
    """Nothing else is tried if none of the exceptional fields is there."""
    assert list(contents(FIELDS, b"body")) == [content(FIELDS, b"body")]


def test_contents_leave_out_what_some_clients_do_not_sign() -> None:
    """Each exceptional field that is present adds a content without it, the zone keys as one."""
    fields = {
        "AccessKey": "A", "SecurityToken": "T", "_UNIQUE_KEY_QUERY": "U", "__ZONE_MODE": "M",
        "__ZONE_NAME": "Z", "topic": "t",
    }  # fmt: skip
    assert [values for values, _ in contents(fields, b"")] == [
        b"ATUMZt", b"ATMZt", b"ATUt", b"AUMZt",
    ]  # fmt: skip


def test_contents_try_null_for_an_empty_value() -> None:
    """An empty value counts as empty, and once more as Java's four letters."""
    assert [values for values, _ in contents({"a": "", "b": "1"}, b"")] == [b"1", b"null1"]


def test_bound_is_hmac_sha256_over_numbers_lengths_and_texts() -> None:
    """The bytes that are covered are these."""
    covered = struct.pack(">QiQHI", 7, 11, 4, 4, 2) + struct.pack(">4I", 1, 1, 2, 1)
    expected = hmac.new(SECRET, covered + b"5e55" + b"ab" + b"123", hashlib.sha256).hexdigest()
    assert expected == MARK


def test_bound_leaves_out_itself_and_the_signature() -> None:
    """Both are put in after the mark was made."""
    fields = {"a": "12", "b": "3", "Signature": "x", "inorderBound": "y"}
    assert bound(SECRET, "5e55", 7, 11, fields, 4) == MARK


def test_bound_tells_what_the_signature_does_not() -> None:
    """Any other secret, session, counter, code, name, boundary or length gives another mark."""
    others = {
        bound(b"other", "5e55", 7, 11, {"a": "12", "b": "3"}, 4),
        bound(SECRET, "5e56", 7, 11, {"a": "12", "b": "3"}, 4),
        bound(SECRET, "5e55", 8, 11, {"a": "12", "b": "3"}, 4),
        bound(SECRET, "5e55", 7, 361, {"a": "12", "b": "3"}, 4),
        bound(SECRET, "5e55", 7, 11, {"a": "12", "c": "3"}, 4),
        bound(SECRET, "5e55", 7, 11, {"a": "1", "b": "23"}, 4),
        bound(SECRET, "5e55", 7, 11, {"a": "12", "b": "3"}, 5),
    }
    assert len(others | {MARK}) == 8


@pytest.mark.parametrize("size", [0, 1, 20, 63, 64, 65, 127, 128, 129, 256])
def test_prepared_keys_make_the_hmac_of_any_secret(size: int) -> None:
    """A secret longer than a block is hashed first; the standard library's `hmac` says the same."""
    secret = bytes(range(1, 256)) + b"\xff\0"
    secret = secret[:size]
    keys = Keys(secret)
    for text in (b"", b"one", b"x" * 55, b"x" * 64, b"x" * 5000):
        signed = base64.b64encode(hmac.digest(secret, text + b"body", "sha1"))
        assert keys.sign((text, memoryview(b"body"))) == signed
        assert keys.mark(text) == hmac.digest(secret, text, "sha256").hex().encode()


def test_prepared_keys_show_nothing_of_the_secret() -> None:
    """Neither as text nor by an attribute."""
    keys = Keys(SECRET)
    shown = repr(keys) + "".join(repr(getattr(keys, name)) for name in keys.__slots__)
    assert SECRET.decode() not in shown
