"""What is kept by a coordinator over three members of etcd while one of them, or two, are stopped or killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass

import pytest

from backend_store.cluster.coordinator import Coordinator
from backend_store.cluster.core.values import Put, Revision, Transaction, changed_at
from backend_store.cluster.etcd import members
from backend_store.cluster.etcd import watch as watches
from backend_store.cluster.mirror import Mirror
from backend_store.model import OutcomeUnknown, Unavailable
from tests.support.coordinators import COUNTER, FAILOVER_S_MAX, find, over_etcd, put, revisions_up_to, write_through
from tests.support.etcd import Etcd
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("three"), size=3) as cluster:
        yield cluster


@dataclass
class Tally:
    """What a writer was told about its increments of one record."""

    done: int = 0
    not_done: int = 0
    unknown: int = 0

    async def count(self, coordinator: Coordinator) -> None:
        """Adds one again and again, each time to what it has just read, until it is cancelled."""
        while True:
            try:
                record = await find(coordinator, COUNTER)
                base = Revision(0) if record is None else record.changed_at
                more = Put(COUNTER, b"%d" % (1 if record is None else int(record.value) + 1))
                added = await coordinator.transact(Transaction((changed_at(COUNTER, base),), (more,)))
                self.done += added.succeeded
            except Unavailable:
                self.not_done += 1
            except OutcomeUnknown:
                self.unknown += 1
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("fault", ["stopped", "killed"])
async def test_writes_watches_and_sessions_survive_the_loss_of_the_etcd_leader(
    three: Etcd, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "ETCD_REQUEST_SECONDS_MAX", 1.0)
    three.wait_ready()
    leader = three.leader()
    # The leader is the one that is asked first, so everything has to move.
    endpoints = sorted(three.endpoints, key=lambda url: url != leader.url)
    async with over_etcd(*endpoints, namespace=f"{fault}/".encode()) as coordinator:
        session = await coordinator.open_session(10)
        await put(coordinator, b"k/bound", b"", session.id)
        tally = Tally()
        counting = asyncio.create_task(tally.count(coordinator))
        start = await put(coordinator, b"k/0")
        async with aclosing(coordinator.watch(b"k/", after=start)) as watch:
            first = await put(coordinator, b"k/1")
            assert (await anext(watch)).revision == first
            doomed = await coordinator.open_session(2, is_alive=lambda: False)
            await put(coordinator, b"doomed", b"", doomed.id)
            if fault == "stopped":
                leader.freeze()
            else:
                leader.kill()
            try:
                await asyncio.wait_for(write_through(coordinator, b"k/2", b"through"), FAILOVER_S_MAX)
                last = await asyncio.wait_for(write_through(coordinator, b"k/3", b"through"), FAILOVER_S_MAX)
                written = [record.changed_at for record in (await coordinator.read(b"k/", changed_after=first)).records]
                assert await revisions_up_to(watch, last) == sorted(written)

                async def is_gone() -> bool:
                    try:
                        return await find(coordinator, b"doomed") is None
                    except Unavailable:
                        return False

                await eventually(is_gone, within_s=FAILOVER_S_MAX)
                assert not doomed.is_held, "its holder believed in it when its record was gone already"
            finally:
                counting.cancel()
                await asyncio.gather(counting, return_exceptions=True)
                if fault == "stopped":
                    leader.thaw()
                else:
                    leader.start()
        three.wait_ready()
        assert session.is_held and await find(coordinator, b"k/bound") is not None
        record = await find(coordinator, b"k/2")
        assert record is not None and record.version == 1

        # What was confirmed is there, and what was surely not done is not; one may have been cut off at the end.
        counter = await find(coordinator, COUNTER)
        assert counter is not None and counter.version == int(counter.value)
        assert tally.done <= counter.version <= tally.done + tally.unknown + 1, tally


async def test_a_watch_and_a_mirror_leave_a_member_that_says_nothing(
    three: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "ETCD_PULSE_SECONDS", 0.3)
    three.wait_ready()
    leader = three.leader()
    silent = next(member for member in three.members if member is not leader)
    endpoints = sorted(three.endpoints, key=lambda url: url != silent.url)
    async with (
        over_etcd(*endpoints, namespace=b"quiet/") as coordinator,
        over_etcd(leader.url, namespace=b"quiet/") as other,
    ):
        mirror = Mirror(coordinator, b"m/")
        task = asyncio.create_task(mirror.run())
        await asyncio.wait_for(mirror.wait_filled(), 20)
        await asyncio.wait_for(mirror.wait_revision(await put(other, b"m/1")), 20)
        silent.freeze()
        try:
            last = await asyncio.wait_for(write_through(other, b"m/2", b""), FAILOVER_S_MAX)
            await asyncio.wait_for(mirror.wait_revision(last), FAILOVER_S_MAX)
            assert sorted(mirror.records) == [b"m/1", b"m/2"] and mirror.lists == 1
        finally:
            silent.thaw()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_without_a_majority_nothing_is_confirmed_and_a_mirror_grows_old(
    three: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "ETCD_REQUEST_SECONDS_MAX", 1.0)
    three.wait_ready()
    leader = three.leader()
    followers = [member for member in three.members if member is not leader]
    async with (
        over_etcd(*three.endpoints, namespace=b"few/") as coordinator,
        over_etcd(leader.url, namespace=b"few/") as alone,
    ):
        await put(coordinator, b"m/1")
        mirror = Mirror(coordinator, b"m/")
        task = asyncio.create_task(mirror.run())
        await asyncio.wait_for(mirror.wait_filled(), 20)
        for member in followers:
            member.kill()
        try:
            with pytest.raises((Unavailable, OutcomeUnknown)):
                await asyncio.wait_for(put(coordinator, b"m/2"), 30)

            async def surely_refuses() -> bool:
                try:
                    await put(alone, b"m/4")
                except OutcomeUnknown:
                    return False
                except Unavailable as error:
                    return "no leader" in error.detail
                raise AssertionError("a write was confirmed without a majority")

            await eventually(surely_refuses)

            async def is_old() -> bool:
                return mirror.staleness_s > 3

            await eventually(is_old)
            assert b"m/1" in mirror.records, "what is known stays readable"
        finally:
            for member in followers:
                member.start()
        last = await asyncio.wait_for(write_through(coordinator, b"m/3", b""), FAILOVER_S_MAX)
        await asyncio.wait_for(mirror.wait_revision(last), FAILOVER_S_MAX)
        assert mirror.staleness_s < 20
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
