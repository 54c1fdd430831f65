"""The mark of a process that counts usage: what it had counted last is lost where it ends without taking it away.

A node that comes back finds its own. A gateway without a store has another name each time, so the next process that
writes to the folder finds the marks of those that are gone: a mark is locked for as long as its process is there.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from gateway.usage.files import remove_unfinished, unlink_if_left

_MODE: Final = 0o600
_PREFIX: Final = "running-"
_PASSING: Final = re.compile(r"gateway-[0-9a-f]{12}")
"""Nodes that never come back under their name."""


class Running:
    """One process's mark. Every call blocks on the disk, and raises `OSError`."""

    def __init__(self, folder: Path, node: str):
        self._folder = folder
        self._path = folder / f"{_PREFIX}{node}"
        self._descriptor: int | None = None

    def begin(self) -> bool:
        """Leaves the mark. True if a process before, of this node or of a gateway that is gone, never said that it had
        ended; what such a gateway had not finished is removed."""
        was_there = self._path.exists()
        if self._descriptor is None:
            self._descriptor = self._marked()
        return self._remove_left() > 0 or was_there

    def _marked(self) -> int:
        """Open and locked, and still there: whoever removed it meanwhile took it for one that is left."""
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, _MODE)
            with suppress(OSError):  # without locks nobody removes it
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)

    def _remove_left(self) -> int:
        removed = 0
        for path in self._folder.glob(f"{_PREFIX}*"):
            node = path.name.removeprefix(_PREFIX)
            if path != self._path and _PASSING.fullmatch(node) and unlink_if_left(path):
                remove_unfinished(self._folder, node)
                removed += 1
        return removed

    def end(self) -> None:
        """The process has taken everything away."""
        self._path.unlink(missing_ok=True)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
