"""How far a group is behind, over time: samples from the brokers, or from the progress of a query.

The job needs no Spark of its own: a sample is one request to each broker. Samples are rows, one per
queue. Each run adds a Parquet file of its own, so runs add up to a history.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from inorder.clock import Clock, SystemClock
from inorder.errors import ConfigError
from inorder.model import TopicQueue
from inorder.spark.cluster import Servers, Tls
from inorder.spark.jobs.progress import Step, Watch, places_of, unwatched

QUEUE_LINES_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class Sample:
    """How far a group was on one queue at one time."""

    at_ms: int
    group: str
    topic: str
    broker: str
    queue: int
    done_offset: int
    end_offset: int

    @property
    def lag(self) -> int:
        """Return how many messages were to be done."""
        return max(0, self.end_offset - self.done_offset)


@dataclass(frozen=True, slots=True)
class LagOverTime:
    """The summary of the samples."""

    group: str
    samples: int
    seconds: float
    lag_first: int
    lag_last: int
    lag_max: int
    done_per_s: float
    stored_per_s: float
    file: str | None
    plot: str | None


def lag_over_time(
    namesrv: str | None = None,
    *,
    group: str,
    topic: str | None = None,
    every_s: float = 1.0,
    count: int = 60,
    path: str | None = None,
    plot: str | None = None,
    until_zero: bool = False,
    watch: Watch = unwatched,
    clock: Clock | None = None,
    tls: Tls | None = None,
    credentials_file: str | None = None,
) -> LagOverTime:
    """Sample the lag of a group `count` times, and sum it up.

    `path` is a folder for the samples as Parquet, `plot` a file for a picture. `until_zero` ends
    as soon as nothing is left to do.
    """
    from inorder.sync.admin import Admin

    if every_s <= 0 or count < 1:
        raise ConfigError("sample at least once, and let some time pass between samples")
    the_clock = SystemClock() if clock is None else clock
    found: list[Sample] = []
    servers = Servers.of(namesrv, tls, credentials_file)
    with Admin(namesrv, tls=servers.context(), credentials=servers.credentials()) as admin:
        admin.groups.configs(group)  # says who does not know it
        for number in range(count):
            at_ms = the_clock.now_ms()
            taken = [
                Sample(at_ms, group, one.queue.topic, one.queue.broker, one.queue.index,
                       one.committed_offset, one.end_offset)
                for one in admin.groups.lag(group, topic)
            ]  # fmt: skip
            found += taken
            watch(Step(number + 1, count))
            if until_zero and taken and not any(one.lag for one in taken):
                break
            if number + 1 < count:
                time.sleep(every_s)
    return _kept(group, found, path, plot)


def samples_of(progress: Iterable[Mapping[str, Any]], group: str) -> list[Sample]:
    """Return the samples that the progress of a streaming query holds (`query.recentProgress`)."""
    found = []
    for one in progress:
        at_ms = _time_ms(one["timestamp"])
        source = one["sources"][0]
        done = places_of(source.get("endOffset"))
        for queue, end in places_of(source.get("latestOffset")).items():
            found.append(
                Sample(at_ms, group, queue.topic, queue.broker, queue.index,
                       done.get(queue, 0), end)
            )  # fmt: skip
    return found


def _time_ms(text: str) -> int:
    from datetime import datetime

    return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


def summed(samples: Iterable[Sample]) -> dict[int, tuple[int, int, int]]:
    """Return lag, offsets done and offsets stored of all queues together, by time."""
    found: dict[int, tuple[int, int, int]] = {}
    for one in samples:
        lag, done, end = found.get(one.at_ms, (0, 0, 0))
        found[one.at_ms] = (lag + one.lag, done + one.done_offset, end + one.end_offset)
    return dict(sorted(found.items()))


def _kept(group: str, samples: list[Sample], path: str | None, plot: str | None) -> LagOverTime:
    times = summed(samples)
    if not times:
        raise ConfigError(f"group {group} has committed nothing yet; there is no lag to sample")
    points = list(times.values())
    first_ms, last_ms = next(iter(times)), next(reversed(times))
    seconds = max((last_ms - first_ms) / 1000, 0.001)
    file = None if path is None else _write(path, samples)
    if plot is not None:
        _draw(plot, group, samples, times)
    return LagOverTime(
        group, len(times), round(seconds, 3), points[0][0], points[-1][0],
        max(lag for lag, _, _ in points),
        round((points[-1][1] - points[0][1]) / seconds, 1),
        round((points[-1][2] - points[0][2]) / seconds, 1),
        file, plot,
    )  # fmt: skip


def _write(path: str, samples: list[Sample]) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from inorder.spark.jobs.files import Folder

    rows = [{**asdict(one), "lag": one.lag} for one in samples]
    table = pa.Table.from_pylist(rows)
    system, root = Folder(path).open()
    system.create_dir(root, recursive=True)
    name = f"lag-{samples[0].at_ms}.parquet"
    pq.write_table(table, f"{root}/{name}", filesystem=system)
    return f"{path.rstrip('/')}/{name}"


def _draw(
    plot: str, group: str, samples: list[Sample], times: dict[int, tuple[int, int, int]]
) -> None:
    from inorder.spark.jobs.files import save_picture
    from inorder.spark.jobs.picture import Curve, Panel

    first_ms = next(iter(times))
    at_s = [(at_ms - first_ms) / 1000 for at_ms in times]
    by_queue: dict[TopicQueue, dict[int, int]] = {}
    for one in samples:
        queue = TopicQueue(one.topic, one.broker, one.queue)
        by_queue.setdefault(queue, {})[one.at_ms] = one.lag
    worst = sorted(by_queue, key=lambda queue: -max(by_queue[queue].values()))
    whole = Curve("all queues", at_s, [float(lag) for lag, _, _ in times.values()], filled=True)
    queues = [
        Curve(f"{queue.broker}/{queue.index}", at_s,
              [float(by_queue[queue].get(at_ms, 0)) for at_ms in times])
        for queue in worst[:QUEUE_LINES_MAX]
    ]  # fmt: skip
    panels = [Panel("messages to do", [whole]), Panel("the queues with the most", queues)]
    save_picture(plot, f"lag of group {group}", panels)
