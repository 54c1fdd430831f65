"""Decides idempotency keys (claims): a key is new, repeats with the same payload, or belongs to another payload.

The hashes of key and payload are stored in the partition's id store, side by side and for the same time. A known key
without its payload was therefore bound to another one, which is decided without reading any messages. With them is
stored the offset where the call's messages begin. If a call's messages are not contiguous, or some were refused, each
stored message is remembered by its own id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from backend_store.core.dedupe.numbered_ids import name_in_call
from backend_store.model import (
    Claim,
    IdempotencyMismatch,
    Offset,
    Original,
    Published,
    PushqError,
    QueueConfig,
)
from backend_store.node.commit.publish_call import Call, ids_of
from backend_store.node.publishing.refusals import dedupe_full, unreadable_ids
from backend_store.storage.engine import StorageCorrupt

if TYPE_CHECKING:
    from backend_store.node.partition import Partition
    from backend_store.node.publishing.known_ids import IdStore
    from backend_store.node.publishing.placement import Places

_ONE_BY_ONE = 0
"""Stored in place of an offset if the call's messages are remembered one by one. Offsets are stored plus one."""


def only_new(
    ids: IdStore, elders: Sequence[Partition], calls: Sequence[Call], *, now_ms: int, window_ms: int
) -> list[bytes] | None:
    """Key and payload hashes of each call that has a claim, concatenated, if all are unknown and the store has room:
    nearly always. None if the calls must be checked one by one.
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
    """Adds to the store what `only_new` found. `firsts`: the offset where each such call's contiguous messages
    begin."""
    ids.add(hashes, [first + 1 for first in firsts for _ in range(2)], now_ms=now_ms)


class Known(Enum):
    """The outcome of a claim that is neither refused nor a repeat of a whole call."""

    NEW = "new"
    ONE_BY_ONE = "one by one"


class _Again(NamedTuple):
    """A call that repeats the claim of an earlier call in the same cycle."""

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
        """Keys that this cycle binds, with their payloads and calls."""
        self._firsts: dict[int, int | None] = {}
        """By call that binds a key: the offset where its messages begin; None if they are not contiguous."""
        self._others: Sequence[Mapping[int, Original | PushqError]] = ()
        self._places: Places | None = None
        self.settled: dict[int, Original | PushqError | _Again] = {}
        """Calls that are answered by their claim alone."""
        self.count = 0
        """Ids that the cycle's claims may add."""

    def ask(self, number: int, call: Call, *, added: int) -> Known | None:
        """Binds a call's key to its payload (`NEW`), or returns `ONE_BY_ONE` if each message must be looked up; None:
        the call is settled, see `answer`.

        `added`: ids that this cycle adds besides.
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
        """Looks a claim up among earlier commits; None if it is unknown. Raises `StorageCorrupt`."""
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
        """Adds the bound claims to the store, and the ids of messages that are not contiguous."""
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
        """The answer to a settled call. A repeat within the cycle gets the answer of the first call, by `answer_of`."""
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
        """The answer to a call whose messages are all stored, from `first` on."""
        partition = self._partition if first.partition is None else first.partition
        fsynced = self._config.durability == "fsync"
        return Published(partition, Offset(first.offset), call.messages, fsynced=fsynced, is_repeat=True)


def _mismatch() -> IdempotencyMismatch:
    return IdempotencyMismatch("this idempotency key was already used with another payload; use a new key")
