"""Fenced writes whose answers are lost: what is known for certain is said, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from backend_store.cluster import fencing
from backend_store.cluster.core.values import Delete, Outcome, Put, Transaction
from backend_store.cluster.embedded import EmbeddedCoordinator
from backend_store.cluster.fencing import Fenced, Right, Stale, put_fenced
from backend_store.model import OutcomeUnknown, Unavailable
from backend_store.storage.engine import Batch
from backend_store.storage.memory import MemoryEngine
from tests.support.coordinators import find, put

pytestmark = pytest.mark.anyio


class Lossy(EmbeddedCoordinator):
    """For the next conditional writes: whether each is done, and then who else did what, before its answer is lost."""

    def __init__(self) -> None:
        engine = MemoryEngine()

        async def write(rows: Batch) -> None:
            engine.commit(rows, lambda: None)

        super().__init__(engine, write)
        self.lost: list[tuple[bool, Transaction | None]] = []
        self.is_away = False

    async def transact(self, transaction: Transaction) -> Outcome:
        if self.is_away:
            raise Unavailable("it is away")
        if not (self.lost and transaction.compares):
            return await super().transact(transaction)
        is_done, also = self.lost.pop(0)
        if is_done:
            await super().transact(transaction)
        if also is not None:
            await super().transact(also)
        raise OutcomeUnknown("the answer was lost")


@pytest.fixture
async def lossy(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lossy]:
    monkeypatch.setattr(fencing, "FENCED_PAUSE_SECONDS", 0.0)
    coordinator = Lossy()
    yield coordinator
    coordinator.is_away = False
    await coordinator.close()


async def mine(lossy: Lossy) -> Right:
    return Right(b"mine", await put(lossy, b"mine"))


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_lost_answer_is_made_up_for_by_asking_again(lossy: Lossy, is_done: bool) -> None:
    right = await mine(lossy)
    lossy.lost = [(is_done, None), (False, None)]
    record = await put_fenced(lossy, right, b"k", b"v", based_on=None)
    assert record == await find(lossy, b"k") and record.version == 1


async def test_somebody_elses_write_is_not_taken_for_ours(lossy: Lossy) -> None:
    right = await mine(lossy)
    lossy.lost = [(False, Transaction(then=(Put(b"k", b"theirs"),)))]
    with pytest.raises(Stale) as stale:
        await put_fenced(lossy, right, b"k", b"v", based_on=None)
    assert stale.value.found == await find(lossy, b"k")


async def test_a_right_that_went_before_the_write_is_a_certain_no(lossy: Lossy) -> None:
    right = await mine(lossy)
    lossy.lost = [(False, Transaction(then=(Delete(b"mine"),)))]
    with pytest.raises(Fenced):
        await put_fenced(lossy, right, b"k", b"v", based_on=None)
    assert await find(lossy, b"k") is None


async def test_a_right_that_went_after_the_write_leaves_it_open(lossy: Lossy) -> None:
    right = await mine(lossy)
    lossy.lost = [(True, Transaction(then=(Delete(b"mine"),)))]
    with pytest.raises(OutcomeUnknown, match="by whom is not known"):
        await put_fenced(lossy, right, b"k", b"v", based_on=None)


async def test_silence_leaves_it_open_in_the_end(lossy: Lossy) -> None:
    right = await mine(lossy)
    lossy.lost = [(False, None)] * fencing.FENCED_TRIES_MAX
    with pytest.raises(OutcomeUnknown):
        await put_fenced(lossy, right, b"k", b"v", based_on=None)


async def test_what_was_not_sent_is_no_open_question(lossy: Lossy) -> None:
    right = await mine(lossy)
    lossy.is_away = True
    with pytest.raises(Unavailable):
        await put_fenced(lossy, right, b"k", b"v", based_on=None)


async def test_the_own_key_made_anew_is_another_right(lossy: Lossy) -> None:
    right = await mine(lossy)
    await lossy.transact(Transaction(then=(Delete(b"mine"),)))
    newer = await mine(lossy)
    with pytest.raises(Fenced):
        await put_fenced(lossy, right, b"k", b"v", based_on=None)
    await put_fenced(lossy, newer, b"k", b"v", based_on=None)
