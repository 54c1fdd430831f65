"""An owner's side of its lane: the shell that the cores ask for, with the least of a queue around it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from backend_store.core.partitions.slot_history import (
    RoleTaken,
    SlotBook,
    SlotsForgotten,
    SlotsOpened,
    SlotsReleased,
    SlotsSealed,
    first_book,
)
from backend_store.core.partitions.slot_moves import Fetch, KnownId, Page, Question
from backend_store.core.partitions.slots import SlotTable
from tests.simulation.lanes.lane_log import Entry
from tests.simulation.lanes.process import Message

if TYPE_CHECKING:
    from tests.simulation.lanes.host import Host

SLOT_RECORDS = (SlotsSealed, SlotsOpened, SlotsReleased, SlotsForgotten, RoleTaken)
TICK_MS = 60
BEHIND_MS = 1_200
"""A holder that lacks something for so long is taken out of those in sync."""
STUCK_MS = 400
"""What is not committed after so long: the owner cannot reach enough holders."""
CHANGE_MS = 1_500
"""A change of the table without an answer is asked for again."""

Reply = Callable[[Any], None]


class IdsImported(NamedTuple):
    ids: tuple[KnownId, ...]


class OwnedLane:
    """One lane in one epoch of one owner. Another epoch, and another start of the host, has another one."""

    def __init__(self, host: Host, number: int, row: Any, first_slots: SlotTable):
        self.host = host
        self.world = world = host.world
        self.number = number
        self.row = row
        self.epoch = row.epoch
        core = world.core
        self.log = world.logs[number]
        self.entries = list(self.log.entries)
        self.end = self.known = len(self.entries)
        self.ids: dict[bytes, KnownId] = {}
        self.waiting: dict[int, Message] = {}
        """Committed messages without a committed ack."""
        self.high = 0
        self.answers: deque[tuple[int, Callable[[], None]]] = deque()
        self.written: deque[tuple[int, float]] = deque()
        self.pending: set[str] = set()
        self.asked_ms = -CHANGE_MS
        self.changed: Callable[[], bool] | None = None
        self.caught_up_ms = dict.fromkeys(row.holders, host.steady_ms())
        self.is_replicating = False
        self.barrier = self.end
        committed = self.log.committed
        found = [(e.offset, e.body) for e in self.entries if isinstance(e.body, SLOT_RECORDS)]
        book = first_book(first_slots, number) if number in first_slots.members else SlotBook()
        self.slots = core.slot_log.LaneSlots(number, book, found, committed=committed, waits=world.mix.is_strict)
        self.slots.heed(host.table.slots)
        self.lender = core.lending.Lender(number, self.epoch, mode=world.mix.mode, is_strict=world.mix.is_strict)
        self._inherit(core)
        self.stamps = core.stamping.LaneStamps(self.entries[-1].time_us if self.entries else 0)
        for entry in self.entries:
            self._know(entry)
        self._commit(committed)
        self.append(core.stamping.EpochBegan(self.epoch))
        self.tick()

    def _inherit(self, core: Any) -> None:
        lending = core.lending
        kinds = (lending.MessagesLent, lending.LeaseExtended, lending.MessagesSettled, lending.LaneHandedOver)
        records = [(e.epoch, e.body) for e in self.entries if isinstance(e.body, kinds)]
        last = self.entries[-1].epoch if self.entries else 0
        self.lender.inherit(records, last_epoch=last, below=self.end, now_ms=self.host.steady_ms())
        messages = [(e.offset, e.body.key) for e in self.entries if isinstance(e.body, Message)]
        self.lender.name_keys(messages)

    # ------------------------------------------------------------------------------------------------------- log

    def append(self, body: Any) -> int:
        """Decides an entry; what stands here knows it at once, others when it is committed."""
        host = self.host
        [time_us] = self.stamps.span(1, now_us=host.wall_us(), steady_ms=host.steady_ms())
        entry = Entry(self.end, self.epoch, time_us, body)
        self.end += 1
        self.entries.append(entry)
        self.written.append((entry.offset, host.steady_ms()))
        self._know(entry)
        self.log.append(self.epoch, entry)
        if isinstance(body, SLOT_RECORDS):
            self.slots.appended(entry.offset)
        self._kick()
        return entry.offset

    def _know(self, entry: Entry) -> None:
        body = entry.body
        if isinstance(body, Message) and body.id is not None:
            slot = -1 if body.slot is None else body.slot
            self.ids[body.id] = KnownId(slot, body.id, self.number, entry.offset, entry.time_us // 1000)
        elif isinstance(body, IdsImported):
            self.ids |= {known.id: known for known in body.ids}

    def _kick(self) -> None:
        if not self.is_replicating:
            self.is_replicating = True
            self.host.later(self.world.rng.uniform(0.5, self.world.mix.commit_ms), self._replicate)

    def _replicate(self) -> None:
        self.is_replicating = False
        if self.host.owned.get(self.number) is not self:
            return
        self.log.replicate(self.epoch, {*self.row.in_sync}, self.pending, self._told)
        now_ms = self.host.steady_ms()
        if self.epoch == self.log.epoch:
            for holder, has in self.log.has.items():
                if has == self.end:
                    self.caught_up_ms[holder] = now_ms
        if self.high < self.end:
            self._kick()

    def _told(self, committed: int) -> None:
        self.host.later(self.world.rng.uniform(0, 3), self._committed, committed)

    def _committed(self, committed: int) -> None:
        if self.host.owned.get(self.number) is self and committed > self.high:
            self._commit(committed)

    def _commit(self, committed: int) -> None:
        """The log is committed up to there, as far as this owner knows."""
        settled = self.world.core.lending.MessagesSettled
        for entry in self.entries[self.high : committed]:
            if isinstance(entry.body, Message):
                self.waiting[entry.offset] = entry.body
            elif isinstance(entry.body, settled):
                for offset in entry.body.offsets:
                    self.waiting.pop(offset, None)
                self.lender.committed(entry.body)
        self.high = max(self.high, committed)
        self.slots.committed_below(self.high)
        while self.written and self.written[0][0] < self.high:
            self.written.popleft()
        while self.answers and self.answers[0][0] <= self.high:
            self.answers.popleft()[1]()

    def when_committed(self, what: Callable[[], None]) -> None:
        """Once all is committed that is written by now."""
        self.answers.append((self.end, what))

    @property
    def serves(self) -> bool:
        return self.high > self.barrier or "serves before its epoch's beginning is committed" in self.world.breaks

    @property
    def can_commit(self) -> bool:
        if self.lender.has_handed_over or len(self.row.in_sync) < self.host.table.min_in_sync:
            return False
        return not self.written or self.host.steady_ms() - self.written[0][1] < STUCK_MS

    # ------------------------------------------------------------------------------------------------ publishing

    def publish(self, message: Message, version: int, reply: Reply) -> None:
        routing = self.world.core.routing
        is_kept_to_slots = message.slot is not None and "appends ids wherever they arrive" not in self.world.breaks
        if is_kept_to_slots and self.slots.refused(1 << (message.slot or 0), version=version):
            reply(routing.Moved(self.slots.newest, self.row.cluster))
            return
        known = self.ids.get(message.id) if message.id is not None else None
        log_ms = max(self.stamps.last_us, self.host.wall_us()) // 1000
        if known is None or known.time_ms + self.world.mix.window_ms <= log_ms:
            self.append(message)
        elif "answers a repetition at once" in self.world.breaks:
            reply("stored")
            return
        if "confirms before the commit" in self.world.breaks:
            reply("stored")
        self.when_committed(lambda: reply("stored"))
        if "passes on what it has appended" in self.world.breaks and message.slot is None:
            self.host.later(STUCK_MS, self._pass_on, self.end, message, version, reply)

    def _pass_on(self, end: int, message: Message, version: int, reply: Reply) -> None:
        others = [host for host in self.row.holders if host != self.host.name]
        if self.high < end:
            self.host.forward(message, version, 0, others[0], reply)

    # --------------------------------------------------------------------------------------------------- delivery

    def lend(self, ask: Any, agent: str, reply: Reply) -> None:
        if not self.serves:
            return
        world, core = self.world, self.world.core
        ready = [
            core.lending.Waiting(offset, message.key if world.mix.is_strict else None)
            for offset, message in self.waiting.items()
            if message.slot is None or not world.mix.is_strict or self._is_delivered(message.slot, offset)
        ]
        record = self.lender.lend(
            ready,
            agent,
            count=ask.messages_max,
            lease_ms=ask.lease_ms,
            now_ms=self.host.steady_ms(),
            session_ends_ms=self.host.session_ends_ms,
        )
        if record is None:
            reply(None)
            return
        messages = tuple((offset, self.waiting[offset]) for offset in record.offsets)
        grant = core.agent.LoanGranted(ask.request, record.lease, messages)
        if world.mix.mode == "memory":
            reply(grant)
            return
        self.append(record)
        if "grants before the lease is committed" in world.breaks:
            reply(grant)
        else:
            self.when_committed(lambda: reply(grant))

    def _is_delivered(self, slot: int, offset: int) -> bool:
        return bool(self.slots.handling(slot, offset) == "deliver")

    def ack(self, receipt: Any, reply: Reply) -> None:
        if not self.serves:
            return
        message = self.waiting.get(receipt.offset)
        key = message.key if message is not None else None
        verdict = self.lender.ack(receipt, key=key, is_there=message is not None, now_ms=self.host.steady_ms())
        if verdict == "stale-receipt":
            reply(verdict)
            return
        if not isinstance(verdict, str):
            self.append(verdict)
        answer = verdict if verdict == "already-acked" else "settled"

        def confirmed() -> None:
            if answer == "settled":
                self.world.checks.acked(self.number, receipt)
            reply(answer)

        if "confirms an ack before its commit" in self.world.breaks:
            confirmed()
        else:
            self.when_committed(confirmed)

    def give_back(self, unsent: Any) -> None:
        self.lender.give_back(unsent.lease, unsent.offsets)

    def extend(self, receipt: Any, lease_ms: int, reply: Reply) -> None:
        record = self.lender.extend(receipt, lease_ms, self.host.steady_ms()) if self.serves else None
        if record is None:
            return
        if self.world.mix.mode == "replicated":
            self.append(record)
        self.when_committed(lambda: reply(record.lease_ms))

    # ------------------------------------------------------------------------------------------------------- ticks

    def tick(self) -> None:
        host = self.host
        if host.owned.get(self.number, self) is not self:
            return
        if self.stamps.closes(host.steady_ms(), is_committed=self.high == self.end):
            self.append(self.world.core.stamping.TimeClosed())
        if self.serves and not self.lender.has_handed_over:
            self._keep_slots()
        self._look_at_holders()
        self._look_home()
        host.later(TICK_MS, self.tick)

    def _look_at_holders(self) -> None:
        """Takes out of those in sync who lacks something for too long, and in again who lacks nothing."""
        now_ms, host = self.host.steady_ms(), self.host
        if now_ms - self.asked_ms < CHANGE_MS:
            return
        in_sync = {*self.row.in_sync}
        slow = [h for h in self.row.in_sync if h != host.name and now_ms - self.caught_up_ms[h] > BEHIND_MS]
        back = [h for h in self.row.holders if h not in in_sync and self._has_all(h)]
        wanted = in_sync - {slow[0]} if slow else in_sync | {*back[:1]}
        if wanted == in_sync:
            return
        # An earlier ask by the same row may still be on its way: who it takes in counts until the row has changed.
        self.pending |= wanted - in_sync
        seen, me, number, adoption = self.row.version, host.as_owner, self.number, self.world.core.adoption
        self._change(lambda table: adoption.with_in_sync(table, number, me, seen, wanted))

    def _has_all(self, holder: str) -> bool:
        has_all = self.epoch == self.log.epoch and self.log.has[holder] >= max(self.high, self.barrier + 1)
        return has_all and self.world.reach_each_other(self.host.name, holder)

    def _look_home(self) -> None:
        """Gives an adopted lane back to the host that it prefers, once that has all of it."""
        host, home = self.host, self.row.preferred
        now_ms = host.steady_ms()
        adoption, me, number, epoch = self.world.core.adoption, host.as_owner, self.number, self.epoch
        if self.lender.has_handed_over:
            if self.changed is not None and self.changed() and now_ms - self.asked_ms >= CHANGE_MS:
                target = home if self.world.rng.random() < 0.5 else host.name
                self._change(lambda table: adoption.handed_over(table, number, me, epoch, target, host.alive_there()))
            return
        if home == host.name or home not in self.row.in_sync or home not in host.alive or not self.serves:
            return
        if self.can_commit and self.world.rng.random() < 0.3:
            offset = self.append(self.lender.hand_over(now_ms))
            self.changed = lambda: self.high > offset

    def _change(self, make: Callable[[Any], Any]) -> None:
        self.asked_ms = self.host.steady_ms()
        coordinator = self.world.coordinator
        self.world.send(self.host.name, coordinator, coordinator.on_change, make, self.host, self.host.on_changed)

    def on_row(self, row: Any) -> None:
        """The same epoch, with other holders in sync."""
        if row.version > self.row.version:
            self.row = row
            self.pending.clear()
            self.asked_ms = -CHANGE_MS

    # ------------------------------------------------------------------------------------------------------- slots

    def _keep_slots(self) -> None:
        keeper = self.slots
        keeper.heed(self.host.table.slots)
        fetch = keeper.fetch()
        if fetch is not None:
            self.host.send_to_owner(fetch.move.source, "on_fetch", fetch, self.number)
        coordinator = self.world.coordinator
        for move in keeper.opened_moves():
            self.world.send(self.host.name, coordinator, coordinator.on_opened, move)
        for question in keeper.questions():
            self.host.send_to_owner(question.source, "on_question", question, self.number)
        if keeper.drains:
            for record in keeper.forget(self.is_unsettled):
                self.append(record)

    def on_fetch(self, fetch: Fetch, target: int) -> None:
        if not self.serves or self.lender.has_handed_over:
            return
        keeper = self.slots
        if keeper.hands_over(fetch.move) is None:
            record = keeper.seal(fetch.move, end=self.end, now_ms=self.stamps.last_us // 1000 + 1)
            if record is not None:
                self.append(record)
            if "hands over before the seal is committed" not in self.world.breaks:
                return
            keeper.book = keeper.ahead
        tenure = keeper.hands_over(fetch.move)
        if tenure is None:
            return
        ids = sorted(known for known in self.ids.values() if known.slot in fetch.move.slots)
        left = [known for known in ids if known.id > fetch.after]
        left.sort(key=lambda known: known.id)
        page, rest = left[: self.world.mix.page_ids], left[self.world.mix.page_ids :]
        if "hands over no ids" in self.world.breaks:
            page, rest = [], []
        next_ = page[-1].id if rest else None
        sealed_ms = self.entries[tenure.sealed_at].time_us // 1000 + 1
        self.host.send_to_owner(target, "on_page", Page(fetch, tenure.sealed_at, sealed_ms, tuple(page), (), next_))

    def on_page(self, page: Page) -> None:
        if not self.serves or self.lender.has_handed_over or not self.slots.wants(page):
            return
        self.append(IdsImported(page.ids))
        if "forgets the time of the seal" not in self.world.breaks:
            self.stamps.go_on_after(page.time_ms * 1000)
        record = self.slots.take(page, end=self.end)
        if record is not None:
            self.append(record)

    def on_question(self, question: Question, target: int) -> None:
        if self.serves:
            drained = self.slots.drained(question, self.is_unsettled)
            if drained:
                self.host.send_to_owner(target, "on_drained", question.version, drained)

    def on_drained(self, version: int, slots: tuple[int, ...]) -> None:
        record = self.slots.release(version, slots) if self.serves and not self.lender.has_handed_over else None
        if record is not None:
            self.append(record)

    def is_unsettled(self, slot: int, tenure: Any) -> bool:
        if not self.world.mix.is_strict:
            return False
        return any(m.slot == slot and tenure.opened_at <= o < tenure.sealed_at for o, m in self.waiting.items())
