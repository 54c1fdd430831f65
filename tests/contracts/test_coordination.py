"""What is built on a coordinator, over every coordinator: elections, fenced writes, mirrors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import pytest

from backend_store.cluster.coordinator import Coordinator, SessionLost
from backend_store.cluster.core.values import Delete, Event, Get, Put, Record, Revision, Transaction, absent
from backend_store.cluster.election import Election
from backend_store.cluster.fencing import Fenced, Right, Stale, put_fenced, transact_fenced
from backend_store.cluster.mirror import Mirror
from backend_store.model import Overloaded
from tests.support.coordinators import WITHIN_S, Coordinated, find, put
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio

T = TypeVar("T")


async def soon(awaited: asyncio.Future[T]) -> T:
    return await asyncio.wait_for(awaited, WITHIN_S)


# ------------------------------------------------------------------------------------------------------- elections


async def test_one_candidate_at_a_time_holds_the_key_and_all_get_their_turn(coordinated: Coordinated) -> None:
    holders: list[int] = []
    turns: list[Revision] = []

    async def run(name: int) -> None:
        async with coordinated.another() as coordinator:
            election = Election(coordinator, b"leader")
            for _ in range(3):
                session = await coordinator.open_session(5)
                right = await election.campaign(session, b"%d" % name)
                assert holders == [], "two hold the key"
                holders.append(name)
                turns.append(right.created_at)
                record = await find(coordinator, b"leader")
                assert record is not None and (record.session, record.value) == (session.id, b"%d" % name)
                holders.remove(name)
                if name == 0:
                    await election.resign(right)
                await session.close()

    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*(run(name) for name in range(3)))
    assert len(turns) == 9 and turns == sorted(set(turns)), "each turn has a revision of its own, above all before it"


async def test_an_old_holder_cannot_write_after_its_session_ended(coordinated: Coordinated) -> None:
    old = coordinated.coordinator
    session = await old.open_session(5)
    right = await Election(old, b"leader").campaign(session, b"old")
    record = await put_fenced(old, right, b"map", b"1", based_on=None)
    assert record == await find(old, b"map")
    record = await put_fenced(old, right, b"map", b"2", based_on=record)
    assert record == await find(old, b"map")
    await session.close()
    async with coordinated.another() as new:
        successor = await new.open_session(5)
        newer = await Election(new, b"leader").campaign(successor, b"new")
        with pytest.raises(Fenced, match="is gone"):
            await put_fenced(old, right, b"map", b"late", based_on=record)
        with pytest.raises(Fenced):
            await transact_fenced(old, right, [Delete(b"map")])
        await Election(old, b"leader").resign(right)  # of a right that is gone: nothing happens
        assert await find(new, b"map") == record
        changed = await put_fenced(new, newer, b"map", b"3", based_on=record)
        assert changed.version == 3 and await find(old, b"map") == changed
        await successor.close()


async def test_a_fenced_write_is_refused_where_the_record_has_moved_on(coordinator: Coordinator) -> None:
    right = Right(b"mine", await put(coordinator, b"mine"))
    base = await put_fenced(coordinator, right, b"map", b"1", based_on=None)
    await put(coordinator, b"map", b"somebody else")
    for based_on in (base, None):
        with pytest.raises(Stale) as stale:
            await put_fenced(coordinator, right, b"map", b"2", based_on=based_on)
        assert stale.value.found == await find(coordinator, b"map")
    refused = await transact_fenced(coordinator, right, [Put(b"map", b"2")], compares=[absent(b"map")])
    assert not refused.succeeded
    done = await transact_fenced(coordinator, right, [Put(b"map", b"2"), Get(b"map")])
    assert done.succeeded and done.found[0] == await find(coordinator, b"map")


async def test_a_candidate_whose_session_is_lost_stops_waiting(coordinator: Coordinator) -> None:
    holder, candidate = await coordinator.open_session(10), await coordinator.open_session(10)
    election = Election(coordinator, b"leader")
    right = await election.campaign(holder, b"one")
    assert await election.campaign(holder, b"one") == right, "who holds it already gets the same right again"
    waiting = asyncio.ensure_future(election.campaign(candidate, b"two"))
    await asyncio.sleep(0)
    await candidate.close()
    with pytest.raises(SessionLost, match="it was closed"):
        await soon(waiting)
    record = await find(coordinator, b"leader")
    assert record is not None and record.session == holder.id
    await holder.close()


async def test_who_observes_an_election_sees_each_holder(coordinated: Coordinated) -> None:
    coordinator = coordinated.coordinator
    election = Election(coordinator, b"leader")
    async with aclosing(election.observe()) as holders:
        seen: list[Record | None] = [await soon(asyncio.ensure_future(anext(holders)))]
        await put(coordinator, b"leader-of-another")
        for name in (b"one", b"two"):
            session = await coordinator.open_session(5)
            await election.campaign(session, name)
            await session.close()
        while len(seen) < 5:
            seen.append(await soon(asyncio.ensure_future(anext(holders))))
    assert [None if record is None else record.value for record in seen] == [None, b"one", None, b"two", None]


# --------------------------------------------------------------------------------------------------------- mirrors


@asynccontextmanager
async def running(mirror: Mirror) -> AsyncIterator[None]:
    task = asyncio.create_task(mirror.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_mirror_follows_what_changes_and_knows_its_age(coordinator: Coordinator) -> None:
    for number in range(5):
        await put(coordinator, b"m/%d" % number)
    heard: list[Event] = []
    mirror = Mirror(coordinator, b"m/", told=heard.extend)
    assert mirror.staleness_s == float("inf")
    async with running(mirror):
        await asyncio.wait_for(mirror.wait_filled(), WITHIN_S)
        assert sorted(mirror.records) == [b"m/%d" % number for number in range(5)]
        heard.clear()
        await put(coordinator, b"elsewhere")
        last = (await coordinator.transact(Transaction(then=(Delete(b"m/0"), Put(b"m/5", b"new"))))).revision
        await asyncio.wait_for(mirror.wait_revision(last), WITHIN_S)
        assert sorted(mirror.records) == [b"m/%d" % number for number in range(1, 6)]
        assert {(event.key, event.record is None) for event in heard} == {(b"m/0", True), (b"m/5", False)}
        assert mirror.records[b"m/5"] == await find(coordinator, b"m/5")

        # Nothing happens below the prefix any more, and still it becomes known that it is up to date.
        elsewhere = await put(coordinator, b"elsewhere")
        await asyncio.wait_for(mirror.wait_revision(elsewhere), WITHIN_S)
        assert mirror.staleness_s < WITHIN_S and mirror.lists == 1


async def test_a_mirror_that_was_away_across_a_compaction_lists_again_and_tells_the_difference(
    coordinated: Coordinated,
) -> None:
    coordinator = coordinated.coordinator
    for number in range(4):
        await put(coordinator, b"m/%d" % number, b"old")
    heard: list[Event] = []
    mirror = Mirror(coordinator, b"m/", told=heard.extend)
    async with running(mirror):
        await asyncio.wait_for(mirror.wait_filled(), WITHIN_S)
    heard.clear()
    await put(coordinator, b"m/1", b"new")
    gone = (await coordinator.transact(Transaction(then=(Delete(b"m/2"),)))).revision
    coordinated.compact(gone)
    following = asyncio.create_task(mirror._keep())  # goes on from what it has
    await asyncio.wait((following,), timeout=WITHIN_S)
    assert following.exception() is not None and heard == []
    async with running(mirror):

        async def is_up_to_date() -> bool:
            return mirror.revision >= gone

        await eventually(is_up_to_date)
    assert mirror.lists == 2
    assert {(event.key, event.record is None) for event in heard} == {(b"m/1", False), (b"m/2", True)}
    assert sorted(mirror.records) == [b"m/0", b"m/1", b"m/3"]


async def test_a_mirror_of_more_records_than_it_holds_says_so(coordinator: Coordinator) -> None:
    await coordinator.transact(Transaction(then=tuple(Put(b"m/%d" % number, b"") for number in range(5))))
    mirror = Mirror(coordinator, b"m/", records_max=4)
    with pytest.raises(Overloaded, match="5 records begin with b'm/', a mirror holds 4"):
        await asyncio.wait_for(mirror.run(), WITHIN_S)
