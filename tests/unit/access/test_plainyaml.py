"""The part of YAML that ACL files of RocketMQ use."""

from __future__ import annotations

import time
from typing import Any

import pytest

from inorder.access.plainyaml import CHARACTERS_MAX, Items, Node, Pairs, Scalar, read
from inorder.errors import ConfigError


def plain(node: Node) -> Any:
    """Return a tree as lists, dictionaries and words."""
    if isinstance(node, Scalar):
        return None if node.is_null else node.text()
    if isinstance(node, Items):
        return [plain(one) for one in node.nodes]
    return {key: plain(one) for key, one in node.nodes.items()}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("\n# nothing\n\n", None),
        ("---\na: b\n", {"a": "b"}),
        ("\ufeffa: b\r\nc: d\r\n", {"a": "b", "c": "d"}),
        ("a:\n", {"a": None}),
        ("a: ~\nb: null\nc: ''", {"a": None, "b": None, "c": ""}),
        ("a: x y # a comment\n", {"a": "x y"}),
        ("a: x#y\n", {"a": "x#y"}),
        ("a: 12345678\n", {"a": "12345678"}),
        ("a: '007'\n", {"a": "007"}),
        ("a: 'it''s'\n", {"a": "it's"}),
        ('a: "q\\"\\\\\\u00e9\\x41"\n', {"a": 'q"\\éA'}),
        ("a: fe80::1:2\n", {"a": "fe80::1:2"}),
        ("a: 10.1.1.{1,2}\n", {"a": "10.1.1.{1,2}"}),
        ("a:\n  - x\n  - y\n", {"a": ["x", "y"]}),
        ("a:\n- x\n- y\nb: z\n", {"a": ["x", "y"], "b": "z"}),
        ("a:\n# c\n  - x=PUB|SUB # d\n\n  - y=DENY\n", {"a": ["x=PUB|SUB", "y=DENY"]}),
        ("a:\n  -\n", {"a": [None]}),
        ("a:\n  -\n    b: c\n", {"a": [{"b": "c"}]}),
        (
            "a:\n- b: c\n  d:\n  - e\n  - f\n- b: g\n",
            {"a": [{"b": "c", "d": ["e", "f"]}, {"b": "g"}]},
        ),
        ("a: [x, 'y, z', \"w\"]\n", {"a": ["x", "y, z", "w"]}),
        ("a: []\nb: {}\n", {"a": [], "b": {}}),
        ("a: [x=PUB, y=SUB,\n  z=DENY]  # c\n", {"a": ["x=PUB", "y=SUB", "z=DENY"]}),
        ("a:\n- {counter: 1, timestamp: 1597}\n", {"a": [{"counter": "1", "timestamp": "1597"}]}),
        ("{a: [x], b: {c: d}}", {"a": ["x"], "b": {"c": "d"}}),
        ("'a': x\n\"b\": y\n", {"a": "x", "b": "y"}),
        ("'just a word'", "just a word"),
    ],
)
def test_what_acl_files_use_is_read(text: str, value: Any) -> None:
    """Blocks, brackets, quotes and comments are read as YAML reads them."""
    assert plain(read(text, "f")) == value


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("a: b\na: c\n", 2, 1, "twice"),
        ("a: {x: 1, x: 2}", 1, 11, "twice"),
        ("a: *\n", 1, 4, "meaning of its own"),
        ("a: &x y\n", 1, 4, "meaning of its own"),
        ("a: !!str y\n", 1, 4, "meaning of its own"),
        ("a: |\n  text\n", 1, 4, "meaning of its own"),
        ("a: >\n  text\n", 1, 4, "meaning of its own"),
        ("? a\n: b\n", 1, 1, "meaning of its own"),
        ("%YAML 1.1\n---\na: b", 2, 1, "one document"),
        ("%TAG x\n", 1, 1, "meaning of its own"),
        ("a: b\n---\nc: d\n", 2, 1, "one document"),
        ("a: b\n...\n", 2, 1, "one document"),
        ("a: [b,\n... c]\n", 2, 1, "one document"),
        ("a: [b:, c]\n", 1, 6, "colon and a blank"),
        ("a: [:b]\n", 1, 5, "meaning of its own"),
        ("a: b\tc\n", 1, 5, "tab"),
        ("a: b # c\td\n\t\n", 2, 1, "tab"),
        ("a: b\n  c\n", 2, 3, "deeper"),
        ("a: b\n  c: d\n", 2, 3, "deeper"),
        ("a:\n\t- b\n", 2, 1, "tab"),
        ("  a: b\nc: d\n", 2, 1, "belongs to nothing"),
        ("a: 'b\n", 1, 4, "quote is not closed"),
        ("a: 'b' c\n", 1, 8, "nothing may follow"),
        ("a: [b\n", 1, 4, "bracket is not closed"),
        ("a: [b c: d]\n", 1, 8, "colon and a blank"),
        ("a: [10.1.1.{1,2}]\n", 1, 12, "bracket within a word"),
        ("a: [b], c\n", 1, 7, "nothing may follow"),
        ("a: b: c\n", 1, 5, "colon and a blank"),
        ('a: "\\q"\n', 1, 5, "escape"),
        ('a: "\\ud800"\n', 1, 5, "escape"),
        ("a: b\x00\n", 1, 5, "control character"),
        ("a: b\u0085c\n", 1, 5, None),
        ("- " * 50 + "a\n", 1, None, "too deep"),
        ("a: " + "[" * 50 + "]" * 50, 1, None, "too deep"),
        ("a: [b, , c]\n", 1, 8, "meaning of its own"),
        ("a: x\n b\n", 2, 2, "deeper"),
        ("word\nword\n", 2, 1, "belongs to nothing"),
        ("<<: x\n", 1, 3, "colon and a blank"),
    ],
)
def test_everything_else_is_refused_with_its_place(
    text: str, line: int, column: int | None, words: str | None
) -> None:
    """The error names the file, the line, the column and what is wrong."""
    if words is None:
        assert plain(read(text, "f")) == {"a": "b\u0085c"}
        return
    with pytest.raises(ConfigError) as caught:
        read(text, "f.yml")
    place, _, what = str(caught.value).partition(": ")
    assert place.startswith(f"f.yml, line {line}, column ")
    assert column is None or place == f"f.yml, line {line}, column {column}"
    assert words in what


@pytest.mark.parametrize(
    "word",
    ["012345678", "0123", "0x1f", "1_000", "1.5", "1e10", "12:30:45", "+5", "2026-11-19", "yes",
     "Off", "true", ".inf", "-012", "00"],
)  # fmt: skip
def test_a_word_that_yaml_turns_into_another_text_must_stand_in_quotes(word: str) -> None:
    """RocketMQ 4 reads `0123` as the number 83: a secret must not depend on such rules."""
    node = read(f"a: {word}\n", "f")
    assert isinstance(node, Pairs)
    found = node.nodes["a"]
    assert isinstance(found, Scalar)
    with pytest.raises(ConfigError, match=r"line 1, column 4: YAML reads this as a number"):
        found.text()
    assert plain(read(f"a: '{word}'\n", "f")) == {"a": word}


@pytest.mark.parametrize(
    ("word", "value"),
    [("true", True), ("True", True), ("yes", True), ("'true'", True), ("false", False),
     ("no", False), ('"false"', False)],
)  # fmt: skip
def test_truth_values_are_those_of_yaml(word: str, value: bool) -> None:
    """Plain words of YAML 1.1, and true and false in quotes."""
    node = read(f"a: {word}\n", "f")
    assert isinstance(node, Pairs)
    found = node.nodes["a"]
    assert isinstance(found, Scalar)
    assert found.boolean() is value


@pytest.mark.parametrize("word", ["1", "'yes'", "maybe", "''"])
def test_other_words_are_no_truth_values(word: str) -> None:
    """A number or an unknown word is refused, not taken as false."""
    node = read(f"a: {word}\n", "f")
    assert isinstance(node, Pairs)
    found = node.nodes["a"]
    assert isinstance(found, Scalar)
    with pytest.raises(ConfigError, match="true or false"):
        found.boolean()


@pytest.mark.parametrize(
    "text",
    [
        "a:\n" + "- x\n" * 100_000,
        "a: [" + "x, " * 100_000 + "]",
        "a: " + "x" * 500_000,
        "a: '" + "''" * 200_000 + "'",
        "#\n" * 200_000,
        "a: [" + "\n" * 400_000 + "]",
        "a: " + " " * 500_000 + "#",
        "\n".join(f"k{number}: v" for number in range(60_000)),
    ],
)
def test_time_grows_with_the_length_only(text: str) -> None:
    """Long lines, long lists and many keys take no time that a quadratic reader would take."""
    began = time.process_time()
    read(text, "f")
    assert time.process_time() - began < 5


def test_a_huge_text_is_refused_unread() -> None:
    """The limit counts before anything is looked at."""
    with pytest.raises(ConfigError, match="longer than"):
        read("\x00" * (CHARACTERS_MAX + 1), "f")
