"""Operating named producers: listed with their numbers, forgotten by an explicit verb only."""

from __future__ import annotations

import json

import pytest

import inorder
import inorder.testing
from inorder.cli.contents import app
from inorder.errors import NotFound
from tests.kit.commands import CliRunner

pytestmark = pytest.mark.slow


def test_a_named_producer_is_listed_and_forgotten() -> None:
    """Its last number is shown; after `drop` the same number is stored again."""
    with inorder.testing.broker() as broker, inorder.Admin(broker.namesrv) as admin:
        broker.create_topic("orders", queues=1)
        for _ in range(2):
            with inorder.Producer(broker.namesrv, id="import") as producer:
                producer.send("orders", b"7", key="k", sequence=7)
        (view,) = admin.producers.list()
        assert (view.name, list(view.last.values())) == ("import", [7])
        assert admin.producers.list("other") == []
        assert admin.topics.describe("orders").messages == 1
        assert admin.producers.drop("import") == 1
        with pytest.raises(NotFound, match="import"):
            admin.producers.drop("import")
        with inorder.Producer(broker.namesrv, id="import") as producer:
            producer.send("orders", b"7", key="k", sequence=7)
        assert admin.topics.describe("orders").messages == 2


def test_the_same_from_the_shell() -> None:
    """`inorder producer list` and `drop`."""
    with inorder.testing.broker() as broker:
        with inorder.Producer(broker.namesrv, id="import") as producer:
            producer.send("orders", b"7", key="k", sequence=7)
        run, at = CliRunner().invoke, ["--namesrv", broker.namesrv]
        listed = run(app, ["producer", "list", *at, "-o", "json"])
        assert [(row["producer"], row["last"]) for row in json.loads(listed.output)] == [
            ("import", 7)
        ]
        assert "import" in run(app, ["producer", "list", *at]).output
        dropped = run(app, ["producer", "drop", "import", "--yes", *at])
        assert dropped.output == "producer import forgotten on 1 queues\n"
