"""A query of `process_in_order` without Spark around it: batches planned, read and handled by the
same code, one after the other, in this process. What Spark adds, repeats and kills, is played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

from inorder.client.consume.rules.outcomes import Policy, redeliveries_max
from inorder.spark.cluster import Servers, Tls
from inorder.spark.ordered import service as ordered_service
from inorder.spark.ordered.outputs import Rows
from inorder.spark.ordered.rules import Limits
from inorder.spark.ordered.service import Plan, run_task
from inorder.spark.ordered.storage import _cache
from inorder.spark.source.options import parse
from inorder.spark.source.service import StreamReader

SCHEMA = StructType([StructField("key", StringType()), StructField("body", StringType())])


class Killed(Exception):
    """Raised where a task dies."""


class BareQuery:
    """Batches over one state. `rows` is what a sink that knows numbers has, in order of arrival."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        namesrv: str,
        folder: Path,
        handler: Any,
        *,
        on_failure: Policy,
        group: str = "billing",
        pause_ms: int = 0,
        parks: bool = True,
        tls: Tls | None = None,
        **source: str,
    ) -> None:
        rows, most = Rows.of(SCHEMA), redeliveries_max(on_failure)
        servers = Servers(namesrv, tls)
        self.source = {**servers.options(), "topic": "orders", "startingOffsets": "earliest",
                       "group": group, **source}  # fmt: skip
        self.reader = StreamReader(parse(self.source))
        columns = tuple(parse(self.source).columns)
        self.plan = Plan(
            handler, rows.columns, rows, str(folder), servers, group,
            Limits(most, pause_ms, 10_000, parks), 0, False, Any, columns,
        )  # fmt: skip
        self.offset = self.reader.initialOffset()
        self.batch = 0
        self.rows: dict[tuple[str, int], dict[str, Any]] = {}
        patch.setattr(ordered_service, "identity", lambda: ("query", self.batch))

    def run(self, times: int = 1) -> int:
        """Run a batch so often, each time in a new process; return how many messages it had."""
        end = self.plan_batch()
        count = 0
        for _ in range(times):
            count = self.attempt(end)
        self.commit(end)
        return count

    def plan_batch(self) -> Any:
        """Return where the next batch ends."""
        return self.reader.latestOffset(self.offset, ReadAllAvailable())

    def attempt(self, end: Any) -> int:
        """Run the tasks of a batch, and take its rows as a sink takes them."""
        _cache.clear()
        count = 0
        for partition in self.reader.partitions(self.offset, end):
            batches = list(self.reader.read(partition))
            count += sum(batch.num_rows for batch in batches)
            for made in run_task(self.plan, iter(batches)):
                for row in made.to_pylist():
                    place = (row.pop("producer"), row.pop("sequence"))
                    assert self.rows.setdefault(place, row) == row
        return count

    def commit(self, end: Any) -> None:
        """Note a batch as done, as Spark does."""
        self.offset = end
        self.batch += 1
        self.reader.commit(end)

    def restart(self) -> None:
        """Begin with another driver, from the checkpoint."""
        self.reader = StreamReader(parse(self.source))

    def bodies(self, key: str) -> list[str]:
        """Return the rows of a key as they came."""
        return [row["body"] for row in self.rows.values() if row["key"] == key]
