"""An explicit-state search: every state that a small model can reach, shortest way first.

A model is three functions. `initial` gives the states to begin with, `steps` the actions that are
possible in a state, each with its label and the state after it, `broken` names the invariants that
a state breaks (none: fine). States are hashable values; whatever bounds the model has (how many
crashes, how many messages) it keeps inside its states, so that the number of states is finite and
`Result.complete` means: all of them, within the bounds.

The search is breadth first: a counterexample is a shortest one. `witnesses` are states that must
be reachable: a model in which nothing can happen keeps every invariant. `stuck` tells whether the
end stays within reach. `follow` is for trace checking: is what a real run did, seen from outside, a
run of the model?
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

State = TypeVar("State", bound=Hashable)
Tuple = TypeVar("Tuple", bound=type[NamedTuple])


def replaced_fast(kind: Tuple) -> Tuple:
    """Give a named tuple a faster `_replace`: a search calls it millions of times."""
    places = {name: place for place, name in enumerate(kind._fields)}

    def replace(self: Any, /, **changes: object) -> Any:
        values = list(self)
        for name, value in changes.items():
            values[places[name]] = value
        return tuple.__new__(kind, values)

    kind._replace = replace  # type: ignore[method-assign, assignment]
    return kind


@dataclass(frozen=True)
class Model(Generic[State]):
    """What can happen, and what must hold."""

    initial: Callable[[], Iterable[State]]
    steps: Callable[[State], Iterable[tuple[str, State]]]
    broken: Callable[[State], Iterable[str]]
    witnesses: dict[str, Callable[[State], bool]] = field(default_factory=dict)


@dataclass(frozen=True)
class Counterexample(Generic[State]):
    """A shortest way to a state that breaks an invariant."""

    broken: tuple[str, ...]
    labels: tuple[str, ...]
    states: tuple[State, ...]

    def __str__(self) -> str:
        lines = [f"breaks {', '.join(self.broken)} after {len(self.labels)} steps:"]
        lines += [f"  {number:3d}  {label}" for number, label in enumerate(self.labels, 1)]
        return "\n".join([*lines, f"  in {self.states[-1]}"])


@dataclass(frozen=True)
class Result(Generic[State]):
    """What a search found. `complete`: every reachable state was looked at."""

    states: int
    transitions: int
    depth: int
    complete: bool
    counterexample: Counterexample[State] | None
    unseen: tuple[str, ...]
    """Witnesses that no state was."""

    @property
    def ok(self) -> bool:
        """Tell whether everything was looked at, nothing breaks, and the model is not vacuous."""
        return self.complete and self.counterexample is None and not self.unseen

    def __str__(self) -> str:
        extent = "all" if self.complete else "the first"
        line = f"{extent} {self.states} states, {self.transitions} steps, depth {self.depth}"
        if self.unseen:
            line += f"; never seen: {', '.join(self.unseen)}"
        return line if self.counterexample is None else f"{line}; {self.counterexample}"


def search(model: Model[State], *, states_max: int = 2_000_000) -> Result[State]:
    """Look at every reachable state until one breaks an invariant."""
    came_from: dict[State, tuple[State, str] | None] = {}
    waiting: deque[tuple[State, int]] = deque()
    unseen = dict(model.witnesses)
    transitions = depth = 0

    def meet(state: State, origin: tuple[State, str] | None, at: int) -> Sequence[str]:
        came_from[state] = origin
        waiting.append((state, at))
        for name in [name for name, seen in unseen.items() if seen(state)]:
            del unseen[name]
        return tuple(model.broken(state))

    def result(*, complete: bool, found: Counterexample[State] | None = None) -> Result[State]:
        return Result(len(came_from), transitions, depth, complete, found, tuple(unseen))

    for state in model.initial():
        if state not in came_from and (broken := meet(state, None, 0)):
            found = Counterexample(tuple(broken), (), (state,))
            return result(complete=False, found=found)
    while waiting:
        state, depth = waiting.popleft()
        for label, after in model.steps(state):
            transitions += 1
            if after in came_from:
                continue
            if broken := meet(after, (state, label), depth + 1):
                depth += 1
                return result(complete=False, found=_way(came_from, after, tuple(broken)))
            if len(came_from) >= states_max:
                return result(complete=False)
    return result(complete=True)


def stuck(
    model: Model[State], ended: Callable[[State], bool], *, fault: Callable[[str], bool]
) -> Counterexample[State] | None:
    """Return the way to a state from which nothing but faults leads to the end; None: to none.

    All reachable states are kept, with their steps: for models that are small.
    """
    came_from: dict[State, tuple[State, str] | None] = dict.fromkeys(model.initial())
    before: dict[State, list[State]] = {}
    waiting = deque(came_from)
    while waiting:
        state = waiting.popleft()
        for label, after in model.steps(state):
            if not fault(label):
                before.setdefault(after, []).append(state)
            if after not in came_from:
                came_from[after] = (state, label)
                waiting.append(after)
    safe = {state for state in came_from if ended(state)}
    waiting = deque(safe)
    while waiting:
        for state in before.get(waiting.popleft(), ()):
            if state not in safe:
                safe.add(state)
                waiting.append(state)
    lost = next((state for state in came_from if state not in safe), None)
    return None if lost is None else _way(came_from, lost, ("the end is out of reach",))


def _way(
    came_from: dict[State, tuple[State, str] | None], end: State, broken: tuple[str, ...]
) -> Counterexample[State]:
    states, labels = [end], []
    while (origin := came_from[states[-1]]) is not None:
        states.append(origin[0])
        labels.append(origin[1])
    return Counterexample(broken, tuple(reversed(labels)), tuple(reversed(states)))


def follow(
    model: Model[State],
    observed: Sequence[str],
    *,
    silent: Callable[[str], bool] = lambda label: False,
    silent_max: int = 8,
) -> int:
    """Tell how far a sequence of labels is a run of the model: `len(observed)` if wholly.

    Steps whose label is `silent` may happen between any two observed ones, up to `silent_max`.
    """
    possible = set(model.initial())
    for number, label in enumerate(observed):
        reached = _silently(model, possible, silent, silent_max)
        possible = {
            after for state in reached for name, after in model.steps(state) if name == label
        }
        if not possible:
            return number
    return len(observed)


def _silently(
    model: Model[State], states: set[State], silent: Callable[[str], bool], silent_max: int
) -> set[State]:
    """Return the states with all that steps nobody sees lead to."""
    reached, edge = set(states), set(states)
    for _ in range(silent_max):
        edge = {
            after for state in edge for name, after in model.steps(state) if silent(name)
        } - reached
        if not edge:
            break
        reached |= edge
    return reached
