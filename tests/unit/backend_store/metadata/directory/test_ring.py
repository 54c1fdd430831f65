"""The ring: hosts that come and go move few names, and each arc is kept by two."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from backend_store.metadata.directory.core.names import arc_of
from backend_store.metadata.directory.core.ring import NO_RING, Ring, changed
from backend_store.metadata.directory.limits import ARCS, COPIES, HOSTS_MAX


def urls(count: int) -> dict[str, str]:
    return {f"h{number:02}": f"ws://h{number}" for number in range(count)}


def grown(count: int) -> Ring:
    """As hosts come one by one."""
    ring = NO_RING
    for size in range(1, count + 1):
        ring = changed(ring, urls(size))
    return ring


def firsts(ring: Ring) -> list[str]:
    return [hosts[0] for hosts in ring.arcs]


def check(ring: Ring, count: int) -> None:
    assert all(len(set(hosts)) == len(hosts) == min(COPIES, count) for hosts in ring.arcs)
    load = Counter(firsts(ring))
    assert len(load) == min(count, ARCS) and max(load.values()) - min(load.values()) <= 1


def test_a_join_moves_at_most_one_and_a_half_nth_of_the_names() -> None:
    names = [f"queue-{number}" for number in range(20_000)]
    for count in range(2, 13):
        before = grown(count - 1)
        after = changed(before, urls(count))
        check(after, count)
        moved = sum(firsts(before)[arc] != firsts(after)[arc] for arc in (arc_of("q", "t", name) for name in names))
        assert moved <= 1.5 / count * len(names), (count, moved)


def test_a_host_that_leaves_is_succeeded_by_the_second_host_of_its_arcs() -> None:
    before = grown(4)
    left = {name: url for name, url in urls(4).items() if name != "h02"}
    after = changed(before, left)
    check(after, 3)
    gone = [arc for arc in range(ARCS) if before.arcs[arc][0] == "h02"]
    assert sum(after.arcs[arc][0] == before.arcs[arc][1] for arc in gone) >= len(gone) * 0.6
    stayed = [arc for arc in range(ARCS) if before.arcs[arc][0] != "h02"]
    assert sum(after.arcs[arc][0] == before.arcs[arc][0] for arc in stayed) >= len(stayed) * 0.85


@given(st.lists(st.sets(st.integers(0, 39), max_size=40), min_size=1, max_size=12))
def test_whoever_comes_and_goes_every_arc_has_two_hosts_and_loads_are_even(steps: list[set[int]]) -> None:
    ring = NO_RING
    for members in steps:
        ring = changed(ring, {f"h{number:02}": f"ws://h{number}" for number in members})
        count = min(len(members), HOSTS_MAX)
        if count:
            check(ring, count)
            seconds = Counter(hosts[1] for hosts in ring.arcs) if count > 1 else Counter()
            assert not seconds or max(seconds.values()) <= -(-ARCS // count) + 2
        assert changed(ring, ring.urls) is ring


def test_another_address_of_a_host_moves_nothing() -> None:
    before = grown(3)
    after = changed(before, {**urls(3), "h01": "ws://elsewhere"})
    assert after.arcs == before.arcs and after.version == before.version + 1
