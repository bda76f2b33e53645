"""Throw garbage at a real broker while a well-behaved client watches.

    python -m tests.garbage.attack [--scale 1.0] [--only NAME ...] [--seed N] [--json F] [--beside]
                                   [--access]

Starts `inorder up` on loopback ports of its own, a witness in a second process, and attacks from
this one. For each phase it prints what the attack did, the broker's highest anonymous memory, and
the witness's 99th percentiles beside those of the quiet phase; then, of the broker's event loop,
how late it was and how long it worked in one go (CPU time, so without what others took), and how
much of the time it ran and waited for a core. It fails (exit 1) if the broker died, left a request
without answer or end, wrote outside of its directory, kept connections, if the witness noticed
anything but time, or if the 99th percentile of its sends is above LATE_P99_MS_ELSE. Attacker and
witness need cores as well: on a busy machine (BUSY_SHARE_MAX) the broker's own work is judged.

`--beside` attacks a second broker, and the witness watches the first, which nobody attacks: what
it notices then is the machine. That is the measure for the figures of the attack itself.

`--access` attacks servers that check users; the witness signs, and nobody else can log in.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inorder.wire.frame import encode_frame
from inorder.wire.header import Command
from tests.garbage import assaults, catalogue, extensions
from tests.garbage.peer import Peer
from tests.garbage.target import MIB, Target
from tests.garbage.witness import WitnessProcess

MEMORY_BYTES_MAX = 512 * MIB
LATE_P99_MS_MAX = {"idle": 100.0}
"""Of the well-behaved client's sends. In `idle` ten thousand connections close in one instant: the
loop learns of each, 3 to 4 us, in one go."""
LATE_P99_MS_ELSE = 50.0
BUSY_SHARE_MAX = 0.12
"""If the broker waits longer than this for a core, the machine is measured and not the broker."""
SETTINGS = {
    # Short times, so that reaping is seen; small tables, so that their limits are reached.
    "net.idle_timeout_ms": "8000",
    "net.frame_timeout_ms": "4000",
    "register_interval_ms": "2000",  # more often than the name server takes for silence
    "topics_max": "3000",
    "groups_max": "3000",
    "nameserver.net.idle_timeout_ms": "8000",
    "nameserver.net.frame_timeout_ms": "4000",
}
SECRET = "the-secret-of-the-witness"
CHECKED = {**SETTINGS, "access.level": "enforce"}
USER = {"INORDER_BROKER__ACCESS__INIT_USER": json.dumps({"username": "root", "password": SECRET})}
KEYS = {"INORDER_ACCESS_KEY": "root", "INORDER_SECRET_KEY": SECRET}


@dataclass
class Run:
    """One attack in progress: what is attacked, how hard, and what was found."""

    target: Target
    witness: WitnessProcess
    scale: float
    dice: random.Random
    failures: list[str] = field(default_factory=list)
    began: float = 0.0
    core_ms: tuple[float, float] = (0.0, 0.0)

    def sized(self, count: int) -> int:
        """Return a count at this scale."""
        return max(1, round(count * self.scale))

    def expect(self, condition: bool, message: str) -> None:
        """Note a failure."""
        if not condition:
            self.failures.append(message)


def broken_streams(run: Run) -> dict[str, object]:
    """No frames at all: the connection is closed, on both ports."""
    count = 0
    for name, data in catalogue.broken_streams(run.dice.randrange(1 << 30)):
        for where, address in (("broker", run.target.broker), ("namesrv", run.target.namesrv)):
            with Peer(address) as peer:
                peer.send(data)
                run.expect(peer.closes(), f"{where}, {name}: the connection stays open")
            count += 1
    return {"streams": count}


def truncated(run: Run) -> dict[str, object]:
    """Frames cut at every byte, the connection closed behind the cut."""
    commands = [
        Command.request(310, catalogue.send_fields("truncated"), b"x" * 50, request_id=1),
        Command.request(34, {}, b'{"clientID":"a"}', request_id=1, serializer=1),
    ]
    count = 0
    for command in commands:
        frame = encode_frame(command)
        step = max(1, round(1 / run.scale))
        for length in range(0, len(frame), step):
            with Peer(run.target.broker) as peer:
                peer.send(frame[:length])
            count += 1
    with Peer(run.target.broker) as peer:
        answer = peer.call(Command.request(30, {"topic": "truncated", "queueId": "0"}))
        stored = None if answer is None else answer.fields.get("offset")
    run.expect(stored == "0", f"of truncated sends {stored} messages were stored")
    return {"cuts": count}


def hostile_commands(run: Run) -> dict[str, object]:
    """Frames with hostile content, in both serializers, with an answer and one-way."""
    return _answers(run, run.target.broker, catalogue.hostile_commands(), every=1.0)


def hostile_registrations(run: Run) -> dict[str, object]:
    """The same for the name server, bombs among them."""
    size = min(1.0, max(0.25, run.scale))
    return _answers(run, run.target.namesrv, catalogue.hostile_registrations(size), every=0.1)


def _answers(
    run: Run, address: tuple[str, int], commands: Any, *, every: float
) -> dict[str, object]:
    counts: dict[str, int] = {}
    step = max(1, round(every / run.scale))
    slowest = (0.0, "")
    for index, (name, command) in enumerate(commands):
        if index % step:
            continue
        for serializer in (0, 1):
            command.serializer = serializer
            with Peer(address) as peer:
                began = time.monotonic()
                try:
                    answer = peer.call(command, 20)
                    code = "closed" if answer is None else str(answer.code)
                except TimeoutError:
                    code = "nothing"
                    run.expect(False, f"{name}: neither answered nor closed")
                slowest = max(slowest, (time.monotonic() - began, name))
                counts[code] = counts.get(code, 0) + 1
                command.flag = 2
                if peer.send(encode_frame(command)):
                    try:
                        then = peer.probe(20)
                    except TimeoutError:
                        run.expect(False, f"{name}, one-way: the connection is stuck")
                    else:
                        run.expect(then in (None, 3), f"{name}, one-way: then {then}")
                command.flag = 0
    counts = dict(sorted(counts.items()))
    return {**counts, "slowest": f"{slowest[0] * 1000:.0f} ms: {slowest[1]}"}


def hostile_extensions(run: Run) -> dict[str, object]:
    """The same for our own requests: leases, parked keys, resizes."""
    size = min(1.0, max(0.25, run.scale))
    return _answers(run, run.target.broker, extensions.hostile_extensions(size), every=4.0)


def unasked(run: Run) -> dict[str, object]:
    """Responses nobody asked for, ids used twice: nothing changes, nothing is answered."""
    count = 0
    with Peer(run.target.broker) as peer:
        peer.call(Command.request(310, catalogue.send_fields("asked"), b"x"))
    for name, topic, frame in catalogue.unasked_effects():
        with Peer(run.target.broker) as peer:
            peer.send(frame)
            run.expect(peer.probe() == 3, f"{name}: no answer to the next request")
            stored = peer.call(Command.request(30, {"topic": topic, "queueId": "0"}))
            expected = "1" if topic == "asked" else "0"
            found = None if stored is None else stored.fields.get("offset")
            run.expect(found == expected, f"{name}: {topic} holds {found} messages")
            known = peer.call(Command.request(351, {"topic": "unasked"}))
            run.expect(known is None or known.code != 0, f"{name}: it made a topic")
        count += 1
    with Peer(run.target.broker) as peer:
        same = encode_frame(Command.request(31_999, request_id=5))
        peer.send(same * 1000)
        answers = sum(peer.outcome(5) == 3 for _ in range(1000))
        run.expect(answers == 1000, f"of 1000 requests with one id {answers} were answered")
    return {"frames": count}


def random_frames(run: Run) -> dict[str, object]:
    """Valid frames with bytes changed at random."""
    frames = [
        encode_frame(Command.request(310, catalogue.send_fields("mutated"), b"x" * 20)),
        encode_frame(Command.request(11, catalogue.pull_fields("mutated"))),
        encode_frame(Command.request(310, catalogue.send_fields("mutated"), b"x", serializer=1)),
        encode_frame(Command.request(34, {}, b'{"clientID":"a","producerDataSet":[]}')),
    ]
    count = run.sized(4000)
    for _ in range(count):
        data = bytearray(run.dice.choice(frames))
        for _ in range(run.dice.choice((1, 1, 2, 8))):
            data[run.dice.randrange(len(data))] = run.dice.randrange(256)
        address = run.dice.choice((run.target.broker, run.target.namesrv))
        with Peer(address) as peer:
            peer.send(bytes(data))
    return {"frames": count}


def slow_loris(run: Run) -> dict[str, object]:
    said = assaults.slow_loris(run.target, run.sized(200), 60.0, 0.05)
    run.expect(
        said["closed by the broker"] == said["connections"], f"slow connections stay: {said}"
    )
    return said


def idle(run: Run) -> dict[str, object]:
    return assaults.idle(run.target, run.sized(10_000), 5.0 * max(0.2, run.scale), run.witness.look)


def flood(run: Run) -> dict[str, object]:
    return assaults.flood(run.target, 5.0 * min(1.0, run.scale), run.dice)


def never_read(run: Run) -> dict[str, object]:
    return assaults.never_read(run.target, run.sized(100), 1000, max(1.5, 8.0 * run.scale))


def held_pulls(run: Run) -> dict[str, object]:
    return assaults.held_pulls(run.target, run.sized(40_000), min(2000, run.sized(2000)))


def many_names(run: Run) -> dict[str, object]:
    return assaults.many_names(run.target, run.sized(4000))


PHASES: dict[str, Callable[[Run], dict[str, object]]] = {
    "streams": broken_streams,
    "truncated": truncated,
    "commands": hostile_commands,
    "extensions": hostile_extensions,
    "registrations": hostile_registrations,
    "unasked": unasked,
    "random": random_frames,
    "loris": slow_loris,
    "idle": idle,
    "flood": flood,
    "unread": never_read,
    "held": held_pulls,
    "names": many_names,
}


def wrong_signatures(run: Run) -> dict[str, object]:
    return assaults.wrong_signatures(run.target, max(3.0, 10.0 * run.scale), 1000)


def large_requests(run: Run) -> dict[str, object]:
    said = assaults.large_requests(run.target, run.sized(1000))
    for kind in ("nobody", "unknown"):
        run.expect(said[f"bytes each, {kind}"] < 64 * 1024, f"bodies of {kind} are kept: {said}")
    run.expect(said["bytes of all, wrong"] < 192 * MIB, f"too many bodies are kept: {said}")
    return said


ACCESS_PHASES: dict[str, Callable[[Run], dict[str, Any]]] = {
    "idle": idle,
    "loris": slow_loris,
    "flood": flood,
    "wrong": wrong_signatures,
    "large": large_requests,
}
"""Attacks of those who cannot log in."""


def attack(
    root: Path,
    *,
    scale: float,
    seed: int,
    only: list[str] | None = None,
    quiet_s: float = 5.0,
    beside: bool = False,
    access: bool = False,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Run the phases; return what was measured in each, and what went wrong."""
    settings, secrets, keys = (CHECKED, USER, KEYS) if access else (SETTINGS, {}, {})
    target = Target(root / "attacked" if beside else root, settings, secrets=secrets)
    watched = Target(root / "watched", settings, secrets=secrets) if beside else target
    witness = WitnessProcess(watched.broker, watched.namesrv, keys)
    phases = ACCESS_PHASES if access else PHASES
    run = Run(target, witness, scale, random.Random(seed))
    rows: list[dict[str, Any]] = []
    try:
        time.sleep(1.0)
        witness.take()
        target.take_lag_ms()
        run.began, run.core_ms = time.monotonic(), target.core_ms()
        time.sleep(quiet_s)
        at_rest = target.sockets()
        rows.append(_row("quiet", target, witness, run, {}))
        for name, phase in phases.items():
            if only and name not in only:
                continue
            did = phase(run)
            if not assaults.reaped(target, at_rest, 20.0):
                run.failures.append(f"{name}: {target.sockets()} sockets, at rest {at_rest}")
            rows.append(_row(name, target, witness, run, did))
            if not target.alive:
                run.failures.append(f"{name}: the broker died: {target.log_text()[-2000:]}")
                break
        time.sleep(min(2.0, quiet_s))
        rows.append(_row("after", target, witness, run, {}))
        _judge(run, rows)
        witness.stop()
        run.expect(target.stop() == 0, "the broker did not stop cleanly")
    finally:
        target.kill()
        watched.kill()
    return rows, run.failures


def _row(
    name: str, target: Target, witness: WitnessProcess, run: Run, did: dict[str, object]
) -> dict[str, Any]:
    noticed = witness.take()
    began, run.began = run.began, time.monotonic()
    core_before, run.core_ms = run.core_ms, target.core_ms()
    span_ms = max(1.0, (run.began - began) * 1000)
    run.expect(not noticed["error_count"], f"{name}: the witness noticed {noticed['errors']}")
    run.expect(noticed["send_ms"]["count"] > 0, f"{name}: the witness was not served")
    return {
        "phase": name,
        "did": did,
        "peak_mb": round(target.memory.take_peak_bytes() / MIB, 1),
        "now_mb": round(target.memory.now_bytes() / MIB, 1),
        "log_kb": target.log_bytes() // 1024,
        "lag_ms": target.take_lag_ms(),
        "ran": round((run.core_ms[0] - core_before[0]) / span_ms, 3),
        "waited": round((run.core_ms[1] - core_before[1]) / span_ms, 3),
        **noticed,
    }


def _judge(run: Run, rows: list[dict[str, Any]]) -> None:
    target = run.target
    for row in rows:
        late = row["send_ms"]["p99"]
        if row["waited"] > BUSY_SHARE_MAX:
            print(f"{row['phase']}: the broker waited {row['waited']:.0%} of the time for a core")
            late = row["lag_ms"]["work"]["p99"]
        limit = LATE_P99_MS_MAX.get(row["phase"], LATE_P99_MS_ELSE)
        run.expect(late <= limit, f"{row['phase']}: others noticed, p99 of {late} ms")
    peak = max(row["peak_mb"] for row in rows)
    run.expect(peak * MIB < MEMORY_BYTES_MAX, f"{peak} MB of anonymous memory")
    run.expect(not target.new_files_outside(), f"files outside: {target.new_files_outside()}")
    strange = target.strange_names_inside()
    run.expect(not strange, f"strange names in the data directory: {strange[:5]}")
    run.expect(not target.children(), f"processes were started: {target.children()}")
    _, found, trace = target.log_text().partition("Traceback")
    run.expect(not found, f"there are tracebacks in the log: {trace[:1000]}")
    with Peer(target.broker) as peer:
        run.expect(
            peer.probe() in {3, 16}, "an unknown code is answered neither with 3 nor with 16"
        )


def print_report(rows: list[dict[str, Any]]) -> None:
    """Print a line per phase."""
    calm = rows[0]
    heads = (
        "phase", "peak MB", "now MB", "send p99", "x", "delivery", "x", "route", "worst ms",
        "late p99", "late max", "work p99", "work max", "ran", "waited",
    )  # fmt: skip
    print(
        "{:14} {:>8} {:>7} {:>9} {:>5} {:>9} {:>5} {:>7} {:>9} {:>8} {:>8} {:>8} {:>8} "
        "{:>5} {:>6}".format(*heads)
    )
    for row in rows:
        late, work = row["lag_ms"]["late"], row["lag_ms"]["work"]
        print(
            f"{row['phase']:14} {row['peak_mb']:8} {row['now_mb']:7} {row['send_ms']['p99']:9} "
            f"{_ratio(row, calm, 'send_ms'):5} {row['delivery_ms']['p99']:9} "
            f"{_ratio(row, calm, 'delivery_ms'):5} {row['route_ms']['p99']:7} "
            f"{row['send_ms']['max']:9} {late['p99']:8} {late['max']:8} {work['p99']:8} "
            f"{work['max']:8} "
            f"{row['ran']:5.0%} {row['waited']:6.0%}  {row['did'] or ''}"
        )


def _ratio(row: dict[str, Any], calm: dict[str, Any], key: str) -> float:
    return round(float(row[key]["p99"]) / max(0.01, float(calm[key]["p99"])), 1)


def main() -> int:
    """Read the arguments, attack, print, and return the exit code."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument(
        "--scale", type=float, default=1.0, help="size of the attack, 1 is all of it"
    )
    words.add_argument(
        "--only", nargs="*", choices={**PHASES, **ACCESS_PHASES}, help="phases to run"
    )
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--json", type=Path, help="write the figures to a file")
    words.add_argument("--beside", action="store_true", help="watch a broker that is not attacked")
    words.add_argument("--access", action="store_true", help="attack servers that check users")
    chosen = words.parse_args()
    with tempfile.TemporaryDirectory(prefix="inorder-garbage-") as folder:
        rows, failures = attack(
            Path(folder),
            scale=chosen.scale,
            seed=chosen.seed,
            only=chosen.only,
            beside=chosen.beside,
            access=chosen.access,
        )
    print_report(rows)
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1))
    for failure in failures:
        print(f"FAILED {failure[:1500]}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
