"""The table of RocketMQ clients says what `make interop` plays."""

from __future__ import annotations

from tests.interop.scenarios import PAGE, page


def test_the_table_of_rocketmq_clients_is_fresh() -> None:
    """`python -m tests.interop.scenarios` writes it anew."""
    assert PAGE.read_text(encoding="utf-8") == page()
