"""A17: a broker on a restored directory, beside what the old one gave out after the backup."""

from __future__ import annotations

from pathlib import Path

from inorder.backups.restoring import Restoring, Wanted
from inorder.backups.taking import Taking
from inorder.ordering.fence import sequence, span_at
from inorder.testing.clock import FakeClock
from tests.integration.brokerkit import SMALL, running
from tests.integration.leasekit import LEASE_MS, group, ours, send
from tests.integration.test_broker_leases import play, stored
from tests.integration.test_broker_parking import Client, own, state
from tests.kit.disk import FakeFiles

TARGET, FRESH = Path("/safe"), Path("/fresh")


def back_up(files: FakeFiles, clock: FakeClock) -> None:
    """Back up the running broker, without asking it."""
    Taking(files, clock, Path("/data"), TARGET, made_by="test").run()


def restore(files: FakeFiles, clock: FakeClock) -> None:
    Restoring(files, clock, TARGET, FRESH, SMALL, wanted=Wanted()).run()


def test_epochs_and_fences_are_above_all_that_the_old_broker_gave_out() -> None:
    """Also above those of starts and lost tails after the backup; nobody resumes."""

    async def scenario() -> None:
        clock, files = FakeClock(), FakeFiles()
        async with group("a", files=files, clock=clock, stop=False) as (rig, _, a):
            await a.take()
            assert await a.commit(3, "3:4")
            back_up(files, clock)
            await send(rig, 50)  # all that follows is not in the backup
            assert await a.commit(40)
        epochs = dict(a.epochs)
        files = files.kill()
        highest = 0
        for _ in range(3):  # starts of the old broker, each after a lost tail
            async with running(files, clock=clock, stop=False) as rig, ours(rig, "b") as (b,):
                rig.broker.lease_journal.start.lost_tail()
                clock.advance(LEASE_MS)
                await rig.broker.lease_expiry.check()
                grant = await b.take()
                span = span_at(grant.chapters, 57)
                highest = max(highest, sequence(span.version, span.generation, 57) or 0)
                epochs[0] = max(epochs[0], grant.epoch)
            files = files.kill()
        restore(files, clock)
        async with (
            running(files, clock=clock, data=str(FRESH)) as rig,
            ours(rig, "a", "c") as (
                again,
                c,
            ),
        ):
            again.epochs = dict(epochs)
            assert not await again.commit(57)
            assert (await again.refused()).holder == ""  # nobody resumes
            assert stored(rig) == 3
            clock.advance(LEASE_MS)
            await rig.broker.lease_expiry.check()
            grant = await c.take()
            assert grant.epoch > epochs[0]
            assert (grant.offset, grant.finished) == (3, "3:4")
            await send(rig, 1)
            old, new = span_at(grant.chapters, 7), span_at(grant.chapters, 8)
            assert old.generation == 0  # what is stored keeps its fence
            assert (sequence(new.version, new.generation, 8) or 0) > highest
            assert rig.broker.losses.reported == []

    play(scenario)


def test_what_the_backup_holds_of_groups_is_that_of_its_moment() -> None:
    """Offsets behind the backup are those of the journal; the log goes on from its end."""

    async def scenario() -> None:
        clock, files = FakeClock(), FakeFiles()
        async with group("a", files=files, clock=clock) as (rig, _, a):
            await a.take()
            assert await a.commit(3)
            assert await a.commit(6)  # in the journal alone
            back_up(files, clock)
        restore(files, clock)
        for _ in range(2):  # the second start is an ordinary one
            async with running(files, clock=clock, data=str(FRESH)) as rig:
                assert stored(rig) == 6
                answer = await rig.pull(queueId="0", queueOffset="0")
                assert (answer.code, answer.fields["maxOffset"]) == (0, "8")
                generation = rig.broker.lease_journal.start.now.generation
        assert generation == 17

    play(scenario)


def test_parked_keys_are_those_of_the_log_that_is_there() -> None:
    """They are derived from records of the log, which the backup holds."""

    async def scenario() -> None:
        clock, files = FakeClock(), FakeFiles()
        async with running(files, clock=clock) as rig:
            client = Client(rig)
            own(client)
            await client.send(4)
            assert await client.park(0, error="no") == "parked"
            assert await client.park(1) == "parked"
            back_up(files, clock)
            expected, bodies = state(rig), await client.bodies()
            assert await client.park(2) == "parked"  # after the backup
        restore(files, clock)
        async with running(files, clock=clock, data=str(FRESH)) as rig:
            assert state(rig) == expected
            client = Client(rig)
            assert await client.bodies() == bodies

    play(scenario)
