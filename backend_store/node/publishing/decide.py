"""Decides one cycle's publishes: which messages are new, which repeat, which fit, and to which sublog (shelf) each
goes.

Calls are decided in order. Most queues need none of these checks; then a cycle's blocks are appended as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from backend_store.core.dedupe.numbered_ids import name_in_call
from backend_store.core.log.bits import indexes
from backend_store.core.log.block import gone_of, has_holes, has_letters, punch
from backend_store.core.log.chunk import Chunk
from backend_store.core.log.log import Append
from backend_store.core.log.records import Record, Scheduled
from backend_store.core.log.sublogs import SORTING, is_scheduled, shelf_of
from backend_store.core.reorder.sorter import NO_MESSAGE, Sorted
from backend_store.model import (
    Block,
    Offset,
    Original,
    Published,
    PushqError,
    QueueConfig,
)
from backend_store.node.commit.publish_call import Call, PublishReply, ids_of, stamps_of
from backend_store.node.publishing.idempotency_claims import Claims, Known
from backend_store.node.publishing.placement import Placed, Places, expiries
from backend_store.node.publishing.queue_limits import NOTHING, Amount, QueueLimits, has_limits
from backend_store.node.publishing.refusals import dedupe_full, unreadable_ids
from backend_store.storage.engine import StorageCorrupt

if TYPE_CHECKING:
    from backend_store.node.partition import Partition
    from backend_store.node.publishing.known_ids import IdStore
    from backend_store.node.views.reorder import Reorder
    from backend_store.node.views.view import View


class Judged(NamedTuple):
    """The sorter's decision about a call, and the messages it was asked about."""

    call: int
    decision: Sorted
    asked: list[int]


class Publishing:
    """One cycle's publishes of one partition."""

    def __init__(
        self,
        plan: Append,
        config: QueueConfig,
        *,
        partition: int,
        ids: IdStore | None,
        view: View | None,
        sorting: Reorder | None = None,
        siblings: Sequence[Partition] = (),
        owes_room: bool = False,
        elders: Sequence[Partition] = (),
    ):
        """`siblings` count towards the queue's limits, and earlier cycles may owe room; `elders` may remember ids of
        slots that came from them.
        """
        self.plan = plan
        self.config = config
        self.moved = 0
        """Messages added by this cycle that were in a queue before."""
        self.records: list[Record] = []
        self.schedules: list[Scheduled] = []
        """Scheduled messages added by this cycle; also among `records`."""
        self.expires = False
        self.chunks: list[Chunk] = []
        self.overflowed: list[tuple[Chunk, int]] = []
        """Messages that are appended and end at once, because the queue is full."""
        self._partition = partition
        self._ids = ids
        self._view = view
        self._sorting = sorting
        self._judged: list[Judged] = []
        self.late: list[tuple[Chunk, int]] = []
        """Messages of a sorted queue whose turn has passed: they are appended, and end at once as late."""
        self._waiting: list[Call] = []
        self._others: list[dict[int, Original | PushqError]] = []
        self._shelves: dict[int, list[Placed]] = {}
        self._cycle_ids: set[bytes | None] = set()
        """Ids of messages that this cycle accepts."""
        self._claims: Claims | None = None
        """None if no ids are checked."""
        if ids is not None:
            self._claims = Claims(ids, elders, partition=partition, now_ms=plan.now_ms, config=config)
        self._accepted: list[tuple[int, int, list[bytes | None]]] = []
        """Accepted ids by block: (call, block, one id per message)."""
        self._repeats: list[tuple[int, int, bytes]] = []
        self._elders = elders
        self._need: Amount | None = None
        """What the current call adds, repeats included; set if there is no room for it."""
        self.owes_room = owes_room
        """One commit could not end all messages that the queue's limits require."""
        self.later: list[Call] = []
        """Calls that fit only once what this cycle adds can make room for them: left for the next cycle."""
        makes_room_later = config.kind == "stream" and config.overflow == "drop_oldest"  # see `retention`
        self._room = (
            QueueLimits(plan.state, config, view, siblings) if has_limits(config) and not makes_room_later else None
        )
        self._doomed: list[tuple[int, int]] = []
        """Messages, as (call, message), that the full queue has no room for."""

    def decide(self, calls: Sequence[Call]) -> list[tuple[PublishReply, Published | PushqError]]:
        """Decides the calls and the offsets of their messages. The answers are true once the plan is durable."""
        room = self._room
        if room is not None and self.owes_room and any(room.over(NOTHING)):
            room.make(NOTHING)
        for number, call in enumerate(calls):
            self._need = None
            if room is not None and not call.stays and any(room.over(need := room.need(call.blocks))):
                if not call.must_fit and room.must_wait(need, may_shrink=self._may_repeat(call)):
                    self.later = [*calls[number:]]
                    break
                self._need = need
            self._decide(call)
        self.owes_room = room is not None and room.is_stuck
        places = self._place()
        return [(call.reply, self._answer(number, call, places)) for number, call in enumerate(self._waiting)]

    # --------------------------------------------------------------------------------------------------- one call

    def _decide(self, call: Call) -> None:
        number = len(self._waiting)
        self._waiting.append(call)
        others: dict[int, Original | PushqError] = {}
        if call.moves or has_holes(call.blocks):
            others = dict.fromkeys(_holes(call), Original(-1))
        if call.others:
            others.update(call.others)
        self._others.append(others)
        known = Known.NEW
        if call.claim is not None:
            assert self._claims is not None
            said = self._claims.ask(number, call, added=len(self._cycle_ids))
            if said is None:
                return
            known = said
        ids = None
        if self._ids is not None and (call.dedupes or self.config.dedupe != "none" or known is Known.ONE_BY_ONE):
            ids = self._find_repeats(self._ids, number, call, others, known)
        if self._room is not None and self._need is not None:
            self._make_room(self._room, self._need, number, call, others)
        if self._sorting is not None:
            self._judge(number, call, others)
        assert not (call.must_fit and any(isinstance(other, PushqError) for other in others.values())), (
            f"{others}: a step that was promised room is refused"
        )
        if ids is not None:
            self._accept(number, call, ids, others)
        for index, block, gone in _kept(call, others):
            if self._room is not None:
                self._room.add(block, block.count - gone.bit_count())
            self._count(call, block, block.count - gone.bit_count())
            shelf = SORTING if self._sorting is not None else shelf_of(block.priority, is_scheduled=block.due_ms > 0)
            self._shelves.setdefault(shelf, []).append(Placed(number, index, block))

    def _count(self, call: Call, block: Block, messages: int) -> None:
        state = self.plan.state
        if call.moves:
            self.moved += messages
            state.ledger.moved_in_bytes += len(block.data)
            state.letters = state.letters or has_letters(block)
        else:
            state.ledger.published_bytes += len(block.data)

    def _may_repeat(self, call: Call) -> bool:
        return self._ids is not None and (call.dedupes or self.config.dedupe != "none" or call.claim is not None)

    @property
    def _added_ids(self) -> int:
        return len(self._cycle_ids) + (self._claims.count if self._claims is not None else 0)

    def _find_repeats(
        self, store: IdStore, number: int, call: Call, others: dict[int, Original | PushqError], claimed: Known
    ) -> list[bytes | None]:
        """Finds messages of a call that were published before, in earlier commits or in this cycle. Returns the id of
        each message."""
        ids = ids_of(call)
        if claimed is Known.ONE_BY_ONE:
            assert call.claim is not None
            ids = [name_in_call(call.claim, n) if one is None else one for n, one in enumerate(ids)]
        try:
            known = store.lookup(ids, now_ms=self.plan.now_ms, window_ms=self.config.dedupe_window_ms)
            others.update({message: Original(offset) for message, offset in known.items()})
            for elder in self._elders:
                known |= self._find_in(elder, [None if n in known else one for n, one in enumerate(ids)], others)
            fresh = ids if not known else [one for n, one in enumerate(ids) if n not in known]
            unique = set(fresh)
            if None in unique:
                fresh = [one for one in fresh if one is not None]
                unique.discard(None)
            has_room = store.has_room(self._added_ids + len(fresh))
        except StorageCorrupt as corrupt:
            others.update(dict.fromkeys(range(call.messages), unreadable_ids(corrupt)))
            return ids
        if not has_room:
            full = dedupe_full()
            others.update({n: full for n in range(call.messages) if n not in known and n not in others})
            return ids
        if len(unique) == len(fresh) and self._cycle_ids.isdisjoint(unique):
            return ids
        mine: set[bytes] = set()
        for message, one in enumerate(ids):
            if one is None or message in others:
                continue
            if one in mine or one in self._cycle_ids:
                self._repeats.append((number, message, one))
                others[message] = Original(-1)  # its offset is known once this cycle's messages have theirs
            mine.add(one)
        return ids

    def _find_in(
        self, elder: Partition, ids: Sequence[bytes | None], others: dict[int, Original | PushqError]
    ) -> dict[int, int]:
        """Finds repeats of messages that another partition stored before it gave their slots away."""
        known = elder.ids.lookup(ids, now_ms=elder.log_ms(), window_ms=self.config.dedupe_window_ms)
        others.update({message: Original(offset, elder.index) for message, offset in known.items()})
        return known

    def _accept(
        self, number: int, call: Call, ids: list[bytes | None], others: Mapping[int, Original | PushqError]
    ) -> None:
        """Notes the ids of the messages to be stored. A refused message may come again under its id."""
        first = 0
        for index, block in enumerate(call.blocks):
            mine = ids[first : first + block.count]
            if others:
                mine = [None if first + n in others else one for n, one in enumerate(mine)]
            first += block.count
            self._accepted.append((number, index, mine))
            self._cycle_ids.update(mine)

    def _make_room(
        self, room: QueueLimits, need: Amount, number: int, call: Call, others: dict[int, Original | PushqError]
    ) -> None:
        """Applies the queue's limits: makes room, or refuses the messages that do not fit."""
        if others:
            kept = [*_kept(call, others)]
            need = room.need([block for _, block, _ in kept], sum(gone.bit_count() for _, _, gone in kept))
            if not any(room.over(need)):
                return
        if room.evicts:
            if call.must_fit or room.may_fit(need):
                room.make(need)
            else:
                error = room.refusal(need)
                others.update({n: error for n in range(call.messages) if n not in others})
            return
        if call.must_fit and self.config.overflow == "reject":
            return
        wanted = [n for n in range(call.messages) if n not in others]
        excess = wanted[room.fitting(call.blocks, [*others]) :]
        if self.config.overflow == "dead_letter_newest":
            self._doomed += [(number, n) for n in excess]
            return
        error = room.refusal(fitting=len(wanted) - len(excess))
        others.update(dict.fromkeys(excess, error))

    def _judge(self, number: int, call: Call, others: dict[int, Original | PushqError]) -> None:
        """Asks the sorter about each message. A refused message has no sequence number as far as the sorter knows."""
        assert self._sorting is not None
        stamps = stamps_of(call)
        asked = [n for n in range(call.messages) if not isinstance(others.get(n), PushqError)]
        after = self._judged[-1].decision if self._judged else None
        decision = self._sorting.decide([stamps[n] for n in asked], self.plan.now_ms, after)
        for index in decision.repeats:
            others.setdefault(asked[index], Original(-1))
        others.update({asked[index]: error for index, error in decision.refused.items()})
        self._judged.append(Judged(number, decision, asked))

    # ------------------------------------------------------------------------------------------------- their places

    def _place(self) -> Places:
        """Assigns offsets to the blocks, shelf by shelf."""
        places = Places(self._waiting)
        for shelf in sorted(self._shelves):
            placed = self._shelves[shelf]
            if is_scheduled(shelf):
                placed.sort(key=lambda one: one.block.due_ms)
            places.put(placed, self.plan.state.end)
            chunks = self.plan.add([one.block for one in placed], shelf)
            self.chunks += chunks
            if is_scheduled(shelf):
                schedules = [*places.schedules(shelf, placed, chunks, self._overflowing())]
                self.schedules += schedules
                self.records += schedules
            if any(one.block.traits is not None and one.block.traits.expires for one in placed):
                self.records += expiries(chunks)
                self.expires = True
        self._keep_ids(places)
        self.overflowed = places.among(self.chunks, self._overflowing())
        if self._sorting is not None:
            self._take_in(self._sorting, places)
        self._name_repeats(places)
        return places

    def _keep_ids(self, places: Places) -> None:
        if self._ids is None:
            return
        for call, index, ids in self._accepted:
            base = places.base(call, index)
            if base >= 0:
                self._ids.add(ids, base, now_ms=self.plan.now_ms)
        if self._claims is not None:
            self._claims.keep(self._waiting, self._others, places)

    def _name_repeats(self, places: Places) -> None:
        for call, message, one in self._repeats:
            self._others[call][message] = self._first_of(one, call, places)

    def _first_of(self, one: bytes, number: int, places: Places) -> Original | PushqError:
        """What a message of a call repeats: the message of this cycle with the same id; or, if the first one with that
        id in the call was not stored, the answer to that one. Refusals of other calls do not answer this one.
        """
        for call, index, ids in self._accepted:
            if call <= number and one in ids:
                return Original(places.base(call, index) + ids.index(one))
        others = self._others[number]
        own = ids_of(self._waiting[number])
        return next(others[message] for message, each in enumerate(own) if each == one and message in others)

    def _overflowing(self) -> list[tuple[int, int]]:
        """Messages that are stored and end at once, without those that are not stored for another reason."""
        return [(call, message) for call, message in self._doomed if message not in self._others[call]]

    def _take_in(self, sorting: Reorder, places: Places) -> None:
        """Tells the sorter the offsets of this cycle's messages."""
        sorting.placed(self.chunks)
        late: list[tuple[int, int]] = []
        for call, decision, asked in self._judged:
            others = self._others[call]
            offsets = [NO_MESSAGE if n in others else places.offset(call, n) for n in asked]
            originals = sorting.take_in(decision, offsets)
            for index, original in originals.items():
                if others.get(asked[index]) == Original(-1):
                    others[asked[index]] = original
            late += [(call, asked[index]) for index in decision.late if asked[index] not in others]
        late = [one for one in late if one not in self._doomed]
        self.late = places.among(self.chunks, late)

    def _answer(self, number: int, call: Call, places: Places) -> Published | PushqError:
        if self._claims is not None and number in self._claims.settled:
            return self._claims.answer(number, call, lambda first: self._answer(first, self._waiting[first], places))
        others = self._others[number]
        errors = [one for one in others.values() if isinstance(one, PushqError)]
        if errors and len(errors) == call.messages:
            return errors[0]
        starts = tuple(places.base(number, index) for index in range(len(call.blocks)))
        is_contiguous = not others and all(
            b == a + block.count for a, b, block in zip(starts, starts[1:], call.blocks, strict=False)
        )
        return Published(
            self._partition,
            Offset(starts[0] if starts else -1),
            call.messages,
            fsynced=self.config.durability == "fsync",
            bases=None if is_contiguous else starts,
            others=others or None,
        )


def _kept(call: Call, others: Mapping[int, Original | PushqError]) -> Iterator[tuple[int, Block, int]]:
    """(number, block, holes as bits) of each block of which something is stored."""
    first = 0
    for number, block in enumerate(call.blocks):
        gone = sum(1 << (n - first) for n in others if first <= n < first + block.count) if others else 0
        first += block.count
        if gone.bit_count() < block.count:
            yield number, punch(block, gone) if gone else block, gone


def _holes(call: Call) -> list[int]:
    """Indexes of a call's holes: messages that stayed behind when the rest of their block moved, or that have their
    place in the cluster that the queue left."""
    found, first = [], 0
    for block in call.blocks:
        found += [first + index for index in indexes(gone_of(block))]
        first += block.count
    return found
