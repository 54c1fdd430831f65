"""Claims in a partition: bound with a commit, for the window, and refused for another payload."""

from __future__ import annotations

from backend_store.core.chunk import KIND_JSON, Draft, blocks_of
from backend_store.core.dedupe import Bounds
from backend_store.model import Claim, Published, PushqError, QueueConfig
from backend_store.node.ids import IdStore
from backend_store.storage.engine import Table
from tests.support.world import REPLICA, World

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
    return answer.code if isinstance(answer, PushqError) else "accepted" if not answer.others else "duplicate"


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
    world.partition._ids = IdStore(world.engine, REPLICA, Bounds(ids_max=4))
    assert code(asked(world, claim(1), b"a")) == "accepted"
    assert code(asked(world, claim(2), b"b")) == "dedupe-full"
    assert code(asked(world, claim(1), b"a")) == "duplicate"
    assert world.partition.state.published_total == 1
