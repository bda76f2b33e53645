"""Spark on our broker beside Spark on Kafka, in one session, units in turn.

    python -m bench spark                       2 M messages, every cell, beside Kafka 4
    python -m bench spark --count 10000 --units 1 --latency-seconds 5     a look whether it works

200-byte bodies, 1,000 keys, four queues, `local[2]`. Each cell is run with our source, with Spark's
own Kafka source on the same rows, and with rows from nothing (the ceiling of Spark's Arrow
interface). Of ours (option `columns`) and from nothing it takes what Kafka's source gives: topic,
queue, offset, key, body and time of storing; state and topic cells take what they need, and
`batch-noop-all` takes all thirteen columns, properties and ids among them. CPU is that of the JVM,
its Python workers and the broker. Then what a stream needs that has little to read (`start`), the
cost of many queues in small micro-batches, and the age of rows in a sink at 1,000 messages/s.

It ends after `--minutes` at the latest: what was not measured by then is left out, and said so.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.kafka import Kafka, spark_jars
from bench.kafka import missing as kafka_missing
from bench.process import Child, StartFailed
from bench.systems import ROOT, Ours
from inorder.spark.jobs.progress import as_ours

QUEUES = 4
TASKS = 2
TOPIC = "bench"
AS_KAFKA = "topic,queue,offset,key,body,stored_at"
FEW, MANY = 2, 64
SMALL = f"small{FEW}"
SMALL_ROWS = 640
SMALL_BATCHES = 24
SKIPPED_BATCHES = 4
QUEUE_RATIO_MAX = 1.5
FEED_PER_S = 1000
WARM_S = 5.0
METRICS = (
    "rows_per_s",
    "cpu_us_per_row",
    "p50_ms",
    "p99_ms",
    "micro_batch_ms",
    "start_ms",
    "start_cpu_ms",
)
STREAM_RATIO_MIN = 1.25
"""What streams must reach in rows/s of Kafka's, the start of the query included."""
CEILING, OURS, THEIRS = "synthetic", "inorder", "kafka"
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Say = Callable[[str], None]
Unit = dict[str, float]


@dataclass(frozen=True, slots=True)
class SparkPlan:
    """How much and how long."""

    count: int = 2_000_000
    units: int = 3
    latency_seconds: float = 30.0
    minutes: float = 30.0
    against: bool = True


@dataclass(slots=True)
class Measured:
    """Every unit of every cell, by side."""

    units: dict[str, dict[str, list[Unit]]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add(self, cell: str, side: str, unit: Unit) -> None:
        """Keep a unit."""
        self.units.setdefault(cell, {}).setdefault(side, []).append(unit)

    def median(self, cell: str, side: str, metric: str) -> float | None:
        """Return the median over the units, None if it was not measured."""
        found = [unit[metric] for unit in self.units.get(cell, {}).get(side, []) if metric in unit]
        return statistics.median(found) if found else None

    def ratios(self, cell: str, metric: str) -> list[float]:
        """Return ours to theirs, pair by pair, as they took turns."""
        sides = self.units.get(cell, {})
        pairs = zip(sides.get(OURS, []), sides.get(THEIRS, []), strict=False)
        return [a[metric] / b[metric] for a, b in pairs if metric in a and b.get(metric)]


def missing() -> str | None:
    """Say what this Python lacks, or None."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'inorder[spark]', or make spark"
    return None


class Side:
    """A source, the sink that belongs to it, and the broker behind them."""

    def __init__(self, spark: Any, name: str, source: str, options: dict[str, str]) -> None:
        self.spark, self.name, self.source, self.options = spark, name, source, options
        self.brokers: list[Child] = []

    def of(self, topic: str) -> Side:
        """Return the same side with another topic."""
        name = "subscribe" if self.source == "kafka" else "topic"
        return Side(self.spark, self.name, self.source, {**self.options, name: topic})

    def batch(self, columns: str | None = AS_KAFKA) -> Any:
        """Return all rows as a table."""
        options = self._chosen(columns)
        return self.spark.read.format(self.source).options(**options).load()

    def stream(self, columns: str = AS_KAFKA) -> Any:
        """Return all rows as a stream."""
        options = {**self._chosen(columns), "startingOffsets": "earliest"}
        return self.spark.readStream.format(self.source).options(**options).load()

    def _chosen(self, columns: str | None) -> dict[str, str]:
        if columns is None or self.source == "kafka":  # which has no choice
            return self.options
        return {**self.options, "columns": columns}

    def for_state(self) -> Any:
        """Return a stream of queue, offset and key."""
        if self.source == "kafka":
            words = ("partition as queue", "offset", "cast(key as string) as key")
            return self.stream().selectExpr(*words)
        return self.stream("queue,offset,key")

    def to_topic(self, number: int, *, exactly_once: bool) -> Any:
        """Return the writer of a stream into a topic of the same broker."""
        topic = f"out{number}" if exactly_once else f"again{number}"
        needed = "topic,broker,queue,offset,key,body" if exactly_once else "key,body"
        frame = self.stream(needed)
        if self.source == "kafka":
            chosen = frame.select("key", "value")
            return chosen.writeStream.format("kafka").options(
                **{"kafka.bootstrap.servers": self.options["kafka.bootstrap.servers"]},
                topic=topic,
            )
        if not exactly_once:
            return frame.writeStream.format("inorder").options(
                namesrv=self.options["namesrv"], topic=topic, delivery="at-least-once"
            )
        from inorder.spark import lineage

        chosen = lineage(frame).select(
            "body", "key", "source_topic", "source_broker", "source_queue", "source_offset"
        )
        return chosen.writeStream.format("inorder").options(
            namesrv=self.options["namesrv"], topic=topic, sinkId=f"bench{number}"
        )


def _noop(frame: Any, folder: Path) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _parquet(frame: Any, folder: Path) -> None:
    frame.write.parquet(str(folder / "out"))


def run_spark(plan: SparkPlan, say: Say) -> Measured:
    """Measure everything within the time that the plan allows."""
    deadline_s = time.monotonic() + plan.minutes * 60
    measured = Measured()
    with ExitStack() as held:
        folder = Path(tempfile.mkdtemp(prefix="inorder-bench-spark-"))
        held.callback(shutil.rmtree, folder, ignore_errors=True)
        ours = held.enter_context(Ours())
        namesrv = f"{ours.namesrv[0]}:{ours.namesrv[1]}"
        kafka = held.enter_context(Kafka()) if plan.against else None
        spark = _session(folder, plan.against)
        held.callback(spark.stop)
        sides = _sides(spark, plan, namesrv, ours, kafka)
        _fill(plan, namesrv, folder, say)
        if kafka is not None:
            _fill_kafka(plan, kafka, sides[1], say)
        for side in sides:  # the JVM compiles, workers start
            _noop(side.batch(), folder)
        runs = _throughput_runs(plan, sides, folder)
        runs += _start_runs(plan, sides, folder)
        runs += _queue_runs(spark, namesrv, folder)
        runs += _latency_runs(plan, spark, namesrv, kafka, folder)
        for name, side_name, run in runs:
            if time.monotonic() > deadline_s:
                measured.left_out.append(f"{name} {side_name}: the time was up")
                continue
            try:
                unit = run()
            except Exception as error:  # of Spark, in any layer: the other units are worth having
                measured.left_out.append(f"{name} {side_name}: {as_ours(error)}")
                say(f"  {measured.left_out[-1]}")
                continue
            measured.add(name, side_name, unit)
            shown = ", ".join(f"{key} {value:,.4g}" for key, value in unit.items())
            say(f"  {name:16s} {side_name:10s} {shown}")
    return measured


def _session(folder: Path, with_kafka: bool) -> Any:
    from inorder.spark.sessions import session

    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    conf = {"spark.driver.memory": "2g", "spark.local.dir": str(folder / "local")}
    if with_kafka:
        conf["spark.jars"] = ",".join(map(str, spark_jars()))
    spark = session(f"local[{TASKS}]", name="bench", conf=conf, long_running=True)
    from bench.drivers.sparkwork import StopWatch, SyntheticSource

    spark.dataSource.register(SyntheticSource)
    spark.dataSource.register(StopWatch)
    return spark


def _sides(
    spark: Any, plan: SparkPlan, namesrv: str, ours: Ours, kafka: Kafka | None
) -> list[Side]:
    rows = {"rows": str(plan.count), "queues": str(QUEUES), "tasks": str(TASKS)}
    found = [Side(spark, CEILING, "synthetic", rows)]
    mine = Side(spark, OURS, "inorder", {"namesrv": namesrv, "topic": TOPIC})
    mine.brokers = ours.children()
    found.append(mine)
    if kafka is not None:
        options = {"kafka.bootstrap.servers": kafka.address, "subscribe": TOPIC}
        theirs = Side(spark, THEIRS, "kafka", options)
        theirs.brokers = kafka.children()
        found.append(theirs)
    return found


def _fill(plan: SparkPlan, namesrv: str, folder: Path, say: Say) -> None:
    """Put the rows into our broker."""
    from inorder.sync.admin import Admin

    with Admin(namesrv) as admin:
        admin.topics.create(TOPIC, queues=QUEUES)
        for queues in (FEW, MANY):
            admin.topics.create(f"small{queues}", queues=queues)
        admin.topics.create("latency", queues=QUEUES)
        for name in _targets(plan):
            admin.topics.create(name, queues=QUEUES)
    began = time.monotonic()
    feed = feeder(namesrv, TOPIC, plan.count, None, folder)
    _wait(feed)
    for queues in (FEW, MANY):
        _wait(feeder(namesrv, f"small{queues}", SMALL_ROWS * SMALL_BATCHES, None, folder))
    say(f"  filled our broker in {time.monotonic() - began:.1f} s")


def _targets(plan: SparkPlan) -> list[str]:
    """Return the topics that streams write to, of both deliveries."""
    return [f"{name}{number}" for name in ("out", "again") for number in range(plan.units)]


def _fill_kafka(plan: SparkPlan, kafka: Kafka, ours: Side, say: Say) -> None:
    """Put the same rows into Kafka."""
    for name in (TOPIC, "latency", *_targets(plan)):
        kafka.make_topic(name, QUEUES)
    kafka.make_topic(SMALL, FEW)
    began = time.monotonic()
    for name in (TOPIC, SMALL):
        rows = ours.of(name).batch("key,body,queue")
        rows.selectExpr("key", "body as value", "queue as partition").write.format("kafka").options(
            **{"kafka.bootstrap.servers": kafka.address}, topic=name
        ).save()
    say(f"  filled Kafka in {time.monotonic() - began:.1f} s")


def feeder(namesrv: str, topic: str, count: int, per_s: int | None, folder: Path) -> Child:
    """Start a process that fills a topic of ours."""
    words = [namesrv, topic, str(count), *([] if per_s is None else [str(per_s)])]
    return Child(
        f"feed-{topic}", [sys.executable, "-m", "bench.drivers.sparkfeed", *words],
        directory=folder,
    )  # fmt: skip


def _wait(child: Child) -> None:
    if child.process.wait(timeout=900) != 0:
        raise StartFailed(f"{child.name}: {child.output()[-1000:]}")


# Throughput.


def _throughput_runs(
    plan: SparkPlan, sides: list[Side], folder: Path
) -> list[tuple[str, str, Callable[[], Unit]]]:
    """Return every unit, the sides in turn."""
    cells: dict[str, Callable[[Side, Path, int], None]] = {
        "batch-noop": lambda side, where, _: _noop(side.batch(), where),
        "batch-noop-all": lambda side, where, _: _noop(side.batch(None), where),
        "batch-parquet": lambda side, where, _: _parquet(side.batch(), where),
        "stream-noop": lambda side, where, _: _drain(side.stream().writeStream, where, "noop"),
        "stream-parquet": lambda side, where, _: _drain(
            side.stream().writeStream.option("path", str(where / "out")), where, "parquet"
        ),
        "stream-topic": lambda side, where, number: _drain(
            side.to_topic(number, exactly_once=True), where, None
        ),
        "stream-topic-at-least-once": lambda side, where, number: _drain(
            side.to_topic(number, exactly_once=False), where, None
        ),
        "stream-state": _state,
    }
    found: list[tuple[str, str, Callable[[], Unit]]] = []
    for name, run in cells.items():
        for number in range(plan.units):
            for side in sides:
                if side.name == {"batch-noop-all": THEIRS}.get(
                    name, CEILING if "topic" in name else ""
                ):
                    continue
                found.append((name, side.name, _timed(run, side, folder, number, plan.count)))
    return found


def _timed(
    run: Callable[[Side, Path, int], None], side: Side, folder: Path, number: int, count: int
) -> Callable[[], Unit]:
    def unit() -> Unit:
        where = Path(tempfile.mkdtemp(dir=folder))
        brokers = [pid for child in side.brokers for pid in child.pids()]
        cpu = _cpu_s(_tree(os.getpid()) | set(brokers))
        began = time.monotonic()
        run(side, where, number)
        seconds = time.monotonic() - began
        cpu = _cpu_s(_tree(os.getpid()) | set(brokers)) - cpu
        shutil.rmtree(where, ignore_errors=True)
        return {"rows_per_s": count / seconds, "cpu_us_per_row": cpu / count * 1e6}

    return unit


def _drain(writer: Any, where: Path, sink: str | None) -> Any:
    """Run a stream over all there is."""
    if sink is not None:
        writer = writer.format(sink)
    query = (
        writer.option("checkpointLocation", str(where / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def _state(side: Side, where: Path, _: int) -> None:
    from bench.drivers.sparkwork import STATE_OUT, ordered_state

    state = where / "state"
    state.mkdir()
    rows = side.for_state().mapInArrow(ordered_state(str(state)), STATE_OUT)
    _drain(rows.writeStream, where, "noop")


def _tree(root: int) -> set[int]:
    """Return a process and its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:  # it ended meanwhile
                continue
            parents[int(entry.name)] = int(text.rpartition(")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _cpu_s(pids: set[int]) -> float:
    """Return the CPU time of processes and of those of their children that ended."""
    ticks = 0
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended; its parent has its time
            continue
        ticks += sum(int(word) for word in words[11:15])
    return ticks / CLOCK_TICKS_PER_S


def _start_runs(
    plan: SparkPlan, sides: list[Side], folder: Path
) -> list[tuple[str, str, Callable[[], Unit]]]:
    """Return streams over few rows: what is left is their start and their end."""

    def unit(side: Side) -> Unit:
        where = Path(tempfile.mkdtemp(dir=folder))
        cpu = _cpu_s(_tree(os.getpid()))
        began = time.monotonic()
        _drain(side.of(SMALL).stream().writeStream, where, "noop")
        took_ms = (time.monotonic() - began) * 1000
        cpu_ms = (_cpu_s(_tree(os.getpid())) - cpu) * 1000
        shutil.rmtree(where, ignore_errors=True)
        return {"start_ms": took_ms, "start_cpu_ms": cpu_ms}

    return [
        ("start", side.name, lambda side=side: unit(side))  # type: ignore[misc]
        for _ in range(plan.units + 1)
        for side in sides
        if side.name != CEILING
    ]


# Small micro-batches of few and of many queues.


def _queue_runs(
    spark: Any, namesrv: str, folder: Path
) -> list[tuple[str, str, Callable[[], Unit]]]:
    def unit(queues: int) -> Unit:
        where = Path(tempfile.mkdtemp(dir=folder))
        options = {"namesrv": namesrv, "topic": f"small{queues}", "startingOffsets": "earliest",
                   "maxOffsetsPerTrigger": str(SMALL_ROWS)}  # fmt: skip
        frame = spark.readStream.format("inorder").options(**options).load()
        query = _drain(frame.writeStream, where, "noop")
        took = [
            progress["durationMs"]["triggerExecution"]
            for progress in query.recentProgress
            if progress["numInputRows"]
        ]
        shutil.rmtree(where, ignore_errors=True)
        return {"micro_batch_ms": float(statistics.median(took[SKIPPED_BATCHES:] or took))}

    order = (FEW, MANY) * 3
    return [
        (f"queues-{queues}", OURS, lambda queues=queues: unit(queues))  # type: ignore[misc]
        for queues in order
    ]


# Latency at a steady rate.


def _latency_runs(
    plan: SparkPlan, spark: Any, namesrv: str, kafka: Kafka | None, folder: Path
) -> list[tuple[str, str, Callable[[], Unit]]]:
    count = int((plan.latency_seconds + WARM_S) * FEED_PER_S)

    def ours() -> Unit:
        options = {"namesrv": namesrv, "topic": "latency", "startingOffsets": "latest"}
        frame = spark.readStream.format("inorder").options(**options).load()
        return _ages(
            frame.selectExpr("born_at as at"), folder,
            lambda: feeder(namesrv, "latency", count, FEED_PER_S, folder),
        )  # fmt: skip

    found: list[tuple[str, str, Callable[[], Unit]]] = [("latency", OURS, ours)]
    if kafka is not None:
        from bench.drivers.sparkwork import BODY_BYTES

        def theirs() -> Unit:
            options = {"kafka.bootstrap.servers": kafka.address, "subscribe": "latency",
                       "startingOffsets": "latest"}  # fmt: skip
            frame = spark.readStream.format("kafka").options(**options).load()
            return _ages(
                frame.selectExpr("timestamp as at"), folder,
                lambda: kafka.feed("latency", count, FEED_PER_S, BODY_BYTES),
            )  # fmt: skip

        found.append(("latency", THEIRS, theirs))
    return found


def _ages(frame: Any, folder: Path, feed: Callable[[], Child]) -> Unit:
    """Follow a topic while it is fed; return how old rows were when they came."""
    import numpy as np

    where = Path(tempfile.mkdtemp(dir=folder))
    ages_folder = where / "ages"
    ages_folder.mkdir()
    query = (
        frame.writeStream.format("stopwatch")
        .option("folder", str(ages_folder))
        .option("checkpointLocation", str(where / "checkpoint"))
        .start()
    )
    try:
        deadline_s = time.monotonic() + 60
        while not query.recentProgress and time.monotonic() < deadline_s:
            time.sleep(0.1)
        began_ns = time.time_ns()
        _wait(feed())
        time.sleep(1.0)
    finally:
        query.stop()
    after_ns = began_ns + int(WARM_S * 1e9)
    kept = [np.load(path) for path in _files(ages_folder, after_ns)]
    ages = np.concatenate(kept) if kept else np.array([float("nan")])
    shutil.rmtree(where, ignore_errors=True)
    return {
        "p50_ms": float(np.percentile(ages, 50)),
        "p90_ms": float(np.percentile(ages, 90)),
        "p99_ms": float(np.percentile(ages, 99)),
        "rows": float(len(ages)),
    }


def _files(folder: Path, after_ns: int) -> Iterator[Path]:
    for path in sorted(folder.glob("*.npy")):
        if int(path.stem.partition("-")[0]) > after_ns:
            yield path


# What came out.


def table(measured: Measured) -> str:
    """Return one line a metric: medians, ratio to Kafka's, share of the ceiling, target.

    The ratio is the median of those of pairs that ran one after the other, with the least and the
    greatest: the machine's speed changes more between pairs than within one.
    """
    rows: list[tuple[str, ...]] = [
        ("cell", "metric", CEILING, OURS, THEIRS, "ratio", "of ceiling", "target", "")
    ]
    for cell, sides in measured.units.items():
        there = {metric for units in sides.values() for unit in units for metric in unit}
        rows += [_row(measured, cell, metric) for metric in METRICS if metric in there]
    few = measured.median(f"queues-{FEW}", OURS, "micro_batch_ms")
    many = measured.median(f"queues-{MANY}", OURS, "micro_batch_ms")
    if few and many:
        met = "met" if many / few <= QUEUE_RATIO_MAX else "NOT MET"
        rows.append((f"queues {MANY} : {FEW}", "ratio", "", f"{many / few:.2f}", "", "", "",
                     f"<= {QUEUE_RATIO_MAX}", met))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column < 2 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _row(measured: Measured, cell: str, metric: str) -> tuple[str, ...]:
    ceiling, ours, theirs = (
        measured.median(cell, side, metric) for side in (CEILING, OURS, THEIRS)
    )
    more_is_better = metric == "rows_per_s"
    ratio = target = verdict = share = ""
    pairs = measured.ratios(cell, metric)
    if pairs:
        middle = statistics.median(pairs)
        ratio = f"{middle:.2f}"
        if len(pairs) > 1:
            ratio += f" ({min(pairs):.2f}-{max(pairs):.2f})"
        if more_is_better or metric in ("p50_ms", "p99_ms"):
            least = STREAM_RATIO_MIN if cell.startswith("stream") else 1
            target = f">= {least:g}" if more_is_better else "<= 1"
            met = middle >= least if more_is_better else middle <= 1
            verdict = "met" if met else "NOT MET"
    if more_is_better and ceiling and ours:
        share = f"{ours / ceiling:.0%}"
    return (cell, metric, *map(_number, (ceiling, ours, theirs)), ratio, share, target, verdict)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


__all__ = ["Measured", "SparkPlan", "kafka_missing", "missing", "run_spark", "table"]
