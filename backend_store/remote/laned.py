"""A queue of a cluster of independent hosts: a lane at each of them, and one queue to whoever publishes and consumes.

A publish goes to a door, which places it. Messages come from all lanes, whose owners are each granted a share of what
consumers here would take. A receipt names its lane, so what is done with it goes to whoever owns that now.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from backend_store.client.dead_letters import LetterFilter
from backend_store.client.filters import PeekFilter
from backend_store.client.layout import PartitionInfo
from backend_store.client.peek import Place as PeekPlace
from backend_store.client.peek import check_cursor, encode_place
from backend_store.client.queue import PublishReply, Purge, SettledAndPublished, VerdictsReply
from backend_store.core.chunk import Blocks, Columns
from backend_store.core.leases import Holder, Lease
from backend_store.core.receipts import partition_of_token
from backend_store.core.slots import ANYWHERE, UNKEYED, Routing, SlotTable
from backend_store.core.split import Share, routed_blocks, shares
from backend_store.model import (
    Block,
    Claim,
    InvalidRequest,
    PeekPage,
    Published,
    PushqError,
    QueueDefinition,
    QueueNotFound,
    QueueStats,
    Unavailable,
    Verdict,
)
from backend_store.node.partitions import Gathered
from backend_store.remote.limits import SETTLE_MS_MAX
from backend_store.remote.line import Call
from backend_store.remote.queue import Look, RemoteQueue, is_known_again
from backend_store.remote.redrives import RemoteLetters
from backend_store.wire.store_frames import Placed, Publish, published, sent_blocks

if TYPE_CHECKING:
    from backend_store.remote.home import Home
    from backend_store.remote.store import RemoteBackends

_BEGIN = 255
"""In a cursor: no shelf, but all of a lane's messages from the first on."""


class LanedQueue(RemoteQueue):
    """See the file's first sentence. `lanes` has a queue for each, of that home alone."""

    def __init__(self, store: RemoteBackends, definition: QueueDefinition, *, owner: str, is_companion: bool = False):
        super().__init__(store, definition, owner=owner, is_companion=is_companion)
        self._cluster = store.cluster_of(definition)
        self.lanes = [
            RemoteQueue(store, definition, owner=owner, is_companion=is_companion, home=self._cluster.home(number))
            for number in range(self._cluster.lanes)
        ]
        self._turn = 0
        for lane in self.lanes:
            lane.on_ready(self._woken, lambda lane=lane: self._share_of(lane))  # type: ignore[misc]

    @property
    def homes(self) -> Sequence[Home]:
        return [lane.home for lane in self.lanes]

    def at(self, home: Home) -> RemoteQueue | None:
        is_of_lane = home.cluster is self._cluster and home.shard < len(self.lanes)
        return self.lanes[home.shard] if is_of_lane else None

    def redefined(self, definition: QueueDefinition) -> None:
        super().redefined(definition)
        for lane in self.lanes:
            lane.redefined(definition)

    def end(self) -> None:
        for one in self.lanes:
            one.end()
        super().end()

    def _lane_of(self, token: str) -> RemoteQueue:
        """The lane that a token names; what is no token is refused by any."""
        number = partition_of_token(token)
        return self.lanes[number if number is not None and number < len(self.lanes) else 0]

    # ------------------------------------------------------------------------------------------------------ publish

    @property
    def is_split(self) -> bool:
        return True

    @property
    def slot_table(self) -> SlotTable | None:
        return None

    @property
    def _routing(self) -> Routing:
        return Routing(is_strict=self.config.ordering == "strict")

    @property
    def _slots_of_bodies(self) -> int:
        """Of messages that are known by nothing, as bits."""
        slot = self._routing.slot()
        return 1 << (UNKEYED if slot is None else slot)

    def blocks(self, columns: Columns, trace: str | None) -> Blocks:
        return routed_blocks(columns, trace, self._routing, self._cluster.lane_slots)

    def publish(
        self, blocks: list[Block], reply: PublishReply, claim: Claim | None = None, *, until_ms: int = 0
    ) -> None:
        """One publish for each lane that has messages of the call, and one for what any lane may take."""
        parts = self._parts(blocks)
        if len(parts) == 1:
            self._send(parts[0], reply, claim, until_ms)
            return
        answer = Gathered(parts, reply)
        for number, share in enumerate(parts):
            self._send(share, lambda result, number=number: answer.told(number, result), claim, until_ms)  # type: ignore[misc]

    def _parts(self, blocks: list[Block]) -> list[Share]:
        """`ANYWHERE` stands for the lane of what any may take."""
        anywhere = Share(ANYWHERE, [], [], 1 << UNKEYED)
        keyed: list[Block] = []
        numbers: list[int] = []
        first = 0
        for block in blocks:
            if not block.slots and block.traits is None:  # bodies alone: whoever made it did not ask for their slot
                block = replace(block, slots=self._slots_of_bodies)
            if block.slots == 1 << UNKEYED:
                anywhere.blocks.append(block)
                anywhere.numbers.extend(range(first, first + block.count))
            else:
                keyed.append(block)
                numbers.extend(range(first, first + block.count))
            first += block.count
        found = shares(keyed, self._routing, self._cluster.lane_slots, 0, self._seal) if keyed else []
        found = [
            # A door goes by what blocks say of their slots.
            share._replace(
                blocks=[block if block.slots else replace(block, slots=share.slots) for block in share.blocks],
                numbers=[numbers[n] for n in share.numbers],
            )
            for share in found
        ]
        return [*found, anywhere] if anywhere.blocks or not found else found

    def _send(self, share: Share, reply: PublishReply, claim: Claim | None, until_ms: int) -> None:
        """To the home lane of what has a slot, once that lane has the queue: calls to it keep their order. To any door
        what has none, and where that host does not have the queue yet to the door of one that has."""
        if share.partition != ANYWHERE:
            lane = self.lanes[share.partition]
            if lane.home.has(lane.definition):
                self._bring(share, share.partition, reply, claim, until_ms)
            else:
                lane.home.when_there(lane.definition, lambda error: self._went_on(error, share, reply, claim, until_ms))
            return

        def told(result: Published | PushqError) -> None:
            there = next((n for n, lane in enumerate(self.lanes) if lane.home.has(lane.definition)), None)
            if isinstance(result, QueueNotFound) and not self.deleted and there is not None:
                self._bring(share, there, reply, claim, until_ms)
            else:
                reply(self._not_there_yet if isinstance(result, QueueNotFound) and not self.deleted else result)

        self._bring(share, None, told, claim, until_ms)

    @property
    def _not_there_yet(self) -> Unavailable:
        return Unavailable(f"queue {self.name!r} is not with all of its hosts yet", retry_after_ms=500)

    def _went_on(
        self, error: PushqError | None, share: Share, reply: PublishReply, claim: Claim | None, until_ms: int
    ) -> None:
        is_over = until_ms and self._store.steady_ms() >= until_ms
        if error is None and self.deleted:
            error = self.gone
        if error is None and is_over:
            error = self._not_there_yet
        if error is not None:
            reply(error)
        else:
            self._bring(share, share.partition, reply, claim, until_ms)

    def _bring(self, share: Share, lane: int | None, reply: PublishReply, claim: Claim | None, until_ms: int) -> None:
        line = self._cluster.doors.line_of(lane)
        budget_ms = until_ms - self._store.steady_ms() if until_ms else SETTLE_MS_MAX
        number = line.next_number()
        frame = Publish(number, budget_ms, self.tenant, self.name, self.uid, sent_blocks(share.blocks), claim)

        def done(result: Placed | PushqError) -> None:
            self._store.forget_looks(self.place_there)
            if isinstance(result, QueueNotFound) and not self.deleted and lane is not None:
                result = self._not_there_yet
            reply(published(result) if isinstance(result, Placed) else result)

        may_repeat = claim is not None or all(map(is_known_again, share.blocks))
        size = sum(len(block.data) for block in share.blocks)
        line.call(Call(frame, done, line.now_ms() + budget_ms, may_repeat, size, self._known_ms))

    def is_colocated_with(self, other: RemoteQueue) -> bool:
        return False

    def settle_and_publish(
        self,
        receipts: list[str],
        publishes: Sequence[tuple[RemoteQueue, list[Block]]],
        reply: Callable[[SettledAndPublished | PushqError], None],
    ) -> None:
        detail = f"queue {self.name!r}: a cluster of independent hosts has no acks that publish; publish, then ack"
        reply(InvalidRequest(detail))

    # ------------------------------------------------------------------------------------------------------- settle

    def settle(self, receipts: list[str], reply: VerdictsReply) -> None:
        self._judge(receipts, reply, lambda lane, some, told: lane.settle(some, told))

    def settle_quietly(self, receipts: list[str]) -> None:
        self._judge(receipts, _unheard, lambda lane, some, told: lane.settle_quietly(some))

    def give_back(
        self,
        receipts: list[str],
        delay_ms: int | None,
        reply: VerdictsReply,
        reason: str | None = None,
        *,
        tried: bool = True,
    ) -> None:
        def ask(lane: RemoteQueue, some: list[str], told: VerdictsReply) -> None:
            lane.give_back(some, delay_ms, told, reason, tried=tried)

        self._judge(receipts, reply, ask)

    def extend(self, receipts: list[str], visibility_ms: int, reply: VerdictsReply) -> None:
        self._judge(receipts, reply, lambda lane, some, told: lane.extend(some, visibility_ms, told))

    def _judge(
        self, receipts: list[str], reply: VerdictsReply, ask: Callable[[RemoteQueue, list[str], VerdictsReply], None]
    ) -> None:
        """Asks each lane about its own receipts. Where some lane's owner is away, its receipts alone have the error."""
        judge(receipts, self._lane_of, self.lanes[0], ask, reply)

    def settle_lease(self, lease: Lease) -> None:
        self._lane_of(lease.token).settle_lease(lease)

    def give_back_lease(self, lease: Lease) -> None:
        self._lane_of(lease.token).give_back_lease(lease)

    def unsent(self, lease: Lease) -> None:
        self._lane_of(lease.token).unsent(lease)

    def undeliverable(self, lease: Lease) -> None:
        self._lane_of(lease.token).undeliverable(lease)

    def end_unreadable(self, lease: Lease) -> None:
        self._lane_of(lease.token).end_unreadable(lease)

    # ----------------------------------------------------------------------------------------------------- delivery

    def take(self, limit: int, holder: Holder, visibility_ms: int) -> Lease | None:
        """From one lane after the other."""
        for _ in self.lanes:
            self._turn += 1
            lane = self.lanes[self._turn % len(self.lanes)]
            if (lease := lane.take(limit, holder, visibility_ms)) is not None:
                return lease
        return None

    @property
    def has_ready(self) -> bool:
        return any(lane.has_ready for lane in self.lanes)

    @property
    def ready(self) -> int:
        return sum(lane.ready for lane in self.lanes)

    @property
    def is_looking(self) -> bool:
        return any(lane.is_looking for lane in self.lanes)

    async def next_look(self) -> None:
        """Of whoever is asked; a lane without an owner keeps nobody waiting."""
        looking = [asyncio.ensure_future(lane.next_look()) for lane in self.lanes if lane.is_looking]
        try:
            await asyncio.wait(looking, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for look in looking:
                look.cancel()
            await asyncio.gather(*looking, return_exceptions=True)

    def wanted_changed(self) -> None:
        for lane in self.lanes:
            lane.wanted_changed()

    def waiting_for(self, visibility_ms: int) -> int:
        return sum(lane.waiting_for(visibility_ms) for lane in self.lanes)

    def _woken(self) -> None:
        self._wake()

    def _share_of(self, lane: RemoteQueue) -> Mapping[int, int]:
        """What a lane's owner is granted of what consumers here would take beyond what has come from the others: a
        share, and at least one message, for all that is ready may lie in one lane."""
        found = {}
        for visibility_ms, wanted in self._wanted().items():
            here = sum(other.waiting_for(visibility_ms) for other in self.lanes if other is not lane)
            if (rest := wanted - here) > 0:
                found[visibility_ms] = -(-rest // len(self.lanes))
        return found

    # ------------------------------------------------------------------------------------------------ administration

    @property
    def layout(self) -> list[PartitionInfo] | None:
        known = super().layout
        homes = Counter(self._cluster.lane_slots.owners)
        return known and [dataclasses.replace(one, slots=homes[one.partition]) for one in known]

    def dead_letters(self, wanted: LetterFilter, to: str | None, *, own: bool) -> RemoteLetters:
        raise InvalidRequest(f"queue {self.owner!r}: a cluster of independent hosts has no redrives yet")

    async def peek(self, wanted: PeekFilter) -> PeekPage:
        """One lane after the other; a page ends where its lane does."""
        floor = self.definition.floor
        place = check_cursor(wanted.cursor) if wanted.cursor is not None else PeekPlace(_BEGIN, floor)
        cursor = None if place.shelf == _BEGIN else wanted.cursor
        found = PeekPage([], None, 0)
        for number, lane in enumerate(self.lanes[place.partition :], place.partition):
            page = await lane.peek(dataclasses.replace(wanted, limit=wanted.limit - len(found.items), cursor=cursor))
            found = PeekPage([*found.items, *page.items], page.next, found.scanned + page.scanned)
            cursor = None
            if page.next is not None:
                break
            if len(found.items) >= wanted.limit and number + 1 < len(self.lanes):
                return dataclasses.replace(found, next=encode_place(PeekPlace(_BEGIN, floor, number + 1)))
        return found

    def held_by(self, partition: int, offset: int) -> Lease | None:
        found = (lane.held_by(partition, offset) for lane in self.lanes)
        return next((lease for lease in found if lease is not None), None)

    async def purge(self, purge_id: str) -> Purge:
        """Of all lanes; an error says that some may be purged and some not."""
        done = await asyncio.gather(*(lane.purge(purge_id) for lane in self.lanes))
        purge = self.purges[purge_id] = Purge(purge_id, sum(one.total for one in done))
        return purge

    async def cancel(self, message_id: str) -> str:
        """By the lane that has it, which its id does not always say."""
        outcome = "unknown"
        for lane in self.lanes:
            outcome = await lane.cancel(message_id)
            if outcome != "unknown":
                break
        return outcome


Part = TypeVar("Part")


def judge(
    receipts: list[str],
    of: Callable[[str], Part],
    anyone: Part,
    ask: Callable[[Part, list[str], VerdictsReply], None],
    reply: VerdictsReply,
) -> None:
    """Asks each part of a queue about its own receipts; `of` says whose a token is, and `anyone` is asked about none.

    Where some part does not answer, its receipts alone have the error.
    """
    found: dict[Part, list[int]] = {}
    for number, receipt in enumerate(receipts):
        found.setdefault(of(receipt[:-2]), []).append(number)
    if len(found) <= 1:
        ask(next(iter(found), anyone), receipts, reply)
        return
    answers: dict[int, Verdict] = {}
    errors: list[PushqError] = []

    def told(numbers: list[int], result: list[Verdict] | PushqError) -> None:
        if isinstance(result, PushqError):
            errors.append(result)
            result = [Verdict(False, result.code)] * len(numbers)
        answers.update(zip(numbers, result, strict=True))
        if len(answers) == len(receipts):
            is_refused = len(errors) == len(found)
            reply(errors[0] if is_refused else [answers[number] for number in range(len(receipts))])

    for part, numbers in found.items():
        some = [receipts[number] for number in numbers]
        ask(part, some, lambda result, numbers=numbers: told(numbers, result))  # type: ignore[misc]


def whole_look(looks: Sequence[Look]) -> Look:
    """The numbers of a queue from those of its lanes, or of the clusters that it lies in."""
    first, *others = looks
    if not others:
        return first
    stats = {name: sum(getattr(one.stats, name) for one in looks) for name in QueueStats.__dataclass_fields__}
    stats["oldest_age_ms"] = max(one.stats.oldest_age_ms for one in looks)
    ended: Counter[str] = Counter()
    for one in looks:
        ended.update(one.ended)
    layout = [info for one in looks for info in one.layout or ()]
    layout.sort(key=lambda info: info.partition)
    has_layout = any(one.layout is not None for one in looks)
    held = sum(one.held for one in looks)
    return Look(first.place, QueueStats(**stats), dict(ended), layout if has_layout else None, held)


def _unheard(result: Any) -> None:
    """Nobody waits for this."""
