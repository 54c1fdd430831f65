"""A cache of a remote service's answers, each with the time at which it was last known to hold.

While the service is heard from, every entry that it has not reported as changed is fresh. Once the service is silent,
entries age: they are served stale up to a bound, so that known queues survive an outage. An entry reported as changed
is never served again; it is fetched anew. Absence is cached too, for seconds, or each look-up of a wrong name would
cause a request.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")


EXCUSE_MS: Final = 1_000
TOLD_MAX: Final = 10_000
"""How many changes are remembered with their positions."""


class At(Protocol):
    """A position in the change history of the service. Positions of two eras cannot be compared."""

    @property
    def era(self) -> str: ...
    @property
    def revision(self) -> int: ...


class Must(Enum):
    ASK = "ask"
    """No entry may be served: fetch the key."""


class Bounds:
    """How long entries may be served, and how many are kept."""

    __slots__ = ("absent_max", "entries_max", "fresh_ms", "stale_ms_max")

    def __init__(self, *, entries_max: int, absent_max: int, fresh_ms: int, stale_ms_max: int):
        """`fresh_ms`: an entry confirmed within this time is fresh, and absence is cached for this long."""
        assert 0 < fresh_ms <= stale_ms_max
        self.entries_max = entries_max
        self.absent_max = absent_max
        self.fresh_ms = fresh_ms
        self.stale_ms_max = stale_ms_max


class _Held(Generic[V]):
    __slots__ = ("confirmed_ms", "excused_until_ms", "is_doubtful", "is_outdated", "is_used", "value")

    def __init__(self, value: V, confirmed_ms: int):
        self.value = value
        self.confirmed_ms = confirmed_ms
        """When the value was last known to hold, as far as this entry alone knows."""
        self.excused_until_ms = 0
        """Until then a doubtful entry is served although the service is heard: a fetch got no answer."""
        self.is_doubtful = False
        """The service lost its record of what it reported: hearing from it does not confirm this entry."""
        self.is_outdated = False
        """Known to have changed: never served again."""
        self.is_used = False
        """Read since room was last made."""


class Cache(Generic[K, V]):
    """Entries of one kind from one service. Times are milliseconds of a steady clock."""

    def __init__(self, bounds: Bounds):
        self._bounds = bounds
        self._held: dict[K, _Held[V]] = {}
        self._absent: dict[K, int] = {}
        """Key → until when it is known to be absent."""
        self._asked: dict[K, At | None] = {}
        """Keys being fetched, with the newest position at which each was reported as changed meanwhile."""
        self._spoiled: set[K] = set()
        """Keys being fetched whose answer does not count: since the request the service lost its record, or `drop`
        ran."""
        self._told: OrderedDict[K, At] = OrderedDict()
        """The newest position at which a key was reported as changed, the latest last."""
        self._floor: At | None = None
        """For all other keys: changes reported before this position are not remembered individually."""
        self._heard_ms = -(1 << 62)
        self.hits = 0
        self.stale = 0
        """Hits on entries not confirmed for longer than `fresh_ms`."""
        self.misses = 0

    def __len__(self) -> int:
        return len(self._held)

    def peek(self, key: K, now_ms: int) -> V | Must | None:
        """The value of a key; None if it is known to be absent; `Must.ASK` if it has to be fetched."""
        held = self._held.get(key)
        if held is not None and (held.is_outdated or self._too_old(held, now_ms)):
            held = None
        if held is not None:
            held.is_used = True
            self.hits += 1
            return held.value
        if key in self._absent:
            if now_ms < self._absent[key]:
                self.hits += 1
                return None
            del self._absent[key]
        self.misses += 1
        return Must.ASK

    def _too_old(self, held: _Held[V], now_ms: int) -> bool:
        """Whether an entry may not be served. Counts entries that are stale and may be."""
        heard_ms = self._heard_ms
        confirmed_ms = held.confirmed_ms
        if not held.is_doubtful and heard_ms > confirmed_ms:
            confirmed_ms = heard_ms
        age_ms = now_ms - confirmed_ms
        if age_ms <= self._bounds.fresh_ms:
            return False
        if age_ms > self._bounds.stale_ms_max:
            return True
        if held.is_doubtful and self.is_heard(now_ms) and now_ms >= held.excused_until_ms:
            return True  # the service can be asked
        self.stale += 1
        return False

    def last(self, key: K) -> V | None:
        """The last known value, however old; None where there is none."""
        held = self._held.get(key)
        return held.value if held is not None else None

    def values(self) -> list[V]:
        """All values, however old."""
        return [held.value for held in self._held.values()]

    def is_heard(self, now_ms: int) -> bool:
        """Whether the service was heard from within `fresh_ms`."""
        return now_ms - self._heard_ms <= self._bounds.fresh_ms

    def age_ms(self, now_ms: int) -> int:
        """For how long the service has been silent; 0 if it was never heard from."""
        return max(0, now_ms - self._heard_ms) if self._heard_ms >= 0 else 0

    def may_go_on(self, key: K, now_ms: int) -> bool:
        """Whether work begun with a key's value may continue while the key is fetched anew."""
        held = self._held.get(key)
        if held is None:
            return False
        confirmed_ms = held.confirmed_ms if held.is_doubtful else max(held.confirmed_ms, self._heard_ms)
        if held.is_outdated:
            return now_ms - held.confirmed_ms <= self._bounds.fresh_ms
        return now_ms - confirmed_ms <= self._bounds.stale_ms_max

    # -------------------------------------------------------------------------------------------------- the watch

    def heard(self, now_ms: int) -> None:
        """The service was heard from: all entries not reported as changed hold at this time."""
        self._heard_ms = now_ms

    def changed(self, key: K, at: At, now_ms: int) -> None:
        """The service reported a key as changed."""
        if key in self._asked:
            self._asked[key] = at
        self._told[key] = at
        self._told.move_to_end(key)
        if len(self._told) > TOLD_MAX:
            _, self._floor = self._told.popitem(last=False)
        self._absent.pop(key, None)
        held = self._held.get(key)
        if held is not None and not held.is_outdated:
            held.is_outdated = True
            held.confirmed_ms = now_ms

    def drop(self, key: K) -> None:
        """Removes an entry changed from here: the next reader fetches it, and an answer on its way is ignored."""
        self._held.pop(key, None)
        self._absent.pop(key, None)
        if key in self._asked:
            self._spoiled.add(key)

    def doubt(self, at: At) -> None:
        """The service lost its record of what it reported: any entry may have changed before `at`."""
        self._told.clear()
        self._floor = at
        self._absent.clear()
        self._spoiled.update(self._asked)
        for held in self._held.values():
            if not (held.is_doubtful or held.is_outdated):
                held.is_doubtful = True
                held.confirmed_ms = max(held.confirmed_ms, self._heard_ms)

    # --------------------------------------------------------------------------------------------------- fetching

    def begin(self, key: K) -> None:
        """Marks a key as being fetched."""
        assert key not in self._asked, "one question a key at a time"
        self._asked[key] = None

    def is_overtaken(self, key: K, at: At) -> bool:
        """Whether an answer at this position is older than a reported change of the key. A service of several hosts may
        report a change from one host and answer from another that has not seen it."""
        newest = self._told.get(key, self._floor)
        return newest is not None and newest.era == at.era and newest.revision > at.revision

    def answered(self, key: K, value: V | None, at: At, now_ms: int) -> bool:
        """Stores an answer. False if the key was reported as changed after the answer was given: fetch again."""
        changed, is_spoiled = self._asked.pop(key), key in self._spoiled
        self._spoiled.discard(key)
        if is_spoiled or (changed is not None and changed.era != at.era) or self.is_overtaken(key, at):
            return False
        if value is None:
            self._held.pop(key, None)
            while len(self._absent) >= self._bounds.absent_max:
                del self._absent[next(iter(self._absent))]
            self._absent[key] = now_ms + self._bounds.fresh_ms
        else:
            self._absent.pop(key, None)
            self._held.pop(key, None)
            if len(self._held) >= self._bounds.entries_max:
                self._evict()
            self._held[key] = _Held(value, now_ms)
        return True

    def unanswered(self, key: K, now_ms: int) -> bool:
        """A fetch got no answer. Returns True if a doubtful entry is served for `EXCUSE_MS` before the next fetch."""
        self._asked.pop(key)
        self._spoiled.discard(key)
        held = self._held.get(key)
        if held is None or held.is_outdated or not held.is_doubtful:
            return False
        if now_ms - held.confirmed_ms > self._bounds.stale_ms_max:
            return False
        held.excused_until_ms = now_ms + EXCUSE_MS
        return True

    def _evict(self) -> None:
        """Evicts one entry: the oldest not read since room was last made. Entries that were read survive one more
        round, so a flood of names asked for once does not evict those in use.
        """
        held = self._held
        for _ in range(len(held)):
            key = next(iter(held))
            entry = held.pop(key)
            if not entry.is_used:
                return
            entry.is_used = False
            held[key] = entry
        del held[next(iter(held))]
