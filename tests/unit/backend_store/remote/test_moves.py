"""Queues that move between clusters while they are in use: nodes of this process, over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from backend_store.client.dead_letters import LetterFilter
from backend_store.core.chunk import KIND_JSON, Columns
from backend_store.model import (
    Claim,
    Conflict,
    InvalidRequest,
    NotFound,
    Original,
    Published,
    PushqError,
    QueueConfig,
    QueueDefinition,
)
from backend_store.remote import moving
from backend_store.remote.cluster import ClusterAt
from backend_store.remote.directory import FixedDirectory
from backend_store.remote.laned import LanedQueue
from backend_store.remote.placed import PlacedQueue
from backend_store.remote.store import RemoteBackends
from tests.support.lanes import Lanes, Taker
from tests.support.patience import PATIENCE_S, eventually
from tests.unit.backend_store.remote.test_clusters import TENANT, World, make

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
    monkeypatch.setattr(moving, "MOVE_FORGET_MS", -1_000_000_000)
    monkeypatch.setattr(moving, "MOVE_LOOK_SECONDS", 0.05)


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
        for number in range(400):
            answers.append(begin(queue, b"%d" % number, key="k"))
            if number % 10 == 0:
                await asyncio.sleep(0.001)

    producing = asyncio.ensure_future(produce())
    await asyncio.sleep(0.01)
    await store.moves.begin(TENANT, "q", "eu")
    await producing
    places = [placed_at(one) for one in await asyncio.wait_for(asyncio.gather(*answers), PATIENCE_S)]
    assert places == sorted(set(places)), "each lies behind the one before it"
    assert places[0] < 2**32 < places[-1], "some before the move and some after it"
    found: list[bytes] = []
    taker = Taker(queue, 1)  # type: ignore[arg-type]
    while len(found) < 400:
        await eventually(lambda: bool(taker.leases))
        found.append(taker.bodies.pop())
        assert await settle(queue, taker.receipts) == [True]
        taker.leases.clear()
        taker.credit = 1
        queue.wanted_changed()
    assert found == [b"%d" % number for number in range(400)]


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
    assert isinstance(new, Published) and new.others == {0: Original(again.bases[0] + 1 if again.bases else -1)}
    taker = Taker(queue, 10)  # type: ignore[arg-type]
    await eventually(lambda: sorted(taker.bodies) == [b"a", b"b", b"c", b"x"])


async def test_a_place_with_nothing_left_is_forgotten_and_the_queue_may_go_back(world: World, forgetful: None) -> None:
    store = await world.ready()
    queue = await make(store, "q")
    assert isinstance(queue, PlacedQueue)
    placed_at(await publish(queue, b"1"))
    await moved(store, "q", "eu")
    await eventually(lambda: [one.left for one in store.moves.under_way()] == [1])
    with pytest.raises(Conflict, match="has something there yet"):
        await store.moves.begin(TENANT, "q", "main")
    taker = Taker(queue, 1)  # type: ignore[arg-type]
    await eventually(lambda: taker.bodies == [b"1"])
    assert await settle(queue, taker.receipts) == [True]
    await eventually(lambda: not definition(store, "q").former, "the old place is forgotten")
    await eventually(lambda: store.moves.under_way() == [])
    await eventually(lambda: "q" not in world.home.queues)
    assert len(queue.parts) == 1 and world.eu.queues == ["q"]

    placed_at(await publish(queue, b"2"))
    await moved(store, "q", "main")
    placed_at(await publish(queue, b"3"))
    taker.credit, taker.leases = 2, []
    queue.wanted_changed()
    await eventually(lambda: sorted(taker.bodies) == [b"1", b"2", b"3"])
    assert await settle(queue, taker.receipts) == [True, True]
    await eventually(lambda: world.eu.queues == [] and world.home.queues == ["q"], "and there it is forgotten, too")


async def test_a_move_is_given_up_and_publishes_go_on_where_they_went(world: World, monkeypatch: Any) -> None:
    store = await world.ready()
    queue = await make(store, "q")
    assert isinstance(queue, PlacedQueue)

    async def never(*_: Any) -> None: ...

    monkeypatch.setattr(moving.Moves, "_arrive", never)
    await store.moves.begin(TENANT, "q", "eu")
    await eventually(lambda: definition(store, "q").moving_to is not None)
    if not queue.home.is_first:
        await queue.home.adopt([definition(store, "q")])
    waits = begin(queue, b"1")
    await asyncio.sleep(0.2)
    assert not waits.done(), "it is refused, and waits for where to go"
    await store.moves.give_up(TENANT, "q")
    assert placed_at(await asyncio.wait_for(waits, PATIENCE_S)) < 2**32
    assert definition(store, "q").cluster == ""
    with pytest.raises(Conflict, match="does not move"):
        await store.moves.give_up(TENANT, "q")


async def test_what_cannot_move_is_told_why(world: World) -> None:
    store = await world.ready()
    await make(store, "dead")
    await make(store, "named", dead_letter_queue="dead")
    await make(store, "stream", kind="stream")
    await make(store, "sorted", sequencing="producer")
    for name, why in (("dead", "names 'dead'"), ("named", "names 'dead'"), ("stream", "stream"), ("sorted", "sorts")):
        to = "eu" if definition(store, name).cluster == "" else "main"
        with pytest.raises(InvalidRequest, match=why):
            await store.moves.begin(TENANT, name, to)
    with pytest.raises(NotFound, match="there are eu, main"):
        await store.moves.begin(TENANT, "dead", "us")
    with pytest.raises(Conflict, match="lies there already"):
        here = next(one.name for one in store.clusters.values() if one.key == definition(store, "dead").cluster)
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


async def test_a_queue_moves_to_independent_hosts_and_back(world: World, forgetful: None) -> None:
    async with Lanes() as hosts:
        addresses = [("127.0.0.1", hosts.hosts[name].port) for name in hosts.names]
        further = ClusterAt("hosts", FixedDirectory(addresses), addresses)
        store = await world.gateway(others=[further])
        await eventually(lambda: store.clusters["hosts"].is_ready)
        made = [await make(store, f"q{number}", dedupe="id", ordering="strict") for number in range(5)]
        queue = next(one for one in made if one.definition.cluster == "")
        name = queue.name
        assert isinstance(queue, PlacedQueue)
        ids = [b"%d" % number for number in range(8)]
        for one in ids:
            placed_at(await publish(queue, one, ids=[one], key="k" + one.decode()))
        await moved(store, name, "hosts")
        assert isinstance(queue.current, LanedQueue)
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
        await eventually(lambda: not definition(store, name).former)
        await moved(store, name, "main")
        placed_at(await publish(queue, b"last", ids=[b"last"], key="k0"))
        assert all(await settle(queue, taker.receipts))
        await eventually(lambda: taker.bodies[-1] == b"last")
        await store.close()
