"""The out-cluster manager's process over real backends and sockets: who acts, who goes on, what is asked for once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from backend_store.core.log.chunk import KIND_JSON, Columns, column_blocks
from backend_store.core.outer import records
from backend_store.core.outer.clusters import Cluster, Report
from backend_store.core.outer.documents import DUTY, KIND
from backend_store.core.outer.gathered import ShardSaid
from backend_store.core.outer.limits import MERGE_AFTER_MS, RELIEF_MS
from backend_store.core.outer.managing import Decided, Proposed, Rules
from backend_store.core.outer.merging import ColdQueue, Shared
from backend_store.core.outer.plans import PLAN_VERSION, Plan, PlannedMove, PlannedPartitions
from backend_store.core.partitions.slots import SLOTS, packed
from backend_store.metadata.documents import Document, Duty
from backend_store.metadata.sharing import NUMBER_BITS, OPEN_BITS
from backend_store.model import (
    Conflict,
    OpenPlace,
    Published,
    PushqError,
    QueueConfig,
    QueueDefinition,
    QueueNotFound,
    Unavailable,
)
from backend_store.node.meter import Load
from backend_store.outer.loads import Loads
from backend_store.outer.manager import Manager, said_of
from backend_store.remote.store import RemoteBackends
from tests.support.asleep import Asleep
from tests.support.outer_world import OuterWorld
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio

TENANT = "default"
MOVES = Rules(moves_queues=True)


@pytest.fixture
async def world() -> AsyncIterator[OuterWorld]:
    made = OuterWorld()
    try:
        await made.open()
        yield made
    finally:
        await made.close()


async def test_one_manager_writes_of_every_cluster_and_another_goes_on_when_it_leaves(world: OuterWorld) -> None:
    one, two = await world.manager("one"), await world.manager("two")
    await one.look()
    await two.look()
    assert one.duty is not None and two.duty is None
    assert {name: cluster.report.nodes for name, cluster in world.clusters.items()} == {"main": 1, "us": 1}
    assert world.told == [("manager", "", "one"), ("known", "main", "one"), ("known", "us", "one")]
    await one.leave()
    await two.look()
    assert two.duty is not None and two.duty.term == 2
    assert world.told[3:] == [("manager", "", "two")], "it knew the clusters"


async def test_a_cluster_under_another_ones_name_is_not_heard_under_it(world: OuterWorld) -> None:
    """Else queues would go, and servers be added, where another cluster is full."""
    await world.manager("right")
    wrong = await world.manager("wrong", further="eu")
    world.loads["us"] = Load("x", cpu=0.9)
    await wrong.look()
    assert wrong.duty is not None and list(world.clusters) == ["main"]
    assert wrong.under_way == 0 and not world.provider.calls


async def test_for_independent_hosts_no_servers_are_asked_for(world: OuterWorld) -> None:
    one = await world.manager("one")
    world.stores[0].clusters["us"].lanes = 1
    world.loads.update({"us": Load("x", cpu=0.9), "main": Load("a", cpu=0.9)})
    await one.look()
    assert all(cluster.is_hot for cluster in world.clusters.values())
    await eventually(lambda: world.provider.calls, "the provisioner is asked")
    assert [call.cluster for call in world.provider.calls] == ["main"]


async def test_a_call_that_is_under_way_is_made_by_no_other_manager(world: OuterWorld) -> None:
    one, two = await world.manager("one"), await world.manager("two")
    world.loads["main"] = Load("a", cpu=0.9)
    await one.look()
    await eventually(lambda: world.provider.calls, "the provisioner is asked")
    assert [(call.cluster, call.nodes, call.wanted) for call in world.provider.calls] == [("main", 1, 2)]
    world.silence()
    for _ in range(3):
        await two.look()
    assert two.duty is not None and two.calls_made == 0 and len(world.provider.calls) == 1
    world.provider.goes_on.set()
    await eventually(lambda: one.under_way == 0, "it has ended")
    await one.look()
    assert "provisioned" not in [kind for kind, _, _ in world.told], "who has lost the duty writes nothing"


async def test_the_end_of_a_call_is_written_and_what_failed_is_asked_for_again(world: OuterWorld) -> None:
    one = await world.manager("one")
    world.loads["main"] = Load("a", cpu=0.9)
    world.provider.fails = True
    world.provider.goes_on.set()
    await one.look()
    await eventually(lambda: one.under_way == 0, "it has failed")
    world.provider.fails = False
    for _ in range(2):
        await one.look()
        await eventually(lambda: one.under_way == 0, "it has ended")
    await one.look()
    kinds = [kind for kind, cluster, _ in world.told if cluster == "main"]
    assert kinds[:4] == ["known", "hot", "resize", "provision-failed"] and "provisioned" in kinds
    assert one.calls_failed == 1 and one.calls_made == len(world.provider.calls) >= 2


async def test_a_manager_that_stops_says_that_its_call_did_not_end(world: OuterWorld) -> None:
    one = await world.manager("one")
    world.loads["main"] = Load("a", cpu=0.9)
    await one.look()
    await eventually(lambda: world.provider.calls, "the provisioner is asked")
    await one.leave()
    assert world.told[-1] == ("provision-failed", "main", "one")


async def test_who_loses_the_duty_during_a_look_writes_nothing_and_asks_for_nothing(world: OuterWorld) -> None:
    one = await world.manager("one")
    await one.look()
    before = world.told
    home, taken = world.backends[0], list[asyncio.Task[Any]]()

    def taken_meanwhile() -> Load:
        """While it hears how full the cluster is, its time is over, and another one takes the duty."""
        world.silence()
        taken.append(asyncio.get_running_loop().create_task(home.duties.take(DUTY, "another", 60_000)))
        return Load("a", cpu=0.9)

    home.load = taken_meanwhile
    with pytest.raises(Conflict, match="another"):
        await one.look()
    assert (await taken[0]).holder == "another"
    assert one.duty is None and world.told == before and not world.provider.calls


async def test_a_cluster_that_is_away_is_silent_and_takes_nothing_from_the_others(
    world: OuterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend_store.outer.manager.HEAR_SECONDS_MAX", 0.2)
    one = await world.manager("one")
    await world.end("us")
    store = world.stores[0]
    await eventually(lambda: not store.clusters["us"].first.line.is_open, "the line is cut")
    await one.look()
    assert set(world.clusters) == {"main"} and one.failures == 0


async def test_rows_of_a_later_version_end_nothing(world: OuterWorld) -> None:
    one = await world.manager("one")
    rows = [Document(kind, "later", b"\xc1") for kind in (KIND, "cluster-event", "cluster-call", "cluster-plan")]
    await world.stores[0].documents.write(rows)
    await one.look()
    assert {"main", "us"} <= set(world.clusters)


async def test_what_would_cool_a_cluster_is_proposed_and_not_done(world: OuterWorld) -> None:
    """Three queues that do the same need as much each: without one of them the cluster is cool."""
    one = await world.manager("one", Rules())
    store = world.stores[0]
    for name in "abc":
        await world.backends[0].create_queue(TENANT, name, QueueConfig())
        await eventually(lambda name=name: (TENANT, name) in store.metadata.queues, "it is known")  # type: ignore[misc]
    world.loads["main"] = Load("a", cpu=0.9)
    await one.look()
    for round_ in range(1, 3):
        for name in "abc":
            await _publish(store, name)
        await eventually(lambda wanted=round_: _published(store) == [wanted] * 3, "it is counted")  # type: ignore[misc]
        await one.look()
    plan = records.proposed_of(world.backends[0].documents.all).plan
    assert [(move.source, move.to) for move in plan.moves] == [("main", "us")]
    assert ("relief", "main", "one") in world.told
    assert {one.cluster for one in store.all_definitions()} == {""}


async def _planned(
    world: OuterWorld, manager: Manager, name: str, config: QueueConfig, *, is_split: bool = False
) -> None:
    """The cluster of a queue is hot, and the last look planned to move it, or to split it."""
    store = world.stores[0]
    await world.backends[0].create_queue(TENANT, name, config)
    await eventually(lambda: (TENANT, name) in store.metadata.queues, "it is known")
    world.loads["main"] = Load("a", cpu=0.9)
    await manager.look()
    plan = Plan(PLAN_VERSION, (PlannedMove(name, "main", "us", TENANT),))
    if is_split:
        plan = Plan(PLAN_VERSION, (), (PlannedPartitions(name, 2, ("main", "us"), TENANT),))
    decided = Decided(proposed=Proposed(time.time_ns() // 1_000_000, plan))
    await store.documents.write([Document(*row) for row in records.rows_of(decided)])


def _moves_told(world: OuterWorld) -> list[str]:
    return [event.text for event in records.events_of(world.backends[0].documents.all) if event.kind == "moves"]


async def test_a_queue_of_the_plan_is_had_moved(world: OuterWorld) -> None:
    one = await world.manager("one", MOVES)
    await _planned(world, one, "orders", QueueConfig())
    await one.look()
    store = world.stores[0]
    await eventually(lambda: store.all_definitions()[0].cluster == "us", "it has arrived")
    assert _moves_told(world) == ["90% used: queue 'orders' moves to 'us'"]
    for _ in range(3):
        await one.look()
    assert (one.moves_begun, one.moves_failed, len(_moves_told(world))) == (1, 0, 1)


async def test_a_queue_of_the_plan_is_had_split(world: OuterWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, Sequence[str]]] = []

    async def spread(tenant: str, name: str, over: Sequence[str]) -> None:
        asked.append((tenant, name, over))

    one = await world.manager("one", MOVES)
    await _planned(world, one, "orders", QueueConfig(), is_split=True)
    monkeypatch.setattr(world.stores[0].moves, "spread", spread)
    for _ in range(3):
        await one.look()
    assert asked == [(TENANT, "orders", ["main", "us"])]
    assert _moves_told(world) == ["90% used: half of queue 'orders' moves to 'us'"]
    assert (one.moves_begun, one.moves_failed) == (1, 0)


async def test_a_queue_that_somebody_split_since_it_was_planned_is_not_merged(world: OuterWorld) -> None:
    one = await world.manager("one", MOVES)
    await _planned(world, one, "orders", QueueConfig())
    _split_by_hand(world.stores[0], "orders")
    await one.look()
    assert "not retried for 60 minutes: queue 'orders' is moving, or is shared by several" in await _last_told(
        world, one
    )
    assert one.moves_begun == 0 and not world.stores[0].moves.under_way()


async def test_a_queue_of_several_clusters_is_counted_in_each_and_not_planned_for(world: OuterWorld) -> None:
    await world.manager("one", Rules())
    store = world.stores[0]
    for name in "ab":
        await world.backends[0].create_queue(TENANT, name, QueueConfig())
        await eventually(lambda name=name: (TENANT, name) in store.metadata.queues, "it is known")  # type: ignore[misc]
    _split_by_hand(store, "b")
    hot = {name: Cluster(Report(name, 0, 1, 0.9), is_hot=True) for name in ("main", "us")}
    loads = Loads(store)
    await eventually(lambda: len(_published(store)) == 2 and None not in _published(store), "it is counted")
    assert loads.of(hot, 0).loads == []
    for name in "ab":
        await _publish(store, name)
    await eventually(lambda: _published(store) == [1, 1], "it is counted")
    [load] = loads.of(hot, 0).loads
    assert (load.queue, load.cluster) == ("a", "main")
    assert load.needs == pytest.approx(0.9 / 1.25), "a quarter of the other one is done there"


def _split_by_hand(store: RemoteBackends, name: str) -> None:
    """As if somebody had: a quarter of it is in the home cluster."""
    known = store.metadata.queues[TENANT, name]
    us = OpenPlace("us", 0, 1 << 44, packed((1 << SLOTS * 3 // 4) - 1))
    split = store.metadata.queues[TENANT, name] = msgspec.structs.replace(known, beside=(us,))
    store.moves.told([split], [])


async def test_what_a_shared_queue_needs_is_measured_where_no_cluster_is_hot(world: OuterWorld) -> None:
    await world.manager("one", Rules())
    store = world.stores[0]
    for name in "ab":
        await world.backends[0].create_queue(TENANT, name, QueueConfig())
        await eventually(lambda name=name: (TENANT, name) in store.metadata.queues, "it is known")  # type: ignore[misc]
    _split_by_hand(store, "b")
    cool = {name: Cluster(Report(name, 0, 1, 0.5)) for name in ("main", "us")}
    loads = Loads(store)
    await eventually(lambda: len(_published(store)) == 2 and None not in _published(store), "it is counted")
    left = (1 << NUMBER_BITS - OPEN_BITS) - 1
    idle = Shared(TENANT, "b", {"main": 0.0, "us": 0.0}, places_left=left)
    assert loads.of(cool, 0).shared == [replace(idle, is_measured=False)]
    for name in "ab":
        await _publish(store, name)
    await eventually(lambda: _published(store) == [1, 1], "it is counted")
    assert not loads.of(cool, RELIEF_MS - 1).shared[0].is_measured, "it was looked at less than a minute ago"
    hot_main = cool | {"main": Cluster(Report("main", 0, 1, 0.9), is_hot=True)}
    measured = loads.of(hot_main, RELIEF_MS - 1)
    assert [load.queue for load in measured.loads] == ["a"], "it neither moves nor is split again"
    [shared] = measured.shared
    assert shared.is_measured and shared.needs == pytest.approx({"main": 0.9 * 0.25 / 1.25, "us": 0.5})
    assert loads.of(cool, 2 * RELIEF_MS).shared == [idle], "nothing happened since"
    assert loads.of({"main": cool["main"]}, 3 * RELIEF_MS).shared == [idle]
    store.moves.told([], [store.metadata.queues[TENANT, "b"]])
    assert loads.of(cool, 3 * RELIEF_MS) == ([], []), "it is gone"


async def test_where_no_cluster_is_hot_and_no_queue_shared_none_is_looked_at(
    world: OuterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.manager("one", Rules())
    store = world.stores[0]
    await world.backends[0].create_queue(TENANT, "a", QueueConfig())
    await eventually(lambda: (TENANT, "a") in store.metadata.queues, "it is known")
    monkeypatch.setattr(store, "all_definitions", None)
    cool = {name: Cluster(Report(name, 0, 1, 0.5)) for name in ("main", "us")}
    heard = len(store._pulses._touched._ears)
    assert Loads(store).of(cool, 0) == Loads(store).of(cool, RELIEF_MS) == ([], [])
    assert len(store._pulses._touched._ears) == heard


async def test_while_no_cluster_is_hot_what_happens_is_not_gathered_and_counts_when_one_is(
    world: OuterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happened to deleted queues would be held in memory as long."""
    await world.manager("one", Rules())
    store = world.stores[0]
    monkeypatch.setattr("backend_store.remote.line.pulses.PULSES_FRESH_SECONDS", 0)
    await world.backends[0].create_queue(TENANT, "a", QueueConfig())
    await eventually(lambda: _published(store) == [0], "it is counted")
    cool = {"main": Cluster(Report("main", 0, 1, 0.5))}
    hot = {"main": Cluster(Report("main", 0, 1, 0.9), is_hot=True)}
    loads = Loads(store)
    assert loads.of(hot, 0).loads == []
    gathered = store._pulses._touched._ears[-1]
    await _publish(store, "a")
    await eventually(lambda: _published(store) == [1], "it is counted")
    assert gathered
    assert loads.of(cool, RELIEF_MS).loads == [] and not gathered
    assert [load.queue for load in loads.of(hot, 2 * RELIEF_MS).loads] == ["a"]


async def test_of_hot_clusters_only_queues_that_something_happened_to_are_looked_at(
    world: OuterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them were, as often as the manager looks."""
    await world.manager("one", Rules())
    store = world.stores[0]
    monkeypatch.setattr("backend_store.remote.line.pulses.PULSES_FRESH_SECONDS", 0)
    names = [f"q{number}" for number in range(12)]

    async def known(*names: str) -> None:
        for name in names:
            await world.backends[0].create_queue(TENANT, name, QueueConfig())
        await eventually(
            lambda: (
                None not in _published(store) and {(TENANT, name) for name in names} <= store.metadata.queues.keys()
            ),
            "it is counted",
        )

    await known(*names)
    looks: list[str] = []
    last_pulse = RemoteBackends.last_pulse

    def counted(store: RemoteBackends, definition: QueueDefinition) -> Any:
        looks.append(definition.name)
        return last_pulse(store, definition)

    loads = Loads(store)

    def look(fullest: str = "cpu") -> dict[str, float]:
        """Queue by queue what is needed."""
        looks.clear()
        monkeypatch.setattr(RemoteBackends, "last_pulse", counted)
        hot = {"main": Cluster(Report("main", 0, 1, 0.9, fullest=fullest), is_hot=True)}
        found = {load.queue: load.needs for load in loads.of(hot, 0).loads}
        monkeypatch.setattr(RemoteBackends, "last_pulse", last_pulse)
        return found

    assert look() == {} and len(looks) == 12
    assert look() == {} and not looks
    for name in ("q3", "q3", "q3", "q4"):
        await _publish(store, name)
    await eventually(lambda: sum(count or 0 for count in _published(store)) == 4, "it is counted")
    assert look() == pytest.approx({"q3": 0.9 * 3 / 4, "q4": 0.9 / 4}) and set(looks) == {"q3", "q4"}
    assert look() == {} and not looks, "nothing happened since"
    assert look("disk") == pytest.approx({"q3": 0.9 * 3 / 4, "q4": 0.9 / 4}) and not looks
    await store.delete_queue(TENANT, "q3")
    await known("new")
    await _publish(store, "new")
    await eventually(lambda: sum(count or 0 for count in _published(store)) == 2, "it is counted")
    assert look("disk") == pytest.approx({"q4": 0.45, "new": 0.45}) and set(looks) <= {"new"}
    await _publish(store, "new")
    await eventually(lambda: sum(count or 0 for count in _published(store)) == 3, "it is counted")
    assert look() == pytest.approx({"new": 0.9}), "of what was there before a look it is known what it did since"


async def _merge_planned(world: OuterWorld, manager: Manager, name: str) -> None:
    """Two clusters share it, it has been cold for long, and the last look planned to merge it."""
    store = world.stores[0]
    await world.backends[0].create_queue(TENANT, name, QueueConfig())
    await eventually(lambda: (TENANT, name) in store.metadata.queues, "it is known")
    await store.moves.spread(TENANT, name, ["main", "us"])
    await eventually(lambda: store.moves.shared(), "both share it")
    await eventually(lambda: {one.state for one in store.moves.under_way()} <= {"remembering"}, "nothing is left")
    await eventually(lambda: _published(store) == [0], "it is counted")
    for _ in range(2):
        await manager.look()  # the first one hears of the clusters, the second one begins to measure
    now_ms = time.time_ns() // 1_000_000
    plan = Plan(PLAN_VERSION, (PlannedMove(name, "main", "us", TENANT, is_merge=True),))
    cold = (ColdQueue(TENANT, name, now_ms - 2 * MERGE_AFTER_MS),)
    decided = Decided(proposed=Proposed(now_ms, plan), cold=cold)
    await store.documents.write([Document(*row) for row in records.rows_of(decided)])


async def test_a_queue_of_the_plan_is_had_merged(world: OuterWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend_store.outer.loads.RELIEF_MS", 0)
    one = await world.manager("one", MOVES)
    await _merge_planned(world, one, "orders")
    store = world.stores[0]
    await one.look()
    await eventually(lambda: store.all_definitions()[0].cluster == "us", "all of it is there")
    assert not store.all_definitions()[0].beside and store.moves.shared() == []
    for _ in range(3):
        await one.look()
    assert _moves_told(world) == ["10% used: queue 'orders' is merged into 'us'"]
    assert (one.moves_begun, one.moves_failed) == (1, 0)


async def test_a_queue_that_somebody_merged_since_it_was_planned_is_not_moved(
    world: OuterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend_store.outer.loads.RELIEF_MS", 0)
    one = await world.manager("one", MOVES)
    await _merge_planned(world, one, "orders")
    store = world.stores[0]
    documents, [known] = store.documents, store.moves.shared()
    write = documents.write

    async def merged_meanwhile(rows: Sequence[Document], *, duty: Duty | None = None) -> None:
        await write(rows, duty=duty)
        store.metadata.queues[TENANT, "orders"] = msgspec.structs.replace(known, beside=())

    with monkeypatch.context() as patched:
        patched.setattr(documents, "write", merged_meanwhile)
        await one.look()
    refused = "60 minutes: queue 'orders' is moving, or no longer has a part in 'us', since the plan was made"
    assert refused in await _last_told(world, one)
    assert one.moves_begun == 0


async def _last_told(world: OuterWorld, manager: Manager) -> str:
    await manager.look()
    return _moves_told(world)[-1]


async def test_a_queue_that_cannot_move_is_told_and_the_looks_go_on(world: OuterWorld) -> None:
    one = await world.manager("one", MOVES)
    await _planned(world, one, "orders", QueueConfig(sequencing="producer"))
    for _ in range(3):
        await one.look()
    [_, refused] = _moves_told(world)
    assert "not retried for 60 minutes: queue 'orders' sorts its messages" in refused
    assert (one.moves_begun, one.moves_failed, one.looks) == (0, 1, 4)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Unavailable("cluster 'us' is away"), "10 minutes: cluster 'us' is away"),
        (QueueNotFound("it is gone"), "60 minutes: it is gone"),
        (TimeoutError(), "10 minutes: no response in time, so it may have started"),
        (KeyError("orders"), "10 minutes: internal error: KeyError"),
    ],
    ids=["away", "gone", "silent", "fault"],
)
async def test_whatever_a_move_ends_with_is_told_also_by_a_manager_that_stops(
    world: OuterWorld, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    async def begin(tenant: str, name: str, to: str) -> None:
        raise error

    one = await world.manager("one", MOVES)
    await _planned(world, one, "orders", QueueConfig())
    monkeypatch.setattr(world.stores[0].moves, "begin", begin)
    await one.look()
    await one.leave()
    assert told in _moves_told(world)[-1]


async def test_a_move_that_was_not_taken_is_told_once(world: OuterWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin(tenant: str, name: str, to: str) -> None:
        raise Unavailable("cluster 'us' is away")

    one = await world.manager("one", MOVES)
    await _planned(world, one, "orders", QueueConfig())
    monkeypatch.setattr(world.stores[0].moves, "begin", begin)
    for _ in range(4):
        await one.look()
    assert len(_moves_told(world)) == 2 and one.moves_failed == 1


async def test_who_has_lost_the_duty_moves_nothing(world: OuterWorld) -> None:
    one = await world.manager("one", MOVES)
    await _planned(world, one, "orders", QueueConfig())
    home, taken = world.backends[0], list[asyncio.Task[Any]]()

    def taken_meanwhile() -> Load:
        world.silence()
        taken.append(asyncio.get_running_loop().create_task(home.duties.take(DUTY, "another", 60_000)))
        return Load("a", cpu=0.9)

    home.load = taken_meanwhile
    with pytest.raises(Conflict, match="another"):
        await one.look()
    await taken[0]
    assert not _moves_told(world) and one.moves_begun == 0 and not world.stores[0].moves.under_way()


async def test_who_has_the_duty_no_longer_when_it_is_written_down_moves_nothing(
    world: OuterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await world.manager("one", MOVES)
    await _planned(world, one, "orders", QueueConfig())
    documents = world.stores[0].documents
    write = documents.write

    async def late(rows: Sequence[Document], *, duty: Duty | None = None) -> None:
        await write(rows, duty=duty)
        await asyncio.sleep(0.1)

    with monkeypatch.context() as patched:
        patched.setattr("backend_store.outer.manager.hold_ms", lambda every_s: 100)
        patched.setattr(documents, "write", late)
        await one.look()
    assert one.moves_begun == 0 and not world.stores[0].moves.under_way()
    await one.look()
    assert "the time of the duty was over" in _moves_told(world)[-1]


async def test_a_move_is_begun_also_where_nobody_answered_for_what_was_written(
    world: OuterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await world.manager("one", MOVES)
    await _planned(world, one, "orders", QueueConfig())
    documents = world.stores[0].documents
    write = documents.write

    async def written_and_not_answered(rows: Sequence[Document], *, duty: Duty | None = None) -> None:
        await write(rows, duty=duty)
        raise TimeoutError

    with monkeypatch.context() as patched:
        patched.setattr(documents, "write", written_and_not_answered)
        with pytest.raises(TimeoutError):
            await one.look()
    assert one.moves_begun == 0
    for _ in range(3):
        await one.look()
    assert one.moves_begun == 1 and len(_moves_told(world)) == 1


async def _publish(store: RemoteBackends, name: str) -> None:
    done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
    store.queue(TENANT, name).publish(list(column_blocks(Columns(KIND_JSON, [b"1"])).blocks), done.set_result)
    assert isinstance(await done, Published)


def _published(store: RemoteBackends) -> Sequence[int | None]:
    found = [store.last_pulse(definition) for definition in store.all_definitions()]
    return [None if pulse is None else pulse.published_total for pulse in found]


def test_a_backend_of_before_says_less() -> None:
    """Its report ends with what it knew: it counts by its shard, and by its disk alone."""
    known = {
        "publishes_allowed": True,
        "why_no_publishes": "",
        "waited_ms": 0.0,
        "commit_buckets": [],
        "commit_sum": 0.0,
        "commit_last": 0.0,
        "quarantined": 0,
        "broken_rows": 0,
        "disk_used": 0.5,
    }
    assert said_of(msgspec.Raw(msgspec.msgpack.encode(known))) == ShardSaid("", disk=0.5)
    later = known | {"load": {"node": "a", "cpu": 0.2, "later": 1}, "later": 2, "why_not_durable": "too few copies"}
    assert said_of(msgspec.Raw(msgspec.msgpack.encode(later))) == ShardSaid("a", 0.2, 0.5, ails="too few copies")


async def test_a_call_is_made_once_also_where_nobody_answered_for_what_was_written(
    world: OuterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is on the disk, and the answer comes too late: the call is written down, and nobody else makes it."""
    one = await world.manager("one")
    documents = world.stores[0].documents
    write = documents.write

    async def written_and_not_answered(rows: Sequence[Document], *, duty: Duty | None = None) -> None:
        await write(rows, duty=duty)
        raise TimeoutError

    world.loads["main"] = Load("a", cpu=0.9)
    with monkeypatch.context() as patched:
        patched.setattr(documents, "write", written_and_not_answered)
        with pytest.raises(TimeoutError):
            await one.look()
    assert not world.provider.calls
    for _ in range(3):
        await one.look()
    await eventually(lambda: world.provider.calls, "the provisioner is asked")
    assert [call.cluster for call in world.provider.calls] == ["main"]


async def test_who_manages_is_written_down_also_after_a_first_look_that_failed(
    world: OuterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await world.manager("one")
    with monkeypatch.context() as patched:
        patched.setattr(world.stores[0].documents, "write", _unanswered)
        with pytest.raises(TimeoutError):
            await one.look()
    assert one.duty is not None and records.holder_of(world.backends[0].documents.all) is None
    for _ in range(2):
        await one.look()
    holder = records.holder_of(world.backends[0].documents.all)
    assert holder is not None and holder.name == "one"
    assert [kind for kind, _, _ in world.told].count("manager") == 1


async def _unanswered(rows: Sequence[Document], *, duty: Duty | None = None) -> None:
    raise TimeoutError


async def test_a_backend_that_says_what_is_not_understood_is_silent_and_ends_nothing(world: OuterWorld) -> None:
    one = await world.manager("one")
    world.loads["us"] = cast(Load, {"node": 7})
    await one.look()
    assert set(world.clusters) == {"main"}


async def test_who_does_not_hear_the_home_cluster_acts_no_longer_than_it_has_the_duty(
    world: OuterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await world.manager("one")
    await one.look()
    assert one.is_acting
    monkeypatch.setattr("backend_store.outer.manager.hold_ms", lambda every_s: 50)
    await one.look()
    await eventually(lambda: not one.is_acting, "its time is over")
    monkeypatch.undo()
    await one.look()
    assert one.is_acting


async def test_who_slept_for_as_long_as_it_had_the_duty_does_not_act(
    world: OuterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, one = Asleep(monkeypatch), await world.manager("one")
    await one.look()
    assert one.is_acting
    machine.sleep_s(3_600)
    assert not one.is_acting, "another one may have it"
