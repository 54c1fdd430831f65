import asyncio
from collections.abc import AsyncIterator

import pytest

from backend_store.core.chunk import KIND_JSON, Columns, column_blocks
from backend_store.core.slots import UNKEYED
from backend_store.model import PushqError
from backend_store.wire.store_frames import Placed, Publish, sent_blocks
from tests.support.lanes import TENANT, Lanes, make

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


async def test_a_door_of_a_cluster_that_is_not_founded_refuses(lanes: Lanes) -> None:
    await make(await lanes.store())
    lanes.is_founded = False
    answer = await placed(lanes, "h0", UNKEYED)
    assert isinstance(answer, PushqError)
    assert answer.code == "unavailable"
    assert answer.retry_after_ms is not None
