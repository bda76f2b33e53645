"""A body that nobody can unpack, in the middle of a queue that Spark reads; without a JVM."""

from __future__ import annotations

import contextlib

import pytest

from inorder.errors import CorruptRecord
from inorder.spark.source.options import SourceOptions
from inorder.spark.source.rules import Range
from inorder.spark.source.service import Portion, read
from tests.integration.test_damaged_messages import BAD, COUNT, QUEUE, TOPIC, damaged

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("end", [BAD, COUNT])
@pytest.mark.parametrize("keys", [(), ("k0", "k1")])
def test_spark_reads_what_is_whole(end: int, keys: tuple[str, ...]) -> None:
    """A range that ends before it is not touched by it; another one fails and names the offset."""
    with damaged() as broker:
        options = SourceOptions(broker.namesrv, (TOPIC,), keys=keys)
        got: list[int] = []
        batches = read(Portion(options, (Range(QUEUE, 0, end),)))
        with contextlib.ExitStack() as stack:
            if end > BAD:
                stack.enter_context(pytest.raises(CorruptRecord, match=f"offset {BAD}"))
            for batch in batches:
                got += batch.column("offset").to_pylist()
        assert got == list(range(BAD))
        rest = read(Portion(options, (Range(QUEUE, BAD + 1, COUNT),)))
        assert [o for one in rest for o in one.column("offset").to_pylist()] == [6, 7, 8, 9]
