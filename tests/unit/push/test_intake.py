"""What is let in: sockets at a pace, publishes while there is room, and less at each level of load."""

from __future__ import annotations

import pytest

from backend_store.model import Overloaded, QueueConfig
from push.intake import Intake
from throttling.admission import Level
from throttling.census import Who
from throttling.gcra import NS_PER_S

RELAXED = QueueConfig(durability="relaxed")
FSYNC = QueueConfig()
KNOWN = Who("acme", "key", "192.0.2.9")


def intake(chance: float = 0.5, **options: int) -> Intake:
    return Intake(clock_ns=lambda: NS_PER_S, chance=lambda: chance, **options)


def refused(load: Intake, config: QueueConfig) -> bool:
    """As the hot path asks."""
    if not load.publishes:
        return False
    try:
        load.check_publish(config)
    except Overloaded:
        return True
    return False


def test_sockets_above_the_pace_are_told_a_time_of_their_own() -> None:
    for chance, retry_ms in ((0.0, 1_000), (0.5, 15_500), (1.0, 30_000)):
        door = intake(chance, accepts_per_s=10, accepts_burst=2)
        assert [door.refusal_by_pace(KNOWN) for _ in range(2)] == [None, None]
        refusal = door.refusal_by_pace(KNOWN)
        assert refusal is not None and (refusal.code, refusal.retry_after_ms) == ("overloaded", retry_ms)
        assert door.refused == {("socket", "pace"): 1}


def test_strangers_take_nothing_from_those_who_are_known_nor_all_from_each_other() -> None:
    door = intake(accepts_per_s=200, accepts_burst=500)
    flood, other = Who(address="192.0.2.1"), Who(address="192.0.2.2")
    assert [door.refusal_by_pace(flood) for _ in range(5000)].count(None) == 450
    assert door.refused == {("socket", "strangers"): 4550}
    assert door.refusal_by_pace(other) is None
    assert [door.refusal_by_pace(KNOWN._replace(address="192.0.2.1")) for _ in range(450)] == [None] * 450


def test_the_addresses_of_one_ipv6_network_are_one_stranger() -> None:
    door = intake(accepts_per_s=10, accepts_burst=10)
    assert [door.refusal_by_pace(Who(address=f"2001:db8::{n:x}")) for n in range(20)].count(None) == 9


def test_one_principal_leaves_room_for_others() -> None:
    door = intake(accepts_per_s=10, accepts_burst=10)
    assert [door.refusal_by_pace(KNOWN) for _ in range(20)].count(None) == 9
    assert door.refusal_by_pace(KNOWN._replace(principal="another")) is None


def test_a_full_process_and_one_under_load_let_nobody_in_and_spend_no_pace() -> None:
    door = intake(accepts_burst=1)
    assert "100 connections" in str(door.refusal_of_socket(100, 100))
    door.set_level(Level.NO_NEW_SOCKETS, "the event loop is 150 ms late")
    assert "150 ms late" in str(door.refusal_of_socket(0, 100))
    door.set_level(Level.NORMAL, "")
    assert door.refusal_of_socket(0, 100) is None and door.refusal_by_pace(KNOWN) is None
    assert door.refused == {("socket", "full"): 1, ("socket", "load"): 1}


@pytest.mark.parametrize(
    ("level", "relaxed", "fsync"),
    [
        (Level.NORMAL, False, False),
        (Level.NO_NEW_SOCKETS, False, False),
        (Level.NO_REPLAYS, True, False),
        (Level.NO_PUBLISHES, True, True),
    ],
)
def test_publishes_that_do_not_wait_for_the_disk_are_refused_first(level: Level, relaxed: bool, fsync: bool) -> None:
    load = intake()
    load.set_level(level, "memory")
    assert (refused(load, RELAXED), refused(load, FSYNC)) == (relaxed, fsync)


def test_a_backlog_refuses_publishes_at_any_level_until_it_is_over() -> None:
    load = intake()
    load.set_backlog(80.0)
    with pytest.raises(Overloaded, match="80 ms for the disk"):
        load.check_publish(FSYNC)
    load.set_backlog(None)
    assert not refused(load, FSYNC)
    assert load.refused == {("publish", "backlog"): 1}


def test_credit_is_halved_from_the_first_level_on() -> None:
    load = intake()
    for level in Level:
        load.set_level(level, "")
        assert load.credit_shift == (level > 0)


def test_a_storm_of_one_tenant_is_refused_and_others_are_not() -> None:
    load = intake(unconfirmed_bytes_max=1000)
    load.take("storm", 500)
    with pytest.raises(Overloaded, match="no room for 100 bytes of tenant 'storm'"):
        load.take("storm", 100)
    load.take("quiet", 100)
    assert load.refused == {("publish", "room"): 1}


def test_subscriptions_are_refused_where_only_what_ends_messages_is_taken() -> None:
    load = intake()
    load.set_level(Level.NO_REPLAYS, "")
    load.check_subscribe()
    load.set_level(Level.NO_PUBLISHES, "82% of the memory limit is used")
    with pytest.raises(Overloaded, match="82%"):
        load.check_subscribe()


def test_after_a_refusal_publishes_are_looked_at_by_their_head_until_none_is_refused() -> None:
    load = intake()
    assert not load.is_tight
    load.met_end()
    assert load.is_tight
    load.look()
    assert load.is_tight, "one was refused since the last look"
    load.look()
    assert not load.is_tight
    load.set_backlog(80.0)
    load.look()
    load.look()
    assert load.is_tight, "as long as publishes are refused"
