"""ACL files of RocketMQ 4: accounts, rights, and what is not kept."""

from __future__ import annotations

import pytest

from inorder.access.plainacl import (
    DENY,
    Account,
    PlainAccounts,
    Rights,
    accounts,
    decode,
)
from inorder.errors import ConfigError

PUB, SUB, BOTH = Rights(pub=True), Rights(sub=True), Rights(pub=True, sub=True)

SHIPPED = """\
# Licensed to nobody in particular.

globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: correct-horse
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB

  - accessKey: rocketmq2
    secretKey: battery-staple
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
"""

WRITTEN_BY_MQADMIN = """\
accounts:
- accessKey: RocketMQ
  admin: false
  defaultGroupPerm: SUB
  defaultTopicPerm: DENY
  groupPerms: [groupA=DENY, groupB=PUB|SUB,
    groupC=SUB]
  secretKey: correct-horse
  topicPerms: [topicA=DENY, topicB=PUB|SUB, topicC=SUB]
dataVersion:
- {counter: 3, timestamp: 1684290520350}
globalWhiteRemoteAddresses: [10.10.103.*, 192.168.0.*]
"""


def account(lines: str = "", *, head: str = "") -> Account:
    """Return the only account of a file with these lines in it."""
    found = read(lines, head=head).accounts
    (one,) = found.values()
    return one


def read(lines: str = "", *, head: str = "") -> PlainAccounts:
    """Read a file with one account."""
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    return accounts(
        [
            (
                "f.yml",
                f"{head}accounts:\n  - accessKey: appuser1\n    secretKey: long-enough-1\n{body}",
            )
        ]
    )


@pytest.mark.parametrize("text", [SHIPPED, WRITTEN_BY_MQADMIN])
def test_the_shipped_file_and_one_written_by_mqadmin_are_read(text: str) -> None:
    """Both ways of writing give the same account."""
    found = accounts([("plain_acl.yml", text)])
    one = found.accounts["RocketMQ"]
    assert (one.secret_key, one.admin, one.addresses) == ("correct-horse", False, ())
    assert (one.default_topic, one.default_group) == (DENY, SUB)
    assert one.topics == {"topicA": DENY, "topicB": BOTH, "topicC": SUB}
    assert one.groups == {"groupA": DENY, "groupB": BOTH, "groupC": SUB}


def test_an_admin_and_its_addresses_are_read() -> None:
    """The second account of the shipped file."""
    two = accounts([("plain_acl.yml", SHIPPED)]).accounts["rocketmq2"]
    assert two.admin
    assert two.addresses == ("192.168.1.0/24",)


def test_each_line_that_is_not_kept_is_told_with_its_number() -> None:
    """Both global addresses, and the address of an account."""
    remarks = [str(one) for one in accounts([("plain_acl.yml", SHIPPED)]).remarks]
    assert [one.partition(":")[0] for one in remarks] == [
        "plain_acl.yml, line 4", "plain_acl.yml, line 5", "plain_acl.yml, line 26",
    ]  # fmt: skip
    assert "10.10.103.* is not kept" in remarks[0]
    assert "192.168.1.* skips no check" in remarks[2]


@pytest.mark.parametrize(
    ("word", "rights"),
    [("DENY", DENY), ("PUB", PUB), ("SUB", SUB), ("PUB|SUB", BOTH), ("SUB|PUB", BOTH),
     (" SUB ", SUB), ("sub", DENY), ("ANY", DENY), ("PUB,SUB", DENY), ("nonsense", DENY)],
)  # fmt: skip
def test_words_of_rights_mean_what_they_mean_in_rocketmq(word: str, rights: Rights) -> None:
    """Unknown words are DENY, as default and in a list; they are remarked."""
    found = read(f"defaultTopicPerm: '{word}'\ntopicPerms: ['a={word}']\ngroupPerms: ['g={word}']")
    one = found.accounts["appuser1"]
    assert (one.on_topic("other"), one.on_topic("a"), one.on_group("g")) == (rights,) * 3
    known = word.strip() in {"DENY", "PUB", "SUB", "PUB|SUB", "SUB|PUB"}
    assert len(found.remarks) == (0 if known else 3)


@pytest.mark.parametrize("lines", ["", "defaultTopicPerm:\ndefaultGroupPerm: ~"])
def test_without_a_default_nothing_is_allowed(lines: str) -> None:
    """A missing or empty default is DENY, for topics and groups."""
    one = account(lines)
    assert (one.on_topic("a"), one.on_group("g")) == (DENY, DENY)


def test_a_named_right_replaces_the_default() -> None:
    """It does not add to it, in either direction."""
    one = account("defaultTopicPerm: SUB\ntopicPerms: [a=PUB, b=DENY, c=PUB|SUB]")
    assert [one.on_topic(name) for name in "abcd"] == [PUB, DENY, BOTH, SUB]


def test_a_retry_topic_is_its_group() -> None:
    """Both spellings are one entry; that of topicPerms counts if both are there."""
    one = account("topicPerms: ['%RETRY%g=SUB', '%RETRY%h=DENY']\ngroupPerms: [h=SUB]")
    assert one.topics == {}
    assert (one.on_group("g"), one.on_topic("%RETRY%g"), one.on_group("h")) == (SUB, SUB, DENY)


def test_a_dead_letter_topic_belongs_to_its_group() -> None:
    """In RocketMQ 4 it is a topic like others; here its line is remarked."""
    found = read("topicPerms: ['%DLQ%billing=SUB']")
    assert [str(one) for one in found.remarks] == [
        "f.yml, line 4: %DLQ%billing is not kept: here it belongs to its group; write billing into "
        "groupPerms"
    ]


def test_the_trace_topic_takes_messages_of_everybody() -> None:
    """RocketMQ lets each account send traces, whatever its rights are."""
    one = account("topicPerms: [RMQ_SYS_TRACE_TOPIC=DENY]")
    assert one.on_topic("RMQ_SYS_TRACE_TOPIC") == PUB


def test_names_are_literal() -> None:
    """A star stands for nothing else in RocketMQ 4, and must not begin to here."""
    found = read("topicPerms: ['*=PUB', 'a*=SUB']")
    one = found.accounts["appuser1"]
    assert (one.on_topic("b"), one.on_topic("ab")) == (DENY, DENY)
    assert len(found.remarks) == 2


@pytest.mark.parametrize(
    ("pattern", "addresses"),
    [("''", ()), ("'*'", ()), ("10.1.1.{1,2}", ("10.1.1.1/32", "10.1.1.2/32")),
     ("10.1.1.1-2", ("10.1.1.1/32", "10.1.1.2/32")), ("fe80::1", ("fe80::1/128",))],
)  # fmt: skip
def test_addresses_of_an_account_narrow_it(pattern: str, addresses: tuple[str, ...]) -> None:
    """Blank and everything narrow nothing; a remark says that no check is skipped."""
    found = read(f"whiteRemoteAddress: {pattern}")
    assert found.accounts["appuser1"].addresses == addresses
    assert len(found.remarks) == (0 if pattern == "''" else 1)


def test_of_an_account_in_two_files_the_first_counts() -> None:
    """So it is in RocketMQ; the second is remarked with the place of the first."""
    text = "accounts:\n- accessKey: appuser1\n  secretKey: {}-long-secret\n"
    found = accounts(
        [("acl/a.yml", text.format("first")), ("plain_acl.yml", text.format("second"))]
    )
    assert found.accounts["appuser1"].secret_key == "first-long-secret"
    assert [str(one) for one in found.remarks] == [
        "plain_acl.yml, line 2: the account appuser1 is ignored: acl/a.yml, line 2 has it already"
    ]


def test_a_name_twice_in_a_list_counts_as_in_rocketmq() -> None:
    """The last one counts; a remark says so."""
    found = read("topicPerms: [a=PUB, a=SUB]")
    assert found.accounts["appuser1"].on_topic("a") == SUB
    assert len(found.remarks) == 1


@pytest.mark.parametrize("text", ["", "# nothing\n", "accounts:\n", "accounts: []\n"])
def test_a_file_without_accounts_is_no_error(text: str) -> None:
    """RocketMQ creates an empty file."""
    assert accounts([("f.yml", text)]) == PlainAccounts({}, ())


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("accounts:\n- accessKey: short\n  secretKey: long-enough", "2, column 14", "7 to"),
        ("accounts:\n- accessKey: appuser1\n  secretKey: short", "3, column 14", "7 to"),
        ("accounts:\n- accessKey: appuser1\n", "2, column 3", "no secretKey"),
        ("accounts:\n- secretKey: long-enough\n", "2, column 3", "no accessKey"),
        ("accounts:\n- accessKey: appuser1\n  secretKey:\n", "3, column 13", "7 to"),
        ("accounts:\n- appuser1\n", "2, column 3", "begins with accessKey"),
        ("accounts: appuser1\n", "1, column 11", "a list"),
        ("acounts: []\n", "1, column 1", "not known"),
        ("accounts:\n- accessKey: appuser1\n  secretKey: long-enough\n  topicPerm: [a=PUB]\n",
         "4, column 3", "not known"),
        ("accounts:\n- accessKey: appuser1\n  secretKey: long-enough\n  topicPerms: [a]\n",
         "4, column 16", "NAME=PUB"),
        ("accounts:\n- accessKey: appuser1\n  secretKey: long-enough\n  topicPerms: [a=PUB=SUB]\n",
         "4, column 16", "NAME=PUB"),
        ("accounts:\n- accessKey: appuser1\n  secretKey: long-enough\n  topicPerms: a=PUB\n",
         "4, column 15", "a list"),
        ("accounts:\n- accessKey: appuser1\n  secretKey: long-enough\n  admin: maybe\n",
         "4, column 10", "true or false"),
        ("accounts:\n- accessKey: appuser1\n  secretKey: 0123456789\n", "3, column 14", "number"),
        ("accounts:\n- accessKey: appuser1\n  secretKey: long-enough\n"
         "  whiteRemoteAddress: 10.1\n", "4, column 23", "number"),
        ("accounts:\n- accessKey: appuser1\n  secretKey: long-enough\n"
         "  whiteRemoteAddress: nowhere\n", "4, column 23", "no IP address"),
        ("globalWhiteRemoteAddresses: [10.1.1.0/24]\n", "1, column 30", "no IP address"),
        ("- a\n", "1, column 1", "begins with accounts"),
    ],
)  # fmt: skip
def test_a_file_that_rocketmq_would_not_load_is_refused(text: str, place: str, words: str) -> None:
    """With the file, the line, the column and the reason, and never with a secret."""
    with pytest.raises(ConfigError) as caught:
        accounts([("f.yml", text)])
    assert str(caught.value).startswith(f"f.yml, line {place}: ")
    assert words in str(caught.value)
    assert "long-enough" not in str(caught.value)


def test_no_text_shows_a_secret() -> None:
    """Neither an account nor a remark."""
    found = accounts([("plain_acl.yml", SHIPPED)])
    assert "correct-horse" not in repr(found)
    assert "correct-horse" not in " ".join(map(str, found.remarks))


def test_weak_secrets_are_remarked() -> None:
    """A short secret is kept: clients need no new key."""
    found = accounts([("f", "accounts:\n- accessKey: appuser1\n  secretKey: short-1\n")])
    assert found.accounts["appuser1"].secret_key == "short-1"
    assert "easy to guess" in str(found.remarks[0])


def test_bytes_that_are_no_text_are_refused() -> None:
    """UTF-8 only, as RocketMQ writes it."""
    with pytest.raises(ConfigError, match=r"f\.yml is not UTF-8 text: byte 3"):
        decode(b"abc\xff", "f.yml")
