"""What coordinators keep of their promises when processes are killed or stopped, and when connections break."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from backend_store.cluster.coordinator import Coordinator
from backend_store.cluster.core.values import Changes, Put, Revision, Transaction, absent
from backend_store.cluster.election import Election
from backend_store.cluster.etcd import members
from backend_store.cluster.etcd import watch as watches
from backend_store.cluster.etcd.members import Members
from backend_store.cluster.etcd.watch import Watch
from backend_store.cluster.fencing import Right, put_fenced
from backend_store.cluster.mirror import Mirror
from backend_store.model import OutcomeUnknown, Unavailable
from tests.support.coordinators import COUNTER, find, helper, open_folder, over_etcd, put, until
from tests.support.etcd import Etcd
from tests.support.fault_proxy import fault_proxy
from tests.support.server import free_port

pytestmark = pytest.mark.anyio

FAILOVER_S_MAX = 15.0
"""The bound for a cluster that lost a member, here on a machine that does other things too."""


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


async def _line_soon(process: subprocess.Popen[str]) -> str:
    return await asyncio.wait_for(asyncio.to_thread(_line, process), 30)


async def _revisions(watch: AsyncIterator[Changes], up_to: Revision) -> list[Revision]:
    heard: list[Revision] = []
    async with asyncio.timeout(30):
        async for changes in watch:
            if changes.events:
                heard.append(changes.revision)
            if changes.revision >= up_to:
                return heard
    raise AssertionError("the watch ended")


async def write_through(coordinator: Coordinator, key: bytes, value: bytes) -> Revision:
    """Until it is done, once: what is unknown is cleared up by reading back."""
    while True:
        try:
            return (await coordinator.transact(Transaction((absent(key),), (Put(key, value),)))).revision
        except (Unavailable, OutcomeUnknown):
            await asyncio.sleep(0.05)


# ------------------------------------------------------------------------------------------------------- embedded


async def test_a_killed_process_leaves_every_confirmed_record_and_its_revision(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with helper("count", str(data)) as process:
        confirmed = (0, 0)
        while confirmed[0] < 200:
            number, revision = (await _line_soon(process)).split()
            confirmed = int(number), int(revision)
        process.kill()
        process.wait()
        assert process.stdout is not None
        for line in process.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):
                confirmed = int(line.split()[0]), int(line.split()[1])
    host = open_folder(data)
    try:
        record = await find(host.coordinator, COUNTER)
        assert record is not None and int(record.value) in (confirmed[0], confirmed[0] + 1)
        assert (
            record.version == int(record.value) and record.changed_at - confirmed[1] == int(record.value) - confirmed[0]
        )
        assert await put(host.coordinator, b"next") == record.changed_at + 1, "revisions go on where they were"

        # The session of the killed process has its whole time again, and then its records go.
        assert await find(host.coordinator, b"alive") is not None

        async def has_expired() -> bool:
            return await find(host.coordinator, b"alive") is None

        await until(has_expired)
    finally:
        await host.close()


# ------------------------------------------------------------------------------------------------ one etcd member


async def test_a_killed_etcd_comes_back_with_its_records_its_watches_and_its_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "ETCD_REQUEST_SECONDS_MAX", 1.0)
    with Etcd(tmp_path) as etcd:
        async with over_etcd(*etcd.endpoints) as coordinator:
            session = await coordinator.open_session(20)
            await put(coordinator, b"k/bound", b"", session.id)
            start = await put(coordinator, b"k/1", b"one")
            record = await find(coordinator, b"k/1")
            async with aclosing(coordinator.watch(b"k/", after=start)) as watch:
                second = await put(coordinator, b"k/2")
                assert (await anext(watch)).revision == second
                member = etcd.members[0]
                member.kill()
                with pytest.raises((Unavailable, OutcomeUnknown)):
                    await asyncio.wait_for(put(coordinator, b"k/while-away"), 20)
                member.start()
                last = await asyncio.wait_for(write_through(coordinator, b"k/3", b""), FAILOVER_S_MAX)
                assert await _revisions(watch, last) == list(range(second + 1, last + 1))
            assert await find(coordinator, b"k/1") == record
            assert session.is_held and await find(coordinator, b"k/bound") is not None


async def test_a_watch_whose_connection_breaks_again_and_again_misses_and_repeats_nothing(etcd: Etcd) -> None:
    async with (
        over_etcd(*etcd.endpoints, namespace=b"cut/") as direct,
        fault_proxy(etcd.members[0].client_port) as proxy,
        over_etcd(proxy.url, namespace=b"cut/") as coordinator,
    ):
        start = await put(direct, b"w/0")

        async def write() -> Revision:
            for number in range(300):
                last = await put(direct, b"w/%d" % (number % 7), b"%d" % number)
                if number % 50 == 25:
                    proxy.cut()
                await asyncio.sleep(0.002)
            return last

        async with aclosing(coordinator.watch(b"w/", after=start)) as watch:
            writing = asyncio.create_task(write())
            heard = await _revisions(watch, Revision(start + 300))
        assert await writing == start + 300
        assert heard == list(range(start + 1, start + 301))
        assert proxy.connections > 5


async def test_a_watch_that_moves_while_its_reader_is_slow_loses_nothing(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "ETCD_PULSE_SECONDS", 0.05)
    monkeypatch.setattr(members, "ETCD_READ_SECONDS_MAX", 0.3)
    async with over_etcd(*etcd.endpoints, namespace=b"slow/") as writer:
        start = await put(writer, b"k")
        for _ in range(100):
            last = await put(writer, b"k")
        reader = Members(etcd.endpoints)
        watch = Watch(reader, b"slow/", b"k", start)

        async def is_full() -> bool:
            return watch._waiting.full()

        async def has_given_up() -> bool:
            return etcd.endpoints[0] not in reader._vetted

        async def has_moved() -> bool:
            return watch.connects > connects

        await until(is_full)
        connects = watch.connects
        etcd.members[0].freeze()
        try:
            await until(has_given_up)
        finally:
            etcd.members[0].thaw()
        heard = [(await asyncio.wait_for(watch.take(), 20)).revision for _ in range(100)]
        assert heard == list(range(start + 1, last + 1))
        await until(has_moved)
        await watch.close()
        await reader.close()


async def test_a_watch_that_is_ended_before_it_was_taken_tells_no_part_of_it(etcd: Etcd) -> None:
    async with over_etcd(*etcd.endpoints, namespace=b"ended/") as writer:
        start = await put(writer, b"k")
        for _ in range(100):
            await put(writer, b"k")
        reader = Members(etcd.endpoints)
        watch = Watch(reader, b"ended/", b"k", start)

        async def is_full() -> bool:
            return watch._waiting.full()

        await until(is_full)
        await watch.end("the end")
        with pytest.raises(Unavailable, match="the end"):
            await asyncio.wait_for(watch.take(), 20)
        await reader.close()


async def test_a_lost_answer_is_an_unknown_outcome_and_reading_back_tells(etcd: Etcd) -> None:
    async with (
        over_etcd(*etcd.endpoints, namespace=b"lost/") as direct,
        fault_proxy(etcd.members[0].client_port) as proxy,
        over_etcd(proxy.url, namespace=b"lost/") as coordinator,
    ):
        proxy.losing, proxy.answers_to_lose = b"/v3/kv/txn", 1
        with pytest.raises(OutcomeUnknown):
            await put(coordinator, b"k", b"done all the same")

        async def is_done() -> bool:
            return await find(direct, b"k") is not None

        await until(is_done)
        record = await find(direct, b"k")
        assert record is not None and (record.value, record.version) == (b"done all the same", 1)


async def test_a_fenced_write_whose_answers_are_lost_is_made_once_and_known(etcd: Etcd) -> None:
    async with (
        over_etcd(*etcd.endpoints, namespace=b"once/") as direct,
        fault_proxy(etcd.members[0].client_port) as proxy,
        over_etcd(proxy.url, namespace=b"once/") as coordinator,
    ):
        right = Right(b"mine", await put(direct, b"mine"))
        base = await put_fenced(coordinator, right, b"map", b"1", based_on=None)
        proxy.losing, proxy.answers_to_lose = b"/v3/kv/txn", 2
        written = await put_fenced(coordinator, right, b"map", b"2", based_on=base)
        assert proxy.answers_to_lose == 0
        assert written == await find(direct, b"map") and (written.value, written.version) == (b"2", 2)


async def test_what_nobody_received_was_surely_not_done(etcd: Etcd) -> None:
    async with (
        over_etcd(*etcd.endpoints, namespace=b"sure/") as direct,
        fault_proxy(etcd.members[0].client_port) as proxy,
        over_etcd(proxy.url, namespace=b"sure/") as coordinator,
    ):
        await put(coordinator, b"k", b"before")
        await proxy.stop()
        writing = asyncio.create_task(put(coordinator, b"k", b"after"))
        record = await find(direct, b"k")
        await proxy.start()
        await asyncio.wait_for(writing, 20)  # refused connections are tried again: it is safe
        assert record is not None and record.value == b"before"
        record = await find(direct, b"k")
        assert record is not None and (record.value, record.version) == (b"after", 2)
    with pytest.raises(Unavailable, match="cannot be reached"):
        async with over_etcd(f"http://127.0.0.1:{free_port()}"):
            pass


async def test_a_process_that_was_stopped_for_too_long_is_fenced_when_it_wakes(etcd: Etcd) -> None:
    """It does not believe in its session any more, and what it writes all the same is refused."""
    async with over_etcd(*etcd.endpoints) as coordinator:
        with helper("hold", etcd.endpoints[0], "leader") as process:
            assert await _line_soon(process) == "holds\n"
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert await _line_soon(process) == "True written\n"
            process.send_signal(signal.SIGSTOP)
            session = await coordinator.open_session(5)
            await asyncio.wait_for(Election(coordinator, b"leader").campaign(session, b"successor"), 30)
            process.send_signal(signal.SIGCONT)
            process.stdin.write("\n")
            process.stdin.flush()
            assert await _line_soon(process) == "False fenced\n"
            await session.close()


# ---------------------------------------------------------------------------------------------- three etcd members


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("three"), size=3) as cluster:
        yield cluster


@pytest.mark.parametrize("fault", ["stopped", "killed"])
async def test_writes_watches_and_sessions_survive_the_loss_of_the_etcd_leader(three: Etcd, fault: str) -> None:
    three.wait_ready()
    leader = three.leader()
    # The leader is the one that is asked first, so everything has to move.
    endpoints = sorted(three.endpoints, key=lambda url: url != leader.url)
    async with over_etcd(*endpoints, namespace=f"{fault}/".encode()) as coordinator:
        session = await coordinator.open_session(10)
        await put(coordinator, b"k/bound", b"", session.id)
        start = await put(coordinator, b"k/0")
        async with aclosing(coordinator.watch(b"k/", after=start)) as watch:
            first = await put(coordinator, b"k/1")
            assert (await anext(watch)).revision == first
            if fault == "stopped":
                leader.freeze()
            else:
                leader.kill()
            try:
                await asyncio.wait_for(write_through(coordinator, b"k/2", b"through"), FAILOVER_S_MAX)
                last = await asyncio.wait_for(write_through(coordinator, b"k/3", b"through"), FAILOVER_S_MAX)
                written = [record.changed_at for record in (await coordinator.read(b"k/", changed_after=first)).records]
                assert await _revisions(watch, last) == sorted(written)
            finally:
                if fault == "stopped":
                    leader.thaw()
                else:
                    leader.start()
        assert session.is_held and await find(coordinator, b"k/bound") is not None
        record = await find(coordinator, b"k/2")
        assert record is not None and record.version == 1


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

            await until(surely_refuses)

            async def is_old() -> bool:
                return mirror.staleness_s > 3

            await until(is_old)
            assert b"m/1" in mirror.records, "what is known stays readable"
        finally:
            for member in followers:
                member.start()
        last = await asyncio.wait_for(write_through(coordinator, b"m/3", b""), FAILOVER_S_MAX)
        await asyncio.wait_for(mirror.wait_revision(last), FAILOVER_S_MAX)
        assert mirror.staleness_s < 20
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
