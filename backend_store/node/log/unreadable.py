"""Rows that cannot be decoded: left in place, for repair or a good copy elsewhere, and skipped. Each is logged once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec
import structlog

from backend_store.storage.engine import Row, StorageCorrupt

log = structlog.get_logger("pushq.ledger")

T = TypeVar("T")


class Unreadable:
    """The unreadable rows of one kind seen so far."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._keys: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def read(self, rows: Iterable[Row], decode: Callable[[bytes, bytes], T]) -> list[T]:
        """The rows that `decode` can read from key and stored bytes."""
        found: list[T] = []
        for key, stored in rows:
            try:
                found.append(decode(key, stored))
            except (StorageCorrupt, msgspec.MsgspecError) as error:
                self._note(key, error)
        return found

    def _note(self, key: bytes, error: Exception) -> None:
        if key not in self._keys:
            self._keys.add(key)
            log.error(f"{self._what} does not read and is passed over", key=key.hex(), error=str(error))
