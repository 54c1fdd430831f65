"""The partition's record at the coordinator: its leader and in-sync set, and every edit of them.

Everything here is a pure edit of one record. An edit takes effect only as a compare-and-set: the record must still have
the version it was read with, and every guard must hold. Guards are *monotone*: a guard that has failed once fails for
ever, since incarnations and terms are never reused. So a refused change stays refused, however late or often it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NewType

import msgspec
from msgspec.structs import replace

from backend_store.model import Epoch

NodeId = NewType("NodeId", str)
Incarnation = NewType("Incarnation", int)
"""Number of a node's registration; rises with each one and is never reused."""
DiskId = NewType("DiskId", str)
"""Name of a node's stored data; a replaced, restored or damaged disk gets a new one, and counts as empty."""
Version = NewType("Version", int)

Mode = Literal["sync", "async"]

NO_INCARNATION = Incarnation(0)


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """A node in one of its incarnations, with one disk."""

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
    """The leader of a partition, and the replicas that have everything committed.

    `isr`: replicas in sync, among them the leader. `elr`: eligible replicas, which left the in-sync set when it was
    smaller than `min_in_sync`; nothing was committed without them since. `disks`: the disk on which each of these has
    the log.
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
    """The leader that resigned, which is elected only if there is no other."""
    is_released: bool = False
    """The previous leader stopped of its own accord, or there was none: there is no lease to wait out."""
    left: dict[NodeId, Incarnation] = {}
    """Nodes that have let go of their copy, and in which incarnation: in that one they are not admitted again."""
    version: Version = Version(0)

    @property
    def is_short(self) -> bool:
        """Whether fewer replicas are in sync than `min_in_sync`, so that nothing can be committed."""
        return len(self.isr) < self.min_in_sync


class Change(msgspec.Struct, frozen=True):
    """A request to replace the previous version by `record`. `id` tells a caller's changes of one version apart."""

    record: PartitionRecord
    guards: tuple[Guard, ...]
    id: str

    @property
    def expects(self) -> Version:
        return Version(self.record.version - 1)


def may_apply(change: Change, record: PartitionRecord, holds: Callable[[Guard], bool]) -> bool:
    """The comparison that the coordinator makes in one transaction: True if the change may be made."""
    return record.version == change.expects and all(map(holds, change.guards))


def first_record(
    partition: int, disks: Mapping[NodeId, DiskId], *, min_in_sync: int, mode: Mode = "sync"
) -> PartitionRecord:
    """Returns the record of a new partition: all replicas are empty, and so in sync. Raises `ValueError`."""
    if not 1 <= min_in_sync <= len(disks):
        raise ValueError(f"min_in_sync is {min_in_sync} of {len(disks)} replicas; choose 1 to {len(disks)}")
    replicas = tuple(disks)
    return PartitionRecord(partition, replicas, min_in_sync, mode, isr=replicas, disks=dict(disks))


def change(record: PartitionRecord, *guards: Guard, id: str) -> Change:
    """Returns the change that stores an edited record."""
    named = {*record.isr, *record.elr}
    kept = {node: disk for node, disk in record.disks.items() if node in named}
    return Change(replace(record, disks=kept, version=Version(record.version + 1)), guards, id)


# ------------------------------------------------------------------------------------------------------- edits


def dropped(record: PartitionRecord, node: NodeId) -> PartitionRecord:
    """Removes a member from the in-sync set. Below the minimum it stays eligible: nothing is committed without it."""
    isr = _without(record.isr, node)
    if len(isr) < record.min_in_sync:
        return replace(record, isr=isr, elr=(*_without(record.elr, node), node))
    return replace(record, isr=isr, elr=())


def disowned(record: PartitionRecord, node: NodeId) -> PartitionRecord:
    """Removes a node from both sets because its data is gone, or is about to be replaced by a snapshot."""
    return replace(record, isr=_without(record.isr, node), elr=_without(record.elr, node))


def joined(record: PartitionRecord, node: NodeId, disk: DiskId) -> PartitionRecord:
    """Adds a replica that has everything to the in-sync set. Once enough are in sync, commits no longer need the
    eligible replicas, so that set is cleared.
    """
    isr = (*record.isr, node)
    elr = () if len(isr) >= record.min_in_sync else _without(record.elr, node)
    return replace(record, isr=isr, elr=elr, disks={**record.disks, node: disk})


def admitted(record: PartitionRecord, node: NodeId) -> PartitionRecord:
    """Adds an empty replica that counts for nothing: the leader lets it join the in-sync set when it has everything."""
    left = {other: inc for other, inc in record.left.items() if other != node}
    return replace(record, replicas=(*_without(record.replicas, node), node), left=left)


def removed(record: PartitionRecord, node: NodeId) -> PartitionRecord:
    """Removes a replica for good; `moving.next_step` decides when."""
    assert node != record.leader, "a leader hands over first"
    after = replace(record, replicas=_without(record.replicas, node))
    return replace(after, isr=_without(record.isr, node), elr=_without(record.elr, node))


def let_go(record: PartitionRecord, node: NodeId, inc: Incarnation) -> PartitionRecord:
    """Notes that a node that is no longer a replica is about to delete its copy."""
    assert node not in record.replicas, "a replica keeps what it has"
    return replace(record, left={**record.left, node: inc})


def elected(record: PartitionRecord, chosen: Identity, is_alive: Callable[[NodeId], bool]) -> PartitionRecord:
    """Starts a new epoch with a leader from the in-sync set, or else an eligible one. Members not alive are dropped."""
    leader, isr, elr = chosen.node, record.isr, record.elr
    if leader not in isr:
        eligible = (*_without(elr, leader), *isr)
        after = replace(record, isr=(leader,), elr=eligible if record.min_in_sync > 1 else ())
    else:
        others = _without(isr, leader)
        alive = tuple(node for node in others if is_alive(node))
        after = replace(record, isr=(leader, *alive), elr=())
        if after.is_short:
            # They are dropped in one step, after which nothing can be committed: each still has everything committed.
            gone = tuple(node for node in others if node not in alive)
            after = replace(after, elr=(*(node for node in elr if node not in gone), *gone))
    has_resigned = record.resigned is not None and record.leader is None
    return _led(after, leader, chosen.inc, is_released=has_resigned or record.epoch == 0)


def handed_over(record: PartitionRecord, target: NodeId, inc: Incarnation) -> PartitionRecord:
    """Starts a new epoch with another member of the in-sync set as the leader; the set stays the same."""
    return _led(record, target, inc, is_released=True)


def resigned(record: PartitionRecord) -> PartitionRecord:
    """Removes the leader; the manager elects a new one, another replica if it can."""
    return replace(record, leader=None, leader_inc=NO_INCARNATION, resigned=record.leader)


def _led(record: PartitionRecord, leader: NodeId, inc: Incarnation, *, is_released: bool) -> PartitionRecord:
    epoch = Epoch(record.epoch + 1)
    return replace(record, epoch=epoch, leader=leader, leader_inc=inc, resigned=None, is_released=is_released)


def _without(nodes: tuple[NodeId, ...], node: NodeId) -> tuple[NodeId, ...]:
    return tuple(other for other in nodes if other != node)
