"""Queues that move between clusters while they are in use: nodes of this process, over loopback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from backend_store.client.dead_letters import LetterFilter
from backend_store.client.filters import PeekFilter
from backend_store.core.log.chunk import KIND_JSON, Columns
from backend_store.model import (
    Claim,
    ClusterAway,
    Conflict,
    InvalidRequest,
    NotFound,
    Original,
    Published,
    PushqError,
    QueueDefinition,
    QueueFull,
)
from backend_store.remote import store as stores
from backend_store.remote.cluster import ClusterAt
from backend_store.remote.definitions import adopted, moves
from backend_store.remote.definitions.directory import FixedDirectory
from backend_store.remote.queues.laned import LanedQueue
from backend_store.remote.queues.placed import PlacedQueue
from backend_store.remote.store import RemoteBackends
from backend_store.service import relocating
from backend_store.service.defining import DropQueues
from backend_store.service.serving import StoreServer
from tests.support.lanes import Lanes, Taker
from tests.support.patience import PATIENCE_S, eventually
from tests.unit.backend_store.remote.test_clusters import TENANT, Shards, World, make

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as opened:
        made = World(opened)
        await made.open()
        yield made


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are forgotten when nothing is left there."""
    monkeypatch.setattr(moves, "MOVE_FORGET_MS", -1_000_000_000)
    monkeypatch.setattr(moves, "MOVE_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(adopted, "DROP_AFTER_SECONDS", 0.05)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for a cluster that is not there."""
    monkeypatch.setattr(stores, "OTHERS_SECONDS_MAX", 0.1)


async def publish(
    queue: PlacedQueue, *bodies: bytes, ids: list[bytes] | None = None, key: str | None = None, claim: str | None = None
) -> Published | PushqError:
    return await asyncio.wait_for(begin(queue, *bodies, ids=ids, key=key, claim=claim), PATIENCE_S)


def begin(
    queue: PlacedQueue, *bodies: bytes, ids: list[bytes] | None = None, key: str | None = None, claim: str | None = None
) -> asyncio.Future[Published | PushqError]:
    done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
    hashes = [one.ljust(16, b"\0") for one in ids] if ids else None
    columns = Columns(KIND_JSON, list(bodies), {"key": [key] * len(bodies)} if key else {}, hashes=hashes)
    claimed = Claim(claim.encode().ljust(16, b"k"), b"".join(bodies)[:16].ljust(16, b"p")) if claim else None
    queue.publish(list(queue.blocks(columns, None).blocks), done.set_result, claimed)
    return done


async def moved(store: RemoteBackends, name: str, to: str) -> PlacedQueue:
    """Returns when publishes go there."""
    move = await store.moves.begin(TENANT, name, to)
    assert (move.queue, move.to, move.state) == (name, to, "sealing")
    await eventually(lambda: definition(store, name).cluster == store_key(store, to), "it has arrived")
    return placed(store, name)


def store_key(store: RemoteBackends, cluster: str) -> str:
    return next(one.key for one in store.clusters.values() if one.name == cluster)


def definition(store: RemoteBackends, name: str) -> QueueDefinition:
    return store.metadata.find(TENANT, name)


def placed(store: RemoteBackends, name: str) -> PlacedQueue:
    queue = store.queue(TENANT, name)
    assert isinstance(queue, PlacedQueue)
    return queue


async def settle(queue: PlacedQueue, receipts: list[str]) -> list[bool]:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    queue.settle(receipts, done.set_result)
    return [verdict.ok for verdict in await asyncio.wait_for(done, PATIENCE_S)]


def placed_at(answer: Published | PushqError) -> int:
    assert isinstance(answer, Published), answer
    return answer.base


async def test_a_queue_moves_with_consumers_and_receipts_and_loses_nothing(world: World) -> None:
    store = await world.ready()
    queue = await make(store, "q")
    assert isinstance(queue, PlacedQueue)
    before = placed_at(await publish(queue, b"1", b"2", b"3"))
    taker = Taker(queue, 2)  # type: ignore[arg-type]
    await eventually(lambda: len(taker.bodies) == 2)
    held = taker.receipts

    assert await moved(store, "q", "eu") is queue
    after = placed_at(await publish(queue, b"4"))
    assert after > before + 2**32 - 10, "numbers go on above all of the old place"
    assert await settle(queue, held) == [True, True], "receipts of before the move hold"
    taker.leases.clear()
    taker.credit = 10
    queue.wanted_changed()
    await eventually(lambda: sorted(taker.bodies) == [b"1", b"2", b"3", b"4"])
    assert await settle(queue, taker.receipts) == [True, True]
    stats = await looked(store, queue)
    assert (stats.ready, stats.in_flight, stats.published_total) == (0, 0, 4)


async def test_what_is_left_in_a_cluster_is_served_once_its_address_leads_there(world: World) -> None:
    """Until then a gateway came to other backends there, and what lay in the cluster was out of its reach."""
    store = await world.ready()
    await make(store, "near")
    queue = await make(store, "q")
    assert isinstance(queue, PlacedQueue) and queue.definition.cluster == "eu"
    placed_at(await publish(queue, b"1"))
    await moved(store, "q", "main")
    async with AsyncExitStack() as opened:
        other = Shards("other")
        await other.open()
        opened.push_async_callback(other.close)
        mistaken = await world.gateway(others=[other.at._replace(name="eu")])
        cluster = mistaken.clusters["eu"]
        await eventually(lambda: bool(cluster.why_not))
        taker = Taker(placed(mistaken, "q"), 1)  # type: ignore[arg-type]
        await other.go()
        mended = StoreServer(world.eu.services)
        await mended.listen(*other.at.addresses[0], None)
        opened.push_async_callback(mended.close)
        await eventually(lambda: cluster.is_ready)
        await eventually(lambda: taker.bodies == [b"1"])
        await mistaken.close()


async def looked(store: RemoteBackends, queue: PlacedQueue) -> Any:
    while True:
        try:
            return queue.stats()
        except PushqError as error:
            await error.flight.landed()  # type: ignore[attr-defined]


async def test_what_is_published_meanwhile_arrives_in_order_and_once(world: World) -> None:
    store = await world.ready()
    queue = await make(store, "q", ordering="strict")
    assert isinstance(queue, PlacedQueue)
    answers: list[asyncio.Future[Published | PushqError]] = []

    async def produce() -> None:
        for number in range(150):
            answers.append(begin(queue, b"%d" % number, key="k"))
            if number % 10 == 0:
                await asyncio.sleep(0.003)

    producing = asyncio.ensure_future(produce())
    await asyncio.sleep(0.01)
    await store.moves.begin(TENANT, "q", "eu")
    await producing
    places = [placed_at(one) for one in await asyncio.wait_for(asyncio.gather(*answers), PATIENCE_S)]
    assert places == sorted(set(places)), "each lies behind the one before it"
    assert places[0] < 2**32 < places[-1], "some before the move and some after it"
    found: list[bytes] = []
    taker = Taker(queue, 1)  # type: ignore[arg-type]
    while len(found) < 150:
        await eventually(lambda: bool(taker.leases))
        found.append(taker.bodies.pop())
        assert await settle(queue, taker.receipts) == [True]
        taker.leases.clear()
        taker.credit = 1
        queue.wanted_changed()
    assert found == [b"%d" % number for number in range(150)]


async def test_ids_and_claims_of_before_the_move_are_known_after_it(world: World) -> None:
    store = await world.ready()
    queue = await make(store, "q", dedupe="id")
    assert isinstance(queue, PlacedQueue)
    first = await publish(queue, b"a", b"b", ids=[b"A", b"B"])
    claimed = await publish(queue, b"x", claim="key")
    assert isinstance(first, Published) and isinstance(claimed, Published)
    await moved(store, "q", "eu")

    again = await publish(queue, b"a", b"c", b"b", ids=[b"A", b"C", b"B"])
    assert isinstance(again, Published) and again.others is not None
    assert again.others == {0: Original(first.base, 0), 2: Original(first.base + 1, 0)}
    whole = await publish(queue, b"b", b"a", ids=[b"B", b"A"])
    assert isinstance(whole, Published) and whole.others == {0: Original(first.base + 1, 0), 1: Original(first.base, 0)}
    repeated = await publish(queue, b"x", claim="key")
    assert isinstance(repeated, Published) and repeated.is_repeat and repeated.base == claimed.base
    mismatch = await publish(queue, b"y", claim="key")
    assert isinstance(mismatch, PushqError) and mismatch.code == "idempotency-mismatch"
    new = await publish(queue, b"c", ids=[b"C"])
    assert again.places is not None
    assert isinstance(new, Published) and new.others == {0: Original(again.places[1][1])}
    taker = Taker(queue, 10)  # type: ignore[arg-type]
    await eventually(lambda: sorted(taker.bodies) == [b"a", b"b", b"c", b"x"])


async def test_a_place_with_nothing_left_is_forgotten_and_the_queue_may_go_back(world: World, forgetful: None) -> None:
    store = await world.ready()
    queue = await make(store, "q")
    assert isinstance(queue, PlacedQueue)
    placed_at(await publish(queue, b"1"))
    await moved(store, "q", "eu")
    await eventually(lambda: [one.left for one in store.moves.under_way()] == [1])
    with pytest.raises(Conflict, match="came from that cluster and still has messages there;"):
        await store.moves.begin(TENANT, "q", "main")
    taker = Taker(queue, 1)  # type: ignore[arg-type]
    await eventually(lambda: taker.bodies == [b"1"])
    assert await settle(queue, taker.receipts) == [True]
    await eventually(lambda: not definition(store, "q").former, "the old place is forgotten")
    await eventually(lambda: store.moves.under_way() == [])
    await eventually(lambda: "q" not in world.home.queues)
    assert len(queue.pieces) == 1 and world.eu.queues == ["q"]

    placed_at(await publish(queue, b"2"))
    await moved(store, "q", "main")
    placed_at(await publish(queue, b"3"))
    taker.credit, taker.leases = 2, []
    queue.wanted_changed()
    await eventually(lambda: sorted(taker.bodies) == [b"1", b"2", b"3"])
    assert await settle(queue, taker.receipts) == [True, True]
    await eventually(lambda: world.eu.queues == [] and world.home.queues == ["q"], "and there it is forgotten, too")


async def in_cluster(store: RemoteBackends, key: str, **settings: Any) -> PlacedQueue:
    """A queue that lies there."""
    made = [await make(store, f"q{number}", **settings) for number in range(4)]
    return next(one for one in made if isinstance(one, PlacedQueue) and one.definition.cluster == key)


async def drained(queue: PlacedQueue, *bodies: bytes) -> None:
    """These are delivered and acked."""
    taker = Taker(queue, len(bodies))  # type: ignore[arg-type]
    await eventually(lambda: sorted(taker.bodies) == sorted(bodies))
    assert all(await settle(queue, taker.receipts))


async def test_a_gateway_whose_clock_is_ahead_forgets_no_place_whose_ids_may_come_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await world.ready()
    queue = await make(store, "q", dedupe="id")
    assert isinstance(queue, PlacedQueue)
    placed_at(await publish(queue, b"1", ids=[b"one"]))
    taker = Taker(queue, 1)  # type: ignore[arg-type]
    await eventually(lambda: taker.bodies == [b"1"])
    assert await settle(queue, taker.receipts) == [True]
    await moved(store, "q", "eu")
    said = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: said + 365 * 86_400_000_000_000)
    await eventually(lambda: all(former.is_settled for former in definition(store, "q").former), "nothing is left")
    await store.moves._step(definition(store, "q"))
    assert definition(store, "q").former
    again = await publish(queue, b"1", ids=[b"one"])
    assert isinstance(again, Published) and isinstance((again.others or {}).get(0), Original), again


async def test_a_companion_in_use_does_not_become_a_queue_of_its_own(world: World, forgetful: None) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "", dedupe="id")
    assert isinstance(store.queue(TENANT, f"{queue.name}.dead"), PlacedQueue)
    await moved(store, queue.name, "eu")
    placed_at(await publish(queue, b"1", ids=[b"1"]))
    await asyncio.wait_for(store.queue(TENANT, f"{queue.name}.dead").peek(PeekFilter()), PATIENCE_S)
    await eventually(lambda: queue.name in world.eu.queues)
    assert not [name for name in (*world.eu.queues, *world.home.queues) if name.endswith(".dead")]


async def test_a_queue_that_is_back_before_its_old_rows_went_begins_above_its_floor(
    world: World, forgetful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adopted, "DROP_AFTER_SECONDS", 60)
    store = await world.ready()
    queue = await in_cluster(store, "eu")
    placed_at(await publish(queue, b"1"))
    await drained(queue, b"1")
    await moved(store, queue.name, "main")
    await eventually(lambda: not definition(store, queue.name).former)
    assert queue.name in world.eu.queues, "it is dropped later"
    await moved(store, queue.name, "eu")
    assert placed_at(await publish(queue, b"2")) >= definition(store, queue.name).floor > 2**33


async def test_the_home_cluster_clears_what_a_crash_left_before_a_queue_comes_back(
    world: World, forgetful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await world.ready()
    world.home.first.metadata.elsewhere.shards = 1
    queue = await in_cluster(store, "")

    async def crash(*_: Any) -> None: ...

    with monkeypatch.context() as patched:
        patched.setattr(relocating, "drop_left", crash)
        placed_at(await publish(queue, b"1"))
        await moved(store, queue.name, "eu")
        await drained(queue, b"1")
        await eventually(lambda: not definition(store, queue.name).former)
    assert queue.name in [one.name for one in world.home.first.metadata.queues.values()]
    await moved(store, queue.name, "main")
    assert placed_at(await publish(queue, b"2")) >= definition(store, queue.name).floor > 2**33
    await drained(queue, b"2")


async def test_a_late_drop_does_not_touch_a_queue_that_came_back(world: World, forgetful: None) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "eu", dedupe="id")
    await moved(store, queue.name, "main")
    await eventually(lambda: not definition(store, queue.name).former)
    late = definition(store, queue.name).version
    await eventually(lambda: queue.name not in world.eu.queues)
    await moved(store, queue.name, "eu")
    first = placed_at(await publish(queue, b"1", ids=[b"1"]))
    await drained(queue, b"1")
    await queue.home.ask(DropQueues([], store.definer, ((queue.uid, late),)))
    again = await publish(queue, b"1", ids=[b"1"])
    assert isinstance(again, Published) and again.others == {0: Original(first)}


@pytest.mark.parametrize("partitions", [1, 2])
async def test_an_idempotency_key_of_several_messages_is_known_after_a_move(world: World, partitions: int) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "", partitions=partitions)
    bodies, ids = [b"x", b"y", b"z"], [b"i1", b"i2", b"i3"]
    placed_at(await publish(queue, *bodies, ids=ids, claim="key"))
    await moved(store, queue.name, "eu")
    again = await publish(queue, *bodies, ids=ids, claim="key")
    assert isinstance(again, Published) and (again.is_repeat or set(again.others or {}) == {0, 1, 2}), again
    placed_at(await publish(queue, b"other", ids=[b"i4"], claim="other"))
    taker = Taker(queue, 10)  # type: ignore[arg-type]
    await eventually(lambda: sorted(taker.bodies) == [b"other", *bodies])


async def test_a_gateway_that_does_not_know_the_new_cluster_refuses_that_queue_and_serves_the_others(
    world: World, forgetful: None
) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "")
    other = next(one for one in store.all_definitions() if one.cluster == "" and one.name != queue.name).name
    nowhere = ClusterAt("asia", FixedDirectory([("127.0.0.1", 1)]), [("127.0.0.1", 1)])
    lone = await world.gateway(others=[nowhere])
    there = placed(lone, queue.name)
    await moved(store, queue.name, "eu")
    await eventually(lambda: not definition(lone, queue.name).former)
    refused = await publish(there, b"1")
    assert isinstance(refused, ClusterAway), refused
    with pytest.raises(ClusterAway):
        there.check_there()
    placed_at(await publish(placed(lone, other), b"1"))
    assert lone.first.line.is_open


async def test_a_move_of_a_deleted_queue_ends_at_gateways_that_never_used_it(world: World) -> None:
    store, other = await world.ready(), await world.ready()
    queue = await make(store, "q")
    await moved(store, "q", "eu" if queue.definition.cluster == "" else "main")
    await eventually(lambda: len(other.moves.under_way()) == 1)
    await store.delete_queue(TENANT, "q")
    await eventually(lambda: other.moves.under_way() == [])
    await eventually(lambda: world.home.queues == [] and world.eu.queues == [])


async def test_peeks_go_through_all_places_and_partitions_once(world: World) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "", partitions=3)
    bodies = [b"%d" % number for number in range(24)]
    for number, body in enumerate(bodies):
        if number == 12:
            await moved(store, queue.name, "eu")
        placed_at(await publish(queue, body, key=f"k{number}"))
    for limit in (1, 2, 5, 100):
        seen: list[Any] = []
        cursor = None
        while len(seen) < 100:
            page = await queue.peek(PeekFilter(limit=limit, cursor=cursor))
            seen += [int(bytes(item.message["body"])) for item in page.items]
            if (cursor := page.next) is None:
                break
        assert sorted(seen) == list(range(24)), limit
    with pytest.raises(InvalidRequest, match="cursor"):
        await queue.peek(PeekFilter(cursor="~x~"))


async def test_a_queue_on_its_way_is_not_linked_to(world: World) -> None:
    store = await world.ready()
    queue, plain = await in_cluster(store, ""), await in_cluster(store, "eu")
    await moved(store, queue.name, "eu")
    await eventually(lambda: definition(store, queue.name).former[0].is_settled, "its version stays as it is")
    with pytest.raises(Conflict, match="is moving"):
        await make(store, "new", dead_letter_queue=queue.name)
    for one, other in ((plain, queue), (queue, plain)):
        config = msgspec.structs.replace(one.config, dead_letter_queue=other.name)
        with pytest.raises(Conflict, match="is moving"):
            await store.update_queue(TENANT, one.name, config, one.definition.version)
    with pytest.raises(Conflict, match="is moving"):
        await store.move_queue(TENANT, plain.name, queue.name)


async def test_a_former_place_that_is_away_is_told_of_and_not_left_out(world: World) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "eu")
    placed_at(await publish(queue, b"1"))
    taker = Taker(queue, 1)  # type: ignore[arg-type]
    await eventually(lambda: taker.bodies == [b"1"])
    held = taker.receipts
    await moved(store, queue.name, "main")
    await world.eu.go()
    late = await world.gateway()
    there = placed(late, queue.name)
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    there.settle(held, done.set_result)
    assert isinstance(await done, ClusterAway)
    with pytest.raises(ClusterAway):
        await there.purge("p")
    with pytest.raises(ClusterAway):
        there.stats()
    placed_at(await publish(there, b"2"))
    await world.eu.come()

    async def is_acked() -> bool:
        acked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        there.settle(held, acked.set_result)
        found = await acked
        return isinstance(found, list) and found[0].ok

    await eventually(is_acked, "its cluster is back")


async def test_a_move_is_given_up_and_publishes_go_on_where_they_went(world: World, monkeypatch: Any) -> None:
    store = await world.ready()
    queue, strict = await make(store, "q"), await make(store, "s", ordering="strict")
    assert isinstance(queue, PlacedQueue)

    async def never(*_: Any) -> None: ...

    monkeypatch.setattr(moves.Moves, "_arrive", never)
    await store.moves.begin(TENANT, "q", "eu")
    await eventually(lambda: definition(store, "q").moving_to is not None)
    if not queue.home.is_first:
        await queue.home.adopted.tell([definition(store, "q")])
    waits = begin(queue, b"1")
    await asyncio.sleep(0.2)
    assert not waits.done(), "it is refused, and waits for where to go"
    await store.moves.give_up(TENANT, "q")
    assert placed_at(await asyncio.wait_for(waits, PATIENCE_S)) < 2**32
    assert definition(store, "q").cluster == ""
    with pytest.raises(Conflict, match="is not moving"):
        await store.moves.give_up(TENANT, "q")
    await store.moves.begin(TENANT, "s", "eu" if strict.definition.cluster == "" else "main")
    with pytest.raises(Conflict, match="strict order"):
        await store.moves.give_up(TENANT, "s")


async def test_what_cannot_move_is_told_why(world: World) -> None:
    store = await world.ready()
    await make(store, "dead")
    await make(store, "named", dead_letter_queue="dead")
    await make(store, "sorted", sequencing="producer")
    for name, why in (("dead", "names 'dead'"), ("named", "names 'dead'"), ("sorted", "sorts")):
        to = "eu" if definition(store, name).cluster == "" else "main"
        with pytest.raises(InvalidRequest, match=why):
            await store.moves.begin(TENANT, name, to)
    with pytest.raises(NotFound, match="the clusters are eu, main"):
        await store.moves.begin(TENANT, "dead", "us")
    here = next(one.name for one in store.clusters.values() if one.key == definition(store, "dead").cluster)
    with pytest.raises(Conflict, match="is already there"):
        await store.moves.begin(TENANT, "dead", here)


async def test_dead_letters_stay_and_are_redriven_where_they_died(world: World, forgetful: None) -> None:
    store = await world.ready()
    queue = await make(store, "q", max_attempts=1)
    assert isinstance(queue, PlacedQueue)
    placed_at(await publish(queue, b"1"))
    taker = Taker(queue, 1)  # type: ignore[arg-type]
    await eventually(lambda: taker.bodies == [b"1"])
    nacked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    queue.give_back(taker.receipts, 0, nacked.set_result)
    await asyncio.wait_for(nacked, PATIENCE_S)
    await moved(store, "q", "eu")
    await eventually(lambda: [one.left for one in store.moves.under_way()] == [1])
    letters = queue.dead_letters(LetterFilter(), None, own=True)
    assert (await queue.count_letters(letters)).total() == 1
    job = await queue.begin_redrive("job", letters, total=1, rate_per_s=None, find=lambda name: placed(store, name))
    taker.credit, taker.leases = 1, []
    queue.wanted_changed()
    await eventually(lambda: taker.bodies == [b"1", b"1"])
    assert job.total == 1
    assert await settle(queue, taker.receipts) == [True]
    await eventually(lambda: not definition(store, "q").former)


@pytest.mark.parametrize(
    "settings", [{}, {"max_messages": 100}, {"partitions": 3}], ids=["lanes", "one lane", "partitions of one lane"]
)
async def test_a_queue_moves_to_independent_hosts_and_back(
    world: World, forgetful: None, settings: dict[str, Any]
) -> None:
    async with Lanes() as hosts:
        addresses = [("127.0.0.1", hosts.hosts[name].port) for name in hosts.names]
        further = ClusterAt("hosts", FixedDirectory(addresses), addresses)
        store = await world.gateway(others=[further])
        await eventually(lambda: store.clusters["hosts"].is_ready)
        made = [await make(store, f"q{number}", dedupe="id", ordering="strict", **settings) for number in range(5)]
        queue = next(one for one in made if one.definition.cluster == "")
        name = queue.name
        assert isinstance(queue, PlacedQueue)
        ids = [b"%d" % number for number in range(8)]
        for one in ids:
            placed_at(await publish(queue, one, ids=[one], key="k" + one.decode()))
        await moved(store, name, "hosts")
        assert isinstance(queue.current, LanedQueue) == (not settings)
        for one in [*ids, *(b"n" + one for one in ids)]:
            answer = await publish(queue, one, ids=[one], key="k" + one.decode()[-1])
            assert isinstance(answer, Published), answer
            assert bool(answer.others) == (one in ids), one
        taker = Taker(queue, 100)  # type: ignore[arg-type]
        await eventually(lambda: len(taker.bodies) == 8, "strict order: the old ones first")
        assert sorted(taker.bodies) == ids
        assert all(await settle(queue, taker.receipts))
        taker.leases.clear()
        await eventually(lambda: sorted(taker.bodies[8:]) == [b"n" + one for one in ids])
        has = [any(one.name == name for one in node.metadata.queues.values()) for node in hosts.nodes]
        assert has.count(True) == (1 if settings else 3)
        await eventually(lambda: not definition(store, name).former)
        await moved(store, name, "main")
        placed_at(await publish(queue, b"last", ids=[b"last"], key="k0"))
        assert all(await settle(queue, taker.receipts))
        await eventually(lambda: taker.bodies[-1] == b"last")
        await store.close()


async def test_a_queue_with_a_limit_that_it_got_later_goes_into_one_lane(world: World) -> None:
    async with Lanes() as hosts:
        addresses = [("127.0.0.1", hosts.hosts[name].port) for name in hosts.names]
        store = await world.gateway(others=[ClusterAt("hosts", FixedDirectory(addresses), addresses)])
        await eventually(lambda: store.clusters["hosts"].is_ready)
        queue = await in_cluster(store, "")
        known = definition(store, queue.name)
        limited = msgspec.structs.replace(known.config, max_messages=3)
        await store.update_queue(TENANT, queue.name, limited, known.version)
        await moved(store, queue.name, "hosts")
        for number in range(3):
            placed_at(await publish(queue, b"%d" % number, key=f"k{number}"))
        assert isinstance(await publish(queue, b"3", key="k3"), QueueFull)
        await store.close()


@pytest.mark.parametrize("is_late", [False, True], ids=["in time", "too late"])
async def test_what_was_taken_of_a_call_that_is_refused_in_part_is_not_stored_again(
    world: World, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """Lanes close one after the other. Where the rest does not arrive in time, that is said of the rest alone."""
    async with Lanes() as hosts:
        addresses = [("127.0.0.1", hosts.hosts[name].port) for name in hosts.names]
        further = ClusterAt("hosts", FixedDirectory(addresses), addresses)
        store = await world.gateway(others=[further])
        await eventually(lambda: store.clusters["hosts"].is_ready)
        queue = await in_cluster(store, "hosts")
        keys = [f"k{number}" for number in range(9)]
        columns = Columns(KIND_JSON, [key.encode() for key in keys], {"key": keys})

        def call(until_ms: int = 0) -> asyncio.Future[Published | PushqError]:
            done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
            made = queue.blocks(columns, None)
            orders.append(made.order)
            queue.publish(list(made.blocks), done.set_result, until_ms=until_ms)
            return done

        orders: list[Any] = []
        before = await asyncio.wait_for(call(), PATIENCE_S)
        assert isinstance(before, Published) and before.others is None
        with monkeypatch.context() as patched:

            async def never(*_: Any) -> None: ...

            patched.setattr(moves.Moves, "_arrive", never)
            for home in store.clusters["hosts"].homes:
                patched.setattr(home.adopted, "defined_elsewhere", lambda changed, gone: None)
            await store.moves.begin(TENANT, queue.name, "main")
            await eventually(lambda: definition(store, queue.name).moving_to is not None)
            await store.clusters["hosts"].homes[0].adopted.tell([definition(store, queue.name)])
            half = call(store.own_ms() + 300 if is_late else 0)
            await eventually(lambda: queue.publishes_waiting > 0)
            if is_late:
                await asyncio.wait_for(asyncio.shield(half), PATIENCE_S)
        answer = await asyncio.wait_for(half, PATIENCE_S)
        assert isinstance(answer, Published) and answer.places is not None
        if is_late:
            assert answer.others is not None and 0 < len(answer.others) < 9
            assert all(isinstance(one, PushqError) for one in answer.others.values())
        else:
            assert answer.others is None, "none of them repeats another one"
            assert len({place[1] >= 2**32 for place in answer.places}) == 2
        order = orders[-1] or range(9)
        stored = [keys[number].encode() for at, number in enumerate(order) if at not in (answer.others or {})]
        taker = Taker(queue, 100)  # type: ignore[arg-type]
        await eventually(lambda: len(taker.bodies) >= 9 + len(stored))
        await asyncio.sleep(0.1)
        assert sorted(taker.bodies) == sorted([key.encode() for key in keys] + stored)
        await store.close()


@pytest.mark.parametrize("to", ["hosts", "main"])
async def test_what_hosts_cannot_have_is_refused_for_all_places_of_a_queue(
    world: World, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """Also while it only goes there, or has something left there: a lane that splits would lose acks."""
    async with Lanes() as hosts:
        addresses = [("127.0.0.1", hosts.hosts[name].port) for name in hosts.names]
        further = ClusterAt("hosts", FixedDirectory(addresses), addresses)
        store = await world.gateway(others=[further])
        await eventually(lambda: store.clusters["hosts"].is_ready)
        queue = await in_cluster(store, "" if to == "hosts" else "hosts")
        with monkeypatch.context() as patched:
            if to == "hosts":

                async def never(*_: Any) -> None: ...

                patched.setattr(moves.Moves, "_arrive", never)
                await store.moves.begin(TENANT, queue.name, to)
                await eventually(lambda: definition(store, queue.name).moving_to is not None)
            else:
                await moved(store, queue.name, to)
                await eventually(lambda: definition(store, queue.name).former[0].is_settled)
            known = definition(store, queue.name)
            config = msgspec.structs.replace(known.config, partitions=4)
            with pytest.raises(InvalidRequest, match="independent host"):
                await store.update_queue(TENANT, queue.name, config, known.version)
        await store.close()


async def test_a_call_with_a_key_over_several_partitions_is_taken_while_a_former_place_is_remembered(
    world: World,
) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "", partitions=3)
    await moved(store, queue.name, "eu")
    bodies = [b"%d" % number for number in range(9)]
    columns = Columns(
        KIND_JSON,
        bodies,
        {"key": [f"k{number}" for number in range(9)]},
        hashes=[one.ljust(16, b"i") for one in bodies],
    )
    claim = Claim(b"key".ljust(16, b"k"), b"payload".ljust(16, b"p"))
    for is_repeat in (False, True):

        async def taken(is_repeat: bool = is_repeat) -> bool:
            done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
            queue.publish(list(queue.blocks(columns, None).blocks), done.set_result, claim)
            answer = await asyncio.wait_for(done, PATIENCE_S)
            # Before it is known how the new place divides a queue, a call is to be encoded again.
            assert isinstance(answer, Published) or answer.code == "overloaded", answer
            return isinstance(answer, Published) and bool(answer.others or answer.is_repeat) == is_repeat

        await eventually(taken)
    taker = Taker(queue, 100)  # type: ignore[arg-type]
    await eventually(lambda: sorted(taker.bodies) == bodies)


async def test_what_is_refused_is_not_sent_again_and_again_while_the_home_cluster_is_not_heard(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "eu")
    late = await world.gateway()
    await eventually(lambda: late.clusters["eu"].is_ready)
    there = placed(late, queue.name)
    monkeypatch.setattr(late, "defined", lambda news, is_first: None)  # its line to the home cluster is silent
    await moved(store, queue.name, "main")
    sent = 0
    publish_there = there.current.publish

    def counted(*given: Any, **named: Any) -> None:
        nonlocal sent
        sent += 1
        publish_there(*given, **named)

    monkeypatch.setattr(there.current, "publish", counted)
    waiting = [begin(there, b"%d" % number) for number in range(20)]
    await asyncio.sleep(1.0)
    assert sent <= 20 * 4 and not any(one.done() for one in waiting)
