"""The search itself: it finds the shortest way, all states, and says when a model is vacuous."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.search import Model, follow, search, stuck


def jugs(full: tuple[int, int] = (3, 5), wanted: int = 4) -> Model[tuple[int, int]]:
    """Return the old riddle: measure four litres with jugs of three and five."""

    def steps(state: tuple[int, int]) -> Iterator[tuple[str, tuple[int, int]]]:
        small, large = state
        yield "fill small", (full[0], large)
        yield "fill large", (small, full[1])
        yield "empty small", (0, large)
        yield "empty large", (small, 0)
        poured = min(small, full[1] - large)
        yield "small into large", (small - poured, large + poured)
        poured = min(large, full[0] - small)
        yield "large into small", (small + poured, large - poured)

    return Model(
        initial=lambda: [(0, 0)],
        steps=steps,
        broken=lambda state: ["measured"] if wanted in state else [],
        witnesses={"both full": lambda state: state == full},
    )


def test_the_counterexample_is_a_shortest_one():
    """Four litres take six steps, and the way is a run of the model."""
    found = search(jugs()).counterexample
    assert found is not None
    assert len(found.labels) == 6
    assert found.broken == ("measured",)
    assert follow(jugs(), found.labels) == 6
    assert "large into small" in str(found)


def test_every_state_is_looked_at():
    """Without a way to break anything all sixteen states are seen, and counted."""
    result = search(jugs(wanted=99))
    assert result.ok
    assert result.states == 16
    assert str(result).startswith("all 16 states")


def test_a_bound_makes_the_search_incomplete():
    """A search that was cut short proves nothing, and says so."""
    result = search(jugs(wanted=99), states_max=5)
    assert not result.complete
    assert not result.ok


def test_a_vacuous_model_is_not_ok():
    """A model in which what it is about cannot happen keeps every invariant; it is told."""
    idle = Model[int](
        initial=lambda: [0],
        steps=lambda state: [],
        broken=lambda state: [],
        witnesses={"something": lambda state: state == 1},
    )
    result = search(idle)
    assert result.complete
    assert result.unseen == ("something",)
    assert not result.ok


def test_a_run_that_the_model_does_not_have_is_found():
    """Following stops at the first step that the model cannot take; silent steps fill gaps."""
    assert follow(jugs(), ["fill large", "large into small", "empty small"]) == 3
    assert follow(jugs(), ["fill large", "measured"]) == 1
    counter = Model[int](
        initial=lambda: [0],
        steps=lambda state: [("tick", state + 1)] + ([("ring", 0)] if state == 3 else []),
        broken=lambda state: [],
    )
    assert follow(counter, ["ring"]) == 0
    assert follow(counter, ["ring", "ring"], silent=lambda label: label == "tick") == 2


def test_a_state_that_cannot_reach_the_end_is_found():
    """By no step but a fault: the way to the first such state is told."""
    graph = {0: [("on", 1), ("fall", 2)], 1: [("on", 3), ("back", 0)], 2: [("fall", 3)], 3: []}
    model = Model[int](
        initial=lambda: [0], steps=lambda state: graph[state], broken=lambda state: []
    )
    assert stuck(model, lambda state: state == 3, fault=lambda label: False) is None
    found = stuck(model, lambda state: state == 3, fault=lambda label: label == "fall")
    assert found is not None
    assert found.labels == ("fall",)
    assert found.states == (0, 2)
