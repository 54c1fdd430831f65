"""Atomic file writes that survive a power failure: write to a temporary name, sync, then rename."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PART: Final = ".part"


def write_whole(path: Path, text: str) -> None:
    """Replaces a file's text; until then, concurrent readers see the old text."""
    part = path.with_name(path.name + PART)
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Makes a file's contents, or a folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_below(folder: Path) -> None:
    """Makes all files below a folder durable, with their names."""
    for parent, _, names in os.walk(folder):
        for name in names:
            sync(Path(parent, name))
        sync(Path(parent))
