"""A stream of another process, and its consumer groups, with the shapes of `client.queue` and `client.groups`.

A group is a queue of its own to the backend: what its consumers here would take is granted, and comes. Receipts are the
stream's: whichever group has one of them is told what became of it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog

from backend_store.client.groups import GroupInfo
from backend_store.client.streams import Gap
from backend_store.core.leases import Holder, Lease
from backend_store.model import NotFound, PushqError, QueueStats
from backend_store.node.group import Mode
from backend_store.node.limits import GROUPS_PER_STREAM_MAX
from backend_store.remote.leases import Stock, Unassigned
from backend_store.remote.limits import GAPS_KEPT, GROUP_IDLE_SECONDS
from backend_store.remote.queue import RemoteQueue
from backend_store.remote.tails import RemoteParts, started
from backend_store.service.groups import (
    CarryGroup,
    DeleteGroup,
    FindGroup,
    ListGroups,
    LookAtGroup,
    Opened,
    OpenGroup,
    PutGroup,
    Seen,
)
from backend_store.service.limits import GROUPS_PER_ASK_MAX
from backend_store.service.tailing import Started, StartReading
from backend_store.wire.store_frames import PartNow

log = structlog.get_logger("pushq.remote")

_opened = msgspec.msgpack.Decoder(Opened).decode
_info = msgspec.msgpack.Decoder(GroupInfo).decode
_maybe_info = msgspec.msgpack.Decoder(GroupInfo | None).decode
_seen = msgspec.msgpack.Decoder(Seen).decode
_infos = msgspec.msgpack.Decoder(list[GroupInfo]).decode


class TurnStock(Stock):
    """Of a group with offsets: what lies in a partition goes to one consumer at a time, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self._latest: dict[int, Lease] = {}
        """By partition, of what was handed out."""

    def take(self, visibility_ms: int, limit: int, holder: Holder) -> Lease | None:
        lease = super().take(visibility_ms, limit, holder)
        if lease is not None:
            self._latest[lease.state.partition] = lease
        return lease

    def _next(self, line: Sequence[Unassigned], holder: Holder) -> Unassigned | None:
        return next((one for one in line if self._at_it(one.state.partition) in (None, holder)), None)

    def _at_it(self, partition: int) -> Holder | None:
        """Who holds something of a partition."""
        latest = self._latest.get(partition)
        if latest is None or not latest.bits:
            held = [one for parts in self._held.values() for one in parts if one.bits]
            latest = next((one for one in held if one.state.partition == partition), None)
            if latest is None:
                self._latest.pop(partition, None)
                return None
            self._latest[partition] = latest
        return latest.holder


def _nothing() -> None:
    """Nobody listens yet."""


class RemoteStream(RemoteQueue):
    """See the file's first sentence."""

    groups: dict[str, RemoteQueue]
    _parts: RemoteParts | None = None
    _unread: Callable[[], None] = staticmethod(_nothing)
    _look_at = GROUPS_PER_STREAM_MAX
    """With so many groups it is looked whether some are not used here; each look is at twice as many as were left."""

    # ------------------------------------------------------------------------------------------------------- groups

    def open_group(self, name: str, wanted: Any, reply: Callable[[Any], None]) -> None:
        answer(self, self.opened_group(name, wanted, self.definition.version), reply)

    async def opened_group(self, name: str, wanted: Any, version: int) -> RemoteGroup:
        """`version`: by which definition it is asked here, and where else. Raises `PushqError`."""
        asked = OpenGroup(self.place_there, name, wanted, version)
        opened = _opened(await self.ask(asked, may_repeat=True))
        group = self.group_here(name, opened.mode)
        group.missed(opened.gaps, told=False)
        return group

    def group_here(self, name: str, mode: Mode) -> RemoteGroup:
        """A group that there is, as consumers here know it."""
        group = self.groups.get(name)
        if not isinstance(group, RemoteGroup) or group.mode != mode:
            self._forget_unused()
            group = self.groups[name] = RemoteGroup(self, name, mode)
        group.asked_at = self._store.now_s()
        return group

    def put_group(self, name: str, wanted: Any, mode: Mode | None, reply: Callable[[Any], None]) -> None:
        answer(self, self.group_put(name, wanted, mode, self.definition.version), reply)

    async def group_put(self, name: str, wanted: Any, mode: Mode | None, version: int) -> GroupInfo:
        """Raises `PushqError`."""
        return _info(await self.ask(PutGroup(self.place_there, name, wanted, mode, version)))

    def delete_group(self, name: str, reply: Callable[[Any], None]) -> None:
        async def ask() -> list[RemoteQueue]:
            await self.group_deleted(name, self.definition.version)
            found = self.group_gone(name)
            return [found] if found is not None else []

        answer(self, ask(), reply)

    async def group_deleted(self, name: str, version: int) -> None:
        """Raises `PushqError`."""
        await self.ask(DeleteGroup(self.place_there, name, version))

    async def group_carried(self, name: str, mode: Mode, version: int) -> None:
        """It comes from another place. Raises `PushqError`."""
        await self.ask(CarryGroup(self.place_there, name, mode, version), may_repeat=True)

    async def began(self, wanted: Any) -> Started:
        """Where a reader would begin, and the ends. Raises `PushqError`."""
        return started(await self.ask(StartReading(self.place_there, wanted), may_repeat=True))

    async def group_seen(self, name: str) -> Seen:
        """Raises `PushqError`."""
        return _seen(await self.ask(LookAtGroup(self.place_there, name), may_repeat=True))

    def list_groups(self) -> list[GroupInfo]:
        """Raises `LookingUp`."""
        return self.known(f"the groups of {self.name!r}", "groups", self.all_groups, is_used_up=True)

    async def all_groups(self) -> list[GroupInfo]:
        """Raises `PushqError`."""
        found: list[GroupInfo] = []
        while True:
            after = found[-1].name if found else ""
            page = _infos(await self.ask(ListGroups(self.place_there, after), may_repeat=True))
            found += page
            if len(page) < GROUPS_PER_ASK_MAX:
                return found

    def find_group(self, name: str) -> GroupInfo | None:
        """Raises `LookingUp`."""

        what = f"group {name!r} of {self.name!r}"
        return self.known(what, f"group {name}", partial(self.group_info, name), is_used_up=True)

    async def group_info(self, name: str) -> GroupInfo | None:
        """Raises `PushqError`."""
        found: GroupInfo | None = _maybe_info(await self.ask(FindGroup(self.place_there, name), may_repeat=True))
        return found

    def _forget_unused(self) -> None:
        """That a group was deleted elsewhere is told to those alone who have consumers."""
        if len(self.groups) < self._look_at:
            return
        since = self._store.now_s() - GROUP_IDLE_SECONDS
        for name, group in list(self.groups.items()):
            if isinstance(group, RemoteGroup) and group.asked_at < since and group.is_unused:
                del self.groups[name]
        self._look_at = max(GROUPS_PER_STREAM_MAX, 2 * len(self.groups))

    def end(self) -> None:
        super().end()
        for group in self.groups.values():
            group.deleted = True

    def group_gone(self, name: str) -> RemoteQueue | None:
        """It was deleted. The group as consumers here know it."""
        found = self.groups.pop(name, None)
        if found is not None:
            found.deleted = True
        return found

    # ------------------------------------------------------------------------------------------------------ readers

    @property
    def parts(self) -> RemoteParts:
        """Raises `LookingUp`."""
        parts = self._parts
        if parts is None:
            parts = self._parts = RemoteParts(self)
        parts.used_at = asyncio.get_running_loop().time()
        if not parts.is_ready:
            self.known(f"the partitions of {self.name!r}", "parts", parts.ready, is_used_up=True)
        return parts

    def follow(self, began: Callable[[RemoteParts], None], ended: Callable[[], None], *, is_new: bool) -> RemoteParts:
        """Of one place of a stream: its partitions for the readers of all of it, see `RemoteParts`. `ended` is called
        when nobody has read for a while."""
        self.ended_elsewhere()
        self._parts, self._unread = RemoteParts(self, self.whole, began=began, is_new=is_new), ended
        return self._parts

    def let_go(self, parts: RemoteParts) -> None:
        """Nobody follows these now."""
        parts.close()
        if self._parts is parts:
            self._parts = None

    def forget_parts(self, parts: RemoteParts) -> None:
        """Nobody reads here now."""
        is_ours = self._parts is parts
        self.let_go(parts)
        if is_ours:
            self.extras.pop("fanout", None)
            self._unread()

    def ended_elsewhere(self) -> None:
        if self._parts is not None:
            self._parts.close()
            self._parts = None

    def tails_moved(self, news: list[PartNow]) -> None:
        if self._parts is not None:
            self._parts.heard(news)

    def line_opened(self, unknown: Sequence[str]) -> None:
        super().line_opened(unknown)
        if self._parts is not None:
            self._parts.follow()

    # ----------------------------------------------------------------------------------------------------- receipts

    def _settled(self, done: Mapping[str, int]) -> bool:
        for group in list(self.groups.values()):
            if group._settled(done):
                self._store.soon(group.wake)
        return False

    def _group_of(self, lease: Lease) -> RemoteQueue | None:
        return next((group for group in self.groups.values() if group.stock.parts(lease.token)), None)

    def give_back_lease(self, lease: Lease) -> None:
        if (group := self._group_of(lease)) is not None:
            group.give_back_lease(lease)

    def unsent(self, lease: Lease) -> None:
        if (group := self._group_of(lease)) is not None:
            group.unsent(lease)

    # -------------------------------------------------------------------------------------------------------- numbers

    def stats(self) -> QueueStats:
        consumers = self.consumers + sum(group.consumers for group in self.groups.values())
        return dataclasses.replace(super().stats(), consumers=consumers)


def answer(queue: RemoteQueue, work: Coroutine[Any, Any, Any], reply: Callable[[Any], None]) -> None:
    """Has `reply` told what a request about a group comes to, or the error."""

    async def told() -> None:
        try:
            result = await work
        except PushqError as error:
            result = error
        except Exception:  # who asked must not wait for ever
            log.exception("a request about a group failed", queue=queue.name)
            result = PushqError("this is our mistake; the log has more")
        queue.forget_looks()
        reply(result)

    queue.background(told())


class RemoteGroup(RemoteQueue):
    """One for all who ask, as long as the group exists and the mode is the same."""

    def __init__(self, stream: RemoteStream, name: str, mode: Mode):
        super().__init__(stream._store, stream.definition, owner=stream.owner)
        self.stream = stream
        self.place_there = self.place_there._replace(group=name)
        self._name = name
        self._mode: Mode = mode
        self.asked_at = stream._store.now_s()
        """When somebody asked for it last."""
        self._gaps: list[Gap] = []
        self._tell_gap: Callable[[], None] = _nothing
        if mode == "offsets":
            self.stock = TurnStock()

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
    def is_unused(self) -> bool:
        """Nobody wants or holds anything of it, and its backend was told nothing that would have to be taken back."""
        return not (
            self.consumers or self.whole.consumers or self.stock.is_held or self.stock.times or len(self._grants)
        )

    @property
    def gone(self) -> PushqError:
        if self.stream.deleted:
            return self.stream.gone
        return NotFound(f"group {self._name!r} of stream {self.name!r} was deleted")

    def gone_elsewhere(self) -> None:
        """Another gateway deleted it."""
        self.stream.group_gone(self._name)
        if self.whole is self:
            self._store.deleted_elsewhere(self)
        else:
            self.whole.piece_gone(self)

    def take(self, limit: int, holder: Holder, visibility_ms: int) -> Lease | None:
        return None if self.deleted else super().take(limit, holder, visibility_ms)

    # ---------------------------------------------------------------------------------------------------------- gaps

    def missed(self, gaps: Sequence[Gap], *, told: bool) -> None:
        """The stream dropped these before the group came to them. `told`: consumers hear of it now."""
        self._gaps = [*self._gaps, *gaps][-GAPS_KEPT:]
        if told and gaps:
            self._tell_gap()

    def take_gaps(self) -> list[Gap]:
        gaps, self._gaps = self._gaps, []
        return gaps

    def put_back_gaps(self, gaps: Sequence[Gap]) -> None:
        self.missed(gaps, told=False)

    def on_gap(self, tell: Callable[[], None]) -> None:
        self._tell_gap = tell
