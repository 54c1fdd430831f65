import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from backend_store.core.log.chunk import KIND_JSON, Columns, column_blocks
from backend_store.core.partitions.slots import UNKEYED, slot_of
from backend_store.hosts.door import DOOR_FINISH_SECONDS_MAX, Door, DoorGuest
from backend_store.model import Published, PushqError, Unavailable
from backend_store.service.serving import Link
from backend_store.wire.store_frames import DOOR, STORE_VERSION, Greeting, Placed, Publish, Publishes, sent_blocks
from tests.support.lanes import TENANT, WAIT_S, Lanes, columns, make, places, publish
from tests.support.patience import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def lanes() -> AsyncIterator[Lanes]:
    async with Lanes() as world:
        yield world


async def placed(lanes: Lanes, host: str, *slots: int, uid: int = 1, name: str = "q") -> Placed | PushqError:
    """What the host's door answers to a call with a message of each slot."""
    done: asyncio.Future[Placed | PushqError] = asyncio.get_running_loop().create_future()
    columns = Columns(KIND_JSON, [b"1"] * len(slots), slots=list(slots))
    call = Publish(1, 2000, TENANT, name, uid, sent_blocks(column_blocks(columns).blocks))
    lanes.hosts[host].door.publish(call, done.set_result)
    return await asyncio.wait_for(done, 30)


async def test_a_call_for_two_lanes_is_refused(lanes: Lanes) -> None:
    await make(await lanes.store())
    refused = await placed(lanes, "h0", 0, 1)
    assert isinstance(refused, PushqError)
    assert refused.code == "invalid-request"
    assert isinstance(await placed(lanes, "h0", 1, 4), Placed)  # both are at home in lane 1


async def test_a_call_with_messages_of_a_slot_and_without_is_refused(lanes: Lanes) -> None:
    await make(await lanes.store())
    answer = await placed(lanes, "h0", 1, UNKEYED)
    assert isinstance(answer, PushqError)
    assert answer.code == "invalid-request"


async def test_a_queue_that_its_lane_does_not_know_is_not_found_and_nothing_is_written(lanes: Lanes) -> None:
    answer = await placed(lanes, "h3", 1, name="nothing")
    assert isinstance(answer, PushqError)
    assert answer.code == "queue-not-found"


async def test_a_host_that_cannot_commit_passes_on_what_any_lane_may_take(lanes: Lanes) -> None:
    await make(await lanes.store())
    lanes.nodes[0].not_durable = lambda: "1 of at least 2 replicas are in sync"
    found = [await placed(lanes, "h0", UNKEYED) for _ in range(6)]
    assert {one.partition for one in found if isinstance(one, Placed)} == {1, 2}
    assert all(isinstance(one, Placed) for one in found)
    keyed = await placed(lanes, "h0", 0)
    assert isinstance(keyed, PushqError)
    assert keyed.code == "unavailable"


@pytest.mark.parametrize("door", ["h0", "h1", "h3"])
async def test_what_comes_while_a_lane_changes_its_owner_waits_for_the_next_one(lanes: Lanes, door: str) -> None:
    await make(await lanes.store())
    lanes.own(1, None)
    calls = [asyncio.create_task(placed(lanes, door, 1)) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert not any(call.done() for call in calls)
    lanes.own(1, "h2")
    found = [await call for call in calls]
    assert [(one.partition, one.base) for one in found if isinstance(one, Placed)] == [(1, 0), (1, 1), (1, 2)]


async def test_what_comes_while_a_host_hands_its_lane_over_waits_for_the_next_one(lanes: Lanes) -> None:
    await make(await lanes.store())
    lanes.hosts["h1"].services[1].is_leaving = True
    call = asyncio.create_task(placed(lanes, "h1", 1))
    await asyncio.sleep(0.05)
    assert not call.done()
    lanes.own(1, "h2")
    assert isinstance(await call, Placed)


async def test_a_host_that_ends_answers_what_was_brought_and_sends_gateways_to_another_door(lanes: Lanes) -> None:
    store = await lanes.store("h0", "h1")
    queue = await make(store)
    lanes.own(2, None)
    held = [asyncio.create_task(publish(queue, b"1", ids=[bytes([n])])) for n in range(8)]
    await asyncio.sleep(0.05)
    assert not all(call.done() for call in held), "some belong into the lane that nobody owns"
    ending = asyncio.create_task(lanes.hosts["h0"].door.finish())
    await asyncio.sleep(0.05)
    assert not ending.done(), "what waits at this door has no answer yet"
    later = [asyncio.create_task(publish(queue, b"2")) for _ in range(4)]
    lanes.own(2, "h3")
    assert all(isinstance(one, Published) for one in await asyncio.gather(*held, *later))
    await asyncio.wait_for(ending, WAIT_S)
    await lanes.hosts["h0"].close()
    assert all([isinstance(await publish(queue, b"3"), Published) for _ in range(4)])


@pytest.mark.parametrize("served", [False, True])
async def test_what_a_host_cannot_pass_on_goes_to_another_door_in_its_order(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch, *, served: bool
) -> None:
    """Where its own lane was led from elsewhere while it served, it waits less long for that."""
    monkeypatch.setattr("backend_store.hosts.door.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("backend_store.hosts.door.OUT_OF_REACH_SECONDS", 10 * PATIENCE_S if served else 0.5)
    monkeypatch.setattr("backend_store.hosts.door.SHUT_OUT_SECONDS", 0.5 if served else 10 * PATIENCE_S)
    queue = await make(await lanes.store("h0", "h1", "h2"))
    if not served:
        lanes.own(1, "h2")
    watching = asyncio.create_task(lanes.hosts["h1"].door.watch())
    await eventually(lambda: lanes.hosts["h1"].door.has_led is served)
    lanes.own(1, "h2")
    lanes.hosts["h1"].is_cut_off = True
    key = next(f"k{n}" for n in range(100) if slot_of(f"k{n}") % 3 == 1)
    done: list[Published | PushqError] = []
    for n in range(5):
        queue.publish(list(queue.blocks(columns([b"%d" % n], keys=[key]), None).blocks), done.append)
    await eventually(lambda: len(done) == 5)
    found = places(*done)
    assert {lane for lane, _ in found} == {1} and found == sorted(found)
    assert isinstance(await publish(queue, b"a", keys=[key]), Published)
    lanes.hosts["h1"].is_cut_off = False
    await eventually(lambda: not lanes.hosts["h1"].door.is_leaving)
    assert isinstance(await placed(lanes, "h1", 1), Placed)
    watching.cancel()


async def test_a_door_of_a_cluster_that_is_not_founded_refuses(lanes: Lanes) -> None:
    await make(await lanes.store())
    lanes.is_founded = False
    answer = await placed(lanes, "h0", UNKEYED)
    assert isinstance(answer, PushqError)
    assert answer.code == "unavailable"
    assert answer.retry_after_ms is not None


class Connection:
    """A gateway's, of which nothing is read."""

    has_left = is_cut = False

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def abort(self) -> None:
        self.is_cut = True

    def leave(self) -> None:
        self.has_left = True


def unfounded() -> Door:
    """One that has no lanes yet, and refuses what is brought."""
    return Door("h0", lambda: None, dict, {}, lambda lane, owner: pytest.fail("nobody is asked"), lanes=1)


def arrived(door: Door) -> tuple[DoorGuest, Connection]:
    link = Connection()
    guest, _ = door.arrive(Greeting(STORE_VERSION, "gateway", DOOR, [], 0), cast(Link, link))
    return guest, link


async def test_a_gateway_that_goes_with_an_answer_on_its_way_is_not_waited_for() -> None:
    door = unfounded()
    guest, link = arrived(door)
    finishing = asyncio.create_task(door.finish())
    for _ in range(5):
        await asyncio.sleep(0)
    guest.heard(Publishes([Publish(1, 2000, TENANT, "q", 1, [])]))
    door.depart("gateway", cast(Link, link))
    await asyncio.wait_for(finishing, DOOR_FINISH_SECONDS_MAX / 2)


async def test_a_gateway_whose_answers_cannot_be_written_loses_its_connection() -> None:
    """It waited for all of them, and for those that came later, until their time was over."""
    door = unfounded()
    guest, link = arrived(door)
    wrong = PushqError("a fault of ours", retry_after_ms=1 << 70)
    answer = {1: wrong, 2: Unavailable("later")}
    door.publish = lambda call, told: told(answer[call.number])  # type: ignore[method-assign]
    for number in answer:
        guest.heard(Publishes([Publish(number, 2000, TENANT, "q", 1, [])]))
        for _ in range(3):
            await asyncio.sleep(0)
    assert link.is_cut and len(link.sent) == 1, "what came later is answered, if it still can be"


async def test_a_gateway_that_came_back_is_not_waited_for_at_its_former_connection() -> None:
    door = unfounded()
    former, _ = arrived(door)
    former.heard(Publishes([]))
    finishing = asyncio.create_task(door.finish())
    for _ in range(5):
        await asyncio.sleep(0)
    arrived(door)
    await asyncio.wait_for(finishing, DOOR_FINISH_SECONDS_MAX / 2)


async def test_a_look_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways would stay at a host that is cut off later."""
    monkeypatch.setattr("backend_store.hosts.door.LOOK_SECONDS", 0.001)
    looks: list[bool] = []

    def table() -> None:
        looks.append(True)
        assert len(looks) > 1, "a fault of ours"

    door = Door("h0", table, dict, {}, lambda lane, owner: pytest.fail("nobody is asked"), lanes=1)
    watching = asyncio.create_task(door.watch())
    await eventually(lambda: len(looks) > 1, beside=[watching])
    watching.cancel()
