"""Which host owns which lane."""

import pytest

from backend_store.core.host_lanes.adoption import adopted
from backend_store.core.host_lanes.limits import LANES_PER_QUEUE_MAX
from backend_store.core.host_lanes.table import first_lanes
from backend_store.core.partitions.slots import first_table, moved
from backend_store.model import InvalidRequest


def test_each_host_has_a_lane_of_its_own_and_none_is_owned_before_its_host_is_there() -> None:
    table = first_lanes({"east": ["a", "b"], "west": ["c", "d"]}, min_in_sync=2)
    assert [table.lane_of(host) for host in "abcd"] == [0, 1, 2, 3]
    assert table.lane_of("e") is None and table.owned_by("a") == []
    assert [(lane.cluster, lane.holders) for lane in table.lanes.values()] == [
        ("east", ("a", "b")),
        ("east", ("b", "a")),
        ("west", ("c", "d")),
        ("west", ("d", "c")),
    ]


def test_slots_are_spread_over_the_lanes_as_over_partitions() -> None:
    assert first_lanes({"": ["a", "b", "c"]}, min_in_sync=2).slots == first_table(3)


def test_a_queue_of_fewer_hosts_than_must_be_in_sync_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="add hosts or lower it"):
        first_lanes({"": ["a"]}, min_in_sync=2)


@pytest.mark.parametrize("hosts", [0, LANES_PER_QUEUE_MAX + 1])
def test_a_queue_has_a_bounded_number_of_lanes(hosts: int) -> None:
    with pytest.raises(InvalidRequest, match="hosts"):
        first_lanes({"": [f"h{number}" for number in range(hosts)]}, min_in_sync=1)


def test_a_lane_may_be_held_by_fewer_hosts_than_there_are() -> None:
    table = first_lanes({"": ["a", "b", "c", "d"]}, min_in_sync=2, holders_max=3)
    assert table.lanes[3].holders == ("d", "a", "b")


def test_an_adoption_makes_a_new_table_and_no_new_slot_table() -> None:
    table = first_lanes({"": ["a", "b"]}, min_in_sync=1)
    after = adopted(table, 1, "a", {"a": 1})
    assert after.version == table.version + 1 and after.slots is table.slots
    assert after.lanes[1].version == after.version and after.lanes[0].version == table.lanes[0].version


def test_an_older_slot_table_changes_nothing() -> None:
    table = first_lanes({"": ["a", "b"]}, min_in_sync=1)
    after = table.with_slots(moved(table.slots, [0], 1))
    assert after.version == 2 and after.with_slots(table.slots) is after
