"""Backup and restore of a data folder, for the command line: the store's own, with its own check of every entry."""

from __future__ import annotations

from pathlib import Path

from backend_store.node.damage import broken_entry
from backend_store.storage.backup import Manifest, backup
from backend_store.storage.engine import StorageError
from backend_store.storage.folder import DATA_FILE, RESTORING_FOLDER
from backend_store.storage.restore import restore as _restore

__all__ = ["DATA_FILE", "RESTORING_FOLDER", "Manifest", "StorageError", "backup", "restore"]


def restore(source: Path, target: Path) -> Manifest:
    """Verifies the backup in `source` and makes `target` from it. Raises `StorageError`; then nothing was made."""
    return _restore(source, target, check=broken_entry)
