"""What a shard says it knows of a call's messages, without taking any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from backend_store.model import (
    Block,
    Claim,
    IdempotencyMismatch,
    OnTheMove,
    Original,
    Published,
    PushqError,
    QueueNotFound,
    Unavailable,
)
from backend_store.node.publishing import moved_away
from backend_store.service.operations import decode_operation, perform
from backend_store.service.recalling import FindKnown, Recall
from backend_store.storage.engine import StorageCorrupt
from backend_store.wire.store_frames import error_of, pack, published, sent_blocks
from tests.support.node_world import TENANT, NodeWorld
from tests.support.partitioned import queue, resize, rest
from tests.support.split_queue import HERE, THERE, blocks, claim_of, id_of, publish, raised, stored, text_of, told

IDS = [id_of(THERE, number) for number in range(3)]


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    world = NodeWorld()
    yield world
    world.close()


def known(
    world: NodeWorld, call: Sequence[Block], claim: Claim | None = None, *, version: int = 0, uid: int = 0
) -> Published | PushqError:
    result = asked(world, Recall(sent_blocks(call), claim), version=version, uid=uid)
    return result if isinstance(result, PushqError) else result[0]


def asked(
    world: NodeWorld, *calls: Recall, version: int = 0, uid: int = 0
) -> list[Published | PushqError] | PushqError:
    uid = uid or world.node.metadata.find(TENANT, "q").uid
    what = decode_operation(pack(FindKnown(TENANT, "q", uid, version, [*calls])))
    result = raised(world, perform(world.store, what))
    return result if isinstance(result, PushqError) else answers(result)


def answers(result: Any) -> list[Published | PushqError]:
    return [error_of(wrong) if wrong is not None else published(found) for found, wrong in result]


def found(answer: Published | PushqError) -> list[object]:
    """Of each message what it repeats, or the error's type."""
    assert isinstance(answer, Published) and not answer.is_repeat, answer
    assert answer.others is not None and len(answer.others) == answer.count
    assert answer.bases is not None and set(answer.bases) == {-1}
    return [one if isinstance(one := answer.others[number], Original) else type(one) for number in range(answer.count)]


def test_what_is_known_is_a_repeat_and_the_rest_is_refused(world: NodeWorld) -> None:
    made = queue(world, dedupe="id")
    publish(world, made, blocks(2, ids=IDS[:2]))
    definition = told(world, takes=HERE)
    answer = known(world, blocks(3, ids=IDS[::-1]), version=definition.version)
    assert found(answer) == [OnTheMove, Original(1, 0), Original(0, 0)]
    assert stored(made) == 2


def test_where_nothing_is_known_that_is_the_answer_and_nothing_is_stored(world: NodeWorld) -> None:
    made = queue(world, dedupe="id")
    assert isinstance(known(world, blocks(2, ids=IDS[:2])), OnTheMove), "also of slots that are taken here"
    assert stored(made) == 0 and len(made.partitions[0].ids) == 0


def test_only_what_a_leader_must_know_of_blocks_is_looked_at(world: NodeWorld) -> None:
    made = queue(world, dedupe="id")
    publish(world, made, blocks(1, ids=IDS[:1]))
    (block,) = blocks(1, ids=IDS[:1])
    assert found(known(world, [Block(b"", 1, traits=block.traits)])) == [Original(0, 0)]


def test_ids_do_not_count_where_the_queue_looks_at_none(world: NodeWorld) -> None:
    made = queue(world)
    publish(world, made, blocks(1, ids=IDS[:1]), claim_of(HERE))
    assert isinstance(known(world, blocks(1, ids=IDS[:1])), OnTheMove)


def test_ids_are_known_for_their_window(world: NodeWorld) -> None:
    made = queue(world, dedupe="id", dedupe_window_ms=10_000)
    publish(world, made, blocks(1, ids=IDS[:1]))
    world.pass_time(9_000)
    assert found(known(world, blocks(1, ids=IDS[:1]))) == [Original(0, 0)]
    world.pass_time(2_000)
    assert isinstance(known(world, blocks(1, ids=IDS[:1])), OnTheMove)


def test_all_partitions_are_asked(world: NodeWorld) -> None:
    made = queue(world, dedupe="id", partitions=3)
    ids = [id_of(HERE | THERE, number) for number in range(12)]
    publish(world, made, blocks(12, ids=ids))
    assert len({partition.state.published_total > 0 for partition in made.partitions}) == 1
    resize(world, 2)
    world.pass_time(1_000)  # one of them drains, and keeps its ids
    world.crash()
    answer = known(world, blocks(12, ids=ids))
    assert all(isinstance(one, Original) for one in found(answer))
    assert {one.partition for one in found(answer)} == {0, 1, 2}  # type: ignore[attr-defined]


def test_what_is_on_its_way_to_the_disk_is_answered_when_it_is_there(world: NodeWorld) -> None:
    made = queue(world, dedupe="id")
    world.hold()
    publish(world, made, blocks(1, ids=IDS[:1]))
    calls = [Recall(sent_blocks(blocks(1, ids=[one]))) for one in IDS[:2]]
    task = world.start(perform(world.store, FindKnown(TENANT, "q", made.uid, 0, calls)))
    assert world.writer.is_held and not task.done()
    world.let_go()
    known, unknown = answers(task.result())
    assert found(known) == [Original(0, 0)] and isinstance(unknown, OnTheMove)


def test_of_several_calls_each_has_its_answer(world: NodeWorld) -> None:
    made = queue(world, dedupe="id")
    claim, call = claim_of(THERE, 5), blocks(2)
    publish(world, made, blocks(1, ids=IDS[:1]))
    publish(world, made, call, claim)
    world.settle()
    said = asked(
        world,
        Recall(sent_blocks(blocks(1, ids=IDS[2:]))),
        Recall(sent_blocks(blocks(2, ids=IDS[:2]))),
        Recall(sent_blocks(call), claim),
        Recall(sent_blocks(call), claim_of(THERE, 5, payload=1)),
    )
    assert isinstance(said, list) and len(said) == 4
    unknown, known, again, mismatch = said
    assert isinstance(unknown, OnTheMove) and found(known) == [Original(0, 0), OnTheMove]
    assert isinstance(again, Published) and again.is_repeat and again.base == 1
    assert isinstance(mismatch, IdempotencyMismatch)


def test_a_shard_that_has_not_heard_of_the_change_does_not_say(world: NodeWorld) -> None:
    queue(world, dedupe="id")
    definition = told(world, takes=HERE)
    answer = known(world, blocks(1, ids=IDS[:1]), version=definition.version + 1)
    assert type(answer) is Unavailable and answer.retry_after_ms == moved_away.RETRY_MS


def test_a_queue_that_is_not_here_is_not_known(world: NodeWorld) -> None:
    made = queue(world, dedupe="id")
    assert isinstance(known(world, blocks(1), uid=made.uid + 1), QueueNotFound)


def test_ids_that_cannot_be_read_are_no_answer(world: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    made = queue(world, dedupe="id")

    def lookup(*ids: object, **of: object) -> dict[int, int]:
        raise StorageCorrupt("a broken row")

    monkeypatch.setattr(made.partitions[0].ids, "lookup", lookup)
    answer = known(world, blocks(1, ids=IDS[:1]))
    assert type(answer) is Unavailable and "broken row" in answer.detail


# --------------------------------------------------------------------------------------------------- idempotency keys


def test_a_key_that_was_bound_with_its_whole_call_is_a_repeat(world: NodeWorld) -> None:
    made = queue(world)
    claim, call = claim_of(THERE), blocks(3, keys=[text_of(THERE)] * 3)
    publish(world, made, blocks(2))
    publish(world, made, call, claim)
    told(world, takes=HERE)
    world.crash()
    answer = known(world, call, claim)
    assert isinstance(answer, Published) and answer.is_repeat
    assert (answer.partition, answer.base, answer.count) == (0, 2, 3)


def test_a_key_with_another_payload_is_a_mistake(world: NodeWorld) -> None:
    made = queue(world)
    publish(world, made, blocks(1), claim_of(THERE))
    assert isinstance(known(world, blocks(1), claim_of(THERE, payload=1)), IdempotencyMismatch)


def test_messages_of_a_key_that_was_bound_by_itself_are_known_by_their_names(world: NodeWorld) -> None:
    made = queue(world)
    told(world, takes=HERE)
    claim, keys = claim_of(HERE), [text_of(HERE), text_of(HERE, 1)]
    publish(world, made, blocks(2, keys=keys, claim=claim), claim)
    assert all(isinstance(one, Original) for one in found(known(world, blocks(2, keys=keys, claim=claim), claim)))
    assert all(isinstance(one, Original) for one in found(known(world, blocks(2, keys=keys), claim))), "without names"
    more = [*keys, text_of(THERE)]
    assert found(known(world, blocks(3, keys=more, claim=claim), claim))[2] is OnTheMove


def test_a_key_that_is_bound_here_without_messages(world: NodeWorld) -> None:
    made = queue(world)
    told(world, takes=HERE)
    claim = claim_of(HERE)
    assert isinstance(known(world, [], claim), OnTheMove)
    publish(world, made, [], claim)
    assert isinstance(known(world, blocks(1, claim=claim), claim), OnTheMove)
    answer = known(world, [], claim)
    assert isinstance(answer, Published) and answer.count == 0 and not answer.is_repeat


def test_messages_are_known_where_their_key_is_not(world: NodeWorld) -> None:
    """The key was bound elsewhere, and has come out of the window there before its messages did here."""
    made = queue(world, dedupe="id")
    claim = claim_of(THERE)
    call = blocks(1, keys=[text_of(HERE)], claim=claim)
    publish(world, made, call)
    assert found(known(world, call, claim)) == [Original(0, 0)]


def test_a_key_that_an_older_partition_has_is_known(world: NodeWorld) -> None:
    made = queue(world)
    claim, call = claim_of(HERE), blocks(2)
    publish(world, made, call, claim)
    resize(world, 3)
    rest(world)
    answer = known(world, call, claim)
    assert isinstance(answer, Published) and answer.is_repeat and (answer.partition, answer.base) == (0, 0)
