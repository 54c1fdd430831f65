"""A queue at a gateway of several clusters: one queue to publishers and consumers, made of a part for each place that
has or had it.

A publish goes to the present place; if the queue is split, each message goes to the place of its slot (`routes`).
`turnover` handles publishes while places change. Consumers receive messages from all places. Each place assigns offsets
from a range of its own, so a receipt tells which place has its message.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from backend_store.client.dead_letters import LetterFilter
from backend_store.client.filters import PeekFilter
from backend_store.client.queue import PublishReply, Purge, SettledAndPublished, VerdictsReply
from backend_store.core.leases.receipts import claimed_fields
from backend_store.core.partitions.slots import SlotTable, slot_of
from backend_store.metadata.relocation import Spot, as_known_in
from backend_store.metadata.sharing import known_places, leaving_bits, moved_slots, open_places
from backend_store.model import (
    Block,
    Claim,
    ClusterAway,
    InvalidRequest,
    PeekPage,
    PushqError,
    QueueDefinition,
    QueueStats,
    Unavailable,
    Whereabouts,
)
from backend_store.node.partitions import Gathered
from backend_store.remote.limits import MOVE_RETRY_SECONDS, MOVE_RETRY_SECONDS_MAX, MOVE_SETTLE_SECONDS_MAX
from backend_store.remote.queues.laned import LanedQueue
from backend_store.remote.queues.parted import Ask, PartedQueue
from backend_store.remote.queues.queue import RemoteQueue
from backend_store.remote.queues.routes import Bound, Routes
from backend_store.remote.queues.turnover import Turnover
from backend_store.remote.redrives.whole_redrives import WholeLetters

if TYPE_CHECKING:
    from backend_store.remote.home import Home
    from backend_store.remote.store import RemoteBackends

_PLACE = "~"
"""In a cursor, encloses the floor of a place."""


class PlacedQueue(PartedQueue):
    """The whole of a queue in several places. `pieces` has a queue for each place, those that take publishes first."""

    def __init__(self, store: RemoteBackends, definition: QueueDefinition, *, owner: str, is_companion: bool = False):
        """Raises `ClusterAway` if none of its places can be reached."""
        super().__init__(store, definition, owner=owner, is_companion=is_companion, home=_any_home(store, definition))
        self.pieces: list[RemoteQueue] = []
        self._at: dict[Whereabouts, RemoteQueue] = {}
        self._missing: dict[Whereabouts, ClusterAway] = {}
        """Places out of reach: their clusters have not been met, or are not those of their name."""
        self._routes: Routes | None = None
        """Where messages go; set if the queue is split."""
        self._is_retrying = False
        self._refusals = 0
        """How often publishes were refused since the last change of the definition."""
        self._turnover = Turnover(self)
        self._place_parts()

    @property
    def current(self) -> RemoteQueue:
        """The part that publishes go to; of several, the first."""
        return self.pieces[0]

    @property
    def homes(self) -> Sequence[Home]:
        return [home for part in self.pieces for home in part.homes]

    def at(self, home: Home) -> RemoteQueue | None:
        found = (part.at(home) for part in self.pieces)
        return next((part for part in found if part is not None), None)

    def takes_at(self, home: Home) -> bool:
        takers = (self._at.get(one.place) for one in open_places(self.definition))
        return any(part is not None and part.takes_at(home) for part in takers)

    def part_at(self, place: Whereabouts) -> RemoteQueue | ClusterAway:
        """The part at a place; the error if its cluster has not been met, or is not the one of its name."""
        if (found := self._at.get(place)) is not None:
            return found
        try:
            return self._made(place)
        except ClusterAway as error:
            return error

    def redefined(self, definition: QueueDefinition) -> None:
        before = self.definition
        super().redefined(definition)
        self._refusals = 0
        self._place_parts()
        if not self.is_companion and (moved := moved_slots(before, definition)):
            self._turnover.hold(moved)
            self._store.background(self._settle_in())
        self._wake()
        for part in self.pieces:
            part.wanted_changed()

    def met(self) -> None:
        """Called when a cluster that was away at the start is there: serves the parts in it."""
        self._place_parts()
        self.wanted_changed()

    def _place_parts(self) -> None:
        definition = self.definition
        open_now = open_places(definition)
        places = list(dict.fromkeys(one.place for one in known_places(definition)))
        self._missing.clear()
        for place in places:
            if (part := self._at.get(place)) is not None:
                part.redefined(self._as_of(place))
                continue
            try:
                self._at[place] = self._made(place)
            except ClusterAway as error:  # a former place that is away must not block the present one
                self._missing[place] = error
        parts = [self._at[place] for place in places if place in self._at]
        for place in [place for place in self._at if place not in places and parts]:
            self._at.pop(place).end()
        self.pieces = parts or self.pieces
        self.home = self.current.home
        if len(open_now) > 1:
            takers = [self._at.get(one.place) or self._missing[one.place] for one in open_now]
            self._routes = Routes(open_now, takers, self.routing, leaving_bits(definition))
        else:
            self._routes = None

    def check_there(self) -> None:
        """Raises `ClusterAway` if no place that takes publishes can be reached. One is enough: messages of the others
        come when their clusters are back."""
        places = [one.place for one in open_places(self.definition)]
        there = [part for place in places if (part := self._at.get(place)) is not None]
        if any(not home.line.is_away for part in there for home in part.homes):
            return
        if not there:
            raise self._missing[places[0]]
        super().check_there()

    def _check_all_there(self) -> None:
        """Raises `ClusterAway` if an answer would not cover all places."""
        for away in self._missing.values():
            raise away

    def _as_of(self, place: Whereabouts) -> QueueDefinition:
        cluster = self._store.clusters.get(place.cluster)
        spot = cluster.spot(place.shard) if cluster is not None else Spot(*place, is_lane=False)
        known = as_known_in(self.definition, spot)
        return msgspec.structs.replace(known, cluster=place.cluster, shard=place.shard)

    def _made(self, place: Whereabouts) -> RemoteQueue:
        """Makes the part at a place. Raises `ClusterAway`."""
        part = self._part(self._as_of(place))
        part.whole = self
        for one in part.lanes if isinstance(part, LanedQueue) else ():
            one.whole = self
        self._joined(part)
        return part

    def _part(self, definition: QueueDefinition) -> RemoteQueue:
        """Makes the queue object for one place. Raises `ClusterAway`."""
        kind = LanedQueue if self._store.cluster_of(definition).has_lanes_of(definition) else RemoteQueue
        return kind(self._store, definition, owner=self.owner, is_companion=self.is_companion)

    def end(self) -> None:
        super().end()
        self._turnover.end(self.gone)
        for part in self.pieces:
            part.end()

    def _part_of(self, token: str) -> RemoteQueue:
        definition = self.definition
        is_whole = not definition.former and not definition.beside
        if is_whole or (fields := claimed_fields(token)) is None:
            return self.current
        floors = {one.floor: one.place for one in known_places(definition)}
        place = floors[max((floor for floor in floors if floor <= fields.base), default=min(floors))]
        if (away := self._missing.get(place)) is not None:
            raise away
        return self._at[place]

    @property
    def _anyone(self) -> RemoteQueue:
        return self.current

    # ------------------------------------------------------------------------------------------------------ publish

    @property
    def is_apart(self) -> bool:
        """Whether several places take publishes."""
        return self._routes is not None

    @property
    def is_split(self) -> bool:
        return self._routes is not None or self.current.is_split

    @property
    def slot_table(self) -> SlotTable | None:
        return self._routes.encoding if self._routes is not None else self.current.slot_table

    @property
    def encoding_table(self) -> SlotTable | None:
        return self._routes.encoding if self._routes is not None else self.current.encoding_table

    def own_ms(self) -> int:
        return self._store.own_ms()

    def publish(
        self, blocks: list[Block], reply: PublishReply, claim: Claim | None = None, *, until_ms: int = 0
    ) -> None:
        if self._routes is None and (away := self._missing.get(self.definition.place)) is not None:
            reply(away)
            return
        self._turnover.publish(blocks, reply, claim, until_ms)

    def bring(
        self, blocks: list[Block], reply: PublishReply, claim: Claim | None, until_ms: int, *, number: int
    ) -> None:
        """Sends a call to the places of its messages. Each place binds the idempotency key with the messages it gets;
        if the key's own slot is elsewhere, the caller has bound it there before. `number`: of the call; messages that
        may go anywhere are distributed by it in rotation."""
        if self._routes is None:
            self.current.publish(blocks, reply, claim, until_ms=until_ms)
            return
        try:
            bound = self._routes.bound(blocks, number, self.seal)
        except PushqError as error:
            reply(error)
            return
        _bring(bound, reply, claim, until_ms)

    def key_apart(self, claim: Claim, bits: int) -> RemoteQueue | ClusterAway | None:
        """The part where an idempotency key must be bound by itself before messages with these slots are sent, because
        some of them go to another place than the key. None: the key is bound together with the messages."""
        return None if self._routes is None else self._routes.apart_from(slot_of(claim.key), bits)

    @property
    def publishes_waiting(self) -> int:
        """The number of calls that wait for the queue's new place, or for what former places know of them."""
        return self._turnover.waiting

    def refused_here(self) -> None:
        """Called when the present place refused publishes. Unless the definition says that they are leaving it, tells
        the place of the definition after a pause and has them sent again."""
        if not self._is_retrying:
            self._is_retrying = True
            self._refusals += 1
            self._store.background(self._retry())

    async def _retry(self) -> None:
        await asyncio.sleep(min(MOVE_RETRY_SECONDS * 2**self._refusals, MOVE_RETRY_SECONDS_MAX))
        # Without the home cluster, the definition that explains the refusal may be missing: nothing is sent until then.
        while not self._store.first.line.is_open and not self.deleted:  # noqa: ASYNC110 - a line has no event for this
            await asyncio.sleep(MOVE_RETRY_SECONDS_MAX)
        self._is_retrying = False
        if not self.deleted and self._turnover.closed & ~leaving_bits(self.definition):
            await self._settle_in()

    async def _settle_in(self) -> None:
        """Sends publishes to the present places once their shards know of the queue, or after
        `MOVE_SETTLE_SECONDS_MAX`."""
        takers = [self._at.get(one.place) for one in open_places(self.definition)]
        homes = {home for part in takers if part is not None for home in part.homes if not home.is_first}
        told = [asyncio.ensure_future(_adopted(home, self.definition)) for home in homes]
        if told:
            await asyncio.wait(told, timeout=MOVE_SETTLE_SECONDS_MAX)
        self._turnover.turn(leaving_bits(self.definition))
        for one in told:
            await one

    def is_colocated_with(self, other: RemoteQueue) -> bool:
        return self._routes is None and self.current.is_colocated_with(other)

    def settle_and_publish(
        self,
        receipts: list[str],
        publishes: Sequence[tuple[RemoteQueue, list[Block]]],
        reply: Callable[[SettledAndPublished | PushqError], None],
    ) -> None:
        if self._routes is not None:
            detail = (
                f"queue {self.name!r} is split over several clusters, which do not support acks that publish; "
                "publish, then ack"
            )
            reply(InvalidRequest(detail))
            return
        try:
            is_current = all(self._part_of(receipt[:-2]) is self.current for receipt in receipts)
        except ClusterAway as away:
            reply(away)
            return
        if not is_current or self.definition.moving_to is not None:
            detail = (
                f"queue {self.name!r} is moving to another cluster, so an ack cannot publish in one step; publish, "
                "then ack"
            )
            reply(Unavailable(detail, retry_after_ms=1_000))
            return
        self.current.settle_and_publish(receipts, publishes, reply)

    # ------------------------------------------------------------------------------------------------------- settle

    def _judge(self, receipts: list[str], reply: VerdictsReply, ask: Ask) -> None:
        if self.definition.former or self.definition.beside:
            super()._judge(receipts, reply, ask)
        else:
            ask(self.current, receipts, reply)

    # ----------------------------------------------------------------------------------------------------- delivery

    @property
    def _delivering(self) -> list[RemoteQueue]:
        """The parts that deliver to consumers; in strict order, only those that no older messages come before."""
        former = [one for one in self.definition.former if not one.slots]  # moved slots wait at their new place
        if self.is_companion or self.config.ordering != "strict" or all(one.is_settled for one in former):
            return self.pieces
        # The oldest place that is not settled holds back all later ones.
        oldest = next(one.place for one in reversed(former) if not one.is_settled)
        at = next((at for at, part in enumerate(self.pieces) if part.definition.place == oldest), len(self.pieces))
        return self.pieces[at:]

    # ------------------------------------------------------------------------------------------------ administration

    def stats(self) -> QueueStats:
        """The sum over all places. Raises `LookingUp`, and `ClusterAway`."""
        self._check_all_there()
        return super().stats()

    def dead_letters(self, wanted: LetterFilter, to: str | None, *, own: bool) -> WholeLetters:
        self._check_all_there()
        return super().dead_letters(wanted, to, own=own)

    async def peek(self, wanted: PeekFilter) -> PeekPage:
        """Reads one place after the other, lowest offsets first; a page may span several. A cursor names its place by
        the place's floor; a cursor without a floor is from before the queue moved."""
        self._check_all_there()
        parts = sorted(self.pieces, key=lambda part: part.definition.floor)
        floor, cursor = _read(wanted.cursor)
        if len(parts) == 1:
            is_of_it = floor is None or floor == parts[0].definition.floor
            return await parts[0].peek(dataclasses.replace(wanted, cursor=cursor if is_of_it else None))
        at = next(
            (n for n, part in enumerate(parts) if floor is None or part.definition.floor >= floor), len(parts) - 1
        )
        if floor is not None and parts[at].definition.floor != floor:
            cursor = None  # the cursor's place has nothing left
        found = PeekPage([], None, 0)
        for number, part in enumerate(parts[at:], at):
            page = await part.peek(dataclasses.replace(wanted, limit=wanted.limit - len(found.items), cursor=cursor))
            found = PeekPage([*found.items, *page.items], None, found.scanned + page.scanned)
            cursor = None
            if page.next is not None:
                return dataclasses.replace(found, next=_written(part.definition.floor, page.next))
            if len(found.items) >= wanted.limit and number + 1 < len(parts):
                return dataclasses.replace(found, next=_written(parts[number + 1].definition.floor, ""))
        return found

    async def purge(self, purge_id: str) -> Purge:
        self._check_all_there()
        return await super().purge(purge_id)

    async def cancel(self, message_id: str) -> str:
        outcome = await super().cancel(message_id)
        if outcome == "unknown":
            self._check_all_there()
        return outcome


def _any_home(store: RemoteBackends, definition: QueueDefinition) -> Home:
    """The home shard at the first place that can be reached. Raises `ClusterAway`."""
    away: ClusterAway | None = None
    for one in open_places(definition):
        there = msgspec.structs.replace(definition, cluster=one.cluster, shard=one.shard)
        try:
            return store.cluster_of(there).home(one.shard)
        except ClusterAway as error:
            away = away or error
    assert away is not None, "a queue has a place"
    raise away


def _bring(bound: Sequence[Bound], reply: PublishReply, claim: Claim | None, until_ms: int) -> None:
    if len(bound) == 1:
        _publish(bound[0], reply, claim, until_ms)
        return
    answer = Gathered([one.share for one in bound], reply)
    for number, one in enumerate(bound):
        _publish(one, partial(answer.told, number), claim, until_ms)


def _publish(one: Bound, reply: PublishReply, claim: Claim | None, until_ms: int) -> None:
    if isinstance(one.part, ClusterAway):
        reply(one.part)
    else:
        one.part.publish(one.share.blocks, reply, claim, until_ms=until_ms)


def _written(floor: int, cursor: str) -> str:
    """Makes a cursor for one of several places; `cursor` "": at its beginning."""
    return f"{_PLACE}{floor:x}{_PLACE}{cursor}"


def _read(cursor: str | None) -> tuple[int | None, str | None]:
    """(floor of the place, cursor there). Raises `InvalidRequest`."""
    if cursor is None or not cursor.startswith(_PLACE):
        return None, cursor
    floor, _, rest = cursor[1:].partition(_PLACE)
    try:
        return int(floor, 16), rest or None
    except ValueError:
        raise InvalidRequest("invalid peek cursor") from None


async def _adopted(home: Home, definition: QueueDefinition) -> None:
    with suppress(PushqError):
        await home.adopted.tell([definition])
