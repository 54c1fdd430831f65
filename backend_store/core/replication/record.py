"""The partition's record at the coordinator, who may change it, and how each change is made.

Everything here is a pure edit of one record. An edit becomes true only as a compare-and-set: the record still has the
version it was read with, and every guard holds. Guards are *monotone*: one that has failed once fails for ever, since
incarnations and terms are never used again. So a refused change stays refused, however late or often it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NewType

import msgspec
from msgspec.structs import replace

from backend_store.model import Epoch

NodeId = NewType("NodeId", str)
Incarnation = NewType("Incarnation", int)
"""Number of a node's life; rises with each registration and is never used again."""
DiskId = NewType("DiskId", str)
"""Name of what a node has stored; a replaced, restored or damaged disk gets a new one, and holds nothing."""
Version = NewType("Version", int)

Mode = Literal["sync", "async"]

NO_INCARNATION = Incarnation(0)


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """Who acts: a node in one of its lives, with one disk."""

    node: NodeId
    inc: Incarnation
    disk: DiskId


class NodeIs(msgspec.Struct, frozen=True, tag="node"):
    """Guard: the node has a live session of this incarnation."""

    node: NodeId
    inc: Incarnation


class ControllerIs(msgspec.Struct, frozen=True, tag="controller"):
    """Guard: this term of the in-cluster manager is the latest."""

    term: int


Guard = NodeIs | ControllerIs


class PartitionRecord(msgspec.Struct, frozen=True):
    """Who leads a partition, and who has all that is committed.

    `isr`: in sync; the leader among them. `elr`: out of it since the set became smaller than `min_in_sync`, and nothing
    was committed without them since. `disks`: the disk on which each of these has it.
    """

    partition: int
    replicas: tuple[NodeId, ...]
    min_in_sync: int
    mode: Mode = "sync"
    epoch: Epoch = Epoch(0)
    leader: NodeId | None = None
    leader_inc: Incarnation = NO_INCARNATION
    isr: tuple[NodeId, ...] = ()
    elr: tuple[NodeId, ...] = ()
    disks: dict[NodeId, DiskId] = {}
    resigned: NodeId | None = None
    """Gave its leadership back, and is elected last."""
    is_released: bool = False
    """The leader before had stopped by itself, or there was none: there is no lease of it to wait out."""
    left: dict[NodeId, Incarnation] = {}
    """Who has let go of its copy, in which life: in that one it is given no other."""
    version: Version = Version(0)

    @property
    def is_short(self) -> bool:
        """Fewer in sync than there must be: nothing is committed."""
        return len(self.isr) < self.min_in_sync


class Change(msgspec.Struct, frozen=True):
    """Asks for `record` in place of the version before it. `id` tells a caller's changes of one version apart."""

    record: PartitionRecord
    guards: tuple[Guard, ...]
    id: str

    @property
    def expects(self) -> Version:
        return Version(self.record.version - 1)


def may_apply(change: Change, record: PartitionRecord, holds: Callable[[Guard], bool]) -> bool:
    """What the coordinator's transaction compares."""
    return record.version == change.expects and all(map(holds, change.guards))


def first_record(
    partition: int, disks: Mapping[NodeId, DiskId], *, min_in_sync: int, mode: Mode = "sync"
) -> PartitionRecord:
    """Of a new partition: all replicas are empty, and so in sync. Raises ValueError."""
    if not 1 <= min_in_sync <= len(disks):
        raise ValueError(f"min_in_sync: {min_in_sync} of {len(disks)} replicas; choose 1 to {len(disks)}")
    replicas = tuple(disks)
    return PartitionRecord(partition, replicas, min_in_sync, mode, isr=replicas, disks=dict(disks))


def change(record: PartitionRecord, *guards: Guard, id: str) -> Change:
    """The change to an edited record."""
    named = {*record.isr, *record.elr}
    kept = {node: disk for node, disk in record.disks.items() if node in named}
    return Change(replace(record, disks=kept, version=Version(record.version + 1)), guards, id)


# ------------------------------------------------------------------------------------------------------- edits


def dropped(record: PartitionRecord, node: NodeId) -> PartitionRecord:
    """Takes one member out of the in-sync set. Below the minimum nothing is committed without it: it stays eligible."""
    isr = _without(record.isr, node)
    if len(isr) < record.min_in_sync:
        return replace(record, isr=isr, elr=(*_without(record.elr, node), node))
    return replace(record, isr=isr, elr=())


def disowned(record: PartitionRecord, node: NodeId) -> PartitionRecord:
    """Forgets a node whose disk is gone: it has nothing of what it had."""
    return replace(record, isr=_without(record.isr, node), elr=_without(record.elr, node))


def joined(record: PartitionRecord, node: NodeId, disk: DiskId) -> PartitionRecord:
    """Adds one that has everything. With enough in sync the log goes on without the eligible ones."""
    isr = (*record.isr, node)
    elr = () if len(isr) >= record.min_in_sync else _without(record.elr, node)
    return replace(record, isr=isr, elr=elr, disks={**record.disks, node: disk})


def admitted(record: PartitionRecord, node: NodeId) -> PartitionRecord:
    """Adds a replica that has nothing yet and counts for nothing: its leader lets it join when it has everything."""
    left = {other: inc for other, inc in record.left.items() if other != node}
    return replace(record, replicas=(*_without(record.replicas, node), node), left=left)


def removed(record: PartitionRecord, node: NodeId) -> PartitionRecord:
    """Takes a replica away for good; see `moving.next_step` for when it may be."""
    assert node != record.leader, "a leader hands over first"
    after = replace(record, replicas=_without(record.replicas, node))
    return replace(after, isr=_without(record.isr, node), elr=_without(record.elr, node))


def let_go(record: PartitionRecord, node: NodeId, inc: Incarnation) -> PartitionRecord:
    """A node that is no replica any more is about to delete what it has."""
    assert node not in record.replicas, "a replica keeps what it has"
    return replace(record, left={**record.left, node: inc})


def elected(record: PartitionRecord, chosen: Identity, is_alive: Callable[[NodeId], bool]) -> PartitionRecord:
    """A new epoch under a leader from the in-sync set, or else from the eligible ones; who is not alive is dropped."""
    leader, isr, elr = chosen.node, record.isr, record.elr
    if leader not in isr:
        eligible = (*_without(elr, leader), *isr)
        after = replace(record, isr=(leader,), elr=eligible if record.min_in_sync > 1 else ())
    else:
        others = _without(isr, leader)
        alive = tuple(node for node in others if is_alive(node))
        after = replace(record, isr=(leader, *alive), elr=())
        if after.is_short:
            # They go in one step, and nothing can be committed after it: each of them has all that ever was.
            gone = tuple(node for node in others if node not in alive)
            after = replace(after, elr=(*(node for node in elr if node not in gone), *gone))
    has_resigned = record.resigned is not None and record.leader is None
    return _led(after, leader, chosen.inc, is_released=has_resigned or record.epoch == 0)


def handed_over(record: PartitionRecord, target: NodeId, inc: Incarnation) -> PartitionRecord:
    """A new epoch under a member of the in-sync set, which stays as it is."""
    return _led(record, target, inc, is_released=True)


def resigned(record: PartitionRecord) -> PartitionRecord:
    """Nobody leads; the manager elects, somebody else if it can."""
    return replace(record, leader=None, leader_inc=NO_INCARNATION, resigned=record.leader)


def _led(record: PartitionRecord, leader: NodeId, inc: Incarnation, *, is_released: bool) -> PartitionRecord:
    epoch = Epoch(record.epoch + 1)
    return replace(record, epoch=epoch, leader=leader, leader_inc=inc, resigned=None, is_released=is_released)


def _without(nodes: tuple[NodeId, ...], node: NodeId) -> tuple[NodeId, ...]:
    return tuple(other for other in nodes if other != node)
