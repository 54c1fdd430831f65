"""Vocabulary for tests of a work queue's settings: messages with every field, and what happens to them.

Everything happens in a `World`, where the test advances the clock and lands the commits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from backend_store.core.leases.leases import Lease
from backend_store.core.leases.receipts import by_token, read_token
from backend_store.core.leases.session_snapshot import Detached, KeptLease
from backend_store.core.log.bits import indexes
from backend_store.core.log.chunk import KIND_JSON, Draft, blocks_of, holes
from backend_store.core.log.sublogs import VIEW_DEAD, VIEW_LATE, VIEW_MAIN
from backend_store.model import Published, PushqError, QueueConfig, Stamp
from backend_store.storage.engine import Table
from backend_store.storage.keys import log_range
from tests.support.world import REPLICA, SECRET, VISIBILITY_MS, Consumer, World, receipts_by_seq, verdicts

DEAD, LATE, MAIN = VIEW_DEAD, VIEW_LATE, VIEW_MAIN


def queue(**settings: Any) -> World:
    return World(config=QueueConfig(**settings))


def draft(
    body: str,
    *,
    priority: int = 0,
    due_ms: int = 0,
    expires_ms: int = 0,
    id: str | None = None,
    key: str | None = None,
    stamp: Stamp | None = None,
) -> Draft:
    columns = {name: value for name, value in (("id", id), ("key", key)) if value is not None}
    hashed = id.encode().ljust(16, b"\0") if id else None
    return Draft(KIND_JSON, body.encode(), columns, priority, due_ms, expires_ms, stamp, hashed)


def publish(world: World, *drafts: Draft) -> list[Any]:
    """Publishes in one call and one commit. Returns each message's offset, its original, or why it was refused."""
    answers: list[Published | PushqError] = []
    blocks, order = blocks_of(drafts)
    world.partition.publish(blocks, answers.append)
    while not answers:
        world.commit()
    answer = answers[0]
    if isinstance(answer, PushqError):
        return [answer] * len(drafts)
    flat: list[Any] = []
    for number, block in enumerate(blocks):
        first = answer.base + len(flat) if answer.bases is None else answer.bases[number]
        flat += range(first, first + block.count)
    for number, other in (answer.others or {}).items():
        flat[number] = other
    given = dict(zip(order if order is not None else range(len(drafts)), flat, strict=True))
    return [given[number] for number in range(len(drafts))]


def took(world: World, limit: int = 64, *, view: int = MAIN, visibility_ms: int = VISIBILITY_MS) -> Lease | None:
    return world.partition.view(view).take(limit, Consumer(), visibility_ms)


def texts(lease: Lease | None) -> list[str]:
    """The bodies of a lease."""
    if lease is None:
        return []
    assert lease.chunk is not None
    bodies = lease.chunk.messages.bodies
    return [bodies[index].decode() for index in indexes(lease.bits)]


def column(lease: Lease | None, name: str) -> list[Any]:
    """A column of a lease's messages."""
    assert lease is not None and lease.chunk is not None
    columns = lease.chunk.messages.columns or {}
    return [columns[name][index] if name in columns else None for index in indexes(lease.bits)]


def receipts(lease: Lease | None) -> list[str]:
    assert lease is not None
    return [*receipts_by_seq(lease).values()]


def ack(world: World, lease: Lease | None, *, view: int = MAIN) -> list[bool]:
    return settle(world, receipts(lease), view=view)


def settle(world: World, given: list[str], *, view: int = MAIN) -> list[bool]:
    answers: list[Any] = []
    world.partition.view(view).settle(by_token(given), answers.append)
    while not answers:
        world.commit()
    return verdicts(given, answers[0])


def nack(world: World, lease: Lease | None, *, due_ms: int | None = None, reason: str | None = None) -> list[bool]:
    given, answers = receipts(lease), list[Any]()
    world.main.give_back(by_token(given), due_ms, reason, answers.append)
    while not answers:
        world.commit()
    return verdicts(given, answers[0])


def drained(world: World, *, view: int = MAIN, limit: int = 64) -> list[str]:
    """Takes and acks all that is ready; returns the bodies in delivery order."""
    came: list[str] = []
    while (lease := took(world, limit, view=view)) is not None:
        came += texts(lease)
        if lease.receipts:
            ack(world, lease, view=view)
    world.settle_down()
    return came


def counts(world: World, view: int = MAIN) -> tuple[int, int, int]:
    """(ready, in flight, delayed)."""
    found = world.partition.view(view)
    return found.ready, found.core.in_flight, found.core.delayed


def time_passes(world: World, ms: int) -> None:
    """Advances the clock; what is due happens, and reaches the disk."""
    world.pass_time(ms)
    world.settle_down()


def crashed(world: World, *, landed: bool = False, kept: Iterable[KeptLease] = ()) -> None:
    """Ends the process and starts another one, as a node does."""
    world.crash(landed=landed)
    take_up_leases(world, kept)


def take_up_leases(world: World, kept: Iterable[KeptLease] = ()) -> None:
    """Takes up leases with a row of their own, then those kept by a clean stop."""
    stored = []
    for row in world.partition.reader.leases():
        fields = read_token(SECRET, row.token)
        assert fields is not None
        place = row.view, fields.shelf, row.number
        stored.append(KeptLease(REPLICA, row.token, row.base, row.bits, row.deadline_ms, *place))
    for lease in [*stored, *kept]:
        world.partition.view(lease.view).restore(lease, Detached())


def rows(world: World, *tables: Table) -> int:
    """Number of the queue's rows in the given tables."""
    return sum(len(world.engine.scan(table, *log_range(REPLICA), 10_000)) for table in tables)


def present(world: World, *shelves: int) -> int:
    """Number of messages stored on the given shelves, settled or not."""
    found = 0
    for shelf in shelves:
        chunk = world.partition.read(0, shelf)
        while chunk is not None:
            found += chunk.count - holes(chunk).bit_count()
            chunk = world.partition.read(chunk.base + 1, shelf)
    return found
