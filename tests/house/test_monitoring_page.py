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


ROCKETMQ = """
messages_in_total throughput_in_total messages_out_total throughput_out_total message_size
consumer_lag_messages consumer_inflight_messages consumer_ready_messages
consumer_lag_latency_milliseconds consumer_queueing_latency_milliseconds
send_to_dlq_messages_total producer_connections consumer_connections rpc_latency_milliseconds
broker_permission topic_number consumer_group_number processor_watermark storage_size_bytes
storage_flush_behind_bytes storage_dispatch_behind_bytes
storage_message_reserve_time_milliseconds topic_create_execution_time_milliseconds
consumer_group_create_execution_time_milliseconds half_messages commit_messages_total
rollback_messages_total finish_message_latency_milliseconds timer_enqueue_lag
timer_enqueue_latency_milliseconds timer_dequeue_lag timer_dequeue_latency_milliseconds
timing_messages timer_enqueue_total timer_dequeue_total timer_message_snapshot
delay_message_latency_seconds pop_buffer_scan_time_consume_milliseconds
pop_revive_in_message_total pop_revive_out_message_total pop_revive_retry_messages_total
pop_revive_lag_milliseconds pop_revive_latency_milliseconds pop_offset_buffer_size
pop_checkpoint_buffer_size
"""
"""What brokers of RocketMQ 5 serve, without RocksDB, tiered storage, proxy and controller."""


def family_of(name: str) -> Family | None:
    """Return the family of a name in an expression."""
    return SERVED.get(name) or SERVED.get(re.sub(r"_(bucket|sum|count)$", "", name))


def test_each_metric_on_the_page_exists_and_the_other_way_round() -> None:
    """`python -m tools.make_metrics` renews the tables."""
    page = PAGE.read_text()
    assert page == filled(page), "run: python -m tools.make_metrics"
    named = set(re.findall(r"^\| `(\w+)` \| (?:counter|gauge|histogram) \|", page, re.M))
    assert named == {one.name for families in TABLES.values() for one in families}


def test_each_name_of_rocketmq_is_served_or_said_to_be_missing() -> None:
    """Nobody looks for a metric in vain; each name has the same place in both lists."""
    page = PAGE.read_text()
    start = page.index("## What RocketMQ serves and inorder does not")
    rows = page[start : page.index("\n## ", start)].splitlines()
    told = {
        name
        for row in rows
        if row.startswith("|")
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    for name in ROCKETMQ.split():
        served = f"rocketmq_{name}" in SERVED
        assert served != (f"rocketmq_{name}" in told), name


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
