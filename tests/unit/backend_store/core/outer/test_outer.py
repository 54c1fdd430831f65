"""The out-cluster manager: hot clusters get nothing, growth and shrinking come late and do not flap."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.outer.choice import choose
from backend_store.core.outer.clusters import Cluster, Report, heard
from backend_store.core.outer.limits import (
    COOL_AT,
    EXPAND_AFTER_MS,
    HOT_AT,
    MOVES_PER_ROUND_MAX,
    NODES_ADDED_MAX,
    PAUSE_MS,
    REPORT_MS_MAX,
    SHRINK_AFTER_MS,
    TARGET,
)
from backend_store.core.outer.relief import Load, QueueMoved, QueueSplit, relieve
from backend_store.core.outer.sizing import Resized, resized, size

EVERY_MS = 10_000


def cluster(name: str, used: float, *, nodes: int = 4, at_ms: int = 0, is_healthy: bool = True) -> Cluster:
    return heard(None, Report(name, at_ms, nodes, used, is_healthy))


def after(one: Cluster, used: float, for_ms: int) -> Cluster:
    """Reports of that utilisation, for so long."""
    end_ms = one.report.at_ms + for_ms
    while one.report.at_ms < end_ms:
        one = heard(one, replace(one.report, at_ms=one.report.at_ms + EVERY_MS, utilisation=used))
    return one


# ------------------------------------------------------------------------------------------------------- choice


def test_a_new_queue_goes_where_most_is_to_spare_and_never_to_a_hot_cluster() -> None:
    clusters = [cluster("hot", HOT_AT, nodes=100), cluster("big", 0.5, nodes=10), cluster("small", 0.1, nodes=3)]
    assert choose(clusters, 0) == "big"
    assert choose([clusters[0]], 0) is None


def test_a_cluster_that_is_silent_or_ill_gets_nothing() -> None:
    assert choose([cluster("ill", 0.1, is_healthy=False)], 0) is None
    assert choose([cluster("silent", 0.1)], REPORT_MS_MAX + 1) is None
    assert choose([cluster("empty", 0.0, nodes=0)], 0) is None


def test_queues_put_there_since_its_last_report_count_before_they_are_reported() -> None:
    clusters = [cluster("a", 0.5), cluster("b", 0.5)]
    pending: dict[str, float] = {}
    for _ in range(8):
        chosen = choose(clusters, 0, expected=0.1, pending=pending)
        assert chosen is not None
        pending[chosen] = pending.get(chosen, 0.0) + 0.1
    assert abs(pending["a"] - pending["b"]) < 0.01
    assert choose([cluster("a", 0.75)], 0, expected=0.3) is None, "it would be hot with it"


def test_a_hot_cluster_takes_queues_again_when_it_is_clearly_cooler() -> None:
    one = cluster("a", HOT_AT)
    one = after(one, (HOT_AT + COOL_AT) / 2, EVERY_MS)
    assert not one.takes_queues(one.report.at_ms)
    one = after(one, COOL_AT, EVERY_MS)
    assert one.takes_queues(one.report.at_ms)


def test_a_report_that_is_late_changes_nothing() -> None:
    one = after(cluster("a", 0.5), 0.5, EVERY_MS)
    assert heard(one, Report("a", 0, 9, 0.99)) is one


# ------------------------------------------------------------------------------------------------------- sizing


def test_a_cluster_grows_after_it_was_hot_for_a_while_by_enough_and_not_at_once_again() -> None:
    one = after(cluster("a", 0.9), 0.9, EXPAND_AFTER_MS - EVERY_MS)
    assert size(one, one.report.at_ms) is None
    one = after(one, 0.9, EVERY_MS)
    assert size(one, one.report.at_ms) == Resized("a", 7, "90% used for 60 s")  # 3.6 of 7 nodes are 51 %
    one = resized(one, one.report.at_ms)
    assert size(after(one, 0.9, PAUSE_MS - EVERY_MS), one.report.at_ms + PAUSE_MS - EVERY_MS) is None
    later = after(one, 0.9, PAUSE_MS)
    assert size(later, later.report.at_ms) is not None


def test_a_single_cool_moment_begins_the_wait_anew_and_so_does_a_silence() -> None:
    one = after(after(cluster("a", 0.9), 0.9, EXPAND_AFTER_MS - EVERY_MS), 0.5, EVERY_MS)
    assert size(after(one, 0.9, EVERY_MS), one.report.at_ms + EVERY_MS) is None
    one = cluster("a", 0.9)
    silent = heard(one, replace(one.report, at_ms=EXPAND_AFTER_MS * 2))
    assert size(silent, silent.report.at_ms) is None


def test_a_report_is_passed_over_only_if_it_is_a_little_older_than_the_last() -> None:
    one = cluster("a", 0.9, at_ms=10 * REPORT_MS_MAX)
    for at_ms in (9 * REPORT_MS_MAX, one.report.at_ms - 1):
        assert heard(one, replace(one.report, at_ms=at_ms, utilisation=0.1)) == one
    after_a_wrong_clock = heard(one, replace(one.report, at_ms=5, utilisation=0.9))
    assert (after_a_wrong_clock.report.at_ms, after_a_wrong_clock.hot_since_ms) == (5, 5)


def test_a_nearly_idle_cluster_gives_one_node_back_and_keeps_what_it_needs() -> None:
    one = after(cluster("a", 0.1, nodes=5), 0.1, SHRINK_AFTER_MS)
    decided = size(one, one.report.at_ms)
    assert decided is not None and decided.nodes == 4
    smallest = after(cluster("a", 0.1, nodes=3), 0.1, SHRINK_AFTER_MS)
    assert size(smallest, smallest.report.at_ms) is None
    ill = replace(one, report=replace(one.report, is_healthy=False))
    assert size(ill, one.report.at_ms) is None


def test_a_cluster_does_not_shrink_below_its_copies_and_lanes_nor_while_it_lacks_copies() -> None:
    one = after(cluster("a", 0.1, nodes=5), 0.1, SHRINK_AFTER_MS)
    assert size(one, one.report.at_ms) is not None
    for more in ({"nodes_needed": 5}, {"copies_missing": 1}):
        assert size(replace(one, report=replace(one.report, **more)), one.report.at_ms) is None


def test_a_cluster_whose_lanes_stay_where_they_are_neither_grows_nor_shrinks() -> None:
    for used, waited_ms in ((0.9, EXPAND_AFTER_MS), (0.1, SHRINK_AFTER_MS)):
        one = after(cluster("a", used, nodes=6), used, waited_ms)
        now_ms = one.report.at_ms
        assert size(one, now_ms) is not None
        assert size(replace(one, report=replace(one.report, is_fixed=True)), now_ms) is None


def test_of_a_cluster_that_is_silent_nothing_is_decided() -> None:
    one = after(cluster("a", 0.9), 0.9, EXPAND_AFTER_MS)
    assert size(one, one.report.at_ms + REPORT_MS_MAX + 1) is None


@given(st.floats(0.0, 40.0), st.integers(3, 60))
def test_under_a_steady_load_sizes_come_to_rest_and_never_go_back(load: float, nodes: int) -> None:
    one = cluster("a", load / nodes, nodes=nodes)
    sizes = [nodes]
    for _ in range(40):
        one = after(one, load / sizes[-1], SHRINK_AFTER_MS + PAUSE_MS)
        decided = size(one, one.report.at_ms)
        if decided is not None:
            assert abs(decided.nodes - sizes[-1]) <= NODES_ADDED_MAX
            sizes.append(decided.nodes)
            one = resized(replace(one, report=replace(one.report, nodes=decided.nodes)), one.report.at_ms)
    steps = {later > earlier for earlier, later in pairwise(sizes)}
    assert len(steps) <= 1, f"it went back and forth: {sizes}"
    if len(sizes) < 40:
        one = after(one, load / sizes[-1], SHRINK_AFTER_MS + PAUSE_MS)
        assert size(one, one.report.at_ms) is None


# ------------------------------------------------------------------------------------------------------- relief


def test_a_hot_cluster_gives_as_few_queues_as_cool_it() -> None:
    clusters = [cluster("hot", 0.9, nodes=10), cluster("cool", 0.2, nodes=10)]
    loads = [Load("t", f"q{number}", "hot", 1.0) for number in range(9)]
    done = relieve(clusters, loads, 0)
    assert done == [QueueMoved("t", "q0", "hot", "cool"), QueueMoved("t", "q1", "hot", "cool")]


def test_a_queue_that_no_cluster_can_take_whole_is_split() -> None:
    clusters = [cluster("hot", 0.95, nodes=4), cluster("cool", 0.2, nodes=4)]
    assert relieve(clusters, [Load("t", "huge", "hot", 3.8)], 0) == [QueueSplit("t", "huge", "hot", "cool", 2)]


def test_where_all_are_hot_nothing_is_moved_in_circles() -> None:
    clusters = [cluster("a", 0.9), cluster("b", 0.85)]
    assert relieve(clusters, [Load("t", "q", "a", 0.2), Load("t", "r", "b", 0.2)], 0) == []


Loads = st.lists(st.tuples(st.integers(0, 3), st.floats(0.05, 3.0)), max_size=30)


@given(Loads, st.lists(st.integers(2, 8), min_size=2, max_size=4))
def test_relief_heats_nobody_and_applied_there_is_no_more(entries: list[tuple[int, float]], nodes: list[int]) -> None:
    names = [f"c{number}" for number in range(len(nodes))]
    loads = [Load("t", f"q{at}", names[where % len(names)], needs) for at, (where, needs) in enumerate(entries)]

    def clusters(now: list[Load]) -> list[Cluster]:
        return [
            cluster(name, sum(one.needs for one in now if one.cluster == name) / count, nodes=count)
            for name, count in zip(names, nodes, strict=True)
        ]

    for _ in range(30):
        before = clusters(loads)
        done = relieve(before, loads, 0)
        assert len(done) <= MOVES_PER_ROUND_MAX
        if not done:
            return
        loads = _applied(loads, done)
        for old, new in zip(before, clusters(loads), strict=True):
            assert new.report.utilisation <= max(old.report.utilisation, COOL_AT) + 1e-9
    raise AssertionError("it goes on and on")


def _applied(loads: list[Load], done: list[QueueMoved | QueueSplit]) -> list[Load]:
    by_queue = {one.queue: one for one in done}
    result = []
    for load in loads:
        match by_queue.get(load.queue):
            case QueueMoved(to=to):
                result.append(replace(load, cluster=to))
            case QueueSplit(to=to):
                half = replace(load, needs=load.needs / 2)
                result += [half, replace(half, cluster=to, queue=load.queue + "+")]
            case None:
                result.append(load)
    return result


def test_the_marks_leave_room_between_them() -> None:
    assert TARGET < COOL_AT < HOT_AT
