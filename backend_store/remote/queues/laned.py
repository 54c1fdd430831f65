"""A queue in a cluster of independent hosts: a lane at each host, presented as one queue to publishers and consumers.

A publish goes to a host's door (its entry point for publishes of all lanes), which places it in a lane. Consumers
receive from all lanes; the owner of each is granted a share of their credit. A receipt names its lane, so a settlement
goes to the lane's present owner.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from backend_store.client.filters import PeekFilter
from backend_store.client.layout import PartitionInfo
from backend_store.client.peek import Place as PeekPlace
from backend_store.client.peek import check_cursor, encode_place
from backend_store.client.queue import PublishReply, SettledAndPublished
from backend_store.core.leases.receipts import partition_of_token
from backend_store.core.partitions.routing import Share, shares
from backend_store.core.partitions.slots import ANYWHERE, UNKEYED, SlotTable, slot_of
from backend_store.model import (
    Block,
    Claim,
    InvalidRequest,
    PeekPage,
    Published,
    PushqError,
    QueueDefinition,
    QueueNotFound,
    Unavailable,
)
from backend_store.node.partitions import Gathered
from backend_store.remote.limits import SETTLE_MS_MAX
from backend_store.remote.line.line import Call
from backend_store.remote.queues.parted import PartedQueue, recalled
from backend_store.remote.queues.queue import RemoteQueue, is_known_again
from backend_store.wire.store_frames import Placed, Publish, published, sent_blocks

if TYPE_CHECKING:
    from backend_store.remote.home import Home
    from backend_store.remote.store import RemoteBackends

_BEGIN = 255
"""In a cursor, in place of a shelf: the beginning of a lane."""


class LanedQueue(PartedQueue):
    """One queue over all lanes of a cluster. `lanes` has a queue object for each lane, at that lane's home."""

    def __init__(self, store: RemoteBackends, definition: QueueDefinition, *, owner: str, is_companion: bool = False):
        super().__init__(store, definition, owner=owner, is_companion=is_companion)
        self._cluster = store.cluster_of(definition)
        self.lanes = [
            RemoteQueue(store, definition, owner=owner, is_companion=is_companion, home=self._cluster.home(number))
            for number in range(self._cluster.lanes)
        ]
        self.pieces = self.lanes
        for lane in self.lanes:
            self._joined(lane)

    @property
    def homes(self) -> Sequence[Home]:
        return [lane.home for lane in self.lanes]

    def at(self, home: Home) -> RemoteQueue | None:
        is_of_lane = home.cluster is self._cluster and home.shard < len(self.lanes)
        return self.lanes[home.shard] if is_of_lane else None

    def takes_at(self, home: Home) -> bool:
        return self.at(home) is not None

    def redefined(self, definition: QueueDefinition) -> None:
        super().redefined(definition)
        for lane in self.lanes:
            lane.redefined(definition)

    def end(self) -> None:
        for one in self.lanes:
            one.end()
        super().end()

    @property
    def _delivering(self) -> Sequence[RemoteQueue]:
        return self.lanes

    @property
    def _anyone(self) -> RemoteQueue:
        return self.lanes[0]

    def _part_of(self, token: str) -> RemoteQueue:
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
    def encoding_table(self) -> SlotTable:
        return self._cluster.lane_slots

    @property
    def _slots_of_bodies(self) -> int:
        """The slots, as bits, of messages without key, id and other traits."""
        slot = self.routing.slot()
        return 1 << (UNKEYED if slot is None else slot)

    def publish(
        self, blocks: list[Block], reply: PublishReply, claim: Claim | None = None, *, until_ms: int = 0
    ) -> None:
        """Sends one publish to each lane that has messages of the call, and one for messages that any lane may take. A
        `claim` without messages goes to the lane of its slot."""
        if claim is not None and not blocks:
            parts = [Share(self._cluster.lane_slots.owners[slot_of(claim.key)], [], [], 0)]
        else:
            parts = self._parts(blocks)
        if len(parts) == 1:
            self._send(parts[0], reply, claim, until_ms)
            return
        answer = Gathered(parts, reply)
        for number, share in enumerate(parts):
            self._send(share, lambda result, number=number: answer.told(number, result), claim, until_ms)  # type: ignore[misc]

    def _parts(self, blocks: list[Block]) -> list[Share]:
        """Splits a call by lane; `ANYWHERE` stands for messages that any lane may take."""
        anywhere = Share(ANYWHERE, [], [], 1 << UNKEYED)
        keyed: list[Block] = []
        numbers: list[int] = []
        first = 0
        for block in blocks:
            if not block.slots and block.traits is None:  # bodies alone: the encoder did not compute their slot
                block = replace(block, slots=self._slots_of_bodies)
            if block.slots == 1 << UNKEYED:
                anywhere.blocks.append(block)
                anywhere.numbers.extend(range(first, first + block.count))
            else:
                keyed.append(block)
                numbers.extend(range(first, first + block.count))
            first += block.count
        found = shares(keyed, self.routing, self._cluster.lane_slots, 0, self.seal) if keyed else []
        found = [
            # A door routes blocks by their `slots`.
            share._replace(
                blocks=[block if block.slots else replace(block, slots=share.slots) for block in share.blocks],
                numbers=[numbers[n] for n in share.numbers],
            )
            for share in found
        ]
        return [*found, anywhere] if anywhere.blocks or not found else found

    def _send(self, share: Share, reply: PublishReply, claim: Claim | None, until_ms: int) -> None:
        """Sends messages with a slot to their lane, once that lane has the queue, so that its calls keep their order.
        Sends messages without a slot to any door; if that host does not have the queue yet, to one that has."""
        if share.partition != ANYWHERE:
            lane = self.lanes[share.partition]
            if lane.home.adopted.has(lane.definition):
                self._bring(share, share.partition, reply, claim, until_ms)
            else:
                lane.home.adopted.when_there(
                    lane.definition,
                    lambda error: self._went_on(error, share, reply, claim, until_ms),
                    until_ms=until_ms,
                )
            return

        def told(result: Published | PushqError) -> None:
            there = next((n for n, lane in enumerate(self.lanes) if lane.home.adopted.has(lane.definition)), None)
            if isinstance(result, QueueNotFound) and not self.deleted and there is not None:
                self._bring(share, there, reply, claim, until_ms)
            else:
                reply(self._not_there_yet if isinstance(result, QueueNotFound) and not self.deleted else result)

        self._bring(share, None, told, claim, until_ms)

    @property
    def _not_there_yet(self) -> Unavailable:
        return Unavailable(f"queue {self.name!r} is not known to all of its hosts yet", retry_after_ms=500)

    def _went_on(
        self, error: PushqError | None, share: Share, reply: PublishReply, claim: Claim | None, until_ms: int
    ) -> None:
        is_over = until_ms and self._store.own_ms() >= until_ms
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
        budget_ms = until_ms - self._store.own_ms() if until_ms else SETTLE_MS_MAX
        number = line.next_number()
        frame = Publish(
            number, budget_ms, self.tenant, self.name, self.uid, sent_blocks(share.blocks), claim, self.told
        )

        def done(result: Placed | PushqError) -> None:
            self._store.forget_looks(self.place_there)
            if isinstance(result, QueueNotFound) and not self.deleted and lane is not None:
                result = self._not_there_yet
            reply(published(result) if isinstance(result, Placed) else result)

        may_repeat = claim is not None or all(map(is_known_again, share.blocks))
        size = sum(len(block.data) for block in share.blocks)
        line.call(Call(frame, done, line.now_ms() + budget_ms, may_repeat, size, self._known_ms))

    def recall(self, blocks: list[Block], claim: Claim | None, reply: PublishReply) -> None:
        """Asks all lanes what they remember of a call's messages; see `recalled`."""
        results: dict[int, Published | PushqError] = {}

        def told(lane: int, result: Published | PushqError) -> None:
            results[lane] = result
            if len(results) == len(self.lanes):
                reply(recalled([results[number] for number in range(len(self.lanes))]))

        for number, lane in enumerate(self.lanes):
            lane.recall(blocks, claim, partial(told, number))

    def is_colocated_with(self, other: RemoteQueue) -> bool:
        return False

    def settle_and_publish(
        self,
        receipts: list[str],
        publishes: Sequence[tuple[RemoteQueue, list[Block]]],
        reply: Callable[[SettledAndPublished | PushqError], None],
    ) -> None:
        detail = f"queue {self.name!r}: independent hosts do not support acks that publish; publish, then ack"
        reply(InvalidRequest(detail))

    # ------------------------------------------------------------------------------------------------ administration

    @property
    def layout(self) -> list[PartitionInfo] | None:
        known = super().layout
        homes = Counter(self._cluster.lane_slots.owners)
        return known and [dataclasses.replace(one, slots=homes[one.partition]) for one in known]

    async def peek(self, wanted: PeekFilter) -> PeekPage:
        """Reads one lane after the other; a page may span several lanes."""
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
