"""Copies the usage files of several folders into one; idempotent.

A file is the same if its name and content are. A file with a known name and other content, which a crash can cause, is
kept beside the first under a name with its hash: rows in both are equal, and count once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from gateway.usage.files import SUFFIX, UsageFile, found, write_durably

HASH_CHARS = 12


class SameFolder(ValueError):
    """A source is the target folder itself: its files would count as known, and be removed if files are to be moved."""


class Collected(NamedTuple):
    copied: int
    known: int
    removed: int
    """Files removed from their source, because files were to be moved."""


def collect(
    to: Path, sources: Sequence[Path], *, moves: bool = False, told: Callable[[int], None] = lambda done: None
) -> Collected:
    """Copies files that are not in `to`; `moves` removes them from their source. The next run continues an interrupted
    one.

    Raises `OSError`, and `SameFolder` before anything is done.
    """
    for source in sources:
        source.stat()  # before anything is made
    to.mkdir(mode=0o700, parents=True, exist_ok=True)
    for source in sources:
        if source.samefile(to):  # also by a link, or mounted elsewhere
            raise SameFolder(f"{source} is the output folder {to} itself; choose another one")
    copied = known = removed = 0
    # The oldest first, so that a run that ends early leaves no hole.
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
    """Copies a file unless its content is there. Returns whether it was copied."""
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
