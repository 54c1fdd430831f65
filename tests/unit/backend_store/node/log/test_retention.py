"""What a stream does not keep goes from its beginning, whoever has not come so far."""

from __future__ import annotations

import pytest

from backend_store.model import QueueFull
from backend_store.node.limits import COUNTED_CHUNKS, RETENTION_CHUNKS_PER_COMMIT, RETENTION_STEP_MS
from backend_store.storage.engine import Table
from tests.support.streams import StreamWorld
from tests.support.world import Consumer, receipts_by_seq

DAY_MS = 24 * 3600 * 1000
BOTH = pytest.mark.parametrize("mode", ["offsets", "leases"])


def rows(world: StreamWorld, table: Table) -> int:
    return len(world.engine.scan(table, b"", b"\xff" * 20, 10_000))


def later(world: StreamWorld, ms: int) -> None:
    world.pass_time(ms)
    world.settle_down()


def gone(world: StreamWorld, reason: str = "retention") -> int:
    return world.partition.state.ended.get(reason, 0)


# ---------------------------------------------------------------------------------------------------------- age


def test_messages_go_when_they_are_too_old() -> None:
    world = StreamWorld(retention_ms=10_000)
    world.stored(b"0", b"1")
    later(world, 6_000)
    world.stored(b"2")
    later(world, 4_000 + RETENTION_STEP_MS)
    assert world.kept == [2] and world.partition.state.live == 1 and gone(world) == 2
    assert rows(world, Table.LOG) == 1
    later(world, 6_000)
    assert world.kept == [] and world.partition.state.live_bytes == 0


def test_the_clock_of_retention_is_set_without_anybody_asking() -> None:
    world = StreamWorld(retention_ms=10_000)
    assert world.partition.next_wakeup_ms() is None
    world.stored(b"0")
    wakeup_ms = world.partition.next_wakeup_ms()
    assert wakeup_ms is not None and 0 <= wakeup_ms - world.now_ms - 10_000 <= RETENTION_STEP_MS
    world.crash()
    assert world.partition.next_wakeup_ms() == wakeup_ms


def test_messages_age_as_time_passes_after_a_start_with_an_earlier_clock() -> None:
    world = StreamWorld(retention_ms=10_000)
    world.stored(b"0")
    world.now_ms -= DAY_MS
    world.crash()
    later(world, 5_000)
    world.stored(b"1")
    later(world, 4_000)
    assert world.kept == [0, 1]
    later(world, 2_000)
    assert world.kept == [1]
    later(world, 5_000)
    assert world.kept == []


def test_much_goes_in_small_commits() -> None:
    world = StreamWorld(retention_ms=10_000)
    chunks = 3 * RETENTION_CHUNKS_PER_COMMIT
    for _ in range(chunks):
        world.stored(b"x")
    world.pass_time(20_000)
    commits = 0
    while world.commit():
        commits += 1
        assert rows(world, Table.LOG) >= chunks - commits * RETENTION_CHUNKS_PER_COMMIT
    assert rows(world, Table.LOG) == 0 and commits >= 3


def test_a_shorter_retention_holds_at_once() -> None:
    world = StreamWorld(retention_ms=DAY_MS)
    world.stored(b"0")
    later(world, 3_600_000)
    world.configure(retention_ms=1000)
    world.settle_down()
    assert world.kept == []


def test_without_an_age_everything_stays() -> None:
    world = StreamWorld(retention_ms=None)
    world.stored(b"0")
    later(world, 1000 * DAY_MS)
    assert world.kept == [0] and world.partition.next_wakeup_ms() is None


# -------------------------------------------------------------------------------------------------------- bytes


def test_a_stream_keeps_as_many_bytes_as_it_is_told() -> None:
    world = StreamWorld(retention_bytes=5_000)
    for _ in range(20):
        world.stored(b"x" * 1000)
    state = world.partition.state
    assert 3_000 < state.live_bytes <= 5_000
    assert state.live == len(world.kept) and gone(world) == 20 - state.live
    assert world.kept == list(range(20 - state.live, 20))


def test_the_newest_chunk_stays_however_big_it_is() -> None:
    world = StreamWorld(retention_bytes=100)
    world.stored(b"x" * 1000)
    world.stored(b"y" * 1000)
    assert world.kept == [1]


# ----------------------------------------------------------------------------------------------------- overflow


def test_a_full_stream_drops_its_oldest_messages_one_by_one() -> None:
    world = StreamWorld(max_messages=5, overflow="drop_oldest")
    world.stored(*[b"x"] * 4)
    world.stored(b"x", b"x", b"x")
    assert world.kept == [2, 3, 4, 5, 6] and gone(world, "overflow") == 2
    assert world.partition.state.live == 5
    world.crash()
    assert world.kept == [2, 3, 4, 5, 6]
    world.stored(*[b"x"] * 12)
    assert world.kept == [14, 15, 16, 17, 18] and world.partition.state.live == 5
    assert rows(world, Table.LOG) == 1


def test_a_full_stream_refuses_where_it_is_told_to() -> None:
    world = StreamWorld(max_messages=2)
    world.stored(b"0", b"1")
    answers = world.publish(b"2")
    world.settle_down()
    assert isinstance(answers[0], QueueFull) and world.kept == [0, 1]


def test_a_full_stream_drops_chunks_for_bytes() -> None:
    world = StreamWorld(max_bytes=5_000, overflow="drop_oldest")
    for _ in range(20):
        world.stored(b"x" * 1000)
    assert world.partition.state.live_bytes <= 5_000 and gone(world, "overflow") == 20 - len(world.kept)


@BOTH
def test_a_group_stands_within_the_chunk_that_the_stream_dropped_a_part_of(mode: str) -> None:
    world = StreamWorld(max_messages=5, overflow="drop_oldest")
    group = world.group(mode=mode)
    rests = world.group("rests", mode=mode)
    world.stored(*[b"x"] * 4)
    consumer = Consumer()
    lease = group.leased(1, consumer)
    world.stored(b"x", b"x", b"x")
    assert len(consumer.lost_receipts) == 1 and lease.bits == 0
    assert (group.lag, rests.lag) == (5, 5)
    assert group.drained() == rests.drained() == [2, 3, 4, 5, 6]
    world.crash()
    assert world.found().drained() == [2, 3, 4, 5, 6]


# -------------------------------------------------------------------------------------------------- who reads


def test_a_reader_that_has_had_everything_up_to_a_decision_has_missed_nothing() -> None:
    """Decisions take offsets too: the floor stands behind the last dropped message, not before the next one."""
    world = StreamWorld(retention_ms=10_000)
    world.stored(b"0")
    group = world.group(mode="leases")
    group.ack(receipts_by_seq(group.leased())[0])
    after = 1
    later(world, 9_000)
    world.stored(b"later")
    later(world, 2_000)
    assert world.partition.state.floor == after < world.kept[0]


@BOTH
def test_retention_wins_over_groups(mode: str) -> None:
    world = StreamWorld(retention_ms=10_000)
    world.stored(b"0", b"1")
    group, rests = world.group(mode=mode), world.group("rests", mode=mode)
    consumer = Consumer()
    receipts = receipts_by_seq(group.leased(2, consumer, visibility_ms=60_000))
    later(world, 9_000)
    first = world.stored(b"2", b"3").base
    later(world, 2_000)
    assert sorted(consumer.lost_receipts) == sorted(receipts.values())
    assert group.ack(*receipts.values()) == [False, False]
    assert (group.lag, rests.lag) == (2, 2)
    assert group.drained() == rests.drained() == [first, first + 1]
    assert group.view.core.in_flight == 2


@BOTH
def test_a_group_learns_once_what_it_missed(mode: str) -> None:
    world = StreamWorld(retention_ms=10_000)
    group, _, ahead = (world.group(name, mode=mode) for name in ("g", "rests", "ahead"))
    world.stored(b"0", b"1")
    assert all(group.ack(receipts_by_seq(group.leased())[0]))
    assert all(ahead.ack(*receipts_by_seq(ahead.leased(2)).values()))
    calls: list[object] = []
    group.group.on_gap = lambda: calls.append(group.group.take_gap())
    later(world, 5_000)
    kept = world.stored(b"2").base
    later(world, 6_000)
    assert calls == [(1 if mode == "offsets" else 0, 1)]
    assert (group.group.take_gap(), ahead.group.take_gap()) == (None, None)
    world.settle_down()
    world.crash()
    assert world.found("g").group.take_gap() is None, "it was told"
    assert world.found("rests").group.take_gap() == (0, 1), "nobody was there"
    assert world.found("rests").drained() == [kept]
    world.settle_down()
    world.crash()
    assert world.found("rests").group.take_gap() is None


@BOTH
def test_a_group_that_begins_below_the_floor_learns_it_too(mode: str) -> None:
    world = StreamWorld(max_messages=2, overflow="drop_oldest")
    world.stored(*[b"x"] * 6)
    assert world.group(wanted={"seq": 1}, mode=mode).group.take_gap() == (1, 3)
    assert world.group("other", wanted="earliest", mode=mode).group.take_gap() is None


@BOTH
def test_a_purge_is_a_gap_for_those_it_took_something_from(mode: str) -> None:
    world = StreamWorld()
    world.stored(b"0", b"1")
    behind, ahead = world.group("behind", mode=mode), world.group("ahead", "latest", mode)
    world.purge()
    world.settle_down()
    assert (behind.group.take_gap() is None, ahead.group.take_gap() is None) == (False, True)


def test_marks_below_the_floor_go() -> None:
    world = StreamWorld(retention_ms=10_000)
    for _ in range(3):
        world.stored(b"a", b"b")
    group, rests = world.group(mode="leases"), world.group("rests", mode="leases")
    for one in (group, rests):
        consumer = Consumer()
        one.drained(consumer)
        receipts = {seq: r for lease in consumer.leases for seq, r in receipts_by_seq(lease).items()}
        one.ack(receipts[1], receipts[4])
        one.give_back(consumer)
    world.crash()
    world.found("g").drained()
    assert rows(world, Table.MARKS) > 0
    assert [world.found(name).lag for name in ("g", "rests")] == [4, 4]
    later(world, 20_000)
    assert rows(world, Table.MARKS) == rows(world, Table.RETRY) == rows(world, Table.LOG) == 0
    assert [world.found(name).lag for name in ("g", "rests")] == [0, 0]
    world.stored(b"new")
    world.crash()
    assert [world.found(name).lag for name in ("g", "rests")] == [1, 1]


@BOTH
def test_the_lag_stays_exact_while_messages_go(mode: str) -> None:
    world = StreamWorld(retention_ms=10_000)
    names = [f"g{number}" for number in range(4)]
    for number, name in enumerate(names):
        world.stored(b"a", b"b", b"c")
        world.stored_with_holes(b"a", b"b", b"c", holes=0b010)
        group = world.group(name, "earliest", mode)
        consumer = Consumer()
        for _ in range(number):
            lease = group.leased(2, consumer)
            group.ack(*receipts_by_seq(lease).values())
        later(world, 4_000)
        if number == 2:
            world.crash()
        for other in names[: number + 1]:
            found = world.found(other)
            marks = found.group.lag
            world.settle_down()
            view = found.view
            ready = []
            taker = Consumer()
            while (lease := found.take(64, taker)) is not None:
                ready += list(receipts_by_seq(lease))
            assert marks == len(ready), (number, other)
            for lease in taker.leases:
                view.unsent(lease)
            world.settle_down()


def test_counts_of_what_is_dropped_go_too() -> None:
    world = StreamWorld(retention_ms=10_000)
    for _ in range(3 * COUNTED_CHUNKS):
        world.stored(b"x")
    assert rows(world, Table.GROUPS) == 3
    later(world, 20_000)
    assert rows(world, Table.GROUPS) == 0
    world.stored(b"y")
    assert [world.group("g", {"seq": seq}).lag for seq in (0, world.kept[0], world.kept[0] + 1)] == [1, 1, 0]


def test_a_crash_between_drops_leaves_the_rest_for_later() -> None:
    world = StreamWorld(retention_ms=10_000)
    for _ in range(2 * RETENTION_CHUNKS_PER_COMMIT):
        world.stored(b"x")
    world.pass_time(20_000)
    world.committer.prepare()
    world.crash(landed=True)
    assert world.partition.state.live == RETENTION_CHUNKS_PER_COMMIT == len(world.kept)
    later(world, 1000)
    assert world.kept == []
