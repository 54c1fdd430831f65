"""A consumer group of a stream as the rest of Pushq sees it: a queue that hands out leases of the stream's messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backend_store.client.queue import EmbeddedQueue
from backend_store.client.views import Views
from backend_store.core.leases import Holder, Lease
from backend_store.model import InvalidRequest, NotFound, PushqError
from backend_store.node.group import Group, Mode
from backend_store.node.groups import Groups
from backend_store.node.view import View

GroupReply = Callable[["GroupQueue | PushqError"], None]


@dataclass(frozen=True, slots=True)
class GroupLag:
    """Where a group stands in one partition. `lag` counts messages, `position` and `end` are offsets."""

    partition: int
    position: int
    end: int
    lag: int


@dataclass(frozen=True, slots=True)
class GroupInfo:
    name: str
    mode: Mode
    lag: list[GroupLag]

    @property
    def position(self) -> int:
        """The first message that is not behind the group: everything below is, in every partition."""
        return min(part.position for part in self.lag)


class GroupQueue(EmbeddedQueue):
    """One for all who ask, as long as the group exists. What does not differ by group is the stream's."""

    def __init__(self, stream: EmbeddedQueue, group: Group):
        super().__init__(stream._node, stream.definition, stream._partitions)
        self.stream = stream
        self._group = group
        group.is_wanted = lambda: self.consumers > 0
        group.on_opened = self._use
        self._use(group.open())

    def _use(self, view: View) -> None:
        """Its view: another one after a seek, and when nobody used the group for a while."""
        self._views = Views([view])

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
        return None if self._group.is_gone else self._group.open().take(limit, holder, visibility_ms)

    @property
    def has_ready(self) -> bool:
        return not self._group.is_gone and self._group.open().has_ready

    @property
    def ready(self) -> int:
        return 0 if self._group.is_gone else self._group.open().ready

    def take_gap(self) -> tuple[int, int] | None:
        return self._group.take_gap()

    def on_gap(self, tell: Callable[[], None]) -> None:
        self._group.on_gap = tell

    def on_ready(self, wake: Callable[[], None]) -> None:
        self._group.on_ready = wake


# ------------------------------------------------------------------------------------------------- of a stream


def open_group(stream: EmbeddedQueue, name: str, wanted: Any, reply: GroupReply) -> None:
    """The group of that name. One that is unknown begins at `wanted`, as a reader would; by default at the end."""
    groups_of(stream).open(name, wanted, lambda result: reply(_facade(stream, result)))


def put_group(
    stream: EmbeddedQueue,
    name: str,
    wanted: Any,
    mode: Mode | None,
    reply: Callable[[GroupInfo | PushqError], None],
) -> None:
    """Makes a group, by default with offsets and at the end; or moves one to `wanted`."""

    def decided(result: Group | PushqError) -> None:
        stream._node.sweeper.wake()
        reply(info_of(result, int(stream.end.offset)) if isinstance(result, Group) else result)

    groups_of(stream).put(name, wanted, mode, decided)


def delete_group(stream: EmbeddedQueue, name: str, reply: Callable[[list[EmbeddedQueue] | PushqError], None]) -> None:
    """Forgets a group; `reply` gets what its consumers had of it, if somebody had, so that they can be told."""

    def decided(result: Group | PushqError) -> None:
        if isinstance(result, PushqError):
            reply(result)
            return
        stream._node.sweeper.wake()
        found = stream.groups.pop(name, None)
        if found is not None:
            found.deleted = True
        reply([found] if found is not None else [])

    groups_of(stream).delete(name, decided)


def list_groups(stream: EmbeddedQueue) -> list[GroupInfo]:
    """By name; a work queue has none."""
    groups = stream._partition.groups
    if groups is None or stream.is_companion:
        return []
    end = int(stream.end.offset)
    return [info_of(group, end) for group in groups.all()]


def find_group(stream: EmbeddedQueue, name: str) -> GroupInfo | None:
    groups = stream._partition.groups
    group = groups.find(name) if groups is not None and not stream.is_companion else None
    return info_of(group, int(stream.end.offset)) if group is not None else None


def info_of(group: Group, end: int) -> GroupInfo:
    return GroupInfo(group.name, group.mode, [GroupLag(0, int(group.position), end, group.lag)])


def groups_of(stream: EmbeddedQueue) -> Groups:
    """Raises `InvalidRequest` for a work queue."""
    groups = stream._partition.groups if not stream.is_companion else None
    if groups is None:
        raise InvalidRequest(f"{stream.name!r} is a work queue: its consumers are one group; streams have groups")
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
