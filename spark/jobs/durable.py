"""Atomic writes of files, safe at a power cut: written to a temporary name, made durable, then renamed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PART: Final = ".part"


def write_whole(path: Path, text: str) -> None:
    """Replaces a file's text; concurrent readers get the old text."""
    part = path.with_name(path.name + PART)
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Makes a file's contents, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_below(folder: Path) -> None:
    """Makes all files in a folder durable, and their names."""
    for place, _, names in os.walk(folder):
        for name in names:
            sync(Path(place, name))
        sync(Path(place))
