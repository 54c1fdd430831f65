"""Decides claims: whether an idempotency key is new, comes again with the same payload, or belongs to another one.

Key and payload are remembered in the partition's id store, side by side and for the same time. So a key that is known
without the payload was bound to another one, and to know that nothing must be read of the messages themselves. Beside
them stands where the call's messages begin. Where they do not lie together, or some were refused, each message that was
stored is remembered by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from backend_store.core.names import name_in_call
from backend_store.model import (
    Claim,
    IdempotencyMismatch,
    Offset,
    Original,
    Published,
    PushqError,
    QueueConfig,
)
from backend_store.node.calls import Call, ids_of
from backend_store.node.refusals import dedupe_full, unreadable_ids
from backend_store.storage.engine import StorageCorrupt

if TYPE_CHECKING:
    from backend_store.node.ids import IdStore
    from backend_store.node.partition import Partition
    from backend_store.node.placing import Places

_ONE_BY_ONE = 0
"""Instead of a place: the call's messages are known one by one. Other places are one more than the first offset."""


def only_new(
    ids: IdStore, elders: Sequence[Partition], calls: Sequence[Call], *, now_ms: int, window_ms: int
) -> list[bytes] | None:
    """Key and payload of each call that has a claim, one behind the other, where nobody knows any of them and there is
    room for all: nearly always. None where the calls must be asked one by one.
    """
    hashes = [one for call in calls if call.claim is not None for one in call.claim]
    if len(set(hashes)) < len(hashes):
        return None
    try:
        if ids.lookup(hashes, now_ms=now_ms, window_ms=window_ms):
            return None
        if any(elder.ids.lookup(hashes, now_ms=elder.log_ms(), window_ms=window_ms) for elder in elders):
            return None
        has_room = ids.has_room(len(hashes) + sum([call.messages for call in calls if call.claim is not None]))
    except StorageCorrupt:
        return None
    return hashes if has_room else None


def bind(ids: IdStore, hashes: Sequence[bytes], firsts: Sequence[int], *, now_ms: int) -> None:
    """Gives the store what `only_new` found. `firsts`: where each such call's messages begin, which lie together."""
    ids.add(hashes, [first + 1 for first in firsts for _ in range(2)], now_ms=now_ms)


class Known(Enum):
    """What there is to say of a claim that is no refusal and no whole call."""

    NEW = "new"
    ONE_BY_ONE = "one by one"


class _Again(NamedTuple):
    """An earlier call of the same cycle has this claim."""

    call: int


class _Bound(NamedTuple):
    payload: bytes
    call: int


class Claims:
    """One cycle's idempotency keys of one partition."""

    def __init__(self, ids: IdStore, elders: Sequence[Partition], *, partition: int, now_ms: int, config: QueueConfig):
        self._ids = ids
        self._elders = elders
        self._partition = partition
        self._now_ms = now_ms
        self._config = config
        self._bound: dict[bytes, _Bound] = {}
        """Keys that this cycle binds, with their payloads and the calls that do."""
        self._firsts: dict[int, int | None] = {}
        """Where the messages of calls begin that bind a key; None where they do not lie together."""
        self._others: Sequence[Mapping[int, Original | PushqError]] = ()
        self._places: Places | None = None
        self.settled: dict[int, Original | PushqError | _Again] = {}
        """Calls whose answer is known by their claim alone."""
        self.count = 0
        """Ids that the cycle's claims may add."""

    def ask(self, number: int, call: Call, *, added: int) -> Known | None:
        """Binds a call's key to its payload, or says that the key is known; None: then the call is settled.

        `added`: ids that this cycle adds beside.
        """
        assert call.claim is not None
        said = self._ask(number, call.claim, messages=call.messages, added=added)
        if isinstance(said, Known):
            return said
        self.settled[number] = said
        return None

    def _ask(self, number: int, claim: Claim, *, messages: int, added: int) -> Known | _Again | Original | PushqError:
        bound = self._bound.get(claim.key)
        if bound is not None:
            return _Again(bound.call) if bound.payload == claim.payload else _mismatch()
        try:
            known = self.find(claim)
            if known is None and not self._ids.has_room(added + self.count + len(claim) + messages):
                return dedupe_full()
        except StorageCorrupt as corrupt:
            return unreadable_ids(corrupt)
        if known is not None:
            return known
        self._bound[claim.key] = _Bound(claim.payload, number)
        self.count += len(claim) + messages
        return Known.NEW

    def find(self, claim: Claim) -> Known | Original | PushqError | None:
        """What is known of a claim from earlier commits; None: nothing. Raises `StorageCorrupt`."""
        window_ms = self._config.dedupe_window_ms
        places = self._ids.lookup(claim, now_ms=self._now_ms, window_ms=window_ms)
        partition = self._partition
        for elder in self._elders:
            if not places:
                places = elder.ids.lookup(claim, now_ms=elder.log_ms(), window_ms=window_ms)
                partition = elder.index
        if not places:
            return None
        if len(places) < len(claim):
            return _mismatch()
        first = places[0]
        return Known.ONE_BY_ONE if first == _ONE_BY_ONE else Original(first - 1, partition)

    # ----------------------------------------------------------------------------------------- when all have places

    def keep(
        self, calls: Sequence[Call], others: Sequence[Mapping[int, Original | PushqError]], places: Places
    ) -> None:
        """Gives the store what was bound, and by what the messages are known that do not lie together."""
        self._others, self._places = others, places
        hashes: list[bytes] = []
        offsets: list[int] = []
        for key, (payload, number) in self._bound.items():
            call = calls[number]
            first = self._firsts[number] = places.together(number) if call.blocks and not others[number] else None
            hashes += (key, payload)
            offsets += (_ONE_BY_ONE if first is None else first + 1,) * 2
            if first is None:
                claim, has_own = Claim(key, payload), self._config.dedupe != "none"
                for message, own in enumerate(ids_of(call)):
                    if message not in others[number] and not (own is not None and has_own):
                        hashes.append(name_in_call(claim, message) if own is None else own)
                        offsets.append(places.offset(number, message))
        if hashes:
            self._ids.add(hashes, offsets, now_ms=self._now_ms)

    def answer(
        self, number: int, call: Call, answer_of: Callable[[int], Published | PushqError]
    ) -> Published | PushqError:
        """The answer to a settled call. A repeat within the cycle has the answer of the first, by `answer_of`."""
        said = self.settled[number]
        if isinstance(said, Original):
            return self.repeat(call, said)
        if isinstance(said, PushqError):
            return said
        first = answer_of(said.call)
        if isinstance(first, PushqError) or not call.messages:
            return first
        at = self._firsts[said.call]
        if at is not None:
            return self.repeat(call, Original(at))
        others, places = self._others[said.call], self._places
        assert places is not None
        repeats = {n: others.get(n) or Original(places.offset(said.call, n)) for n in range(call.messages)}
        return msgspec.structs.replace(first, others=repeats)

    def repeat(self, call: Call, first: Original) -> Published:
        """The answer to a call all of whose messages are there, from `first` on."""
        partition = self._partition if first.partition is None else first.partition
        fsynced = self._config.durability == "fsync"
        return Published(partition, Offset(first.offset), call.messages, fsynced=fsynced, is_repeat=True)


def _mismatch() -> IdempotencyMismatch:
    return IdempotencyMismatch("this idempotency key belongs to a request with another payload; take a new key for it")
