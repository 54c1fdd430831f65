"""Which moves of a plan begin: the limits, each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from backend_store.core.outer.clusters import Cluster, Report
from backend_store.core.outer.limits import (
    ATTEMPTS_MAX,
    MERGE_AFTER_MS,
    MERGE_BELOW,
    RELIEF_DRAIN_MS,
    RELIEF_MOVES_MAX,
    RELIEF_REFUSED_MS,
    RELIEF_REST_MS,
    RELIEF_SEEN_MS,
    REPORT_MS_MAX,
)
from backend_store.core.outer.merging import ColdQueue, ColdQueues, Shared
from backend_store.core.outer.moving import Attempt, Attempts, NotBegun, Planned, UnderWay
from backend_store.core.outer.plans import PlannedMove, PlannedPartitions

NOW_MS = 100_000_000
PLAN = [PlannedMove(f"q{number}", "eu", "us") for number in range(RELIEF_MOVES_MAX + 2)]
HOT = Cluster(Report("eu", NOW_MS, 4, 0.9), is_hot=True)
COOL = Cluster(Report("us", NOW_MS, 4, 0.1))


def tried(queue: str, ago_ms: int, *, is_refused: bool = False) -> Attempt:
    return Attempt("default", queue, "eu", "us", NOW_MS - ago_ms, is_refused)


def begun(
    *known: Attempt,
    eu: Cluster = HOT,
    us: Cluster = COOL,
    under_way: Sequence[UnderWay] = (),
    stood: Sequence[Planned] = PLAN,
    plan: Sequence[Planned] = PLAN,
    cold: Sequence[ColdQueue] = (),
    shared: Sequence[Shared] = (),
) -> list[str]:
    attempts, clusters = Attempts(known, NOW_MS), {"eu": eu, "us": us}
    colds = ColdQueues(cold, shared, clusters, NOW_MS, gaps=set())
    return [one.queue for one in attempts.begin(stood, plan, clusters, under_way, colds)]


def under_way(queue: str, *, since_ms: int = NOW_MS, is_drained: bool = False) -> UnderWay:
    return UnderWay("default", queue, since_ms, is_drained)


def test_so_many_are_under_way_at_once_whoever_began_them() -> None:
    assert begun() == ["q0", "q1"]
    assert begun(under_way=[under_way("another")]) == ["q0"]
    assert begun(under_way=[under_way("another"), under_way("third")]) == []


def test_a_queue_with_two_moves_counts_once() -> None:
    assert begun(under_way=[under_way("another"), under_way("another")]) == ["q0"]


def test_what_has_nothing_left_but_ids_or_a_forgotten_backlog_blocks_no_other() -> None:
    old = NOW_MS - RELIEF_DRAIN_MS
    assert begun(under_way=[under_way("a", is_drained=True), under_way("b", since_ms=old)]) == ["q0", "q1"]
    assert begun(under_way=[under_way("b", since_ms=old + 1)]) == ["q0"]


def test_a_queue_that_is_under_way_does_not_move_again() -> None:
    assert begun(under_way=[under_way("q0", is_drained=True)]) == ["q1", "q2"]
    assert begun(under_way=[UnderWay("acme", "q0", NOW_MS, is_drained=True)]) == ["q0", "q1"], "another tenant's"


def test_what_was_just_begun_counts_before_it_is_seen() -> None:
    assert begun(tried("a", RELIEF_SEEN_MS - 1), tried("b", 0)) == []
    assert begun(tried("a", RELIEF_SEEN_MS - 1), under_way=[under_way("a")]) == ["q0"], "and then once"
    assert begun(tried("a", RELIEF_SEEN_MS)) == ["q0", "q1"]


@pytest.mark.parametrize(
    ("is_refused", "rest_ms"), [(False, RELIEF_REST_MS), (True, RELIEF_REFUSED_MS)], ids=["moved", "refused"]
)
def test_a_queue_is_left_alone_for_its_time(is_refused: bool, rest_ms: int) -> None:
    assert begun(tried("q0", rest_ms - 1, is_refused=is_refused)) == ["q1", "q2"]
    assert begun(tried("q0", rest_ms, is_refused=is_refused)) == ["q0", "q1"]
    assert begun(tried("q0", -rest_ms, is_refused=is_refused)) == ["q0", "q1"], "of a clock that was wrong"


@pytest.mark.parametrize("at_ms", [NOW_MS, NOW_MS - REPORT_MS_MAX - 1], ids=["unhealthy", "silent"])
def test_none_goes_out_of_or_into_a_cluster_that_is_not_well(at_ms: int) -> None:
    is_healthy = at_ms != NOW_MS
    for name, cluster in (("eu", HOT), ("us", COOL)):
        ill = replace(cluster, report=replace(cluster.report, at_ms=at_ms, is_healthy=is_healthy))
        assert begun(**{name: ill}) == []  # type: ignore[arg-type]


def test_none_goes_out_of_a_cool_cluster_or_into_a_hot_one() -> None:
    assert begun(eu=replace(HOT, is_hot=False)) == []
    assert begun(us=replace(COOL, is_hot=True)) == []
    assert begun(plan=[PlannedMove("q0", "eu", "gone")], stood=[PlannedMove("q0", "eu", "gone")]) == []


def test_only_what_was_planned_at_the_look_before_begins() -> None:
    assert begun(stood=[]) == []
    assert begun(stood=[PlannedMove("q0", "us", "eu"), PLAN[2]]) == ["q2"]


def test_a_part_of_a_queue_does_not_move() -> None:
    part = [PlannedMove("q0", "eu", "us", partition=1)]
    assert begun(stood=part, plan=part) == []


SPLIT = PlannedPartitions("wide", 4, ("eu", "us"))


def test_a_split_begins_by_the_same_rules_as_a_move() -> None:
    split: list[Planned] = [SPLIT]
    clusters = {"eu": HOT, "us": COOL}
    [attempt] = Attempts([], NOW_MS).begin(split, split, clusters, [], ColdQueues([], [], clusters, NOW_MS, gaps=set()))
    assert (attempt.of, attempt.source, attempt.to, attempt.is_split) == (("default", "wide"), "eu", "us", True)
    assert begun(stood=[], plan=split) == []
    assert begun(stood=split, plan=split, under_way=[under_way("a"), under_way("b")]) == []
    assert begun(stood=split, plan=split, under_way=[under_way("wide", is_drained=True)]) == []
    assert begun(tried("wide", RELIEF_REST_MS - 1), stood=split, plan=split) == []
    assert begun(stood=split, plan=split, us=replace(COOL, is_hot=True)) == []
    assert begun(stood=split, plan=split, eu=replace(HOT, is_hot=False)) == []


def test_moves_and_splits_count_together() -> None:
    plan: list[Planned] = [PLAN[0], SPLIT, PLAN[1]]
    assert begun(stood=plan, plan=plan) == ["q0", "wide"]


MERGE: list[Planned] = [PlannedMove("wide", "eu", "us", is_merge=True)]
AT_REST = replace(HOT, report=replace(HOT.report, utilisation=0.2), is_hot=False)


def merged(
    *known: Attempt,
    eu: Cluster = AT_REST,
    us: Cluster = COOL,
    under_way: Sequence[UnderWay] = (),
    stood: Sequence[Planned] = MERGE,
    cold_ms: int = MERGE_AFTER_MS,
    needs: float = 0.4,
) -> bool:
    """Whether a queue that both clusters share, and that was cold for so long, begins to be merged into `us`."""
    cold = [ColdQueue("default", "wide", NOW_MS - cold_ms)]
    shared = [Shared("default", "wide", {"eu": needs, "us": 0.1})]
    return bool(begun(*known, eu=eu, us=us, under_way=under_way, stood=stood, plan=MERGE, cold=cold, shared=shared))


def test_a_merge_begins_out_of_a_cluster_that_is_not_hot() -> None:
    assert merged()
    assert not merged(eu=HOT) and not merged(us=replace(COOL, is_hot=True))
    silent = replace(COOL, report=replace(COOL.report, at_ms=NOW_MS - REPORT_MS_MAX - 1))
    assert not merged(us=silent) and not merged(eu=silent)


def test_a_merge_begins_by_the_rules_of_moves() -> None:
    assert not merged(stood=[])
    assert not merged(stood=[PlannedMove("wide", "eu", "us")]), "that was a move"
    assert not merged(under_way=[under_way("a"), under_way("b")])
    assert not merged(tried("wide", RELIEF_REST_MS - 1)) and merged(tried("wide", RELIEF_REST_MS))
    assert not merged(tried("wide", RELIEF_REFUSED_MS - 1, is_refused=True))


def test_what_is_cold_no_more_is_not_merged_though_it_was_planned() -> None:
    room = MERGE_BELOW * COOL.report.nodes - COOL.report.utilisation * COOL.report.nodes
    assert merged(needs=room - 0.01) and not merged(needs=room)
    assert not merged(cold_ms=MERGE_AFTER_MS - 1)
    assert begun(stood=MERGE, plan=MERGE, eu=AT_REST) == [], "it is not shared any more"


def test_a_queue_is_merged_while_the_ids_of_its_split_are_remembered_but_not_while_it_drains() -> None:
    assert merged(under_way=[under_way("wide", is_drained=True)])
    assert not merged(under_way=[under_way("wide")])
    assert merged(under_way=[under_way("wide", since_ms=NOW_MS - RELIEF_DRAIN_MS)])


@pytest.mark.parametrize("clusters", [("eu",), ("eu", "us", "asia")])
def test_what_is_no_half_of_a_queue_is_left_to_people(clusters: tuple[str, ...]) -> None:
    plan = [PlannedPartitions("wide", 4, clusters)]
    assert begun(stood=plan, plan=plan) == []


def test_with_too_many_queues_to_leave_alone_none_begins() -> None:
    known = [tried(f"old{number}", RELIEF_SEEN_MS, is_refused=True) for number in range(ATTEMPTS_MAX - 1)]
    assert begun(*known) == ["q0"]
    assert begun(*known, tried("one more", RELIEF_SEEN_MS)) == []


def test_what_is_over_is_forgotten_and_what_is_not_changes_nothing() -> None:
    new, old = tried("a", 1), tried("b", RELIEF_REST_MS)
    assert Attempts([new], NOW_MS).changed is None
    assert Attempts([new, old], NOW_MS).changed == (new,)


def test_a_refusal_is_of_the_attempt_that_it_answers() -> None:
    known = tried("a", 1)
    attempts = Attempts([known], NOW_MS)
    assert not attempts.end(NotBegun(replace(known, at_ms=known.at_ms - 1), "an older one", is_refused=True))
    assert attempts.end(NotBegun(known, "a stream", is_refused=True)) and attempts.refused == {known.of}
    assert not attempts.end(NotBegun(known, "a stream", is_refused=True)), "it is told once"
    assert attempts.last_ms == 0, "nothing was moved"
