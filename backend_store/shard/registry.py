"""A backend at its coordinator: its lives, its row, and the changes that shards ask for."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import structlog

from backend_store.cluster.coordinator import Coordinator, get
from backend_store.cluster.core.values import (
    NEVER,
    Compare,
    Delete,
    Field,
    Get,
    Put,
    Relation,
    Revision,
    Transaction,
    changed_at,
    created_at,
    present,
)
from backend_store.cluster.session import Session
from backend_store.core.replication.record import (
    Change,
    ControllerIs,
    DiskId,
    Guard,
    Identity,
    Incarnation,
    NodeId,
    NodeIs,
    PartitionRecord,
    Version,
)
from backend_store.model import Epoch, Offset, OutcomeUnknown, Unavailable
from backend_store.shard.interface import ShardLeader, ShardNumber
from backend_store.shard.keys import MANAGER, incarnation_key, leader_key, life_key, node_key, record_key
from backend_store.storage.folder import sync_folder

log = structlog.get_logger("pushq.backend")

INCARNATION_FILE: Final = "incarnation"


class NodeRow(msgspec.Struct, frozen=True):
    """A backend that lives."""

    name: NodeId
    inc: Incarnation
    zone: str
    peer: str
    """`HOST:PORT` of its line for other backends."""
    service: str
    """`HOST:PORT` where shards are served; "" where nothing is."""
    http: str
    """`HOST:PORT` of its health listener."""
    disks: dict[str, DiskId]
    """The name of each shard's copy here, by the shard's number."""
    logs: dict[str, tuple[Epoch, Offset]] = {}
    """The last epoch of each of these copies' logs, and where it ends, when this was written."""

    def identity(self, shard: ShardNumber) -> Identity | None:
        disk = self.disks.get(str(shard))
        return None if disk is None else Identity(self.name, self.inc, disk)


encode = msgspec.json.Encoder().encode
decode_node = msgspec.json.Decoder(NodeRow).decode
decode_record = msgspec.json.Decoder(PartitionRecord).decode


class Made(NamedTuple):
    """What became of a change: the record as it is now."""

    is_made: bool
    record: PartitionRecord


async def begin_life(
    coordinator: Coordinator,
    session: Session,
    directory: Path,
    row: Callable[[Incarnation], NodeRow],
    name: NodeId,
    rename: Callable[[], Awaitable[None]],
) -> Incarnation | None:
    """Registers under a number that no life of this name had. None: somebody was faster; try again.

    `rename` gives every copy in the folder a new name, durably: it is called where the folder is older than the last
    life, as one that was put back from a copy is. What was confirmed since is not in it.

    Raises `Unavailable`, `OutcomeUnknown`, `SessionLost`, `OSError`.
    """
    key = incarnation_key(name)
    found, _ = await get(coordinator, key)
    last, known = 0 if found is None else int(found.value), _known(directory)
    if known < last:
        # Each number is on this disk before the coordinator has it, so a lower one cannot be of the same disk.
        log.error(
            "the folder is older than the last life of this node: its copies count for nothing",
            folder=str(directory),
            known=known,
            last=last,
        )
        await rename()
    inc = Incarnation(max(last, known) + 1)
    _remember(directory, inc)
    outcome = await coordinator.transact(
        Transaction(
            (changed_at(key, NEVER if found is None else found.changed_at),),
            (
                Put(key, b"%d" % inc),
                Put(node_key(name), encode(row(inc)), session.id),
                Put(life_key(name, inc), b"", session.id),
                # Nothing that rests on an earlier life may be made any more, also where its session has not lapsed yet.
                Delete(life_key(name, Incarnation(last))),
            ),
        )
    )
    return inc if outcome.succeeded else None


def _known(directory: Path) -> int:
    file = directory / INCARNATION_FILE
    return int(file.read_text()) if file.exists() else 0


def _remember(directory: Path, inc: int) -> None:
    new = directory / f"{INCARNATION_FILE}.new"
    with new.open("wb") as file:
        file.write(b"%d" % inc)
        file.flush()
        os.fsync(file.fileno())
    new.rename(directory / INCARNATION_FILE)
    sync_folder(directory)


async def put_bound(
    coordinator: Coordinator, session: Session, me: tuple[NodeId, Incarnation], key: bytes, value: bytes
) -> bool:
    """Writes a record that goes with this life; whether it did."""
    outcome = await coordinator.transact(Transaction((present(life_key(*me)),), (Put(key, value, session.id),)))
    return outcome.succeeded


async def say_leader(
    coordinator: Coordinator, session: Session, me: tuple[NodeId, Incarnation], leader: ShardLeader, version: Version
) -> bool:
    """Writes down who serves a shard, while its record is of this version; whether it did.

    A later leader's record is of a later one: however late this arrives, it does not cover what that one has said.
    """
    compares = present(life_key(*me)), _of_version(leader.shard, version)
    put = Put(leader_key(leader.shard), encode(leader), session.id)
    return (await coordinator.transact(Transaction(compares, (put,)))).succeeded


async def submit(
    coordinator: Coordinator, shard: ShardNumber, change: Change, *, also: Sequence[Put] = ()
) -> Made | None:
    """Makes a change where its version and its guards hold, and `also` these. None: whether it is made is not known."""
    key = record_key(shard)
    transaction = Transaction(
        (_of_version(shard, change.expects), *map(_compare, change.guards)),
        (Put(key, encode(change.record)), *also),
        (Get(key),),
    )
    try:
        outcome = await coordinator.transact(transaction)
    except (Unavailable, OutcomeUnknown):
        return None
    if outcome.succeeded:
        return Made(is_made=True, record=change.record)
    found = outcome.found[0]
    if found is None:
        return None
    record = decode_record(found.value)
    return Made(is_made=record == change.record, record=record)


def _of_version(shard: ShardNumber, version: Version) -> Compare:
    """The shard's record is of this version. The first one is the first write of its key: the coordinator's count is
    one ahead."""
    return Compare(record_key(shard), Field.VERSION, Relation.EQUAL, version + 1)


def _compare(guard: Guard) -> Compare:
    match guard:
        case NodeIs(node, inc):
            return present(life_key(node, inc))
        case ControllerIs(term):
            return created_at(MANAGER, Revision(term))


def sessions_of(nodes: Mapping[NodeId, NodeRow], shard: ShardNumber) -> dict[NodeId, Identity]:
    """Who lives and has said which copy of the shard it has."""
    found = {name: row.identity(shard) for name, row in nodes.items()}
    return {name: identity for name, identity in found.items() if identity is not None}


def logs_of(nodes: Mapping[NodeId, NodeRow], shard: ShardNumber) -> dict[NodeId, tuple[Epoch, Offset]]:
    """What the copies of a shard were when their nodes said so."""
    return {name: row.logs[str(shard)] for name, row in nodes.items() if str(shard) in row.logs}
