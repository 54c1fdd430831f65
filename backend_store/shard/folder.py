"""The folder of one shard: numbered copies of its state, of which one is in use; a snapshot becomes the next one.

DIR/current    the number of the copy in use      DIR/7/    that copy, an environment
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from backend_store.storage.folder import make_private, sync_folder

CURRENT = "current"


class ShardFolder:
    def __init__(self, path: Path) -> None:
        """Makes the folder if it is missing, and removes copies that never came into use. Raises `OSError`,
        `ValueError`."""
        make_private(path)
        self.path = path
        file = path / CURRENT
        self._number = int(file.read_text()) if file.exists() else 0
        for other in path.iterdir():
            if other.is_dir() and other != self.current:
                shutil.rmtree(other)
        if not self._number:
            self.switch()

    @property
    def current(self) -> Path:
        return self.path / str(self._number)

    @property
    def next(self) -> Path:
        """The path where a snapshot is installed."""
        return self.path / str(self._number + 1)

    def clear_next(self) -> None:
        shutil.rmtree(self.next, ignore_errors=True)

    def switch(self) -> None:
        """Durably makes the next copy the one in use."""
        new = self.path / f"{CURRENT}.new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, b"%d" % (self._number + 1))
            os.fsync(fd)
        finally:
            os.close(fd)
        new.rename(self.path / CURRENT)
        sync_folder(self.path)
        self._number += 1
