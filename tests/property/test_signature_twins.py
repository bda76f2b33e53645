"""What a signature and a mark cover: compiled and in Python, the same bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.accelerated import native, reason
from inorder.wire.extensions import BOUND
from inorder.wire.signature import (
    SIGNATURE,
    bound_content,
    bound_content_pure,
    content,
    content_pure,
)

needs_compiled = pytest.mark.skipif(native is None, reason=f"compiled module: {reason}")
plain = st.text(st.characters(codec="ascii"), max_size=20)
known = st.sampled_from(
    (SIGNATURE, BOUND, "Signatura", "Signature2", "inorderBounc", "", "a", "ab")
)
plain_fields = st.dictionaries(known | plain, plain | st.just("x" * 3000), max_size=32)
texts = st.text(st.characters(exclude_categories=()), max_size=8)
any_fields = st.dictionaries(known | texts, texts, max_size=40)


@needs_compiled
@settings(max_examples=500, deadline=None)
@given(plain_fields, plain, st.integers(0, 2**63 - 1), st.integers(-(2**31), 2**31 - 1))
def test_both_cover_the_same_of_a_plain_request(
    fields: dict[str, str], session: str, counter: int, code: int
) -> None:
    """Whatever names, values, counter and code there are; and the module does not decline."""
    assert native is not None
    before = list(fields.items())
    assert native.signed_values(fields) == content_pure(fields, b"")[0]
    covered = native.marked(session, counter, code, fields, 2**33)
    assert covered == bound_content_pure(session, counter, code, fields, 2**33)
    assert list(fields.items()) == before


@settings(max_examples=500, deadline=None)
@given(any_fields, texts, st.integers(0, 2**63 - 1), st.binary(max_size=9))
def test_any_request_is_covered_as_python_does_it(
    fields: dict[str, str], session: str, counter: int, body: bytes
) -> None:
    """Also letters beyond ASCII, half pairs, and more fields than the module takes."""
    assert content(fields, body) == content_pure(fields, body)
    made = bound_content(session, counter, 310, fields, len(body))
    assert made == bound_content_pure(session, counter, 310, fields, len(body))


class Text(str):
    """A text of another kind."""

    __slots__ = ()


@needs_compiled
@pytest.mark.parametrize(
    "fields",
    [
        {"a": "é"}, {"é": "a"}, {"a": "\udc80"}, {Text("a"): "b"}, {"a": Text("b")}, {"a": None},
        {"a": b"b"}, {1: "b"}, {str(number): "" for number in range(33)},
        {"a": "x" * ((1 << 20) + 1)},
    ],
)  # fmt: skip
def test_the_module_leaves_to_python_what_is_not_plain(fields: dict[str, str]) -> None:
    """Letters beyond ASCII, values that are no texts, many fields, large ones."""
    assert native is not None
    assert native.signed_values(fields) is None
    assert native.marked("5e55", 1, 310, fields, 0) is None


@needs_compiled
@pytest.mark.parametrize(
    "numbers", [("é", 1, 1, 1), ("x" * 65536, 1, 1, 1), ("", -1, 1, 1), ("", 1, 2**31, 1),
                ("", 1, -(2**31) - 1, 1), ("", 1, 1, -1)],
)  # fmt: skip
def test_the_module_leaves_odd_numbers_to_python(numbers: tuple[str, int, int, int]) -> None:
    """What does not fit into its place of the mark; Python raises then."""
    assert native is not None
    session, counter, code, length = numbers
    assert native.marked(session, counter, code, {"a": "b"}, length) is None
