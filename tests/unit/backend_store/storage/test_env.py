"""Who may open a folder, what a forked child may do with it, and what the file says about itself."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from backend_store.storage.engine import EngineClosed, FolderInUse, StorageCorrupt, StorageError, Table
from backend_store.storage.env import open_engine
from backend_store.storage.folder import DATA_FILE, RESTORING_FOLDER
from backend_store.storage.keys import META_FORMAT, log_key
from tests.support.storage import commit, hammering

ROOT = Path(__file__).parents[4]


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_the_folder_and_its_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        engine = open_engine(tmp_path / "data")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "data").iterdir()} == {0o600}
    engine.close()


def test_an_empty_folder_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    open_engine(tmp_path / "data").close()
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


def test_a_second_process_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    with hammering(tmp_path / "data") as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(FolderInUse, match=f"in use by process {process.pid}"):
            open_engine(tmp_path / "data")


def test_a_second_open_in_the_same_process_is_refused(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "data")
    with pytest.raises(FolderInUse, match=f"in use by this process {os.getpid()}"):
        open_engine(tmp_path / "data")
    engine.close()
    open_engine(tmp_path / "data").close()


def test_another_name_for_the_folder_is_the_same_folder(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "data")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with pytest.raises(FolderInUse):
        open_engine(tmp_path / "link")
    engine.close()


def test_a_forked_child_cannot_use_the_engine_and_does_not_disturb_it(tmp_path: Path) -> None:
    # In a process of its own: this one has threads, and a fork with threads is what nobody should do.
    done = _python(
        """
import os, sys
from pathlib import Path
from backend_store.storage.engine import Batch, EngineClosed, FolderInUse, Table
from backend_store.storage.env import open_engine

engine = open_engine(Path(sys.argv[1]))
batch = Batch()
batch.put(Table.LOG, b"k", b"v")
engine.commit(batch, lambda: None)
child = os.fork()
if child == 0:
    uses = [
        lambda: engine.get(Table.LOG, b"k"),
        lambda: engine.first_at_or_above(Table.LOG, b"a", b"z"),
        lambda: engine.commit(batch, lambda: None),
        lambda: engine.space(),
    ]
    refused = 0
    for use in uses:
        try:
            use()
        except EngineClosed as error:
            refused += "before the fork" in str(error)
    engine.close()
    try:
        open_engine(Path(sys.argv[1]))
    except FolderInUse:
        refused += 1
    os._exit(refused)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 5, status
assert engine.get(Table.LOG, b"k") == b"v"
engine.commit(batch, lambda: None)
try:
    open_engine(Path(sys.argv[1]))
except FolderInUse:
    engine.close()
assert open_engine(Path(sys.argv[1])).was_clean
""",
        str(tmp_path / "data"),
    )
    assert done.returncode == 0, done.stderr


def test_an_orphan_of_a_killed_server_does_not_hold_the_folder(tmp_path: Path) -> None:
    # A child that outlives its parent inherited the lock's descriptor; it must have let go of it.
    done = _python(
        """
import os, sys, time
from pathlib import Path
from backend_store.storage.env import open_engine

engine = open_engine(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    os.close(1)
    os.close(2)
    time.sleep(30)
print(child, flush=True)
os._exit(1)
""",
        str(tmp_path / "data"),
    )
    orphan = int(done.stdout)
    try:
        engine = open_engine(tmp_path / "data")
        assert not engine.was_clean
        engine.close()
    finally:
        os.kill(orphan, 9)


def test_the_disk_id_is_made_once(tmp_path: Path) -> None:
    first = open_engine(tmp_path / "data")
    first.close()
    again = open_engine(tmp_path / "data")
    other = open_engine(tmp_path / "other")
    assert again.disk_id == first.disk_id != other.disk_id
    assert len(first.disk_id) == 36
    again.close()
    other.close()


def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / DATA_FILE).write_bytes(b"not a database " * 1000)
    with pytest.raises(StorageCorrupt, match="cannot open folder"):
        open_engine(tmp_path / "data")
    assert (tmp_path / "data" / DATA_FILE).read_bytes() == b"not a database " * 1000
    (tmp_path / "data" / DATA_FILE).unlink()
    open_engine(tmp_path / "data").close()


@pytest.mark.parametrize(
    ("version", "what"),
    [
        (99, "it was written by a newer version; start that one, or"),
        (0, "it was written by an older version that is no longer"),
    ],
)
def test_another_format_is_refused_by_its_number_and_left_alone(tmp_path: Path, version: int, what: str) -> None:
    engine = open_engine(tmp_path / "data")
    commit(engine, (Table.META, META_FORMAT, bytes([version])))
    engine.close()
    for _ in range(2):
        with pytest.raises(StorageCorrupt, match=f"format {version}, but this version of Pushq reads format 1: {what}"):
            open_engine(tmp_path / "data")


def test_a_folder_with_an_unfinished_restore_does_not_start_empty(tmp_path: Path) -> None:
    (tmp_path / RESTORING_FOLDER).mkdir()
    with pytest.raises(StorageCorrupt, match="did not finish"):
        open_engine(tmp_path)


def test_deleted_rows_become_room_inside_the_file(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "data")
    keys = [log_key(1, n) for n in range(100)]
    commit(engine, *((Table.LOG, key, bytes(50_000)) for key in keys))
    full = engine.space()
    commit(engine, *((Table.LOG, key, None) for key in keys))
    commit(engine)
    drained = engine.space()
    assert full.live_bytes >= 5_000_000
    assert drained.file_bytes >= full.file_bytes
    assert drained.free_inside >= 4_900_000
    engine.close()


def test_a_killed_reader_does_not_pin_pages_for_ever(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "data")
    commit(engine, (Table.LOG, b"k", bytes(200_000)))
    reader = _python(
        "import lmdb, os, sys; env = lmdb.open(sys.argv[1], readonly=True); txn = env.begin(); os._exit(9)",
        str(tmp_path / "data"),
    )
    assert reader.returncode == 9
    engine.space()
    for _ in range(50):
        commit(engine, (Table.LOG, b"k", bytes(200_000)))
    assert engine.space().file_bytes < 2_000_000
    engine.close()


def test_any_thread_may_read_while_another_commits(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "data")
    commit(engine, (Table.LOG, log_key(1, 0), b"0"))
    seen: list[list[int]] = [[], [], []]
    stop = threading.Event()

    def read(found: list[int]) -> None:
        while not stop.is_set():
            row = engine.first_at_or_above(Table.LOG, log_key(1, 0), log_key(2, 0))
            assert row is not None
            found.append(int(row[1]))

    threads = [threading.Thread(target=read, args=(found,)) for found in seen]
    for thread in threads:
        thread.start()
    for number in range(1, 200):
        commit(engine, (Table.LOG, log_key(1, number - 1), None), (Table.LOG, log_key(1, number), b"%d" % number))
    stop.set()
    for thread in threads:
        thread.join()
    for found in seen:
        assert found == sorted(found)
    engine.close()


def test_errors_belong_to_one_tree_and_carry_a_code() -> None:
    codes = {kind.code for kind in (FolderInUse, StorageCorrupt, EngineClosed)}
    assert codes == {"folder-in-use", "storage-corrupt", "engine-closed"}
    assert issubclass(FolderInUse, StorageError)
