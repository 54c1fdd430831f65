"""Shared queues that are cold: which are merged, into which cluster, and that none goes back and forth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.outer import records
from backend_store.core.outer.clusters import Cluster, Report
from backend_store.core.outer.limits import (
    COLD_QUEUES_MAX,
    HOT_AT,
    MERGE_AFTER_MS,
    MERGE_BELOW,
    MERGE_PLACES_MIN,
    MOVES_PER_ROUND_MAX,
    RELIEF_MOVES_MAX,
    RELIEF_REFUSED_MS,
    RELIEF_REST_MS,
    REPORT_MS_MAX,
    SHRINK_AFTER_MS,
    TARGET,
)
from backend_store.core.outer.managing import Decided, Rules
from backend_store.core.outer.merging import ColdQueue, ColdQueues, QueueMerged, Shared
from backend_store.core.outer.moving import NotBegun
from backend_store.core.outer.relief import Load
from tests.unit.backend_store.core.outer.test_managing import EVERY_MS, World

NOW_MS = 100_000_000
NODES = 4
LONG = NOW_MS - MERGE_AFTER_MS
MINUTES = 60_000
MOVES = Rules(moves_queues=True)


def cluster(name: str, used: float, *, nodes: int = NODES, **fields: bool) -> Cluster:
    report = Report(name, NOW_MS, nodes, used, is_healthy=fields.get("is_healthy", True))
    return Cluster(report, is_hot=fields.get("is_hot", False))


EU, US = cluster("eu", 0.3), cluster("us", 0.1)
WIDE = Shared("default", "wide", {"eu": 0.5, "us": 0.4})


def cold(
    shared: Sequence[Shared] = (WIDE,),
    *clusters: Cluster,
    known: Sequence[ColdQueue] | None = None,
    since_ms: int = LONG,
    gaps: Sequence[str] = (),
) -> ColdQueues:
    if known is None:
        known = [ColdQueue(*one.of, since_ms) for one in shared]
    return ColdQueues(known, shared, {one.name: one for one in clusters or (EU, US)}, NOW_MS, gaps=set(gaps))


def since(found: ColdQueues, known: int = LONG) -> int | None:
    """Since when the one queue is cold, that was so since `known`; None: it is not."""
    changed = found.changed
    return known if changed is None else changed[0].since_ms if changed else None


def test_a_cold_queue_is_merged_into_the_one_of_its_clusters_that_has_most_room_then() -> None:
    assert cold().merges(but=()) == [QueueMerged("default", "wide", "eu", "us")]
    assert cold([WIDE], replace(EU, report=replace(EU.report, utilisation=0.0)), US).merges(but=())[0].to == "eu"
    large = cluster("eu", 0.3, nodes=40)
    assert [one.to for one in cold([WIDE], large, US).merges(but=())] == ["eu"], "room is counted in nodes"
    asia = cluster("asia", 0.0)
    assert cold([WIDE], EU, US, asia).merges(but=())[0].to == "us", "no other cluster takes it"


def test_a_queue_stays_split_where_no_cluster_would_stay_clearly_cool_with_all_of_it() -> None:
    needs = MERGE_BELOW * NODES - 0.1 * NODES
    only_us = replace(EU, report=replace(EU.report, utilisation=MERGE_BELOW))
    for too_much, merges in ((0.0, 0), (-0.01, 1)):
        shared = [replace(WIDE, needs={"eu": needs + too_much, "us": 0.0})]
        assert len(cold(shared, only_us, US).merges(but=())) == merges


@pytest.mark.parametrize(
    "eu",
    [
        cluster("eu", 0.75, is_hot=True),
        cluster("eu", 0.3, is_healthy=False),
        replace(EU, report=replace(EU.report, at_ms=NOW_MS - REPORT_MS_MAX - 1)),
        cluster("another", 0.3),
    ],
    ids=["hot", "ill", "silent", "never heard"],
)
def test_nothing_is_merged_while_one_of_its_clusters_is_not_well(eu: Cluster) -> None:
    found = cold([WIDE], eu, US)
    assert found.merges(but=()) == [] and found.changed == (), "and the time begins anew"
    assert not found.may_merge("default", "wide", source="eu", to="us")


def test_it_is_merged_when_it_was_cold_for_long_without_a_break() -> None:
    assert cold(since_ms=LONG + 1).merges(but=()) == []
    assert since(cold()) == LONG
    assert since(cold(known=[])) == NOW_MS
    assert since(cold(gaps=["us"])) == NOW_MS, "what was not seen is not counted"
    assert since(cold(gaps=["asia"])) == LONG
    assert since(cold(since_ms=NOW_MS + REPORT_MS_MAX + 1)) == NOW_MS, "of a clock that was wrong"


def test_a_queue_that_could_not_be_split_often_any_more_stays_split() -> None:
    assert since(cold([replace(WIDE, places_left=MERGE_PLACES_MIN)])) == LONG
    assert since(cold([replace(WIDE, places_left=MERGE_PLACES_MIN - 1)])) is None


def test_what_is_not_measured_at_a_look_is_neither_cold_nor_hot() -> None:
    unknown = replace(WIDE, needs={"eu": 0.0, "us": 0.0}, is_measured=False)
    found = cold([unknown])
    assert since(found) == LONG and found.merges(but=()) == []
    assert cold([unknown], known=[]).changed is None


def test_what_is_shared_no_more_is_forgotten() -> None:
    assert cold([], known=[ColdQueue("default", "wide", LONG)]).changed == ()


def test_a_cluster_that_takes_one_has_less_room_for_the_next() -> None:
    shared = [Shared("default", f"q{at}", {"eu": 0.5, "us": 0.1}) for at in range(6)]
    done = cold(shared, cluster("eu", 0.8), cluster("us", 0.1)).merges(but=[("default", "q0")])
    assert [(one.queue, one.to) for one in done] == [("q1", "us"), ("q2", "us"), ("q3", "us")]


def test_so_many_are_watched_and_merged_in_a_round_at_most_and_who_waits_longest_is_watched_on() -> None:
    shared = [Shared("default", f"q{at}", {"eu": 0.0, "us": 0.0}) for at in range(COLD_QUEUES_MAX + 2)]
    known = [ColdQueue(*one.of, LONG) for one in shared[2:]]
    found = cold(shared, known=known)
    assert found.changed is None and len(found.merges(but=())) == MOVES_PER_ROUND_MAX


def test_a_merge_of_a_plan_holds_between_clusters_that_share_the_queue() -> None:
    assert cold().may_merge("default", "wide", source="eu", to="us")
    assert not cold().may_merge("default", "wide", source="asia", to="us")
    assert not cold().may_merge("default", "wide", source="eu", to="asia")
    assert not cold().may_merge("acme", "wide", source="eu", to="us")


Needs = st.lists(st.lists(st.floats(0.0, 0.6), min_size=3, max_size=3), min_size=1, max_size=20)


@given(Needs, st.lists(st.floats(0.0, 2.0), min_size=3, max_size=3))
def test_a_round_of_merges_heats_nobody(queues: list[list[float]], base: list[float]) -> None:
    names = ["eu", "us", "asia"]
    shared = [Shared("t", f"q{at}", dict(zip(names, needs, strict=True))) for at, needs in enumerate(queues)]
    used = {name: own + sum(one.needs[name] for one in shared) for name, own in zip(names, base, strict=True)}
    clusters = [cluster(name, part / NODES, is_hot=part / NODES >= HOT_AT) for name, part in used.items()]
    after = dict(used)
    done = cold(shared, *clusters).merges(but=())
    for one in done:
        [needs] = [other.needs for other in shared if other.queue == one.queue]
        for name in names:
            after[name] += sum(needs.values()) - needs[name] if name == one.to else -needs[name]
    for one in done:
        assert after[one.to] < MERGE_BELOW * NODES
    assert all(after[name] <= used[name] + 1e-9 for name in names if name not in {one.to for one in done})


def test_the_limits_leave_room_between_them() -> None:
    assert MERGE_BELOW < TARGET and HOT_AT / MERGE_BELOW > 1.5
    assert MERGE_AFTER_MS >= RELIEF_REFUSED_MS and 4 * max(RELIEF_REST_MS, SHRINK_AFTER_MS) <= MERGE_AFTER_MS


# ---------------------------------------------------------------------------------------------- look by look


@dataclass
class Clusters:
    """Two clusters with one queue that needs as much as a test says, and a manager: what it begins is done at once."""

    base: Mapping[str, float] = field(default_factory=lambda: {"eu": 0.4, "us": 1.2})
    """What the clusters do besides, in nodes' worth."""
    world: World = field(default_factory=lambda: World(named=("eu", "us"), rules=MOVES))
    shares: dict[str, float] = field(default_factory=lambda: {"eu": 1.0})
    changed_ms: list[int] = field(default_factory=list)

    def look(self, needs: float) -> None:
        world = self.world
        parts = {name: needs * share for name, share in self.shares.items()}
        used = {name: (base + parts.get(name, 0.0)) / NODES for name, base in self.base.items()}
        if len(self.shares) > 1:
            world.look(shared=[Shared("default", "wide", parts)], nodes=NODES, **used)
        else:
            [name] = parts
            hot = used[name] >= HOT_AT
            world.look(loads=[Load("default", "wide", name, needs)] if hot else [], nodes=NODES, **used)
        for one in world.moved[len(self.changed_ms) :]:
            self.shares = {one.source: 0.5, one.to: 0.5} if one.is_split else {one.to: 1.0}
            self.changed_ms.append(world.now_ms)

    def looks(self, for_ms: int, needs: Callable[[int], float]) -> None:
        for passed_ms in range(0, for_ms, EVERY_MS):
            self.look(needs(passed_ms))

    @property
    def did(self) -> list[str]:
        return ["split" if one.is_split else "merge" if one.is_merge else "move" for one in self.world.moved]


def test_a_queue_is_split_while_it_is_hot_merged_when_it_was_cool_for_long_and_not_split_again() -> None:
    clusters = Clusters()
    clusters.looks(10 * MINUTES, lambda _: 3.0)
    assert clusters.did == ["split"] and clusters.shares == {"eu": 0.5, "us": 0.5}
    cool_ms = clusters.world.now_ms
    clusters.looks(MERGE_AFTER_MS, lambda _: 0.9)
    assert clusters.did == ["split"], "it waits"
    clusters.looks(2 * MINUTES, lambda _: 0.9)
    assert clusters.did == ["split", "merge"] and clusters.shares == {"eu": 1.0}
    assert clusters.changed_ms[-1] - cool_ms > MERGE_AFTER_MS
    clusters.looks(MERGE_AFTER_MS, lambda _: 0.9)
    clusters.looks(MERGE_AFTER_MS, lambda _: 0.9 * 1.5)
    assert clusters.did == ["split", "merge"], "nor by the next small rise"
    clusters.looks(10 * MINUTES, lambda _: 3.0)
    assert clusters.did == ["split", "merge", "split"]


@pytest.mark.parametrize("minutes", [3, 15, 45])
def test_a_load_that_rises_and_falls_splits_a_queue_once(minutes: int) -> None:
    clusters = Clusters()
    clusters.looks(3 * 60 * MINUTES, lambda ms: 3.0 if ms // (minutes * MINUTES) % 2 == 0 else 0.1)
    assert clusters.did == ["split"]


def test_a_load_that_is_above_what_one_cluster_does_clearly_cool_stays_split() -> None:
    clusters = Clusters()
    clusters.looks(10 * MINUTES, lambda _: 3.0)
    clusters.looks(2 * MERGE_AFTER_MS, lambda _: 1.7)
    assert clusters.did == ["split"]


# ----------------------------------------------------------------------------------------------- what is told


def at_rest(rules: Rules = MOVES, *, names: Sequence[str] = ("wide",)) -> tuple[World, list[Shared]]:
    """They have been cold for as long as it takes at the next look."""
    world = World(named=("eu", "us"), rules=rules)
    shared = [Shared("default", name, {"eu": 0.2, "us": 0.2}) for name in names]
    world.look(eu=0.3, us=0.12, shared=shared)
    long_ago_ms = world.now_ms + EVERY_MS - MERGE_AFTER_MS
    world.write(Decided(cold=tuple(ColdQueue("default", name, long_ago_ms) for name in names)))
    return world, shared


def told(world: World) -> list[tuple[str, str, str]]:
    events = records.events_of(world.all)
    return [(event.kind, event.cluster, event.text) for event in events if event.kind in ("relief", "moves")]


def test_a_merge_is_planned_then_begun_and_both_are_told() -> None:
    world, shared = at_rest()
    world.look(eu=0.3, us=0.12, shared=shared)
    [planned] = world.memory.proposed.plan.moves
    assert (planned.queue, planned.source, planned.to, planned.is_merge) == ("wide", "eu", "us", True)
    assert not world.moved
    world.look(eu=0.3, us=0.12, shared=shared)
    assert told(world) == [
        ("relief", "us", "the cluster could handle all of 'wide'; see `pushq cluster plan`"),
        ("moves", "us", "12% used: queue 'wide' is merged into 'us'"),
    ]
    assert [(one.queue, one.is_merge) for one in world.memory.attempts] == [("wide", True)], "the next manager knows"
    refused = NotBegun(world.moved[0], "queue 'wide' is on its way", is_refused=True)
    world.look(eu=0.3, us=0.12, shared=shared, not_begun=[refused])
    text = "queue 'wide' is not merged into 'us', and is not retried for 60 minutes: queue 'wide' is on its way"
    assert told(world)[-1] == ("moves", "us", text)
    world.look(eu=0.3, us=0.12, shared=shared)
    assert not world.memory.proposed.plan.moves, "it is not planned meanwhile"


def test_a_merge_is_only_shown_where_queues_are_not_had_moved() -> None:
    world, shared = at_rest(Rules())
    for _ in range(3):
        world.look(eu=0.3, us=0.12, shared=shared)
    assert world.memory.proposed.plan.moves and not world.moved


def test_the_time_is_known_to_the_next_manager() -> None:
    world, shared = at_rest()
    world.look(eu=0.3, us=0.12, shared=[replace(shared[0], is_measured=False)])
    assert not world.memory.proposed.plan.moves, "its first look measures nothing"
    world.look(eu=0.3, us=0.12, shared=shared)
    assert world.memory.proposed.plan.moves


def test_while_nobody_managed_no_time_passed() -> None:
    world, shared = at_rest()
    world.now_ms += REPORT_MS_MAX
    world.look(eu=0.3, us=0.12, shared=shared)
    assert [one.since_ms for one in world.memory.cold] == [world.now_ms] and not world.memory.proposed.plan.moves


def test_while_a_cluster_is_to_be_cooled_nothing_is_merged() -> None:
    world, shared = at_rest()
    world.named = ("eu", "us", "asia")
    orders = Load("default", "orders", "asia", 1.0)
    for _ in range(2):
        world.look(eu=0.3, us=0.12, asia=0.9, shared=shared, loads=[orders])
    assert [(one.queue, one.is_merge) for one in world.moved] == [("orders", False)]


def test_few_are_merged_at_once() -> None:
    names = [f"q{number}" for number in range(RELIEF_MOVES_MAX + 2)]
    world, shared = at_rest(names=names)
    for _ in range(2):
        world.look(eu=0.3, us=0.12, shared=shared)
    assert [one.queue for one in world.moved] == names[:RELIEF_MOVES_MAX]
