"""Which partition of its queue takes a message: calls are shared out, wait for slots on the move, have one answer."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from backend_store.client.embedded import EmbeddedQueue
from backend_store.core.log.chunk import blocks_of
from backend_store.core.partitions.routing import Share
from backend_store.core.partitions.slots import first_table, slot_of
from backend_store.model import (
    Block,
    Claim,
    IdempotencyMismatch,
    Offset,
    Original,
    Overloaded,
    Published,
    PushqError,
    QueueFull,
    QueueNotFound,
    Unavailable,
)
from backend_store.node import partitions as module
from backend_store.node.partitions import Gathered, gathered
from tests.support.node_world import TENANT, NodeWorld
from tests.support.partitioned import (
    KEYS,
    draft,
    drain,
    queue,
    resize,
    rest,
    send,
    stop_in_a_move,
    table_of,
)


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    world = NodeWorld()
    yield world
    world.close()


def published(answers: list[Published | PushqError]) -> Published:
    (answer,) = answers
    assert isinstance(answer, Published), answer
    return answer


def keys_on_the_move(world: NodeWorld) -> list[str]:
    table = table_of(world)
    found = [key for key in KEYS if table.route(slot_of(key)) is None]
    assert found
    return found


def lying(queue: EmbeddedQueue) -> dict[int, int]:
    return {partition.index: partition.state.live for partition in queue._partitions.all}


# -------------------------------------------------------------------------------------------------------- where it goes


def test_a_queue_with_one_partition_never_looks_at_slots(world: NodeWorld) -> None:
    made = queue(world)
    answer = published(send(world, made, *[draft(n, key) for n, key in enumerate(KEYS)]))
    assert (answer.places, answer.partition, answer.base, answer.count) == (None, 0, 0, 40)
    assert made._partitions.map is None


def test_messages_go_where_the_table_says_and_are_answered_with_their_places(world: NodeWorld) -> None:
    made = queue(world, partitions=3)
    answer = published(send(world, made, *[draft(n, key) for n, key in enumerate(KEYS)]))
    table = first_table(3)
    assert answer.places is not None and answer.count == 40
    assert [partition for partition, _ in answer.places] == [table.route(slot_of(key)) for key in KEYS]
    assert len(set(answer.places)) == 40


def test_a_call_that_goes_to_one_partition_is_answered_by_that_one(world: NodeWorld) -> None:
    made = queue(world, partitions=3)
    answer = published(send(world, made, draft(1, "k1"), draft(2, "k1")))
    assert (answer.places, answer.partition) == (None, first_table(3).route(slot_of("k1")))


def test_calls_without_keys_go_to_the_partitions_by_turns(world: NodeWorld) -> None:
    made = queue(world, partitions=3)
    for number in range(6):
        send(world, made, draft(number))
    assert lying(made) == {0: 2, 1: 2, 2: 2}


def test_an_empty_call_is_answered(world: NodeWorld) -> None:
    made = queue(world, partitions=3)
    answers: list[Published | PushqError] = []
    world.tell(lambda: made.publish([], answers.append))
    world.settle()
    assert published(answers).count == 0


def test_a_partition_that_was_just_opened_takes_messages_without_a_key_at_once(world: NodeWorld) -> None:
    made = queue(world, partitions=1)
    world.hold(2)
    resize(world, 3)
    answers = [send(world, made, draft(number)) for number in range(6)]
    world.let_go()
    assert all(isinstance(answer, Published) for (answer,) in answers)
    assert lying(made) == {0: 2, 1: 2, 2: 2}


# ---------------------------------------------------------------------------------------------------- slots on the move


def test_messages_of_slots_on_the_move_wait_and_others_do_not(world: NodeWorld) -> None:
    made = queue(world)
    stop_in_a_move(world, 2)
    moving = keys_on_the_move(world)
    staying = next(key for key in KEYS if key not in moving)
    waiting, direct = send(world, made, draft(1, moving[0])), send(world, made, draft(2, staying))
    assert made._partitions._waiting_messages == 1
    world.let_go()
    assert published(waiting).partition == 1 and published(direct).partition == 0
    assert made._partitions._waiting_messages == 0


def test_what_waits_is_sent_on_in_the_order_in_which_it_came(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    stop_in_a_move(world, 2)
    key = keys_on_the_move(world)[0]
    answers = [send(world, made, draft(2 * n, key), draft(2 * n + 1, key)) for n in range(5)]
    assert not any(answers)
    world.let_go()
    bases = [published(answer).base for answer in answers]
    assert bases == sorted(bases)
    rest(world)
    assert drain(world, made) == list(range(10))


def test_a_call_is_answered_when_its_last_message_is_durable(world: NodeWorld) -> None:
    made = queue(world)
    stop_in_a_move(world, 2)
    answers = send(world, made, *[draft(n, key) for n, key in enumerate(KEYS)])
    world.hold(1)
    world.writer.land()
    world.settle()
    assert answers == []
    world.let_go()
    answer = published(answers)
    assert answer.places is not None and {partition for partition, _ in answer.places} == {0, 1}


def test_who_is_told_of_a_refusal_and_publishes_at_once_does_not_overtake_what_waits(
    world: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = queue(world, ordering="strict")
    stop_in_a_move(world, 2)
    key = keys_on_the_move(world)[0]
    answers: list[Published | PushqError] = []

    def refused(answer: Published | PushqError) -> None:
        assert isinstance(answer, Overloaded)
        send_at_once(made, 3, key, answers)

    world.tell(lambda: send_at_once(made, 1, key, None, refused))
    world.tell(lambda: send_at_once(made, 2, key, answers))
    inbox = [partition.inbox for partition in made._partitions.all]
    first = iter([Overloaded("the first is refused")])
    monkeypatch.setattr(inbox[1], "why_full", lambda *_: next(first, None))
    world.let_go()
    rest(world)
    assert len(answers) == 2 and drain(world, made) == [2, 3]


def send_at_once(
    made: EmbeddedQueue,
    number: int,
    key: str,
    answers: list[Published | PushqError] | None,
    reply: object = None,
) -> None:
    from backend_store.core.log.chunk import blocks_of

    told = answers.append if answers is not None else reply
    made.publish(blocks_of([draft(number, key)]).blocks, told)  # type: ignore[arg-type]


def test_only_so_many_messages_wait(world: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INBOX_MESSAGES_MAX", 3)
    made = queue(world)
    stop_in_a_move(world, 2)
    key = keys_on_the_move(world)[0]
    waiting = send(world, made, draft(1, key), draft(2, key))
    (answer,) = send(world, made, draft(3, key), draft(4, key))
    assert isinstance(answer, Overloaded) and answer.retry_after_ms
    last = send(world, made, draft(5, key))
    world.let_go()
    assert published(waiting).count == 2 and published(last).count == 1
    assert len(drain(world, made)) == 3


def test_only_so_many_bytes_wait(world: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INBOX_BYTES_MAX", 60)
    made = queue(world)
    stop_in_a_move(world, 2)
    key = keys_on_the_move(world)[0]
    send(world, made, draft(1, key))
    (answer,) = send(world, made, draft(2, key))
    assert isinstance(answer, Overloaded)


def test_who_waits_is_told_when_the_queue_is_deleted(world: NodeWorld) -> None:
    made = queue(world)
    stop_in_a_move(world, 2)
    key = keys_on_the_move(world)[0]
    answers = send(world, made, draft(1, key))
    world.start(world.store.delete_queue("default", "q"))
    world.let_go()
    assert [answer.code for answer in answers if isinstance(answer, PushqError)] == ["queue-not-found"]
    (late,) = send(world, made, draft(2, key))
    assert isinstance(late, PushqError) and late.code == "queue-not-found"


# ------------------------------------------------------------------------------------------------------------- limits


def test_nothing_waits_for_slots_of_a_queue_that_is_leaving(world: NodeWorld) -> None:
    """Its line ended when it was moved: a call whose idempotency key was on its way to the disk comes after that."""
    made = queue(world)
    stop_in_a_move(world, 2)
    made._partitions.first.is_leaving = True
    answers: list[Published | PushqError] = []
    drafts = blocks_of([draft(1, keys_on_the_move(world)[0])]).blocks
    world.tell(lambda: made._partitions.publish(drafts, answers.append))
    assert isinstance(answers[0], QueueNotFound)


def test_the_limit_of_a_queue_is_for_all_its_partitions_together(world: NodeWorld) -> None:
    made = queue(world, partitions=4, max_messages=10)
    answer = published(send(world, made, *[draft(n, key) for n, key in enumerate(KEYS)]))
    assert made.stats().ready == 10
    assert answer.others is not None
    assert sum(isinstance(other, QueueFull) for other in answer.others.values()) == 30


def test_a_full_queue_makes_room_in_its_other_partitions_too(world: NodeWorld) -> None:
    made = queue(world, partitions=4, max_messages=10, overflow="drop_oldest")
    for number, key in enumerate(KEYS):
        send(world, made, draft(number, key))
        assert made.stats().ready <= 10
    assert made.stats().ready == 10 and made.ended == {"overflow": 30}


def test_its_own_partition_makes_room_first_and_then_the_fullest(world: NodeWorld) -> None:
    made = queue(world, partitions=3, max_messages=10, overflow="drop_oldest")
    table = first_table(3)
    of = [[key for key in KEYS if table.route(slot_of(key)) == number] for number in range(3)]
    for number, count in enumerate((2, 3, 5)):
        send(world, made, *[draft(n, of[number][0]) for n in range(count)])
    assert lying(made) == {0: 2, 1: 3, 2: 5}
    send(world, made, draft(9, of[0][0]), draft(9, of[0][0]), draft(9, of[0][0]))
    assert lying(made) == {0: 3, 1: 3, 2: 4}


def test_a_call_for_several_full_partitions_never_passes_the_limit(world: NodeWorld) -> None:
    made = queue(world, partitions=4, max_messages=10, overflow="drop_oldest")
    for _ in range(3):
        answer = published(send(world, made, *[draft(n, key) for n, key in enumerate(KEYS[:20])]))
        assert answer.others is None and made.stats().ready <= 10
    assert sum(made.ended.values()) + made.stats().ready == 60


def test_a_busy_partition_of_a_full_queue_keeps_no_publish_of_another_waiting(world: NodeWorld) -> None:
    made = queue(world, partitions=2, max_messages=20, overflow="drop_oldest")
    busy, quiet = (next(key for key in KEYS if table_of(world).route(slot_of(key)) == number) for number in (0, 1))
    for number in range(10):
        send(world, made, draft(number, busy), draft(number, quiet))
    came = 0

    def answered(result: Published | PushqError) -> None:
        nonlocal came
        assert isinstance(result, Published)
        came += 1
        if came <= 1_000:
            made.publish(blocks_of([draft(came, busy)]).blocks, answered)

    def publish_without_a_pause() -> None:
        for number in range(100):
            made.publish(blocks_of([draft(number, busy)]).blocks, answered)

    came_before: list[int] = []
    world.tell(publish_without_a_pause)
    world.tell(lambda: made.publish(blocks_of([draft(1, quiet)]).blocks, lambda result: came_before.append(came)))
    world.settle()
    assert came == 1_100 and came_before[0] <= 100, "it is in the second commit"
    assert made.stats().ready == 20


# --------------------------------------------------------------------------------------------------- gathered answers


def share(partition: int, *numbers: int) -> Share:
    return Share(partition, [Block(b"", len(numbers))], list(numbers), 0)


def test_answers_are_put_together_in_the_order_of_the_call() -> None:
    answer = gathered([(share(1, 0, 2), Published(1, Offset(10), 2)), (share(0, 1, 3), Published(0, Offset(5), 2))])
    assert isinstance(answer, Published)
    assert (answer.count, answer.places, answer.others) == (4, [(1, 10), (0, 5), (1, 11), (0, 6)], None)


def test_an_answer_is_as_durable_as_the_least_of_its_parts() -> None:
    parts = [
        (share(0, 0), Published(0, Offset(1), 1, fsynced=True, replicas=3)),
        (share(1, 1), Published(1, Offset(1), 1, fsynced=False, replicas=2)),
    ]
    answer = gathered(parts)
    assert isinstance(answer, Published) and (answer.fsynced, answer.replicas) == (False, 2)


def test_where_no_part_was_taken_the_first_reason_is_the_answer() -> None:
    full = QueueFull("no room")
    assert gathered([(share(0, 0), full), (share(1, 1), Overloaded("busy"))]) is full


def test_messages_of_a_part_that_was_refused_say_so_one_by_one() -> None:
    full = QueueFull("no room")
    answer = gathered([(share(0, 0, 2), full), (share(1, 1), Published(1, Offset(7), 1))])
    assert isinstance(answer, Published)
    assert answer.others == {0: full, 2: full} and answer.places is not None and answer.places[1] == (1, 7)


def test_repeats_name_the_partition_in_which_the_first_message_lies() -> None:
    others = {0: Original(3), 1: Original(4, 0)}
    answer = gathered(
        [(share(2, 1, 3), Published(2, Offset(9), 2, others=others)), (share(0, 0, 2), Published(0, Offset(1), 2))]
    )
    assert isinstance(answer, Published)
    assert answer.others == {1: Original(3, 2), 3: Original(4, 0)}


def test_an_answer_waits_for_its_last_part() -> None:
    told: list[Published | PushqError] = []
    answer = Gathered([share(0, 0), share(1, 1)], told.append)
    answer.told(1, Published(1, Offset(5), 1))
    assert told == []
    answer.told(0, Published(0, Offset(6), 1))
    assert [one.places for one in told if isinstance(one, Published)] == [[(0, 6), (1, 5)]]


# ------------------------------------------------------------------------------------------------- coming and going


def test_who_asks_for_the_partitions_is_told_when_one_comes_or_goes(world: NodeWorld) -> None:
    made = queue(world)
    seen: list[list[int]] = []
    made._partitions.on_changed(lambda: seen.append([one.index for one in made._partitions.all]))
    resize(world, 3)
    rest(world)
    resize(world, 2)
    rest(world)
    assert seen == [[0, 1], [0, 1, 2], [0, 1]]


def test_the_first_partition_speaks_for_the_queue_whichever_that_is(world: NodeWorld) -> None:
    made = queue(world, partitions=3)
    made._partitions.remove(0)
    assert made._partitions.first.index == 1
    assert [one.index for one in made._partitions.all] == [1, 2]


def test_the_totals_of_a_queue_never_fall(world: NodeWorld) -> None:
    made = queue(world, partitions=4)
    send(world, made, *[draft(n, key) for n, key in enumerate(KEYS)])
    assert len(drain(world, made)) == 40
    resize(world, 1)
    rest(world)
    assert (made.stats().published_total, made.stats().acked_total) == (40, 40)
    world.crash()
    stats = world.queue("q").stats()
    assert (stats.published_total, stats.acked_total) == (40, 40)
    resize(world, 4)
    rest(world)
    stats = world.queue("q").stats()
    assert (stats.published_total, stats.acked_total) == (40, 40)


# --------------------------------------------------------------------------------- strict order and idempotency keys


def claimed(
    world: NodeWorld, made: EmbeddedQueue, name: str, *numbers: int, key: str, ms: int = 0
) -> list[Published | PushqError]:
    """Begins a call under an idempotency key; the list fills with its answer. `ms`: for how long it waits; 0: for as
    long as it takes."""
    answers: list[Published | PushqError] = []
    drafts = [draft(number, key, id=f"{name}-{number}") for number in numbers]
    claim = Claim(name.encode().ljust(16, b"k"), name.encode().ljust(16, b"p"))
    until_ms = world.now_ms + ms if ms else 0
    world.tell(lambda: made.publish(blocks_of(drafts).blocks, answers.append, claim, until_ms=until_ms))
    return answers


def begun(
    world: NodeWorld, made: EmbeddedQueue, *numbers: int, key: str | None, ms: int = 0
) -> list[Published | PushqError]:
    answers: list[Published | PushqError] = []
    drafts = [draft(number, key) for number in numbers]
    until_ms = world.now_ms + ms if ms else 0
    world.tell(lambda: made.publish(blocks_of(drafts).blocks, answers.append, until_ms=until_ms))
    return answers


def is_refused(answers: list[Published | PushqError]) -> bool:
    """Because its time is over, and nothing of it was begun."""
    assert len(answers) <= 1, "each is answered once"
    return (
        bool(answers)
        and isinstance(answers[0], Overloaded)
        and "the request timed out; nothing was accepted" in str(answers[0])
    )


def test_nothing_overtakes_a_call_of_its_key_whose_idempotency_key_is_bound_first(world: NodeWorld) -> None:
    """It lies in a partition of its own, so its messages came a commit later than those that were sent behind them."""
    made = queue(world, ordering="strict", partitions=3)
    answers = []
    for number in range(0, 30, 3):
        answers += [claimed(world, made, f"c{number}", number, key="k1"), begun(world, made, number + 1, key="k1")]
        answers += [claimed(world, made, f"d{number}", number + 2, key="k1")]
    world.settle()
    assert [published(one).others for one in answers] == [None] * 30
    assert drain(world, made) == list(range(30))


def test_what_has_other_keys_of_messages_waits_for_no_idempotency_key(world: NodeWorld) -> None:
    made = queue(world, ordering="strict", partitions=3)
    world.hold()
    waits = claimed(world, made, "c", 1, key="k1")
    behind = begun(world, made, 2, key="k1")
    other = begun(world, made, 3, key="k2")
    assert made._partitions._following.messages == 2, "of both with the key, and of no other"
    world.let_go()
    assert all(published(one) for one in (waits, behind, other))
    assert len(made._partitions._following) == 0


def test_without_strict_order_nothing_waits_for_idempotency_keys(world: NodeWorld) -> None:
    made = queue(world, partitions=3)
    world.hold()
    claimed(world, made, "c", 1, key="k1")
    begun(world, made, 2, key="k1")
    assert len(made._partitions._following) == 0
    world.let_go()
    assert sorted(drain(world, made)) == [1, 2]


def test_a_repeat_and_a_key_of_another_payload_hold_nobody_up(world: NodeWorld) -> None:
    made = queue(world, ordering="strict", partitions=3)
    first = claimed(world, made, "c", 1, key="k1")
    world.settle()
    again = claimed(world, made, "c", 1, key="k1")
    drafts = blocks_of([draft(9, "k1", id="c-9")]).blocks
    wrong: list[Published | PushqError] = []
    world.tell(lambda: made.publish(drafts, wrong.append, Claim(b"c".ljust(16, b"k"), bytes(16))))
    behind = begun(world, made, 2, key="k1")
    world.settle()
    assert published(first).others is None and published(again).others is not None
    assert isinstance(wrong[0], IdempotencyMismatch)
    assert published(behind).count == 1 and len(made._partitions._following) == 0
    assert drain(world, made) == [1, 2]


def test_only_so_much_waits_for_idempotency_keys(world: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INBOX_MESSAGES_MAX", 3)
    made = queue(world, ordering="strict", partitions=3)
    world.hold()
    first = claimed(world, made, "c", 1, 2, key="k1")
    second = begun(world, made, 3, key="k1")
    third, fourth = begun(world, made, 4, key="k1"), claimed(world, made, "d", 5, key="k1")
    assert all(isinstance(one[0], Overloaded) and one[0].retry_after_ms for one in (third, fourth))
    world.let_go()
    assert published(first).count == 2 and published(second).count == 1
    assert drain(world, made) == [1, 2, 3]


def test_a_queue_that_is_deleted_answers_who_waits_for_idempotency_keys(world: NodeWorld) -> None:
    made = queue(world, ordering="strict", partitions=3)
    world.hold()
    answers = [claimed(world, made, "c", 1, key="k1"), begun(world, made, 2, key="k1")]
    world.start(world.store.delete_queue(TENANT, "q"))
    world.let_go()
    assert [len(one) for one in answers] == [1, 1]
    assert len(made._partitions._following) == 0


def test_who_fails_on_the_answer_to_a_call_with_an_idempotency_key_holds_nobody_up(world: NodeWorld) -> None:
    made = queue(world, ordering="strict", partitions=3)
    claimed(world, made, "c", 1, key="k1")
    world.settle()

    def fail(answer: Published | PushqError) -> None:
        raise RuntimeError("a listener's own fault")

    claim = Claim(b"c".ljust(16, b"k"), bytes(16))
    world.tell(lambda: made.publish(blocks_of([draft(9, "k1", id="c-9")]).blocks, fail, claim))
    behind = begun(world, made, 2, key="k1")
    with pytest.raises(AssertionError, match="a listener's own fault"):
        world.settle()
    world.faults.clear()
    world.settle()
    assert published(behind).count == 1 and len(made._partitions._following) == 0


def test_a_node_that_is_abandoned_answers_who_waits_for_idempotency_keys(world: NodeWorld) -> None:
    made = queue(world, ordering="strict", partitions=3)
    world.hold()
    begun(world, made, 0, key="k1")  # it is on its way to the disk
    answers = []
    for number, key in enumerate(KEYS[:9]):
        answers += [claimed(world, made, f"c{number}", 100 + number, key=key), begun(world, made, 200, key=key)]
    world.do(world.node.abandon(Unavailable("another leads")))
    assert [len(one) for one in answers] == [1] * len(answers)


def test_a_node_that_is_abandoned_answers_who_waits_for_slots_on_the_move(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    stop_in_a_move(world, 2)
    key = keys_on_the_move(world)[0]
    first, second = begun(world, made, 1, key=key), begun(world, made, 2, key=key, ms=50)
    world.do(world.node.abandon(Unavailable("another leads")))
    assert all(isinstance(one[0], Unavailable) and "nothing was begun" in str(one[0]) for one in (first, second))
    world.pass_time(50)
    assert len(first) == len(second) == 1


def test_who_fails_on_the_answer_after_a_wait_for_a_slot_keeps_nobody_else_waiting(
    world: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = queue(world, ordering="strict")
    stop_in_a_move(world, 2)
    key = keys_on_the_move(world)[0]

    def fail(answer: Published | PushqError) -> None:
        raise RuntimeError("a listener's own fault")

    world.tell(lambda: made.publish(blocks_of([draft(1, key)]).blocks, fail))
    behind = begun(world, made, 2, key=key)
    first = iter([Overloaded("the first is refused")])
    monkeypatch.setattr(made._partitions.all[1].inbox, "why_full", lambda *_: next(first, None))
    with pytest.raises(AssertionError, match="a listener's own fault"):
        world.let_go()
    world.faults.clear()
    world.settle()
    assert published(behind).count == 1
    rest(world)
    assert drain(world, made) == [2]


# ------------------------------------------------------------------------------------------------- whose time is over


def test_what_waits_for_an_idempotency_key_is_refused_at_its_time(world: NodeWorld) -> None:
    made = queue(world, ordering="strict", partitions=3)
    world.hold()
    first = claimed(world, made, "c", 1, key="k1")
    hasty, patient, middle = (begun(world, made, n, key="k1", ms=ms) for n, ms in ((2, 50), (3, 0), (4, 20)))
    world.pass_time(19)
    assert not middle
    world.pass_time(1)
    assert is_refused(middle) and not hasty
    world.pass_time(30)
    assert is_refused(hasty) and not first and not patient
    behind = begun(world, made, 5, key="k1", ms=1_000)
    world.let_go()
    assert [published(one).count for one in (first, patient, behind)] == [1, 1, 1]
    assert drain(world, made) == [1, 3, 5], "nothing of the others, and the rest in its order"
    assert len(made._partitions._following) == made._partitions._following.messages == 0


def test_what_waits_for_a_slot_on_the_move_is_refused_at_its_time(world: NodeWorld) -> None:
    made = queue(world, ordering="strict")
    stop_in_a_move(world, 2)
    key = keys_on_the_move(world)[0]
    first, hasty, last = (begun(world, made, n, n + 10, key=key, ms=ms) for n, ms in ((1, 60), (2, 50), (3, 0)))
    world.pass_time(49)
    assert not hasty
    world.pass_time(1)
    assert is_refused(hasty) and not first and not last
    assert made._partitions._waiting_messages == 4
    world.let_go()
    assert [published(one).count for one in (first, last)] == [2, 2]
    assert made._partitions._waiting_messages == made._partitions._waiting_bytes == 0
    rest(world)
    assert drain(world, made) == [1, 11, 3, 13]


def test_of_a_call_only_what_waits_for_a_slot_on_the_move_is_refused_at_its_time(world: NodeWorld) -> None:
    made = queue(world)
    stop_in_a_move(world, 2)
    moving = keys_on_the_move(world)
    answers: list[Published | PushqError] = []
    drafts = [draft(n, key) for n, key in enumerate(KEYS)]
    until_ms = world.now_ms + 50
    world.tell(lambda: made.publish(blocks_of(drafts).blocks, answers.append, until_ms=until_ms))
    world.hold(1)
    world.writer.land()
    world.settle()
    assert not answers, "the rest is on the disk, and these wait"
    world.pass_time(50)
    answer = published(answers)
    assert answer.others is not None and {KEYS[n] for n in answer.others} == {*moving}
    assert all(is_refused([other]) for other in answer.others.values() if isinstance(other, PushqError))
    world.let_go()
    rest(world)
    assert len(answers) == 1
    assert {KEYS[n] for n in drain(world, made)} == {*KEYS} - {*moving}


def test_an_empty_call_has_its_time_as_any_other(world: NodeWorld) -> None:
    made = queue(world, partitions=3)
    world.hold()
    first = begun(world, made, 1, key=None)
    world.settle()
    empty: list[Published | PushqError] = []
    world.tell(lambda: made.publish([], empty.append, until_ms=world.now_ms + 50))
    world.hold()
    send(world, made, draft(2, "k1"))
    world.pass_time(50)
    assert len(empty) == 1 and isinstance(empty[0], PushqError) and not first


def test_what_waits_on_for_a_slot_after_a_newer_table_keeps_its_time(world: NodeWorld) -> None:
    made = queue(world)
    stop_in_a_move(world, 2)
    hasty = begun(world, made, 1, key=keys_on_the_move(world)[0], ms=50)
    world.tell(made._partitions.flush)
    assert made._partitions._waiting_messages == 1, "the slot is where it was"
    world.pass_time(49)
    assert not hasty
    world.pass_time(1)
    assert is_refused(hasty)


def test_who_fails_on_being_refused_keeps_nobody_else_waiting(world: NodeWorld) -> None:
    made = queue(world, ordering="strict", partitions=3)

    def fail(answer: Published | PushqError) -> None:
        raise RuntimeError("a listener's own fault")

    world.hold()
    claimed(world, made, "c", 1, key="k1")
    until_ms = world.now_ms + 50
    world.tell(lambda: made.publish(blocks_of([draft(2, "k1")]).blocks, fail, until_ms=until_ms))
    hasty, later = begun(world, made, 3, key="k1", ms=50), begun(world, made, 4, key="k1", ms=51)
    with pytest.raises(AssertionError, match="a listener's own fault"):
        world.pass_time(50)
    world.faults.clear()
    assert is_refused(hasty)
    world.pass_time(1)
    assert is_refused(later)


def test_a_refused_one_that_is_sent_again_at_once_waits_behind_the_others(world: NodeWorld) -> None:
    made = queue(world, ordering="strict", partitions=3)
    world.hold()
    claimed(world, made, "c", 1, key="k1")
    answers: list[Published | PushqError] = []
    until_ms = world.now_ms + 50

    def again(answer: Published | PushqError) -> None:
        assert is_refused([answer])
        made.publish(blocks_of([draft(2, "k1")]).blocks, answers.append)

    world.tell(lambda: made.publish(blocks_of([draft(2, "k1")]).blocks, again, until_ms=until_ms))
    behind = begun(world, made, 3, key="k1")
    world.pass_time(50)
    world.let_go()
    assert published(behind) and published(answers)
    assert drain(world, made) == [1, 3, 2]


def test_thousands_whose_times_are_all_others_are_refused_at_no_great_cost(world: NodeWorld) -> None:
    """Each with a look at all the others the node stood still for seconds."""
    made = queue(world, ordering="strict", partitions=3)
    world.hold()
    claimed(world, made, "c", 1, key="k1")
    began = time.process_time()
    answers: list[Published | PushqError] = []
    blocks = blocks_of([draft(2, "k1")]).blocks

    def publish() -> None:
        for ms in range(5_000):
            made.publish(blocks, answers.append, until_ms=world.now_ms + 1_000 + ms * 7 % 50)

    world.tell(publish)
    assert made._partitions._following.messages == 5_001
    world.pass_time(1_100)
    assert len(answers) == 5_000 and all(is_refused([one]) for one in answers)
    assert made._partitions._following.messages == 1 and made._partitions._following.until_ms is None
    assert time.process_time() - began < 2
