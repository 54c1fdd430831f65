"""A stream in a backend process, and its consumer groups; has the shapes of `client.queue` and `client.groups`.

To the backend a group is a queue of its own: the gateway grants credit for its consumers, and leases come. Receipts
name the stream only, so the outcome of a settlement is passed to whichever group holds the lease.
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
from backend_store.core.leases.leases import Holder, Lease
from backend_store.model import NotFound, PushqError, QueueStats
from backend_store.node.limits import GROUPS_PER_STREAM_MAX
from backend_store.node.views.group import Mode
from backend_store.remote.limits import GAPS_KEPT, GROUP_IDLE_SECONDS
from backend_store.remote.queues.leases import Stock, Unassigned
from backend_store.remote.queues.queue import RemoteQueue
from backend_store.remote.queues.tails import RemoteParts, started
from backend_store.service.groups import (
    AddGaps,
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
    """The leases of a group with offsets: each partition goes to one consumer at a time, in offset order."""

    def __init__(self) -> None:
        super().__init__()
        self._latest: dict[int, Lease] = {}
        """Partition → the lease handed out last."""

    def take(self, visibility_ms: int, limit: int, holder: Holder) -> Lease | None:
        lease = super().take(visibility_ms, limit, holder)
        if lease is not None:
            self._latest[lease.state.partition] = lease
        return lease

    def _next(self, line: Sequence[Unassigned], holder: Holder) -> Unassigned | None:
        return next((one for one in line if self._at_it(one.state.partition) in (None, holder)), None)

    def _at_it(self, partition: int) -> Holder | None:
        """The consumer that holds a lease in a partition; None if none does."""
        latest = self._latest.get(partition)
        if latest is None or not latest.bits:
            held = [one for parts in self._held.values() for one in parts if one.bits]
            latest = next((one for one in held if one.state.partition == partition), None)
            if latest is None:
                self._latest.pop(partition, None)
                return None
            self._latest[partition] = latest
        return latest.holder

    def clear_partition(self, partition: int) -> list[tuple[str, int]]:
        """Removes a partition's messages that no consumer took. Returns them as (token, bits), last first."""
        found = [one for line in self._waiting.values() for one in line if one.state.partition == partition]
        cleared = [(one.token, one.bits) for one in found]
        for token, bits in cleared:
            self.void(token, bits)
        return cleared[::-1]


def _nothing() -> None:
    """Until a listener is set."""


class RemoteStream(RemoteQueue):
    """A stream at one shard. It owns its consumer groups as known here, and the partitions that readers here follow."""

    groups: dict[str, RemoteQueue]
    _parts: RemoteParts | None = None
    _unread: Callable[[], None] = staticmethod(_nothing)
    _look_at = GROUPS_PER_STREAM_MAX
    """The number of groups at which unused ones are next forgotten; afterwards twice the number that was left."""

    # ------------------------------------------------------------------------------------------------------- groups

    def open_group(self, name: str, wanted: Any, reply: Callable[[Any], None]) -> None:
        answer(self, self.opened_group(name, wanted, self.definition.version), reply)

    async def opened_group(self, name: str, wanted: Any, version: int) -> RemoteGroup:
        """Opens a group, making it if needed. `version`: of the definition by which the caller chose where to ask.
        Raises `PushqError`."""
        asked = OpenGroup(self.place_there, name, wanted, version)
        opened = _opened(await self.ask(asked, may_repeat=True))
        group = self.group_here(name, opened.mode)
        group.missed(opened.gaps, told=False)
        return group

    def group_here(self, name: str, mode: Mode) -> RemoteGroup:
        """The object for an existing group, made on first use."""
        group = self.groups.get(name)
        if not isinstance(group, RemoteGroup) or group.mode != mode:
            self._forget_unused()
            group = self.groups[name] = RemoteGroup(self, name, mode)
        group.asked_at = self._store.now_s()
        return group

    def put_group(self, name: str, wanted: Any, mode: Mode | None, reply: Callable[[Any], None]) -> None:
        answer(self, self.group_put(name, wanted, mode, self.definition.version), reply)

    async def group_put(self, name: str, wanted: Any, mode: Mode | None, version: int) -> GroupInfo:
        """Creates or changes a group. Raises `PushqError`."""
        return _info(await self.ask(PutGroup(self.place_there, name, wanted, mode, version)))

    def delete_group(self, name: str, reply: Callable[[Any], None]) -> None:
        async def ask() -> list[RemoteQueue]:
            await self.group_deleted(name, self.definition.version)
            found = self.group_gone(name)
            return [found] if found is not None else []

        answer(self, ask(), reply)

    async def group_deleted(self, name: str, version: int) -> None:
        """Deletes a group at the backend. Raises `PushqError`."""
        await self.ask(DeleteGroup(self.place_there, name, version))

    async def group_carried(self, name: str, mode: Mode, version: int) -> None:
        """Makes a group here that comes from another place of the stream. Raises `PushqError`."""
        await self.ask(CarryGroup(self.place_there, name, mode, version), may_repeat=True)

    async def group_missed(self, name: str, gaps: Sequence[Gap], version: int) -> None:
        """Gives a group gaps of another place of the stream. Raises `PushqError`."""
        await self.ask(AddGaps(self.place_there, name, list(gaps), version), may_repeat=True)

    async def began(self, wanted: Any) -> Started:
        """Returns where a reader would begin, and the end of each partition. Raises `PushqError`."""
        return started(await self.ask(StartReading(self.place_there, wanted), may_repeat=True))

    async def group_seen(self, name: str) -> Seen:
        """Returns how far a group has come. Raises `PushqError`."""
        return _seen(await self.ask(LookAtGroup(self.place_there, name), may_repeat=True))

    def list_groups(self) -> list[GroupInfo]:
        """All groups of the stream. Raises `LookingUp`."""
        return self.known(f"the groups of {self.name!r}", "groups", self.all_groups, is_used_up=True)

    async def all_groups(self) -> list[GroupInfo]:
        """As `list_groups`, fetched page by page now. Raises `PushqError`."""
        found: list[GroupInfo] = []
        while True:
            after = found[-1].name if found else ""
            page = _infos(await self.ask(ListGroups(self.place_there, after), may_repeat=True))
            found += page
            if len(page) < GROUPS_PER_ASK_MAX:
                return found

    def find_group(self, name: str) -> GroupInfo | None:
        """A group by its name; None if there is none. Raises `LookingUp`."""

        what = f"group {name!r} of {self.name!r}"
        return self.known(what, f"group {name}", partial(self.group_info, name), is_used_up=True)

    async def group_info(self, name: str) -> GroupInfo | None:
        """As `find_group`, fetched now. Raises `PushqError`."""
        found: GroupInfo | None = _maybe_info(await self.ask(FindGroup(self.place_there, name), may_repeat=True))
        return found

    def _forget_unused(self) -> None:
        """Forgets groups without use here: a gateway without consumers of a group is not told of its deletion."""
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
        """Marks a group as deleted and returns it; None if it is not known here."""
        found = self.groups.pop(name, None)
        if found is not None:
            found.deleted = True
        return found

    # ------------------------------------------------------------------------------------------------------ readers

    @property
    def parts(self) -> RemoteParts:
        """The partitions as readers here see them. Raises `LookingUp` until they are known."""
        parts = self._parts
        if parts is None:
            parts = self._parts = RemoteParts(self)
        parts.used_at = asyncio.get_running_loop().time()
        if not parts.is_ready:
            self.known(f"the partitions of {self.name!r}", "parts", parts.ready, is_used_up=True)
        return parts

    def follow(self, began: Callable[[RemoteParts], None], ended: Callable[[], None], *, is_new: bool) -> RemoteParts:
        """Follows the partitions of one place for the readers of the whole stream; see `RemoteParts`. `ended` is called
        when there has been no reader for a while."""
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
    """Awaits a request about a group in the background; `reply` gets its result or the error."""

    async def told() -> None:
        try:
            result = await work
        except PushqError as error:
            result = error
        except Exception:  # the caller must not wait for ever
            log.exception("a request about a group failed", queue=queue.name)
            result = PushqError("internal error; see the log")
        queue.forget_looks()
        reply(result)

    queue.background(told())


class RemoteGroup(RemoteQueue):
    """A consumer group. Its `RemoteStream` owns one object per group, for as long as it exists in the same mode."""

    def __init__(self, stream: RemoteStream, name: str, mode: Mode):
        super().__init__(stream._store, stream.definition, owner=stream.owner)
        self.stream = stream
        self.place_there = self.place_there._replace(group=name)
        self._name = name
        self._mode: Mode = mode
        self.asked_at = stream._store.now_s()
        """When the group was last opened here."""
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
        """Whether it has no consumers and no leases here, and no credit that would have to be taken back."""
        return not (
            self.consumers or self.whole.consumers or self.stock.is_held or self.stock.times or len(self._grants)
        )

    @property
    def gone(self) -> PushqError:
        if self.stream.deleted:
            return self.stream.gone
        return NotFound(f"group {self._name!r} of stream {self.name!r} was deleted")

    def gone_elsewhere(self) -> None:
        """Called when another gateway deleted the group."""
        self.stream.group_gone(self._name)
        if self.whole is self:
            self._store.deleted_elsewhere(self)
        else:
            self.whole.piece_gone(self)

    def take(self, limit: int, holder: Holder, visibility_ms: int) -> Lease | None:
        return None if self.deleted else super().take(limit, holder, visibility_ms)

    def lease_ended(self, token: str, bits: int, *, is_lost: bool) -> None:
        if not is_lost and isinstance(self.stock, TurnStock):
            # The partition's consumer may go on at another gateway: what comes after its messages is not for others.
            self.stock.void(token, bits)
            for partition in {part.state.partition for part in self.stock.parts(token) if part.bits & bits}:
                for behind, rest in self.stock.clear_partition(partition):
                    self.tell_unsent(behind, rest)
            self._grant_soon()
        super().lease_ended(token, bits, is_lost=is_lost)

    # ---------------------------------------------------------------------------------------------------------- gaps

    def missed(self, gaps: Sequence[Gap], *, told: bool) -> None:
        """Adds gaps: messages that retention dropped before the group reached them. `told`: consumers hear of them
        now."""
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
