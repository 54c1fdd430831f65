"""A stream at a gateway of several clusters: one stream to clients, made of a part for each place that has or had it.

Publishes are sent as for any queue that moves (`placed`). Readers continue from place to place: see `joined`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from backend_store.client.groups import GroupInfo
from backend_store.client.ranges import PartitionOffsets, RangePage, Render
from backend_store.core.log.cursor import decode_cursor, encode_positions
from backend_store.metadata.sharing import known_places
from backend_store.model import (
    ClusterAway,
    NotFound,
    QueueDefinition,
    QueueNotFound,
    QueueStats,
    Unavailable,
    Whereabouts,
)
from backend_store.node.views.group import Mode
from backend_store.remote.queues.joined import JoinedParts, Site, place_of, shares_of
from backend_store.remote.queues.placed import PlacedQueue
from backend_store.remote.queues.placed_groups import PlacedGroup, has_settled, whole_info
from backend_store.remote.queues.queue import RemoteQueue
from backend_store.remote.queues.streams import RemoteGroup, RemoteStream, answer
from backend_store.service.groups import Seen

T = TypeVar("T")


class _Known(NamedTuple):
    """The places of a stream by one version of its definition. Requests based on them name that version, so that a
    place that knows a newer one refuses them."""

    version: int
    streams: list[RemoteStream]
    """The oldest place first."""
    floors: list[int]


class PlacedStream(PlacedQueue):
    """The whole of a stream in several places. It owns the stream's groups and the joined partitions of readers."""

    _readers_parts: JoinedParts | None = None

    @property
    def sites(self) -> list[Site]:
        """The places with their floors, the oldest first."""
        return sorted({Site(one.floor, one.place) for one in known_places(self.definition)})

    def stream_at(self, place: Whereabouts) -> RemoteStream | ClusterAway:
        found = self._at.get(place) or self._missing.get(place)
        if found is None:
            return ClusterAway(f"stream {self.name!r} is no longer there", retry_after_ms=500)
        assert isinstance(found, RemoteStream | ClusterAway), "it is a stream wherever it lies"
        return found

    def _part(self, definition: QueueDefinition) -> RemoteQueue:
        return RemoteStream(self._store, definition, owner=self.owner)

    def _place_parts(self) -> None:
        super()._place_parts()
        if self._readers_parts is not None:
            self._readers_parts.changed()
        for group in self.groups.values():
            if isinstance(group, PlacedGroup):
                group.come([one for one in group.in_places if one.stream in self._known_streams])

    async def hear(self) -> None:
        """Returns once all that the home cluster has sent by now is applied here. Raises `PushqError`."""
        await self._store.hear()

    # ------------------------------------------------------------------------------------------------------ readers

    @property
    def parts(self) -> JoinedParts:
        """The partitions as readers here see them, over all places. Raises `LookingUp` until they are known."""
        parts = self._readers_parts
        if parts is None:
            parts = self._readers_parts = JoinedParts(self)
        parts.used()
        if not parts.is_ready:
            self.known(f"the partitions of {self.name!r}", "parts", parts.ready, is_used_up=True)
        return parts

    def unread(self) -> None:
        """Stops following the stream: there has been no reader here for a while."""
        if self._readers_parts is not None:
            self._readers_parts.close()
            self._readers_parts = None
            self.extras.pop("fanout", None)

    def ended_elsewhere(self) -> None:
        if self._readers_parts is not None:
            self._readers_parts.close()
            self._readers_parts = None

    # ------------------------------------------------------------------------------------------------------- groups

    def open_group(self, name: str, wanted: Any, reply: Callable[[Any], None]) -> None:
        answer(self, self._heard(self._opened_group(name, wanted)), reply)

    async def _heard(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work`. Raises `Unavailable` if a place no longer has the stream: this gateway has yet to receive the
        newer definition."""
        try:
            return await work
        except QueueNotFound:
            if self.deleted:
                raise
            raise Unavailable(f"stream {self.name!r} has moved to another cluster", retry_after_ms=500) from None

    async def _opened_group(self, name: str, wanted: Any) -> PlacedGroup:
        known = await self._places()
        seen = await _carried(known, name, self._is_strict)
        if all(one.mode is None for one in seen):
            at, share = await self._begins_at(known, wanted)
            await known.streams[at].opened_group(name, share, known.version)
            seen = await _carried(known, name, self._is_strict)
        mode = next((one.mode for one in seen if one.mode is not None), None)
        if mode is None:
            raise NotFound(f"group {name!r} of stream {self.name!r} was deleted")
        group = self.groups.get(name)
        if not isinstance(group, PlacedGroup) or group.mode != mode:
            group = self.groups[name] = PlacedGroup(self, name, mode)
        there = [stream for stream, one in zip(known.streams, seen, strict=True) if one.mode is not None]
        opened = [await stream.opened_group(name, "latest", known.version) for stream in there]
        self._come(group, known, opened)
        return group

    def _come(self, group: PlacedGroup, known: _Known, there: Sequence[RemoteGroup]) -> None:
        if known.version == self.definition.version:  # else the parts come, or came, by a newer version
            group.come(there)
        group.follow()

    async def look_after(self, group: PlacedGroup) -> None:
        """Carries a group to the next place if it may continue there, and updates its parts. Raises `PushqError`."""
        name = group.group
        assert name is not None, "it has a name"
        known = await self._places()
        seen = await _carried(known, name, self._is_strict)
        there = [
            stream.group_here(name, one.mode)
            for stream, one in zip(known.streams, seen, strict=True)
            if one.mode is not None
        ]
        if there:
            self._come(group, known, there)
        elif known.version == self.definition.version:
            self.group_ended(name)

    @property
    def _is_strict(self) -> bool:
        return self.config.ordering == "strict"

    def has_all_of(self, groups: Sequence[RemoteQueue]) -> bool:
        """Whether a group with these parts is in every place from its first one on."""
        homes = [home for group in groups for home in group.homes]
        there = [any(home in homes for home in stream.homes) for stream in self._known_streams]
        return any(there) and all(there[there.index(True) :])

    def group_of(self, token: str, name: str, mode: Mode) -> RemoteGroup:
        """The part of a group in the place of a token's message. Raises `ClusterAway`."""
        stream = self._part_of(token)
        assert isinstance(stream, RemoteStream), "it is a stream wherever it lies"
        return stream.group_here(name, mode)

    def group_ended(self, name: str) -> None:
        """Called when a group was deleted elsewhere."""
        group = self.group_gone(name)
        if group is not None:
            self._store.deleted_elsewhere(group)

    def group_gone(self, name: str) -> RemoteQueue | None:
        found = self.groups.pop(name, None)
        if found is not None:
            found.deleted = True
        return found

    def put_group(self, name: str, wanted: Any, mode: Mode | None, reply: Callable[[Any], None]) -> None:
        answer(self, self._heard(self._group_put(name, wanted, mode)), reply)

    async def _group_put(self, name: str, wanted: Any, mode: Mode | None) -> GroupInfo:
        known = await self._places()
        version, streams, _ = known
        seen = await _seen(known, name)
        there = [at for at, one in enumerate(seen) if one.mode is not None]
        has = seen[there[0]].mode if there else None
        if there and (wanted is None or mode not in (None, has)):
            await streams[there[0]].group_put(name, None, mode, version)  # raises what is wrong, if anything
        else:
            at, share = await self._begins_at(known, wanted)
            for earlier in [one for one in there if one < at]:
                await streams[earlier].group_put(name, "latest", has, version)
            await streams[at].group_put(name, share, mode or has, version)
            for later in [one for one in there if one > at]:  # the group reaches these in their turn
                with suppress(NotFound):
                    await streams[later].group_deleted(name, version)
        found = whole_info(name, await _carried(known, name, self._is_strict))
        if found is None:
            raise NotFound(f"group {name!r} of stream {self.name!r} was deleted")
        return found

    def delete_group(self, name: str, reply: Callable[[Any], None]) -> None:
        answer(self, self._heard(self._group_deleted(name)), reply)

    async def _group_deleted(self, name: str) -> list[RemoteQueue]:
        """Deletes a group in the oldest place first: a gateway that found it there would carry it to the next."""
        was_there = False
        version, streams, _ = await self._places()
        for stream in streams:
            with suppress(NotFound):
                await stream.group_deleted(name, version)
                was_there = True
            stream.group_gone(name)
        if not was_there:
            raise NotFound(f"stream {self.name!r} has no group {name!r}")
        found = self.group_gone(name)
        return [found] if found is not None else []

    def list_groups(self) -> list[GroupInfo]:
        """All groups of the stream. Raises `LookingUp`."""
        return self.known(
            f"the groups of {self.name!r}", "groups", lambda: self._heard(self._all_groups()), is_used_up=True
        )

    def find_group(self, name: str) -> GroupInfo | None:
        """A group by its name; None if there is none. Raises `LookingUp`."""

        async def ask() -> Any:
            return whole_info(name, await self._heard(self._seen(name)))

        what = f"group {name!r} of {self.name!r}"
        found: GroupInfo | None = self.known(what, f"group {name}", ask, is_used_up=True)
        return found

    async def _all_groups(self) -> list[GroupInfo]:
        streams = await self._streams()
        fresh = [await stream.group_seen("") if len(streams) > 1 else Seen(None, []) for stream in streams]
        lists = [{one.name: Seen(one.mode, one.lag) for one in await stream.all_groups()} for stream in streams]
        names = sorted({name for listed in lists for name in listed})
        found = []
        for name in names:
            info = whole_info(name, [listed.get(name, new) for listed, new in zip(lists, fresh, strict=True)])
            assert info is not None, "it is listed"
            found.append(info)
        return found

    async def _seen(self, name: str) -> list[Seen]:
        return await _seen(await self._places(), name)

    async def carry_groups(self) -> bool:
        """Carries on all groups that have settled the messages of former places. Returns whether all groups have
        reached the newest place. Raises `PushqError`."""
        known = await self._places()
        listed = [{one.name: one for one in await stream.all_groups()} for stream in known.streams]
        behind = sorted({name for infos in listed[:-1] for name in infos} - listed[-1].keys())
        left = [
            name
            for name in behind
            if self._has_more_there(next(infos[name] for infos in reversed(listed) if name in infos))
            or (await _carried(known, name, self._is_strict))[-1].mode is None
        ]
        return not left

    async def hand_on_gaps(self, place: Whereabouts) -> None:
        """Gives groups the gaps that their consumers were not told of in a former place, in the newest one. To be
        called when nothing is left in that place and before it is forgotten. Raises `PushqError`."""
        known, former = await self._places(), self.stream_at(place)
        if isinstance(former, ClusterAway):
            raise former
        with suppress(QueueNotFound):  # it is dropped already, and the definition does not say so yet
            for info in await former.all_groups():
                if info.gaps:
                    with suppress(NotFound):
                        await known.streams[-1].group_missed(info.name, info.gaps, known.version)

    def _has_more_there(self, info: GroupInfo) -> bool:
        """Whether a group goes on to no other place yet."""
        is_ordered = info.mode == "offsets" or self._is_strict
        return is_ordered and any(one.lag for one in info.lag)

    @property
    def _known_streams(self) -> list[RemoteStream]:
        """The streams of all places that can be reached, the oldest first."""
        found = [self.stream_at(site.place) for site in self.sites]
        return [stream for stream in found if isinstance(stream, RemoteStream)]

    async def _streams(self) -> list[RemoteStream]:
        return (await self._places()).streams

    async def _places(self) -> _Known:
        """All places of the stream; on return each of them knows this version of the definition. Raises
        `PushqError`."""
        definition, sites = self.definition, self.sites
        found = [self.stream_at(site.place) for site in sites]
        for stream in found:
            if isinstance(stream, ClusterAway):
                raise stream
            if not stream.home.adopted.knows(definition):
                await stream.home.adopted.tell([definition])
        streams = [stream for stream in found if isinstance(stream, RemoteStream)]
        return _Known(definition.version, streams, [site.floor for site in sites])

    async def _begins_at(self, known: _Known, wanted: Any) -> tuple[int, Any]:
        """Returns the index of the place in which a group begins, and the start there. Raises `PushqError`."""
        streams, floors = known.streams, known.floors
        last = len(streams) - 1
        if not last or wanted is None or wanted == "latest":
            return last, wanted
        if isinstance(wanted, dict) and "seq" in wanted:
            return place_of(wanted["seq"], floors), wanted
        if isinstance(wanted, dict) and "cursor" in wanted:
            stand = decode_cursor(wanted["cursor"])
            if stand.is_of(self.uid):
                shares = shares_of(stand, floors)
                if not shares:
                    return 0, wanted
                at = max(shares)  # a reader that has reached a place has read all earlier ones
                return at, {"cursor": encode_positions(shares[at], uid=self.uid)}
        for at, stream in enumerate(streams[:-1]):
            start, ends = await stream.began(wanted)
            if any(place < ends.get(number, 0) for number, place in start.places.items()):
                return at, wanted
        return last, wanted

    # -------------------------------------------------------------------------------------------------------- ranges

    def offsets_of(self) -> list[PartitionOffsets]:
        """The offsets of each partition, from its beginning in the oldest place to its end in the newest. Raises
        `LookingUp`."""

        async def ask() -> list[PartitionOffsets]:
            found: dict[int, PartitionOffsets] = {}
            for stream in await self._streams():
                for one in await stream.asked_offsets():
                    before = found.get(one.partition)
                    found[one.partition] = one if before is None else one._replace(first=before.first)
            return [found[number] for number in sorted(found)]

        return self.known(f"the offsets of {self.name!r}", "offsets", lambda: self._heard(ask()), is_used_up=True)

    async def read_range(
        self, number: int, start: int, until: int | None, *, messages_max: int, bytes_max: int, render: Render
    ) -> RangePage:
        """Reads a range; a page never spans two places."""
        return await self._heard(self._read(number, start, until, messages_max, bytes_max, render))

    async def _read(
        self, number: int, start: int, until: int | None, messages_max: int, bytes_max: int, render: Render
    ) -> RangePage:
        _, streams, floors = await self._places()
        if len(streams) == 1:
            return await streams[0].read_range(
                number, start, until, messages_max=messages_max, bytes_max=bytes_max, render=render
            )
        there = [{one.partition: one for one in await stream.asked_offsets()} for stream in streams]
        have = [at for at, offsets in enumerate(there) if number in offsets]
        last = have[-1] if have else len(streams) - 1
        at = next((at for at in have[:-1] if start < there[at][number].next), last)
        end = there[at][number].next if at != last else until
        if until is not None and end is not None:
            end = min(end, until)
        page = await streams[at].read_range(
            number, start, end, messages_max=messages_max, bytes_max=bytes_max, render=render
        )
        whole = page.at._replace(first=there[have[0]][number].first, next=there[last][number].next)
        following = page.next
        if at != last and end is not None and page.next >= end:
            following = floors[next(one for one in have if one > at)]
            following = following if until is None else min(following, until)
        return RangePage(page.messages, following, whole)

    # -------------------------------------------------------------------------------------------------------- numbers

    def stats(self) -> QueueStats:
        consumers = self.consumers + sum(group.consumers for group in self.groups.values())
        return dataclasses.replace(super().stats(), consumers=consumers)


async def _seen(known: _Known, name: str) -> list[Seen]:
    """What a group has in each place. Raises `PushqError`."""
    if len(known.streams) == 1:
        info = await known.streams[0].group_info(name)
        return [Seen(info.mode, info.lag) if info is not None else Seen(None, [])]
    return [await stream.group_seen(name) for stream in known.streams]


async def _carried(known: _Known, name: str, is_strict: bool) -> list[Seen]:
    """As `_seen`, after carrying the group to all places that it may enter."""
    seen = await _seen(known, name)
    mode: Mode | None = None
    is_due = True
    for at, stream in enumerate(known.streams):
        if seen[at].mode is None and mode is not None and is_due:
            await stream.group_carried(name, mode, known.version)
            seen[at] = await stream.group_seen(name)
        mode = seen[at].mode or mode
        is_ordered = mode == "offsets" or is_strict
        is_due = is_due and (mode is None or not is_ordered or has_settled(seen[at]))
    return seen
