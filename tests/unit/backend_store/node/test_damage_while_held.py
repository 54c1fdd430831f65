"""An entry turns out to be damaged while consumers hold some of it: they are told, the others of the queue go on, and
the counts are right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.typing import EventDict, WrappedLogger

from backend_store.client.embedded import EmbeddedQueue
from backend_store.core.leases.leases import Lease
from backend_store.core.log.chunk import blocks_of
from backend_store.core.log.sublogs import SCHEDULED
from backend_store.core.ready import backlog
from backend_store.storage.engine import Batch, Table
from tests.support.node_world import NodeWorld
from tests.support.partitioned import ack, draft, drain, queue, send, taken
from tests.support.storage import all_rows
from tests.support.world import Consumer, receipts_by_seq

DELAY_MS = 500
VISIBILITY_MS = 30_000


class DamagedWorld(NodeWorld):
    """A `NodeWorld` in which damage is no fault of the node's."""

    def _hear(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        return super()._hear(logger, "warning" if "put aside" in event["event"] else method, event)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[DamagedWorld]:
    monkeypatch.setattr(backlog, "CHUNKS_LOADED_BYTES_MAX", 100)  # the chunk that was taken last is in memory
    world = DamagedWorld()
    yield world
    world.close()


def damage(world: NodeWorld, entry: int = 0, table: Table = Table.LOG) -> None:
    """The last bytes of an entry of the log are others from now on."""
    key, data = sorted(all_rows(world.engine, table).items())[entry]
    batch = Batch()
    batch.put(table, key, data[:-3] + b"xyz")
    world.engine.commit(batch, lambda: None)


def filled(world: NodeWorld, **settings: Any) -> EmbeddedQueue:
    """Two chunks: 0 to 3, and 4 to 7."""
    made = queue(world, **settings)
    send(world, made, *[draft(n, f"k{n}") for n in range(4)])
    send(world, made, *[draft(n, f"k{n}") for n in range(4, 8)])
    return made


def took(world: NodeWorld, made: EmbeddedQueue, limit: int) -> tuple[Consumer, Lease]:
    consumer = Consumer()
    lease = world.tell(lambda: made.take(limit, consumer, VISIBILITY_MS))
    world.settle()
    assert lease is not None
    return consumer, lease


def give_back(world: NodeWorld, made: EmbeddedQueue, receipts: list[str], delay_ms: int = 0) -> list[bool]:
    answers: list[Any] = []
    world.tell(lambda: made.give_back(receipts, delay_ms, answers.append))
    world.settle()
    return [verdict.ok for verdict in answers[0]]


def leave_memory(made: EmbeddedQueue, base: int = 0) -> None:
    """As when others were read since."""
    core = made._partition.views[0].core
    state = core.state(base)
    assert state is not None
    if core._loaded.pop(base, None) is not None:
        core._loaded_bytes -= state.size
    state.chunk = None


def numbers(made: EmbeddedQueue) -> tuple[int, int, int, int]:
    """(ready, in flight, delayed, bytes)"""
    stats = made.stats()
    return stats.ready, stats.in_flight, stats.delayed, stats.bytes


def all_is_well(world: NodeWorld, made: EmbeddedQueue, *came: int, lost: int) -> None:
    """The other messages come once, nothing is left, and all are accounted for."""
    world.pass_time(VISIBILITY_MS)
    assert sorted(drain(world, made)) == list(came)
    assert numbers(made) == (0, 0, 0, 0)
    ledger = made._partition.state.ledger
    assert (ledger.settled, ledger.lost) == (8 - lost, lost)
    assert made._partition.views[0].core.leases.values() == []
    world.crash()
    assert numbers(world.queue("q")) == (0, 0, 0, 0) and drain(world, world.queue("q")) == []


@pytest.mark.parametrize("ordering", ["best_effort", "strict"])
@pytest.mark.parametrize("lease_mode", ["memory", "replicated"])
def test_who_waits_for_the_rest_of_a_damaged_chunk_gets_the_next_one(
    world: DamagedWorld, ordering: str, lease_mode: str
) -> None:
    made = filled(world, ordering=ordering, lease_mode=lease_mode)
    consumer, lease = took(world, made, 2)
    held = [*receipts_by_seq(lease).values()]
    leave_memory(made)
    damage(world)
    assert sorted(taken(world, made)) == [4, 5, 6, 7]
    assert consumer.lost_receipts == held and consumer.released_total == 2
    assert numbers(made)[:3] == (0, 4, 0)
    assert ack(world, made, *held) == [False, False], "they were lost"
    all_is_well(world, made, 4, 5, 6, 7, lost=4)


@pytest.mark.parametrize("ordering", ["best_effort", "strict"])
def test_a_lease_of_a_damaged_chunk_that_runs_out_stops_nobody(world: DamagedWorld, ordering: str) -> None:
    made = filled(world, ordering=ordering)
    took(world, made, 2)
    leave_memory(made)
    damage(world)
    taken(world, made)
    world.pass_time(VISIBILITY_MS + 1)
    all_is_well(world, made, 4, 5, 6, 7, lost=4)


@pytest.mark.parametrize("ordering", ["best_effort", "strict"])
@pytest.mark.parametrize("delay_ms", [0, DELAY_MS])
def test_what_was_given_back_of_a_damaged_chunk_is_lost_with_it(
    world: DamagedWorld, ordering: str, delay_ms: int
) -> None:
    made = filled(world, ordering=ordering)
    _, lease = took(world, made, 3)
    first, second, third = receipts_by_seq(lease).values()
    assert ack(world, made, first) == [True]
    assert give_back(world, made, [second], delay_ms) == [True]
    leave_memory(made)
    damage(world)
    world.pass_time(delay_ms)
    assert sorted(taken(world, made)) == [4, 5, 6, 7]
    assert give_back(world, made, [third]) == [False]
    all_is_well(world, made, 4, 5, 6, 7, lost=3)


@pytest.mark.parametrize("is_landed", [False, True])
def test_an_ack_on_its_way_to_the_disk_counts_when_its_chunk_is_found_damaged(
    world: DamagedWorld, is_landed: bool
) -> None:
    made = filled(world)
    _, lease = took(world, made, 2)
    leave_memory(made)
    world.hold()
    acked: list[Any] = []
    world.tell(lambda: made.settle([*receipts_by_seq(lease).values()][:1], acked.append))
    world.settle()
    done = world.writer.reach_the_disk() if is_landed else None
    damage(world)
    world.tell(lambda: made._partition.read(0))  # somebody comes upon it
    if done is not None:
        world.writer.busy = False
        world.tell(lambda: done(None))
    world.let_go()
    assert [verdict.ok for verdict in acked[0]] == [True]
    all_is_well(world, made, 4, 5, 6, 7, lost=3)


def test_an_end_that_was_decided_counts_once_when_its_chunk_is_found_damaged(world: DamagedWorld) -> None:
    made = filled(world)
    took(world, made, 2)
    leave_memory(made)
    damage(world)
    world.hold()
    view = made._partition.views[0]
    world.tell(lambda: view.cancel(0, 0, 3, lambda done: None))
    world.tell(lambda: made._partition.read(0))
    world.let_go()
    world.pass_time(VISIBILITY_MS)
    assert sorted(drain(world, made)) == [4, 5, 6, 7] and numbers(made) == (0, 0, 0, 0)
    ledger = made._partition.state.ledger
    assert (ledger.settled, ledger.cancelled, ledger.lost) == (4, 1, 3)


@pytest.mark.parametrize("is_crashed", [False, True])
@pytest.mark.parametrize("is_known", [False, True, None])
def test_scheduled_messages_of_a_damaged_chunk_are_delayed_no_more(
    world: DamagedWorld, is_known: bool | None, is_crashed: bool
) -> None:
    made = queue(world)
    due_ms = world.now_ms + DELAY_MS
    send(world, made, *[draft(n, due_ms=due_ms + n) for n in range(4)])
    send(world, made, *[draft(n) for n in range(4, 8)])
    if is_known:
        world.tell(lambda: made._partition.views[0].find(SCHEDULED, 0))
        leave_memory(made)
    damage(world, table=Table.LANES)
    if is_known is not None:
        world.tell(lambda: made._partition.read(0, SCHEDULED))
    world.settle()
    if is_crashed or is_known is None:  # at the start all is read
        world.crash()
        made = world.queue("q")
    assert numbers(made)[:3] == (4, 0, 0)
    assert all_rows(world.engine, Table.DUE) == {}
    world.pass_time(2 * DELAY_MS)
    all_is_well(world, made, 4, 5, 6, 7, lost=4)


def test_the_last_entry_counts_once_when_it_is_found_damaged_by_the_look_for_what_is_left(world: DamagedWorld) -> None:
    made = filled(world)
    damage(world)
    world.hold()
    world.tell(lambda: made._partition.read(0))
    world.settle()
    damage(world, -1)
    world.tell(lambda: made.publish(blocks_of([draft(n) for n in range(8, 13)]).blocks, lambda result: None))
    world.let_go()
    assert numbers(made)[:3] == (5, 0, 0) and made._partition.state.ledger.lost == 8
    assert sorted(drain(world, made)) == [8, 9, 10, 11, 12] and numbers(made) == (0, 0, 0, 0)
