"""A queue's partitions on this node: routes each publish to the partition that owns its slot.

A queue with one partition sends every message there. A queue with several looks up each message's slot in the slot
table; messages of a slot on the move wait here, in order, for the table that says where the slot went. Waiting messages
are refused when their time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from backend_store.core.log.block import Blocks, Columns, column_blocks
from backend_store.core.log.records import PartitionState
from backend_store.core.log.sealed_block import Seal
from backend_store.core.partitions.routing import Share, routed_blocks, shares, slot_bits
from backend_store.core.partitions.slots import (
    EVERY_SLOT,
    WAITS,
    PartitionMap,
    Routing,
    SlotTable,
    routing_of,
    slot_of,
    slots_taken,
)
from backend_store.model import (
    Block,
    Claim,
    Offset,
    OnTheMove,
    Original,
    OutcomeUnknown,
    Overloaded,
    Published,
    PushqError,
    QueueConfig,
    QueueDefinition,
)
from backend_store.node.commit.publish_call import PublishReply
from backend_store.node.limits import INBOX_BYTES_MAX, INBOX_MESSAGES_MAX
from backend_store.node.log.slot_remains import SlotRemains
from backend_store.node.partition import Partition
from backend_store.node.publishing.moved_away import on_the_move
from backend_store.node.publishing.ordered_claims import Follower, OrderedClaims
from backend_store.node.publishing.queue_limits import NOTHING, Amount
from backend_store.node.publishing.refusals import too_late
from backend_store.node.timers.alarms import Alarms
from backend_store.words import counted


class Partitions:
    """One queue's partitions; `Queues` owns the object and keeps the same one for as long as the queue exists."""

    def __init__(self, definition: QueueDefinition, first: Partition):
        self.definition = definition
        self.first = first
        """The lowest of `all`; answers for the queue as a whole."""
        self.map: PartitionMap | None = None
        """None: the queue never had more than one partition."""
        self._by_number: dict[int, Partition] = {first.index: first}
        self._all: tuple[Partition, ...] = (first,)
        self.past: dict[int, PartitionState] = {}
        """Final states of retired partitions, by number: they count in the queue's totals."""
        self._turn = 0
        self._waiting: dict[int, _Waiting] = {}
        """By number, in order of arrival."""
        self._waits = 0
        self._alarms: Alarms[int] = Alarms()
        """When each waiting call, by its number, is refused."""
        self._wakes_ms: int | None = None
        """When `_give_up` runs next."""
        self._waiting_messages = 0
        self._waiting_bytes = 0
        self._is_flushing = False
        self.remains: SlotRemains | None = None
        """What is left here of slots that are elsewhere now; set on first use."""
        self._late: list[tuple[list[Block], PublishReply, bool, int]] = []
        """Calls made by replies during a flush: they go behind all calls that waited."""
        self._listeners: list[Callable[[], None]] = []
        self._following = OrderedClaims()

    # ------------------------------------------------------------------------------------------------ which they are

    @property
    def all(self) -> tuple[Partition, ...]:
        """Partitions that may hold messages, in the order of their numbers."""
        return self._all

    @property
    def config(self) -> QueueConfig:
        return self.definition.config

    @property
    def seal(self) -> Seal | None:
        return self.first.seal

    def sealed(self, blocks: list[Block]) -> list[Block]:
        """A call's blocks, encrypted if the queue is. Raises `Unavailable` while there is no key for them."""
        seal = self.first.seal
        return blocks if seal is None or not self.definition.config.encrypted else seal.seal(blocks)

    @property
    def may_change(self) -> bool:
        """The queue has, had or may get several partitions."""
        config = self.config
        return self.map is not None or config.partitions > 1 or config.auto_expand is not None

    @property
    def label(self) -> str:
        return self.first.label

    def steady_ms(self) -> int:
        return self.first.steady_ms()

    @property
    def open_count(self) -> int:
        return len(self.map.table.open_partitions) if self.map is not None else 1

    def get(self, number: int) -> Partition | None:
        return self._by_number.get(number)

    def on_changed(self, changed: Callable[[], None]) -> None:
        """Has `changed` called when a partition comes or goes."""
        self._listeners.append(changed)

    def add(self, partition: Partition) -> None:
        self._by_number[partition.index] = partition
        self.past.pop(partition.index, None)
        self._changed()

    def remove(self, number: int) -> None:
        """Drops a retired partition, which holds nothing."""
        self.past[number] = self._by_number.pop(number).state
        self._changed()

    def _changed(self) -> None:
        self._all = tuple(self._by_number[number] for number in sorted(self._by_number))
        self.first = self._all[0]
        for partition in self._all:
            partition.siblings = partial(self._siblings, partition)
        for changed in self._listeners:
            changed()

    def _siblings(self, of: Partition) -> Sequence[Partition]:
        return [partition for partition in self._all if partition is not of]

    def heed(self, after: PartitionMap) -> None:
        """Routes by a newer table from now on, and sends on the calls that waited for it."""
        self.map = after
        for partition in self._all:
            assert partition.slotting is not None
            partition.slotting.keeper.heed(after.table)
        self.flush()

    # ------------------------------------------------------------------------------------------------------ publishes

    @property
    def routing(self) -> Routing:
        return routing_of(self.config)

    def blocks(self, columns: Columns, trace: str | None) -> Blocks:
        """A call's messages as blocks; if the queue has several partitions, each block is for one of them."""
        if self.map is None:
            return column_blocks(columns, trace)
        return routed_blocks(columns, trace, self.routing, self.map.table)

    def _shares(self, blocks: Sequence[Block], turn: int) -> list[Share]:
        """A call's messages by partition. Those that wait for a newer table are under `WAITS`."""
        return shares(blocks, self.routing, self._table_now(), turn, self.first.seal)

    def _table_now(self) -> SlotTable:
        assert self.map is not None
        return self.map.table

    def publish_once(self, blocks: list[Block], claim: Claim, reply: PublishReply, *, until_ms: int = 0) -> None:
        """Stores messages under an idempotency key. With one partition the key is bound in the same commit. With
        several, the key is bound first, in the partition of the key's own slot, because every repeat must ask in the
        same place; then each message is deduplicated by its own id. The same holds if the queue is spread over several
        places, or was when the call was encoded, as these may be only some of its messages. In strict order, later
        calls with the same slots wait meanwhile.
        """
        is_apart = self.map is not None or bool(self.definition.takes) or any(block.slots for block in blocks)
        if not is_apart:
            self.first.publish(blocks, reply, claim=claim, until_ms=until_ms)
            return
        slot = slot_of(claim.key)
        owner, version = self._owner_of(slot)
        if owner == WAITS or any(block.traits is None or block.traits.ids is None for block in blocks):
            # The key's slot is on the move; or the queue had one partition in one place when the call was encoded.
            reply(
                Overloaded(f"queue {self.label!r}: this key is moving to another partition; retry", retry_after_ms=100)
            )
            return

        bits = slot_bits(blocks, self.routing)
        store = partial(self.publish, blocks, reply, dedupes=True, is_next=True, until_ms=until_ms)
        follower: Follower | None = None
        if blocks and self.config.ordering == "strict":
            if (error := self._why_too_many(blocks)) is not None:
                reply(error)
                return
            follower = self._following.enter(bits, blocks, store, is_ready=False, reply=reply, until_ms=until_ms)

        def bound(result: Published | PushqError) -> None:
            if isinstance(result, Published) and not result.is_repeat:
                if follower is None:
                    store()
                else:
                    self._following.ready(follower)
                    if follower.is_here:
                        self._watch()
                return
            if isinstance(result, Published):
                result = msgspec.structs.replace(result, count=sum(block.count for block in blocks))
            try:
                reply(result)
            finally:
                if follower is not None:
                    self._following.over(follower)

        self._by_number[owner].publish(
            [],
            bound,
            slots=1 << slot,
            version=version,
            claim=claim,
            follows=bits,
            until_ms=until_ms,
        )

    def _owner_of(self, slot: int) -> tuple[int, int]:
        """The partition that owns a slot, and the version of the table that says so; version 0 where there is no
        table."""
        if self.map is None:
            return self.first.index, 0
        return self.map.table.places[slot], self.map.table.version

    def publish(
        self,
        blocks: list[Block],
        reply: PublishReply,
        *,
        must_fit: bool = False,
        dedupes: bool = False,
        moves: bool = False,
        stays: bool = False,
        is_next: bool = False,
        until_ms: int = 0,
    ) -> None:
        """Stores messages, each in its partition; `reply` runs when all are durable or refused. `is_next`: the messages
        need not wait for any before them."""
        if not is_next and self._following and not must_fit:
            bits = slot_bits(blocks, self.routing)
            if self._following.holds_up(bits):
                store = partial(self.publish, blocks, reply, dedupes=dedupes, is_next=True, until_ms=until_ms)
                if (error := self._why_too_many(blocks)) is not None:
                    reply(error)
                else:
                    self._following.enter(bits, blocks, store, is_ready=True, reply=reply, until_ms=until_ms)
                    self._watch()
                return
        if self.map is None:
            self.first.publish(
                blocks, reply, must_fit=must_fit, dedupes=dedupes, moves=moves, stays=stays, until_ms=until_ms
            )
        elif self._is_flushing and not must_fit:
            self._late.append((blocks, reply, dedupes, until_ms))
        else:
            self._route(blocks, reply, must_fit=must_fit, dedupes=dedupes, moves=moves, stays=stays, until_ms=until_ms)

    def _why_too_many(self, blocks: Sequence[Block]) -> PushqError | None:
        """Why these messages must not wait for the idempotency keys before them; None if they may."""
        messages = self._following.messages + sum(block.count for block in blocks)
        size = self._following.size + sum(len(block.data) for block in blocks)
        if messages <= INBOX_MESSAGES_MAX and size <= INBOX_BYTES_MAX:
            return None
        waiting = counted(self._following.messages, "message is waiting", "messages are waiting")
        detail = f"queue {self.label!r}: {waiting} for idempotency keys to be written"
        return Overloaded(detail, retry_after_ms=1000)

    def _route(
        self,
        blocks: list[Block],
        reply: PublishReply,
        *,
        must_fit: bool = False,
        dedupes: bool,
        moves: bool = False,
        stays: bool = False,
        until_ms: int = 0,
    ) -> None:
        self._turn += 1
        parts = self._shares(blocks, self._turn)
        if not parts:
            self.first.publish(blocks, reply, until_ms=until_ms)
            return
        send = partial(self._send, must_fit=must_fit, dedupes=dedupes, moves=moves, stays=stays, until_ms=until_ms)
        if len(parts) == 1 and parts[0].partition != WAITS:
            send(parts[0], reply)
            return
        answer = Gathered(parts, reply)
        for number, share in enumerate(parts):
            told = partial(answer.told, number)
            if share.partition == WAITS:
                self._wait(share, told, dedupes, until_ms)
            else:
                send(share, told)

    def why_refused(
        self, calls: Sequence[list[Block]], freed: Amount | None = NOTHING, *, is_own: bool = False
    ) -> PushqError | None:
        """Why these publishes, one after the other, cannot be made now; None if they can. Asked for a transaction,
        which must not fail half-way and may ask within its own cycle. `freed`: what the transaction settles of this
        queue; None if that is what it publishes. `is_own`: the messages are the queue's already, such as dead letters
        that come back.
        """
        if not is_own and (taken := slots_taken(self.definition)) != EVERY_SLOT:
            blocks = [block for call in calls for block in call]
            if not taken or slot_bits(blocks, self.routing) & ~taken:
                return on_the_move(self.label)
        if self.map is None:
            blocks = [block for call in calls for block in call]
            return self.first.why_not(blocks) or self.first.why_refused(blocks, freed=freed)
        found: dict[int, list[Block]] = {}
        for turn, call in enumerate(calls, self._turn + 1):
            for share in self._shares(call, turn):
                found.setdefault(share.partition, []).extend(share.blocks)
        if WAITS in found:
            return Overloaded(
                f"queue {self.label!r}: these keys are moving to another partition; retry", retry_after_ms=100
            )
        for number, blocks in found.items():
            partition = self._by_number[number]
            elsewhere = [block for other, theirs in found.items() if other != number for block in theirs]
            if (error := partition.why_not(blocks) or partition.why_refused(blocks, elsewhere, freed)) is not None:
                return error
        return None

    def _send(
        self,
        share: Share,
        reply: PublishReply,
        *,
        must_fit: bool,
        dedupes: bool,
        moves: bool,
        stays: bool,
        until_ms: int,
    ) -> None:
        self._by_number[share.partition].publish(
            share.blocks,
            reply,
            must_fit=must_fit,
            dedupes=dedupes,
            slots=share.slots,
            version=self._table_now().version,
            moves=moves,
            stays=stays,
            until_ms=until_ms,
        )

    def _wait(self, share: Share, reply: PublishReply, dedupes: bool, until_ms: int) -> None:
        size = sum(len(block.data) for block in share.blocks)
        if self.first.is_gone:
            reply(self.first.deleted())
            return
        if self._waiting_messages + share.messages > INBOX_MESSAGES_MAX or self._waiting_bytes + size > INBOX_BYTES_MAX:
            waiting = counted(self._waiting_messages, "message is waiting", "messages are waiting")
            detail = f"queue {self.label!r}: {waiting} for slots that are moving"
            reply(Overloaded(detail, retry_after_ms=1000))
            return
        self._waits += 1
        self._waiting[self._waits] = _Waiting(share, reply, dedupes, until_ms, size)
        self._waiting_messages += share.messages
        self._waiting_bytes += size
        if until_ms:
            self._alarms.set(self._waits, until_ms)
            self._watch()

    def flush(self) -> None:
        """Sends on calls that need not wait any more. A slot's messages go all at once, in order."""
        waiting = self._take_waiting()
        self._is_flushing = True
        for one in waiting:
            self.first.tell(self._send_on, one)
        self._is_flushing = False
        late, self._late = self._late, []
        for blocks, reply, dedupes, until_ms in late:
            self._route(blocks, reply, dedupes=dedupes, until_ms=until_ms)

    def _send_on(self, one: _Waiting) -> None:
        self._route(one.share.blocks, one.reply, dedupes=one.dedupes, until_ms=one.until_ms)

    def close(self) -> None:
        """The queue is deleted: refuses the calls that wait."""
        self.refuse_waiting(self.first.deleted())

    def refuse_waiting(self, error: PushqError) -> None:
        """Refuses calls that wait for slots on the move with `error`; none of them was begun."""
        for one in self._take_waiting():
            self.first.tell(one.reply, error)

    def _take_waiting(self) -> Collection[_Waiting]:
        waiting, self._waiting, self._alarms = self._waiting, {}, Alarms()
        self._waiting_messages = self._waiting_bytes = 0
        return waiting.values()

    # ------------------------------------------------------------------------------------------------------- time

    def _watch(self) -> None:
        """Sets a timer for the earliest time limit of the calls that wait here."""
        until_ms = min(filter(None, (self._following.until_ms, self._alarms.next_ms())), default=None)
        if until_ms is None or (self._wakes_ms is not None and self._wakes_ms <= until_ms):
            return
        self._wakes_ms = until_ms
        left_ms = max(0, until_ms - self.steady_ms())
        self.first.node.later(left_ms / 1000, partial(self._give_up, until_ms))

    def _give_up(self, at_ms: int) -> None:
        """Refuses calls whose time is over. They are never begun, and calls behind them do not wait for them."""
        if at_ms != self._wakes_ms:
            return  # an earlier run came since, and set the next timer itself
        self._wakes_ms, now_ms = None, self.steady_ms()
        over = [self._waiting.pop(number) for number in self._alarms.take(now_ms)]
        for one in over:
            self._waiting_messages -= one.share.messages
            self._waiting_bytes -= one.size
        for one in over:
            self._refuse(one.reply)
        self._following.give_up(now_ms, self._refuse)
        self._watch()

    def _refuse(self, reply: PublishReply) -> None:
        self.first.tell(reply, too_late(self.label))


class _Waiting(NamedTuple):
    """A part of a call that waits for its slots to arrive."""

    share: Share
    reply: PublishReply
    dedupes: bool
    until_ms: int
    size: int


class Gathered:
    """Gathers the answers to a call whose messages went to several partitions into one."""

    def __init__(self, parts: Sequence[Share], reply: PublishReply):
        self._parts = parts
        self._reply = reply
        self._results: dict[int, Published | PushqError] = {}

    def told(self, part: int, result: Published | PushqError) -> None:
        self._results[part] = result
        if len(self._results) == len(self._parts):
            self._reply(gathered([(share, self._results[number]) for number, share in enumerate(self._parts)]))


def gathered(parts: Sequence[tuple[Share, Published | PushqError]]) -> Published | PushqError:
    """Merges the answers of several partitions: an error if none stored anything, else one answer per message. The
    latter also if only some refuse because the messages belong elsewhere: what failed for another reason must not be
    sent there."""
    placed = [result for _, result in parts if isinstance(result, Published)]
    if not placed:
        errors = [result for _, result in parts if isinstance(result, PushqError)]
        if len({isinstance(error, OnTheMove) for error in errors}) < 2:
            return next((error for error in errors if isinstance(error, OutcomeUnknown)), errors[0])
        placed = [Published(max(0, parts[0][0].partition), Offset(-1), 0)]
    places: dict[int, tuple[int, int]] = {}
    others: dict[int, Original | PushqError] = {}
    for share, result in parts:
        if isinstance(result, PushqError):
            others.update(dict.fromkeys(share.numbers, result))
            continue
        if result.is_repeat:
            known = [Original(Offset(offset), number) for number, offset in places_of(result, share.blocks)]
            others.update(zip(share.numbers, known, strict=True))
            continue
        places.update(zip(share.numbers, places_of(result, share.blocks), strict=True))
        for message, other in (result.others or {}).items():
            if isinstance(other, Original) and other.partition is None:
                other = other._replace(partition=result.partition)
            others[share.numbers[message]] = other
    count = sum(share.messages for share, _ in parts)
    nowhere = placed[0].partition, -1
    return Published(
        placed[0].partition,
        Offset(placed[0].base),
        count,
        fsynced=all(one.fsynced for one in placed),
        replicas=min(one.replicas for one in placed),
        others=others or None,
        places=[places.get(number, nowhere) for number in range(count)],
    )


def places_of(result: Published, blocks: Sequence[Block]) -> Sequence[tuple[int, int]]:
    """(partition, offset) of each message of `blocks`."""
    if result.places is not None:
        return result.places
    if result.bases is None:
        return [(result.partition, result.base + n) for n in range(result.count)]
    counts = result.counts or [block.count for block in blocks]
    return [
        (result.partition, base + n) for base, count in zip(result.bases, counts, strict=True) for n in range(count)
    ]
