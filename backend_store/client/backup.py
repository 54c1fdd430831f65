"""Backup and restore of a data folder, for the command line: uses the store's own check of every entry."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from backend_store.node.log.damage import broken_entry
from backend_store.storage.backup import Manifest
from backend_store.storage.backup import backup as _backup
from backend_store.storage.engine import StorageError
from backend_store.storage.folder import DATA_FILE, RESTORING_FOLDER
from backend_store.storage.restore import restore as _restore

__all__ = [
    "DATA_FILE",
    "MASTER_KEY_FILE",
    "RESTORING_FOLDER",
    "Manifest",
    "StorageError",
    "backup",
    "restore",
]

MASTER_KEY_FILE: Final = "master.key"
"""The file in which a gateway by default keeps its key beside the data; the store itself never reads it."""


def backup(path: Path, target: Path, *, with_master_key: bool) -> Manifest:
    """Copies the folder at `path` into `target`. Raises `StorageError`, and then nothing was made."""
    return _backup(path, target, beside=[MASTER_KEY_FILE] if with_master_key else [])


def restore(source: Path, target: Path) -> Manifest:
    """Verifies the backup in `source` and makes `target` from it, with the master key if the backup has it. Raises
    `StorageError`, and then nothing was made."""
    return _restore(source, target, check=broken_entry, beside=[MASTER_KEY_FILE])
