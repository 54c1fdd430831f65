"""Publishes to a shard that takes only some slots of a queue, or none: what goes on, what is known, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec
import pytest

from backend_store.client.embedded import EmbeddedQueue
from backend_store.core.log.block import punch
from backend_store.core.partitions.routing import cut
from backend_store.core.partitions.slots import ALL_SLOTS, slot_of
from backend_store.model import (
    Block,
    Claim,
    IdempotencyMismatch,
    OnTheMove,
    Original,
    Overloaded,
    Published,
    PushqError,
)
from backend_store.node.publishing import moved_away
from tests.support.node_world import NodeWorld
from tests.support.partitioned import draft, drain, queue, resize, rest, send, taken
from tests.support.split_queue import HERE, THERE, as_told, blocks, claim_of, id_of, publish, stored, text_of, told

MINE, OTHERS = text_of(HERE), text_of(THERE)


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    world = NodeWorld()
    yield world
    world.close()


def places(answer: Published | PushqError) -> list[object]:
    """Of each message its offset, what it repeats, or the error's type."""
    assert isinstance(answer, Published), answer
    found: list[object] = [*range(answer.base, answer.base + answer.count)]
    if answer.bases is not None:
        one = answer.bases[0]
        found = (
            list(answer.bases) if len(answer.bases) > 1 else [one + n if one >= 0 else -1 for n in range(answer.count)]
        )
    for number, other in (answer.others or {}).items():
        found[number] = other if isinstance(other, Original) else type(other)
    return found


def refused(answers: list[Published | PushqError]) -> bool:
    assert len(answers) == 1
    return isinstance(answers[0], OnTheMove) and answers[0].retry_after_ms is not None


# --------------------------------------------------------------------------------------------------- slots of messages


def test_a_call_of_slots_that_are_taken_goes_on(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    told(world, takes=HERE)
    (answer,) = publish(world, made, blocks(2, keys=[MINE, text_of(HERE, 1)]))
    assert places(answer) == [0, 1]


def test_of_a_call_what_has_other_slots_is_refused_and_the_rest_is_stored(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    told(world, takes=HERE)
    (answer,) = publish(world, made, blocks(3, keys=[MINE, OTHERS, MINE]))
    assert places(answer) == [0, OnTheMove, 2]
    assert stored(made) == 2


def test_what_has_its_place_elsewhere_is_not_refused(world: NodeWorld) -> None:
    """A gateway sends the rest of a call with it."""
    made = queue(world, ordering="strict")
    told(world, takes=HERE)
    (block,) = blocks(2, keys=[MINE, OTHERS])
    (answer,) = publish(world, made, [punch(block, 2)])
    assert isinstance(answer, Published) and answer.others == {1: Original(-1)}
    assert stored(made) == 1


def test_messages_of_a_refused_call_that_are_known_are_repeats(world: NodeWorld) -> None:
    made = queue(world, dedupe="id")
    ids = [id_of(HERE), id_of(THERE), id_of(THERE, 1)]
    publish(world, made, blocks(2, ids=ids[:2]))
    told(world, takes=HERE)
    (answer,) = publish(world, made, blocks(3, ids=ids))
    assert places(answer) == [Original(0), Original(1), OnTheMove]
    assert stored(made) == 2


def test_messages_without_a_slot_are_taken_by_any_place(world: NodeWorld) -> None:
    made = queue(world)
    told(world, takes=HERE)
    (answer,) = send(world, made, draft(1), draft(2))
    assert places(answer) == [0, 1]


def test_messages_without_a_key_are_one_key_in_strict_order(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    told(world, takes=ALL_SLOTS & ~(1 << slot_of("")))
    assert refused(send(world, made, draft(1)))
    told(world, takes=1 << slot_of(""))
    assert not refused(send(world, made, draft(1)))


def test_what_a_block_says_of_its_slots_holds(world: NodeWorld) -> None:
    made = queue(world)
    told(world, takes=HERE)
    (block,) = blocks(1)
    said = Block(block.data, 1, slots=1 << slot_of(OTHERS))
    assert refused(publish(world, made, [said]))


def test_a_call_that_waits_when_its_slots_go_is_refused(world: NodeWorld) -> None:
    made = queue(world)
    world.hold(1)
    first = publish(world, made, blocks(1, keys=[MINE]))
    publish(world, made, blocks(1))
    answers = publish(world, made, blocks(1, keys=[OTHERS]))
    world.tell(partial(world.node.queues.configure, as_told(made.definition, takes=HERE)))
    world.let_go()
    assert refused(answers) and places(first[0]) == [0]


def test_slots_are_refused_after_a_crash_and_taken_again_when_they_come_back(world: NodeWorld) -> None:
    queue(world)
    told(world, takes=HERE)
    world.crash()
    made = world.queue("q")
    assert refused(publish(world, made, blocks(1, keys=[OTHERS])))
    assert places(publish(world, made, blocks(1, keys=[MINE]))[0]) == [0]
    told(world)
    assert places(publish(world, made, blocks(1, keys=[OTHERS]))[0]) == [1]


def test_each_of_several_partitions_refuses_what_it_has_of_other_slots(world: NodeWorld) -> None:
    made = queue(world, partitions=2)
    table = made._partitions.map.table  # type: ignore[union-attr]
    first, second = table.takers[0] & ALL_SLOTS, table.takers[1] & ALL_SLOTS
    told(world, takes=first)
    (answer,) = publish(world, made, blocks(3, keys=[text_of(first), text_of(second), text_of(first, 1)]))
    assert isinstance(answer, Published) and answer.others is not None
    assert [*answer.others] == [1] and isinstance(answer.others[1], OnTheMove)
    assert stored(made) == 2


def test_a_partition_that_is_opened_later_takes_no_more_than_the_others(world: NodeWorld) -> None:
    made = queue(world)
    told(world, takes=HERE)
    resize(world, 2)
    rest(world)
    keys = [text_of(THERE, number) for number in range(8)]
    (answer,) = publish(world, made, blocks(8, keys=keys))
    assert isinstance(answer, OnTheMove) and stored(made) == 0


def test_what_was_promised_room_is_taken_whatever_its_slots_are(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    told(world, takes=HERE)
    answers: list[Published | PushqError] = []
    world.tell(lambda: made._partitions.publish(blocks(1, keys=[OTHERS]), answers.append, must_fit=True))
    world.settle()
    assert isinstance(answers[0], Published) and made.partitions[0].inbox.strays == 1


def test_an_ack_that_publishes_to_another_slot_is_refused_whole(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    send(world, made, draft(1, MINE))
    told(world, takes=HERE)
    (receipt,) = taken(world, made).values()
    answers: list[object] = []
    for key in (OTHERS, MINE):
        step = [(made, blocks(1, keys=[key]))]
        world.tell(lambda step=step: made.settle_and_publish([receipt], step, answers.append))  # type: ignore[misc]
        world.settle()
    refusal, done = answers
    assert isinstance(refusal, OnTheMove) and not isinstance(done, PushqError)
    assert drain(world, made) == [0], "the body of what came by the second step"


def test_a_shard_that_takes_nothing_knows_repeats_and_refuses_the_rest(world: NodeWorld) -> None:
    made = queue(world, dedupe="id")
    publish(world, made, blocks(1, ids=[id_of(HERE)]))
    told(world, takes=0)
    (answer,) = publish(world, made, blocks(2, ids=[id_of(HERE), id_of(HERE, 1)]))
    assert places(answer) == [Original(0, 0), OnTheMove]
    assert refused(send(world, made, draft(1)))


def test_a_queue_that_is_in_one_place_is_never_asked_about_slots(
    world: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moved_away, "kept", None)
    made = queue(world, ordering="strict")
    assert places(send(world, made, draft(1, MINE))[0]) == [0]


def test_numbers_end_above_all_that_were_given_out(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    publish(world, made, blocks(3, keys=[OTHERS] * 3))
    definition = told(world, takes=HERE)
    assert world.do(world.node.queues.ended(definition)) >= 3
    (answer,) = publish(world, made, blocks(1, keys=[MINE]))
    assert isinstance(answer, Published)
    assert world.do(world.node.queues.ended(definition)) > answer.base
    with pytest.raises(AssertionError, match="takes publishes"):
        world.do(world.node.queues.ended(told(world)))


# --------------------------------------------------------------------------------------------------- idempotency keys


def claimed(
    world: NodeWorld, made: EmbeddedQueue, claim: Claim, *keys: str, named: bool = True
) -> Published | PushqError:
    encoded = blocks(len(keys), keys=keys, claim=claim if named else None)
    (answer,) = publish(world, made, encoded, claim)
    return answer


def test_a_key_is_bound_and_its_messages_are_known_by_themselves(world: NodeWorld) -> None:
    made = queue(world)
    told(world, takes=HERE)
    claim = claim_of(HERE)
    keys = [MINE, text_of(HERE, 1)]
    assert places(claimed(world, made, claim, *keys))[0] != OnTheMove
    first = stored(made)
    again = claimed(world, made, claim, *keys)
    assert isinstance(again, Published) and again.others is not None and stored(made) == first == 2
    assert all(isinstance(other, Original) for other in again.others.values())
    world.crash()
    again = claimed(world, world.queue("q"), claim, *keys)
    assert isinstance(again, Published) and again.others is not None and len(again.others) == 2
    other = claimed(world, world.queue("q"), claim._replace(payload=b"p" * 16), *keys)
    assert isinstance(other, IdempotencyMismatch)


def test_a_key_alone_is_bound_where_its_own_slot_lies(world: NodeWorld) -> None:
    made = queue(world)
    told(world, takes=HERE)
    assert refused(publish(world, made, [], claim_of(THERE)))
    assert len(made.partitions[0].ids) == 0


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_key_of_another_slot_is_bound_with_messages_that_are_taken(world: NodeWorld, partitions: int) -> None:
    made = queue(world, partitions=partitions)
    told(world, takes=HERE)
    claim = claim_of(THERE)
    first, again = (claimed(world, made, claim, MINE, MINE) for _ in range(2))
    assert isinstance(first, Published) and first.others is None
    assert isinstance(again, Published) and again.others is not None and len(again.others) == 2
    assert stored(made) == 2
    assert isinstance(claimed(world, made, claim._replace(payload=b"p" * 16), MINE), IdempotencyMismatch)


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_key_is_not_bound_with_messages_that_are_not_taken(world: NodeWorld, partitions: int) -> None:
    made = queue(world, partitions=partitions)
    told(world, takes=HERE)
    assert isinstance(claimed(world, made, claim_of(HERE), MINE, OTHERS), OnTheMove)
    assert stored(made) == 0 and not any(len(partition.ids) for partition in made.partitions)


def test_a_key_whose_messages_lie_elsewhere_is_bound_without_them(world: NodeWorld) -> None:
    made = queue(world)
    told(world, takes=HERE)
    claim = claim_of(HERE)
    (answer,) = publish(world, made, [], claim)
    assert isinstance(answer, Published) and answer.count == 0
    (other,) = publish(world, made, [], claim._replace(payload=b"p" * 16))
    assert isinstance(other, IdempotencyMismatch)


def test_a_key_that_was_bound_before_the_queue_was_split_is_known_as_a_whole(world: NodeWorld) -> None:
    made = queue(world)
    claim = claim_of(HERE)
    first = claimed(world, made, claim, MINE, OTHERS, named=False)
    assert isinstance(first, Published)
    told(world, takes=HERE)
    again = claimed(world, made, claim, MINE, OTHERS)
    assert isinstance(again, Published) and again.is_repeat
    assert (again.base, again.count) == (first.base, 2)
    assert isinstance(claimed(world, made, claim._replace(payload=b"p" * 16), MINE), IdempotencyMismatch)


def test_a_key_of_a_slot_that_went_is_known_where_it_was_bound(world: NodeWorld) -> None:
    made = queue(world)
    claim = claim_of(THERE)
    claimed(world, made, claim, MINE, OTHERS, named=False)
    told(world, takes=HERE)
    again = claimed(world, made, claim, MINE, OTHERS)
    assert isinstance(again, Published) and again.is_repeat and again.count == 2


def test_a_key_that_was_bound_while_the_queue_was_split_is_known_when_it_is_not(world: NodeWorld) -> None:
    made = queue(world)
    told(world, takes=HERE)
    claim = claim_of(HERE)
    claimed(world, made, claim, MINE)
    told(world)
    again = claimed(world, made, claim, MINE)
    assert isinstance(again, Published) and again.others is not None and stored(made) == 1


def test_a_call_that_was_encoded_for_one_place_comes_again(world: NodeWorld) -> None:
    made = queue(world)
    told(world, takes=HERE)
    answer = claimed(world, made, claim_of(HERE), MINE, named=False)
    assert isinstance(answer, Overloaded) and answer.retry_after_ms and stored(made) == 0


def test_a_call_that_was_encoded_for_several_places_is_never_bound_as_a_whole(world: NodeWorld) -> None:
    """It may be a part of one: the rest of it comes when the queue lies in one place."""
    made = queue(world)
    claim = claim_of(HERE)
    encoded = blocks(2, keys=[MINE, OTHERS], claim=claim)
    part = [msgspec.structs.replace(cut(encoded[0], [0]), slots=1 << slot_of(MINE))]
    (first,) = publish(world, made, part, claim)
    (whole,) = publish(world, made, encoded, claim)
    assert isinstance(first, Published) and isinstance(whole, Published)
    assert whole.others is None or [*whole.others] == [0]
    assert not whole.is_repeat and stored(made) == 2


@pytest.mark.parametrize("key", [HERE, THERE])
def test_a_key_that_waits_when_slots_go_is_bound_with_messages_that_stay(world: NodeWorld, key: int) -> None:
    made = queue(world)
    world.hold()
    publish(world, made, blocks(1))
    stays = publish(world, made, blocks(1, keys=[MINE]), claim_of(key))
    goes = publish(world, made, blocks(1, keys=[OTHERS]), claim_of(key, 1))
    alone = publish(world, made, [], claim_of(key, 2))
    world.tell(partial(world.node.queues.configure, as_told(made.definition, takes=HERE)))
    world.let_go()
    assert isinstance(stays[0], Published) and refused(goes) and stored(made) == 2
    assert refused(alone) is (key is THERE)


def test_keys_of_a_split_queue_with_several_partitions(world: NodeWorld) -> None:
    made = queue(world, partitions=2)
    told(world, takes=HERE)
    claim = claim_of(HERE)
    keys = [text_of(HERE, number) for number in range(6)]
    first, again = claimed(world, made, claim, *keys), claimed(world, made, claim, *keys)
    assert isinstance(first, Published) and isinstance(again, Published) and again.others is not None
    assert len(again.others) == 6 and stored(made) == 6
