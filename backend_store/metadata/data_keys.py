"""The rows of data keys, which encrypt a queue's blocks and are wrapped by a master key that the store never has.

A key id names one key of the whole store: of two keys with one id the second must take another. A queue's keys are
deleted in the commit that removes the queue, so that any remaining data of its messages cannot be decrypted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from backend_store.metadata.recent import Rows
from backend_store.storage.engine import Batch, Engine, Table
from backend_store.storage.seal import seal, unseal

DATA_KEYS: Final = b"data-key/"
NEXT_KEY_ID: Final = b"next-data-key"
ROTATION: Final = b"key-rotation"
KEY_IDS_MAX: Final = (1 << 32) - 1
"""A block has 32 bits for the id of its key."""

_encode = msgspec.msgpack.Encoder().encode


class DataKey(msgspec.Struct, frozen=True):
    """One wrapped data key. `blocks` is an upper bound of the blocks that it has encrypted."""

    id: int
    tenant: str
    uid: int
    master: str
    wrapped: bytes
    created_at_ms: int
    blocks: int


class StoredRotation(msgspec.Struct, frozen=True):
    """A rotation in progress, kept across a crash. `queues`: those that get new data keys, beside `all_queues`."""

    id: str
    started_at_ms: int
    rewraps: bool
    queues: tuple[int, ...] | None = None
    all_queues: bool = False


class DataKeys:
    """All data keys of a store, in memory as they are on the disk."""

    def __init__(self, engine: Engine, load: Callable[[Engine, bytes, type[Any]], list[Any]]):
        self.by_id: Rows[int, DataKey] = Rows((key.id, key) for key in load(engine, DATA_KEYS, DataKey))
        self.ids_of: dict[int, list[int]] = {}
        """By the queue's uid, the oldest first."""
        for key_id in sorted(self.by_id):
            self.ids_of.setdefault(self.by_id[key_id].uid, []).append(key_id)
        stored = engine.get(Table.META, NEXT_KEY_ID)
        self._next: int = msgspec.msgpack.decode(unseal(NEXT_KEY_ID, stored), type=int) if stored else 1
        self._pass(self.by_id)
        row = engine.get(Table.META, ROTATION)
        self.rotation = msgspec.msgpack.decode(unseal(ROTATION, row), type=StoredRotation) if row else None

    def new_id(self) -> int:
        """An id that no key has had. It is stored with the key."""
        key_id = self._next
        assert key_id <= KEY_IDS_MAX, "four thousand million data keys were made"
        self._next += 1
        return key_id

    def reserve(self, count: int) -> range:
        """Reserves ids for a gateway to give out. Ids that are not stored by the next start may be reserved again, also
        while the first gateway still uses them: see `is_free`."""
        first = self._next
        self._next += count
        assert self._next <= KEY_IDS_MAX, "four thousand million data keys were made"
        return range(first, self._next)

    def is_free(self, key: DataKey) -> bool:
        """Whether no other key has its id: overwriting that key would make what it encrypted unreadable."""
        return self.by_id.get(key.id, key) == key

    def _pass(self, ids: Iterable[int]) -> None:
        """Gives out no id up to these from now on."""
        self._next = max([self._next, *(key_id + 1 for key_id in ids)])

    def stage(self, batch: Batch, keys: Sequence[DataKey]) -> None:
        self._pass(key.id for key in keys)
        for key in keys:
            place = _place(key.id)
            batch.put(Table.META, place, seal(place, _encode(key)))
        batch.put(Table.META, NEXT_KEY_ID, seal(NEXT_KEY_ID, _encode(self._next)))

    def stored(self, keys: Iterable[DataKey]) -> None:
        """Updates memory: the keys are on the disk."""
        for key in keys:
            if key.id not in self.by_id:
                self.ids_of.setdefault(key.uid, []).append(key.id)
            self.by_id[key.id] = key

    def stage_shredded(self, batch: Batch, uid: int) -> None:
        """Stages the deletion of a queue's keys."""
        for key_id in self.ids_of.get(uid, ()):
            batch.delete(Table.META, _place(key_id))

    def shredded(self, uid: int) -> None:
        for key_id in self.ids_of.pop(uid, ()):
            del self.by_id[key_id]

    def stage_rotation(self, batch: Batch, rotation: StoredRotation | None) -> None:
        if rotation is None:
            batch.delete(Table.META, ROTATION)
        else:
            batch.put(Table.META, ROTATION, seal(ROTATION, _encode(rotation)))


def _place(key_id: int) -> bytes:
    return DATA_KEYS + key_id.to_bytes(4, "big")
