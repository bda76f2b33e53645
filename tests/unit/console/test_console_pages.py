"""Pages as values: what is live, what is locked, what a page of many rows holds."""

from __future__ import annotations

import pytest

from inorder.client.admin import QueueView, TopicView
from inorder.console import reads
from inorder.console.markup import Html
from inorder.console.pages import cluster, groups, messages, topics
from inorder.console.pages.frame import Viewer
from inorder.console.rules import History, page_of
from inorder.console.story import Evidence
from inorder.console.watch import Snapshot
from inorder.model import TopicQueue

OPERATOR = Viewer("ann", True, "token", "h:1")
STRANGER = Viewer("", False, "", "h:1")


def sections(page: object) -> dict[str, Html]:
    return {one.id: one.html for one in page.sections}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("scanned", "live"), [(20_000, True), (20_001, False)])
def test_a_story_that_costs_much_is_told_once(scanned: int, live: bool) -> None:
    """A page that is left open must not keep brokers searching."""
    page = messages.story(Evidence("t", "k", scanned=scanned), [], [], Html(""), 5)
    assert {one.id: one.live for one in page.sections}["story"] is live


def test_the_verdict_lives_with_its_story() -> None:
    """A story that goes on under the verdict of an hour ago would contradict it."""
    page = messages.story(Evidence("t", "k"), [], [], Html(""), 5)
    assert {"facts", "verdict", "story"} <= {one.id for one in page.sections if one.live}


def test_a_search_that_ended_early_says_so() -> None:
    """A story of which a part was not looked at is not taken for whole."""
    page = messages.story(Evidence("t", "k", cut="ended in queue a/1"), [], [], Html(""), 5)
    assert "The scan is not complete: it ended in queue a/1." in sections(page)["story"]


@pytest.mark.parametrize("viewer", [OPERATOR, STRANGER])
def test_forms_are_for_who_is_signed_in(viewer: Viewer) -> None:
    """A stranger sees where to sign in instead of a form, and no token of a session."""
    page = sections(topics.send("orders", viewer))["send"]
    assert ('method="post"' in page) is viewer.signed_in
    assert ("/sign-in?back=" in page) is not viewer.signed_in


def test_what_a_broker_does_not_know_is_said() -> None:
    """None is not an empty list: the reason stands in its place."""
    rows = page_of([], 1)
    owners = groups.owners("g", None, rows, History(), STRANGER, 0)
    assert "Apache RocketMQ does not tell" in sections(owners)["owners"]
    parked = groups.parked(None, {}, "", [], STRANGER, 0)
    assert "Apache RocketMQ keeps none" in sections(parked)["parked"]
    assert "Apache RocketMQ" in sections(topics.resize("t", None, STRANGER))["none"]


def test_a_topic_with_ten_thousand_queues_stays_small() -> None:
    """The picture has a thousand bars, the table two hundred rows."""
    queues = tuple(QueueView(TopicQueue("t", "a", n), 0, n, 0) for n in range(10_000))
    view = TopicView("t", {}, queues, (), 0.0)
    page = sections(topics.topic(view, None, page_of(queues, 1, size=200), 0))
    assert page["heat"].count("<rect") == 1000
    assert page["queues"].count("<tr>") == 201
    assert "page 1 of 50" in page["queues"]


def test_an_empty_cluster_has_no_verdict() -> None:
    """Without a broker nothing is fine yet."""
    page = sections(cluster.overview(Snapshot(), History(), 0))
    assert "No broker is registered yet" in page["state"]


@pytest.mark.parametrize(
    ("value", "sql"),
    [
        ("order-42", "__SHARDINGKEY = 'order-42'"),
        ("o'neil", "__SHARDINGKEY = 'o''neil'"),
        ("a\nb", None),
        ("x" * 201, None),
    ],
)
def test_keys_as_filters(value: str, sql: str | None) -> None:
    """A quote is doubled; a key that a filter cannot hold is looked for without one."""
    assert reads.sql_for("__SHARDINGKEY", value) == sql
