"""A consumer group of a stream as the rest of Pushq sees it: a queue that leases the stream's messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from backend_store.client.queue import EmbeddedQueue
from backend_store.client.streams import Gap, why_no_place
from backend_store.client.views import Views
from backend_store.core.leases.leases import Holder, Lease
from backend_store.model import InvalidRequest, NotFound, PushqError
from backend_store.node.partition import Partition
from backend_store.node.views.group import Group, Mode
from backend_store.node.views.group_sets import align
from backend_store.node.views.groups import Groups
from backend_store.node.views.view import View

GroupReply = Callable[["GroupQueue | PushqError"], None]
Decided = Callable[[Group | PushqError], None]


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group's position in one partition. `lag` counts messages, `position` and `end` are offsets."""

    partition: int
    position: int
    end: int
    lag: int


@dataclass(frozen=True, slots=True)
class GroupInfo:
    name: str
    mode: Mode
    lag: list[GroupLag]
    gaps: list[Gap] = field(default_factory=list)
    """What was dropped before the group reached it and its consumers were not told of; each with its partition."""

    @property
    def position(self) -> int:
        """The lowest position: the group is past everything below it in every partition."""
        return min(part.position for part in self.lag)


class GroupQueue(EmbeddedQueue):
    """One consumer group. The stream owns the object and gives all callers the same one while the group exists; what
    does not differ by group is the stream's.

    The group has a position in every partition, and leases messages from all of them. In mode `offsets` each
    partition's messages go to one consumer at a time.
    """

    def __init__(self, stream: EmbeddedQueue, group: Group):
        self.stream = stream
        self._group = group
        """The group in the first partition, which decides whether the group exists."""
        self._in: dict[int, Group] = {}
        self._tell: Callable[[], None] | None = None
        self._again: dict[int | None, Gap] = {}
        """By partition: gaps that were reported, perhaps without reaching a consumer."""
        super().__init__(stream._node, stream.definition, stream._partitions)
        self._changed()

    def _changed(self) -> None:
        """The group appeared in a partition, or a partition went."""
        name = self._group.name
        found = {p.index: group for p in self._partitions.all if p.groups and (group := p.groups.find(name))}
        if self._group.is_gone or found == self._in:
            return
        self._in = found
        for group in found.values():
            group.is_wanted = self._is_wanted
            group.on_opened = self._use
        self._views = Views([group.open() for group in found.values()])
        for group in found.values():
            if self._wake is not None:
                group.on_ready = self._wake
                self._node.soon(self._wake)
            if self._tell is not None:
                group.on_gap = self._tell

    def _is_wanted(self) -> bool:
        return self.consumers > 0

    def _use(self, view: View) -> None:
        """Uses the group's new view in a partition: after a seek, or after the group was idle."""
        if self._views is not None:
            self._views.set([view if one.partition is view.partition else one for one in self._views.all])

    def _opened(self) -> Views:
        for group in self._in.values():
            group.open()
        assert self._views is not None
        return self._views

    @property
    def root(self) -> EmbeddedQueue:
        return self.stream

    @property
    def group(self) -> str | None:
        return self._group.name

    @property
    def mode(self) -> Mode:
        return self._group.mode

    @property
    def place(self) -> str:
        return f"{self.name}/{self._group.name}"

    @property
    def one_at_a_time(self) -> bool:
        return self._group.mode == "offsets"

    @property
    def gone(self) -> PushqError:
        if self.stream.deleted:
            return self.stream.gone
        return NotFound(f"group {self._group.name!r} of stream {self.name!r} was deleted")

    def take(self, limit: int, holder: Holder, visibility_ms: int) -> Lease | None:
        return None if self._group.is_gone else self._opened().take(limit, holder, visibility_ms)

    @property
    def has_ready(self) -> bool:
        return not self._group.is_gone and self._opened().has_ready

    @property
    def ready(self) -> int:
        return 0 if self._group.is_gone else self._opened().ready

    def take_gaps(self) -> list[Gap]:
        several = len(self._in) > 1
        taken = [(number, group.take_gap()) for number, group in self._in.items()]
        again, self._again = self._again, {}
        return [
            *again.values(),
            *(Gap(*gap, number if several else None) for number, gap in taken if gap is not None),
        ]

    def put_back_gaps(self, gaps: Sequence[Gap]) -> None:
        for gap in gaps:
            self._again[gap.partition] = self._again.get(gap.partition, gap).and_also(gap)

    def on_gap(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        for group in self._in.values():
            group.on_gap = tell

    def on_ready(self, wake: Callable[[], None], wanted: Callable[[], Mapping[int, int]] | None = None) -> None:
        self._wake = wake
        for group in self._in.values():
            group.on_ready = wake


# ------------------------------------------------------------------------------------------------- of a stream


class GroupsElsewhere(Protocol):
    """A stream in another process; see the functions of the same names. Lists may need a look-up there."""

    def open_group(self, name: str, wanted: Any, reply: GroupReply) -> None: ...
    def put_group(
        self, name: str, wanted: Any, mode: Mode | None, reply: Callable[[GroupInfo | PushqError], None]
    ) -> None: ...
    def delete_group(self, name: str, reply: Callable[[list[EmbeddedQueue] | PushqError], None]) -> None: ...
    def list_groups(self) -> list[GroupInfo]: ...
    def find_group(self, name: str) -> GroupInfo | None: ...


def open_group(stream: EmbeddedQueue | GroupsElsewhere, name: str, wanted: Any, reply: GroupReply) -> None:
    """`reply` gets the group of that name. An unknown group is made, and starts at `wanted` as a reader would, by
    default at the end."""
    if not isinstance(stream, EmbeddedQueue):
        stream.open_group(name, wanted, reply)
        return
    known = groups_of(stream).find(name)
    if known is not None:
        reply(_facade(stream, known))
        return
    refusal = why_no_place(stream._partitions, wanted, "/from")
    if refusal is not None:
        reply(refusal)
        return
    _ask_all(stream, lambda groups, told: groups.open(name, wanted, told), lambda group: reply(_facade(stream, group)))


def put_group(
    stream: EmbeddedQueue | GroupsElsewhere,
    name: str,
    wanted: Any,
    mode: Mode | None,
    reply: Callable[[GroupInfo | PushqError], None],
) -> None:
    """Makes a group, by default in mode `offsets` and at the end; or moves one to `wanted`."""
    if not isinstance(stream, EmbeddedQueue):
        stream.put_group(name, wanted, mode, reply)
        return
    groups_of(stream)
    refusal = why_no_place(stream._partitions, wanted, "/position")
    if refusal is not None:
        reply(refusal)
        return

    def decided(result: Group | PushqError) -> None:
        stream._node.sweeper.wake()
        reply(info_of(stream, result) if isinstance(result, Group) else result)

    _ask_all(stream, lambda groups, told: groups.put(name, wanted, mode, told), decided)


def carry_group(stream: EmbeddedQueue, name: str, mode: Mode, reply: Callable[[GroupInfo | PushqError], None]) -> None:
    """Makes a group that comes from where the stream was before, at the beginning of what is here. One that is there
    stays where it is."""

    def decided(result: Group | PushqError) -> None:
        reply(info_of(stream, result) if isinstance(result, Group) else result)

    groups_of(stream)
    floor = stream.definition.floor
    _ask_all(stream, lambda groups, told: groups.carry(name, mode, floor, told), decided)


def add_gaps(
    stream: EmbeddedQueue, name: str, gaps: Sequence[Gap], reply: Callable[[GroupInfo | PushqError], None]
) -> None:
    """Gives a group gaps of where the stream was before, for its consumers to be told of here."""

    def decided(result: Group | PushqError) -> None:
        reply(info_of(stream, result) if isinstance(result, Group) else result)

    first = groups_of(stream).partition.index
    there = {partition.index for partition in stream._partitions.all}
    found: dict[int, Gap] = {}
    for gap in gaps:  # what was in a partition that is not here is told in the first one
        number = gap.partition if gap.partition in there else first
        found[number] = found.get(number, gap).and_also(gap)

    def ask(groups: Groups, told: Decided) -> None:
        gap = found.get(groups.partition.index)
        groups.miss(name, (gap.first, gap.last + 1) if gap is not None else None, told)

    _ask_all(stream, ask, decided)


def delete_group(
    stream: EmbeddedQueue | GroupsElsewhere, name: str, reply: Callable[[list[EmbeddedQueue] | PushqError], None]
) -> None:
    """Deletes a group; `reply` gets its queue object if one was in use, so that its consumers can be told."""
    if not isinstance(stream, EmbeddedQueue):
        stream.delete_group(name, reply)
        return

    def decided(result: Group | PushqError) -> None:
        if isinstance(result, PushqError):
            reply(result)
            return
        stream._node.sweeper.wake()
        found = stream.groups.pop(name, None)
        if found is not None:
            found.deleted = True
        reply([found] if found is not None else [])

    groups_of(stream)
    _ask_all(stream, lambda groups, told: groups.delete(name, told), decided)


def _ask_all(stream: EmbeddedQueue, ask: Callable[[Groups, Decided], None], reply: Decided) -> None:
    """Asks every partition in the same turn, so that one commit has all answers; the first partition's answer
    counts."""
    asked = [partition.groups for partition in stream._partitions.all if partition.groups is not None]
    if len(asked) == 1:
        ask(asked[0], reply)
        return
    answers: dict[int, Group | PushqError] = {}

    def told(number: int, answer: Group | PushqError) -> None:
        answers[number] = answer
        if len(answers) == len(asked):
            align(stream._partitions)  # a partition may have been added meanwhile
            reply(answers[0])

    for number, groups in enumerate(asked):
        ask(groups, partial(told, number))


def used_group(stream: EmbeddedQueue, name: str) -> GroupQueue:
    """An existing group. Raises `NotFound`, and `InvalidRequest` for a work queue."""
    group = groups_of(stream).find(name)
    if group is None:
        raise NotFound(f"group {name!r} of stream {stream.name!r} was deleted")
    found = _facade(stream, group)
    if isinstance(found, PushqError):
        raise found
    return found


def list_groups(stream: EmbeddedQueue | GroupsElsewhere) -> list[GroupInfo]:
    """All groups, by name; none for a work queue."""
    if not isinstance(stream, EmbeddedQueue):
        return stream.list_groups()
    if stream.config.kind != "stream" or stream.is_companion:
        return []
    groups = groups_of(stream)
    return [info_of(stream, group) for group in groups.all()]


def find_group(stream: EmbeddedQueue | GroupsElsewhere, name: str) -> GroupInfo | None:
    if not isinstance(stream, EmbeddedQueue):
        return stream.find_group(name)
    if stream.config.kind != "stream" or stream.is_companion:
        return None
    group = groups_of(stream).find(name)
    return info_of(stream, group) if group is not None else None


def info_of(stream: EmbeddedQueue, group: Group) -> GroupInfo:
    return GroupInfo(group.name, group.mode, lag_of(stream, group.name), _gaps_of(stream, group.name))


def _gaps_of(stream: EmbeddedQueue, name: str) -> list[Gap]:
    found = []
    for partition in stream._partitions.all:
        group = partition.groups.find(name) if partition.groups is not None else None
        if group is not None and (gap := group.untold_gap) is not None:
            found.append(Gap(gap[0], gap[1] - 1, partition.index))
    return found


def lag_of(stream: EmbeddedQueue, name: str) -> list[GroupLag]:
    """Where a group stands; one that there is not, as if it began at the beginning."""
    return [_lag(partition, name) for partition in stream._partitions.all]


def _lag(partition: Partition, name: str) -> GroupLag:
    group = partition.groups.find(name) if partition.groups is not None else None
    state, end = partition.state, int(partition.state.high_watermark)
    if group is None:  # the partition is new: the group starts at its beginning
        return GroupLag(partition.index, state.floor, end, state.live)
    return GroupLag(partition.index, int(group.position), end, group.lag)


def groups_of(stream: EmbeddedQueue) -> Groups:
    """The groups in the stream's first partition. Raises `InvalidRequest` for a work queue."""
    is_stream = stream.config.kind == "stream" and not stream.is_companion
    groups = stream._partitions.all[0].groups if is_stream else None
    if groups is None:
        raise InvalidRequest(f"{stream.name!r} is a work queue; only streams have groups")
    return groups


def _facade(stream: EmbeddedQueue, result: Group | PushqError) -> GroupQueue | PushqError:
    if isinstance(result, PushqError):
        return result
    if result.is_gone:
        return NotFound(f"group {result.name!r} of stream {stream.name!r} was deleted")
    found = stream.groups.get(result.name)
    if not isinstance(found, GroupQueue) or found._group is not result:
        found = stream.groups[result.name] = GroupQueue(stream, result)
    return found
