"""`python -m bench`: choose cells, run them, print a table, write JSON.

python -m bench                          every cell, ours alone: CPU per message
python -m bench --against rocketmq       the same beside Apache RocketMQ, with ratios and targets
python -m bench --earlier COMMIT         the same beside inorder of a commit
python -m bench send-8x32 e2e-2k         some cells
python -m bench clients                  our client beside the Java and C++ clients, one broker, and
                                         beside the Python clients of Kafka
python -m bench orderly --against rocketmq  consumers working off a backlog, each on its own broker
python -m bench --curves [stored topics] how the cost grows with what is stored, known, connected
python -m bench --smoke                  under a minute: nothing may be bad
python -m bench soak --minutes 10        half load for long: everything stays flat
python -m bench ceiling                  what the load generator itself can do
python -m bench spark                    Spark on our broker beside Spark on Kafka
python -m bench handover [--rounds 100]  how fast queues change hands; --against rocketmq
python -m bench keyed                    order by key, parking and leases: rates and cost
python -m bench secured                  our client on an open broker and on one that checks users
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from bench import (
    batches,
    clients,
    curves,
    handover,
    installs,
    keyed,
    loadgen,
    orderly,
    pagecache,
    pythons,
    report,
    rocketmq,
    secured,
    soak,
)
from bench.cells import ALL_NAMES as BROKER_NAMES
from bench.cells import CELLS, DEFAULT_NAMES
from bench.clients import CLIENT_NAMES
from bench.compare import CellResult, Plan, run_cells
from bench.loadgen import Load
from bench.orderly import ORDERLY_NAMES
from bench.process import StartFailed, free_ports

RESULTS = Path(__file__).resolve().parent / "results"
SMOKE_CELLS = tuple(CELLS)
SMOKE_PLAN = Plan(units=1, seconds=1.0, warm_s=1.0)
NOISY_CORES = 0.25
WORDS: dict[str, tuple[str, ...]] = {
    "clients": (*CLIENT_NAMES, pythons.NAME),
    "orderly": ORDERLY_NAMES,
}
ALL_NAMES = (*BROKER_NAMES, batches.NAME, *CLIENT_NAMES, pythons.NAME, *ORDERLY_NAMES, *WORDS)
ALONE = ("soak", "ceiling", "spark", "handover", "keyed", "secured")


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; 1 if anything was bad or not flat."""
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # brokers are ended on the way out
    if options.against and (lacking := rocketmq.missing()):
        say(f"{lacking}: nothing can be compared, measuring ours alone")
        options.against = None
    try:
        if options.cells not in (["spark"], ["ceiling"]):  # those run in this environment
            chosen = installs.choose(options.install)
            say(f"measuring {chosen.name}, compiled module: {chosen.compiled()}")
        if options.cells == ["soak"]:
            return _soak(options)
        if options.cells == ["ceiling"]:
            return _ceiling()
        if options.cells == ["spark"]:
            return _spark(options)
        if options.cells == ["handover"]:
            return _handover(options)
        if options.cells == ["keyed"]:
            return _keyed(options)
        if options.cells == ["secured"]:
            return _secured(options)
        if options.curves:
            return _curves(options)
        return _all(options)
    except StartFailed as error:
        say(f"failed: {error}")
        return 1


def say(line: str) -> None:
    """Print a line of progress."""
    print(line, flush=True)


def _all(options: argparse.Namespace) -> int:
    """Run the cells of the broker, then those of the clients."""
    names = _expand(options.cells) or [
        *(SMOKE_CELLS if options.smoke else DEFAULT_NAMES),
        *([] if options.smoke else [batches.NAME]),
        *CLIENT_NAMES,
        pythons.NAME,
        *ORDERLY_NAMES,
    ]
    failed = 0
    if of_broker := [name for name in names if name in BROKER_NAMES]:
        failed |= _cells(options, of_broker)
    if batches.NAME in names:
        plan = Plan(options.units, options.seconds, options.warm, against=True)
        with pagecache.full_page_cache(say):
            measured = batches.run_batches(plan, say)
        failed |= _others(options, "batches", plan, measured)
    if of_clients := [name for name in names if name in CLIENT_NAMES]:
        plan = SMOKE_PLAN
        if not options.smoke:  # other clients need no other broker
            plan = Plan(options.units, options.seconds, options.warm, against=True)
        failed |= _others(options, "clients", plan, clients.run_clients(of_clients, plan, say))
    if pythons.NAME in names:
        failed |= _pythons(options)
    if of_consumers := [name for name in names if name in ORDERLY_NAMES]:
        plan = SMOKE_PLAN
        if not options.smoke:
            against = options.against == "rocketmq"
            plan = Plan(options.units, options.seconds, options.warm, against=against)
        failed |= _others(options, "orderly", plan, orderly.run_orderly(of_consumers, plan, say))
    return failed


def _pythons(options: argparse.Namespace) -> int:
    """Measure the Python clients; 1 if a message was lost, repeated or out of order."""
    count, plan = pythons.SMOKE_COUNT, SMOKE_PLAN
    if not options.smoke:
        count, plan = options.client_count, Plan(options.units, against=True)
    figures = pythons.run_pythons(plan, say, count=count)
    shown = pythons.table(figures)
    say("\n" + shown)
    if options.page:
        report.put_in_page(options.page, "pythons", shown)
    rows = pythons.as_json(figures)
    _write(options, "pythons", {"machine": report.machine(), "count": count, "arms": rows})
    for line in figures.wrong:
        say(f"BAD {line}")
    return 1 if figures.wrong else 0


def _expand(words: list[str]) -> list[str]:
    """Return the cells that are meant: a word may stand for several."""
    return [name for word in words for name in WORDS.get(word, (word,))]


def _others(options: argparse.Namespace, kind: str, plan: Plan, results: list[CellResult]) -> int:
    """Show and keep what came out; 1 if anything was bad."""
    table = report.table(results, accelerated=_is_accelerated())
    say("\n" + table)
    if options.page:
        report.put_in_page(options.page, kind, table)
    document: dict[str, object] = {
        "machine": report.machine(),
        "plan": asdict(plan),
        "cells": report.as_json(results),
    }
    _write(options, kind, document)
    bad = report.bad_lines(results)
    for line in bad:
        say(f"BAD {line}")
    return 1 if bad else 0


def _is_accelerated() -> bool:
    """Return whether the bounds of the compiled module hold."""
    return installs.current().compiled() == "yes"


def _cells(options: argparse.Namespace, names: list[str]) -> int:
    plan = SMOKE_PLAN
    if not options.smoke:
        plan = Plan(
            units=options.units,
            seconds=options.seconds,
            warm_s=options.warm,
            against=options.against == "rocketmq" or bool(options.earlier),
            earlier=options.earlier,
        )
    if plan.against and not plan.earlier:
        say(f"fetching Apache RocketMQ {rocketmq.VERSION} unless it is there")
        rocketmq.fetch()
    with pagecache.full_page_cache(say) if plan.against else contextlib.nullcontext():
        results = run_cells(names, plan, say)
    say("")
    table = report.table(results, accelerated=_is_accelerated())
    say(table)
    if options.page:
        report.put_in_page(options.page, "cells", table)
    compared = any(result.ratios(target.metric) for result in results for target in result.targets)
    if not compared:
        say("\nnothing was compared: ours alone; --against rocketmq (java, mvn) gives the ratios")
    noisy = sum(
        unit.get("others_cores", 0) > NOISY_CORES
        for result in results
        for units in result.units.values()
        for unit in units
    )
    if noisy:
        say(f"\n{noisy} units were disturbed: other processes used more than {NOISY_CORES} core")
    if refused := sum(
        unit.get("busy", 0) for result in results for unit in result.units.get("rocketmq", [])
    ):
        say(f"\nRocketMQ refused {refused:,.0f} sends as busy (its flow control); not counted")
    document: dict[str, object] = {
        "machine": report.machine(),
        "rocketmq": rocketmq.VERSION if compared else None,
        "plan": asdict(plan),
        "cells": report.as_json(results),
    }
    _write(options, "cells", document)
    bad = report.bad_lines(results)
    for line in bad:
        say(f"BAD {line}")
    return 1 if bad else 0


def _curves(options: argparse.Namespace) -> int:
    unknown = sorted(set(options.cells) - set(curves.CURVES))
    if unknown:
        say(f"no such curve: {', '.join(unknown)}; there are {', '.join(curves.CURVES)}")
        return 2
    effort = curves.Effort(
        stored_max=options.stored_max, many_max=options.many_max, units=min(options.units, 3)
    )
    points = curves.run_curves(options.cells, effort, say)
    table = curves.table(points)
    say("\n" + table)
    if options.page:
        report.put_in_page(options.page, "curves", table)
    rows = [asdict(point) for point in points]
    _write(options, "curves", {"machine": report.machine(), "points": rows})
    return 1 if any(point.bad for point in points) else 0


def _soak(options: argparse.Namespace) -> int:
    samples = soak.run_soak(
        10.0 if options.minutes is None else options.minutes, say, rate=options.rate
    )
    rows = soak.as_json(samples)
    _write(options, "soak", {"machine": report.machine(), "samples": rows})
    problems = soak.verdicts(samples)
    if options.page:
        report.put_in_page(options.page, "soak", soak.table(samples))
    for problem in problems:
        say(f"NOT FLAT: {problem}")
    if not problems:
        say("flat: memory, file descriptors and latency")
    return 1 if problems else 0


def _handover(options: argparse.Namespace) -> int:
    rounds = 3 if options.smoke else options.rounds
    against = options.against == "rocketmq"
    table, missed, rows = handover.run_handover(rounds, say, against=against)
    return _told(options, "handover", table, missed, rows)


def _keyed(options: argparse.Namespace) -> int:
    table, missed, figures = keyed.run_keyed(options.units, say, smoke=options.smoke)
    return _told(options, "keyed", table, missed, keyed.as_json(figures))


def _secured(options: argparse.Namespace) -> int:
    table, missed, figures = secured.run_secured(options.units, say, smoke=options.smoke)
    return _told(options, "secured", table, missed, secured.as_json(figures))


def _told(
    options: argparse.Namespace, kind: str, table: str, missed: list[str], rows: object
) -> int:
    """Show and keep what came out; 1 if a goal was missed, of a smoke only if it is not right."""
    say("\n" + table)
    if options.page:
        report.put_in_page(options.page, kind, table)
    _write(options, kind, {"machine": report.machine(), "rows": rows})
    for line in missed:
        say(f"MISSED {line}")
    return 1 if missed and not options.smoke else 0


def _ceiling() -> int:
    """Drive a server that does no work: the generator must be faster than any broker."""
    port = free_ports(1)[0]
    with subprocess.Popen(
        [loadgen.build("nullserver"), str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdout.readline()
        for connections, window in ((1, 1), (1, 256), (8, 32), (64, 4)):
            load = Load("send", connections, window)
            outcome = loadgen.run(("127.0.0.1", port), load, seconds=1.0)
            say(f"  {connections}x{window}: {outcome.messages_per_s:,.0f}/s, bad {outcome.bad}")
        server.stdin.close()
    return 0


def _spark(options: argparse.Namespace) -> int:
    """Measure Spark; imported here, for nothing else needs what it needs."""
    from bench import spark

    if lacking := spark.missing():
        say(f"nothing can be measured: {lacking}")
        return 1
    against = spark.kafka_missing()
    if against:
        say(f"{against}: nothing can be compared, measuring ours alone")
    minutes = options.minutes if options.minutes is not None else 30.0
    plan = spark.SparkPlan(
        options.count, options.units, options.latency_seconds, minutes, against is None
    )
    measured = spark.run_spark(plan, say)
    shown = spark.table(measured)
    say("\n" + shown)
    for one in measured.left_out:
        say(f"LEFT OUT {one}")
    if options.page:
        report.put_in_page(options.page, "spark", shown)
    _write(options, "spark", {"machine": report.machine(), "plan": asdict(plan),
                              "units": measured.units, "left_out": measured.left_out})  # fmt: skip
    return 1 if measured.left_out else 0


def _write(options: argparse.Namespace, kind: str, document: dict[str, object]) -> None:
    path = RESULTS / f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    if options.json is not None:
        path = (
            options.json
            if kind == "cells"
            else options.json.with_stem(f"{options.json.stem}-{kind}")
        )
    report.write(path, document)
    say(f"\nwritten {path}")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", nargs="*", help=f"{', '.join(ALL_NAMES)}; or soak, ceiling, spark")
    parser.add_argument("--against", choices=["rocketmq"], help="compare, interleaved")
    parser.add_argument(
        "--earlier", default="", metavar="COMMIT", help="compare the broker with that of a commit"
    )
    parser.add_argument("--units", type=int, default=5, help="units a cell (5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds a unit (3)")
    parser.add_argument("--warm", type=float, default=30.0, help="seconds to warm RocketMQ (30)")
    parser.add_argument("--curves", action="store_true", help=f"curves: {', '.join(curves.CURVES)}")
    parser.add_argument("--stored-max", type=int, default=10_000_000, help="curves: messages")
    parser.add_argument("--many-max", type=int, default=10_000, help="curves: topics and the like")
    parser.add_argument("--rounds", type=int, default=100, help="handover: rounds a kind (100)")
    parser.add_argument("--smoke", action="store_true", help="a second a cell, ours alone")
    parser.add_argument("--minutes", type=float, help="soak: how long (10); spark: at most (30)")
    parser.add_argument("--count", type=int, default=2_000_000, help="spark: messages (2 M)")
    parser.add_argument(
        "--latency-seconds", type=float, default=30.0, help="spark: at 1,000 messages/s (30)"
    )
    parser.add_argument(
        "--rate", type=float, help="soak: messages/s; default: what half a core does"
    )
    parser.add_argument("--json", type=Path, help="result file; default: under bench/results")
    parser.add_argument(
        "--page", type=Path, help="put the table into this page, where it is marked"
    )
    parser.add_argument(
        "--install",
        choices=["default", "tree"],
        help="measure what pip install . gives (default), or this tree (default of a smoke)",
    )
    parser.add_argument(
        "--client-count", type=int, default=pythons.COUNT, help="client-kafka: messages a unit"
    )
    options = parser.parse_args(arguments)
    if options.earlier:
        if options.against or options.smoke:
            parser.error("--earlier is a comparison of its own: leave out --against and --smoke")
        if others := sorted(set(options.cells) - set(BROKER_NAMES)):
            parser.error(f"--earlier compares brokers alone: leave out {', '.join(others)}")
        options.cells = options.cells or list(DEFAULT_NAMES)
    if options.install is None:
        options.install = "tree" if options.smoke else "default"
    if not options.curves and options.cells not in ([word] for word in ALONE):
        unknown = sorted(set(options.cells) - set(ALL_NAMES))
        if unknown:
            parser.error(f"no such cell: {', '.join(unknown)}; there are {', '.join(ALL_NAMES)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
