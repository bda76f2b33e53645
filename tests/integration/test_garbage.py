"""Garbage at a real broker process, in small: nobody else notices, and nothing is left behind.

`make garbage` runs the same phases at full size.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inorder.wire.header import Command
from tests.garbage import assaults, attack, catalogue
from tests.garbage.peer import Peer
from tests.garbage.target import MIB, Target, wait_until
from tests.garbage.witness import WitnessProcess

SCALE = 0.04
MEMORY_BYTES_MAX = 400 * MIB
LATE_MS_MAX = 20_000
"""Far beyond what is good: on a busy machine only a broker that stopped is this late."""


class Scene:
    """A broker under attack and its witness."""

    def __init__(self, root: Path, *, access: bool = False) -> None:
        settings = attack.CHECKED if access else attack.SETTINGS
        self.target = Target(root, settings, secrets=attack.USER if access else {})
        keys = attack.KEYS if access else {}
        self.witness = WitnessProcess(self.target.broker, self.target.namesrv, keys)
        assert wait_until(self._is_served, 20.0), "the witness is not served"
        self.witness.take()
        self.at_rest = self.target.sockets()

    def _is_served(self) -> bool:
        """Tell whether all connections of the witness are at work."""
        seen = self.witness.look()
        return all(seen[what]["count"] for what in ("send_ms", "delivery_ms", "route_ms"))

    def sends_are_answered(self) -> bool:
        """Tell whether the witness was served in this phase, which may be short."""
        return bool(self.witness.look()["send_ms"]["count"])

    def close(self) -> None:
        self.witness.stop()
        self.target.memory.stop()
        self.target.kill()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("garbage"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("checked"), access=True)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", attack.PHASES)
def test_an_attack_is_answered_or_closed_and_others_are_served(scene: Scene, name: str) -> None:
    """Each phase in small: no hang, bounded memory, short turns, the witness gets all it asked."""
    _stand(scene, attack.PHASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", attack.ACCESS_PHASES)
def test_who_cannot_log_in_disturbs_nobody(checked: Scene, name: str) -> None:
    """Crowds of strangers, wrong signatures and large requests: those who log in are served."""
    _stand(checked, attack.ACCESS_PHASES[name])


def _stand(scene: Scene, phase: Callable[[attack.Run], object]) -> None:
    run = attack.Run(scene.target, scene.witness, SCALE, random.Random(7))
    scene.witness.take()
    scene.target.memory.take_peak_bytes()
    scene.target.take_lag_ms()
    phase(run)
    time.sleep(0.2)
    assert wait_until(scene.sends_are_answered, 20.0), "the witness is not served"
    noticed = scene.witness.take()
    work = scene.target.take_lag_ms()["work"]
    assert run.failures == []
    assert noticed["errors"] == []
    assert noticed["send_ms"]["max"] < LATE_MS_MAX
    assert work["p99"] < attack.LATE_P99_MS_ELSE, "what the loop did in one go, in CPU time"
    assert scene.target.alive
    assert scene.target.memory.take_peak_bytes() < MEMORY_BYTES_MAX
    assert assaults.reaped(scene.target, scene.at_rest, 20.0), "connections are kept"
    assert scene.target.new_files_outside() == set()
    assert scene.target.strange_names_inside() == []
    assert scene.target.children() == []
    assert "Traceback" not in scene.target.log_text()


@pytest.mark.slow
def test_running_out_of_descriptors_refuses_connections_and_recovers(tmp_path: Path) -> None:
    """With few descriptors left the broker goes on for whom it serves, and for all afterwards."""
    target = Target(tmp_path, {}, files_max=160)
    try:
        with Peer(target.broker) as served:
            send = Command.request(310, catalogue.send_fields("scarce"), b"x")
            answer = served.call(send)
            assert answer is not None
            assert answer.code == 0
            crowd = []
            for _ in range(250):
                peer = Peer(target.broker)
                crowd.append(peer)
            try:
                for _ in range(20):
                    answer = served.call(send)
                    assert answer is not None
                    assert answer.code == 0
            finally:
                for peer in crowd:
                    peer.close()
            assert target.alive

        def accepts() -> bool:
            try:
                with Peer(target.broker) as peer:
                    return peer.probe(2) == 3
            except OSError:
                return False

        assert wait_until(accepts, 30.0)
    finally:
        target.memory.stop()
        target.kill()
