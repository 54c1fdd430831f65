"""Brings the usage files of several places together in one folder, as often as wanted: what is there stays.

A file is the same file if its name and content are. One of a known name and another content, such as a crash may leave
behind, is kept beside it under a name with its hash: rows that are in both are equal, and count once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from gateway.usage.files import SUFFIX, UsageFile, found, write_durably

HASH_CHARS = 12


class SameFolder(ValueError):
    """Files would be collected where they are: known there, and removed as such if they were to move."""


class Collected(NamedTuple):
    copied: int
    known: int
    removed: int
    """Files that are gone where they came from, because they were to move."""


def collect(
    to: Path, sources: Sequence[Path], *, moves: bool = False, told: Callable[[int], None] = lambda done: None
) -> Collected:
    """Copies what is not in `to`. An interrupted run is gone on with by the next one.

    Raises `OSError`, and `SameFolder` before anything is done.
    """
    to.mkdir(mode=0o700, parents=True, exist_ok=True)
    for source in sources:
        if source.samefile(to):  # also by a link, or mounted elsewhere
            raise SameFolder(f"{source} is the folder {to} itself; collect into another one")
    copied = known = removed = 0
    # The oldest first, so that what was collected has no hole if it ends early.
    files = sorted((file for source in sources for file in found(source)), key=lambda file: (file.first, file.path))
    for done, file in enumerate(files, 1):
        if _is_new(to, file):
            copied += 1
        else:
            known += 1
        if moves:
            file.path.unlink()
            removed += 1
        told(done)
    return Collected(copied, known, removed)


def _is_new(to: Path, file: UsageFile) -> bool:
    """Copies a file unless its content is there."""
    data = file.path.read_bytes()
    target = to / file.path.name
    if target.exists():
        if target.read_bytes() == data:
            return False
        digest = hashlib.sha256(data).hexdigest()[:HASH_CHARS]
        target = to / f"{file.path.name.removesuffix(SUFFIX)}-{digest}{SUFFIX}"
        if target.exists():
            return False
    write_durably(target, data)
    return True
