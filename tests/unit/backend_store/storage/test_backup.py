"""A copy of a live folder is one moment of it, and its price is bounded."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from pathlib import Path

import msgspec
import pytest

from backend_store.storage.backup import MANIFEST_FILE, BackupFailed, Manifest, backup
from backend_store.storage.engine import Table
from backend_store.storage.env import copy_environment, open_engine
from backend_store.storage.folder import DATA_FILE
from backend_store.storage.keys import log_key
from backend_store.storage.restore import restore
from tests.support.storage import (
    commit,
    entry_problem,
    hammer_batch,
    hammered_to,
    hammering,
    last_reported,
    small_disk,
)


def test_a_backup_beside_a_writing_process_restores_to_a_prefix_of_its_history(tmp_path: Path) -> None:
    reported_before: list[int] = []
    with hammering(tmp_path / "live") as process:
        assert process.stdout is not None
        for number in range(6):
            reported_before.append(int(process.stdout.readline()))
            backup(tmp_path / "live", tmp_path / f"backup{number}")
            time.sleep(0.03)
        process.kill()
        process.wait()
        last = last_reported(process)
    found = []
    for number in range(6):
        restore(tmp_path / f"backup{number}", tmp_path / f"restored{number}", check=entry_problem)
        engine = open_engine(tmp_path / f"restored{number}")
        # `hammered_to` asserts that log, marks and counter are all of one commit.
        found.append(hammered_to(engine))
        engine.close()
    assert found == sorted(found)
    assert all(before <= then <= last + 1 for before, then in zip(reported_before, found, strict=True))
    assert found[-1] > found[0]


def test_a_backup_from_the_serving_process_takes_the_same_road(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "live")
    for number in range(120):
        engine.commit(hammer_batch(number, b"x" * 2000), lambda: None)
    manifest = backup(tmp_path / "live", tmp_path / "backup")
    engine.commit(hammer_batch(120, b"x"), lambda: None)
    engine.close()
    assert manifest.disk_id == engine.disk_id
    assert manifest.rows["log"] == 50
    restore(tmp_path / "backup", tmp_path / "restored", check=entry_problem)
    restored = open_engine(tmp_path / "restored")
    assert hammered_to(restored) == 119
    restored.close()


def test_a_backup_of_a_stopped_folder_works_and_changes_nothing(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "data")
    commit(engine, (Table.LOG, b"k", b"v"))
    engine.close()
    before = (tmp_path / "data" / DATA_FILE).read_bytes()
    backup(tmp_path / "data", tmp_path / "backup")
    assert (tmp_path / "data" / DATA_FILE).read_bytes() == before
    again = open_engine(tmp_path / "data")
    assert again.was_clean
    again.close()


def test_free_pages_are_not_copied(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "data")
    commit(engine, *((Table.LOG, log_key(1, number), bytes(50_000)) for number in range(100)))
    commit(engine, *((Table.LOG, log_key(1, number), None) for number in range(100)))
    manifest = backup(tmp_path / "data", tmp_path / "backup")
    assert engine.space().file_bytes > 5_000_000
    assert manifest.file_bytes < 100_000
    engine.close()


def test_the_manifest_describes_the_file_and_both_are_private(tmp_path: Path) -> None:
    open_engine(tmp_path / "data").close()
    manifest = backup(tmp_path / "data", tmp_path / "backup")
    written = msgspec.json.decode((tmp_path / "backup" / MANIFEST_FILE).read_bytes(), type=Manifest)
    assert written == manifest
    assert sorted(file.name for file in (tmp_path / "backup").iterdir()) == [DATA_FILE, MANIFEST_FILE]
    assert stat.S_IMODE((tmp_path / "backup").stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "backup").iterdir()} == {0o600}


def test_the_manifest_lists_the_further_files_that_were_asked_for(tmp_path: Path) -> None:
    open_engine(tmp_path / "data").close()
    (tmp_path / "data" / "master.key").write_text("secret\n")
    assert backup(tmp_path / "data", tmp_path / "without").files == {}
    manifest = backup(tmp_path / "data", tmp_path / "with", beside=["master.key"])
    assert manifest.files == {"master.key": hashlib.sha256(b"secret\n").hexdigest()}
    assert sorted(os.listdir(tmp_path / "with")) == [DATA_FILE, MANIFEST_FILE, "master.key"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "with").iterdir()} == {0o600}


def test_a_further_file_that_is_absent_or_changes_meanwhile_is_no_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_engine(tmp_path / "data").close()
    with pytest.raises(BackupFailed, match=r'master\.key" cannot be copied: No such file'):
        backup(tmp_path / "data", tmp_path / "backup", beside=["master.key"])
    key = tmp_path / "data" / "master.key"
    key.write_text("old")

    def copied_while_it_is_replaced(path: Path, sink: int) -> None:
        copy_environment(path, sink)
        key.write_text("new")

    monkeypatch.setattr("backend_store.storage.backup.copy_environment", copied_while_it_is_replaced)
    with pytest.raises(BackupFailed, match="was changed while the backup ran"):
        backup(tmp_path / "data", tmp_path / "backup", beside=["master.key"])
    assert not (tmp_path / "backup").exists()


def test_a_folder_without_a_store_and_a_used_target_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BackupFailed, match="contains no store"):
        backup(tmp_path / "empty", tmp_path / "backup")
    open_engine(tmp_path / "data").close()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(BackupFailed, match="not an empty folder"):
        backup(tmp_path / "data", tmp_path / "used")
    assert [file.name for file in (tmp_path / "used").iterdir()] == ["file"]


def test_a_backup_that_takes_too_long_gives_up_and_the_writer_goes_on(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "data")
    commit(engine, *((Table.LOG, log_key(1, number), bytes(50_000)) for number in range(100)))
    with pytest.raises(BackupFailed, match="took too long"):
        backup(tmp_path / "data", tmp_path / "backup", seconds_max=0)
    assert not (tmp_path / "backup").exists()
    commit(engine, (Table.LOG, b"k", b"v"))
    backup(tmp_path / "data", tmp_path / "backup")
    engine.close()


def test_a_backup_gives_up_before_it_fills_the_disk_it_copies_from(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 24) as disk:
        engine = open_engine(disk / "data")
        commit(engine, *((Table.LOG, log_key(1, number), bytes(50_000)) for number in range(260)))
        with pytest.raises(BackupFailed, match="must stay free"):
            backup(disk / "data", disk / "backup")
        assert not (disk / "backup").exists()
        commit(engine, (Table.LOG, b"k", b"v"))
        engine.close()


def test_a_backup_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_engine(tmp_path / "data").close()
    sync = os.fsync
    for works in range(2):
        left = works

        def fail_later(fd: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(5, "Input/output error")
            sync(fd)

        monkeypatch.setattr(os, "fsync", fail_later)
        with pytest.raises(OSError, match="Input/output error"):
            backup(tmp_path / "data", tmp_path / "backup")
        assert not (tmp_path / "backup").exists()
