"""A simulated partition: the shell that `slot_moves` asks for, with the least of a queue around it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tests.simulation.slots_checks import Entry, Message
from tests.simulation.slots_process import FOREVER_MS, LEASE_MS, Disk, Process, Stage

if TYPE_CHECKING:
    from tests.simulation.slots_world import World

FORWARDED = b"forwarded "
_CURSOR = struct.Struct(">Q")

Reply = Callable[[str], None]
Place = tuple[int, int]
"""Partition and offset."""


class Partition(Process):
    def __init__(self, world: World, number: int, table: Any):
        super().__init__(world)
        self.number = number
        self.skew_ms = world.rng.randint(-world.mix.skew_ms, world.mix.skew_ms)
        is_old = number in table.open_partitions
        self.disk = Disk(world.core.book.first_book(table, number) if is_old else world.core.book.SlotBook())
        self.wake()

    def wake(self) -> None:
        core = self.world.core
        book = msgspec.msgpack.decode(self.disk.book, type=core.book.SlotBook)
        self.keeper = core.moves.SlotKeeper(self.number, book, waits=self.world.mix.is_strict)
        self.stage: Stage | None = None
        self.leases: dict[int, tuple[str, float]] = {}
        self.delayed: dict[int, float] = {}
        self.inbox: list[Callable[[Stage], None]] = []
        self._is_asked = False
        self._frozen: dict[Any, dict[bytes, Any]] = {}
        # Leases are not on the disk here: a restarted partition waits until all it may have given out are over.
        self.silent_until = self.world.now + LEASE_MS if self.life else 0.0
        self.later(self.world.rng.uniform(0, 1) * self.world.mix.tick_ms, self.tick)

    def clock(self) -> int:
        return 1_000_000 + int(self.world.now) + self.skew_ms

    # --------------------------------------------------------------------------------------------- group commit

    def request(self, command: Callable[[Stage], None]) -> None:
        self.inbox.append(command)
        self._kick()

    def _kick(self) -> None:
        if self.inbox and self.stage is None and not self._is_asked:
            self._is_asked = True
            self.later(self.world.rng.uniform(0.05, 1), self._prepare)

    def _prepare(self) -> None:
        self._is_asked = False
        stage = self.stage = Stage(self.disk, self.clock())
        commands, self.inbox = self.inbox, []
        for command in commands:
            command(stage)
        stage.note(self.keeper.take_role())
        if self.keeper.drains:
            for record in self.keeper.forget(self.is_unsettled):
                stage.note(record)
        if stage.records:
            stage.book = msgspec.msgpack.encode(self.keeper.ahead)
            self.world.checks.owners()
        self.later(self.commit_time(), self._committed)

    def _committed(self) -> None:
        stage, self.stage = self.stage, None
        self._land(stage)
        self.keeper.committed()
        for answer in stage.answers:
            answer()
        self._kick()

    def _land(self, stage: Stage) -> None:
        disk = self.disk
        self.world.checks.landed(self, stage)
        disk.end, disk.time_ms, disk.book = stage.end, stage.time_ms, stage.book
        disk.unsettled.update((entry.offset, entry) for entry in stage.entries)
        disk.ids |= stage.ids
        disk.producers |= stage.producers
        for offset in stage.settled:
            del disk.unsettled[offset]
        if any(getattr(record, "role", None) == "retired" for record in stage.records):
            self.world.checks.is_empty(self)
            disk.ids.clear()
            disk.producers.clear()

    def die(self, *, has_landed: bool) -> None:
        if has_landed and self.stage is not None:
            self._land(self.stage)

    # ------------------------------------------------------------------------------------------------ publishing

    def on_publish(self, message: Message, version: int, reply: Reply) -> None:
        self.request(lambda stage: self._publish(stage, message, version, reply))

    def _publish(self, stage: Stage, message: Message, version: int, reply: Reply) -> None:
        unkeyed = self.world.core.slots.UNKEYED
        slots = 1 << (unkeyed if message.slot is None else message.slot)
        if self.keeper.refused(slots, version=version):
            reply("refused")
            return
        place = self._place_by_number(stage, message) if message.producer else self._place_by_id(stage, message)
        if place is None:
            reply("gap")
            return
        stage.answers.append(lambda: self._confirm(message, place, reply))

    def _confirm(self, message: Message, place: Place, reply: Reply) -> None:
        self.world.checks.answered(message, place)
        reply("stored")

    def _place_by_id(self, stage: Stage, message: Message) -> Place:
        known = stage.ids.get(message.id) or self.disk.ids.get(message.id) if message.id is not None else None
        if known is not None and self._is_live(known, stage.time_ms):
            return known.partition, known.offset
        entry = stage.append(message)
        if message.id is not None:
            known_id = self.world.core.moves.KnownId
            stage.ids[message.id] = known_id(message.slot, message.id, self.number, entry.offset, entry.time_ms)
        return self.number, entry.offset

    def _place_by_number(self, stage: Stage, message: Message) -> Place | None:
        """None: a number is missing before it. (-1, -1) for a repeat: only its number is known."""
        known = stage.producers.get(message.producer) or self.disk.producers.get(message.producer)
        missing = message.name[1] - (int(known.state) if known is not None else 0)
        if missing > 1:
            return None
        if missing < 1:
            return -1, -1
        entry = stage.append(message)
        known_producer = self.world.core.moves.KnownProducer
        stage.producers[message.producer] = known_producer(message.slot, message.producer, b"%d" % message.name[1])
        return self.number, entry.offset

    def _is_live(self, known: Any, now_ms: int) -> bool:
        window_ms = FOREVER_MS if known.id.startswith(FORWARDED) else self.world.mix.window_ms
        return bool(known.time_ms + window_ms > now_ms)

    # -------------------------------------------------------------------------------------------------- delivery

    def on_receive(self, consumer: str, reply: Callable[[int, Entry], None]) -> None:
        now = self.world.now
        if now < self.silent_until:
            return
        out = self._out()
        busy = {self.disk.unsettled[offset].message.key for offset in out} if self.world.mix.is_strict else set()
        clock = self.clock()
        for offset, entry in self.disk.unsettled.items():
            message = entry.message
            if message.due_ms > clock or message.key in busy or offset in out or self._lies_elsewhere(entry):
                continue
            self.leases[offset] = consumer, now + LEASE_MS
            self.world.checks.leased(self.number, entry, consumer, now + LEASE_MS)
            self.world.send(None, reply, self.number, entry)
            return

    def _out(self) -> set[int]:
        """Messages that are leased, settled in the commit under way, or wait for their next attempt."""
        now = self.world.now
        self.leases = {offset: lease for offset, lease in self.leases.items() if lease[1] > now}
        self.delayed = {offset: until for offset, until in self.delayed.items() if until > now}
        out = {*self.leases, *self.delayed, *(self.stage.settled if self.stage is not None else ())}
        return out & self.disk.unsettled.keys()

    def _lies_elsewhere(self, entry: Entry) -> bool:
        """It waits for another partition, or for its way there."""
        message = entry.message
        if message.slot is None or not self.world.mix.is_strict or not (self.keeper.holds or message.due_ms):
            return False
        return bool(self.keeper.handling(message.slot, entry.offset, message.due_ms) != "deliver")

    def on_ack(self, consumer: str, offset: int, reply: Reply) -> None:
        self.request(lambda stage: self._ack(stage, consumer, offset, reply))

    def _ack(self, stage: Stage, consumer: str, offset: int, reply: Reply) -> None:
        holder, until = self.leases.get(offset, ("", 0.0))
        if holder != consumer and until > self.world.now:
            reply("stale")
            return
        if offset in self.disk.unsettled:
            stage.settled[offset] = True
            self.leases.pop(offset, None)
        stage.answers.append(lambda: reply("settled"))

    def on_nack(self, consumer: str, offset: int, delay_ms: float) -> None:
        holder, until = self.leases.get(offset, ("", 0.0))
        if holder == consumer and until > self.world.now:
            entry = self.disk.unsettled[offset]
            del self.leases[offset]
            self.delayed[offset] = self.world.now + delay_ms
            self.world.checks.returned(self.number, offset, entry.message.key)

    # ----------------------------------------------------------------------------------------------------- moves

    def tick(self) -> None:
        """What is asked again until it is answered."""
        world, keeper = self.world, self.keeper
        world.send(world.meta, world.meta.tell, self, self.on_table)
        self._fetch()
        self._tell_opened()
        for question in keeper.questions():
            if keeper.answers_itself(question):
                self.on_drained(question.version, question.slots)
            else:
                source = world.partitions[question.source]
                world.send(source, source.on_question, question, self)
        since = keeper.may_retire(len(self.disk.unsettled))
        if since is not None:
            world.send(world.meta, world.meta.on_empty, self.number, since)
        self._forward_due()
        self.request(lambda stage: None)
        self.later(world.rng.uniform(0.3, 1) * world.mix.tick_ms, self.tick)

    def on_table(self, table: Any) -> None:
        self.keeper.heed(table)
        self._fetch()

    def _tell_opened(self) -> None:
        for move in self.keeper.opened_moves():
            self.world.send(self.world.meta, self.world.meta.on_opened, move)

    def _fetch(self) -> None:
        fetch = self.keeper.fetch()
        if fetch is not None:
            source = self.world.partitions[fetch.move.source]
            self.world.send(source, source.on_fetch, fetch, self)

    def on_fetch(self, fetch: Any, target: Partition) -> None:
        if self.keeper.hands_over(fetch.move) is not None:
            self._hand_over(fetch, target)
        else:
            self.request(lambda stage: self._seal(stage, fetch, target))

    def _seal(self, stage: Stage, fetch: Any, target: Partition) -> None:
        stage.note(self.keeper.seal(fetch.move, end=stage.end, now_ms=stage.time_ms))
        if "hands over what was committed when the fetch came" in self.world.breaks:
            self._frozen.setdefault(fetch.move, dict(self.disk.ids))
        if "hands over before the seal is on the disk" in self.world.breaks:
            self.keeper.committed()
            self._hand_over(fetch, target)
        else:
            stage.answers.append(lambda: self._hand_over(fetch, target))

    def _hand_over(self, fetch: Any, target: Partition) -> None:
        tenure = self.keeper.hands_over(fetch.move)
        if tenure is None:
            return
        moves, world = self.world.core.moves, self.world
        stored = self._frozen.get(fetch.move, self.disk.ids)
        rows = sorted(
            (_cursor(known), known)
            for known in stored.values()
            if known.slot in fetch.move.slots and self._is_live(known, self.clock()) and _cursor(known) > fetch.after
        )
        page, rest = rows[: world.mix.page_ids], rows[world.mix.page_ids :]
        ids = tuple(known for _, known in page)
        producers = tuple(known for known in self.disk.producers.values() if known.slot in fetch.move.slots)
        if "hands over no ids" in world.breaks:
            ids = ()
        if "hands over no producers" in world.breaks:
            producers = ()
        following = page[-1][0] if rest else None
        handed = moves.Page(fetch, tenure.sealed_at, tenure.sealed_ms, ids, producers, following)
        world.send(target, target.on_page, handed)

    def on_page(self, page: Any) -> None:
        self.request(lambda stage: self._take(stage, page))

    def _take(self, stage: Stage, page: Any) -> None:
        if not self.keeper.wants(page):
            return
        stage.ids |= {known.id: known for known in page.ids}
        stage.producers |= {known.producer: known for known in page.producers}
        if "forgets the source's time" not in self.world.breaks:
            stage.time_ms = max(stage.time_ms, page.time_ms)
        stage.note(self.keeper.take(page, end=stage.end))
        stage.answers += [self._fetch, self._tell_opened]

    def on_question(self, question: Any, target: Partition) -> None:
        slots = self.keeper.drained(question, self.is_unsettled)
        if slots:
            self.world.send(target, target.on_drained, question.version, slots)

    def on_drained(self, version: int, slots: tuple[int, ...]) -> None:
        self.request(lambda stage: stage.note(self.keeper.release(version, slots)))

    def is_unsettled(self, slot: int, tenure: Any) -> bool:
        if not self.world.mix.is_strict:
            return False
        deciding = self.stage.settled if "counts acks not on the disk" in self.world.breaks and self.stage else ()
        return any(
            entry.message.slot == slot
            and tenure.opened_at <= offset < tenure.sealed_at
            and entry.message.due_ms <= tenure.sealed_ms
            for offset, entry in self.disk.unsettled.items()
            if offset not in deciding
        )

    # --------------------------------------------------------------------------------------------------- outbox

    def _forward_due(self) -> None:
        """What was scheduled for after the slot had gone goes after it, once: it has an id of its own on the way."""
        table = self.keeper.table
        if table is None or not self.world.mix.is_strict:
            return
        clock, out = self.clock(), self._out()
        for offset, entry in self.disk.unsettled.items():
            message = entry.message
            if not 0 < message.due_ms <= clock or message.slot is None or offset in out:
                continue
            target = table.route(message.slot)
            if target is None or self.keeper.handling(message.slot, offset, message.due_ms) != "forward":
                continue
            copy = message._replace(id=FORWARDED + b"%d/%d" % (self.number, offset), due_ms=0, producer=None)
            receiver = self.world.partitions[target]
            answer = self._forwarded(offset)
            self.world.send(receiver, receiver.on_publish, copy, table.version, answer)

    def _forwarded(self, offset: int) -> Reply:
        life = self.life

        def settle(stage: Stage) -> None:
            if offset in self.disk.unsettled and offset not in stage.settled:
                stage.settled[offset] = False

        def arrived(answer: str) -> None:
            if answer == "stored" and self.life == life:
                self.request(settle)

        return lambda answer: self.world.send(self, arrived, answer)


def _cursor(known: Any) -> bytes:
    """Where a row of ids lies: in the order of their times, which no later row comes before."""
    return _CURSOR.pack(known.time_ms) + known.id
