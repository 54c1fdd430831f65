"""Claims in a partition: bound with a commit, for the window, and refused for another payload."""

from __future__ import annotations

from collections.abc import Sequence

from backend_store.core.dedupe.dedupe import Bounds
from backend_store.core.log.chunk import KIND_JSON, Columns, Draft, blocks_of, column_blocks
from backend_store.model import Claim, Published, PushqError, QueueConfig
from backend_store.node.publishing.known_ids import IdStore
from backend_store.storage.engine import Table
from tests.support.world import REPLICA, World, receipts_by_seq

WINDOW_MS = QueueConfig().dedupe_window_ms


def claim(key: int, payload: int = 0) -> Claim:
    return Claim(b"k%015d" % key, b"p%015d" % (key * 100 + payload))


def publish(world: World, of: Claim | None, *names: bytes) -> list[Published | PushqError]:
    """The list fills with the answer when the commit lands. Messages are known by their names."""
    answers: list[Published | PushqError] = []
    drafts = [Draft(KIND_JSON, b'"%b"' % name, None, dedupe=name.ljust(16, b"-")) for name in names]
    blocks = blocks_of(drafts).blocks if drafts else []
    world.partition.publish(blocks, answers.append, claim=of)
    return answers


def asked(world: World, of: Claim | None, *names: bytes) -> Published | PushqError:
    answers = publish(world, of, *names)
    world.commit()
    return answers[0]


def code(answer: Published | PushqError) -> str:
    if isinstance(answer, PushqError):
        return answer.code
    return "duplicate" if answer.others or answer.is_repeat else "accepted"


def call(world: World, of: Claim, *bodies: bytes, priorities: Sequence[int] | None = None) -> Published | PushqError:
    """A call as a gateway encodes it for a queue that looks at no ids."""
    columns = Columns(KIND_JSON, bodies, priorities=priorities, claim=of)
    answers: list[Published | PushqError] = []
    world.partition.publish(column_blocks(columns).blocks, answers.append, claim=of)
    world.commit()
    return answers[0]


def places(answer: Published | PushqError) -> list[int | str]:
    """Where a call's messages stand, or why they do not."""
    assert isinstance(answer, Published)
    found: list[int | str] = [*range(answer.base, answer.base + answer.count)]
    if answer.bases is not None and len(answer.bases) == answer.count:
        found = [*answer.bases]  # a block a message
    for number, other in (answer.others or {}).items():
        found[number] = other.code if isinstance(other, PushqError) else other.offset
    return found


def ids_stored(world: World) -> int:
    return len(world.partition.ids)


def test_a_claim_is_known_after_a_crash_and_only_with_its_payload() -> None:
    world = World()
    assert code(asked(world, claim(1), b"a")) == "accepted"
    world.crash()
    assert code(asked(world, claim(1, 1), b"b")) == "idempotency-mismatch"
    assert code(asked(world, claim(1), b"a")) == "duplicate"
    assert world.partition.state.published_total == 1


def test_a_claim_whose_commit_never_landed_is_not_known() -> None:
    world = World()
    publish(world, claim(1), b"a")
    world.committer.prepare()
    world.crash(landed=False)
    assert code(asked(world, claim(1, 1), b"b")) == "accepted"


def test_two_payloads_of_one_cycle_are_decided_in_their_order() -> None:
    world = World()
    answers = [publish(world, claim(1), b"a"), publish(world, claim(1, 1), b"b"), publish(world, claim(1), b"a")]
    world.commit()
    assert [code(answer[0]) for answer in answers] == ["accepted", "idempotency-mismatch", "duplicate"]
    assert world.partition.state.published_total == 1


def test_a_claim_may_come_without_messages() -> None:
    world = World()
    assert code(asked(world, claim(1))) == "accepted"
    world.crash()
    assert code(asked(world, claim(1))) == "accepted"
    assert code(asked(world, claim(1, 1))) == "idempotency-mismatch"


def test_a_claim_leaves_with_the_window() -> None:
    world = World()
    asked(world, claim(1), b"a")
    world.pass_time(WINDOW_MS - 1)
    assert code(asked(world, claim(1, 1), b"b")) == "idempotency-mismatch"
    world.pass_time(1)
    assert code(asked(world, claim(1, 1), b"b")) == "accepted"


def test_messages_without_a_claim_are_not_compared_in_a_queue_that_keeps_duplicates() -> None:
    world = World()
    asked(world, claim(1), b"a")
    assert code(asked(world, None, b"a")) == "accepted"


def test_a_queue_that_sees_no_claim_stores_no_ids() -> None:
    world = World()
    world.stored(b"1", b"2")
    assert world.engine.scan(Table.IDS, b"", b"\xff", 10) == []
    asked(world, claim(1), b"a")
    assert world.engine.scan(Table.IDS, b"", b"\xff", 10) != []


def test_a_full_window_refuses_the_claim_and_stores_nothing() -> None:
    world = World()
    world.partition._ids = IdStore(world.engine, REPLICA, Bounds(ids_max=4))  # two of the claim, one of a message
    assert code(asked(world, claim(1), b"a")) == "accepted"
    assert code(asked(world, claim(2), b"b")) == "dedupe-full"
    assert code(asked(world, claim(1), b"a")) == "duplicate"
    assert world.partition.state.published_total == 1


def test_a_call_whose_messages_lie_together_is_remembered_by_two_ids() -> None:
    world = World()
    world.stored(b"before")
    first = call(world, claim(1), *[b"1"] * 100)
    assert ids_stored(world) == 2
    world.crash()
    again = call(world, claim(1), *[b"1"] * 100)
    assert isinstance(again, Published) and again.is_repeat and again.base == 1
    assert places(again) == places(first) == [*range(1, 101)]
    assert world.partition.state.published_total == 101


def test_a_call_of_several_priorities_is_remembered_message_by_message() -> None:
    world = World(config=QueueConfig(priorities=3))
    first = call(world, claim(1), b"1", b"2", b"3", priorities=[2, 0, 1])
    assert ids_stored(world) == 5
    world.crash()
    again = call(world, claim(1), b"1", b"2", b"3", priorities=[2, 0, 1])
    assert isinstance(again, Published) and not again.is_repeat
    assert sorted(map(str, places(again))) == sorted(map(str, places(first)))
    assert code(call(world, claim(1, 1), b"1")) == "idempotency-mismatch"
    assert world.partition.state.published_total == 3


def test_what_a_full_queue_refused_of_a_call_comes_with_its_repeat() -> None:
    world = World(config=QueueConfig(max_messages=2))
    assert places(call(world, claim(1), b"1", b"2", b"3")) == [0, 1, "queue-full"]
    world.crash()
    assert places(call(world, claim(1), b"1", b"2", b"3")) == [0, 1, "queue-full"]
    world.ack(*receipts_by_seq(world.take(1)).values())
    last = places(call(world, claim(1), b"1", b"2", b"3"))
    assert last[:2] == [0, 1] and isinstance(last[2], int) and last[2] > 1
    assert places(call(world, claim(1), b"1", b"2", b"3")) == last
    assert world.partition.state.published_total == 3


def test_a_repeat_in_the_same_cycle_has_the_first_call_s_answer() -> None:
    for config, wanted in (
        (QueueConfig(), [0, 1, 2]),
        (QueueConfig(max_messages=2), [0, 1, "queue-full"]),
    ):
        world = World(config=config)
        answers: list[Published | PushqError] = []
        for _ in range(3):
            blocks = column_blocks(Columns(KIND_JSON, [b"1", b"2", b"3"], claim=claim(1))).blocks
            world.partition.publish(blocks, answers.append, claim=claim(1))
        world.commit()
        assert [places(answer) for answer in answers] == [wanted] * 3
        assert [code(answer) for answer in answers[1:]] == ["duplicate"] * 2
        assert world.partition.state.published_total == len([place for place in wanted if isinstance(place, int)])


def test_a_queue_that_looks_at_ids_from_now_on_still_knows_a_call() -> None:
    world = World()
    call(world, claim(1), b"1", b"2")
    world.partition.configure(QueueConfig(dedupe="id"))
    assert places(call(world, claim(1), b"1", b"2")) == [0, 1]
    call(world, claim(2), b"1", b"2")
    world.partition.configure(QueueConfig())
    assert code(call(world, claim(2), b"1", b"2")) == "duplicate"
    assert world.partition.state.published_total == 4


def test_one_known_claim_among_new_ones_changes_nothing_for_the_others() -> None:
    """Whether a commit's claims are decided all at once or one by one."""
    world = World()
    first = call(world, claim(1), b"1", b"2")
    answers: list[Published | PushqError] = []
    for one, bodies in ((claim(2), (b"3",)), (claim(1), (b"1", b"2")), (None, (b"4",)), (claim(3), (b"5", b"6"))):
        blocks = column_blocks(Columns(KIND_JSON, bodies, claim=one)).blocks
        world.partition.publish(blocks, answers.append, claim=one)
    world.commit()
    assert [code(answer) for answer in answers] == ["accepted", "duplicate", "accepted", "accepted"]
    assert [places(answer) for answer in answers] == [[2], places(first), [3], [4, 5]]
    for number, wanted in ((1, [0, 1]), (2, [2]), (3, [4, 5])):
        assert places(call(world, claim(number), *[b"x"] * len(wanted))) == wanted
    assert code(call(world, claim(3, 1), b"x")) == "idempotency-mismatch"
