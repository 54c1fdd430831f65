"""Slots that a shard holds back in strict order, for older messages of them are to be delivered at another place."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from backend_store.client.embedded import EmbeddedQueue
from backend_store.core.partitions.slots import slot_of
from backend_store.core.ready import key_queues
from backend_store.model import QueueConfig
from backend_store.service.defining import AdoptQueues
from backend_store.service.operations import perform
from tests.support.node_world import TENANT, NodeWorld
from tests.support.partitioned import KEYS, ack, all_taken, draft, drain, queue, resize, send, table_of, taken
from tests.support.split_queue import HERE, THERE, as_told, text_of, told
from tests.support.world import Consumer, receipts_by_seq

FREE, HELD = text_of(HERE), text_of(THERE)


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    world = NodeWorld()
    yield world
    world.close()


def strict(world: NodeWorld) -> EmbeddedQueue:
    return queue(world, ordering="strict")


def give_back(world: NodeWorld, made: EmbeddedQueue, *receipts: str, delay_ms: int | None = None) -> None:
    answers: list[object] = []
    world.tell(lambda: made.give_back(list(receipts), delay_ms, answers.append))
    world.settle()
    assert answers


def test_messages_of_held_slots_wait_and_others_go(world: NodeWorld) -> None:
    made = strict(world)
    told(world, holds=THERE)
    send(world, made, draft(1, HELD), draft(2, FREE), draft(3, HELD), draft(4, FREE))
    assert drain(world, made) == [2, 4]
    told(world)
    assert drain(world, made) == [1, 3]


def test_slots_are_let_go_one_by_one_and_in_order(world: NodeWorld) -> None:
    made = strict(world)
    other = text_of(THERE & ~(1 << slot_of(HELD)))
    told(world, holds=THERE)
    send(world, made, draft(1, HELD), draft(2, other))
    send(world, made, draft(3, HELD), draft(4, other))
    told(world, holds=THERE & ~(1 << slot_of(HELD)))
    assert drain(world, made) == [1, 3]
    told(world)
    assert drain(world, made) == [2, 4]


def test_who_waits_is_told_when_slots_are_let_go(world: NodeWorld) -> None:
    made = strict(world)
    told(world, holds=THERE)
    send(world, made, draft(1, HELD))
    woken: list[int] = []
    made.on_ready(lambda: woken.append(1))
    told(world)
    assert woken


@pytest.mark.parametrize("in_memory", [2, 100])
def test_behind_as_many_as_a_lane_looks_over_all_wait_until_the_slots_are_let_go(
    world: NodeWorld, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    monkeypatch.setattr(key_queues, "KEYED_LOOK_AHEAD_RUNS_MAX", 4)
    monkeypatch.setattr(key_queues, "KEYED_RUNS_IN_MEMORY_MAX", in_memory)
    made = strict(world)
    told(world, holds=THERE)
    for number in range(0, 16, 2):
        send(world, made, draft(number, HELD))
        send(world, made, draft(number + 1, FREE))
    early = drain(world, made)
    for _ in range(4):  # what is behind these goes to the disk
        world.pass_time(1_000)
        early += drain(world, made)
    assert early == [*range(1, 16, 2)][: len(early)] and len(early) < 8
    told(world)
    later = drain(world, made)
    assert [number for number in later if number % 2] == [*range(1, 16, 2)][len(early) :]
    assert [number for number in later if not number % 2] == [*range(0, 16, 2)]


def test_messages_without_a_key_are_held_as_one_key(world: NodeWorld) -> None:
    made = strict(world)
    told(world, holds=1 << slot_of(""))
    send(world, made, draft(1), draft(2, text_of(~(1 << slot_of("")))))
    assert drain(world, made) == [2]


def test_what_was_ready_when_its_slot_was_held_waits(world: NodeWorld) -> None:
    made = strict(world)
    send(world, made, *[draft(n, HELD if n % 2 else FREE) for n in range(8)])
    first = taken(world, made, 1)
    assert [*first] == [0]
    told(world, holds=THERE)
    ack(world, made, *first.values())
    assert drain(world, made) == [2, 4, 6]
    told(world)
    assert drain(world, made) == [1, 3, 5, 7]


@pytest.mark.parametrize("how", ["nack", "delay", "lease", "unsent"])
def test_what_comes_back_waits_with_the_others_of_its_slot(world: NodeWorld, how: str) -> None:
    made = strict(world)
    send(world, made, draft(1, HELD), draft(2, HELD), draft(3, FREE))
    lease = world.tell(lambda: made.take(1, Consumer(), 1_000))
    world.settle()
    assert lease is not None
    told(world, holds=THERE)
    if how == "unsent":
        world.tell(lambda: made.unsent(lease))
    elif how == "lease":
        world.pass_time(1_100)
    else:
        give_back(world, made, *receipts_by_seq(lease).values(), delay_ms=500 if how == "delay" else None)
        world.pass_time(600)
    assert drain(world, made) == [3]
    told(world)
    assert drain(world, made) == [1, 2]


def test_delayed_messages_are_held_when_they_are_due(world: NodeWorld) -> None:
    made = strict(world)
    told(world, holds=THERE)
    due_ms = world.node.steady_ms() + 1_000
    send(world, made, draft(1, HELD, due_ms=due_ms), draft(2, FREE, due_ms=due_ms))
    world.pass_time(2_000)
    assert drain(world, made) == [2]
    told(world)
    assert drain(world, made) == [1]


@pytest.mark.parametrize("is_clean", [True, False])
def test_slots_are_held_after_a_start(world: NodeWorld, is_clean: bool) -> None:
    made = strict(world)
    send(world, made, draft(1, HELD), draft(2, FREE))
    given = taken(world, made)
    told(world, holds=THERE)
    send(world, made, draft(3, HELD))
    assert [*given] == [1, 2]
    if is_clean:
        world.restart()
    else:
        world.crash()
    world.pass_time(31_000)  # the leases are over
    made = world.queue("q")
    assert drain(world, made) == [2]
    told(world)
    assert drain(world, made) == [1, 3]


def test_a_queue_that_comes_with_held_slots_holds_them(world: NodeWorld) -> None:
    config = QueueConfig(ordering="strict", lease_mode="memory")
    made = strict(world)
    fresh = msgspec.structs.replace(made.definition, uid=made.uid + 1_000, name="r", config=config)
    world.do(perform(world.store, AdoptQueues([as_told(fresh, takes=THERE, holds=THERE)])))
    send(world, world.queue("r"), draft(1, HELD))
    assert drain(world, world.queue("r")) == []
    told(world, "r", takes=THERE)
    assert drain(world, world.queue("r")) == [1]


def grown(world: NodeWorld) -> tuple[EmbeddedQueue, str]:
    """A strict queue whose slots of the second partition wait for the first; and a key of one of these."""
    made = strict(world)
    send(world, made, *[draft(n, key) for n, key in enumerate(KEYS)])
    resize(world, 2)
    world.settle()
    table = table_of(world)
    return made, next(key for key in KEYS if table.route(slot_of(key)) == 1)


@pytest.mark.parametrize("is_held_longer", [True, False])
def test_a_slot_that_waits_for_a_partition_too_waits_for_both(world: NodeWorld, is_held_longer: bool) -> None:
    made, key = grown(world)
    slot = 1 << slot_of(key)
    send(world, made, draft(100, key))
    older = all_taken(world, made)
    assert 100 not in older
    told(world, holds=slot)
    if is_held_longer:
        assert all(ack(world, made, *older.values()))
        world.pass_time(1_000)
        assert all_taken(world, made) == {}
        told(world)
    else:
        told(world)
        assert all_taken(world, made) == {}
        assert all(ack(world, made, *older.values()))
        world.pass_time(1_000)
    assert [*all_taken(world, made)] == [100]


def test_a_held_slot_stays_held_while_others_come_from_a_partition(world: NodeWorld) -> None:
    made = strict(world)
    told(world, holds=THERE)
    held = [text_of(THERE, n) for n in range(20)]
    send(world, made, *[draft(n, key) for n, key in enumerate(held)])
    resize(world, 2)
    told(world, holds=THERE)
    world.pass_time(1_000)
    send(world, made, *[draft(100 + n, key) for n, key in enumerate(held)], draft(200, FREE))
    assert drain(world, made) == [200]
    world.crash()
    assert drain(world, world.queue("q")) == []
    told(world)
    made, came = world.queue("q"), []
    for _ in range(20):
        came += drain(world, made)
        world.pass_time(100)
    assert sorted(came) == [*range(20), *range(100, 120)]
    assert all(came.index(n) < came.index(100 + n) for n in range(20))


def test_a_deleted_queue_that_moves_holds_nothing_back(world: NodeWorld) -> None:
    made, target = strict(world), queue(world, "target")
    told(world, holds=THERE)
    send(world, made, draft(1, HELD), draft(2, FREE))
    world.start(world.store.move_queue(TENANT, "q", "target"))
    world.pass_time(1_000)
    assert sorted(drain(world, target)) == [1, 2]


def test_dead_letters_of_held_slots_are_handed_out(world: NodeWorld) -> None:
    made = queue(world, ordering="strict", max_attempts=1)
    send(world, made, draft(1, HELD))
    told(world, holds=THERE)
    assert drain(world, made) == []
    told(world)
    give_back(world, made, *taken(world, made).values())
    told(world, holds=THERE)
    assert [*taken(world, world.queue("q.dead"))] == [1]
