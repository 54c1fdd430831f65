"""The invariants V1 to V12, looked at after every step, and what must be true when all is healed.

V1  a confirmed sync publish is on the disk of every in-sync member, and enough are in sync: `_is_safe`
V2  one (offset, epoch) in two logs, one log below it: `appended`
V3  a committed entry never changes: `_committed`
V4  a new leader has all that is committed: `leads`
V5  epochs never go back along a log: `appended`
V6  applied ≤ high watermark ≤ durable end of all who count: `_is_safe`, `stepped`
V7  the in-sync set changes at the coordinator alone: `changed`, and `_is_safe` compares with the set there
V8  with too few in sync nothing is committed: `_is_safe`
V9  nobody truncates what it knew was final: `truncated`, `switched`
V10 the state is that of the log: `stepped`
V11 a message is committed once: `_committed`
V12 only the incarnation that the record named appends: `leads`, `appended`
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import msgspec

from backend_store.core.replication.effects import Switch
from backend_store.core.replication.entries import Entry
from backend_store.core.replication.record import NodeId, PartitionRecord
from tests.simulation.replication.disk import Image, Message, NodeDisk, effects_of

if TYPE_CHECKING:
    from backend_store.core.replication.replica import Replica
    from tests.simulation.replication.node import Node
    from tests.simulation.replication.world import World


class Violation(Exception):
    """A promise is broken."""


class Story:
    """What became of one partition, as seen from outside."""

    def __init__(self) -> None:
        self.written: dict[tuple[int, int], Entry] = {}
        self.granted: dict[int, tuple[NodeId, int]] = {}
        self.reference = Image()
        self.end = 0
        self.ends: dict[int, int] = {}
        """How far the leader of each epoch has committed."""
        self.crcs: dict[int, int] = {0: 0}
        """Offset at which a committed entry ends → its checksum."""
        self.hashes: dict[int, int] = {0: 0}
        self.places: dict[Message, int] = {}
        self.confirmed: dict[Message, float] = {}
        self.acked: set[Message] = set()
        self.confirming: tuple[int, str] = (0, "")
        """The youngest epoch of an async partition in which something was confirmed, and its leader."""
        self.holders: dict[Message, str] = {}
        """Of an async partition: the disk that was enough for a confirmation."""


class Checks:
    def __init__(self, world: World):
        self.world = world
        self.stories: defaultdict[int, Story] = defaultdict(Story)
        self.counts: Counter[str] = Counter()
        self.lost_disks: dict[str, NodeDisk] = {}
        self._final: dict[tuple[str, int], int] = {}

    # ------------------------------------------------------------------------------------------------- coordinator

    def changed(self, before: PartitionRecord, after: PartitionRecord) -> None:
        story = self.stories[after.partition]
        self.counts["changes"] += 1
        if after.epoch > before.epoch:
            assert after.leader is not None
            story.granted[after.epoch] = (after.leader, after.leader_inc)
            self.counts["elections"] += 1
        elif after.leader not in (before.leader, None):
            raise Violation(f"V7: {after} names another leader in the same epoch")
        if after.leader is not None and after.epoch > before.epoch and after.leader not in after.isr:
            raise Violation(f"V7: {after} has a leader out of sync")
        gone = set(before.replicas) - set(after.replicas)
        if gone & set(before.isr) and len(after.isr) < after.min_in_sync:
            raise Violation(f"{gone} of {before} are taken out, and {after.isr} are left")

    # ------------------------------------------------------------------------------------------------------- steps

    def opened(self, node: Node, number: int) -> None:
        self._final[node.disk.id, number] = node.disk.images[number].stored.high_watermark

    def leads(self, node: Node, number: int, epoch: int) -> None:
        story, log = self.stories[number], node.replicas[number].log
        assert node.me is not None
        if story.granted.get(epoch) != (node.name, node.me.inc):
            raise Violation(f"V12: {node.me} leads epoch {epoch} of {number}, granted to {story.granted.get(epoch)}")
        end = max([end for by, end in story.ends.items() if by < epoch], default=0)
        if log.end < end:
            raise Violation(f"V4: {node.name} leads {number} with a log up to {log.end}, committed is {end}")
        if log.start < end and self._crc_at(node, number, end) != story.crcs[end]:
            raise Violation(f"V4: {node.name} leads {number} with another log below {end}")

    def _crc_at(self, node: Node, number: int, end: int) -> int | None:
        entry = node.memory[number].before(end)
        return None if entry is None else entry.crc

    def appended(self, node: Node, number: int, entries: tuple[Entry, ...]) -> None:
        story, replica = self.stories[number], node.replicas[number]
        memory = node.memory[number]
        last = memory.entries[-1].epoch if memory.entries else 0
        for entry in entries:
            if entry.epoch < last:
                raise Violation(f"V5: epoch {entry.epoch} after {last} in the log of {node.name}")
            last = entry.epoch
            written = story.written.setdefault((entry.offset, entry.epoch), entry)
            if written.crc != entry.crc:
                raise Violation(f"V2: two entries at {entry.offset} of epoch {entry.epoch}")
        if replica.leader is not None and entries:
            assert node.me is not None
            if story.granted[entries[-1].epoch] != (node.name, node.me.inc):
                raise Violation(f"V12: {node.me} appends in epoch {entries[-1].epoch}")

    def truncated(self, node: Node, number: int, end: int) -> None:
        self.counts["truncated"] += 1
        if end < self._final[node.disk.id, number]:
            raise Violation(f"V9: {node.name} truncates to {end}, {self._final[node.disk.id, number]} was final")
        if self.world.mix.mode == "sync":
            self._loses_nothing_committed(node, number, end)

    def switched(self, node: Node, number: int, switch: Switch) -> None:
        self.counts["snapshots"] += 1
        self.counts["quarantined"] += switch.keeps
        if self.world.mix.mode == "sync":
            self._loses_nothing_committed(node, number, max(switch.base.end, switch.end))

    def _loses_nothing_committed(self, node: Node, number: int, end: int) -> None:
        story = self.stories[number]
        for entry in node.memory[number].from_offset(end):
            if story.crcs.get(entry.end) == entry.crc:
                raise Violation(f"V3: {node.name} truncates {entry.offset}, which is committed")

    def stepped(self, node: Node, number: int, replica: Replica) -> None:
        """A replica has done what it was asked to."""
        log = replica.log
        self._final_is_right(node, number, replica)
        if log.applied > log.durable_end and log.is_clean:
            raise Violation(f"V6: {node.name} has applied {log.applied} of {log.durable_end}")
        if log.applied > log.high_watermark and self.world.mix.mode == "sync":
            raise Violation(f"V6: {node.name} has applied {log.applied}, and {log.high_watermark} is final")
        self._state_is_right(node, number, replica)

    def _final_is_right(self, node: Node, number: int, replica: Replica) -> None:
        log, place = replica.log, (node.disk.id, number)
        before = self._final.get(place, 0)
        if log.high_watermark > before:
            self._committed(node, number, before, log.high_watermark)
            if replica.leader is not None:
                self._is_safe(node, number, replica)
            self._final[place] = log.high_watermark

    def _committed(self, node: Node, number: int, start: int, end: int) -> None:
        story = self.stories[number]
        for entry in node.memory[number].from_offset(start):
            if entry.offset >= end:
                break
            if entry.end <= story.end:
                if story.crcs.get(entry.end) != entry.crc:
                    raise Violation(f"V3: {node.name} has another entry at {entry.offset}, which is committed")
                continue
            if entry.offset != story.end or entry.prev_crc != story.crcs[story.end]:
                raise Violation(f"V3: {node.name} commits {entry.offset}, committed is {story.end}")
            # As it was written: a disk may have flipped a bit of it since.
            self._commit(story, story.written[entry.offset, entry.epoch])
        record = node.replicas[number].record
        assert record is not None
        story.ends[record.epoch] = max(story.ends.get(record.epoch, 0), end)

    def _commit(self, story: Story, entry: Entry) -> None:
        story.end = entry.end
        story.crcs[entry.end] = entry.crc
        for key, value in effects_of(entry):
            message = msgspec.msgpack.decode(key, type=Message)
            if not value.endswith(b"+"):
                if message in story.places:
                    raise Violation(f"V11: {message} is committed at {story.places[message]} and {value!r}")
                story.places[message] = int(value)
            story.reference.put(key, value)
        story.hashes[entry.end] = story.reference.hash
        self.counts["committed"] += 1

    def _is_safe(self, node: Node, number: int, replica: Replica) -> None:
        """The high watermark of a leader: by what it knows, and on the disks of those whom the coordinator names."""
        world, log = self.world, replica.log
        record = world.coordinator.records[number]
        assert replica.record is not None
        if replica.record.is_short and log.high_watermark > self._known_final(number):
            raise Violation(f"V8: {node.name} commits with {replica.record.isr} in sync")
        crc = self._crc_at(node, number, log.high_watermark)
        for name in record.isr:
            disk = world.by_name[name].disk
            if disk.id != record.disks[name]:
                # Replaced, and the coordinator has not heard of it: it had what it had, and the new one does not count.
                disk = self.lost_disks[record.disks[name]]
            image = disk.images.get(number, Image())
            entry = None if disk.is_damaged else image.before(log.high_watermark)
            if image.stored.end < log.high_watermark or (entry is not None and crc is not None and entry.crc != crc):
                raise Violation(
                    f"V1, V6: {node.name} commits {log.high_watermark}, {name} in sync has {image.stored.end}"
                )

    def _known_final(self, number: int) -> int:
        """What somebody knew to be final before."""
        return max((end for (_, place), end in self._final.items() if place == number), default=0)

    def _state_is_right(self, node: Node, number: int, replica: Replica) -> None:
        log, story = replica.log, self.stories[number]
        if not log.whole_from <= log.applied <= log.high_watermark:
            return
        if story.hashes.get(log.applied, node.memory[number].hash) != node.memory[number].hash:
            raise Violation(f"V10: the state of {node.name} at {log.applied} is not that of the log")

    # ----------------------------------------------------------------------------------------------------- clients

    def confirmed_to(self, node: Node, number: int, kind: str, message: Message, end: int) -> None:
        """A leader answers."""
        story, replica = self.stories[number], node.replicas[number]
        self._final_is_right(node, number, replica)
        if self.world.mix.mode == "sync":
            if story.end < end or (kind == "publish" and story.places.get(message) != end - 1):
                raise Violation(f"V1: {node.name} confirms {message} at {end}, committed is {story.end}")
        elif node.disk.images[number].stored.end < end:
            raise Violation(f"{node.name} confirms {message} at {end} before it is on its own disk")
        else:
            self._confirms_alone(node, number, message, end)
        assert replica.leader is not None
        log, barrier = replica.log, replica.leader.barrier
        final = log.high_watermark if self.world.mix.mode == "sync" else log.durable_end
        if final <= barrier:
            raise Violation(f"{node.name} confirms {message} before its own barrier")
        if kind == "publish":
            story.confirmed.setdefault(message, self.world.now)
            story.holders.setdefault(message, node.disk.id)
        else:
            story.acked.add(message)

    def _confirms_alone(self, node: Node, number: int, message: Message, end: int) -> None:
        """Of two async leaders the older one confirms nothing that the younger one lacks, while leases hold."""
        story, leader = self.stories[number], node.replicas[number].leader
        assert leader is not None
        entry = next((entry for entry in node.memory[number].entries if entry.offset < end <= entry.end), None)
        if entry is not None and story.crcs.get(entry.end) == entry.crc:
            return  # committed, so every later leader has it
        if leader.epoch >= story.confirming[0]:
            story.confirming = (leader.epoch, node.name)
        elif self.world.leases_hold:
            other = self.world.by_name[story.confirming[1]]
            younger = other.replicas[number].leader if number in other.replicas else None
            if younger is None or younger.epoch != story.confirming[0]:
                return
            if other.ids[number].get(message) != end:
                raise Violation(f"{node.name} confirms {message} at {end}, and {other.name} leads since")

    def delivered(self, node: Node, number: int, message: Message) -> None:
        self.counts["delivered"] += 1
        story = self.stories[number]
        if self.world.mix.mode == "sync" and self.world.leases_hold and message in story.acked:
            raise Violation(f"{node.name} delivers {message} after its ack was confirmed")

    # ------------------------------------------------------------------------------------------------------ at the end

    def at_the_end(self) -> None:
        for number, record in self.world.coordinator.records.items():
            self._is_live(number, record)
            self._lost_nothing(number, record)
            self._keeps_nothing_committed(number)
            self.counts["confirmed"] += len(self.stories[number].confirmed)

    def _is_live(self, number: int, record: PartitionRecord) -> None:
        story = self.stories[number]
        leader = None if record.leader is None else self.world.by_name[record.leader].replicas.get(number)
        if leader is None or leader.leader is None:
            raise Violation(f"partition {number} has no leader after healing: {record}")
        if set(record.isr) != set(record.replicas):
            raise Violation(f"not all replicas of {number} are in sync after healing: {record}")
        moves = self.world.moves
        if moves is not None and set(record.replicas) != set(moves.wanted[number]):
            raise Violation(f"the replicas of {number} are not those wanted, {moves.wanted[number]}: {record}")
        if not any(time > self.world.healed_ms for time in story.confirmed.values()):
            raise Violation(f"nothing is confirmed in {number} after healing: {record}")
        ends = {name: self.world.by_name[name].replicas[number].log.high_watermark for name in record.replicas}
        if max(ends.values()) - min(ends.values()) > 100:
            raise Violation(f"replicas of {number} are far apart after healing: {ends}")

    def _lost_nothing(self, number: int, record: PartitionRecord) -> None:
        story = self.stories[number]
        lost = story.confirmed.keys() - story.places.keys()
        if record.mode == "async":
            gone = self.lost_disks.keys() | {node.disk.id for node in self.world.nodes if node.disk.is_damaged}
            self.counts["lost for a time"] += len(lost)
            lost = {message for message in lost - self._kept(number) if story.holders[message] not in gone}
        if lost:
            raise Violation(f"{len(lost)} confirmed messages of {number} are lost: {sorted(lost)[:3]}")
        if record.mode == "async":
            return  # a message that was lost for a time may be published again, after the next one
        by_producer: defaultdict[int, list[int]] = defaultdict(list)
        for producer, seq in sorted(story.places, key=story.places.__getitem__):
            by_producer[producer].append(seq)
        for producer, seqs in by_producer.items():
            if seqs != sorted(seqs):
                raise Violation(f"messages of producer {producer} are out of order in {number}")

    def _keeps_nothing_committed(self, number: int) -> None:
        """What is in quarantine and not in doubt would be published again: the log must not have it."""
        story = self.stories[number]
        for node in self.world.nodes:
            image = node.disk.images.get(number)
            if image is None or node.disk.is_damaged:
                continue
            self.counts["kept"] += len(image.quarantine)
            self.counts["kept in doubt"] += sum((one.offset, one.epoch) in image.in_doubt for one in image.quarantine)
            for entry in image.quarantine:
                is_sure = (entry.offset, entry.epoch) not in image.in_doubt
                if is_sure and entry.payload and story.crcs.get(entry.end) == entry.crc:
                    raise Violation(f"{node.name} keeps {entry.offset} of {number}, which is committed")

    def _kept(self, number: int) -> set[Message]:
        """What can be recovered of an async partition: in the logs and in the quarantines."""
        kept = set()
        for node in self.world.nodes:
            images = [] if node.disk.is_damaged else [node.disk.images.get(number, Image()), *node.disk.aside]
            for entry in [entry for image in images for entry in (*image.quarantine, *image.entries)]:
                kept |= {msgspec.msgpack.decode(key, type=Message) for key, _ in effects_of(entry)}
        return kept
