"""What coordinators keep of their promises when processes are killed or stopped, and when connections break."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from contextlib import aclosing
from pathlib import Path

import pytest

from backend_store.cluster.core.values import Revision
from backend_store.cluster.election import Election
from backend_store.cluster.etcd import members
from backend_store.cluster.etcd import watch as watches
from backend_store.cluster.etcd.members import Members
from backend_store.cluster.etcd.watch import Watch
from backend_store.cluster.fencing import Right, put_fenced
from backend_store.model import OutcomeUnknown, Unavailable
from tests.support.coordinators import (
    COUNTER,
    FAILOVER_S_MAX,
    find,
    helper,
    open_folder,
    over_etcd,
    put,
    revisions_up_to,
    write_through,
)
from tests.support.etcd import Etcd
from tests.support.fault_proxy import fault_proxy
from tests.support.patience import eventually
from tests.support.server import free_port

pytestmark = pytest.mark.anyio


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


async def _line_soon(process: subprocess.Popen[str]) -> str:
    return await asyncio.wait_for(asyncio.to_thread(_line, process), 30)


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

        await eventually(has_expired)
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
                assert await revisions_up_to(watch, last) == list(range(second + 1, last + 1))
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
            for number in range(150):
                last = await put(direct, b"w/%d" % (number % 7), b"%d" % number)
                if number % 25 == 12:
                    proxy.cut()
                await asyncio.sleep(0.002)
            return last

        async with aclosing(coordinator.watch(b"w/", after=start)) as watch:
            writing = asyncio.create_task(write())
            heard = await revisions_up_to(watch, Revision(start + 150))
        assert await writing == start + 150
        assert heard == list(range(start + 1, start + 151))
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

        await eventually(is_full)
        connects = watch.connects
        etcd.members[0].freeze()
        try:
            await eventually(has_given_up)
        finally:
            etcd.members[0].thaw()
        heard = [(await asyncio.wait_for(watch.take(), 20)).revision for _ in range(100)]
        assert heard == list(range(start + 1, last + 1))
        await eventually(has_moved)
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

        await eventually(is_full)
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

        await eventually(is_done)
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
    with pytest.raises(Unavailable, match="cannot reach"):
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
