"""Journeys: what judges them, and a sample; `make proof-journeys` plays 500."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from inorder.checker import Committed, Handling, Stored
from tests.journeys import run, stage
from tests.journeys.judging import Journey, Life, judge, read_ledger
from tests.journeys.playing import KINDS, Told, play

QUEUE = "orders/broker-a/0"


def lines(*runs: tuple[int, int, str]) -> str:
    """Return a ledger: (time, offset, what) of process 7; `done`, `cut` or `failed`."""
    text = ""
    for at, offset, what in runs:
        words = f"orders broker-a 0 {offset} k-{offset}"
        text += f"b 7 {at} {words}\n"
        if what != "cut":
            text += f"{'e' if what == 'done' else 'f'} 7 {at + 1} {words}\n"
    return text


def journey(text: str, stored: int = 3, **changes: object) -> Journey:
    """Return a journey of three messages that process 7 handled and ended cleanly at 100."""
    life = Life("service-1", 7, 0, 100, 0, frozenset({0}), clean=True)
    bodies = tuple(f"k-{number}" for number in range(stored))
    records = tuple(Stored(QUEUE, number, body, "k", number) for number, body in enumerate(bodies))
    made = Journey(read_ledger(text), (life,), bodies, records, (), Handling.QUEUE, False)
    return replace(made, **changes)  # type: ignore[arg-type]


GOOD = lines((10, 0, "done"), (20, 1, "done"), (30, 2, "done"))


def test_a_good_journey_has_no_findings():
    """Each message once, in order, all committed, the exit code as documented."""
    assert judge(journey(GOOD, commits=(Committed("x", QUEUE, 3, 50),))) == []


def test_a_ctrl_c_that_meets_an_import_is_no_fault_of_ours():
    """Python ignores it in the callback of an import lock, and says so."""
    said = (
        "Exception ignored in: <function _get_module_lock.<locals>.cb at 0x7f>\nKeyboardInterrupt"
    )
    life = Life("s", 7, 0, 100, 0, frozenset({0}), said=said)
    commits = (Committed("x", QUEUE, 3, 50),)
    assert judge(journey(GOOD, commits=commits, lives=(life,))) == []
    twice = replace(life, said=f"{said} Exception ignored in: <function ours>")
    assert judge(journey(GOOD, commits=commits, lives=(twice,))) != []


@pytest.mark.parametrize(
    ("text", "changes", "says"),
    [
        (lines((10, 0, "done"), (20, 1, "done")), {}, "no effect: ['k-2']"),
        (GOOD + lines((200, 1, "done")), {}, "before its clean end were handled again"),
        (lines((10, 0, "done"), (20, 2, "done"), (30, 1, "done")), {}, "inverted"),
        (GOOD + lines((40, 2, "cut")), {}, "cut off the handler of k-2"),
        (
            lines((10, 0, "done"), (20, 1, "done"), (60, 2, "done")),
            {"commits": (Committed("x", QUEUE, 3, 50),)},
            "commit_skip",
        ),
        (
            GOOD + lines((60, 2, "done")),
            {"commits": (Committed("x", QUEUE, 3, 50),), "disturbed": True},
            "below the committed offset came again",
        ),
        (GOOD, {"lives": (Life("s", 7, 0, 100, 1, frozenset({0})),)}, "ended with 1, not [0]"),
        (
            GOOD,
            {"lives": (Life("s", 7, 0, 100, 0, frozenset({0}), stop_s=60.0),)},
            "took 60.0 s to stop",
        ),
        (
            GOOD,
            {"lives": (Life("s", 7, 0, 100, 0, frozenset({0}), said="Task was destroyed"),)},
            "something of ours went wrong",
        ),
        (GOOD, {"outputs": ()}, "not sent on"),
        (
            GOOD,
            {"outputs": tuple(Stored("out", n, f"k-{b}") for n, b in enumerate((0, 2, 1)))},
            "k-1 was sent on behind k-2",
        ),
        (
            GOOD,
            {"outputs": tuple(Stored("out", n, f"k-{b}") for n, b in enumerate((0, 0, 1, 2)))},
            "sent on twice without a fault",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "",
)
def test_what_is_wrong_is_found(text: str, changes: dict[str, object], says: str):
    """Each fault by itself: the judge names it."""
    assert says in "\n".join(judge(journey(text, **changes)))


@pytest.mark.parametrize(
    ("other_began", "other_ended", "again_at", "found"),
    [
        (120, 300, 200, True),
        (50, 300, 200, False),
    ],
    ids=["the queue stayed until the end", "the queue may have moved before the end"],
)
def test_a_queue_without_order_that_moves_repeats_what_its_handlers_did(
    other_began: int, other_ended: int, again_at: int, found: bool
):
    """Members without order do not lock: only what a lone member had done must not come again."""
    text = GOOD + lines((again_at, 2, "done")).replace(" 7 ", " 8 ")
    lives = (
        Life("a", 7, 0, 100, 0, frozenset({0}), clean=True),
        Life("b", 8, other_began, other_ended, 0, frozenset({0}), clean=True),
    )
    told = "\n".join(judge(journey(text, lives=lives, handling=Handling.CONCURRENT, returns=True)))
    assert ("handled again" in told) is found
    ordered = "\n".join(judge(journey(text, lives=lives)))
    assert "handled again" in ordered


@pytest.mark.parametrize(
    ("began", "found"), [(120, True), (20, False)], ids=["started later", "had it pulled already"]
)
def test_what_a_member_without_order_had_pulled_may_lie_below_a_commit(began: int, found: bool):
    """A commit of the member that lost the queue stands above what the next one still handles."""
    text = GOOD + lines((200, 2, "done")).replace(" 7 ", " 8 ")
    lives = (
        Life("a", 7, 0, 100, 0, frozenset({0}), clean=False),
        Life("b", 8, began, 300, 0, frozenset({0}), clean=True),
    )
    made = journey(
        text, lives=lives, handling=Handling.CONCURRENT, returns=True,
        commits=(Committed("x", QUEUE, 3, 110),),
    )  # fmt: skip
    assert ("below the committed offset" in "\n".join(judge(made))) is found


@pytest.mark.parametrize(
    ("stored", "code", "said", "says"),
    [
        ((0, 1, 2), 0, "", ""),
        ((0, 1), 0, "", "k-2 was acknowledged"),
        ((0, 1), 0, "1 messages had no outcome", ""),
        ((0, 1), -15, "", ""),
        ((0, 2), -15, "", "k-2 is stored, an earlier message of its key is not"),
        ((0, 2, 1), 0, "", "inverted"),
    ],
)
def test_what_a_job_hands_over_is_stored_or_its_loss_is_said(
    stored: tuple[int, ...], code: int, said: str, says: str
):
    """Exit code 0 without a word promises everything; one that is killed leaves no holes."""
    life = Life("job-1", 7, 0, 100, code, frozenset({0, -15}), said=said, finishes=True)
    records = tuple(Stored(QUEUE, at, f"k-{n}", "k", n) for at, n in enumerate(stored))
    made = journey(
        "".join(f"t 7 {number} k-{number}\n" for number in range(3)),
        lives=(life,), inputs=(), records=records, handling=None,
    )  # fmt: skip
    found = "\n".join(judge(made))
    assert says in found if says else not found


def test_a_ledger_whose_last_line_is_cut_is_read():
    """A program that was killed in the middle of a line."""
    assert len(read_ledger(GOOD + "b 7 40 orders bro").runs) == 3


def program(folder: Path, text: str) -> stage.Program:
    """Start a program."""
    words = [sys.executable, "-c", text]
    return stage.Program(folder, words, "program-1", "", 1, forks=False, finishes=False)


ANY_END = stage.End(frozenset(), clean=False)


def test_programs_hear_ctrl_c_also_when_the_journeys_run_in_the_background(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """A shell has what it starts in the background ignore SIGINT, which programs inherit."""
    codes = []

    def play_one(*_: object) -> Told:
        text = "import signal as s, sys; sys.exit(s.getsignal(s.SIGINT) is s.SIG_IGN)"
        codes.append(program(tmp_path, text).ended(ANY_END).code)
        return Told("program", [], {}, [], 0.0)

    monkeypatch.setattr(run, "play", play_one)
    monkeypatch.setattr(sys, "argv", ["run", "--rounds", "1"])
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run.main() == 0
    finally:
        signal.signal(signal.SIGINT, before)
    assert codes == [0]


def test_a_program_that_does_not_end_says_where_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Its life tells the lines in which its threads are; the round goes on and is judged."""
    monkeypatch.setattr(stage, "END_S", 0.01)
    text = (
        "import signal\n"
        "def waits_for_ever():\n"
        "    print('up', flush=True)\n"
        "    while True: signal.pause()\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "waits_for_ever()\n"
    )
    one = program(tmp_path, text)
    assert stage.wait_until(lambda: "up" in (tmp_path / "program-1.err").read_text(), 60)
    one.signal(signal.SIGTERM)
    life = one.ended(stage.End(frozenset({0}), clean=True))
    assert life.code == -signal.SIGABRT
    assert "in waits_for_ever" in life.said
    assert "ended with -6, not [0]" in "\n".join(judge(journey(GOOD, lives=(life,))))


IN_LINE = """
import faulthandler, os, runpy, signal, sys, time, types

class Consumer:
    def __init__(self, **_): pass
    def on(self, *_, **__): return lambda handler: handler
    def statistics(self): pass

    def __enter__(self):
        sys._getframe(1).f_trace = trace
        sys.settrace(trace)

    def __exit__(self, *_):
        sys.settrace(None)
        global closed
        closed = True

def trace(frame, event, _):
    global left
    left -= event == "line"
    if event == "line" and left == 0:
        signal.raise_signal(signal.SIGTERM)
    return trace

sys.modules["inorder"] = types.SimpleNamespace(Consumer=Consumer)
sys.modules["ledger"] = types.ModuleType("ledger")
time.sleep = lambda seconds: None
for line in range(1, 61):
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(10, exit=True)
        left, closed = line, False
        try:
            runpy.run_path(sys.argv[1])
        except SystemExit as error:
            os._exit(error.code or not closed)
        os._exit(3)
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"a signal in line {line} of the block does not end and close it"
"""


@pytest.mark.slow
def test_a_signal_ends_the_block_in_whichever_line_it_arrives():
    """The handler of a signal runs between two lines of the thread whose locks it must not need."""
    words = [sys.executable, "-c", IN_LINE, str(stage.PROGRAMS / "block.py")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("name", ["service", "block"])
def test_a_program_that_waits_for_its_name_server_can_be_stopped(
    tmp_path: Path, name: str, number: signal.Signals
):
    """It waits in `start`; a signal ends it as documented, and the server need not come first."""
    kind = next(kind for kind in KINDS if kind.name == name)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
    one = stage.Program(tmp_path, kind.words(), name, nobody, 1, forks=False, finishes=False)
    says = tmp_path / f"{name}.err"
    assert stage.wait_until(lambda: "waits for a name server" in says.read_text(), 90)
    one.signal(number)
    assert one.ended(kind.ends[number]).code in kind.ends[number].codes, says.read_text()


@pytest.mark.sample
@pytest.mark.parametrize("name", ["service", "transform", "command", "threads"])
def test_a_sample(tmp_path: Path, name: str):
    """One journey each of some programs; the stage `journeys` of the CI plays more."""
    assert name in {kind.name for kind in KINDS}
    told = play(1, 0, tmp_path / "round", only=name)
    assert told.findings == []
