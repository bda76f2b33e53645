"""The page about monitoring tells what the code serves, and what ships asks for what exists."""

from __future__ import annotations

import re

from inorder.broker.metrics.rules import CATALOGUE
from inorder.exposition import Family
from inorder.net.admin import BUILD, PROCESS
from tests.ops.expressions import ROOT, alerts, dashboard
from tools.make_metrics import PAGE, TABLES, filled

SERVED = {one.name: one for one in (*CATALOGUE.values(), *PROCESS, BUILD)}
CONSTANT = {"cluster", "node_type", "node_id", "job", "instance"}


def family_of(name: str) -> Family | None:
    """Return the family of a name in an expression."""
    return SERVED.get(name) or SERVED.get(re.sub(r"_(bucket|sum|count)$", "", name))


def test_each_metric_on_the_page_exists_and_the_other_way_round() -> None:
    """`python -m tools.make_metrics` renews the tables."""
    page = PAGE.read_text()
    assert page == filled(page), "run: python -m tools.make_metrics"
    named = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert named == {one.name for families in TABLES.values() for one in families}


def test_expressions_name_metrics_and_labels_that_exist() -> None:
    """No query of the dashboard, and no alert, asks for what is not served."""
    asked = dashboard() + list(alerts().values())
    assert len(asked) > 40
    for expression in asked:
        names = set(re.findall(r"\b((?:rocketmq|inorder|process)_\w+)", expression))
        assert names or expression.startswith("up"), expression
        families = [family_of(name) for name in names]
        assert all(families), expression
        known = CONSTANT | {"le"} | {label for one in families if one for label in one.labels}
        labels = set(re.findall(r"(\w+)(?:=~|=|!=|!~)\"", expression))
        for listed in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression):
            labels |= {one.strip() for one in listed.split(",")}
        assert labels <= known, expression


def test_each_alert_has_its_first_step() -> None:
    """Whoever is called at night finds the alert on the page."""
    page = PAGE.read_text()
    table = page[page.index("## Alerts") : page.index("## Slow operations")]
    assert set(alerts()) == set(re.findall(r"[A-Z][a-z]+[A-Z]\w+|Overlap", table)) & set(alerts())
    assert (ROOT / "deploy/prometheus/prometheus.yml").exists()
