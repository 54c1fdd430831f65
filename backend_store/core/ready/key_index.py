"""An index of one chunk's ready messages by key: the bits of each key, and the keys of some bits.

Both kinds of delivery by key, strict order (`strict`) and fair share (`fair`), use a chunk through a `Spot`. The column
of keys is read once, in one tight loop; after that there are only sets of keys and masks of bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from itertools import compress
from typing import overload

from backend_store.core.leases.leases import ChunkState
from backend_store.core.limits import FEW_KEYS_MAX, KEYED_COLUMNS_MAX
from backend_store.model import CHUNK_MESSAGES_MAX

Key = str | None
"""A message's key. Messages without one share the key None: in strict order one sequence, in fair share one tenant."""

_BIT = tuple(1 << index for index in range(CHUNK_MESSAGES_MAX))
_CHOSEN = bytes.maketrans(b"01", b"\0\1")


class FewKeys(Sequence[Key]):
    """A column of keys in the form of bits by key, for a chunk with few keys or few unsettled messages.

    A list of 256 strings takes 15 KB, which is too much for ten thousand chunks with one slow message or one hot key.
    """

    __slots__ = ("_count", "bits_of")

    def __init__(self, bits_of: dict[Key, int], count: int):
        self.bits_of = bits_of
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Key: ...
    @overload
    def __getitem__(self, index: slice) -> list[Key]: ...

    def __getitem__(self, index: int | slice) -> Key | list[Key]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"message {index} of {self._count}")
        index %= self._count
        return next((key for key, bits in self.bits_of.items() if bits >> index & 1), None)


class Spot:
    """A chunk with messages that wait by key.

    `ready` are its messages that may be drawn, `held` those that were; `runs` counts its parts in lines in memory.
    """

    __slots__ = ("_column", "bits_of", "held", "is_shrunk", "ready", "repeated", "runs", "state")

    def __init__(self, state: ChunkState):
        self.state = state
        self.ready = 0
        self.held = 0
        self.runs = 0
        self.is_shrunk = False
        """True if the keys of settled messages are forgotten."""
        self._column: Sequence[Key] | None = None
        self.bits_of: dict[Key, int]
        self.repeated: int
        """Messages that share their key with another one of the chunk."""
        if state.keys is None:
            self.bits_of, self.repeated = {None: state.full}, state.full
        elif isinstance(state.keys, FewKeys):
            self.bits_of, self.is_shrunk = state.keys.bits_of, True
            self.repeated = _repeated(self.bits_of)
        else:
            self._read(state.keys)

    def _read(self, keys: Sequence[Key]) -> None:
        bits_of: dict[Key, int] = {}
        repeated = 0
        for key, bit in zip(keys, _BIT, strict=False):
            if key in bits_of:
                bits_of[key] = own = bits_of[key] | bit
                repeated |= own
            else:
                bits_of[key] = bit
        self.bits_of, self.repeated = bits_of, repeated
        if len(bits_of) > FEW_KEYS_MAX:
            self._column = keys
        else:
            self.state.keys = FewKeys(bits_of, self.state.count)

    @property
    def is_whole(self) -> bool:
        """Whether it still has the column of all its keys."""
        return self._column is not None

    def shrink(self) -> None:
        """Forgets the keys of messages that are settled: they never come back."""
        if self._column is None:
            return
        kept = self.state.present | self.held | self.ready
        self.bits_of = {key: left for key, bits in self.bits_of.items() if (left := bits & kept)}
        self.repeated = _repeated(self.bits_of)
        self._column = None
        self.is_shrunk = True
        self.state.keys = FewKeys(self.bits_of, self.state.count)

    def split(self, bits: int) -> dict[Key, int]:
        """Returns bits by key for some of the messages."""
        if bits == self.state.full:
            return self.bits_of
        if self._column is None or bits.bit_count() > FEW_KEYS_MAX:
            return {key: own for key, all_own in self.bits_of.items() if (own := all_own & bits)}
        return {key: self.bits_of[key] & bits for key in self.keys_at(bits)}

    def keys_at(self, bits: int) -> Collection[Key]:
        """Returns the keys of some messages, in no order; a key may occur once per message."""
        column = self._column
        if column is None:
            return [key for key, own in self.bits_of.items() if own & bits]
        if not bits:
            return ()
        low = (bits & -bits).bit_length() - 1
        bits >>= low
        if not bits & (bits + 1):
            return column[low : low + bits.bit_length()]
        return list(compress(column[low:], f"{bits:b}"[::-1].encode().translate(_CHOSEN)))


class Spots:
    """The spots of a lane by the offset of their chunk. Only the newest have whole columns."""

    def __init__(self) -> None:
        self._by_base: dict[int, Spot] = {}
        self._columns: deque[Spot] = deque()
        self.late = 0
        """How many of them have late messages."""

    def __contains__(self, base: int) -> bool:
        return base in self._by_base

    def get(self, base: int) -> Spot | None:
        return self._by_base.get(base)

    def of(self, state: ChunkState) -> Spot:
        """Returns the chunk's spot, which is created if there is none."""
        spot = self._by_base.get(state.base)
        if spot is None:
            spot = self._by_base[state.base] = Spot(state)
            self.late += state.late != 0
            if spot.is_whole:
                self._columns.append(spot)
                if len(self._columns) > KEYED_COLUMNS_MAX:
                    self._columns.popleft().shrink()
        assert spot.state is state, f"two states of the chunk at {state.base}"
        return spot

    def drop_if_idle(self, spot: Spot) -> bool:
        """Drops a spot that has no ready, held or waiting messages. Returns whether it did."""
        if spot.ready or spot.held or spot.runs or self._by_base.get(spot.state.base) is not spot:
            return False
        del self._by_base[spot.state.base]
        self.late -= spot.state.late != 0
        return True

    def clear(self) -> None:
        self._by_base.clear()
        self._columns.clear()
        self.late = 0


def _repeated(bits_of: dict[Key, int]) -> int:
    repeated = 0
    for bits in bits_of.values():
        if bits & (bits - 1):
            repeated |= bits
    return repeated
