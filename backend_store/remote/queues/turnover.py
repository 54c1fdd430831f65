"""Sends publishes to a queue that may move to another cluster, in the order in which they came.

Nearly always a call is sent to the place of its slots at once. It waits here in three cases:

- The place of its slots takes no more publishes of them. Calls that this place refused wait for the definition that
  says where the slots are now, and all later calls of the same slots wait behind them. They are sent once every earlier
  call of those slots has its answer, so that no call arrives before one that was sent earlier.
- Its idempotency key belongs to another place than some of its messages: the key is bound first.
- The slots came from elsewhere, and the call may be a repeat of one published there. Former places are asked first:
  they refuse messages that they do not know; messages that they know are not sent to the present place.

A queue in a single place is treated as one slot.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from backend_store.client.queue import PublishReply
from backend_store.core.log.block import punch
from backend_store.core.partitions.routing import Share, message_slots, slot_bits
from backend_store.core.partitions.slots import EVERY_SLOT, slot_of, unpacked
from backend_store.model import (
    Block,
    Claim,
    ClusterAway,
    FormerPlace,
    Offset,
    OnTheMove,
    Original,
    OutcomeUnknown,
    Overloaded,
    Published,
    PushqError,
    QueueNotFound,
    Traits,
    Unavailable,
    Whereabouts,
)
from backend_store.node.partitions import Gathered, places_of
from backend_store.remote.limits import LINE_CALLS_MAX, MOVED_RETRY_MS, SETTLE_MS_MAX, SWEEP_SECONDS
from backend_store.remote.queues.routes import apart, divided

if TYPE_CHECKING:
    from backend_store.remote.queues.placed import PlacedQueue
    from backend_store.remote.queues.queue import RemoteQueue


log = structlog.get_logger("pushq.remote")


class _Placed(NamedTuple):
    """Messages of a call that have their answer, by their numbers in the call. `stored`: stored before the rest was
    refused. `others`: repeats, and messages that failed in another place and must not be sent again."""

    others: dict[int, Original | PushqError]
    stored: dict[int, tuple[int, int]]

    @property
    def messages(self) -> int:
        return len(self.others) + len(self.stored)

    @property
    def unknown(self) -> OutcomeUnknown | None:
        """The error of a message that may or may not have been stored; None if there is none."""
        return next((one for one in self.others.values() if isinstance(one, OutcomeUnknown)), None)

    def among(self, numbers: Sequence[int]) -> _Placed:
        """The answers of the messages with these numbers, renumbered by their position in `numbers`."""
        return _Placed(
            {at: self.others[n] for at, n in enumerate(numbers) if n in self.others},
            {at: self.stored[n] for at, n in enumerate(numbers) if n in self.stored},
        )

    def with_those_of(self, result: Published | PushqError, blocks: list[Block]) -> _Placed:
        """Adds the answers of a place that refused the rest of the call: what it knew, what it stored, what failed."""
        if isinstance(result, PushqError):
            return self
        others, places = result.others or {}, places_of(result, blocks)
        known: dict[int, Original | PushqError] = {}
        for n, one in others.items():
            if isinstance(one, PushqError):
                if not isinstance(one, OnTheMove):
                    known[n] = one
            elif one.offset >= 0:
                known[n] = _named(one, result)
        stored = {n: place for n, place in enumerate(places) if n not in others and place[1] >= 0}
        # A place that stored messages of this very call reports them as known when it is asked.
        answered = {n: one for n, one in known.items() if n not in self.stored}
        return _Placed({**self.others, **answered}, {**stored, **self.stored})


class _Call:
    """A publish that waits."""

    __slots__ = (
        "asked",
        "bits",
        "blocks",
        "claim",
        "is_asking",
        "is_bound",
        "is_over",
        "is_ready",
        "messages",
        "number",
        "placed",
        "reply",
        "until_ms",
    )

    def __init__(
        self, number: int, blocks: list[Block], reply: PublishReply, claim: Claim | None, until_ms: int, bits: int
    ) -> None:
        self.number = number
        self.bits = bits
        """The slots for which later calls have to wait behind this one."""
        self.blocks = blocks
        self.messages = sum(block.count for block in blocks)
        self.reply = reply
        self.claim = claim
        self.until_ms = until_ms
        self.placed = _Placed({}, {})
        self.asked: set[Whereabouts] = set()
        """Former places that have said what they know of the call."""
        self.is_asking = False
        """A former place is being asked, or the key is being bound."""
        self.is_bound = False
        """The idempotency key, apart from the messages, is bound."""
        self.is_ready = False
        """All former places have answered, and the key needs no further step."""
        self.is_over = False
        """The call was sent, or has its answer."""


_number = attrgetter("number")


class Turnover:
    """Orders the publishes of one queue; its `PlacedQueue` owns it."""

    def __init__(self, queue: PlacedQueue) -> None:
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._line: list[_Call] = []
        self._line_bits: int | None = 0
        """The slots of the waiting calls, as bits; None if they must be computed anew."""
        self._number = 0
        self._sends = 0
        self._sent: dict[int, int] = {}
        """Publishes sent to the place of their slots and not answered yet: number → their slots, as bits."""
        self.closed = 0
        """Slots, as bits, to which nothing is sent: their place takes no more publishes as far as known, or earlier
        ones are not answered."""
        self._stays_closed = 0
        """The closed slots that stay closed even after all earlier publishes are answered."""
        self._is_turning = False
        """The definition says where all other slots are: they open once earlier publishes are answered."""
        self._turns = 0
        self._is_going = self._goes_again = False
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """The number of waiting calls."""
        return len(self._line)

    def publish(self, blocks: list[Block], reply: PublishReply, claim: Claim | None, until_ms: int) -> None:
        self._number += 1
        bits = self._bits_of(blocks, claim)
        waits = bool(self._knowing(blocks, claim)) or self._key_apart(bits, claim) is not None
        if not self._line and not self.closed and not waits:
            self._send(self._number, blocks, reply, claim, until_ms, bits)
            return
        blocked = self._blocked
        if not waits and not bits & blocked:
            self._send(self._number, blocks, reply, claim, until_ms, bits)
        elif bits & blocked and bits & ~blocked and claim is None and (parts := self._apart(blocks, blocked)):
            answer = Gathered(parts, reply)
            for number, share in enumerate(parts):
                self.publish(share.blocks, partial(answer.told, number), None, until_ms)
        else:
            self._wait(blocks, reply, claim, until_ms, bits)

    @property
    def _blocked(self) -> int:
        """The slots, as bits, for which a new call has to wait."""
        if self._line_bits is None:
            self._line_bits = 0
            for call in self._line:
                self._line_bits |= call.bits
        return self.closed | self._line_bits

    def _wait(self, blocks: list[Block], reply: PublishReply, claim: Claim | None, until_ms: int, bits: int) -> None:
        if len(self._line) >= LINE_CALLS_MAX:
            detail = (
                f"queue {self._queue.name!r}: {LINE_CALLS_MAX} publishes are already waiting for its move to "
                "another cluster"
            )
            reply(Overloaded(detail, retry_after_ms=500))
            return
        until_ms = until_ms or self._queue.own_ms() + SETTLE_MS_MAX
        call = _Call(self._number, blocks, reply, claim, until_ms, bits)
        self._line.append(call)
        if self._line_bits is not None:
            self._line_bits |= bits
        self._watch()
        self._ask(call)

    def _bits_of(self, blocks: list[Block], claim: Claim | None) -> int:
        """The slots of a call's messages and key, as bits; every slot if the queue is in one place."""
        if not self._queue.is_apart:
            return EVERY_SLOT
        bits = slot_bits(blocks, self._queue.routing)
        return bits if claim is None else bits | 1 << slot_of(claim.key)

    def _key_apart(self, bits: int, claim: Claim | None) -> RemoteQueue | ClusterAway | None:
        """The part where a call's key is bound by itself; None if it has none, or all its messages go there too."""
        return None if claim is None else self._queue.key_apart(claim, bits)

    def _apart(self, blocks: list[Block], blocked: int) -> list[Share]:
        """Splits a call into messages that have to wait and messages that need not; empty if it cannot be split."""
        try:
            parts = apart(blocks, self._queue.routing, blocked, self._queue.seal)
        except PushqError:
            return []
        return parts if len(parts) > 1 else []

    def hold(self, slots: int) -> None:
        """Closes slots that move to another place, or resume at their old one; `turn` opens them again."""
        self.closed |= slots

    def turn(self, leaving: int = 0) -> None:
        """The places of all slots but the `leaving` ones take publishes: opens these slots once earlier publishes are
        answered."""
        self._is_turning, self._stays_closed = True, leaving
        self._turned()

    def end(self, error: PushqError) -> None:
        """Answers all waiting calls with `error`: the queue is deleted."""
        line, self._line, self._line_bits = self._line, [], 0
        for call in line:
            self._answer(call, error)

    # ------------------------------------------------------------------------------------------------- where it lies

    def _send(
        self,
        number: int,
        blocks: list[Block],
        reply: PublishReply,
        claim: Claim | None,
        until_ms: int,
        bits: int,
        placed: _Placed | None = None,
    ) -> None:
        """`placed`: the answers of messages that are punched out of the blocks."""
        self._sends += 1
        sent = self._sends
        self._sent[sent] = bits

        def done(result: Published | PushqError) -> None:
            del self._sent[sent]
            if is_refused(result):
                self._refused(_Call(number, blocks, reply, claim, until_ms, bits), result, placed)
            else:
                try:
                    reply(_whole(result, placed, blocks) if placed is not None else result)
                except Exception:
                    self._blame()
            if self._is_turning:
                self._turned()

        self._queue.bring(blocks, done, claim, until_ms, number=number)

    def _refused(self, call: _Call, result: Published | PushqError, placed: _Placed | None) -> None:
        call.placed = (placed or call.placed).with_those_of(result, call.blocks)
        call.until_ms = call.until_ms or self._queue.own_ms() + SETTLE_MS_MAX
        if self._queue.deleted:
            self._answer(call, self._queue.gone)
            return
        if self._queue.is_apart and call.claim is None:
            slots = message_slots(call.blocks, self._queue.routing)
            left = {slot for n, slot in enumerate(slots) if n not in call.placed.others and n not in call.placed.stored}
            call.bits = sum(1 << slot for slot in left)
        insort(self._line, call, key=_number)
        self._line_bits = None
        self.closed |= call.bits
        self._watch()
        self._queue.refused_here()

    def _turned(self) -> None:
        opening = self.closed & ~self._stays_closed
        if any(bits & opening for bits in self._sent.values()):
            return
        self.closed &= self._stays_closed
        self._is_turning = False
        self._turns += 1
        waiting = list(self._line)
        for call in waiting:  # the place that the slots left last may know of the call, and so may others by now
            call.is_ready = call.is_bound = False
            call.asked.clear()
        for call in waiting:
            if not call.is_asking and not call.is_over:
                self._ask(call)

    def _go_on(self) -> None:
        """Sends the calls that are ready and have no earlier call to wait for."""
        if self._is_going:
            self._goes_again = True
            return
        self._is_going = True
        try:
            while self._goes():
                pass
        finally:
            self._is_going = False

    def _goes(self) -> bool:
        """Sends ready calls once through the line. Returns whether more may have become ready meanwhile."""
        self._goes_again = False
        at, blocked = 0, 0
        while at < len(self._line) and blocked != EVERY_SLOT:
            call = self._line[at]
            if not call.is_ready or call.bits & (blocked | self.closed):
                blocked |= call.bits
                at += 1
                continue
            self._line.pop(at)
            self._line_bits = None
            try:
                self._bring(call)
            except PushqError as error:  # there is no key for its blocks now
                self._answer(call, error)
        return self._goes_again

    def _bring(self, call: _Call) -> None:
        """Sends a call that waited. Its blocks may be encoded for another place's partitions. Raises `PushqError`."""
        if call.messages and call.placed.messages == call.messages:
            self._tell(call, _all_placed(call))
            return
        queue, placed = self._queue, call.placed
        blocks = _without(call.blocks, placed)
        table = queue.slot_table
        parts = divided(blocks, queue.routing, table, call.number, queue.seal) if table is not None else []
        is_cut = sum(len(share.blocks) for share in parts) > len(blocks)
        if not is_cut:  # the leader there distributes them
            call.is_over = True
            self._send(call.number, blocks, call.reply, call.claim, call.until_ms, call.bits, placed)
            return
        if call.claim is not None:
            # The key is bound together with the messages; only encoding the call anew can divide them.
            detail = f"queue {queue.name!r} has moved to a cluster where it has other partitions; send again"
            raise Overloaded(detail, retry_after_ms=MOVED_RETRY_MS)
        call.is_over = True
        answer = Gathered(parts, call.reply)
        for number, share in enumerate(parts):
            rest = placed.among(share.numbers)
            told = partial(answer.told, number)
            self._send(call.number, share.blocks, told, None, call.until_ms, share.slots or call.bits, rest)

    # ------------------------------------------------------------------------------------------------- where it lay

    def _knowing(self, blocks: list[Block], claim: Claim | None) -> list[FormerPlace]:
        """The former places that may know some of the messages, or the key."""
        former = self._queue.definition.former
        if not former:
            return []
        if claim is not None:
            return list(former)
        has_ids = any(block.traits is not None and block.traits.ids is not None for block in blocks)
        if not has_ids or self._queue.config.dedupe == "none":
            return []
        slots = slot_bits(blocks, self._queue.routing) if any(one.slots for one in former) else 0
        return [one for one in former if not one.slots or unpacked(one.slots) & slots]

    def _ask(self, call: _Call) -> None:
        """Asks the next former place that has not said what it knows of a call; after the last, binds a key that is
        apart, or marks the call as ready."""
        queue = self._queue
        call.is_asking = False
        if call.bits & self.closed:
            return  # asked again in `_turned`, when the place of its slots is known
        former = next((one for one in self._knowing(call.blocks, call.claim) if one.place not in call.asked), None)
        if former is None:
            part = None if call.is_bound else self._key_apart(call.bits, call.claim)
            if part is not None:
                self._bind(call, part)
                return
            call.is_ready = True
            self._go_on()
            return
        place = former.place
        part = queue.part_at(place)
        if isinstance(part, PushqError):
            self._let_go(call, part)
            return
        call.is_asking, turns = True, self._turns

        def told(result: Published | PushqError) -> None:
            if call.is_over:
                return
            if turns != self._turns and isinstance(result, OnTheMove | QueueNotFound):
                self._ask(call)  # that place may know of the call by now
                return
            # A place where the queue no longer exists was forgotten: the window of all ids that it knew is over.
            if not isinstance(result, OnTheMove | QueueNotFound):
                if isinstance(result, PushqError) or not is_refused(result):
                    self._let_go(call, result)
                    return
                call.placed = call.placed.with_those_of(result, call.blocks)
            if turns == self._turns:
                call.asked.add(place)
            self._ask(call)

        if former.slots:  # the place may take publishes of other slots, but must store nothing of this call
            part.recall(call.blocks, call.claim, told)
        else:
            part.publish(call.blocks, told, call.claim, until_ms=call.until_ms)

    def _bind(self, call: _Call, part: RemoteQueue | ClusterAway) -> None:
        """Binds a call's key at the place of the key's own slot, because every repeat must ask in the same place. The
        call then goes on; wherever its messages go, each is remembered under the key."""
        if isinstance(part, PushqError):
            self._let_go(call, part)
            return
        assert call.claim is not None, "its key is apart"
        call.is_asking, turns, slot = True, self._turns, slot_of(call.claim.key)

        def told(result: Published | PushqError) -> None:
            if call.is_over:
                return
            if is_refused(result):
                call.is_asking = False
                if turns == self._turns:
                    self.closed |= 1 << slot
                    self._watch()
                    self._queue.refused_here()
                else:
                    self._ask(call)
            elif isinstance(result, PushqError):
                self._let_go(call, result)
            elif result.is_repeat:
                self._let_go(call, msgspec.structs.replace(result, count=call.messages))
            else:
                call.is_bound = turns == self._turns
                self._ask(call)

        part.publish([], told, call.claim, until_ms=call.until_ms)

    def _let_go(self, call: _Call, result: Published | PushqError) -> None:
        """Answers a call of which nothing was sent to the present place."""
        if call in self._line:
            self._line.remove(call)
            self._line_bits = None
        self._answer(call, result)
        self._go_on()

    def _answer(self, call: _Call, result: Published | PushqError) -> None:
        self._tell(call, _whole(result, call.placed, call.blocks))

    def _tell(self, call: _Call, result: Published | PushqError) -> None:
        call.is_over = True
        try:
            call.reply(result)
        except Exception:
            self._blame()

    def _blame(self) -> None:
        """Logs a bug of a listener: calls behind it must go on."""
        log.exception("a listener failed on what it was told", queue=self._queue.name)

    # ---------------------------------------------------------------------------------------------------- deadlines

    def _watch(self) -> None:
        if self._sweep is None:
            self._sweep = self._loop.call_later(SWEEP_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self._sweep = None
        now_ms = self._queue.own_ms()
        over = [call for call in self._line if call.until_ms <= now_ms]
        self._line = [call for call in self._line if call.until_ms > now_ms]  # first, so that none over is still sent
        self._line_bits = None
        for call in over:
            detail = f"queue {self._queue.name!r} is moving to another cluster and did not arrive in time"
            self._answer(call, Unavailable(detail, retry_after_ms=1_000))
        self._go_on()
        if self._line:
            self._watch()


def is_refused(result: Published | PushqError) -> bool:
    """Whether a place refused some of a call's messages because they belong to another place."""
    if isinstance(result, Published):
        return bool(result.others) and any(isinstance(one, OnTheMove) for one in (result.others or {}).values())
    return isinstance(result, OnTheMove)


def _named(one: Original, result: Published) -> Original:
    return one if one.partition is not None else one._replace(partition=result.partition)


def _whole(result: Published | PushqError, placed: _Placed, blocks: list[Block]) -> Published | PushqError:
    """Combines the answer of what was sent last with the answers that messages of the call had before."""
    if not placed.messages or (isinstance(result, Published) and result.is_repeat):
        return result
    if isinstance(result, PushqError):
        if not placed.stored:
            return placed.unknown or result
        count = sum(block.count for block in blocks)
        partition, _ = next(iter(placed.stored.values()))
        refused = {n: result for n in range(count) if n not in placed.stored and n not in placed.others}
        places = [placed.stored.get(n, (partition, -1)) for n in range(count)]
        return Published(partition, Offset(-1), count, places=places, others={**placed.others, **refused})
    places = list(places_of(result, blocks))
    for number, place in placed.stored.items():
        places[number] = place
    others = {n: one for n, one in (result.others or {}).items() if n not in placed.stored} | placed.others
    others = {n: _named(one, result) if isinstance(one, Original) else one for n, one in others.items()}
    return msgspec.structs.replace(result, bases=None, counts=None, places=places, others=others or None)


def _all_placed(call: _Call) -> Published | PushqError:
    others, stored = call.placed
    errors = [one for one in others.values() if isinstance(one, PushqError)]
    if len(errors) == call.messages:
        return call.placed.unknown or errors[0]
    places = [stored.get(n) or (_partition_of(others[n]), -1) for n in range(call.messages)]
    return Published(places[0][0], Offset(-1), call.messages, places=places, others=others or None)


def _partition_of(other: Original | PushqError) -> int:
    return 0 if isinstance(other, PushqError) else other.partition or 0


def _without(blocks: list[Block], placed: _Placed) -> list[Block]:
    """The blocks with the messages that have an answer punched out."""
    numbers = {*placed.others, *placed.stored}
    if not numbers:
        return blocks
    out, first = [], 0
    for block in blocks:
        bits = sum(1 << (n - first) for n in numbers if first <= n < first + block.count)
        first += block.count
        if bits and block.traits is None:
            block = msgspec.structs.replace(block, traits=Traits())  # a punched block needs traits
        out.append(punch(block, bits) if bits else block)
    return out
