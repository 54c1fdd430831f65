"""Redrives of queues that are put together: of independent hosts' lanes, which change their owners meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from backend_store.client import redrive
from backend_store.client.dead_letters import LetterFilter
from backend_store.core.partitions.slots import slot_of
from backend_store.model import Conflict, InvalidRequest, OutcomeUnknown, Unavailable
from backend_store.remote.line import line
from backend_store.remote.queues.laned import LanedQueue
from backend_store.remote.redrives import redrives, whole_redrives
from backend_store.remote.redrives.redrives import RemoteRedrive, RemoteRedrives
from backend_store.remote.redrives.whole_redrives import WholeRedrive
from backend_store.remote.store import RemoteBackends
from backend_store.service.redrives import Job
from tests.support.lanes import TENANT, Lanes, Taker, make, publish, queue_at
from tests.support.patience import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

KEYS = [f"k{number}" for number in range(24)]
BODIES = sorted(key.encode() for key in KEYS)
SLOW = 1.0
"""So many a second: not done while a test looks."""


@pytest.fixture
async def lanes() -> AsyncIterator[Lanes]:
    async with Lanes() as world:
        yield world


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrives, "REDRIVE_LOOK_SECONDS", 0.02)


async def died(queue: LanedQueue, *keys: str) -> None:
    """A message for each key, which its first attempt was the last of."""
    for key in keys:
        await publish(queue, key.encode(), keys=[key])
    taker = Taker(queue, len(keys))
    await eventually(lambda: len(taker.bodies) == len(keys))
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    queue.give_back(taker.receipts, 0, done.set_result)
    assert all(verdict.ok for verdict in await asyncio.wait_for(done, PATIENCE_S))
    taker.credit = 0


async def with_letters(store: RemoteBackends, *keys: str) -> LanedQueue:
    queue = await make(store, max_attempts=1)
    await died(queue, *(keys or KEYS))
    return queue


def keys_of(lane: int) -> list[str]:
    return [key for key in KEYS if slot_of(key) % 3 == lane]


async def begin(
    queue: LanedQueue, redrive_id: str = "r", *, to: str | None = None, rate: float | None = None, **wanted: Any
) -> WholeRedrive:
    store = queue._store
    letters = queue.dead_letters(LetterFilter(**wanted), to, own=True)
    total = (await queue.count_letters(letters)).total()
    job: WholeRedrive = await queue.begin_redrive(
        redrive_id, letters, total=total, rate_per_s=rate, find=lambda name: store.here(TENANT, name)
    )
    return job


async def ended(queue: LanedQueue, redrive_id: str = "r") -> WholeRedrive:
    found: list[WholeRedrive] = []

    async def is_over() -> bool:
        job = await queue.redrives.find(redrive_id)
        assert job is not None
        found[:] = [job]
        return job.state != "running"

    await eventually(is_over)
    return found[0]


async def taken(queue: LanedQueue, count: int) -> list[bytes]:
    taker = Taker(queue, count)
    await eventually(lambda: len(taker.bodies) == count)
    return sorted(taker.bodies)


async def test_the_dead_letters_of_all_lanes_go_back_with_one_redrive(lanes: Lanes) -> None:
    queue = await with_letters(await lanes.store())
    job = await begin(queue)
    assert job.total == len(KEYS)
    over = await ended(queue)
    assert (over.state, over.done, over.total, over.error) == ("done", len(KEYS), len(KEYS), None)
    assert (job.state, job.done) == ("done", len(KEYS))
    assert await taken(queue, len(KEYS)) == BODIES


async def test_a_redrive_is_found_and_cancelled_at_another_gateway_and_the_next_one_takes_the_rest(
    lanes: Lanes,
) -> None:
    queue = await with_letters(await lanes.store())
    await begin(queue, rate=SLOW)
    other = await queue_at(await lanes.store("h2"))
    await eventually(lambda: all(home.line.is_open for home in other.homes))
    found = await other.redrives.find("r")
    assert (found.state, found.total, found.rate_per_s) == ("running", len(KEYS), pytest.approx(SLOW))
    with pytest.raises(Conflict, match="redrive r of queue 'q' is already running"):
        await begin(other, "second")
    await found.cancel()
    over = await ended(queue)
    assert over.state == "cancelled" and over.done < len(KEYS)
    await begin(other, "second")
    rest = await ended(other, "second")
    assert (rest.state, rest.done) == ("done", len(KEYS) - over.done)
    assert [(number, job.id) for number, job in await queue.redrives.list_since(0)] == [(0, "r"), (1, "second")]
    assert [job.id for _, job in await queue.redrives.list_since(1)] == ["second"]
    assert await taken(queue, len(KEYS)) == BODIES


async def test_a_redrive_goes_on_at_the_next_owner_of_a_lane_and_moves_every_message_once(lanes: Lanes) -> None:
    queue = await with_letters(await lanes.store())
    job = await begin(queue, rate=float(len(KEYS)))
    lanes.own(1, "h3")
    over = await ended(queue)
    assert (over.state, over.done, job.state) == ("done", len(KEYS), "done")
    assert await taken(queue, len(KEYS)) == BODIES


async def test_a_redrive_of_which_one_lane_is_not_known_any_more_is_not_told_done(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gateway has gone, so nobody has the lane's next owner go on: it was told done, with a smaller total."""
    monkeypatch.setattr(whole_redrives, "REDRIVE_LOST_SECONDS", 0.2)
    queue = await with_letters(await lanes.store())
    others = [await queue_at(await lanes.store("h2")), await queue_at(await lanes.store("h3"))]
    for other in others:
        await eventually(lambda other=other: all(home.line.is_open for home in other.homes))  # type: ignore[misc]
    await begin(queue, rate=float(2 * len(KEYS)))
    assert (await others[0].redrives.find("r")).state == "running"
    await lanes.stores.pop(0).close()
    lanes.own(1, "h3")
    await eventually(lambda: others[0].homes[1].line.is_open)
    found = await others[0].redrives.find("r")
    assert (found.state, found.total, len(found.jobs)) == ("running", len(KEYS), 2)
    over = await ended(others[0])
    assert (over.state, over.total) == ("failed", len(KEYS)) and over.done < len(KEYS)
    lost = f"the backend that moved {len(keys_of(1))} messages of them is no longer the leader: redrive the rest again"
    assert over.error == lost
    assert await others[1].redrives.find("r") is None, "who did not see it run cannot tell what it did"
    await begin(others[1], "rest")
    assert (await ended(others[1], "rest")).state == "done"
    assert await taken(others[1], len(KEYS)) == BODIES


async def test_of_two_redrives_that_are_begun_at_once_one_goes_on(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each found a lane where the other one ran, and none was left."""
    one = await with_letters(await lanes.store())
    other = await queue_at(await lanes.store("h2"))
    await eventually(lambda: all(home.line.is_open for home in other.homes))
    has_come, has_begun = ({"one": asyncio.Event(), "other": asyncio.Event()} for _ in range(2))
    begins = RemoteRedrives.begin

    async def crossing(self: RemoteRedrives, redrive_id: str, *args: Any, **kwargs: Any) -> Any:
        first, awaited = (0, "other") if redrive_id == "one" else (2, "one")
        has_come[redrive_id].set()
        await asyncio.wait_for(has_come[awaited].wait(), PATIENCE_S)  # neither has seen the other one run
        lane = next(n for queue in (one, other) for n, lane in enumerate(queue.lanes) if lane is self.queue)
        if lane != first:
            with suppress(TimeoutError):
                await asyncio.wait_for(has_begun[awaited].wait(), 0.1)
        job = await begins(self, redrive_id, *args, **kwargs)
        has_begun[redrive_id].set()
        return job

    monkeypatch.setattr(RemoteRedrives, "begin", crossing)
    outcomes = await asyncio.gather(
        begin(one, "one", rate=SLOW), begin(other, "other", rate=SLOW), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes].count(Conflict) == 1
    [running] = [job for job in outcomes if isinstance(job, WholeRedrive)]
    assert (running.state, running.total) == ("running", len(KEYS))
    await running.cancel()


async def test_a_lane_that_is_away_refuses_a_redrive_and_nothing_is_begun(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "ASK_MS_MAX", 200)
    queue = await with_letters(await lanes.store())
    letters = queue.dead_letters(LetterFilter(), None, own=True)
    await queue.count_letters(letters)
    lanes.own(2, None)
    await lanes.hosts["h2"].server.close()
    with pytest.raises(Unavailable):
        await queue.begin_redrive("r", letters, total=len(KEYS), rate_per_s=None, find=lambda name: queue)
    assert [await lane.redrives.find("r") for lane in queue.lanes[:2]] == [None, None]


async def test_a_redrive_that_one_lane_does_not_begin_ends_at_the_others(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await with_letters(await lanes.store())
    begins = RemoteRedrives.begin

    async def refused(self: RemoteRedrives, *args: Any, **kwargs: Any) -> Any:
        if self.queue is queue.lanes[1]:
            await eventually(lambda: queue.lanes[0].redrives.is_running)
            raise Unavailable("lane 1 has gone")
        return await begins(self, *args, **kwargs)

    monkeypatch.setattr(RemoteRedrives, "begin", refused)
    with pytest.raises(Unavailable, match="lane 1 has gone"):
        await begin(queue, rate=SLOW)
    over = await ended(queue)
    assert (over.state, over.error) == ("failed", "lane 1 has gone")


async def test_only_lanes_with_letters_that_are_wanted_have_a_job_and_without_any_it_is_done(lanes: Lanes) -> None:
    queue = await with_letters(await lanes.store(), *keys_of(1))
    await begin(queue)
    assert len((await ended(queue)).jobs) == 1
    nothing = await begin(queue, "nothing")
    assert nothing.total == 0
    assert (await ended(queue, "nothing")).state == "done"


async def test_dead_letters_go_to_another_queue_of_the_same_hosts_and_its_lanes_have_their_keys(lanes: Lanes) -> None:
    store = await lanes.store()
    queue = await with_letters(store)
    repair = await make(store, "repair")
    await begin(queue, to="repair")
    assert (await ended(queue)).state == "done"
    assert await taken(repair, len(KEYS)) == BODIES
    homes = {key: (await publish(repair, b"later", keys=[key])) for key in KEYS[:3]}
    assert {key: answer.partition for key, answer in homes.items()} == {key: slot_of(key) % 3 for key in KEYS[:3]}


async def test_letters_of_the_companion_are_those_of_its_queue(lanes: Lanes) -> None:
    queue = await with_letters(await lanes.store())
    companion = queue._store.here(TENANT, "q.dead")
    assert isinstance(companion, LanedQueue)
    letters = companion.dead_letters(LetterFilter(), None, own=True)
    assert (await companion.count_letters(letters)).total() == len(KEYS)
    await companion.begin_redrive(
        "r", letters, total=len(KEYS), rate_per_s=None, find=lambda name: queue._store.here(TENANT, name)
    )
    assert (await ended(queue)).done == len(KEYS)


async def test_what_backends_cannot_look_through_is_refused_by_name(lanes: Lanes) -> None:
    store = await lanes.store()
    queue = await make(store, encrypted=True)
    with pytest.raises(InvalidRequest, match="headers cannot be read for filtering"):
        queue.dead_letters(LetterFilter(headers={"a": "b"}), None, own=True)


async def test_the_job_of_a_queue_that_is_deleted_ends(lanes: Lanes) -> None:
    store = await lanes.store()
    queue = await with_letters(store)
    job = await begin(queue, rate=SLOW)
    await store.delete_queue(TENANT, "q")
    await eventually(lambda: job.state == "cancelled")


async def test_a_cancel_stops_what_is_reached_also_while_a_lane_is_away(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "ASK_MS_MAX", 200)
    queue = await with_letters(await lanes.store())
    await begin(queue, rate=SLOW)
    other = await queue_at(await lanes.store("h3"))
    await eventually(lambda: all(home.line.is_open for home in other.homes))
    lanes.own(2, None)
    await eventually(lambda: not other.homes[2].line.is_open)
    with pytest.raises(Unavailable):
        await other.redrives.stop("r")
    found = [await lane.redrives.find("r") for lane in other.lanes[:2]]
    assert [job and job.state for job in found] == ["cancelled", "cancelled"]


async def test_a_redrive_that_may_have_begun_at_a_lane_or_not_does_not_go_on_there(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await with_letters(await lanes.store())
    begins = RemoteRedrives.begin

    async def unheard(self: RemoteRedrives, *args: Any, **kwargs: Any) -> Any:
        job = await begins(self, *args, **kwargs)
        if self.queue is queue.lanes[1]:
            self._mine.clear()
            raise OutcomeUnknown("the connection was lost")
        return job

    monkeypatch.setattr(RemoteRedrives, "begin", unheard)
    with pytest.raises(OutcomeUnknown):
        await begin(queue, rate=SLOW)
    over = await ended(queue)
    assert [(job.state, job.error) for job in over.jobs] == [("failed", "the connection was lost")] * 2


async def test_a_redrive_that_some_lanes_have_forgotten_is_not_told_of_in_part(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (redrive, redrives, whole_redrives):
        monkeypatch.setattr(module, "REDRIVES_REMEMBERED_MAX", 2, raising=False)
    queue = await with_letters(await lanes.store())
    await begin(queue, "of all")
    await ended(queue, "of all")
    for number in range(2):
        await begin(queue, f"of lane {number}")
        await ended(queue, f"of lane {number}")
    assert await queue.redrives.find("of all") is None
    assert [job.id for _, job in await queue.redrives.list_since(0)] == ["of lane 0", "of lane 1"]


async def test_the_rate_that_is_told_is_the_one_that_was_asked_for(lanes: Lanes) -> None:
    queue = await make(await lanes.store())
    jobs = [
        RemoteRedrive(lane.redrives, Job("r", letters, 100.0 * letters / 83, 0, "running", None))
        for lane, letters in zip(queue.lanes, (34, 48, 1), strict=True)
    ]
    assert WholeRedrive(jobs).rate_per_s == 100.0
