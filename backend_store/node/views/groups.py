"""The consumer groups of one stream partition: which groups exist, and what each commit changes in them.

A seek gives a group a new number, and with it new marks and receipts: earlier receipts become void.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import structlog

from backend_store.core.groups import Memory, below
from backend_store.core.leases.receipts import view_of_token
from backend_store.core.log.chunk import Chunk
from backend_store.core.log.cursor import resolve
from backend_store.core.log.records import ChunkPassed, GroupRow, GroupStood, PartitionState, Record
from backend_store.core.log.sublogs import MAIN, VIEW_GROUPS
from backend_store.core.ready.work_queue import Overlay
from backend_store.model import CHUNK_MESSAGES_MAX, Conflict, NotFound, Offset, PushqError
from backend_store.node.garbage_collector import ALL_OF_VIEW, add_garbage
from backend_store.node.limits import GROUPS_PER_STREAM_MAX
from backend_store.node.log.apply import decode_group, decode_mark
from backend_store.node.log.retention import Gone
from backend_store.node.log.seek import messages_behind, offset_at_time, read_at
from backend_store.node.views.group import Group, Mode, RunningGroup
from backend_store.node.views.view import View
from backend_store.storage.engine import Batch, StorageCorrupt, Table
from backend_store.storage.keys import group_key, mark_key
from backend_store.storage.seal import unseal

if TYPE_CHECKING:
    from backend_store.node.partition import Partition

log = structlog.get_logger("pushq.groups")

GroupReply = Callable[["Group | PushqError"], None]
Answers = list[tuple[Callable[[Any], None], Any]]


class _Command(NamedTuple):
    kind: Literal["put", "make", "delete", "miss"]
    name: str
    reply: GroupReply
    wanted: Any = None
    mode: Mode | None = None
    gap: tuple[int, int] | None = None


class Groups:
    """The consumer groups of one stream partition, which owns the object."""

    def __init__(self, partition: Partition):
        self.partition = partition
        self._by_name: dict[str, Group] = {}
        self._by_number: dict[int, Group] = {}
        self._commands: list[_Command] = []
        self._changed: dict[str, Group] = {}
        self._moved: list[Group] = []
        """Groups to which a seek of the commit in flight gives new numbers."""
        self._dropped: list[Group] = []
        self._missing: list[Group] = []
        """Groups that get a gap from elsewhere by the commit in flight."""
        self._is_purged = False
        self._lost: list[tuple[int, int]] = []
        self._told: dict[Group, tuple[int, int]] = {}
        self._fenced: dict[RunningGroup, None] = {}
        self.on_made: Callable[[str], None] = _nobody
        """Called with the name of a group that was made."""

    def recover(self) -> None:
        """Reads the rows. A broken row is logged; its group starts anew when a consumer next asks for it."""
        partition = self.partition
        start, end = group_key(partition.replica, VIEW_GROUPS), group_key(partition.replica + 1, 0)
        for key, stored in partition.node.engine.scan(Table.GROUPS, start, end, 2 * GROUPS_PER_STREAM_MAX):
            try:
                group = Group(self, decode_group(key, stored))
            except StorageCorrupt as error:
                log.error("broken row of a group: it is gone", queue=partition.label, reason=str(error))
                continue
            group.is_made = True
            self._by_name[group.name] = self._by_number[group.row.number] = group

    # ------------------------------------------------------------------------------------------------- who there is

    def all(self) -> list[Group]:
        """All groups, by name."""
        return [group for _, group in sorted(self._by_name.items()) if group.is_made]

    def find(self, name: str) -> Group | None:
        group = self._by_name.get(name)
        return group if group is not None and group.is_made else None

    def view(self, number: int) -> RunningGroup | None:
        """The view with this number; None if no group has it."""
        group = self._by_number.get(number)
        return group.open() if group is not None and group.is_made else None

    def make_view(self, group: Group, memory: Memory | None) -> RunningGroup:
        partition = self.partition
        row = group.catch_up()
        chunk = read_at(partition, row.position)
        low = chunk.base if chunk is not None and chunk.base < row.position else row.position
        core = partition.make_group(row, Offset(low))
        if memory is not None:
            core.go_on_from(memory)
        view = RunningGroup(partition, core, group)
        partition.views[row.number] = view
        view.on_ready = lambda: group.on_ready()
        view.look_at_fence()
        view.recover(partition.steady_ms())
        return view

    def look_at_fences(self) -> None:
        """Checks barriers again: slots came, or groups advanced in another partition."""
        for view in self._running():
            view.look_at_fence()

    # ------------------------------------------------------------------------------------------------- receipts

    def by_view(self, grouped: dict[str, int]) -> dict[RunningGroup, dict[str, int]]:
        """Receipts by the group that gave them out; those of no group are left out."""
        found: dict[RunningGroup, dict[str, int]] = {}
        for token, bits in grouped.items():
            number = view_of_token(token)
            view = self.view(number) if number is not None else None
            if view is not None:
                found.setdefault(view, {})[token] = bits
        return found

    # ------------------------------------------------------------------------------------------------- commands

    def open(self, name: str, wanted: Any, reply: GroupReply) -> None:
        """`reply` gets the group of that name, made at `wanted` (by default the end) if there is none."""
        group = self.find(name)
        if group is not None:
            reply(group)
            return
        self._ask(_Command("make", name, reply, wanted))

    def put(self, name: str, wanted: Any, mode: Mode | None, reply: GroupReply) -> None:
        """Makes a group, or moves it to `wanted`. Raises nothing: `reply` gets the group or the error."""
        self._ask(_Command("put", name, reply, wanted, mode))

    def delete(self, name: str, reply: GroupReply) -> None:
        self._ask(_Command("delete", name, reply))

    def adopt(self, name: str, mode: Mode) -> None:
        """Adds a group that the stream's other partitions have; it starts at this partition's earliest message."""
        self._ask(_Command("make", name, _no_answer, "earliest", mode))

    def carry(self, name: str, mode: Mode, floor: int, reply: GroupReply) -> None:
        """The group of that name, which comes from another cluster and has all of this one before it: from `floor` on,
        so that it is told of what has gone meanwhile."""
        self._ask(_Command("make", name, reply, {"seq": floor}, mode))

    def miss(self, name: str, gap: tuple[int, int] | None, reply: GroupReply) -> None:
        """Adds a gap, (from, below), of which the group's consumers were not told elsewhere. `reply` gets the group."""
        self._ask(_Command("miss", name, reply, gap=gap))

    def _ask(self, command: _Command) -> None:
        if self.partition.closed:
            command.reply(self.partition.deleted())
            return
        self._commands.append(command)
        self.partition.request()

    def take_waiting(self) -> list[Callable[[Any], None]]:
        commands, self._commands = self._commands, []
        return [command.reply for command in commands]

    # -------------------------------------------------------------------------------------------- a commit, in steps

    def decide(self, after: PartitionState, batch: Batch, answers: Answers) -> None:
        """Makes, moves and deletes groups."""
        self._decide_lost()
        self._decide_told()
        commands, self._commands = self._commands, []
        for command in commands:
            try:
                group = self._decide(command, after, batch)
            except PushqError as error:
                answers.append((command.reply, error))
            else:
                answers.append((command.reply, group))

    def _decide(self, command: _Command, after: PartitionState, batch: Batch) -> Group:
        group = self._by_name.get(command.name)
        label = self.partition.label
        if command.kind == "delete":
            if group is None:
                raise NotFound(f"stream {label!r} has no group {command.name!r}")
            self._drop(group, batch)
            return group
        if command.kind == "miss":
            if group is None:
                raise NotFound(f"stream {label!r} has no group {command.name!r}")
            if command.gap is not None:
                self._change(group, group.latest.missed(*command.gap))
                self._missing.append(group)
            return group
        if group is None:
            if len(self._by_name) >= GROUPS_PER_STREAM_MAX:
                raise Conflict(f"stream {label!r} has reached the limit of {GROUPS_PER_STREAM_MAX} groups; delete one")
            group = Group(self, self._row(command.name, command.mode or "offsets", command.wanted, after))
            self._by_name[command.name] = group
            self._change(group, group.row)
            return group
        if command.mode not in (None, group.mode):
            detail = f"group {command.name!r} of stream {label!r} has mode {group.mode!r}, which cannot change"
            raise Conflict(f"{detail}; delete it, or use another name")
        if command.kind == "put" and command.wanted is not None:
            self._seek(group, command.wanted, after, batch)
        return group

    def _row(self, name: str, mode: Mode, wanted: Any, after: PartitionState) -> GroupRow:
        """A group's row, under a number that no group had before."""
        partition = self.partition
        start, _, missed = resolve(
            partition.state,
            wanted,
            lambda time_ms: offset_at_time(partition, time_ms),
            uid=partition.title.uid,
            partition=partition.index,
        )
        number = VIEW_GROUPS + after.groups_made
        after.groups_made += 1
        gap = (missed[0], missed[1] + 1) if missed is not None else None
        return GroupRow(number, name, mode, start, messages_behind(partition, start), gap)

    def _seek(self, group: Group, wanted: Any, after: PartitionState, batch: Batch) -> None:
        self._forget(group.latest, batch)
        self._change(group, self._row(group.name, group.mode, wanted, after))
        if group not in self._moved:
            self._moved.append(group)

    def _drop(self, group: Group, batch: Batch) -> None:
        self._forget(group.latest, batch)
        del self._by_name[group.name]
        self._changed.pop(group.name, None)
        self._dropped.append(group)

    def _forget(self, row: GroupRow, batch: Batch) -> None:
        batch.delete(Table.GROUPS, group_key(self.partition.replica, row.number))
        if row.mode == "leases":
            add_garbage(batch, self.partition.replica, ALL_OF_VIEW, row.number)

    def _change(self, group: Group, row: GroupRow) -> None:
        group.staged = row
        self._changed[group.name] = group

    def decided(self, view: View, overlay: Overlay) -> None:
        """Stages what this commit changes in one group."""
        assert isinstance(view, RunningGroup)
        row, core = view.group.latest, view.core
        if row.number == core.number and (overlay.settled or core.position > row.position):
            moved = msgspec.structs.replace(row, position=core.position, done=row.done + overlay.settled)
            self._change(view.group, moved)

    def purged(self, after: PartitionState, batch: Batch) -> None:
        """The stream was purged: every group is past what was published so far."""
        self._is_purged = True
        for group in self._by_name.values():
            row = group.latest.passed_by(after.floor, after.published_total)
            self._change(group, row)
            if row.mode == "leases":
                add_garbage(batch, self.partition.replica, after.floor, row.number)

    def lost(self, offset: int, messages: int) -> None:
        """A broken entry was put aside: groups that have not reached it will never get its messages."""
        self._lost.append((offset, messages))

    def told(self, group: Group, gap: tuple[int, int]) -> None:
        """The group's consumers were told of the gap: its row can drop it."""
        self._told[group] = gap
        self.partition.ride_along()

    def _decide_told(self) -> None:
        told, self._told = self._told, {}
        for group, gap in told.items():
            if not group.is_gone and group.latest.gap == gap:
                self._change(group, msgspec.structs.replace(group.latest, gap=None))

    def _decide_lost(self) -> None:
        lost, self._lost = self._lost, []
        for group in self._by_name.values() if lost else ():
            for offset, messages in lost:
                row = group.latest
                if row.position <= offset:
                    had = self._marks(row, offset, offset + 1).get(offset, 0).bit_count()
                    self._change(group, msgspec.structs.replace(row, done=row.done + max(0, messages - had)))

    def gone(self, after: PartitionState, gone: list[Gone], records: list[Record]) -> None:
        """Moves every group past the messages that retention drops, settled or not."""
        for group in self._by_name.values():
            row = group.latest
            if row.position >= after.floor:
                continue
            if row.mode == "leases":
                done = row.done + self._missed(group, row, gone, records)
            elif group.view is None:
                continue  # its lag follows from the stream's
            else:
                done = after.published_total - after.live
            self._change(group, row.passed_by(after.floor, done))

    def _missed(self, group: Group, row: GroupRow, gone: list[Gone], records: list[Record]) -> int:
        """How many of the dropped messages a group with leases had not settled; deletes its marks of them."""
        core = group.view.core if group.view is not None and group.view.number == row.number else None
        marks = self._marks(row, gone[0].chunk.base, gone[-1].chunk.base + 1)
        missed = 0
        for chunk, bits, _ in gone:
            state = core.state(chunk.base) if core is not None else None
            settled = state.settled | state.committing if state is not None else marks.get(chunk.base, 0)
            missed += (bits & ~settled & ~below(chunk, row.position)).bit_count()
            if state is not None or chunk.base in marks:
                records.append(ChunkPassed(row.number, chunk.base))
        return missed

    def _marks(self, row: GroupRow, start: int, end: int) -> dict[int, int]:
        """The stored settled bits of a group's chunks: base → bits."""
        replica, found = self.partition.replica, {}
        ends = mark_key(replica, row.number, start), mark_key(replica, row.number, end)
        for key, stored in self.partition.node.engine.scan(Table.MARKS, *ends, CHUNK_MESSAGES_MAX):
            try:
                found[int.from_bytes(key[-8:], "big")] = decode_mark(unseal(key, stored))[0]
            except StorageCorrupt as error:
                log.error("broken mark of a group", queue=self.partition.label, reason=str(error))
        return found

    def stage(self, records: list[Record]) -> None:
        """Adds the group rows that this commit changes."""
        records += [GroupStood(group.staged) for group in self._changed.values() if group.staged is not None]

    def committed(self, chunks: list[Chunk], before: PartitionState) -> None:
        """Applies a durable commit."""
        changed, self._changed = self._changed, {}
        made = [group.name for group in changed.values() if not group.is_made]
        for group in changed.values():
            assert group.staged is not None
            group.row, group.staged, group.is_made = group.staged, None, True
            self._by_number[group.row.number] = group
        self._renumber()
        state, came = self.partition.state, [chunk for chunk in chunks if chunk.shelf == MAIN]
        is_purged, self._is_purged = self._is_purged, False
        for view in self._running():
            if is_purged:
                view.drop_all(Offset(state.floor))
                view.group.on_gap()
                continue
            view.committed(came)
            if view.core.low < state.low or view.core.position < state.floor:
                view.core.cut(Offset(state.floor), state.low)
                view.group.catch_up()
                view.group.on_gap()
        self._tell_others(bool(changed) or state.floor > before.floor)
        missing, self._missing = self._missing, []
        for group in missing:
            group.on_gap()
        for name in made:
            self.partition.tell(self.on_made, name)

    def _tell_others(self, has_moved: bool) -> None:
        """Messages in other partitions may wait for a group to advance in this one."""
        for partition in (self.partition, *self.partition.siblings()) if has_moved else ():
            if partition.groups is not None and partition.groups._fenced:
                partition.groups._look_at_fenced()

    def _look_at_fenced(self) -> None:
        for view in list(self._fenced):
            if self.partition.views.get(view.number) is view:
                view.look_at_fence()
            else:
                del self._fenced[view]  # out of memory, or deleted

    def fenced(self, view: RunningGroup) -> None:
        """A group starts or stops waiting at a barrier."""
        if view.core.fence is not None:
            self._fenced[view] = None
        else:
            self._fenced.pop(view, None)

    def _renumber(self) -> None:
        dropped, self._dropped = self._dropped, []
        for group in dropped:
            group.is_gone = True
            self._by_number.pop(group.row.number, None)
            group.hand_over()
        moved, self._moved = self._moved, []
        for group in moved:
            self._by_number = {number: one for number, one in self._by_number.items() if one is not group}
            self._by_number[group.row.number] = group
            was_running = group.view is not None
            group.hand_over()
            if was_running:
                group.open()

    def _running(self) -> list[RunningGroup]:
        return [view for view in self.partition.views.values() if isinstance(view, RunningGroup)]


def _no_answer(result: Group | PushqError) -> None:
    """For commands without a caller."""


def _nobody(name: str) -> None:
    """Until a listener is set."""
