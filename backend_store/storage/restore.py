"""Restore: makes a data folder from a backup, or refuses. Nothing appears in the target before all of it is verified.

The copy gets a new disk id, because the old one may still be alive somewhere, and a `restored` row, so that the node
begins new epochs: offsets assigned after the backup was taken must not come back under the same epoch.
"""

import hashlib
import shutil
import time
import uuid
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import msgspec

from backend_store.storage.backup import MANIFEST_FILE, Manifest
from backend_store.storage.engine import Batch, StorageError, Table
from backend_store.storage.env import count_rows, open_engine, structure_problems
from backend_store.storage.folder import (
    DATA_FILE,
    RESTORING_FOLDER,
    create_private,
    made_for_work,
    sync_folder,
    write_private,
)
from backend_store.storage.keys import META_DISK_ID, META_RESTORED
from backend_store.storage.verify import Check, first_broken

_PIECE_BYTES = 1 << 20
_manifest = msgspec.json.Decoder(Manifest)


class RestoreRefused(StorageError):
    """The target is as it was; the message says what is wrong with it or with the backup."""

    code = "restore-refused"


def restore(source: Path, target: Path, *, check: Check, beside: Collection[str] = ()) -> Manifest:
    """Verifies the backup in `source` — file, structure, every entry by `check` — and makes `target` from it.

    `beside`: names of further files that a backup may have; they are taken along also where its manifest, of an earlier
    version, does not list them.
    """
    manifest = _read_manifest(source)
    work = _work_folder(target)
    with made_for_work(target):
        work.mkdir(mode=0o700)
        try:
            _copy_data(source / DATA_FILE, work / DATA_FILE, manifest)
            _refuse_broken_structure(source, work, manifest)
            _refuse_broken_entries(source, work, check)
            _give_new_identity(work)
            others = _copy_others(source, work, manifest, beside)
            for name in (*others, DATA_FILE):
                (work / name).rename(target / name)
        finally:
            shutil.rmtree(work)
    sync_folder(target)
    return manifest


def _read_manifest(source: Path) -> Manifest:
    try:
        return _manifest.decode((source / MANIFEST_FILE).read_bytes())
    except FileNotFoundError:
        raise RestoreRefused(f'"{source}" has no {MANIFEST_FILE}: it is not a backup, or an incomplete one') from None
    except msgspec.DecodeError as error:
        raise RestoreRefused(f'cannot read "{source / MANIFEST_FILE}": {error}') from error


def _work_folder(target: Path) -> Path:
    """The folder to work in, which is missing: inside the target, because the last step, a rename, must not cross file
    systems."""
    work = target / RESTORING_FOLDER
    if target.exists():
        if not target.is_dir() or any(entry != work for entry in target.iterdir()):
            raise RestoreRefused(f'target "{target}" is not an empty folder')
        if work.exists():
            shutil.rmtree(work)  # left by a restore that was cut off
    return work


def _copy_data(source: Path, copy: Path, manifest: Manifest) -> None:
    digest, size = hashlib.sha256(), 0
    try:
        with source.open("rb") as reading, create_private(copy) as writing:
            while piece := reading.read(_PIECE_BYTES):
                digest.update(piece)
                size += len(piece)
                writing.write(piece)
    except OSError as error:
        raise RestoreRefused(f'cannot copy "{source}": {error}') from error
    if (size, digest.hexdigest()) != (manifest.file_bytes, manifest.sha256):
        found = f"{size} bytes, sha256 {digest.hexdigest()}"
        raise RestoreRefused(f'"{source}" does not match its manifest: {found}')


def _copy_others(source: Path, work: Path, manifest: Manifest, beside: Collection[str]) -> list[str]:
    """The names of the files that were copied."""
    if unknown := sorted(manifest.files.keys() - set(beside)):
        raise RestoreRefused(f'"{source / MANIFEST_FILE}" lists "{unknown[0]}", which no backup has')
    names = [name for name in beside if name in manifest.files or (source / name).exists()]
    for name in names:
        try:
            content = (source / name).read_bytes()
        except OSError as error:
            raise RestoreRefused(f'"{source / name}" cannot be copied: {error.strerror}') from None
        if manifest.files.get(name) not in (None, hashlib.sha256(content).hexdigest()):
            raise RestoreRefused(f'"{source / name}" does not match its manifest')
        write_private(work / name, content)
    return names


def _refuse_broken_structure(source: Path, work: Path, manifest: Manifest) -> None:
    problems = structure_problems(work)
    if problems:
        raise RestoreRefused(f'"{source}" is corrupt in {len(problems)} places; the first: {problems[0]}')
    found = count_rows(work)
    if found != (manifest.disk_id, manifest.rows):
        raise RestoreRefused(f'"{source}" has {found}, but its manifest says {(manifest.disk_id, manifest.rows)}')


def _refuse_broken_entries(source: Path, work: Path, check: Check) -> None:
    with closing(open_engine(work)) as engine:
        broken = first_broken(engine, check)
    if broken is not None:
        key, reason = broken
        raise RestoreRefused(f'"{source}" has a corrupt entry at key {key.hex()}: {reason}')


def _give_new_identity(work: Path) -> None:
    batch = Batch()
    batch.put(Table.META, META_DISK_ID, str(uuid.uuid4()).encode())
    batch.put(Table.META, META_RESTORED, (time.time_ns() // 1_000_000).to_bytes(8))
    with closing(open_engine(work)) as engine:
        engine.commit(batch, lambda: None)
