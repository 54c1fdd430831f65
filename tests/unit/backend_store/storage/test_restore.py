"""A restore makes a folder of its own identity out of a whole backup, and nothing at all out of a broken one."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import msgspec
import pytest

from backend_store.storage.backup import MANIFEST_FILE, Manifest, backup
from backend_store.storage.engine import Table
from backend_store.storage.env import open_engine
from backend_store.storage.folder import DATA_FILE, RESTORING_FOLDER
from backend_store.storage.keys import META_DISK_ID, META_RESTORED, log_key
from backend_store.storage.restore import RestoreRefused, restore
from tests.support.storage import all_rows, commit, entry, entry_problem


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A backup, taken live, of a folder with 300 entries."""
    engine = open_engine(tmp_path / "data")
    keys = [log_key(1, number) for number in range(300)]
    commit(engine, *((Table.LOG, key, entry(key, bytes(300))) for key in keys))
    commit(engine, (Table.META, b"state", b"what the node keeps"))
    backup(tmp_path / "data", tmp_path / "backup")
    engine.close()
    return tmp_path / "backup"


def _manifest(folder: Path) -> Manifest:
    return msgspec.json.decode((folder / MANIFEST_FILE).read_bytes(), type=Manifest)


def _assert_nothing_at(target: Path) -> None:
    assert not target.exists()


def test_a_restored_folder_has_every_row_a_new_disk_id_and_says_so(tmp_path: Path, saved: Path) -> None:
    before_ms = time.time_ns() // 1_000_000
    manifest = restore(saved, tmp_path / "new", check=entry_problem)
    assert [file.name for file in (tmp_path / "new").iterdir()] == [DATA_FILE]
    source, restored = open_engine(tmp_path / "data"), open_engine(tmp_path / "new")
    assert all_rows(restored, Table.LOG) == all_rows(source, Table.LOG)
    assert restored.get(Table.META, b"state") == b"what the node keeps"
    assert restored.disk_id != source.disk_id == manifest.disk_id
    assert restored.get(Table.META, META_DISK_ID) == restored.disk_id.encode()
    assert before_ms <= int.from_bytes(restored.get(Table.META, META_RESTORED) or b"") <= time.time_ns() // 1_000_000
    assert source.get(Table.META, META_RESTORED) is None
    # It was verified just now, so it counts as clean, although the backup was taken of a running folder.
    assert restored.was_clean
    source.close()
    restored.close()


def test_two_restores_of_one_backup_are_two_disks(tmp_path: Path, saved: Path) -> None:
    ids = set()
    for name in ("one", "two"):
        restore(saved, tmp_path / name, check=entry_problem)
        engine = open_engine(tmp_path / name)
        ids.add(engine.disk_id)
        engine.close()
    assert len(ids) == 2


def test_a_target_with_anything_in_it_is_refused_and_left_as_it_was(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "admin.key").write_text("secret")
    with pytest.raises(RestoreRefused, match="not an empty folder"):
        restore(saved, tmp_path / "new", check=entry_problem)
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["admin.key"]
    with pytest.raises(RestoreRefused, match="not an empty folder"):
        restore(saved, tmp_path / "new" / "admin.key", check=entry_problem)


def test_a_restore_that_was_cut_off_can_be_run_again(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "new" / RESTORING_FOLDER).mkdir(parents=True)
    (tmp_path / "new" / RESTORING_FOLDER / DATA_FILE).write_bytes(b"half")
    restore(saved, tmp_path / "new", check=entry_problem)
    open_engine(tmp_path / "new").close()


def test_a_backup_without_its_manifest_was_cut_off_and_is_refused(tmp_path: Path, saved: Path) -> None:
    (saved / MANIFEST_FILE).unlink()
    with pytest.raises(RestoreRefused, match="an incomplete one"):
        restore(saved, tmp_path / "new", check=entry_problem)
    _assert_nothing_at(tmp_path / "new")


@pytest.mark.parametrize("text", [b"", b"{}", b"null", b'{"version": 2}'])
def test_a_manifest_that_cannot_be_read_is_refused(tmp_path: Path, saved: Path, text: bytes) -> None:
    (saved / MANIFEST_FILE).write_bytes(text)
    with pytest.raises(RestoreRefused, match="cannot read"):
        restore(saved, tmp_path / "new", check=entry_problem)


def test_a_further_file_comes_along_and_is_verified(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "data" / "master.key").write_text("secret")
    backup(tmp_path / "data", tmp_path / "with", beside=["master.key"])
    restore(tmp_path / "with", tmp_path / "new", check=entry_problem, beside=["master.key"])
    assert (tmp_path / "new" / "master.key").read_text() == "secret"
    with pytest.raises(RestoreRefused, match=r'lists "master\.key", which no backup has'):
        restore(tmp_path / "with", tmp_path / "other", check=entry_problem)
    (tmp_path / "with" / "master.key").write_text("another")
    with pytest.raises(RestoreRefused, match="does not match its manifest"):
        restore(tmp_path / "with", tmp_path / "other", check=entry_problem, beside=["master.key"])
    (tmp_path / "with" / "master.key").unlink()
    with pytest.raises(RestoreRefused, match=r'master\.key" cannot be copied'):
        restore(tmp_path / "with", tmp_path / "other", check=entry_problem, beside=["master.key"])
    _assert_nothing_at(tmp_path / "other")


def test_a_backup_of_an_earlier_version_brings_the_further_file_that_lies_beside_it(
    tmp_path: Path, saved: Path
) -> None:
    manifest = msgspec.json.decode((saved / MANIFEST_FILE).read_bytes())
    del manifest["files"]
    (saved / MANIFEST_FILE).write_bytes(msgspec.json.encode(manifest))
    restore(saved, tmp_path / "without", check=entry_problem, beside=["master.key"])
    (saved / "master.key").write_text("secret")
    restore(saved, tmp_path / "with", check=entry_problem, beside=["master.key"])
    assert not (tmp_path / "without" / "master.key").exists()
    assert (tmp_path / "with" / "master.key").read_text() == "secret"


def test_one_flipped_bit_is_refused_wherever_it_is(tmp_path: Path, saved: Path) -> None:
    whole = (saved / DATA_FILE).read_bytes()
    for at in range(0, len(whole), len(whole) // 37):
        damaged = bytearray(whole)
        damaged[at] ^= 0x04
        (saved / DATA_FILE).write_bytes(bytes(damaged))
        with pytest.raises(RestoreRefused, match="does not match its manifest"):
            restore(saved, tmp_path / "new", check=entry_problem)
        _assert_nothing_at(tmp_path / "new")


def test_a_refused_restore_removes_the_folders_that_it_made_and_no_other(tmp_path: Path, saved: Path) -> None:
    (saved / DATA_FILE).write_bytes(b"")
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "a" / "b" / "new", tmp_path / "empty", tmp_path / "empty" / "new"):
        with pytest.raises(RestoreRefused, match="does not match its manifest"):
            restore(saved, target, check=entry_problem)
    _assert_nothing_at(tmp_path / "a")
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize("kept", [0, 1, 0.5, 0.999])
def test_a_shortened_file_is_refused(tmp_path: Path, saved: Path, kept: float) -> None:
    whole = (saved / DATA_FILE).read_bytes()
    (saved / DATA_FILE).write_bytes(whole[: int(len(whole) * kept)] if kept != 1 else whole[:1])
    with pytest.raises(RestoreRefused, match="does not match its manifest"):
        restore(saved, tmp_path / "new", check=entry_problem)


def test_a_missing_file_is_refused(tmp_path: Path, saved: Path) -> None:
    (saved / DATA_FILE).unlink()
    with pytest.raises(RestoreRefused, match="cannot copy"):
        restore(saved, tmp_path / "new", check=entry_problem)
    _assert_nothing_at(tmp_path / "new")


def _sign(saved: Path) -> None:
    """Makes the manifest agree with a damaged file, as damage before the backup would."""
    data = (saved / DATA_FILE).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    agreed = msgspec.structs.replace(_manifest(saved), sha256=digest, file_bytes=len(data))
    (saved / MANIFEST_FILE).write_bytes(msgspec.json.encode(agreed))


def test_damage_older_than_the_backup_is_found_in_the_structure(tmp_path: Path, saved: Path) -> None:
    damaged = bytearray((saved / DATA_FILE).read_bytes())
    damaged[3 * 4096 : 3 * 4096 + 16] = b"\xff" * 16
    (saved / DATA_FILE).write_bytes(bytes(damaged))
    _sign(saved)
    with pytest.raises(RestoreRefused, match="places; the first"):
        restore(saved, tmp_path / "new", check=entry_problem)
    _assert_nothing_at(tmp_path / "new")


def test_damage_inside_an_entry_is_found_by_its_check(tmp_path: Path, saved: Path) -> None:
    whole = (saved / DATA_FILE).read_bytes()
    key = log_key(1, 150)
    at = whole.index(entry(key, bytes(300))) + 200
    (saved / DATA_FILE).write_bytes(whole[:at] + b"\x01" + whole[at + 1 :])
    _sign(saved)
    with pytest.raises(RestoreRefused, match=f"corrupt entry at key {key.hex()}: checksum"):
        restore(saved, tmp_path / "new", check=entry_problem)
    _assert_nothing_at(tmp_path / "new")


def test_a_manifest_that_counts_other_rows_is_refused(tmp_path: Path, saved: Path) -> None:
    other = msgspec.structs.replace(_manifest(saved), rows={"log": 299})
    (saved / MANIFEST_FILE).write_bytes(msgspec.json.encode(other))
    with pytest.raises(RestoreRefused, match="its manifest says"):
        restore(saved, tmp_path / "new", check=entry_problem)
