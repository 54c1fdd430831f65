"""How much one commit takes: a bounded part of what waits, from each of those who wait in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from backend_store.core.leases.receipts import by_token
from backend_store.core.log.chunk import KIND_JSON, plain_blocks
from backend_store.model import Published, PushqError
from backend_store.node.commit import cycle_budget
from backend_store.node.commit.transaction import Transaction, TransactionResult
from backend_store.storage.engine import Batch
from backend_store.storage.memory import MemoryEngine
from tests.support.queues import draft, publish, queue, receipts, took
from tests.support.stores import made, opened
from tests.unit.backend_store.node.commit.test_transaction import beside

pytestmark = pytest.mark.anyio
CALL = b"[%s]" % (b"1," * 8_000 + b"1")
CALL_BYTES = len(CALL)
BOUND = 4 * CALL_BYTES


class MeasuredEngine(MemoryEngine):
    """Writes down how many bytes each commit has."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def commit(self, batch: Batch, staged: Callable[[], None]) -> None:
        self.sizes.append(sum(len(value or b"") for rows in batch.rows.values() for value in rows.values()))
        super().commit(batch, staged)


@pytest.fixture(autouse=True)
def small_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycle_budget, "CYCLE_BYTES_SOFT_MAX", BOUND)


@pytest.mark.parametrize(("queues", "calls"), [(1, 40), (9, 20)])
async def test_what_piled_up_is_stored_in_commits_of_a_bounded_size(queues: int, calls: int) -> None:
    engine = MeasuredEngine()
    store = await opened(engine)
    targets = [await made(store, f"q{number}") for number in range(queues)]
    engine.sizes.clear()
    answers: list[tuple[int, Published | PushqError]] = []

    def told(number: int, answer: Published | PushqError) -> None:
        answers.append((number, answer))

    for number, target in enumerate(targets):
        for _ in range(calls):
            target.publish(plain_blocks(KIND_JSON, [CALL]), partial(told, number))
    async with asyncio.timeout(60):
        await store.node.committer.drain()
    assert len(answers) == queues * calls and all(isinstance(answer, Published) for _, answer in answers)
    assert max(engine.sizes) < BOUND + 2 * CALL_BYTES
    for number in range(queues):
        bases = [answer.base for one, answer in answers if one == number and isinstance(answer, Published)]
        assert bases == sorted(bases), "each queue's calls are stored in their order"
    waited = [next(place for place, (one, _) in enumerate(answers) if one == number) for number in range(queues)]
    assert max(waited) < queues * (BOUND // CALL_BYTES + 1), "none waits until another has stored all it has"
    await store.close()


async def test_a_message_larger_than_a_commit_is_stored_alone() -> None:
    engine = MeasuredEngine()
    store = await opened(engine)
    target, other = await made(store, "q"), await made(store, "other")
    engine.sizes.clear()
    answers: list[Published | PushqError] = []
    for size in (1, 3, 1):
        target.publish(plain_blocks(KIND_JSON, [b'"%s"' % (b"x" * size * BOUND)]), answers.append)
        other.publish(plain_blocks(KIND_JSON, [CALL]), answers.append)
    async with asyncio.timeout(60):
        await store.node.committer.drain()
    assert [type(answer) for answer in answers] == [Published] * 6
    assert 3 * BOUND < max(engine.sizes) < 4 * BOUND + 2 * CALL_BYTES
    await store.close()


def test_steps_of_several_queues_leave_half_of_a_commit_to_the_publishes() -> None:
    world = queue()
    publish(world, *[draft(f"in{number}") for number in range(6)])
    lease = took(world, 6)
    world.settle_down()
    other = beside(world)
    steps: list[TransactionResult | PushqError] = []
    calls: list[Published | PushqError] = []
    for receipt in receipts(lease):
        output = plain_blocks(KIND_JSON, [CALL])
        world.partition.settle_and_publish(
            Transaction([(world.main, by_token([receipt]))], [(other, output)], steps.append)
        )
        other.publish(plain_blocks(KIND_JSON, [CALL]), calls.append)
    counts = []
    while len(steps) < 6 or len(calls) < 6:
        assert world.committer.prepare()
        world.committer.land()
        counts.append((len(steps), len(calls)))
    assert counts == [(2, 2), (4, 4), (6, 6)]
    assert all(isinstance(step, TransactionResult) and step.places for step in steps)
