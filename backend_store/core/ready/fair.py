"""Ready messages of a lane in fair share: in arrival order, but a key that has more than its share comes after others.

A key is *noisy* while it has `NOISY_MESSAGES_MIN` messages or more in flight and more than one and a half times the
share that each key would have if there were one key more. "One more", because a flood hides other keys: their messages
are behind it, still unread on disk, and a key that is alone must count as noisy for the lane to search for them. "One
and a half", because keys that are served equally differ by chance. So with 1 key the bound is 3/4 of the messages in
flight, with 2 keys 1/2, with 100 keys 1.5 %, and of n keys always fewer than two thirds of n + 1 can be noisy.

Messages of noisy keys are set aside, and the lane reads on up to a limit. They are drawn when there are no others, so
no consumer idles, and as soon as the share of their key has fallen, so no key starves: a key without messages in flight
is never noisy. Recently settled messages still count as in flight, because a single slow consumer has none in flight
when it asks for more. Messages without a key count as those of one key. Order within a key is kept as well as in the
plain queue.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from typing import NamedTuple

from backend_store.core.leases.leases import ChunkState
from backend_store.core.limits import (
    FAIR_AHEAD_CHUNKS_MAX,
    FAIR_ASIDE_RUNS_MAX,
    FAIR_MEMORY_MESSAGES,
    NOISY_MESSAGES_MIN,
)
from backend_store.core.log.bits import lowest
from backend_store.core.ready.arrival import ArrivalRuns
from backend_store.core.ready.key_index import Key, Spot, Spots

RECOUNT_MESSAGES_MIN = 16
_NOTHING: deque[Spot] = deque()


class Found(NamedTuple):
    """Messages of one chunk that may be drawn next. `is_aside`: they were set aside before."""

    spot: Spot
    bits: int
    is_aside: bool


class Shares:
    """How many messages each key has in flight, and which keys are noisy. The noisy keys are recomputed after as many
    messages as there are keys.
    """

    def __init__(self) -> None:
        self.noisy: set[Key] = set()
        self._load: dict[Key, int] = {}
        self._total = 0
        self._settled: deque[tuple[int, Mapping[Key, int]]] = deque()
        self._settled_count = 0
        self._changed = 0

    def add(self, counts: Mapping[Key, int], total: int) -> None:
        load = self._load
        for key, count in counts.items():
            load[key] = load.get(key, 0) + count
        self._total += total
        self._changed += total

    def settle(self, counts: Mapping[Key, int], total: int) -> None:
        """Settles messages, which count as in flight until `FAIR_MEMORY_MESSAGES` were settled after them."""
        self._settled.append((total, counts))
        self._settled_count += total
        while self._settled_count - self._settled[0][0] >= FAIR_MEMORY_MESSAGES:
            count, old = self._settled.popleft()
            self._settled_count -= count
            self._total -= count
            self._changed += count
            self._remove(old)

    def _remove(self, counts: Mapping[Key, int]) -> None:
        load = self._load
        for key, count in counts.items():
            left = load[key] - count
            if left:
                load[key] = left
            else:
                del load[key]

    def recount(self) -> bool:
        """Recomputes `noisy` if it is time to. Returns whether it did."""
        keys = len(self._load)
        if self._changed < max(keys, RECOUNT_MESSAGES_MIN):
            return False
        self._changed = 0
        most = max(NOISY_MESSAGES_MIN - 1, 3 * self._total // (2 * (keys + 1)))
        self.noisy = {key for key, count in self._load.items() if count > most}
        return True


class FairRuns:
    """The ready messages of a lane in fair share. In a `Spot`, `ready` has messages set aside, `runs` counts those in
    `_fresh`.
    """

    def __init__(self) -> None:
        self._spots = Spots()
        self._fresh: deque[tuple[Spot, int]] = deque()
        """Runs in arrival order that have not been checked for noisy keys."""
        self._aside: OrderedDict[Spot, None] = OrderedDict()
        """Chunks with messages that were set aside, oldest first."""
        self._aside_of: dict[Key, deque[Spot]] = {}
        self._aside_runs = 0
        self._calm: deque[Key] = deque()
        """Keys with messages set aside that are not noisy now."""
        self._shares = Shares()
        self._read_ahead = 0
        """Chunks pushed since the last draw."""
        self._found: Found | None = None
        """Messages of quiet keys that the next draw takes."""

    @classmethod
    def from_arrival(cls, runs: ArrivalRuns) -> FairRuns:
        """Takes over the runs of a queue that gets its first keys. Messages in flight at that time are not counted."""
        fair = cls()
        for run in runs:
            fair.push(run.state, run.bits)
        return fair

    def __len__(self) -> int:
        return len(self._fresh)

    def __bool__(self) -> bool:
        return bool(self._fresh or self._aside)

    @property
    def wants_more(self) -> bool:
        """Whether no messages are here, or only those of noisy keys, and a later chunk could have others."""
        if self._read_ahead >= FAIR_AHEAD_CHUNKS_MAX or self._aside_runs >= FAIR_ASIDE_RUNS_MAX:
            return not self
        return self._next_quiet() is None

    def clear(self) -> None:
        self._spots.clear()
        self._fresh.clear()
        self._aside.clear()
        self._aside_of.clear()
        self._aside_runs = 0
        self._calm.clear()
        self._shares = Shares()
        self._read_ahead = 0
        self._found = None

    # ----------------------------------------------------------------------------------------------------- push

    def push(self, state: ChunkState, bits: int) -> None:
        spot = self._spots.of(state)
        spot.runs += 1
        self._fresh.append((spot, bits))
        self._read_ahead += 1

    def put_back(self, state: ChunkState, bits: int) -> None:
        """Puts messages at the front, where they go first unless their keys are noisy."""
        spot = self._spots.of(state)
        spot.runs += 1
        self._fresh.appendleft((spot, bits))
        self._found = None

    # ----------------------------------------------------------------------------------------------------- draw

    def missing(self) -> int | None:
        found = self._find()
        return found.spot.state.base if found is not None and found.spot.state.chunk is None else None

    def draw(self, limit: int) -> tuple[ChunkState, int] | None:
        found = self._find() if limit > 0 else None
        if found is None:
            return None
        spot = found.spot
        drawn = lowest(found.bits, limit)
        if found.is_aside:
            self._leave_aside(spot, drawn)
        else:
            left = self._fresh[0][1] & ~drawn
            self._fresh[0] = spot, left
            if not left:
                self._fresh.popleft()
                spot.runs -= 1
        self._read_ahead = 0
        self._found = None
        self.hold(spot.state, drawn)
        return spot.state, drawn

    def _find(self) -> Found | None:
        return self._next_quiet() or self._find_noisy()

    def _next_quiet(self) -> Found | None:
        """Returns `_find_quiet`, cached until messages are drawn or put back, because a turn calls it three times."""
        found = self._found
        if found is None or found.bits & ~found.spot.state.free:
            found = self._found = self._find_quiet()
        return found

    def _find_quiet(self) -> Found | None:
        """Returns messages of quiet keys, or None: first of keys that were noisy, then in arrival order."""
        if self._shares.recount():
            noisy = self._shares.noisy
            self._calm = deque(key for key in self._aside_of if key not in noisy)
        while self._calm:
            found = self._find_calm(self._calm[0])
            if found is not None:
                return found
            self._calm.popleft()
        while self._fresh:
            spot, bits = self._fresh[0]
            bits &= spot.state.free
            quiet = self._without_noisy(spot, bits)
            if quiet:
                return Found(spot, quiet, is_aside=False)
            self._fresh.popleft()
            spot.runs -= 1
            if bits:
                self._set_aside(spot, bits)
            self._spots.drop_if_idle(spot)
        return None

    def _without_noisy(self, spot: Spot, bits: int) -> int:
        if bits and (noisy := self._shares.noisy):
            bits_of = spot.bits_of
            for key in bits_of.keys() & noisy:
                bits &= ~bits_of[key]
        return bits

    def _find_calm(self, key: Key) -> Found | None:
        """Returns the oldest messages of a key that is no longer noisy, with other quiet ones of their chunk."""
        while line := self._aside_of.get(key):
            spot = line[0]
            self._clean(spot)
            if spot.bits_of.get(key, 0) & spot.ready:
                return Found(spot, self._without_noisy(spot, spot.ready), is_aside=True)
        return None

    def _find_noisy(self) -> Found | None:
        while self._aside:
            spot = next(iter(self._aside))
            if self._clean(spot):
                return Found(spot, spot.ready, is_aside=True)
        return None

    # ------------------------------------------------------------------------------------------------ set aside

    def _set_aside(self, spot: Spot, bits: int) -> None:
        """Sets messages aside, behind older ones."""
        for key in spot.split(bits):
            line = self._aside_of.setdefault(key, deque())
            if line and spot.state.base < line[0].state.base:
                line.appendleft(spot)
            else:
                line.append(spot)
            self._aside_runs += 1
        is_older = bool(self._aside) and spot.state.base < next(iter(self._aside)).state.base
        self._aside[spot] = None
        if is_older:
            self._aside.move_to_end(spot, last=False)
        spot.ready |= bits

    def _leave_aside(self, spot: Spot, bits: int) -> None:
        """Removes messages that are drawn or no longer free; each key's line then begins with a chunk that has some."""
        spot.ready &= ~bits
        for key in set(spot.keys_at(bits)):
            line = self._aside_of.get(key, _NOTHING)
            while line and not line[0].bits_of.get(key, 0) & line[0].ready:
                line.popleft()
                self._aside_runs -= 1
            if not line:
                self._aside_of.pop(key, None)
        if not spot.ready:
            self._aside.pop(spot, None)
            self._spots.drop_if_idle(spot)

    def _clean(self, spot: Spot) -> bool:
        """Removes messages that are no longer free. Returns whether any of the chunk is still set aside."""
        if gone := spot.ready & ~spot.state.free:
            self._leave_aside(spot, gone)
        return bool(spot.ready)

    # --------------------------------------------------------------------------------------------------- counts

    def hold(self, state: ChunkState, bits: int) -> None:
        """Counts messages as in flight."""
        spot = self._spots.of(state)
        bits &= ~spot.held
        if bits:
            spot.held |= bits
            self._shares.add(self._counts(spot, bits), bits.bit_count())

    def freed(self, state: ChunkState, bits: int) -> None:
        """Stops counting messages as in flight, after a while: see `Shares.settle`."""
        spot = self._spots.get(state.base)
        bits = bits & spot.held if spot is not None else 0
        if spot is not None and bits:
            spot.held ^= bits
            self._shares.settle(self._counts(spot, bits), bits.bit_count())
            self._spots.drop_if_idle(spot)

    def _counts(self, spot: Spot, bits: int) -> Mapping[Key, int]:
        if spot.is_whole:
            return Counter(spot.keys_at(bits))
        return {key: (own & bits).bit_count() for key, own in spot.bits_of.items() if own & bits}
