"""Indexes readers by queue: an event of one queue costs only its readers, however many others are connected."""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

from backend_store.client import Queue

Reader = TypeVar("Reader")


class Readers(Generic[Reader]):
    """Sessions or streams by queue, in the order in which they came. One reader may read a queue several times."""

    def __init__(self) -> None:
        self._of: dict[Queue, Counter[Reader]] = {}

    def __len__(self) -> int:
        """The number of queues that have readers."""
        return len(self._of)

    def enter(self, reader: Reader, queue: Queue) -> None:
        self._of.setdefault(queue, Counter())[reader] += 1

    def leave(self, reader: Reader, queue: Queue) -> None:
        readers = self._of[queue]
        readers[reader] -= 1
        if not readers[reader]:
            del readers[reader]
        if not readers:
            del self._of[queue]

    def of(self, queue: Queue) -> list[Reader]:
        return list(self._of.get(queue, ()))
