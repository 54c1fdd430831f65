"""Backup and restore of a data folder, for the command line: uses the store's own check of every entry."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from backend_store.node.log.damage import broken_entry
from backend_store.storage.backup import Manifest, backup
from backend_store.storage.engine import StorageError
from backend_store.storage.folder import DATA_FILE, RESTORING_FOLDER, create_private
from backend_store.storage.restore import restore as _restore

__all__ = [
    "DATA_FILE",
    "MASTER_KEY_FILE",
    "RESTORING_FOLDER",
    "Manifest",
    "StorageError",
    "backup",
    "copy_master_key",
    "restore",
]

MASTER_KEY_FILE: Final = "master.key"
"""The file in which a gateway by default keeps its key beside the data; the store itself never reads it."""


def restore(source: Path, target: Path) -> Manifest:
    """Verifies the backup in `source` and makes `target` from it. Raises `StorageError`, and then nothing was made."""
    return _restore(source, target, check=broken_entry)


def copy_master_key(source: Path, target: Path) -> None:
    """Copies the master key of a data folder. Raises `StorageError`."""
    try:
        text = (source / MASTER_KEY_FILE).read_bytes()
        with create_private(target / MASTER_KEY_FILE) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(f"{source / MASTER_KEY_FILE} cannot be copied: {error.strerror}") from None
