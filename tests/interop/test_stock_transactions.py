"""Transactional producers of stock clients against our broker: ended at once, or when it asks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import inorder
from bench.systems import Ours
from tests.interop.stock import KINDS, Kind, running

pytestmark = [pytest.mark.interop, pytest.mark.slow]

COUNT = 40
EAGER = {"transactionTimeOut": 500, "transactionCheckInterval": 500}


@pytest.fixture(scope="module")
def server() -> Iterator[Ours]:
    """Run one `inorder up` that asks soon."""
    with Ours(settings=EAGER) as ours:
        yield ours


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.name.startswith(("java", "go"))], ids=lambda k: k.name
)
def test_each_transaction_of_a_stock_client_has_its_outcome_once(
    kind: Kind, server: Ours, tmp_path: Path
) -> None:
    """A quarter is committed at once, a quarter when the broker asks; the others are never seen."""
    with running(kind, server, tmp_path) as client:
        topic = client.topic("paid")
        client.driver.do("transact", topic=topic, group=client.name("shop"), first=0, count=COUNT)
        namesrv = f"127.0.0.1:{server.namesrv[1]}"
        deadline = time.monotonic() + 60
        with inorder.Admin(namesrv) as admin:
            while any(one.total for one in admin.cluster.transactions(topic).values()):
                assert time.monotonic() < deadline, "a transaction has no outcome"
                time.sleep(0.1)
        time.sleep(1)  # for what comes twice
        stored = [number for queue in client.stored(topic).values() for number in queue]
        assert sorted(stored) == list(range(0, COUNT, 2))
