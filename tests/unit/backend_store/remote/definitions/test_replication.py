"""Where a queue may lie that asks how it is copied, by what a cluster's backends say of their shards."""

from __future__ import annotations

import pytest

from backend_store.model import QueueConfig, QueueDefinition, Replication
from backend_store.remote.definitions.replication import Copying, Site
from backend_store.wire.store_frames import Copies

SYNC, ASYNC, UNPLACED = Copies("sync", 3, 2), Copies("async", 3, 2), Copies()
LEADERS = Copying((SYNC, SYNC, ASYNC), "sync", 0)
HOSTS = Copying((SYNC, SYNC, SYNC), "sync", 3)


def definition(shard: int = 0, *, single_lane: bool = False) -> QueueDefinition:
    return QueueDefinition(1, "t", "q", QueueConfig(), 1, 1, shard=shard, single_lane=single_lane)


@pytest.mark.parametrize(
    ("asked", "among"),
    [
        (Replication(), (0, 1)),
        (Replication(mode="sync"), (0, 1)),
        (Replication(mode="async"), (2,)),
        (Replication(factor=3, mode="sync", min_in_sync=2, model="leader_follower"), (0, 1)),
        (Replication(factor=5), None),
        (Replication(min_in_sync=3), None),
        (Replication(model="independent_hosts"), None),
    ],
)
def test_a_queue_lies_in_a_shard_that_is_copied_as_it_asks(asked: Replication, among: tuple[int, ...] | None) -> None:
    site = LEADERS.site(asked, needs_one=False)
    assert site == (Site(among, has_lanes=False) if among is not None else None)


@pytest.mark.parametrize(
    ("asked", "needs_one", "site"),
    [
        (Replication(), False, Site((), has_lanes=True)),
        (Replication(model="independent_hosts"), False, Site((), has_lanes=True)),
        (Replication(model="leader_follower"), False, Site((0, 1, 2), has_lanes=False)),
        (Replication(), True, Site((0, 1, 2), has_lanes=False)),
        (Replication(model="independent_hosts"), True, None),
        (Replication(mode="async"), False, None),
    ],
)
def test_at_independent_hosts_a_queue_has_a_lane_at_each_or_one_that_is_led(
    asked: Replication, needs_one: bool, site: Site | None
) -> None:
    assert HOSTS.site(asked, needs_one=needs_one) == site


def test_where_all_but_the_definitions_is_async_a_queue_that_asks_for_nothing_lies_anywhere() -> None:
    copying = Copying((SYNC, ASYNC, ASYNC), "async", 0)
    assert copying.site(Replication(), needs_one=False) == Site((0, 1, 2), has_lanes=False)
    assert copying.site(Replication(mode="sync"), needs_one=False) == Site((0,), has_lanes=False)


def test_a_shard_that_is_not_placed_yet_takes_no_queue() -> None:
    copying = Copying((SYNC, UNPLACED, UNPLACED), "sync", 0)
    assert copying.site(Replication(), needs_one=False) == Site((0,), has_lanes=False)
    assert copying.site(Replication(mode="async"), needs_one=False) is None


def test_backends_that_do_not_say_take_what_asks_for_nothing_anywhere() -> None:
    assert Copying((), "sync", 0).site(Replication(), needs_one=False) == Site((), has_lanes=False)
    assert Copying((), "sync", 3).site(Replication(), needs_one=False) == Site((), has_lanes=True)


def test_a_queue_is_shown_as_its_shard_is_copied() -> None:
    assert LEADERS.of(definition(1)) == Replication(3, "sync", 2, "leader_follower")
    assert LEADERS.of(definition(2)) == Replication(3, "async", 2, "leader_follower")
    assert LEADERS.of(definition(7)) == Replication()


def test_a_queue_with_lanes_is_shown_with_what_all_of_them_have() -> None:
    hosts = Copying((SYNC, ASYNC, Copies("async", 2, 2)), "async", 3)
    assert hosts.of(definition()) == Replication(2, "async", 2, "independent_hosts")
    assert hosts.of(definition(0, single_lane=True)) == Replication(3, "sync", 2, "leader_follower")
