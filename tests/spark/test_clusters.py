"""The same jobs on a standalone cluster and through Spark Connect: executors find the source."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.clusters import connect_server, environment, is_installed, standalone
from tests.spark.jobkit import check_in_order, fill, stored

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not is_installed(), reason="inorder is not installed in this Python"),
]

JOB = """
import json, os, sys
from inorder.spark import session
from inorder.spark.jobs import archive, replay

master, namesrv, path = sys.argv[1:4]
conf = {"spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.ui.enabled": "false"}
spark = session(master, conf={} if master.startswith("sc:") else conf)
frame = spark.read.format("inorder").options(namesrv=namesrv, topic="orders",
                                             maxPartitions="4").load()

def executors(batches):
    import pyarrow as pa
    daemon = os.getppid()
    parent = int(open(f"/proc/{daemon}/stat").read().rpartition(")")[2].split()[1])
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"executor": [parent], "rows": [batch.num_rows]})

seen = frame.select("offset").mapInArrow(executors, "executor bigint, rows bigint").collect()
kept = archive(spark, namesrv=namesrv, topic="orders", path=path)
sent = replay(spark, path=path, namesrv=namesrv, topic="again")
print(json.dumps({"executors": len({row.executor for row in seen}),
                  "rows": sum(row.rows for row in seen), "archived": kept.archived,
                  "replayed": sent.replayed}))
spark.stop()
"""


def run(master: str, namesrv: str, folder: Path) -> dict[str, object]:
    """Run the job in a process of its own, as a user would, and return what it said."""
    done = subprocess.run(
        [sys.executable, "-c", JOB, master, namesrv, str(folder / "archive")],
        env=environment(), capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_jobs_run_on_a_standalone_cluster(namesrv: str, tmp_path: Path) -> None:
    """A master and two workers: both executors read, nothing is lost, doubled or inverted."""
    fill(namesrv, 8000)
    with standalone(tmp_path) as master:
        found = run(master, namesrv, tmp_path)
    assert found == {"executors": 2, "rows": 8000, "archived": 8000, "replayed": 8000}
    check_in_order(stored(namesrv, "again"), 8000)


@pytest.mark.skipif(
    importlib.util.find_spec("grpc_status") is None, reason="Spark Connect needs grpcio-status"
)
def test_jobs_run_through_spark_connect(namesrv: str, tmp_path: Path) -> None:
    """The client has no JVM; what it registers runs on the server."""
    fill(namesrv, 2000)
    with connect_server(tmp_path) as master:
        found = run(master, namesrv, tmp_path)
    assert (found["rows"], found["archived"], found["replayed"]) == (2000, 2000, 2000)
    check_in_order(stored(namesrv, "again"), 2000)
