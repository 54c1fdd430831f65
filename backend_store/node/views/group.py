"""One consumer group of a stream: its row, and its view while the group is in use.

The view holds leases and chunks in memory. It exists while the group has consumers or holds messages, so a thousand
unused groups cost a commit nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from backend_store.core.groups import GroupView, Memory, OffsetGroup
from backend_store.core.leases.leases import ChunkState, Holder, Lease
from backend_store.core.leases.session_snapshot import KeptLease
from backend_store.core.log.records import GroupRow, Tally
from backend_store.core.partitions.slot_history import Barrier, standing
from backend_store.core.ready.priorities import Lane
from backend_store.model import Offset, PushqError
from backend_store.node.limits import GROUP_IDLE_MS, GROUP_READS_MAX
from backend_store.node.log.seek import read_at
from backend_store.node.views.acks import Return
from backend_store.node.views.view import View

if TYPE_CHECKING:
    from backend_store.node.partition import Partition
    from backend_store.node.views.groups import Groups

Mode = Literal["offsets", "leases"]


class RunningGroup(View):
    """The view of a group in use."""

    core: GroupView

    def __init__(self, partition: Partition, core: GroupView, group: Group):
        super().__init__(partition, core)
        self.group = group
        self._is_offsets = isinstance(core, OffsetGroup)
        self._is_ordered = self._is_offsets or core.is_strict
        self._idle_since_ms: int | None = None

    @property
    def tally(self) -> Tally:
        return Tally(floor=self.core.low, live=self.group.lag)

    @property
    def floor(self) -> int:
        return self.core.low

    # ------------------------------------------------------------------------------------- other partitions' messages

    def look_at_fence(self) -> None:
        """Moves the barrier: where keys came from another partition, newer messages are read only once the group has
        settled the older ones there."""
        is_wider = self.core.fence_off(self._fence())
        if self.partition.groups is not None:
            self.partition.groups.fenced(self)
        if is_wider:
            self.partition.look_again(self)

    def _fence(self) -> int | None:
        """The first barrier that the group has not read past and must not pass yet; None if there is none."""
        mine = self.partition
        if mine.slotting is None or not self._is_ordered:
            return None
        read = self.core.lane.next_scan
        if not any(barrier.opened_at >= read for barrier in mine.slotting.barriers):
            return None
        ahead, places = {mine.index: int(mine.state.end)}, {mine.index: int(read)}
        barriers = {mine.index: _barriers(mine)}
        for partition in mine.siblings():
            places[partition.index], ahead[partition.index] = _settled(partition, self.group.name)
            barriers[partition.index] = _barriers(partition)
        stands = standing(ahead, places, barriers)[mine.index]
        return stands if stands < mine.state.end else None

    def _scan_next(self, lane: Lane, now_ms: int) -> None:
        fence = self.core.fence
        if fence is not None:
            chunk = self.partition.read(max(lane.next_scan, self.floor))
            if chunk is None or chunk.base >= fence:
                lane.more = False
                return
        super()._scan_next(lane, now_ms)

    # ------------------------------------------------------------------------------------------------------- receipts

    def load_for(self, grouped: dict[str, int]) -> None:
        """An offset may be committed only past messages that were read, because those before it are counted."""
        if not self._is_offsets:
            super().load_for(grouped)
            return
        lane, reads = self.core.lane, 0
        for _, base in self.core.unknown_bases(grouped):
            while lane.next_scan <= base < self.partition.state.high_watermark and reads < GROUP_READS_MAX:
                self._scan_next(lane, self.partition.steady_ms())
                reads += 1

    def find(self, shelf: int, base: int) -> ChunkState | None:
        return None if self.core.knows_all_of(base) else super().find(shelf, base)

    def restore(self, kept: KeptLease, holder: Holder) -> Lease | None:
        if self._is_offsets:
            self.load_for({kept.token: 1})
        return super().restore(kept, holder)

    def _decide_return(self, one: Return, now_ms: int) -> dict[str, int] | PushqError:
        if self._is_offsets:
            # Going back to a message takes later ones along: those must be given back first.
            leases = self.core.leases
            bases = {token: lease.state.base for token in one.grouped if (lease := leases.get(token)) is not None}
            tokens = sorted(one.grouped, key=lambda token: bases.get(token, 0), reverse=True)
            one = one._replace(grouped={token: one.grouped[token] for token in tokens})
        return super()._decide_return(one, now_ms)

    def close(self) -> None:
        """The group is deleted, or continues under another number."""
        self.core.close()
        for reply in self.take_waiting():
            reply({})

    # ----------------------------------------------------------------------------------------------------- idle

    @property
    def is_idle(self) -> bool:
        """Whether the view can leave memory. While a commit advances the group, its row is behind the marks on disk,
        and a new view must not start from the two."""
        busy = self.awaits_decisions or self.group.staged is not None or self.group.is_wanted()
        return self.core.is_at_rest and not busy

    def tick(self, now_ms: int) -> None:
        super().tick(now_ms)
        if not self.is_idle:
            self._idle_since_ms = None
        elif self._idle_since_ms is None:
            self._idle_since_ms = now_ms
        elif now_ms >= self._idle_since_ms + GROUP_IDLE_MS:
            self.group.rest()

    def next_wakeup_ms(self) -> int | None:
        wakeup_ms = super().next_wakeup_ms()
        look_ms = GROUP_IDLE_MS + (self._idle_since_ms or self.partition.steady_ms())
        return look_ms if wakeup_ms is None else min(wakeup_ms, look_ms)


def _barriers(partition: Partition) -> list[Barrier]:
    return partition.slotting.barriers if partition.slotting is not None else []


def _settled(partition: Partition, name: str) -> tuple[int, int]:
    """(how far a group has settled a partition, the next offset it has not settled); the partition's end if all is
    settled."""
    group = partition.groups.find(name) if partition.groups is not None else None
    place = int(group.surely_behind if group is not None else partition.state.floor)
    chunk = read_at(partition, place)
    return place, partition.state.end if chunk is None else max(place, chunk.base)


class Group:
    """One group. `row` is committed; `staged` is what the next commit makes of it."""

    def __init__(self, groups: Groups, row: GroupRow):
        self._groups = groups
        self.row = row
        self.staged: GroupRow | None = None
        self.is_made = False
        """Durable; until then the group is not listed."""
        self.is_gone = False
        self.view: RunningGroup | None = None
        self.is_wanted: Callable[[], bool] = _nobody
        """Whether the group has a consumer."""
        self.on_ready: Callable[[], None] = _nothing
        self.on_opened: Callable[[RunningGroup], None] = _ignore_view
        self.on_gap: Callable[[], None] = _nothing
        """Called when the group has a gap; the listener that can tell consumers takes it."""
        self._told: tuple[int, int] | None = None
        self._memory: Memory | None = None

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def mode(self) -> Mode:
        return self.row.mode

    @property
    def position(self) -> Offset:
        """The group is past everything below this offset."""
        return Offset(max(self.row.position, self._groups.partition.state.floor))

    @property
    def surely_behind(self) -> Offset:
        """The same, also if the commit in flight moves the group back."""
        return Offset(max(min(self.row.position, self.latest.position), self._groups.partition.state.floor))

    @property
    def lag(self) -> int:
        """The exact number of messages that the group has not settled."""
        state = self._groups.partition.state
        if self.mode == "offsets" and self.row.position < state.floor:
            return state.live
        return max(0, state.published_total - self.row.done)

    @property
    def latest(self) -> GroupRow:
        return self.staged or self.row

    def catch_up(self) -> GroupRow:
        """Returns the row, past what retention dropped. Retention skips unused groups in mode `offsets`, so their rows
        are corrected here."""
        state, row = self._groups.partition.state, self.row
        if row.mode == "offsets" and row.position < state.floor:
            self.row = row.passed_by(state.floor, state.published_total - state.live)
        return self.row

    @property
    def untold_gap(self) -> tuple[int, int] | None:
        """(from, below): messages dropped before the group reached them, which its consumers were not told of."""
        gap = self.catch_up().gap
        return None if gap == self._told else gap

    def take_gap(self) -> tuple[int, int] | None:
        """(first, last) offset of `untold_gap`, or None; each gap is returned once."""
        gap = self.untold_gap
        if gap is None:
            return None
        self._told = gap
        self._groups.told(self, gap)
        return gap[0], gap[1] - 1

    def open(self) -> RunningGroup:
        """Returns the group's view, made if it was not in memory."""
        if self.view is None:
            self.view = self._groups.make_view(self, self._memory)
            self.on_opened(self.view)
        return self.view

    def rest(self) -> None:
        """Drops the view from memory; the row keeps the position."""
        if self.view is not None:
            self._memory = self.view.core.memory
            self._groups.partition.views.pop(self.view.number, None)
            self.view = None

    def hand_over(self) -> None:
        """After a seek: closes the view of the old number. Consumers continue with the new one."""
        old, self.view, self._memory = self.view, None, None
        if old is not None:
            self._groups.partition.views.pop(old.number, None)
            old.close()


def _nobody() -> bool:
    return False


def _nothing() -> None:
    """Until a listener is set."""


def _ignore_view(view: RunningGroup) -> None:
    """Until the group is asked for."""
