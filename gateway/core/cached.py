"""What may be served from memory of a service elsewhere: answers with the time at which they were last known to hold.

While the service is heard, whatever it does not call changed is fresh. Once it is silent, what is held ages: it is
served stale up to a bound, so that known queues outlive an outage. What is called changed is not served any more; it is
asked for anew. That something is absent is remembered too, for seconds, or each look-up of a wrong name would travel.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")


EXCUSE_MS: Final = 1_000
TOLD_MAX: Final = 10_000
"""Changes whose moments are remembered."""


class At(Protocol):
    """A moment in the history of the service. Those of two eras cannot be compared."""

    @property
    def era(self) -> str: ...
    @property
    def revision(self) -> int: ...


class Must(Enum):
    ASK = "ask"
    """Nothing is held that may be served."""


class Bounds:
    """How long what is held may be served, and how much is held."""

    __slots__ = ("absent_max", "entries_max", "fresh_ms", "stale_ms_max")

    def __init__(self, *, entries_max: int, absent_max: int, fresh_ms: int, stale_ms_max: int):
        """`fresh_ms`: what was confirmed so lately needs no excuse, and what is absent is known for so long."""
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
        """When it was last known to hold, as far as this entry alone knows."""
        self.excused_until_ms = 0
        """It was asked for and nobody answered: until then it is served all the same."""
        self.is_doubtful = False
        """The service forgot what it told us: that it is heard says nothing about this entry."""
        self.is_outdated = False
        """It is known to have changed: it is never served again."""
        self.is_used = False
        """Looked at since room was last made."""


class Cache(Generic[K, V]):
    """One kind of thing of one service. Times are milliseconds of a steady clock."""

    def __init__(self, bounds: Bounds):
        self._bounds = bounds
        self._held: dict[K, _Held[V]] = {}
        self._absent: dict[K, int] = {}
        """Key → until when it is known to be absent."""
        self._asked: dict[K, At | None] = {}
        """What is being asked for, and the newest moment at which it was called changed meanwhile."""
        self._spoiled: set[K] = set()
        """Asked for before the service forgot what it told us."""
        self._told: OrderedDict[K, At] = OrderedDict()
        """The newest moment at which a key was called changed, the latest last."""
        self._floor: At | None = None
        """Of all other keys: what was called changed before this moment is not remembered one by one."""
        self._heard_ms = -(1 << 62)
        self.hits = 0
        self.stale = 0
        """Hits on what had not been confirmed for longer than `fresh_ms`."""
        self.misses = 0

    def __len__(self) -> int:
        return len(self._held)

    def peek(self, key: K, now_ms: int) -> V | Must | None:
        """What is held for a key; None for what is known to be absent."""
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
        """Whether it may not be served. Counts it where it is stale and may be."""
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
            return True  # the service is there and can be asked
        self.stale += 1
        return False

    def last(self, key: K) -> V | None:
        """What was last known, however old; None where nothing was."""
        held = self._held.get(key)
        return held.value if held is not None else None

    def values(self) -> list[V]:
        """All that is held, however old."""
        return [held.value for held in self._held.values()]

    def is_heard(self, now_ms: int) -> bool:
        """Whether the service said something lately."""
        return now_ms - self._heard_ms <= self._bounds.fresh_ms

    def age_ms(self, now_ms: int) -> int:
        """For how long the service has not been heard; 0 before it ever was."""
        return max(0, now_ms - self._heard_ms) if self._heard_ms >= 0 else 0

    def may_go_on(self, key: K, now_ms: int) -> bool:
        """Whether what was begun on the strength of a key may go on while it is asked for anew."""
        held = self._held.get(key)
        if held is None:
            return False
        confirmed_ms = held.confirmed_ms if held.is_doubtful else max(held.confirmed_ms, self._heard_ms)
        if held.is_outdated:
            return now_ms - held.confirmed_ms <= self._bounds.fresh_ms
        return now_ms - confirmed_ms <= self._bounds.stale_ms_max

    # -------------------------------------------------------------------------------------------------- the watch

    def heard(self, now_ms: int) -> None:
        """The service said something: what it did not call changed holds at this time."""
        self._heard_ms = now_ms

    def changed(self, key: K, at: At, now_ms: int) -> None:
        """The service called it changed."""
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
        """It was changed from here: whoever looks next asks, and what is on its way does not hold."""
        self._held.pop(key, None)
        self._absent.pop(key, None)
        if key in self._asked:
            self._spoiled.add(key)

    def doubt(self, at: At) -> None:
        """The service does not know what it told us: everything may be different from what it was before `at`."""
        self._told.clear()
        self._floor = at
        self._absent.clear()
        self._spoiled.update(self._asked)
        for held in self._held.values():
            if not (held.is_doubtful or held.is_outdated):
                held.is_doubtful = True
                held.confirmed_ms = max(held.confirmed_ms, self._heard_ms)

    # ----------------------------------------------------------------------------------------------------- asking

    def begin(self, key: K) -> None:
        """From here on it is asked for."""
        assert key not in self._asked, "one question a key at a time"
        self._asked[key] = None

    def is_overtaken(self, key: K, at: At) -> bool:
        """Whether an answer of that moment is older than what was heard of the key, maybe of another host: a service of
        several tells the news by one and answers by another that has not heard them yet."""
        newest = self._told.get(key, self._floor)
        return newest is not None and newest.era == at.era and newest.revision > at.revision

    def answered(self, key: K, value: V | None, at: At, now_ms: int) -> bool:
        """Whether the answer holds. False: it was called changed after the answer was given; ask again."""
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
        """Nobody answered. True: what is held is served all the same, for a moment, before it is asked for again."""
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
        """Makes room for one: the oldest that was not looked at since room was last made. Those that were stay once
        more, so what is in use survives a flood of names that are asked for once.
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
