"""Queues that lie in several clusters at once, each with the messages of its slots: nodes of this process, over
loopback."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from backend_store.client.dead_letters import LetterFilter
from backend_store.client.filters import PeekFilter
from backend_store.client.queue import JOBS_REMEMBERED_MAX
from backend_store.core.log.chunk import KIND_JSON, Columns
from backend_store.core.log.sealed_block import CannotOpen
from backend_store.core.partitions.slots import slot_of, unpacked
from backend_store.metadata.sharing import open_places
from backend_store.model import (
    Claim,
    ClusterAway,
    Conflict,
    FormerPlace,
    InvalidRequest,
    Original,
    Published,
    PushqError,
    QueueConfig,
    Whereabouts,
)
from backend_store.remote import store as stores
from backend_store.remote.cluster import ClusterAt
from backend_store.remote.definitions import adopted
from backend_store.remote.definitions import moves as moving
from backend_store.remote.definitions.directory import FixedDirectory
from backend_store.remote.definitions.moves import QueueShare
from backend_store.remote.limits import MOVE_LOOK_SECONDS, MOVE_STEP_SECONDS
from backend_store.remote.line.line import Line
from backend_store.remote.queues import routes
from backend_store.remote.queues.placed import PlacedQueue
from backend_store.remote.store import RemoteBackends
from tests.support.lanes import Lanes, Taker
from tests.support.patience import PATIENCE_S, eventually
from tests.unit.backend_store.remote.test_clusters import TENANT, Shards, World, make
from tests.unit.backend_store.remote.test_moves import (
    begin,
    definition,
    drained,
    in_cluster,
    looked,
    moved,
    placed,
    placed_at,
    publish,
    settle,
)

pytestmark = pytest.mark.anyio

KEYS = [f"k{number}" for number in range(64)]


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
    monkeypatch.setattr(adopted, "DROP_AFTER_SECONDS", 0.05)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for a cluster that is not there."""
    monkeypatch.setattr(stores, "OTHERS_SECONDS_MAX", 0.1)


async def spread(store: RemoteBackends, name: str, *over: str) -> PlacedQueue:
    """Returns when publishes go there, and nowhere else."""
    await store.moves.spread(TENANT, name, over)
    await is_spread(store, name, *over)
    return placed(store, name)


async def is_spread(store: RemoteBackends, name: str, *over: str) -> None:
    def is_so() -> bool:
        known = definition(store, name)
        there = {one.cluster for one in store.moves.shares(known)}
        return not known.goal and known.moving_to is None and there == set(over)

    await eventually(is_so, f"it is spread over {over}")


def keys_of(queue: PlacedQueue, cluster: str) -> list[str]:
    """Those whose messages go there now."""
    slots = next(unpacked(one.slots) for one in open_places(queue.definition) if one.cluster == cluster)
    return [key for key in KEYS if slots >> slot_of(key) & 1]


async def published(queue: PlacedQueue, *keys: str, tag: str = "", **named: Any) -> dict[str, int]:
    """One message for each key, by key its number."""
    return {key: placed_at(await publish(queue, f"{key}{tag}".encode(), key=key, **named)) for key in keys}


async def test_a_queue_that_is_split_gets_as_much_in_each_cluster_and_loses_nothing(world: World) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "")
    before = await published(queue, *KEYS)
    assert await spread(store, queue.name, "main", "eu") is queue
    assert store.moves.shares(queue.definition) == [QueueShare("main", 0.5), QueueShare("eu", 0.5)]
    after = await published(queue, *KEYS, tag="-2")
    there = {key for key, number in after.items() if number >= 2**44}
    assert there == set(keys_of(queue, "eu")) and 0.3 < len(there) / len(KEYS) < 0.7
    assert all(number < 2**32 for number in before.values())

    taker = Taker(queue, 1_000)  # type: ignore[arg-type]
    everything = sorted([key.encode() for key in KEYS] + [f"{key}-2".encode() for key in KEYS])
    await eventually(lambda: sorted(taker.bodies) == everything)
    assert all(await settle(queue, taker.receipts))
    stats = await looked(store, queue)
    assert (stats.ready, stats.in_flight, stats.published_total) == (0, 0, 2 * len(KEYS))


@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_call_of_many_keys_is_divided_and_answered_as_one(world: World, partitions: int) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "", partitions=partitions)
    await spread(store, queue.name, "eu", "main")
    columns = Columns(KIND_JSON, [key.encode() for key in KEYS], {"key": KEYS})
    done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
    made = queue.blocks(columns, None)
    queue.publish(list(made.blocks), done.set_result)
    answer = await asyncio.wait_for(done, PATIENCE_S)
    assert isinstance(answer, Published) and not answer.others and answer.places is not None
    placed_keys = [KEYS[number] for number in made.order or range(len(KEYS))]
    there = {key for key, (_, number) in zip(placed_keys, answer.places, strict=True) if number >= 2**44}
    assert there == set(keys_of(queue, "eu"))
    await drained(queue, *(key.encode() for key in KEYS))


async def test_messages_without_a_key_go_round_by_the_shares(world: World) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "eu")
    await spread(store, queue.name, "main", "eu")
    places = [placed_at(await publish(queue, b"%d" % number)) >= 2**44 for number in range(64)]
    assert Counter(places) == {True: 32, False: 32}
    await drained(queue, *(b"%d" % number for number in range(64)))


async def test_strict_order_holds_while_a_queue_is_split_and_merged(world: World) -> None:
    """What went to another place waits there until its key's older messages are acked."""
    store = await world.ready()
    queue = await in_cluster(store, "", ordering="strict")
    keys = KEYS[:16]
    answers: list[asyncio.Future[Published | PushqError]] = []
    is_over = False
    sent: Counter[str] = Counter()

    async def produce() -> None:
        while not is_over:
            for key in keys:
                answers.append(begin(queue, f"{key} {sent[key]}".encode(), key=key))
                sent[key] += 1
            await asyncio.sleep(0.005)

    found: dict[str, list[int]] = {key: [] for key in keys}
    taker = Taker(queue, 4)  # type: ignore[arg-type]

    async def consume() -> None:
        while not is_over or sum(map(len, found.values())) < sent.total():
            if not taker.leases:
                await asyncio.sleep(0.001)
                continue
            bodies, receipts = taker.bodies, taker.receipts
            taker.bodies, taker.leases = [], []
            for body in bodies:
                key, number = body.decode().split()
                found[key].append(int(number))
            assert all(await settle(queue, receipts))
            taker.credit = 4
            queue.wanted_changed()

    producing, consuming = asyncio.ensure_future(produce()), asyncio.ensure_future(consume())
    await eventually(lambda: len(answers) > 50)
    await store.moves.spread(TENANT, queue.name, ["main", "eu"])
    await is_spread(store, queue.name, "main", "eu")
    seen = len(answers)
    await eventually(lambda: len(answers) > seen + 100)
    await store.moves.spread(TENANT, queue.name, ["main"])
    await is_spread(store, queue.name, "main")
    seen = len(answers)
    await eventually(lambda: len(answers) > seen + 50)
    is_over = True
    await producing
    results = await asyncio.wait_for(asyncio.gather(*answers), PATIENCE_S)
    assert [one for one in results if not isinstance(one, Published)] == []
    await asyncio.wait_for(consuming, PATIENCE_S)
    assert found == {key: list(range(sent[key])) for key in keys}


async def test_a_slot_that_came_waits_for_what_is_left_of_it_elsewhere_and_others_do_not(world: World) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "", ordering="strict")
    await published(queue, *KEYS)
    held = Taker(queue, len(KEYS))  # type: ignore[arg-type]
    await eventually(lambda: len(held.bodies) == len(KEYS))
    await store.moves.spread(TENANT, queue.name, ["main", "eu"])
    await eventually(lambda: definition(store, queue.name).beside != ())
    await published(queue, *KEYS, tag="-2")
    assert await settle(queue, [one for one in held.receipts if one]) == [True] * len(KEYS)
    await eventually(lambda: all(one.is_settled for one in definition(store, queue.name).former))
    await drained(queue, *(f"{key}-2".encode() for key in KEYS))


async def test_ids_are_known_over_all_places_whatever_was_split_and_merged(world: World) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "", dedupe="id")
    ids = {key: f"id-{key}".encode() for key in KEYS}

    async def again() -> dict[str, int]:
        found = {}
        for key in KEYS:
            answer = await publish(queue, key.encode(), key=key, ids=[ids[key]])
            assert isinstance(answer, Published), answer
            other = (answer.others or {}).get(0)
            assert other is None or isinstance(other, Original), other
            found[key] = answer.base if other is None else int(other.offset)
        return found

    first = await again()
    await spread(store, queue.name, "main", "eu")
    assert await again() == first
    more = {key: placed_at(await publish(queue, b"m", key=key, ids=[b"more" + key.encode()])) for key in KEYS}
    for over in (["eu"], ["eu", "main"]) if not definition(store, queue.name).former else (["eu"],):
        await spread(store, queue.name, *over)
        assert await again() == first
        for key in KEYS:
            answer = await publish(queue, b"m", key=key, ids=[b"more" + key.encode()])
            assert isinstance(answer, Published) and answer.others
            other = answer.others[0]
            assert isinstance(other, Original) and other.offset == more[key]
    taker = Taker(queue, 1_000)  # type: ignore[arg-type]
    await eventually(lambda: len(taker.bodies) == 2 * len(KEYS))
    await asyncio.sleep(0.1)
    assert len(taker.bodies) == 2 * len(KEYS)


@pytest.mark.parametrize("partitions", [1, 3])
async def test_an_idempotency_key_is_known_over_all_places(world: World, partitions: int) -> None:
    """Of calls that one place took whole before the split, and of such as lie in several."""
    await _is_known(await world.ready(), "eu", partitions=partitions)


async def test_an_idempotency_key_is_known_over_leaders_and_hosts(world: World) -> None:
    async with Lanes() as hosts:
        addresses = [("127.0.0.1", hosts.hosts[name].port) for name in hosts.names]
        further = ClusterAt("hosts", FixedDirectory(addresses), addresses)
        store = await world.gateway(others=[further])
        await eventually(lambda: store.clusters["hosts"].is_ready)
        await _is_known(store, "hosts")
        await store.close()


async def _is_known(store: RemoteBackends, other: str, **settings: Any) -> None:
    queue = await in_cluster(store, "", **settings)

    async def send(claim: str, payload: bytes = b"") -> Published | PushqError:
        bodies = [key.encode() for key in KEYS[:8]]
        hashes = [(claim.encode() + b"-%d" % number).ljust(16, b"i") for number in range(8)]
        columns = Columns(KIND_JSON, bodies, {"key": KEYS[:8]}, hashes=hashes)
        claimed = Claim(claim.encode().ljust(16, b"k"), (payload or claim.encode()).ljust(16, b"p"))
        while True:
            done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
            queue.publish(list(queue.blocks(columns, None).blocks), done.set_result, claimed)
            answer = await asyncio.wait_for(done, PATIENCE_S)
            if isinstance(answer, Published) or answer.code != "overloaded":
                return answer
            await asyncio.sleep(0.02)  # it is to be encoded for the new place

    async def is_known(claim: str) -> None:
        answer = await send(claim)
        assert isinstance(answer, Published), answer
        assert answer.is_repeat or set(answer.others or {}) == set(range(8)), answer
        other = await send(claim, b"another")
        assert isinstance(other, PushqError) and other.code == "idempotency-mismatch", other

    assert not getattr(await send("before"), "others", True)
    await spread(store, queue.name, "main", other)
    assert not getattr(await send("between"), "others", True)
    await is_known("before")
    await is_known("between")
    await spread(store, queue.name, other)
    assert not getattr(await send("after"), "others", True)
    for claim in ("before", "between", "after"):
        await is_known(claim)
    await drained(queue, *(key.encode() for key in KEYS[:8] * 3))


async def test_of_a_queue_that_was_split_and_is_merged_the_part_is_shown_that_went_last(world: World) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "")
    await spread(store, queue.name, "main", "eu")
    await spread(store, queue.name, "eu")
    (left,) = store.moves.under_way()
    assert (left.source, left.to, left.share) == ("main", "eu", 0.5), "the other half had gone before"


async def test_a_queue_is_merged_where_it_came_to_and_its_first_place_is_forgotten(
    world: World, forgetful: None
) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "")
    await spread(store, queue.name, "main", "eu")
    await published(queue, *KEYS)
    move = await store.moves.begin(TENANT, queue.name, "eu")
    assert (move.source, move.to, move.share) == ("main", "eu", 0.5)
    await is_spread(store, queue.name, "eu")
    assert queue.definition.cluster == "eu" and queue.definition.beside == ()
    later = await published(queue, *KEYS, tag="-2")
    assert all(number >= 2**44 for number in later.values())
    await drained(queue, *(f"{key}{tag}".encode() for key in KEYS for tag in ("", "-2")))
    await eventually(lambda: not definition(store, queue.name).former, "nothing is left in main")
    await eventually(lambda: queue.name not in world.home.queues)
    # And it is split again: its numbers there begin above all that it ever gave out there.
    await spread(store, queue.name, "eu", "main")
    again = await published(queue, *keys_of(queue, ""), tag="-3")
    assert all(number >= 2**45 for number in again.values())
    await drained(queue, *(f"{key}-3".encode() for key in again))


async def test_a_split_queue_moves_to_a_third_cluster_of_hosts_and_back(world: World, forgetful: None) -> None:
    async with Lanes() as hosts:
        addresses = [("127.0.0.1", hosts.hosts[name].port) for name in hosts.names]
        further = ClusterAt("hosts", FixedDirectory(addresses), addresses)
        store = await world.gateway(others=[world.eu.at, further])
        await eventually(lambda: all(one.is_ready for one in store.clusters.values()))
        queue = await in_cluster(store, "", ordering="strict", dedupe="id")
        sent = 0

        async def round_() -> None:
            nonlocal sent
            sent += 1
            bodies = [f"{key}-{sent}".encode() for key in KEYS]
            for key, body in zip(KEYS, bodies, strict=True):
                placed_at(await publish(queue, body, key=key, ids=[body]))
            found: list[bytes] = []
            taker = Taker(queue, len(bodies))  # type: ignore[arg-type]
            while len(found) < len(bodies):  # what came waits for the acks of what lies where it came from
                await eventually(lambda: bool(taker.leases), "the rest comes")
                found += taker.bodies
                receipts = taker.receipts
                taker.bodies, taker.leases = [], []
                assert all(await settle(queue, receipts))
            assert sorted(found) == sorted(bodies)

        await round_()
        for over in (["main", "eu", "hosts"], ["eu", "hosts"], ["hosts"]):
            await store.moves.spread(TENANT, queue.name, over)
            await round_()
            await is_spread(store, queue.name, *over)
            await round_()
        shares = store.moves.shares(queue.definition)
        assert shares == [QueueShare("hosts", 1.0)]
        await store.close()


async def test_what_is_left_of_a_split_queue_goes_with_it(world: World) -> None:
    store, other = await world.ready(), await world.ready()
    queue = await in_cluster(store, "eu")
    await spread(store, queue.name, "main", "eu")
    await published(queue, *KEYS)
    await store.delete_queue(TENANT, queue.name)
    await eventually(lambda: queue.name not in world.home.queues and queue.name not in world.eu.queues)
    await eventually(lambda: other.moves.under_way() == [])
    again = await make(store, queue.name)
    assert isinstance(again, PlacedQueue) and (await looked(store, again)).ready == 0


@pytest.mark.parametrize("first", ["", "eu"])
async def test_where_one_place_is_away_the_others_go_on(world: World, first: str) -> None:
    store = await world.ready()
    queue = await in_cluster(store, first)
    await spread(store, queue.name, "main", "eu")
    await world.eu.go()
    late = await world.gateway()
    there = placed(late, queue.name)
    here, away = keys_of(queue, "")[0], keys_of(queue, "eu")[0]
    placed_at(await publish(there, b"here", key=here))
    refused = await publish(there, b"away", key=away)
    assert isinstance(refused, ClusterAway), refused
    columns = Columns(KIND_JSON, [b"1", b"2"], {"key": [here, away]})
    done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
    there.publish(list(there.blocks(columns, None).blocks), done.set_result)
    both = await asyncio.wait_for(done, PATIENCE_S)
    assert isinstance(both, Published) and both.others is not None
    assert list(both.others) == [1] and isinstance(both.others[1], ClusterAway)
    await drained(there, b"here", b"1")
    await world.eu.come()

    async def is_taken() -> bool:
        return isinstance(await publish(there, b"away", key=away), Published)

    await eventually(is_taken)


async def test_peeks_and_purges_go_through_all_places(world: World) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "", partitions=2)
    await published(queue, *KEYS[:10])
    await spread(store, queue.name, "main", "eu")
    await published(queue, *KEYS[10:30])
    for limit in (1, 7, 100):
        seen: list[str] = []
        cursor = None
        while len(seen) < 100:
            page = await queue.peek(PeekFilter(limit=limit, cursor=cursor))
            seen += [bytes(item.message["body"]).decode() for item in page.items]
            if (cursor := page.next) is None:
                break
        assert sorted(seen) == sorted(KEYS[:30]), limit
    assert (await queue.purge("p")).total == 30
    for number in range(2 * JOBS_REMEMBERED_MAX):
        last = await queue.purge(f"p{number}")
    assert len(queue.purges) == JOBS_REMEMBERED_MAX and queue.purges[last.id] is last
    assert all(len(part.purges) <= JOBS_REMEMBERED_MAX for part in queue.pieces)


async def test_dead_letters_of_each_place_go_back(world: World) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "", max_attempts=1)
    await spread(store, queue.name, "main", "eu")
    await published(queue, *KEYS[:10])
    taker = Taker(queue, 10)  # type: ignore[arg-type]
    await eventually(lambda: len(taker.bodies) == 10)
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    queue.give_back(taker.receipts, 0, done.set_result)
    await asyncio.wait_for(done, PATIENCE_S)

    async def dead() -> int:
        return int((await looked(store, queue)).dead)

    async def all_are() -> bool:
        return await dead() == 10

    await eventually(all_are)
    taker.credit = 0
    assert await redriven(queue, "r") == ("done", 10, None)
    assert await dead() == 0
    taker.leases, taker.bodies, taker.credit = [], [], 10
    queue.wanted_changed()
    await eventually(lambda: sorted(taker.bodies) == sorted(key.encode() for key in KEYS[:10]))


async def redriven(queue: PlacedQueue, redrive_id: str, to: str | None = None) -> tuple[str, int, str | None]:
    """How a redrive of all its dead letters ended: state, moved, error."""
    letters = queue.dead_letters(LetterFilter(), to, own=True)
    total = (await queue.count_letters(letters)).total()
    store = queue._store
    await queue.begin_redrive(redrive_id, letters, total=total, rate_per_s=None, find=lambda name: placed(store, name))
    found: list[tuple[str, int, str | None]] = []

    async def is_over() -> bool:
        job = await queue.redrives.find(redrive_id)
        assert job is not None and job.total == total
        found[:] = [(job.state, job.done, job.error)]
        return bool(job.state != "running")

    await eventually(is_over)
    return found[0]


async def test_dead_letters_go_to_another_queue_where_that_lies_in_their_cluster_and_the_others_stay(
    world: World,
) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "", max_attempts=1)
    repair = await in_cluster(store, "eu", max_attempts=1)
    await spread(store, queue.name, "main", "eu")
    await published(queue, *KEYS[:10])
    taker = Taker(queue, 10)  # type: ignore[arg-type]
    await eventually(lambda: len(taker.bodies) == 10)
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    queue.give_back(taker.receipts, 0, done.set_result)
    await asyncio.wait_for(done, PATIENCE_S)
    taker.credit = 0
    there = len([key for key in KEYS[:10] if key in keys_of(queue, "eu")])
    why = (
        f"queue {repair.name!r} is in another cluster than {queue.name!r}, and a redrive moves messages only within one"
    )
    assert await redriven(queue, "r", repair.name) == ("failed", there, f"{10 - there} stay: {why}")
    assert (await looked(store, queue)).dead == 10 - there
    assert await redriven(queue, "r2") == ("done", 10 - there, None)


async def test_a_redrive_to_a_queue_that_takes_no_letter_of_it_is_refused(world: World) -> None:
    store = await world.ready()
    queue, elsewhere = await in_cluster(store, ""), await in_cluster(store, "eu")
    with pytest.raises(InvalidRequest, match="is in another cluster") as refused:
        queue.dead_letters(LetterFilter(), elsewhere.name, own=True)
    assert [error.pointer for error in refused.value.errors] == ["/to"]


async def test_what_cannot_be_split_is_refused(world: World) -> None:
    store = await world.ready()
    queue, plain = await in_cluster(store, ""), await in_cluster(store, "eu")
    with pytest.raises(Conflict, match="is already there"):
        await store.moves.spread(TENANT, queue.name, ["main"])
    stream = await make(store, "stream", kind="stream")
    with pytest.raises(InvalidRequest, match="is a stream"):
        await store.moves.spread(TENANT, stream.name, ["main", "eu"])
    await spread(store, queue.name, "main", "eu")
    await store.moves.spread(TENANT, queue.name, ["eu", "main"])  # it is so already
    for one, other in ((plain, queue), (queue, plain)):
        config = msgspec.structs.replace(one.config, dead_letter_queue=other.name)
        with pytest.raises(Conflict, match="is split"):
            await store.update_queue(TENANT, one.name, config, definition(store, one.name).version)
    with pytest.raises(Conflict, match="is split"):
        await store.move_queue(TENANT, queue.name, plain.name)
    joint: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    queue.settle_and_publish([], [], joint.set_result)
    assert "publish, then ack" in (await joint).detail


async def test_a_poll_is_refused_where_no_place_that_takes_publishes_is_there(
    world: World, forgetful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "")
    nowhere = ClusterAt("asia", FixedDirectory([("127.0.0.1", 1)]), [("127.0.0.1", 1)])
    lone = placed(await world.gateway(others=[nowhere]), queue.name)
    await moved(store, queue.name, "eu")
    await eventually(lambda: lone.definition.cluster == "eu" and not lone.definition.former)
    with pytest.raises(ClusterAway):
        lone.check_there()
    await spread(store, queue.name, "eu", "main")
    await eventually(lambda: lone.definition.beside != ())
    lone.check_there()
    await published(queue, *keys_of(queue, ""))
    taker = Taker(lone, 1_000)  # type: ignore[arg-type]
    await eventually(lambda: sorted(taker.bodies) == sorted(key.encode() for key in keys_of(queue, "")))
    monkeypatch.setattr(Line, "is_away", property(lambda line: True))
    for one in (lone, queue):
        with pytest.raises(ClusterAway):
            one.check_there()


async def test_a_queue_whose_next_step_is_still_to_begin_is_tried_again_soon(world: World) -> None:
    """As where one moved whole before it was spread, and the place that it left is forgotten."""
    store = await world.ready()
    queue = await in_cluster(store, "")
    goal = Whereabouts("", 0), Whereabouts("eu", 0)
    waits = msgspec.structs.replace(definition(store, queue.name), goal=goal)
    assert store.moves._pause(waits) == MOVE_STEP_SECONDS
    left = FormerPlace("eu", 0, 0, 0)
    assert store.moves._pause(msgspec.structs.replace(waits, former=(left,))) == MOVE_STEP_SECONDS
    strict = msgspec.structs.replace(waits, former=(left,), config=QueueConfig(ordering="strict"))
    assert store.moves._pause(strict) == MOVE_LOOK_SECONDS, "it waits for what is left there"


async def test_a_step_that_fails_ends_no_move(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "")

    async def fails(*_: Any) -> None:
        raise ValueError("a mistake")

    monkeypatch.setattr(moving, "MOVE_LOOK_SECONDS", 0.05)
    with capture_logs() as logs, monkeypatch.context() as patched:
        patched.setattr(moving.Moves, "_arrive", fails)
        await store.moves.begin(TENANT, queue.name, "eu")
        await eventually(lambda: any(one["event"] == "a step of a move failed" for one in logs))
    with capture_logs() as logs:
        await eventually(lambda: definition(store, queue.name).cluster == "eu")
        arrived = {"source": "main", "to": "eu", "share": 1.0, "queue": queue.name, "tenant": TENANT}
        await eventually(lambda: any(arrived.items() <= one.items() for one in logs))


async def test_a_split_is_given_up_before_it_has_begun_to_arrive(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "")

    async def never(*_: Any) -> None: ...

    with monkeypatch.context() as patched:
        patched.setattr(moving.Moves, "_arrive", never)
        await store.moves.spread(TENANT, queue.name, ["main", "eu"])
        await eventually(lambda: definition(store, queue.name).moving_to is not None)
        await eventually(lambda: queue.home.adopted.knows(definition(store, queue.name)))
        waiting = [begin(queue, key.encode(), key=key) for key in KEYS]
        await asyncio.sleep(0.05)
        assert not all(one.done() for one in waiting), "those that are to go wait"
        await store.moves.give_up(TENANT, queue.name)
        assert all(placed_at(one) < 2**32 for one in await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S))
    assert definition(store, queue.name).goal == ()
    await drained(queue, *(key.encode() for key in KEYS))


async def test_a_queue_that_moved_whole_is_split_while_its_old_place_still_delivers(world: World) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "eu", dedupe="id")
    first = await published(queue, *KEYS, ids=None)
    await moved(store, queue.name, "main")
    with pytest.raises(Conflict, match="came from that cluster and still has messages there;"):
        await store.moves.spread(TENANT, queue.name, ["main", "eu"])
    await drained(queue, *(key.encode() for key in first))


async def test_a_gateway_that_missed_that_slots_went_and_came_back_stores_no_repeat(world: World) -> None:
    store, behind = await world.ready(), await world.ready()
    queue = await in_cluster(store, "", dedupe="id")
    await eventually(lambda: (TENANT, queue.name) in behind.metadata.queues)
    late = placed(behind, queue.name)
    placed_at(await publish(late, b"warm", key="w", ids=[b"warm"]))
    hear, missed = behind.defined, []
    behind.defined = lambda *news, **how: missed.append((news, how))  # type: ignore[method-assign]
    await spread(store, queue.name, "main", "eu")
    key = keys_of(queue, "eu")[0]
    first = placed_at(await publish(queue, b"m", key=key, ids=[b"X"]))
    await spread(store, queue.name, "main")
    assert late.definition.version == 1
    again = begin(late, b"m", key=key, ids=[b"X"])
    await asyncio.sleep(0.1)
    assert not again.done(), "it waits for what it has missed"
    behind.defined = hear  # type: ignore[method-assign]
    for news, how in missed:
        hear(*news, **how)
    answer = await asyncio.wait_for(again, PATIENCE_S)
    assert isinstance(answer, Published) and answer.others == {0: Original(first, 0)}
    await drained(queue, b"warm", b"m")


async def test_calls_of_several_keys_that_follow_each_other_keep_their_order(world: World) -> None:
    """Some of their keys go, and some stay."""
    store = await world.ready()
    queue = await in_cluster(store, "", ordering="strict")
    answers: list[asyncio.Future[Published | PushqError]] = []
    sent: Counter[str] = Counter()
    is_over = False

    def send(*keys: str) -> None:
        bodies = [f"{key} {sent[key]}".encode() for key in keys]
        sent.update(keys)
        done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
        columns = Columns(KIND_JSON, bodies, {"key": list(keys)})
        queue.publish(list(queue.blocks(columns, None).blocks), done.set_result)
        answers.append(done)

    async def produce() -> None:
        while not is_over:
            for one, other in zip(KEYS[:16:2], KEYS[1:16:2], strict=True):
                send(one, other)
                send(one)
                send(other)
            await asyncio.sleep(0.001)

    producing = asyncio.ensure_future(produce())
    for over in (["main", "eu"], ["eu"]):
        seen = len(answers)
        await eventually(lambda seen=seen: len(answers) > seen + 100)  # type: ignore[misc]
        await store.moves.spread(TENANT, queue.name, over)
        await asyncio.sleep(0.2)
    is_over = True
    await producing
    results = await asyncio.wait_for(asyncio.gather(*answers), PATIENCE_S)
    assert [one for one in results if not isinstance(one, Published) or one.others] == []
    await _in_order(queue, {key: sent[key] for key in KEYS[:16]})


@pytest.mark.parametrize("partitions", [1, 3])
async def test_calls_under_an_idempotency_key_keep_their_order_with_those_that_follow(
    world: World, partitions: int
) -> None:
    """Their key is bound first, in another cluster than some of their messages lie in: the next call overtook them."""
    store = await world.ready()
    queue = await in_cluster(store, "", ordering="strict", partitions=partitions)
    await spread(store, queue.name, "main", "eu")
    await eventually(lambda: all(one.is_settled for one in definition(store, queue.name).former))
    keys, rounds = KEYS[:8], 20
    answers: list[asyncio.Future[Published | PushqError]] = []

    def send(number: int, *keys: str, claim: str | None = None) -> None:
        bodies = [f"{key} {number}".encode() for key in keys]
        hashes = [f"{claim}-{at}".encode().ljust(16, b"i") for at in range(len(keys))] if claim else None
        columns = Columns(KIND_JSON, bodies, {"key": list(keys)}, hashes=hashes)
        claimed = Claim(claim.encode().ljust(16, b"k"), claim.encode().ljust(16, b"p")) if claim else None
        done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
        queue.publish(list(queue.blocks(columns, None).blocks), done.set_result, claimed)
        answers.append(done)

    for number in range(0, 3 * rounds, 3):
        send(number, *keys, claim=f"c{number}")
        for key in keys:
            send(number + 1, key)
        send(number + 2, *keys, claim=f"c{number + 2}")
    results = await asyncio.wait_for(asyncio.gather(*answers), PATIENCE_S)
    assert [one for one in results if not isinstance(one, Published) or one.others] == []
    await _in_order(queue, dict.fromkeys(keys, 3 * rounds))


async def _in_order(queue: PlacedQueue, sent: Mapping[str, int]) -> None:
    """Each key's messages, so many, are delivered in their order, and acked."""
    found: dict[str, list[int]] = {key: [] for key in sent}
    taker = Taker(queue, 16)  # type: ignore[arg-type]
    while sum(map(len, found.values())) < sum(sent.values()):
        await eventually(lambda: bool(taker.leases))
        bodies, receipts = taker.bodies, taker.receipts
        taker.bodies, taker.leases = [], []
        for body in bodies:
            key, number = body.decode().split()
            found[key].append(int(number))
        assert all(await settle(queue, receipts))
        taker.credit = 16
        queue.wanted_changed()
    assert found == {key: list(range(count)) for key, count in sent.items()}


async def test_a_whole_move_of_a_strict_queue_waits_for_what_its_slots_wait_for(world: World) -> None:
    asia = Shards("asia")
    await asia.open()
    try:
        store = await world.gateway(others=[world.eu.at, asia.at])
        await eventually(lambda: all(one.is_ready for one in store.clusters.values()))
        queue = await in_cluster(store, "", ordering="strict")
        await spread(store, queue.name, "main", "eu")
        await eventually(lambda: all(one.is_settled for one in definition(store, queue.name).former))
        key = keys_of(queue, "eu")[0]
        placed_at(await publish(queue, b"1", key=key))
        await spread(store, queue.name, "main")
        placed_at(await publish(queue, b"2", key=key))
        move = await store.moves.begin(TENANT, queue.name, "asia")
        assert (move.source, move.to, move.share) == ("main", "asia", 1.0)
        assert definition(store, queue.name).moving_to is None and store.moves.goal(queue.definition) == ["asia"]
        placed_at(await publish(queue, b"3", key=key))
        taker = Taker(queue, 1)  # type: ignore[arg-type]
        await eventually(lambda: bool(taker.bodies))
        await asyncio.sleep(0.1)
        assert taker.bodies == [b"1"]
        assert await settle(queue, taker.receipts) == [True]
        await is_spread(store, queue.name, "asia")
        placed_at(await publish(queue, b"4", key=key))
        found = [b"1"]
        while len(found) < 4:
            taker.bodies, taker.leases = [], []
            taker.credit = 1
            queue.wanted_changed()
            await eventually(lambda: bool(taker.bodies))
            found += taker.bodies
            assert all(await settle(queue, taker.receipts))
        assert found == [b"1", b"2", b"3", b"4"]
        await store.close()
    finally:
        await asia.close()


async def test_a_call_that_cannot_be_divided_is_answered_and_holds_up_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await world.ready()
    queue = await in_cluster(store, "")
    made = queue.blocks(Columns(KIND_JSON, [key.encode() for key in KEYS], {"key": KEYS}), None).blocks
    await spread(store, queue.name, "main", "eu")

    def shares(*_: Any) -> Any:
        raise CannotOpen("its key is not there")

    with monkeypatch.context() as patched:
        patched.setattr(routes, "shares", shares)
        done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
        queue.publish(list(made), done.set_result)
        refused = await asyncio.wait_for(done, PATIENCE_S)
        assert isinstance(refused, PushqError) and refused.code == "unavailable"
    await spread(store, queue.name, "main")
    placed_at(await publish(queue, b"x", key="k"))


async def test_slots_that_stay_go_on_while_the_others_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that come with them in one call."""
    store = await world.ready()
    queue = await in_cluster(store, "")
    await spread(store, queue.name, "main", "eu")
    here, there = keys_of(queue, "")[:2], keys_of(queue, "eu")[:2]

    async def never(*_: Any) -> None: ...

    with monkeypatch.context() as patched:
        patched.setattr(moving.Moves, "_arrive", never)
        await store.moves.begin(TENANT, queue.name, "main")
        known = definition(store, queue.name)
        await eventually(lambda: any(home.adopted.knows(known) for home in store.clusters["eu"].homes))
        waits = begin(queue, b"there", key=there[0])
        await eventually(lambda: queue.publishes_waiting == 1)
        placed_at(await publish(queue, b"here", key=here[0]))
        mixed = [asyncio.get_running_loop().create_future() for _ in range(2)]
        for number, done in enumerate(mixed):
            columns = Columns(KIND_JSON, [b"m%d" % number, b"n%d" % number], {"key": [here[1], there[0]]})
            queue.publish(list(queue.blocks(columns, None).blocks), done.set_result)
        placed_at(await publish(queue, b"behind", key=here[1]))
        others = [placed_at(await publish(queue, b"%d" % number)) for number in range(8)]
        assert all(number < 2**32 for number in others), "and what may go anywhere goes to who stays"
        assert not waits.done() and not any(one.done() for one in mixed)
    placed_at(await asyncio.wait_for(waits, PATIENCE_S))
    for answer in await asyncio.wait_for(asyncio.gather(*mixed), PATIENCE_S):
        assert isinstance(answer, Published) and not answer.others
    sent = [b"there", b"here", b"behind", *(b"%d" % number for number in range(8))]
    await drained(queue, *sent, *(b"%c%d" % (name, number) for name in b"mn" for number in range(2)))
