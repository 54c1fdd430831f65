"""A queue that is put together from others: the lanes of independent hosts, or the places where it lies.

Each part has messages of its own, and gives out receipts that say whose they are. So what is done with a receipt goes
to its part, and what consumers here would take is granted to all parts, a share to each.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from backend_store.client.dead_letters import LetterFilter
from backend_store.client.layout import PartitionInfo
from backend_store.client.queue import Purge, VerdictsReply, remember
from backend_store.core.leases import Holder, Lease
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
from backend_store.remote.queue import Look, RemoteQueue
from backend_store.remote.redrives import letters_of
from backend_store.remote.whole_redrives import WholeLetters, WholeRedrives, whole_letters

Ask = Callable[[RemoteQueue, list[str], VerdictsReply], None]


class PartedQueue(RemoteQueue):
    """See the file's first sentence."""

    pieces: Sequence[RemoteQueue]
    _turn = 0

    def _no_redrives(self) -> WholeRedrives:
        return WholeRedrives(self)

    @property
    def leaves(self) -> list[RemoteQueue]:
        """Its parts, and of those that are put together themselves their parts: each lies at one home."""
        return [leaf for part in self.pieces for leaf in (part.leaves if isinstance(part, PartedQueue) else [part])]

    @property
    def _delivering(self) -> Sequence[RemoteQueue]:
        """The parts that consumers are given messages of."""
        raise NotImplementedError

    def _part_of(self, token: str) -> RemoteQueue:
        """The part whose message a token names; what is no token is refused by any. Raises `ClusterAway`."""
        raise NotImplementedError

    @property
    def _anyone(self) -> RemoteQueue:
        """Who is asked about no receipt at all."""
        raise NotImplementedError

    def _joined(self, part: RemoteQueue) -> None:
        """A part is new: it grants what consumers here would take, and wakes them."""
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
        """Asks each part about its own receipts. Where some part does not answer, its receipts alone have the error."""
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

    def settle_lease(self, lease: Lease) -> None:
        self._part_of(lease.token).settle_lease(lease)

    def give_back_lease(self, lease: Lease) -> None:
        self._part_of(lease.token).give_back_lease(lease)

    def unsent(self, lease: Lease) -> None:
        self._part_of(lease.token).unsent(lease)

    def undeliverable(self, lease: Lease) -> None:
        self._part_of(lease.token).undeliverable(lease)

    def end_unreadable(self, lease: Lease) -> None:
        self._part_of(lease.token).end_unreadable(lease)

    # ----------------------------------------------------------------------------------------------------- delivery

    def take(self, limit: int, holder: Holder, visibility_ms: int) -> Lease | None:
        """From one part after the other."""
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
        """Of whoever is asked; a part that does not answer keeps nobody waiting."""
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
        """What a part is granted of what consumers here would take beyond what has come from the others: a share, and
        at least one message, for all that is ready may lie there."""
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
        """Those of all parts."""
        return whole_letters([letters_of(leaf, wanted, to, own=own) for leaf in self.leaves])

    async def purge(self, purge_id: str) -> Purge:
        """Of all parts; an error says that some may be purged and some not."""
        done = await asyncio.gather(*(part.purge(purge_id) for part in self.pieces))
        purge = Purge(purge_id, sum(one.total for one in done))
        remember(self.purges, purge)
        return purge

    async def cancel(self, message_id: str) -> str:
        """By the part that has it, which its id does not always say."""
        outcome = "unknown"
        for part in self.pieces:
            outcome = await part.cancel(message_id)
            if outcome != "unknown":
                break
        return outcome


class _Verdicts:
    """What the parts say of their receipts, put together as one answer."""

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
    """The numbers of a queue from those of its parts."""
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
    """By number. Partitions of the same number in several clusters are shown as one."""
    found: dict[int, PartitionInfo] = {}
    for info in sorted(infos, key=lambda info: info.partition):
        before = found.get(info.partition)
        found[info.partition] = info if before is None else before.with_that_of(info)
    return list(found.values())


def recalled(results: Sequence[Published | PushqError]) -> Published | PushqError:
    """What several know of a call's messages, which any of them may, as one answer."""
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
    """Nobody waits for this."""
