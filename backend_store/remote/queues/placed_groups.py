"""A consumer group of a stream that has moved: one group to consumers, made of a group in each of the stream's places.

A group continues in the next place once it has settled all messages of the last one, which takes no more publishes by
then; with leases and without strict order, at once. The group's row in a place enables delivery there: without a row,
nothing is delivered from that place to any gateway. Any gateway that finds that the group may continue makes the row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import structlog

from backend_store.client.groups import GroupInfo, GroupLag
from backend_store.client.queue import SettledAndPublished
from backend_store.client.streams import Gap
from backend_store.core.leases.leases import Holder, Lease
from backend_store.model import Block, NotFound, PushqError
from backend_store.node.views.group import Mode
from backend_store.remote.limits import GROUP_LOOK_SECONDS
from backend_store.remote.queues.parted import PartedQueue
from backend_store.remote.queues.queue import RemoteQueue
from backend_store.remote.queues.streams import RemoteGroup
from backend_store.service.groups import Seen

if TYPE_CHECKING:
    from backend_store.remote.home import Home
    from backend_store.remote.queues.placed_streams import PlacedStream

log = structlog.get_logger("pushq.remote")


class PlacedGroup(PartedQueue):
    """The whole of a group; its `PlacedStream` owns it. `pieces` has a group for each place that has its row, the
    oldest first."""

    def __init__(self, stream: PlacedStream, name: str, mode: Mode):
        super().__init__(stream._store, stream.definition, owner=stream.owner, home=stream.home)
        self.stream = stream
        self.pieces: list[RemoteQueue] = []
        self.place_there = self.place_there._replace(group=name)
        self._name = name
        self._mode: Mode = mode
        self._tell_gap: Callable[[], None] = _nothing
        self._follows = False

    def come(self, groups: Sequence[RemoteGroup]) -> None:
        """Replaces the parts by `groups`, which are all that the group has now."""
        before, self.pieces = self.pieces, list(groups)
        for group in groups:
            group.whole = self
            if group not in before:
                group.on_gap(self._tell_gap)
                self._joined(group)
        if list(groups) != before:
            self.wanted_changed()
            self._wake()
        self.follow()

    @property
    def in_places(self) -> list[RemoteGroup]:
        return [piece for piece in self.pieces if isinstance(piece, RemoteGroup)]

    # --------------------------------------------------------------------------------------------- from place to place

    @property
    def consumers(self) -> int:
        return self._consumers

    @consumers.setter
    def consumers(self, count: int) -> None:
        self._consumers = count
        self._store.touch(self.uid)
        self.follow()

    def follow(self) -> None:
        """Starts to check whether the group may continue in the next place, if it has consumers here."""
        if not self._follows and self._is_awaited:
            self._follows = True
            self.background(self._follow())

    @property
    def _is_awaited(self) -> bool:
        return not self.deleted and self.consumers > 0 and not self.stream.has_all_of(self.pieces)

    async def _follow(self) -> None:
        try:
            while self._is_awaited:
                try:
                    await self.stream.look_after(self)
                except PushqError as error:
                    log.debug("a group waits where it is", queue=self.name, group=self._name, reason=error.detail)
                await asyncio.sleep(GROUP_LOOK_SECONDS)
        finally:
            self._follows = False

    def piece_gone(self, piece: RemoteQueue) -> None:
        """Called when the group was deleted in one place: either in all, or because it is reset to begin in an earlier
        one."""
        self.pieces = [one for one in self.pieces if one is not piece]
        if not self.pieces:
            self.stream.group_ended(self._name)
        self.follow()

    # --------------------------------------------------------------------------------------------------- what it is

    @property
    def root(self) -> RemoteQueue:
        return self.stream

    @property
    def group(self) -> str | None:
        return self._name

    @property
    def mode(self) -> Mode | None:
        return self._mode

    @property
    def place(self) -> str:
        return f"{self.name}/{self._name}"

    @property
    def one_at_a_time(self) -> bool:
        return self._mode == "offsets"

    @property
    def gone(self) -> PushqError:
        if self.stream.deleted:
            return self.stream.gone
        return NotFound(f"group {self._name!r} of stream {self.name!r} was deleted")

    @property
    def homes(self) -> Sequence[Home]:
        return [home for piece in self.pieces for home in piece.homes] or self.stream.homes

    def at(self, home: Home) -> RemoteQueue | None:
        found = (piece.at(home) for piece in self.pieces)
        return next((piece for piece in found if piece is not None), None)

    def takes_at(self, home: Home) -> bool:
        return self.stream.takes_at(home)

    @property
    def _delivering(self) -> Sequence[RemoteQueue]:
        return self.pieces

    def _part_of(self, token: str) -> RemoteQueue:
        return self.stream.group_of(token, self._name, self._mode)

    @property
    def _anyone(self) -> RemoteQueue:
        return self.stream.current

    def take(self, limit: int, holder: Holder, visibility_ms: int) -> Lease | None:
        return None if self.deleted else super().take(limit, holder, visibility_ms)

    def settle_and_publish(
        self,
        receipts: list[str],
        publishes: Sequence[tuple[RemoteQueue, list[Block]]],
        reply: Callable[[SettledAndPublished | PushqError], None],
    ) -> None:
        self.stream.settle_and_publish(receipts, publishes, reply)

    # ---------------------------------------------------------------------------------------------------------- gaps

    def take_gaps(self) -> list[Gap]:
        return [gap for piece in self.pieces for gap in piece.take_gaps()]

    def put_back_gaps(self, gaps: Sequence[Gap]) -> None:
        for piece in self.pieces[-1:]:
            piece.put_back_gaps(gaps)

    def on_gap(self, tell: Callable[[], None]) -> None:
        self._tell_gap = tell
        for piece in self.pieces:
            piece.on_gap(tell)


def has_settled(seen: Seen) -> bool:
    """Whether a group has nothing left to read in a place that takes no more publishes."""
    return seen.mode is not None and not any(one.lag for one in seen.lag)


def whole_info(name: str, seen: Sequence[Seen]) -> GroupInfo | None:
    """Combines what a group has in each place (the oldest first); None if it is in none. Its lag includes all messages
    of places that it has not reached yet."""
    first = next((at for at, one in enumerate(seen) if one.mode is not None), None)
    if first is None:
        return None
    found: dict[int, GroupLag] = {}
    for one in seen[first:]:
        for lag in one.lag:
            before = found.get(lag.partition)
            position = before.position if before is not None and before.lag else lag.position
            behind = before.lag if before is not None else 0
            found[lag.partition] = GroupLag(lag.partition, position, lag.end, behind + lag.lag)
    mode = seen[first].mode
    assert mode is not None, "it is there"
    return GroupInfo(name, mode, [found[number] for number in sorted(found)])


def _nothing() -> None:
    """Until `on_gap` sets a listener."""
