"""Disk space: how full the disk may become before a publish is refused, so that acks, which need pages too, always go
on.

Publishes stop at 90 % of the disk, or at the operator's setting. Should other programs fill it further, a ballast file
is deleted, and its space carries acks and reads until an operator makes room. A commit that still meets a full disk
ends the process.
"""

import enum
import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from backend_store.storage.engine import Engine, Space
from backend_store.storage.folder import BALLAST_FILE, create_private

PUBLISH_STOP_FRACTION = 0.90
BALLAST_BYTES_MAX = 256 << 20
BALLAST_DISK_FRACTION = 0.02
UNCHECKED_BYTES_MAX = 16 << 20
UNCHECKED_DISK_FRACTION = 0.01
_ZEROS = bytes(1 << 20)


class Ballast(enum.Enum):
    """What to do with the ballast file."""

    KEEP = "keep"
    RELEASE = "release"
    MAKE = "make"


@dataclass(frozen=True, slots=True)
class Decision:
    publishes_allowed: bool
    ballast: Ballast
    reason: str
    """Why publishes stop, with the figures; empty when they go on."""


def decide(space: Space, *, ballast_held: bool, ballast_bytes: int, publish_stop_fraction: float) -> Decision:
    """Publishes need room below the stop and a ballast in place; unused pages of the file count as room.

    The ballast is released when the free disk space falls below half its size, and made again at twice its size, so
    that it does not come and go.
    """
    ballast = Ballast.KEEP
    if ballast_held and space.disk_free < ballast_bytes // 2:
        ballast = Ballast.RELEASE
    elif not ballast_held and space.disk_free >= 2 * ballast_bytes:
        ballast = Ballast.MAKE
    held = ballast is Ballast.MAKE or (ballast_held and ballast is Ballast.KEEP)
    if space.used_fraction >= publish_stop_fraction:
        reason = f"{space.used_fraction:.1%} of the disk is used; publishes stop at {publish_stop_fraction:.0%}"
    elif not held:
        reason = f"the disk has {space.disk_free} bytes free, but publishes need {2 * ballast_bytes} after it was full"
    else:
        reason = ""
    return Decision(not reason, ballast, reason)


@dataclass(frozen=True, slots=True)
class SpaceRules:
    """Settings of an operator."""

    publish_stop_fraction: float = PUBLISH_STOP_FRACTION
    ballast_bytes: int | None = None
    """None: 2 % of the disk, at most 256 MiB."""


DEFAULT_RULES: Final = SpaceRules()


class SpaceGuard:
    """Watches one folder's disk. The caller refreshes it each second; `wrote` does so in between while much is
    written."""

    def __init__(self, engine: Engine, directory: Path, rules: SpaceRules = DEFAULT_RULES):
        """Makes no file yet: the first refresh does."""
        self.publishes_allowed = True
        self.reason = ""
        self.space = engine.space()
        wanted = min(BALLAST_BYTES_MAX, int(self.space.disk_total * BALLAST_DISK_FRACTION))
        self.ballast_bytes = wanted if rules.ballast_bytes is None else rules.ballast_bytes
        self._unchecked_max = min(UNCHECKED_BYTES_MAX, int(self.space.disk_total * UNCHECKED_DISK_FRACTION))
        self._unchecked = 0
        self._engine = engine
        self._ballast = directory / BALLAST_FILE
        self.publish_stop_fraction = rules.publish_stop_fraction

    def refresh(self) -> None:
        """Reads the disk's space, keeps the ballast, and sets `publishes_allowed`, `reason` and `space`."""
        self._unchecked = 0
        self.space = self._engine.space()
        decision = decide(
            self.space,
            ballast_held=self._ballast_is_held(),
            ballast_bytes=self.ballast_bytes,
            publish_stop_fraction=self.publish_stop_fraction,
        )
        self.publishes_allowed, self.reason = decision.publishes_allowed, decision.reason
        if decision.ballast is Ballast.RELEASE:
            self._ballast.unlink(missing_ok=True)
        elif decision.ballast is Ballast.MAKE and not make_ballast(self._ballast, self.ballast_bytes):
            self.publishes_allowed = False
            self.reason = f"the disk has no room for a ballast of {self.ballast_bytes} bytes"

    def wrote(self, count: int) -> None:
        """Counts the bytes that went into a batch; refreshes after 16 MiB, on a small disk after 1 % of it."""
        self._unchecked += count
        if self._unchecked >= self._unchecked_max:
            self.refresh()

    def _ballast_is_held(self) -> bool:
        # A file of another size is left from another setting, or from a crash while zeros were being written.
        try:
            if self._ballast.stat().st_size == self.ballast_bytes:
                return True
        except FileNotFoundError:
            return False
        self._ballast.unlink()
        return False


def make_ballast(path: Path, size: int) -> bool:
    """Reserves real blocks, at once where the file system can. Returns False when the disk is too full or refuses."""
    try:
        with create_private(path) as file:
            _reserve(file.fileno(), size)
    except OSError:
        path.unlink(missing_ok=True)
        return False
    return True


def _reserve(fd: int, size: int) -> None:
    if size == 0:
        return  # posix_fallocate refuses size 0
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        while size > 0:
            size -= os.write(fd, _ZEROS[:size])
