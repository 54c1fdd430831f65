"""Plans carried out on one node: they come to their ends, whatever a crash, a purge or a deletion interrupts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backend_store.client.embedded import EmbeddedQueue
from backend_store.core.log.chunk import blocks_of
from backend_store.core.partitions import slots
from backend_store.core.partitions.slots import slot_of
from backend_store.model import AutoExpand, Original, Published, QueueNotFound
from backend_store.storage.engine import Table
from backend_store.storage.keys import META_RESTORED
from backend_store.storage.memory import MemoryEngine
from tests.support.node_world import TENANT, NodeWorld
from tests.support.partitioned import (
    KEYS,
    ack,
    all_taken,
    draft,
    drain,
    drained,
    is_at_rest,
    queue,
    resize,
    rest,
    rows_of,
    send,
    stop_in_a_move,
    table_of,
    taken,
)


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    world = NodeWorld()
    yield world
    world.close()


@pytest.fixture
def big_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan has few moves, so that each commit of it can be looked at."""
    monkeypatch.setattr(slots, "MOVE_SLOTS_MAX", 64)


def numbers(made: EmbeddedQueue) -> list[int]:
    return [partition.index for partition in made._partitions.all]


def fill(world: NodeWorld, made: EmbeddedQueue, start: int = 0, **more: Any) -> None:
    send(world, made, *[draft(start + n, key, **more) for n, key in enumerate(KEYS)])


def give_back(world: NodeWorld, made: EmbeddedQueue, *receipts: str) -> None:
    world.tell(lambda: made.give_back(list(receipts), 0, lambda verdicts: None))
    world.settle()


def in_order(came: list[int], rounds: int) -> bool:
    """Whether each key's messages came in the order of the rounds in which they were published."""
    at = {number: place for place, number in enumerate(came)}
    return all(at[n + 40 * r] < at[n + 40 * (r + 1)] for n in range(40) for r in range(rounds - 1))


# ------------------------------------------------------------------------------------------------------------- plans


@pytest.mark.parametrize("ordering", ["best_effort", "strict"])
def test_a_queue_grows_and_shrinks_while_it_is_in_use(world: NodeWorld, ordering: str) -> None:
    made = queue(world, ordering=ordering)
    fill(world, made)
    for round_, partitions in enumerate((4, 2, 5, 1), start=1):
        resize(world, partitions)
        fill(world, made, 40 * round_)
        world.pass_time(20)
    came = drained(world, made)
    assert sorted(came) == list(range(200))
    assert ordering == "best_effort" or in_order(came, 5)
    rest(world)
    assert numbers(made) == [0]


def test_a_plan_waits_for_the_one_before_it(world: NodeWorld) -> None:
    made = queue(world)
    table = stop_in_a_move(world, 3)
    resize(world, 5)
    assert table_of(world).version == table.version
    world.let_go()
    rest(world)
    assert numbers(made) == [0, 1, 2, 3, 4]


def test_a_queue_at_rest_is_not_looked_at_any_more(world: NodeWorld) -> None:
    queue(world)
    resize(world, 3)
    rest(world)
    world.pass_time(1_000)
    assert world.loop.next_ms is None


def test_receipts_from_before_a_change_still_ack(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    fill(world, made)
    receipts = all_taken(world, made)
    resize(world, 4)
    rest_ms = 500
    world.pass_time(rest_ms)
    assert all(ack(world, made, *receipts.values()))
    rest(world)
    assert made.stats().acked_total == 40


def test_an_id_is_known_wherever_its_slot_has_been(world: NodeWorld) -> None:
    made = queue(world, dedupe="id", dedupe_window_ms=60_000)
    places: dict[int, tuple[int, int]] = {}
    for round_, partitions in enumerate((1, 3, 5, 2, 4)):
        resize(world, partitions)
        world.pass_time(100)
        (answer,) = send(world, made, *[draft(100 * round_ + n, key, id=f"i{n}") for n, key in enumerate(KEYS)])
        assert isinstance(answer, Published)
        if not round_:
            places = {n: (0, answer.base + n) for n in range(40)}
            continue
        assert answer.others is not None
        for n, other in answer.others.items():
            assert isinstance(other, Original) and (other.partition, other.offset) == places[n]
        assert len(answer.others) == 40
    assert made.stats().ready == 40


# ------------------------------------------------------------------------------------------------------------ crashes


@pytest.mark.usefixtures("big_moves")
@pytest.mark.parametrize("landed", [False, True], ids=["lost", "landed"])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_a_crash_at_any_commit_of_a_plan_loses_nothing(world: NodeWorld, before: int, after: int, landed: bool) -> None:
    made = queue(world, ordering="strict", partitions=before, dedupe="id", dedupe_window_ms=500)
    send(world, made, *[draft(n, key, id=f"i{n}") for n, key in enumerate(KEYS)])
    for commits in range(30):
        world.hold(commits)
        resize(world, after)
        world.pass_time(100)
        was_held = world.writer.is_held
        world.crash(landed=landed)
        made = world.queue("q")
        world.pass_time(100)
        (answer,) = send(world, made, *[draft(40 * (commits + 1) + n, KEYS[n], id=f"i{n}") for n in range(3)])
        assert isinstance(answer, Published)
        came = drained(world, made)
        assert came[:40] and not set(came) - set(range(40)) - set(range(40 * (commits + 1), 40 * (commits + 1) + 3))
        rest(world)
        assert len(numbers(made)) == made.config.partitions
        if not was_held:
            break
        resize(world, before)
        world.pass_time(1_000)
        rest(world)
        send(world, made, *[draft(n, key, id=f"i{n}") for n, key in enumerate(KEYS)])
    else:
        raise AssertionError("the plan has more commits than were looked at")


@pytest.mark.usefixtures("big_moves")
@pytest.mark.parametrize("landed", [False, True], ids=["lost", "landed"])
def test_a_crash_at_any_commit_takes_no_message_for_later_from_its_slot(world: NodeWorld, landed: bool) -> None:
    for commits in range(8):
        name = f"q{commits}"
        made = queue(world, name, ordering="strict", partitions=2)
        fill(world, made, due_ms=world.now_ms + 1_000)
        resize(world, 1, name)
        world.pass_time(900)
        world.hold(commits)
        world.pass_time(100)
        all_taken(world, made)
        world.crash(landed=landed)
        made = world.queue(name)
        assert sorted(drained(world, made)) == list(range(40))
        rest(world, name)
        assert numbers(made) == [0]


def test_leases_of_every_partition_outlast_a_clean_stop(world: NodeWorld) -> None:
    made = queue(world, partitions=3)
    fill(world, made)
    receipts = all_taken(world, made)
    world.restart()
    made = world.queue("q")
    assert made.stats().in_flight == 40
    assert all_taken(world, made) == {}
    assert all(ack(world, made, *receipts.values()))


def test_stored_leases_of_every_partition_outlast_a_crash(world: NodeWorld) -> None:
    made = queue(world, partitions=3, lease_mode="replicated")
    fill(world, made)
    receipts = all_taken(world, made)
    world.crash()
    made = world.queue("q")
    assert made.stats().in_flight == 40
    assert all_taken(world, made) == {}
    assert all(ack(world, made, *receipts.values()))


def test_what_is_carried_to_its_slot_at_a_clean_stop_is_carried_after_it(world: NodeWorld) -> None:
    made = queue(world, ordering="strict", partitions=2)
    fill(world, made, due_ms=world.now_ms + 1_000)
    resize(world, 1)
    world.pass_time(999)
    # Its slots are on the move again when it is due: it is held until they have arrived.
    stop_in_a_move(world, 3)
    world.pass_time(1)
    all_taken(world, made)
    world.restart()
    made = world.queue("q")
    world.pass_time(30_000)
    assert sorted(drained(world, made)) == list(range(40))


def test_a_restored_queue_goes_on_with_its_plan(world: NodeWorld) -> None:
    """A backup is a copy of all rows at one moment."""
    made = queue(world, ordering="strict")
    fill(world, made)
    stop_in_a_move(world, 3)
    world.engine._set(Table.META, META_RESTORED, b"1")
    world.crash()
    made = world.queue("q")
    send(world, made, *[draft(40 + n, key) for n, key in enumerate(KEYS)])
    came = drained(world, made)
    assert sorted(came) == list(range(80)) and in_order(came, 2)
    rest(world)
    assert numbers(made) == [0, 1, 2]
    assert {partition.state.epoch for partition in made._partitions.all} <= {1, 2}


@pytest.mark.parametrize("had_two", [False, True], ids=["new", "came again"])
def test_receipts_from_after_a_backup_mean_nothing_once_it_is_restored(world: NodeWorld, had_two: bool) -> None:
    """The partition they are of may have been made since, or have come again, and then its offsets are the same."""
    queue(world)
    if had_two:
        for partitions in (2, 1):
            resize(world, partitions)
            rest(world)
    backup = copy_of(world.engine)
    place = place_in_the_second(world)
    (receipt,) = taken(world, world.queue("q")).values()
    backup._set(Table.META, META_RESTORED, b"1")
    world.engine = backup
    world.crash()
    assert place_in_the_second(world) == place
    assert ack(world, world.queue("q"), receipt) == [False]
    assert drain(world, world.queue("q")) == [1]


def copy_of(engine: MemoryEngine) -> MemoryEngine:
    copy = MemoryEngine()
    copy._rows = {table: dict(rows) for table, rows in engine._rows.items()}
    copy._keys = {table: list(keys) for table, keys in engine._keys.items()}
    return copy


def place_in_the_second(world: NodeWorld) -> tuple[int, int]:
    """Of the first message in the second partition, after its queue grew to two."""
    resize(world, 2)
    rest(world)
    made = world.queue("q")
    key = next(key for key in KEYS if table_of(world).route(slot_of(key)) == 1)
    (answer,) = send(world, made, draft(1, key))
    assert isinstance(answer, Published)
    return answer.partition, answer.base


def test_a_message_that_is_looked_for_where_a_partition_has_just_gone_is_unknown(world: NodeWorld) -> None:
    made = queue(world, partitions=2)
    resize(world, 1)
    looking = world.loop.create_task(made.cancel("nobody"))
    world.loop.turn()
    rest(world)
    assert looking.result() == "unknown" and numbers(made) == [0]


# -------------------------------------------------------------------------------------- purges, deletions, moves away


def test_a_purge_in_the_middle_of_a_move_takes_all_there_is(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    fill(world, made)
    stop_in_a_move(world, 3)
    purging = world.start(made.purge("p"))
    world.let_go()
    assert purging.result().total == 40
    fill(world, made, 40)
    assert sorted(drained(world, made)) == list(range(40, 80))
    rest(world)


def test_a_queue_that_is_deleted_in_the_middle_of_a_move_leaves_nothing(world: NodeWorld) -> None:
    for commits in range(6):
        name = f"q{commits}"
        made = queue(world, name)
        fill(world, made)
        world.hold(commits)
        resize(world, 4, name)
        deleting = world.start(world.store.delete_queue(TENANT, name))
        world.let_go()
        world.pass_time(1_000)
        assert deleting.done() and world.node.metadata.maps == {}
        with pytest.raises(QueueNotFound):
            world.queue(name)
        replicas = list(range(1, world.node.metadata._next_uid))
        assert rows_of(world, replicas) == {}
        left = [key for key, _ in world.engine.scan(Table.META, b"", b"\xff", 1000) if b"queue" not in key]
        assert not [key for key in left if key.startswith((b"slots/", b"book/", b"state/", b"garbage/"))], left
        assert world.loop.next_ms is None and world.node.queues.partitions == {}


def test_a_queue_that_moves_away_in_the_middle_of_a_move_takes_all_along(world: NodeWorld) -> None:
    for commits in range(8):
        name = f"q{commits}"
        made, target = queue(world, name, ordering="strict"), queue(world, f"t{commits}", partitions=2)
        fill(world, made)
        send(world, made, *[draft(40 + n, key, due_ms=world.now_ms + 60_000) for n, key in enumerate(KEYS)])
        resize(world, 2, name)
        world.hold(commits)
        resize(world, 4, name)
        moving = world.start(world.store.move_queue(TENANT, name, target.name))
        world.let_go()
        assert moving.done()
        world.pass_time(60_000)
        assert sorted(drained(world, target)) == list(range(80))
        world.pass_time(1_000)
        replicas = [r for r in range(1, world.node.metadata._next_uid) if r not in world.node.queues.partitions]
        assert rows_of(world, replicas) == {}


def test_a_crash_while_a_queue_moves_away_loses_nothing(world: NodeWorld) -> None:
    for commits in range(8):
        name = f"q{commits}"
        made, target = queue(world, name, ordering="strict", partitions=2), queue(world, f"t{commits}", partitions=3)
        fill(world, made)
        resize(world, 4, name)
        world.hold(commits)
        world.start(world.store.move_queue(TENANT, name, target.name))
        world.crash(landed=commits % 2 == 0)
        if (TENANT, name) in world.node.metadata.queues:
            world.do(world.store.move_queue(TENANT, name, target.name))
        world.pass_time(2_000)
        assert sorted(drained(world, world.queue(target.name))) == list(range(40))


# ------------------------------------------------------------------------------------------------------- by itself


def test_a_queue_grows_by_its_load_and_gives_partitions_up_when_it_is_quiet(world: NodeWorld) -> None:
    rule = AutoExpand(of="partition_messages", limit=10, max_partitions=4)
    made = queue(world, auto_expand=rule)
    fill(world, made)
    world.pass_time(2_000)
    assert numbers(made) == [0, 1, 2, 3]
    drain(world, made)
    world.pass_time(50_000)
    assert numbers(made) == [0, 1, 2, 3]
    world.pass_time(200_000)
    assert numbers(made) == [0]


def test_a_queue_that_grows_by_itself_never_has_fewer_partitions_than_it_is_asked_to(world: NodeWorld) -> None:
    rule = AutoExpand(of="partition_messages", limit=10, max_partitions=4)
    made = queue(world, auto_expand=rule, partitions=2)
    world.pass_time(130_000)
    assert numbers(made) == [0, 1]
    resize(world, 3)
    world.pass_time(2_000)
    assert numbers(made) == [0, 1, 2]


# --------------------------------------------------------------------------------------------------- dead letters


def test_dead_letters_of_a_shrinking_queue_reach_the_other_queue_and_the_partition_goes(world: NodeWorld) -> None:
    other = queue(world, "other", partitions=2)
    made = queue(world, partitions=3, max_attempts=1, dead_letter_queue="other")
    fill(world, made)
    receipts = all_taken(world, made)
    resize(world, 1)
    world.tell(lambda: made.give_back([*receipts.values()], 0, lambda answer: None))
    world.pass_time(2_000)
    rest(world)
    assert made.stats().ready == made.stats().dead == 0 and numbers(made) == [0]
    assert sorted(drained(world, other)) == list(range(40))


def test_consumers_that_wait_are_woken_by_a_partition_that_came_later(world: NodeWorld) -> None:
    made = queue(world)
    woken: list[int] = []
    world.tell(lambda: made.on_ready(lambda: woken.append(len(woken))))
    resize(world, 3)
    rest(world)
    key = next(key for key in KEYS if table_of(world).route(slot_of(key)) == 2)
    before = len(woken)
    send(world, made, draft(1, key))
    assert len(woken) > before and list(taken(world, made)) == [1]


def test_the_plans_of_two_queues_do_not_wait_for_each_other(world: NodeWorld) -> None:
    queue(world, "one")
    queue(world, "two")
    resize(world, 3, "one")
    resize(world, 4, "two")
    world.settle()
    assert is_at_rest(world, "one") and is_at_rest(world, "two")


@pytest.mark.parametrize("overflow", ["reject", "drop_oldest", "dead_letter_oldest", "dead_letter_newest"])
def test_a_queue_above_its_limit_shrinks_and_keeps_every_message(world: NodeWorld, overflow: str) -> None:
    made = queue(world, partitions=3, ordering="strict", overflow=overflow)
    first_ms = world.now_ms + 1_000
    for number, key in enumerate(KEYS):
        send(world, made, draft(number, key, due_ms=first_ms + 200 * number))
    resize(world, 1, max_messages=10)
    assert sorted(drained(world, made)) == list(range(len(KEYS)))
    assert made.ended == {}
    rest(world)
    assert numbers(made) == [0]


@pytest.mark.parametrize("busy", [0, 1])
def test_a_step_in_a_full_queue_of_several_partitions_ends_none_for_what_it_settles(
    world: NodeWorld, busy: int
) -> None:
    made = queue(world, partitions=2, overflow="drop_oldest", max_messages=8)
    of = [[key for key in KEYS if table_of(world).route(slot_of(key)) == number] for number in (0, 1)]
    for number in range(4):
        send(world, made, draft(number, of[0][number]), draft(number + 4, of[1][number]))
    receipts = all_taken(world, made)
    held = receipts.pop(busy * 4)
    give_back(world, made, *receipts.values())
    target = of[1 - busy][0]

    def publish_and_step() -> None:
        made.publish(blocks_of([draft(8, target)]).blocks, lambda result: None)  # its partition decides first
        made.settle_and_publish([held], [(made, blocks_of([draft(9, target)]).blocks)], lambda result: None)

    world.tell(publish_and_step)
    world.settle()
    assert made.stats().ready == 8 and made.ended == {"overflow": 1}, "what the step settles is the room for its own"
