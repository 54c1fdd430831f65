"""A partition's side of the slot table: what it refuses, what it holds back, what follows its slot, when it may go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backend_store.client.embedded import EmbeddedQueue
from backend_store.core.log.sublogs import VIEW_DEAD
from backend_store.core.partitions.slot_moves import SlotState
from backend_store.core.partitions.slots import UNKEYED, slot_of
from backend_store.model import Overloaded, Published, PushqError
from backend_store.node.partition import Partition
from backend_store.node.slots import partition_slots as module
from backend_store.node.slots.partition_slots import PartitionSlots
from tests.support.node_world import NodeWorld
from tests.support.partitioned import (
    KEYS,
    ack,
    all_taken,
    draft,
    drain,
    drained,
    queue,
    resize,
    rest,
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


def slotting_of(made: EmbeddedQueue, number: int) -> PartitionSlots:
    found = made._partitions.get(number)
    assert found is not None and found.slotting is not None
    return found.slotting


def key_of(world: NodeWorld, partition: int) -> str:
    """A key whose slot that partition has now."""
    table = table_of(world)
    return next(key for key in KEYS if table.route(slot_of(key)) == partition)


def grown(world: NodeWorld, partitions: int, backlog: int = 40) -> EmbeddedQueue:
    """A strict queue whose keys have one message each from before it grew."""
    made = queue(world, ordering="strict")
    if backlog:
        send(world, made, *[draft(n, key) for n, key in enumerate(KEYS[:backlog])])
    resize(world, partitions)
    world.settle()
    assert not table_of(world).moves
    return made


# ------------------------------------------------------------------------------------------------------ taking messages


def test_a_call_by_an_old_table_is_refused_and_may_come_again(world: NodeWorld) -> None:
    made = queue(world, partitions=2)
    other: Partition | None = made._partitions.get(1)
    assert other is not None
    answers: list[Published | PushqError] = []
    slots = 1 << slot_of(key_of(world, 0))
    world.tell(lambda: other.publish([], answers.append, slots=slots, version=table_of(world).version))
    world.settle()
    (answer,) = answers
    assert isinstance(answer, Overloaded) and answer.retry_after_ms and "moved" in answer.detail


def test_what_was_promised_room_is_taken_in_any_case(world: NodeWorld) -> None:
    made = queue(world, partitions=2)
    other = made._partitions.get(1)
    assert other is not None
    answers: list[Published | PushqError] = []
    world.tell(lambda: other.publish([], answers.append, must_fit=True, slots=1 << UNKEYED, version=99))
    world.settle()
    assert isinstance(answers[0], Published)


def test_slots_are_sealed_behind_all_that_was_sent_before(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    world.hold(2)
    answers = [send(world, made, draft(n, key)) for n, key in enumerate(KEYS)]
    resize(world, 2)
    answers += [send(world, made, draft(40 + n, key)) for n, key in enumerate(KEYS)]
    world.let_go()
    assert all(isinstance(answer, Published) for (answer,) in answers)
    came = drained(world, made)
    assert sorted(came) == list(range(80))
    assert all(came.index(n) < came.index(40 + n) for n in range(40))


# ------------------------------------------------------------------------------------------------------ strict order


def test_messages_of_a_moved_slot_wait_for_the_older_ones_in_the_other_partition(world: NodeWorld) -> None:
    made = grown(world, 2)
    key = key_of(world, 1)
    send(world, made, draft(100, key))
    assert slotting_of(made, 1).keeper.state(slot_of(key)) is SlotState.WAITING
    first = all_taken(world, made)
    assert 100 not in first and len(first) == 40
    assert ack(world, made, first[KEYS.index(key)]) == [True]
    world.pass_time(100)
    assert list(all_taken(world, made)) == [100]


def test_a_slot_without_older_messages_does_not_wait_for_those_of_others(world: NodeWorld) -> None:
    made = grown(world, 2, backlog=0)
    send(world, made, draft(1, key_of(world, 1)))
    world.pass_time(100)
    assert drain(world, made) == [1]


def test_messages_wait_over_a_restart_too(world: NodeWorld) -> None:
    made = grown(world, 2)
    key = key_of(world, 1)
    send(world, made, draft(100, key))
    world.crash()
    made = world.queue("q")
    first = all_taken(world, made)
    assert 100 not in first
    assert all(ack(world, made, *first.values()))
    world.pass_time(100)
    assert drain(world, made) == [100]


def test_with_best_effort_nothing_waits(world: NodeWorld) -> None:
    made = queue(world)
    send(world, made, *[draft(n, key) for n, key in enumerate(KEYS)])
    resize(world, 2)
    send(world, made, draft(100, key_of(world, 1)))
    assert 100 in all_taken(world, made)


def test_dead_letters_of_a_slot_are_settled_as_far_as_order_goes(world: NodeWorld) -> None:
    made = queue(world, ordering="strict", max_attempts=1)
    send(world, made, *[draft(n, key) for n, key in enumerate(KEYS)])
    resize(world, 2)
    key = key_of(world, 1)
    send(world, made, draft(100, key))
    receipts = all_taken(world, made)
    nacked: list[object] = []
    world.tell(lambda: made.give_back([receipts[KEYS.index(key)]], 0, nacked.append))
    world.pass_time(100)
    assert made.stats().dead == 1 and list(all_taken(world, made)) == [100]


def test_a_purge_settles_what_others_wait_for(world: NodeWorld) -> None:
    made = grown(world, 2)
    world.do(made.purge("p"))
    send(world, made, draft(100, key_of(world, 1)))
    world.pass_time(100)
    assert drain(world, made) == [100]


def test_a_long_backlog_is_looked_through_in_steps(world: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRAIN_CHUNKS_PER_LOOK", 2)
    made = queue(world, ordering="strict")
    for number in range(200):
        send(world, made, draft(number, KEYS[0]))
    resize(world, 2)
    key = next(key for key in KEYS[1:] if table_of(world).route(slot_of(key)) == 1)
    send(world, made, draft(200, key))
    assert 200 not in all_taken(world, made)
    world.pass_time(5_000)
    assert 200 in all_taken(world, made)


# ---------------------------------------------------------------------------------------------------------- scheduled


def test_a_message_for_later_follows_its_slot_when_it_is_due(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    send(world, made, *[draft(n, key, due_ms=world.now_ms + 500) for n, key in enumerate(KEYS)])
    resize(world, 2)
    gone = sum(table_of(world).route(slot_of(key)) == 1 for key in KEYS)
    world.pass_time(499)
    assert all_taken(world, made) == {} and made._partitions.all[1].state.live == 0
    world.pass_time(1)
    receipts = all_taken(world, made)
    assert sorted(receipts) == list(range(40))
    assert [one.state.live for one in made._partitions.all] == [40 - gone, gone]
    assert all(ack(world, made, *receipts.values()))
    rest(world)


def test_a_message_that_was_due_before_its_slot_went_is_delivered_where_it_lies(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    send(world, made, *[draft(n, key, due_ms=world.now_ms + 50) for n, key in enumerate(KEYS)])
    world.pass_time(50)
    resize(world, 2)
    key = key_of(world, 1)
    send(world, made, draft(100, key))
    first = all_taken(world, made)
    assert sorted(first) == list(range(40))
    assert ack(world, made, first[KEYS.index(key)]) == [True]
    world.pass_time(100)
    assert list(all_taken(world, made)) == [100]


def test_a_message_for_later_is_nobodys_to_wait_for(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    send(world, made, *[draft(n, key, due_ms=world.now_ms + 60_000) for n, key in enumerate(KEYS)])
    resize(world, 2)
    send(world, made, draft(100, key_of(world, 1)))
    world.pass_time(100)
    assert drain(world, made) == [100]


# --------------------------------------------------------------------------------------------------------------- rest


def test_a_queue_that_waits_for_its_consumers_writes_nothing(world: NodeWorld) -> None:
    made = grown(world, 4)
    send(world, made, draft(100, key_of(world, 1)))
    world.pass_time(1_000)
    cycles = world.node.committer.cycles
    world.pass_time(5_000)
    assert world.node.committer.cycles == cycles


def test_a_slot_without_messages_is_forgotten_however_long_the_backlog_of_others_is(
    world: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DRAIN_CHUNKS_PER_LOOK", 2)
    made = queue(world, ordering="strict")
    for number in range(50):
        send(world, made, draft(number, KEYS[number % 2]))
    resize(world, 4)
    world.pass_time(5_000)
    book = slotting_of(made, 0).keeper.book
    gone = {slot for slot, tenures in book.tenures.items() if tenures[0].sealed_by}
    assert gone == {slot_of(key) for key in KEYS[:2] if table_of(world).owners[slot_of(key)]} != set()


def test_what_is_over_is_forgotten_everywhere(world: NodeWorld) -> None:
    made = grown(world, 4)
    drain(world, made)
    rest(world)
    for partition in made._partitions.all:
        assert partition.slotting is not None
        book = partition.slotting.keeper.book
        assert all(len(tenures) == 1 and not tenures[0].sealed_by for tenures in book.tenures.values())


def test_a_partition_stays_until_its_last_message_is_settled(world: NodeWorld) -> None:
    made = queue(world, partitions=2)
    send(world, made, draft(1, key_of(world, 1)))
    resize(world, 1)
    world.pass_time(5_000)
    assert [one.index for one in made._partitions.all] == [0, 1]
    (receipt,) = taken(world, made).values()
    assert ack(world, made, receipt) == [True]
    rest(world)
    assert [one.index for one in made._partitions.all] == [0]


def test_a_dead_letter_keeps_its_partition(world: NodeWorld) -> None:
    made = queue(world, partitions=2, max_attempts=1)
    send(world, made, draft(1, key_of(world, 1)))
    (receipt,) = taken(world, made).values()
    world.tell(lambda: made.give_back([receipt], 0, lambda answer: None))
    resize(world, 1)
    world.pass_time(5_000)
    assert made.stats().dead == 1 and len(made._partitions.all) == 2
    dead = world.queue("q.dead")
    (receipt,) = taken(world, dead).values()
    assert ack(world, dead, receipt) == [True]
    rest(world)
    assert len(made._partitions.all) == 1
    first = made._partitions.first
    assert [view.partition for view in dead._views.all] == [first]  # type: ignore[union-attr]
    assert first.view(VIEW_DEAD).tally.live == 0


def test_a_partition_stays_while_an_id_of_it_may_come_again(world: NodeWorld) -> None:
    made = queue(world, partitions=2, dedupe="id", dedupe_window_ms=10_000)
    key = key_of(world, 1)
    send(world, made, draft(1, key, id="x"))
    assert drain(world, made) == [1]
    resize(world, 1)
    world.pass_time(9_000)
    assert len(made._partitions.all) == 2
    (answer,) = send(world, made, draft(2, key, id="x"))
    assert isinstance(answer, Published) and answer.others is not None
    (original,) = answer.others.values()
    assert getattr(original, "partition", None) == 1
    world.pass_time(2_000)
    rest(world)
    assert len(made._partitions.all) == 1
    (answer,) = send(world, made, draft(3, key, id="x"))
    assert isinstance(answer, Published) and answer.others is None


def test_ids_keep_their_partition_over_a_restart(world: NodeWorld) -> None:
    made = queue(world, partitions=2, dedupe="id", dedupe_window_ms=10_000)
    key = key_of(world, 1)
    send(world, made, draft(1, key, id="x"))
    drain(world, made)
    resize(world, 1)
    world.crash()
    world.pass_time(5_000)
    made = world.queue("q")
    (answer,) = send(world, made, draft(2, key, id="x"))
    assert isinstance(answer, Published) and answer.others is not None


def test_offsets_go_on_where_the_former_life_of_a_partition_ended(world: NodeWorld) -> None:
    made = queue(world, partitions=2)
    send(world, made, draft(1, key_of(world, 1)), draft(2, key_of(world, 1)))
    drain(world, made)
    ends = []
    for partitions in (1, 2):
        resize(world, partitions)
        rest(world)
        ends.append(made._partitions.past[1].end if partitions == 1 else 0)
    (answer,) = send(world, made, draft(3, key_of(world, 1)))
    assert isinstance(answer, Published) and answer.partition == 1
    assert answer.base >= ends[0] > 2


def test_an_ack_that_is_sent_again_while_the_partition_goes_has_its_answer(world: NodeWorld) -> None:
    made = queue(world, partitions=2)
    send(world, made, draft(1, key_of(world, 1)))
    (receipt,) = taken(world, made).values()
    assert ack(world, made, receipt) == [True]
    resize(world, 1)
    world.pass_time(0)
    answers: list[object] = []
    for _ in range(40):
        world.tell(lambda: made.settle([receipt], answers.append))
        world.loop.turn()
    rest(world)
    assert len(answers) == 40 and all(isinstance(answer, list) for answer in answers)


def test_slots_that_are_on_their_way_are_in_nobodys_hands(world: NodeWorld) -> None:
    made = queue(world)
    table = stop_in_a_move(world, 2)
    slot = table.moves[0].slots[0]
    assert table.route(slot) is None
    assert slotting_of(made, 1).keeper.state(slot) is SlotState.IMPORTING
    world.let_go()
    assert slotting_of(made, 0).keeper.state(slot) is SlotState.ABSENT
    assert slotting_of(made, 1).keeper.state(slot) is SlotState.OPEN
