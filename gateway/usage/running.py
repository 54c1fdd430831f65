"""A marker file of a process that counts usage; if left behind, the process ended without writing its last counts.

A node that restarts finds its own marker. A gateway without a store has another name each time, so the next process
that writes to the folder finds the markers of ended ones: a marker is locked while its process runs.
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
"""Nodes that never return under the same name."""


class Running:
    """One process's marker. Every call blocks on the disk, and raises `OSError`."""

    def __init__(self, folder: Path, node: str):
        self._folder = folder
        self._path = folder / f"{_PREFIX}{node}"
        self._descriptor: int | None = None

    def begin(self) -> bool:
        """Creates the marker. Returns True if an earlier process of this node, or a gateway that is gone, did not end
        cleanly; removes the unfinished files of such gateways."""
        was_there = self._path.exists()
        if self._descriptor is None:
            self._descriptor = self._marked()
        return self._remove_left() > 0 or was_there

    def _marked(self) -> int:
        """Opens and locks the marker; repeats if another process removed it in between as left behind."""
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, _MODE)
            with suppress(OSError):  # without locks no process removes it
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
        """Removes the marker: the process has written everything."""
        self._path.unlink(missing_ok=True)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
