"""A consumer group of a stream as the rest of Pushq sees it: a queue that hands out the stream's messages, with leases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backend_store.client.queue import EmbeddedQueue
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
        super().__init__(stream._node, stream.definition, stream._partition)
        self.stream = stream
        self._group = group
        group.is_wanted = lambda: self.consumers > 0
        self._view = group.open()

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

    def info(self) -> GroupInfo:
        return info_of(self._group, int(self.end.offset))

    def take(self, limit: int, holder: Holder, visibility_ms: int) -> Lease | None:
        return self._opened().take(limit, holder, visibility_ms)

    @property
    def has_ready(self) -> bool:
        return self._opened().has_ready

    @property
    def ready(self) -> int:
        return self._opened().ready

    def on_ready(self, wake: Callable[[], None]) -> None:
        self._group.on_ready = wake

    def _opened(self) -> View:
        """Its view: a new one after a seek, and when nobody has used the group for a while."""
        if not self._group.is_gone:
            self._view = self._group.open()
        assert self._view is not None
        return self._view


# ------------------------------------------------------------------------------------------------- of a stream


def open_group(stream: EmbeddedQueue, name: str, wanted: Any, reply: GroupReply) -> None:
    """The group of that name. One that is unknown begins at `wanted`, as a reader would; by default at the end."""
    groups_of(stream).open(name, wanted, lambda result: reply(_facade(stream, result)))


def put_group(stream: EmbeddedQueue, name: str, wanted: Any, mode: Mode | None, reply: GroupReply) -> None:
    """Makes a group, by default with offsets and at the end; or moves one to `wanted`."""

    def decided(result: Group | PushqError) -> None:
        stream._node.sweeper.wake()
        reply(_facade(stream, result))

    groups_of(stream).put(name, wanted, mode, decided)


def delete_group(stream: EmbeddedQueue, name: str, reply: GroupReply) -> None:
    """Forgets a group; `reply` gets what its consumers hold, so that they can be told."""

    def decided(result: Group | PushqError) -> None:
        if isinstance(result, PushqError):
            reply(result)
            return
        stream._node.sweeper.wake()
        facade = stream.groups.pop(name, None)
        reply(facade if isinstance(facade, GroupQueue) else GroupQueue(stream, result))

    groups_of(stream).delete(name, decided)


def list_groups(stream: EmbeddedQueue) -> list[GroupInfo]:
    """By name; a work queue has none."""
    groups = stream._partition.groups
    end = int(stream.end.offset)
    return [info_of(group, end) for group in groups.all()] if groups is not None else []


def find_group(stream: EmbeddedQueue, name: str) -> GroupInfo | None:
    groups = stream._partition.groups
    group = groups.find(name) if groups is not None else None
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
