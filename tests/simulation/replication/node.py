"""A simulated node: the shell around the replicas of its partitions, as small as it can be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from backend_store.core.log.chunk import CorruptEntry
from backend_store.core.replication import effects as effect_types
from backend_store.core.replication.entries import Draft, decode
from backend_store.core.replication.messages import Fetch
from backend_store.core.replication.record import Change, Identity, Incarnation, NodeId, PartitionRecord
from backend_store.core.replication.replica import Replica
from tests.simulation.replication.disk import Image, Message, Op
from tests.simulation.replication.mix import HEARTBEAT_MS, LEASE_MS
from tests.simulation.replication.process import Process, Reply

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

HOLD_MS = 4_000
LOOK_MS = 50
REGISTER_MS = 300


class Node(Process):
    def __init__(self, world: World, name: NodeId):
        super().__init__(world, name)
        self.me: Identity | None = None
        self.replicas: dict[int, Replica] = {}

    # --------------------------------------------------------------------------------------------------- existence

    def start(self) -> None:
        if self.is_up:
            return
        self.is_up = True
        self.me = None
        self.replicas = {}
        self.memory: dict[int, Image] = {}
        self.ids: dict[int, dict[Message, int]] = {}
        self.inbox: dict[int, list[tuple[str, Message, Reply]]] = {}
        self.taken: dict[int, dict[Message, int]] = {}
        self._ops: list[tuple[int, Op]] = []
        self._in_flight: list[tuple[int, Op]] = []
        self._is_committing = self._is_kicked = False
        if self.disk.is_damaged:
            self._verify()
        if "counts its lives in memory" in self.world.breaks:
            self.disk.inc = 0
        self._register(self.disk.inc + 1)
        self.later(LOOK_MS, self._look)

    def _verify(self) -> None:
        """Everything is read once before it is used: a disk that is found damaged holds nothing any more."""
        for number, image in self.disk.images.items():
            try:
                for entry in image.entries:
                    decode(entry.data, partition=number)
            except CorruptEntry:
                self.world.checks.counts["damage found"] += 1
                self.replace_disk()
                return

    def crash(self) -> None:
        """The transaction in flight lands or it does not; what was to come after it is gone."""
        if not self.is_up:
            return
        self.is_up, self.held = False, None
        self.life += 1
        if self._is_committing and self.world.rng.random() < self.world.mix.lands:
            self._land()

    # ------------------------------------------------------------------------------------------------- registration

    def _register(self, inc: int) -> None:
        self._asks = Identity(self.name, Incarnation(inc), self.disk.id)
        self.disk.inc = inc
        self._ask_registration(self._asks)

    def _ask_registration(self, asks: Identity) -> None:
        if asks is not self._asks:
            return
        self.call(self.world.coordinator.on_register, self._on_registered, asks)
        self.later(REGISTER_MS, self._ask_registration, asks)

    def _on_registered(self, known: Identity) -> None:
        asks = self._asks
        if asks is None or known.inc < asks.inc:
            return
        if known != asks:
            self._register(known.inc + 1)
            return
        self._asks = None
        if self.me is None:
            self.me = asks
            for number in self.world.coordinator.records:
                self._open(number)
            self._beat()
        else:
            self.me = asks
            for number, replica in self.replicas.items():
                replica.rejoin(asks.inc, now_ms=self.clock(), wall_ms=self.wall())
                self.settle(number)

    def _open(self, number: int) -> None:
        assert self.me is not None
        image = self.disk.images.setdefault(number, Image())
        self.memory[number] = image.copy()
        self.ids[number], self.taken[number], self.inbox[number] = {}, {}, []
        settings = self.world.mix.settings
        self.replicas[number] = Replica(self.me, image.stored, image.tail(), settings=settings, now_ms=self.clock())
        self.world.checks.opened(self, number)

    def _beat(self) -> None:
        self.call(self.world.coordinator.on_heartbeat, self._on_beat, self.me, self.clock())
        self.later(HEARTBEAT_MS, self._beat)

    def _on_beat(self, is_kept: bool, known: Identity, sent_ms: int, records: list[PartitionRecord]) -> None:
        # Also a registration of a life before a disk was replaced may have come late, and have a higher number.
        if self._asks is None and not is_kept and known.inc >= self.me.inc:
            self._register(known.inc + 1)
        for found in records:
            self.on_record_here(found)
            replica = self.replicas.get(found.partition)
            if replica is None:
                continue
            if is_kept and known == self.me:
                replica.keep_lease(sent_ms + LEASE_MS)
            elif not is_kept:
                replica.lose_lease()

    # ------------------------------------------------------------------------------------------------------ replicas

    def on_record(self, found: PartitionRecord) -> None:
        self.do(self.on_record_here, found)

    def on_record_here(self, found: PartitionRecord) -> None:
        if found.partition in self.replicas:
            self.replicas[found.partition].on_record(found, now_ms=self.clock(), wall_ms=self.wall())
            self.settle(found.partition)

    def on_message(self, message: Any) -> None:
        self.do(self._on_message, message)

    def _on_message(self, message: Any) -> None:
        replica = self.replicas.get(message.partition)
        if replica is not None:
            replica.on_message(message, now_ms=self.clock())
            self.settle(message.partition)

    def _on_changed(self, is_made: bool, change: Change, found: PartitionRecord) -> None:
        replica = self.replicas.get(found.partition)
        if replica is None:
            return
        now = {"now_ms": self.clock(), "wall_ms": self.wall()}
        if is_made:
            replica.on_record(found, **now)
        else:
            replica.on_refused(change, found, **now)
        self.settle(found.partition)

    def _look(self) -> None:
        for number, replica in self.replicas.items():
            replica.look(now_ms=self.clock())
            self.settle(number)
        self.later(LOOK_MS, self._look)
        if self.world.moves is not None:
            self.world.moves.looked(self)

    def forget(self, number: int) -> None:
        """It has no replica of it any more; what was on its way to the disk is void."""
        for known in (self.replicas, self.memory, self.ids, self.inbox, self.taken):
            del known[number]  # type: ignore[attr-defined]
        self._ops = [op for op in self._ops if op[0] != number]
        self._in_flight = [op for op in self._in_flight if op[0] != number]

    def settle(self, number: int) -> None:
        """Does what the replica asks for."""
        replica = self.replicas[number]
        while asked := replica.take():
            for effect in asked:
                _DOES[type(effect)](self, number, effect)
                if not self.is_up:
                    return
        self.world.checks.stepped(self, number, replica)

    def _store(self, number: int, op: Op) -> None:
        op(self.memory[number])
        self._ops.append((number, op))
        self._kick()

    def _append(self, number: int, effect: effect_types.Append) -> None:
        self.world.checks.appended(self, number, effect.entries)
        self._store(number, lambda image: image.append(effect.entries))

    def _truncate(self, number: int, effect: effect_types.Truncate) -> None:
        self.world.checks.truncated(self, number, effect.end)
        self._store(number, lambda image: image.truncate(effect.end, keeps=effect.keeps))

    def _trim(self, number: int, effect: effect_types.Trim) -> None:
        self.world.checks.counts["trimmed"] += 1
        self._store(number, lambda image: image.trim(effect.start))

    def _apply(self, number: int, effect: effect_types.Apply) -> None:
        if not self._reads_well(number, self.memory[number].applied):
            return
        rows = self.memory[number].to_apply(effect.end)
        self._store(number, lambda image: image.apply(rows, effect.end))
        self.replicas[number].applied_to(effect.end)

    def _stage_rows(self, number: int, effect: effect_types.StageRows) -> None:
        self._store(number, lambda image: image.stage(effect.rows, is_first=effect.is_first))

    def _switch(self, number: int, effect: effect_types.Switch) -> None:
        self.world.checks.switched(self, number, effect)
        self._store(
            number,
            lambda image: image.switch(effect.base, effect.end, keeps=effect.keeps, has_parted=effect.has_parted),
        )

    def _send(self, number: int, effect: effect_types.Send) -> None:
        world = self.world
        target = world.by_name[effect.to]
        world.send(self.name, target.name, target.on_message, world.maybe_flipped(effect.message))

    def _reads_well(self, number: int, start: int) -> bool:
        """Entries are verified when they are read; a broken one ends the process."""
        if not self.disk.is_damaged:
            return True
        try:
            for entry in self.memory[number].from_offset(start):
                decode(entry.data, partition=number)
        except CorruptEntry:
            self.crash()
            self.world.at(100, self.start)
            return False
        return True

    def _serve(self, number: int, effect: effect_types.Serve) -> None:
        fetch: Fetch = effect.fetch
        if not self._reads_well(number, fetch.end):
            return
        found = []
        for entry in self.memory[number].from_offset(fetch.end):
            if len(found) == self.world.mix.fetch_entries:
                break
            found.append(entry.data)
        self.replicas[number].fetched(fetch, tuple(found), now_ms=self.clock())

    def _serve_snapshot(self, number: int, effect: effect_types.ServeSnapshot) -> None:
        rows = sorted(row for row in self.memory[number].rows.items() if row[0] > effect.ask.after)
        some = self.world.mix.page_rows
        self.replicas[number].page(effect.ask, tuple(rows[:some]), is_last=len(rows) <= some)

    def _submit(self, number: int, effect: effect_types.Submit) -> None:
        self.call(self.world.coordinator.on_change, self._on_changed, effect.change)

    def _reread(self, number: int, effect: effect_types.Reread) -> None:
        self.call(self.world.coordinator.on_read, self.on_record_here, number)

    def _lead(self, number: int, effect: effect_types.Lead) -> None:
        self.world.checks.leads(self, number, effect.epoch)
        image = self.memory[number]
        if not self._reads_well(number, image.applied):
            return
        ids = self.ids[number] = {
            msgspec.msgpack.decode(key, type=Message): int(value.rstrip(b"+")) + 1 for key, value in image.rows.items()
        }
        if "knows only what it took itself" in self.world.breaks:
            ids.clear()
        elif "forgets what is not applied" not in self.world.breaks:
            for entry in image.from_offset(image.applied):
                self._note(ids, entry.offset, entry.payload)
        self.taken[number] = {}

    def _note(self, ids: dict[Message, int], offset: int, payload: bytes) -> None:
        for place, (kind, message, _) in enumerate(msgspec.msgpack.decode(payload) if payload else ()):
            if kind == "publish":
                ids[tuple(message)] = offset + place + 1

    def _follow(self, number: int, effect: effect_types.Follow) -> None:
        self.ids[number] = {}

    def _confirm(self, number: int, effect: effect_types.Confirm) -> None:
        for kind, message, end, reply in effect.tickets:
            self.world.checks.confirmed_to(self, number, kind, message, end)
            reply(message)

    def _abandon(self, number: int, effect: effect_types.Abandon) -> None:
        self.world.checks.counts["abandoned"] += len(effect.tickets)

    # ------------------------------------------------------------------------------------------------------ commits

    def _kick(self) -> None:
        if not (self._is_committing or self._is_kicked):
            self._is_kicked = True
            self.later(self.world.rng.uniform(0, 0.5), self._begin)

    def _begin(self) -> None:
        self._is_kicked, self._is_committing = False, True
        for number in self.inbox:
            self._take_inbox(number)
        marks = {number: replica.staged() for number, replica in self.replicas.items()}
        for number, replica in self.replicas.items():
            # Replicas are settled here: the row says what the operations before it did.
            self._ops.append((number, partial(Image.store, stored=replica.log.stored())))
        self._in_flight, self._ops = self._ops, []
        mix, rng = self.world.mix, self.world.rng
        stall = 800 if not self.world.is_healed and rng.random() < mix.stall else 0
        self.later(rng.uniform(0.3, mix.commit_ms) + stall, self._committed, marks)

    def _land(self) -> None:
        for number, op in self._in_flight:
            op(self.disk.images[number])
        self._in_flight = []

    def _committed(self, marks: dict[int, Any]) -> None:
        self._land()
        self._is_committing = False
        for number, mark in marks.items():
            if number not in self.replicas:
                continue
            self.replicas[number].committed(mark, now_ms=self.clock())
            self.settle(number)
            if not self.is_up:
                return
        if self._ops or any(self.inbox.values()):
            self._kick()

    # ------------------------------------------------------------------------------------------------------ clients

    def on_ask(self, number: int, kind: str, message: Message, reply: Reply) -> None:
        self.do(self._on_ask, number, kind, message, reply)

    def _on_ask(self, number: int, kind: str, message: Message, reply: Reply) -> None:
        replica = self.replicas.get(number)
        if replica is not None and replica.leader is not None:
            self.inbox[number].append((kind, message, reply))
            self._kick()

    def _take_inbox(self, number: int) -> None:
        """Publishes become one chunk; acks an entry of decisions."""
        asked, self.inbox[number] = self.inbox[number], []
        replica = self.replicas[number]
        for kind in ("publish", "ack"):
            batch = [(message, reply) for wants, message, reply in asked if wants == kind]
            if batch and replica.leader is not None:
                self._decide(number, kind, batch)
        self.settle(number)

    def _decide(self, number: int, kind: str, batch: list[tuple[Message, Reply]]) -> None:
        replica, ids, rows = self.replicas[number], self.ids[number], self.memory[number].rows
        new: dict[Message, Reply] = {}
        now = self.clock()
        for message, reply in batch:
            end = ids.get(message)
            if kind == "publish" and end is not None:
                self.world.checks.counts["duplicates"] += 1
                if "answers a duplicate at once" in self.world.breaks:
                    self.world.checks.confirmed_to(self, number, kind, message, end)
                    reply(message)
                    continue
                replica.wait(end, (kind, message, end, reply), now_ms=now)
            elif kind == "publish" or (message in ids and msgspec.msgpack.encode(message) in rows):
                new[message] = reply
        if not new:
            return
        payload = msgspec.msgpack.encode([(kind, message, ids.get(message, 0) - 1) for message in new])
        offsets = len(new)
        made = replica.append([Draft(offsets, (payload,))], now_ms=now, wall_ms=self.wall())
        if isinstance(made, str):
            self.world.checks.counts[made] += 1
            return
        self._note(ids, made[0].offset, payload)
        for place, (message, reply) in enumerate(new.items()):
            end = made[0].offset + place + 1
            replica.wait(made[0].end, (kind, message, end, reply), now_ms=now)

    def on_receive(self, number: int, reply: Reply) -> None:
        self.do(self._on_receive, number, reply)

    def _on_receive(self, number: int, reply: Reply) -> None:
        replica = self.replicas.get(number)
        now = self.clock()
        leader = None if replica is None else replica.leader
        if leader is None or not leader.is_serving(now):
            return
        if not leader.has_lease(now) and "delivers without a lease" not in self.world.breaks:
            return
        taken = self.taken[number]
        for message in self.memory[number].unacked:
            if taken.get(message, 0) < now:
                taken[message] = now + HOLD_MS
                self.world.checks.delivered(self, number, message)
                reply(message)
                return


_DOES: dict[type, Callable[[Node, int, Any], None]] = {
    effect_types.Append: Node._append,
    effect_types.Truncate: Node._truncate,
    effect_types.Trim: Node._trim,
    effect_types.Apply: Node._apply,
    effect_types.StageRows: Node._stage_rows,
    effect_types.Switch: Node._switch,
    effect_types.Send: Node._send,
    effect_types.Serve: Node._serve,
    effect_types.ServeSnapshot: Node._serve_snapshot,
    effect_types.Submit: Node._submit,
    effect_types.Reread: Node._reread,
    effect_types.Lead: Node._lead,
    effect_types.Follow: Node._follow,
    effect_types.Confirm: Node._confirm,
    effect_types.Abandon: Node._abandon,
}
