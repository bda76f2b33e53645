"""Threads, time, randomness, files and the environment enter by one door each.

A seed can replay a run only if nothing in it asks the machine directly. Each exception below has
its reason beside it.
"""

from __future__ import annotations

import re

from tests.house.sources import imported, modules, used

THREAD_MODULES = {
    "threading", "_thread", "queue", "concurrent", "concurrent.futures", "multiprocessing",
}  # fmt: skip
THREAD_NAMES = re.compile(r"(\basyncio\.to_thread|\.run_in_executor)$")
THREADS_IN = {
    "audit/service.py",  # a slow disk must not hold the loop; the name server has no other thread
    "broker/offload.py",
    "client/registry.py",  # clients of several loops count together
    "sync/portal.py",
    "sync/producer.py",
    "sync/futures.py",  # callers that wait for an outcome
    "sync/room.py",  # callers that wait for room; what they and the loop both count
    "sync/direct.py",  # the caller's own thread; a lock, so that there is one at a time
    "sync/workers.py",
}

CLOCK_NAMES = re.compile(
    r"^time\.(time|time_ns|monotonic|monotonic_ns|perf_counter|perf_counter_ns|sleep|clock_gettime"
    r"|clock_gettime_ns|ctime)$|\b(datetime|date)\.(now|utcnow|today)$|^loop\.time$"
)
CLOCK_IN = {
    "clock.py": "the seam itself",
    "demo/orders.py": "tells a person how long something took",
    "demo/spark.py": "the same of the part on Spark",
    "demo/consumer.py": "tells the checker when a handler ran, to the nanosecond",
    "demo/parking.py": "the same",
    "cli/benching.py": "the same, in more detail",
    "spark/cluster.py": "blocks in a worker of Spark, where nothing is simulated",
    "spark/source/service.py": "the same in the driver",
    "spark/sink/sender.py": "the same, in the task of a sink",
    "spark/jobs/lag.py": "waits between samples of a running system",
    "spark/jobs/replays.py": "keeps to a rate in a worker of Spark",
    "spark/ordered/service.py": "the same in a task; what follows from it is decided once",
    "spark/ordered/parking.py": "keeps redrives to their rate in a task, and waits for room",
    "spark/ordered/maps.py": "waits in a task for brokers that move keys",
}

RANDOM_NAMES = re.compile(r"^(random\.(?!Random$)\w+|secrets\.\w+|uuid\.uuid\d|os\.urandom)$")
RANDOM_IN = {
    "access/storage.py": "nonces, sessions and secrets must not be predictable",
    "client/identity.py": "tells this process from all others; tests hand in an Identity",
    "console/sessions.py": "tokens and cookies must not be predictable",
    "net/tls.py": "a private key must not be predictable",
    "spark/warm.py": "forked processes must not draw the same numbers",
}

FILE_NAMES = re.compile(
    r"^open$|^os\.(open|read|write|pread|pwrite|ftruncate|truncate|rename|replace|remove|unlink"
    r"|mkdir|makedirs|listdir|scandir|fsync|fdatasync|stat|statvfs)$|^(shutil|tempfile)\.\w+$"
    r"|\.(read_text|read_bytes|write_text|write_bytes)$"
)
FILES_IN = {
    "disk.py": "the seam itself",
    "credentials.py": "a secret of a person, read before anything starts",
    "access/plainfiles.py": "files of RocketMQ that operators write, beside the data",
    "settings/load.py": "settings are read before anything starts",
    "net/tls.py": "the ssl module takes certificates from files only",
    "demo/playing.py": "a temporary directory for each part of the demo",
    "demo/spark.py": "the log of the driver, and the picture",
    "console/app.py": "the style and the script of the pages, from the package",
    "cli/send.py": "messages to send come from files that a person names",
    "cli/failures.py": "output that nobody reads any more goes nowhere",
    "cli/target.py": "the profiles of a person, read before anything starts",
    "spark/sessions.py": "wrappers in the user's cache, and settings of the JVM: other programs",
    "spark/warm.py": "a pipe that ends with its driver, and a socket: processes, no data",
    "spark/jobs/files.py": "archives go through Arrow's file systems; local ones are synced",
    "spark/ordered/storage.py": "states of a query, in a folder that all executors see",
    "testing/brokers.py": "a temporary directory for the broker of a test",
}

ENVIRONMENT_NAMES = re.compile(r"^os\.(environ|getenv)$")
ENVIRONMENT_IN = {
    "accelerated.py": "the switch that leaves out the compiled module, before anything is imported",
    "cli/settings.py": "the reader of settings; everything else gets them as arguments",
    "cli/oncluster.py": "which cluster a person means when no option says it",
    "cli/console.py": "the token of a console, and credentials that it must not use",
    "spark/cluster.py": "who the processes of Spark are that are given no credentials",
    "spark/sessions.py": "Spark and Java are configured by it",
    "spark/warm.py": "hands the environment of one process to another",
    "client/identity.py": "who a client is that is given no credentials",
    "client/nameservers.py": "which name servers a client means that is given none",
}


def uses(pattern: re.Pattern[str], allowed: dict[str, str]) -> list[str]:
    """List where names that match are used outside of the allowed modules."""
    return [
        f"{path}:{line} {name}"
        for path, tree in modules().items()
        if path not in allowed
        for name, line in used(tree)
        if pattern.search(name)
    ]


def test_threads_live_in_two_packages() -> None:
    """Everything else runs on the one loop that owns the state."""
    found = [
        f"{path}:{line} {name}"
        for path, tree in modules().items()
        if path not in THREADS_IN
        for name, line in imported(tree)
        if name in THREAD_MODULES
    ]
    found += uses(THREAD_NAMES, dict.fromkeys(THREADS_IN, ""))
    assert found == []


def test_time_comes_from_the_clock() -> None:
    """Nobody but the clock asks what time it is."""
    assert uses(CLOCK_NAMES, CLOCK_IN) == []


def test_randomness_is_an_argument() -> None:
    """Random numbers come from a Random that was handed in."""
    assert uses(RANDOM_NAMES, RANDOM_IN) == []


def test_files_go_through_the_disk() -> None:
    """A fake disk sees every access."""
    assert uses(FILE_NAMES, FILES_IN) == []


def test_environment_is_read_in_one_place() -> None:
    """Settings have one door."""
    assert uses(ENVIRONMENT_NAMES, ENVIRONMENT_IN) == []


def test_exceptions_are_real() -> None:
    """An exception whose module is gone is removed from the lists above."""
    listed = {*CLOCK_IN, *RANDOM_IN, *FILES_IN, *ENVIRONMENT_IN}
    assert listed - set(modules()) == set()
