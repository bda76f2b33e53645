"""Judge a journey: what was sent, stored, done and committed, and how the programs ended. Pure.

The order checker judges order, loss, doubles and commits. On top of it, of programs that ended as
one should: no handler was cut off, nothing that was done is handled again, the exit code is the one
that is documented, and what a program with exit code 0 handed over is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from inorder.checker import (
    Committed,
    Event,
    Handled,
    HandledResult,
    Handling,
    Rules,
    Sent,
    SentResult,
    Stored,
    check,
)

STOP_S_MAX = 45.0
"""A stop takes at most 30 s for handlers and some for a broker that is away."""

OWN_FAULTS = (
    "Exception ignored", "Exception in thread", "Exception in callback", "Task was destroyed",
    "was never retrieved", "AssertionError", "what follows handlers failed",
    "what follows a handler failed", "Error in atexit",
)  # fmt: skip
"""What no program shall ever say, however it ends."""


@dataclass(frozen=True, slots=True)
class Life:
    """One process of a program, from its start to its end."""

    name: str
    pid: int
    started_ns: int
    ended_ns: int
    code: int
    wanted: frozenset[int]
    """Exit codes that the documentation allows here; none: any."""
    clean: bool = False
    """It ended as one should: what it did is committed, and no handler was cut off."""
    forks: bool = False
    """Its handlers run in children: every line between its start and its end is its own."""
    stop_s: float = 0.0
    said: str = ""
    """Its standard error."""
    finishes: bool = False
    """Code 0 says that all it handed over is stored."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the programs wrote down."""

    runs: tuple[Handled, ...]
    tried: Mapping[str, int]
    """Bodies that were handed over, by whom, in the order of the calls."""
    stored: frozenset[str]


@dataclass(frozen=True, slots=True)
class Journey:
    """Everything that is known of one."""

    ledger: Ledger
    lives: tuple[Life, ...]
    inputs: tuple[str, ...]
    records: tuple[Stored, ...]
    commits: tuple[Committed, ...]
    handling: Handling | None
    """None: it only sends."""
    disturbed: bool
    """The broker was stopped or killed while programs ran."""
    parked: frozenset[str] = frozenset()
    outputs: tuple[Stored, ...] | None = None
    """What a program that transforms has sent on."""
    returns: bool = False
    """Failed messages go to a retry topic."""
    extra: tuple[str, ...] = field(default=())
    """Findings of the stage itself."""


def read_ledger(text: str) -> Ledger:
    """Read what programs wrote; the last line of one that was killed may be cut."""
    begun: dict[tuple[int, str, int], Handled] = {}
    runs: list[Handled] = []
    tried: dict[str, int] = {}
    stored: set[str] = set()
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            continue
        kind, pid_, at_, *words = line.split()
        pid, at_ns = int(pid_), int(at_)
        if kind in "bef":
            topic, broker, index, offset, body = words
            queue = f"{topic}/{broker}/{index}"
            place = (pid, queue, int(offset))
            if kind == "b":
                run = Handled(str(pid), queue, int(offset), body, key_of(body), at_ns)
                begun[place] = run
                continue
            result = HandledResult.DONE if kind == "e" else HandledResult.FAILED
            runs.append(replace(begun.pop(place), end_ns=at_ns, result=result))
        elif kind == "t":
            tried[words[0]] = pid
        elif kind == "r":
            stored.add(words[0])
    return Ledger((*runs, *begun.values()), tried, frozenset(stored))


def judge(journey: Journey) -> list[str]:
    """Return what is wrong with it, in words; nothing if all is well."""
    found = [*journey.extra, *_judge_ends(journey)]
    if journey.handling is not None:
        found += _judge_again(journey)
        found += _judge_effects(journey)
    if not journey.disturbed:
        found += _judge_holes(journey)
    if journey.outputs is not None:
        found += _judge_outputs(journey, journey.outputs)
    report = check(_events(journey), rules=_rules(journey))
    return found + [str(finding) for finding in report.findings[:20]]


def key_of(body: str) -> str:
    """Return the key of a body `key-number`."""
    return body.rpartition("-")[0]


def number_of(body: str) -> int:
    """Return the number of a body `key-number`."""
    return int(body.rpartition("-")[2])


def _rules(journey: Journey) -> Rules:
    calm = not journey.disturbed and all(life.clean for life in journey.lives)
    handles = journey.handling is not None
    return Rules(
        handling=journey.handling or Handling.QUEUE,
        handled_once=calm and not journey.returns,
        complete_handled=handles,
        complete_stored=True,
        acknowledged_min=0,
    )


def _events(journey: Journey) -> Iterable[Event]:
    yield from journey.records
    yield from journey.commits
    for body in journey.inputs:
        yield Sent("input", key_of(body), number_of(body), body)
    promised = _promised(journey)
    for body, pid in journey.ledger.tried.items():
        known = body in journey.ledger.stored or body in promised
        result = SentResult.OK if known else SentResult.UNKNOWN
        yield Sent(str(pid), key_of(body), number_of(body), body, result)
    for run in journey.ledger.runs:
        if journey.returns and run.result is HandledResult.FAILED:
            yield replace(run, result=HandledResult.RETURNED)
        else:
            yield run
    for record in journey.records:
        if record.id in journey.parked:
            yield Handled("parked", record.queue, record.offset, record.id, record.key, 0, 0,
                          HandledResult.PARKED)  # fmt: skip


def _promised(journey: Journey) -> set[str]:
    """Return what programs handed over that ended with 0 and said nothing of a loss."""
    good = {life.pid for life in journey.lives if life.finishes and life.code == 0}
    quiet = {life.pid for life in journey.lives if not life.said.strip()}
    return {body for body, pid in journey.ledger.tried.items() if pid in good & quiet}


def _without_imports(said: str) -> str:
    """Return what a program said without what Python says of a Ctrl-C that meets an import.

    Python ignores an exception in the callback of an import lock. Programs of a pipe write into
    each other's lines, so only the number of these reports is compared.
    """
    return said.replace("Exception ignored in", "", said.count("<function _get_module_lock."))


def _judge_ends(journey: Journey) -> Iterable[str]:
    for life in journey.lives:
        if life.wanted and life.code not in life.wanted:
            wanted = sorted(life.wanted)
            yield f"{life.name} ended with {life.code}, not {wanted}: {life.said[-800:]}"
        if life.stop_s > STOP_S_MAX:
            yield f"{life.name} took {life.stop_s:.1f} s to stop"
        if any(words in _without_imports(life.said) for words in OWN_FAULTS):
            yield f"{life.name} said that something of ours went wrong: {life.said[-800:]}"
        if life.clean:
            for run in journey.ledger.runs:
                if run.end_ns is None and _is_of(run, life):
                    yield f"{life.name} ended cleanly, and cut off the handler of {run.id}"


def _is_of(run: Handled, life: Life) -> bool:
    if life.forks:
        return life.started_ns < run.start_ns < life.ended_ns
    return run.client == str(life.pid)


def _judge_again(journey: Journey) -> Iterable[str]:
    """What was done before a clean end, or lies below a committed offset, is not handled again.

    Members without order do not lock their queues. While several live, a queue may move, and what
    its handlers do meanwhile does not count (docs/howto/consuming.md). What starts later does.
    """
    runs = journey.ledger.runs
    unlocked = journey.handling is Handling.CONCURRENT
    for life in journey.lives:
        if not life.clean or (unlocked and not _lives_alone(journey, life)):
            continue
        done = {run.id for run in runs if _is_of(run, life) and run.result is HandledResult.DONE}
        again = [run.id for run in runs if run.start_ns > life.ended_ns and run.id in done]
        if again:
            yield (
                f"{len(again)} messages that {life.name} had done before its clean end were "
                f"handled again: {again[:5]}"
            )
    for commit in journey.commits:
        again = [
            f"{run.queue}/{run.offset}"
            for run in runs
            if run.queue == commit.queue
            and run.offset < commit.offset
            and run.start_ns > commit.at_ns
            and not (unlocked and _began_before(journey, run, commit.at_ns))
        ]
        if again:
            yield f"{len(again)} messages below the committed offset came again: {again[:5]}"


def _lives_alone(journey: Journey, life: Life) -> bool:
    """Tell whether no other program lived at the same time."""
    return not any(
        other.started_ns < life.ended_ns and life.started_ns < other.ended_ns
        for other in journey.lives
        if other is not life
    )


def _began_before(journey: Journey, run: Handled, at_ns: int) -> bool:
    """Tell whether the program of a run was started before a moment."""
    return any(_is_of(run, life) and life.started_ns < at_ns for life in journey.lives)


def _judge_effects(journey: Journey) -> Iterable[str]:
    """Every message that is stored took effect, or is parked."""
    done = {run.id for run in journey.ledger.runs if run.result is HandledResult.DONE}
    missing = {record.id for record in journey.records} - done - journey.parked
    if missing:
        yield f"{len(missing)} messages are stored and had no effect: {sorted(missing)[:5]}"


def _judge_holes(journey: Journey) -> Iterable[str]:
    """A program that was killed left, of each key, the first messages and no holes."""
    there = {record.id for record in journey.records}
    stopped: Counter[str] = Counter()
    for body in journey.ledger.tried:
        if body not in there:
            stopped[key_of(body)] += 1
        elif stopped[key_of(body)]:
            yield f"{body} is stored, an earlier message of its key is not"


def _judge_outputs(journey: Journey, outputs: Sequence[Stored]) -> Iterable[str]:
    """What was done was sent on, in the order of its key; twice only after a fault."""
    done = {run.id for run in journey.ledger.runs if run.result is HandledResult.DONE}
    counts = Counter(record.id for record in outputs)
    if missing := done - counts.keys():
        yield f"{len(missing)} messages were handled and not sent on: {sorted(missing)[:5]}"
    calm = not journey.disturbed and all(life.clean for life in journey.lives)
    twice = [body for body, count in counts.items() if count > 1]
    if calm and twice:
        yield f"{len(twice)} messages were sent on twice without a fault: {twice[:5]}"
    tops: dict[str, int] = {}
    seen: set[str] = set()
    for record in sorted(outputs, key=lambda one: (one.queue, one.offset)):
        if record.id in seen:
            continue
        seen.add(record.id)
        key, number = key_of(record.id), number_of(record.id)
        if number < tops.get(key, -1):
            yield f"{record.id} was sent on behind {key}-{tops[key]}"
        tops[key] = max(number, tops.get(key, -1))
