"""What is left in a shard of slots that it takes no more: gateways ask for that while a strict queue waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backend_store.core.partitions.slots import packed, slot_of
from backend_store.model import PushqError, Unavailable
from backend_store.node.log.slot_remains import SlotRemains
from backend_store.service import left_behind
from backend_store.service.left_behind import Left
from backend_store.service.operations import decode_operation, perform
from backend_store.service.relocating import FindLeft
from backend_store.wire.store_frames import pack
from tests.support.node_world import TENANT, NodeWorld
from tests.support.partitioned import KEYS, ack, all_taken, draft, drain, drained, queue, resize, send, taken
from tests.support.split_queue import HERE, THERE, as_told, blocks, raised, text_of, told

MINE, GONE = text_of(HERE), text_of(THERE)


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    world = NodeWorld()
    yield world
    world.close()


def asked(world: NodeWorld, slots: int = THERE) -> Any:
    uid = world.node.metadata.find(TENANT, "q").uid
    return perform(world.store, decode_operation(pack(FindLeft(TENANT, "q", uid, packed(slots)))))


def left(world: NodeWorld, slots: int = THERE) -> int:
    found = world.do(asked(world, slots))
    assert isinstance(found, Left) and found.beside == 0
    return found.unsettled


def backlog(world: NodeWorld, *keys: str, **settings: Any) -> Any:
    made = queue(world, ordering="strict", **settings)
    for number, key in enumerate(keys):
        send(world, made, draft(number, key))
    told(world, takes=HERE)
    return made


def test_messages_of_the_slots_are_counted_until_they_are_settled(world: NodeWorld) -> None:
    made = backlog(world, GONE, MINE, GONE, text_of(THERE, 1))
    assert left(world) == 3 and left(world, 1 << slot_of(GONE)) == 2
    receipts = all_taken(world, made)
    assert left(world) == 3, "leased ones are not settled"
    ack(world, made, receipts[0])
    assert left(world) == 2
    ack(world, made, *taken(world, made).values(), receipts[3])
    assert left(world) == 0
    assert [*receipts] == [0, 1, 3], "the other slots' messages are still there"


def test_what_waits_for_its_time_is_left(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    due_ms = world.node.steady_ms() + 60_000
    send(world, made, draft(1, GONE, due_ms=due_ms), draft(2, MINE, due_ms=due_ms))
    told(world, takes=HERE)
    assert left(world) == 1
    world.pass_time(61_000)
    assert left(world) == 1
    assert sorted(drain(world, made)) == [1, 2]
    assert left(world) == 0


def test_dead_letters_are_not_left_until_they_are_redriven(world: NodeWorld) -> None:
    made = backlog(world, GONE, max_attempts=1)
    answers: list[object] = []
    receipts = [*taken(world, made).values()]
    world.tell(lambda: made.give_back(receipts, None, answers.append))
    world.settle()
    assert world.queue("q.dead").stats().ready == 1 and left(world) == 0
    back: list[object] = []
    world.tell(lambda: made._partitions.publish(blocks(1, keys=[GONE]), back.append, must_fit=True, moves=True))
    world.settle()
    assert left(world) == 1
    drain(world, made)
    assert left(world) == 0


def test_an_ack_that_has_not_reached_the_disk_is_none(world: NodeWorld) -> None:
    made = backlog(world, GONE)
    (receipt,) = taken(world, made).values()
    assert left(world) == 1
    world.hold()
    world.tell(lambda: made.settle([receipt], lambda verdicts: None))
    world.settle()
    assert world.writer.is_held and left(world) == 1
    done = world.writer.reach_the_disk()
    task = world.start(asked(world))
    assert not task.done(), "it is on one disk, and its commit is not over"
    world.writer.busy = False
    assert done is not None
    world.tell(lambda: done(None))
    world.let_go()
    assert task.result() == Left(0, 0)


def test_messages_that_are_on_their_way_to_the_disk_are_left(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    world.hold()
    send(world, made, draft(1, GONE))
    definition = as_told(made.definition, takes=HERE)
    world.tell(lambda: world.node.queues.configure(definition))
    assert left(world) == 1
    world.let_go()
    assert left(world) == 1
    drain(world, made)
    assert left(world) == 0


def test_a_shard_that_takes_the_slots_does_not_say(world: NodeWorld) -> None:
    backlog(world, GONE)
    for slots in (HERE, THERE | 1 << slot_of(MINE)):
        answer = raised(world, asked(world, slots))
        assert type(answer) is Unavailable and answer.retry_after_ms
    told(world, takes=0)
    assert left(world, HERE) == 0 and left(world) == 1


def test_a_purge_leaves_nothing(world: NodeWorld) -> None:
    made = backlog(world, GONE, MINE)
    assert left(world) == 1
    world.do(made.purge("p"))
    assert left(world) == 0


def test_slots_that_come_back_and_go_again_are_looked_for_anew(world: NodeWorld) -> None:
    made = backlog(world, GONE)
    drain(world, made)
    assert left(world) == 0
    told(world)
    send(world, made, draft(1, GONE))
    told(world, takes=HERE)
    assert left(world) == 1


def test_slots_that_come_back_during_a_look_are_not_said_to_be_gone(
    world: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = backlog(world, MINE)
    back = as_told(made.definition)
    look = SlotRemains.look

    def looked(remains: SlotRemains, *of: Any, **bounds: Any) -> Any:
        found = yield from look(remains, *of, **bounds)
        world.node.queues.configure(back)
        return found

    monkeypatch.setattr(SlotRemains, "look", looked)
    answer = raised(world, asked(world))
    assert isinstance(answer, PushqError) and made._partitions.remains is None


def test_after_a_crash_the_same_is_left(world: NodeWorld) -> None:
    made = backlog(world, GONE, MINE, GONE)
    ack(world, made, taken(world, made)[0])
    world.crash()
    assert left(world) == 1


def test_all_partitions_are_looked_at(world: NodeWorld) -> None:
    made = queue(world, ordering="strict", partitions=3)
    send(world, made, *[draft(number, key) for number, key in enumerate(KEYS)])
    told(world, takes=HERE)
    gone = sum(THERE >> slot_of(key) & 1 for key in KEYS)
    assert left(world) == gone > 0
    drain(world, made)
    assert left(world) == 0


def test_scheduled_messages_that_follow_their_slot_to_another_partition_are_left(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    due_ms = world.node.steady_ms() + 5_000
    send(world, made, *[draft(number, key, due_ms=due_ms) for number, key in enumerate(KEYS)])
    told(world, takes=HERE)
    gone = sum(THERE >> slot_of(key) & 1 for key in KEYS)
    assert left(world) == gone
    resize(world, 3)
    told(world, takes=HERE)
    world.pass_time(6_000)
    assert left(world) == gone
    drained(world, made)
    assert left(world) == 0


def test_a_queue_without_order_knows_messages_by_their_keys_alone(world: NodeWorld) -> None:
    made = queue(world)
    send(world, made, draft(1), draft(2, GONE), draft(3, MINE))
    send(world, made, draft(4))
    told(world, takes=HERE)
    assert left(world) == 1


def test_messages_without_a_key_are_one_key_in_strict_order(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    send(world, made, draft(1), draft(2))
    send(world, made, draft(3), draft(4, text_of(~(1 << slot_of("")))))
    told(world, takes=~(1 << slot_of("")) & (HERE | THERE))
    assert left(world, 1 << slot_of("")) == 3


def test_a_look_ends_at_its_bound_and_the_next_goes_on_from_there(
    world: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_behind, "LEFT_CHUNKS_PER_ASK_MAX", 4)
    made = backlog(world, *[MINE] * 6, GONE, GONE)
    read: list[int] = []
    partition = made.partitions[0]
    progress = partition.progress
    monkeypatch.setattr(partition, "progress", lambda base: (read.append(base), progress(base))[1])
    assert left(world) == 1, "nothing was found, and not all was looked at"
    assert left(world) == 2
    assert read == [*range(8)], "no chunk twice"
    assert left(world) == 2
    assert read[8:] == [6, 7], "from the first one that has something"
    read.clear()
    drain(world, made)
    assert left(world) == 0 and read == []


def test_what_comes_for_other_slots_meanwhile_is_not_looked_at(
    world: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = backlog(world, GONE)
    assert left(world) == 1
    for number in range(10):
        send(world, made, draft(100 + number, MINE))
    partition = made.partitions[0]
    read: list[int] = []
    progress = partition.progress
    monkeypatch.setattr(partition, "progress", lambda base: (read.append(base), progress(base))[1])
    assert left(world) == 1 and read == [0]
