"""A queue made of several parts: the lanes of independent hosts, or the places that it has in several clusters.

Each part has messages of its own, and its receipts name the part. So a settlement goes to the part of its receipt, and
each part is granted a share of the credit for consumers here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from backend_store.client.dead_letters import LetterFilter
from backend_store.client.layout import PartitionInfo
from backend_store.client.queue import Purge, VerdictsReply, remember
from backend_store.core.leases.leases import Holder, Lease
from backend_store.model import (
    ClusterAway,
    OnTheMove,
    Original,
    Published,
    PushqError,
    QueueNotFound,
    QueueStats,
    Verdict,
)
from backend_store.remote.queues.queue import Look, RemoteQueue
from backend_store.remote.redrives.redrives import letters_of
from backend_store.remote.redrives.whole_redrives import WholeLetters, WholeRedrives, whole_letters

Ask = Callable[[RemoteQueue, list[str], VerdictsReply], None]


class PartedQueue(RemoteQueue):
    """Base of queues made of parts; it owns its parts (`pieces`)."""

    pieces: Sequence[RemoteQueue]
    _turn = 0

    def _no_redrives(self) -> WholeRedrives:
        return WholeRedrives(self)

    @property
    def leaves(self) -> list[RemoteQueue]:
        """Its parts, with parts that have parts themselves replaced by those: each leaf is at one home."""
        return [leaf for part in self.pieces for leaf in (part.leaves if isinstance(part, PartedQueue) else [part])]

    @property
    def _delivering(self) -> Sequence[RemoteQueue]:
        """The parts that deliver to consumers."""
        raise NotImplementedError

    def _part_of(self, token: str) -> RemoteQueue:
        """The part of a token's message; for an invalid token any part, as all refuse it. Raises `ClusterAway`."""
        raise NotImplementedError

    @property
    def _anyone(self) -> RemoteQueue:
        """The part that is asked if a call has no receipts."""
        raise NotImplementedError

    def _joined(self, part: RemoteQueue) -> None:
        """Connects a new part: it grants its share of the consumers' credit, and wakes them."""
        part.on_ready(lambda: self._wake(), lambda: self._share_of(part))

    # ------------------------------------------------------------------------------------------------------- settle

    def settle(self, receipts: list[str], reply: VerdictsReply) -> None:
        self._judge(receipts, reply, lambda part, some, told: part.settle(some, told))

    def settle_quietly(self, receipts: list[str]) -> None:
        self._judge(receipts, _unheard, lambda part, some, told: part.settle_quietly(some))

    def give_back(
        self,
        receipts: list[str],
        delay_ms: int | None,
        reply: VerdictsReply,
        reason: str | None = None,
        *,
        tried: bool = True,
    ) -> None:
        def ask(part: RemoteQueue, some: list[str], told: VerdictsReply) -> None:
            part.give_back(some, delay_ms, told, reason, tried=tried)

        self._judge(receipts, reply, ask)

    def extend(self, receipts: list[str], visibility_ms: int, reply: VerdictsReply) -> None:
        self._judge(receipts, reply, lambda part, some, told: part.extend(some, visibility_ms, told))

    def _judge(self, receipts: list[str], reply: VerdictsReply, ask: Ask) -> None:
        """Asks each part about its own receipts. If a part does not answer, only its receipts get the error."""
        found: dict[RemoteQueue | ClusterAway, list[int]] = {}
        away: dict[str, ClusterAway] = {}
        for number, receipt in enumerate(receipts):
            part: RemoteQueue | ClusterAway
            try:
                part = self._part_of(receipt[:-2])
            except ClusterAway as error:
                part = away.setdefault(error.detail, error)
            found.setdefault(part, []).append(number)
        if len(found) <= 1:
            _ask(next(iter(found), self._anyone), receipts, reply, ask)
            return
        answer = _Verdicts(len(receipts), len(found), reply)
        for part, numbers in found.items():
            _ask(part, [receipts[number] for number in numbers], partial(answer.told, numbers), ask)

    async def take_over(self, wanted: Mapping[str, int], holder: Holder) -> list[Lease]:
        """Takes from each part what it has; a part that does not answer keeps its leases."""
        by_part: dict[RemoteQueue, dict[str, int]] = {}
        for token, bits in wanted.items():
            with suppress(ClusterAway):
                by_part.setdefault(self._part_of(token), {})[token] = bits
        asked = (part.take_over(some, holder) for part, some in by_part.items())
        found: list[Lease] = []
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, list):
                found += answer
            elif not isinstance(answer, PushqError):
                raise answer
        return found

    def settle_lease(self, lease: Lease) -> None:
        self._part_of(lease.token).settle_lease(lease)

    def give_back_lease(self, lease: Lease) -> None:
        self._part_of(lease.token).give_back_lease(lease)

    def unsent(self, lease: Lease) -> None:
        self._part_of(lease.token).unsent(lease)

    def detach(self, lease: Lease) -> None:
        self._part_of(lease.token).detach(lease)

    def undeliverable(self, lease: Lease) -> None:
        self._part_of(lease.token).undeliverable(lease)

    def end_unreadable(self, lease: Lease) -> None:
        self._part_of(lease.token).end_unreadable(lease)

    # ----------------------------------------------------------------------------------------------------- delivery

    def take(self, limit: int, holder: Holder, visibility_ms: int) -> Lease | None:
        """Leases from the parts in rotation: up to `limit` messages of the first part that has some."""
        parts = self._delivering
        for _ in parts:
            self._turn += 1
            part = parts[self._turn % len(parts)]
            if (lease := part.take(limit, holder, visibility_ms)) is not None:
                return lease
        return None

    @property
    def has_ready(self) -> bool:
        return any(part.has_ready for part in self._delivering)

    @property
    def ready(self) -> int:
        return sum(part.ready for part in self._delivering)

    @property
    def is_looking(self) -> bool:
        return any(part.is_looking for part in self._delivering)

    async def next_look(self) -> None:
        """Returns with the first answer of the parts that are being asked: a silent part delays no caller."""
        looking = [asyncio.ensure_future(part.next_look()) for part in self._delivering if part.is_looking]
        if not looking:
            return
        try:
            await asyncio.wait(looking, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for look in looking:
                look.cancel()
            await asyncio.gather(*looking, return_exceptions=True)

    def wanted_changed(self) -> None:
        for part in self.pieces:
            part.wanted_changed()

    def waiting_for(self, visibility_ms: int) -> int:
        return sum(part.waiting_for(visibility_ms) for part in self.pieces)

    def _share_of(self, part: RemoteQueue) -> Mapping[int, int]:
        """The credit of one part, visibility timeout → messages: a share of what consumers here would take beyond what
        has come from the other parts, and at least one message, as all ready messages may be in this part."""
        delivering = self._delivering
        if len(self.pieces) == 1:
            return self._wanted()
        if part not in delivering:
            return {}
        found = {}
        for visibility_ms, wanted in self._wanted().items():
            here = sum(other.waiting_for(visibility_ms) for other in delivering if other is not part)
            if (rest := wanted - here) > 0:
                found[visibility_ms] = -(-rest // len(delivering))
        return found

    def held_by(self, partition: int, offset: int) -> Lease | None:
        found = (part.held_by(partition, offset) for part in self.pieces)
        return next((lease for lease in found if lease is not None), None)

    # ------------------------------------------------------------------------------------------------ administration

    def dead_letters(self, wanted: LetterFilter, to: str | None, *, own: bool) -> WholeLetters:
        """The dead letters of all parts."""
        return whole_letters([letters_of(leaf, wanted, to, own=own) for leaf in self.leaves])

    async def purge(self, purge_id: str) -> Purge:
        """Purges all parts; after an error, some may be purged and some not."""
        done = await asyncio.gather(*(part.purge(purge_id) for part in self.pieces))
        purge = Purge(purge_id, sum(one.total for one in done))
        remember(self.purges, purge)
        return purge

    async def cancel(self, message_id: str) -> str:
        """Cancels a message in the part that has it; the parts are asked in turn, as the id does not always name it."""
        outcome = "unknown"
        for part in self.pieces:
            outcome = await part.cancel(message_id)
            if outcome != "unknown":
                break
        return outcome


class _Verdicts:
    """Combines the parts' answers about their receipts into one."""

    def __init__(self, receipts: int, parts: int, reply: VerdictsReply) -> None:
        self._receipts = receipts
        self._parts = parts
        self._reply = reply
        self._answers: dict[int, Verdict] = {}
        self._errors: list[PushqError] = []

    def told(self, numbers: list[int], result: list[Verdict] | PushqError) -> None:
        if isinstance(result, PushqError):
            self._errors.append(result)
            result = [Verdict(False, result.code)] * len(numbers)
        self._answers.update(zip(numbers, result, strict=True))
        if len(self._answers) == self._receipts:
            is_refused = len(self._errors) == self._parts
            self._reply(self._errors[0] if is_refused else [self._answers[n] for n in range(self._receipts)])


def whole_look(looks: Sequence[Look]) -> Look:
    """Combines the numbers of the parts into those of the queue."""
    first, *others = looks
    if not others:
        return first
    stats = {name: sum(getattr(one.stats, name) for one in looks) for name in QueueStats.__dataclass_fields__}
    stats["oldest_age_ms"] = max(one.stats.oldest_age_ms for one in looks)
    ended: Counter[str] = Counter()
    for one in looks:
        ended.update(one.ended)
    layout = _whole_layout([info for one in looks for info in one.layout or ()])
    has_layout = any(one.layout is not None for one in looks)
    held = sum(one.held for one in looks)
    return Look(first.place, QueueStats(**stats), dict(ended), layout if has_layout else None, held)


def _whole_layout(infos: Sequence[PartitionInfo]) -> list[PartitionInfo]:
    """Sorts partitions by number; those of the same number in several clusters are shown as one."""
    found: dict[int, PartitionInfo] = {}
    for info in sorted(infos, key=lambda info: info.partition):
        before = found.get(info.partition)
        found[info.partition] = info if before is None else before.with_that_of(info)
    return list(found.values())


def recalled(results: Sequence[Published | PushqError]) -> Published | PushqError:
    """Combines what several parts remember of a call's messages into one answer."""
    known: dict[int, Original | PushqError] = {}
    answer: Published | None = None
    for result in results:
        if isinstance(result, OnTheMove | QueueNotFound):
            continue
        if isinstance(result, PushqError) or result.is_repeat:
            return result
        answer = answer or result
        for number, other in (result.others or {}).items():
            if number not in known or isinstance(known[number], OnTheMove):
                known[number] = other
    if answer is None:
        return next(result for result in results if isinstance(result, PushqError))
    return msgspec.structs.replace(answer, others=known or None)


def _ask(part: RemoteQueue | ClusterAway, receipts: list[str], told: VerdictsReply, ask: Ask) -> None:
    if isinstance(part, ClusterAway):
        told(part)
    else:
        ask(part, receipts, told)


def _unheard(result: object) -> None:
    """Ignores an answer."""
