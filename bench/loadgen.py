"""Builds and runs the load generator (loadgen.c), and types its answer."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.process import StartFailed
from bench.remoting import Connection

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".cache" / "bench"
QUEUES = 8
GET_MAX_OFFSET = 30
GRACE_S = 60


@dataclass(frozen=True, slots=True)
class Load:
    """What the generator is to do; `connections` x `window` requests are outstanding."""

    mode: str = "send"
    connections: int = 8
    window: int = 32
    topic: str = "BenchTopic"
    topics: int = 1
    queues: int = QUEUES
    rate: float = 0
    idle_connections: int = 0
    group: str = "bench_group"


@dataclass(frozen=True, slots=True)
class Result:
    """What the generator saw; `bad` counts every answer that was not as it must be."""

    seconds: float
    messages: int
    messages_per_s: float
    broker_cpu_s: float
    cpu_us_per_message: float
    p50_us: float
    p99_us: float
    generator_cpu_s: float
    total_messages: int
    skipped: int
    short_pulls: int
    idle_closed: int
    busy: int
    """Sends refused by flow control."""
    bad: int
    bad_samples: list[str] = field(default_factory=list)


def compiler() -> str | None:
    """Return a C compiler of this machine, or None."""
    return next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


def build(name: str = "loadgen") -> Path:
    """Compile a C file of this folder unless the compiled one is of this very source."""
    source = HERE / f"{name}.c"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    binary = CACHE / f"{name}-{digest}"
    if binary.exists():
        return binary
    cc = compiler()
    if cc is None:
        raise StartFailed("no C compiler (cc, gcc, clang): the load generator cannot be built")
    CACHE.mkdir(parents=True, exist_ok=True)
    part = CACHE / f"{binary.name}.{os.getpid()}.part"  # others may be building it as well
    subprocess.run([cc, "-O2", "-std=gnu11", "-o", part, source], check=True)
    part.replace(binary)
    return binary


def run(
    address: tuple[str, int],
    load: Load,
    *,
    seconds: float,
    warmup_s: float = 0.2,
    count: int = 0,
    pids: Sequence[int] = (),
    start_offsets: Sequence[int] | None = None,
) -> Result:
    """Apply the load for some seconds, or until `count` messages were answered."""
    if load.mode == "e2e" and start_offsets is None:
        start_offsets = max_offsets(address, load.topic, load.queues)
    command = [build(), "--port", address[1], "--mode", load.mode]
    command += ["--connections", load.connections, "--window", load.window]
    command += ["--topic", load.topic, "--topics", load.topics, "--queues", load.queues]
    command += ["--idle", load.idle_connections, "--group", load.group]
    command += ["--seconds", seconds, "--warmup", warmup_s, "--count", count]
    if load.rate:
        command += ["--rate", load.rate]
    if start_offsets is not None:
        command += ["--offsets", ",".join(map(str, start_offsets))]
    for pid in pids:
        command += ["--pid", pid]
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=seconds + warmup_s + GRACE_S,
        check=False,
    )
    if done.returncode != 0:
        raise StartFailed(f"the load generator failed: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    return Result(**{name: report[name] for name in Result.__dataclass_fields__})


def max_offsets(address: tuple[str, int], topic: str, queues: int = QUEUES) -> list[int]:
    """Return the end of each queue of a topic."""
    with Connection(address) as connection:
        return [
            int(
                connection.call(GET_MAX_OFFSET, {"topic": topic, "queueId": queue}).fields["offset"]
            )
            for queue in range(queues)
        ]


def fill(address: tuple[str, int], topic: str, count: int, *, batched: bool) -> None:
    """Store `count` messages; single sends interleave the queues record by record."""
    mode, window = ("batch", 4) if batched else ("send", 32)
    load = Load(mode=mode, window=window, topic=topic)
    result = run(address, load, seconds=600, warmup_s=0, count=count)
    if result.bad or result.total_messages < count:
        raise StartFailed(f"filling {topic}: {result.total_messages} of {count}, {result}")
