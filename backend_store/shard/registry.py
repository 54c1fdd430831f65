"""A backend's registration at the coordinator: its lives, its row, and the changes that shards ask for."""

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
    """A live backend."""

    name: NodeId
    inc: Incarnation
    zone: str
    peer: str
    """`HOST:PORT` of its listener for other backends."""
    service: str
    """`HOST:PORT` of its service listener for shards; "" where it has none."""
    http: str
    """`HOST:PORT` of its health listener."""
    disks: dict[str, DiskId]
    """The name of each shard's copy here, by the shard's number."""
    logs: dict[str, tuple[Epoch, Offset]] = {}
    """The last epoch and the end of each of these copies' logs, as of when this row was written."""

    def identity(self, shard: ShardNumber) -> Identity | None:
        disk = self.disks.get(str(shard))
        return None if disk is None else Identity(self.name, self.inc, disk)


encode = msgspec.json.Encoder().encode
decode_node = msgspec.json.Decoder(NodeRow).decode
decode_record = msgspec.json.Decoder(PartitionRecord).decode


class Made(NamedTuple):
    """The outcome of a change: the record as it is now."""

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
    """Registers with an incarnation number that no earlier life of this node had. Returns None where another process of
    this name was faster: the caller tries again.

    `rename` durably gives every copy in the folder a new name. It is called where the folder is older than the last
    life, for example because it was restored from a backup: what was confirmed since is missing in it. Raises
    `Unavailable`, `OutcomeUnknown`, `SessionLost`, `OSError`.
    """
    key = incarnation_key(name)
    found, _ = await get(coordinator, key)
    last, known = 0 if found is None else int(found.value), _known(directory)
    if known < last:
        # Each number is on this disk before the coordinator has it, so a lower number means that the disk is older.
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
                # Writes that rest on an earlier life must fail from now on, also while that life's session has not
                # lapsed yet.
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
    """Writes a record that is bound to this life. Returns whether it was written."""
    outcome = await coordinator.transact(Transaction((present(life_key(*me)),), (Put(key, value, session.id),)))
    return outcome.succeeded


async def say_leader(
    coordinator: Coordinator, session: Session, me: tuple[NodeId, Incarnation], leader: ShardLeader, version: Version
) -> bool:
    """Writes which node serves a shard, while the shard's record has this version. Returns whether it was written.

    A later leader's record has a later version: a late write cannot overwrite what that leader has announced.
    """
    compares = present(life_key(*me)), _of_version(leader.shard, version)
    put = Put(leader_key(leader.shard), encode(leader), session.id)
    return (await coordinator.transact(Transaction(compares, (put,)))).succeeded


async def submit(
    coordinator: Coordinator, shard: ShardNumber, change: Change, *, also: Sequence[Put] = ()
) -> Made | None:
    """Makes a change where its version and its guards hold, together with `also`. Returns None where the outcome is not
    known."""
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
    """A compare that the shard's record has this version. The first version is the first write of the key: the
    coordinator's count is one ahead."""
    return Compare(record_key(shard), Field.VERSION, Relation.EQUAL, version + 1)


def _compare(guard: Guard) -> Compare:
    match guard:
        case NodeIs(node, inc):
            return present(life_key(node, inc))
        case ControllerIs(term):
            return created_at(MANAGER, Revision(term))


def sessions_of(nodes: Mapping[NodeId, NodeRow], shard: ShardNumber) -> dict[NodeId, Identity]:
    """The nodes that live and have said which copy of the shard they have."""
    found = {name: row.identity(shard) for name, row in nodes.items()}
    return {name: identity for name, identity in found.items() if identity is not None}


def logs_of(nodes: Mapping[NodeId, NodeRow], shard: ShardNumber) -> dict[NodeId, tuple[Epoch, Offset]]:
    """The state of a shard's copies as of when their nodes reported it: last epoch and end of the log."""
    return {name: row.logs[str(shard)] for name, row in nodes.items() if str(shard) in row.logs}
