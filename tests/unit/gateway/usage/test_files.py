"""Usage files: whole or not there, durable before anything relies on them, and bounded."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gateway.usage.files import PART, Damaged, UsageFolder, found, packed, parse_name, read
from tests.support.usage import ledger_row, minute_row

FIRST_MS = 1_700_000_040_123


@pytest.fixture
def folder(tmp_path: Path) -> UsageFolder:
    made = UsageFolder(tmp_path / "usage", "node-1")
    made.open()
    return made


def test_a_file_is_read_as_it_was_written(folder: UsageFolder) -> None:
    rows = [ledger_row(0, 3), ledger_row(3, 9)]
    folder.write("ledger", rows, FIRST_MS)
    (file,) = folder.files()
    assert list(read(file)) == rows
    assert file.path.name == "ledger-node-1-20231114T221400123Z-00000001.ndjson.gz"
    assert parse_name(file.path.name) == ("ledger", "node-1", "20231114T221400123Z", 1)


def test_files_and_folder_are_for_their_owner_only(folder: UsageFolder) -> None:
    path = folder.write("ledger", [ledger_row(0, 3)], FIRST_MS)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


def test_a_name_appears_after_its_bytes_are_durable(folder: UsageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (seen.append(sorted(p.suffix for p in folder.path.iterdir())), fsync(fd))
    )
    folder.write("ledger", [ledger_row(0, 3)], FIRST_MS)
    assert seen == [[PART], [".gz"]], "first the file under another name, then the folder that has its own"


def test_what_a_crash_left_unfinished_goes_and_numbers_go_on(folder: UsageFolder) -> None:
    path = folder.write("minutes", [minute_row()], FIRST_MS)
    left = path.with_name(path.name + PART)
    left.write_bytes(b"half")
    others = folder.path / f"ledger-node-2-20231114T221400123Z-00000001.ndjson.gz{PART}"
    others.write_bytes(b"of a process that is writing it")
    again = UsageFolder(folder.path, "node-1")
    again.open()
    assert not left.exists() and others.exists()
    assert again.write("minutes", [minute_row()], FIRST_MS).name.endswith("-00000002.ndjson.gz")


def test_what_a_deposed_leader_still_writes_is_not_taken_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deposed, leader = (UsageFolder(tmp_path, "log-1", epoch=epoch) for epoch in (9, 10))
    fsync, meanwhile = os.fsync, iter([leader.open])

    def slow(descriptor: int) -> None:
        for open_ in meanwhile:
            open_()
            assert [path.suffix for path in tmp_path.iterdir()] == [PART]
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    path = deposed.write("ledger", [ledger_row(0, 3)], FIRST_MS, 1)
    assert [file.path for file in leader.files()] == [path]


def test_two_do_not_write_one_file_at_once(folder: UsageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    again = UsageFolder(folder.path, "node-1")
    fsync, meanwhile = os.fsync, iter([again])

    def slow(descriptor: int) -> None:
        for other in meanwhile:
            with pytest.raises(BlockingIOError):
                other.write("ledger", [ledger_row(3, 9)], FIRST_MS, 1)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    folder.write("ledger", [ledger_row(0, 3)], FIRST_MS, 1)
    (file,) = folder.files()
    assert list(read(file)) == [ledger_row(0, 3)]


def test_a_file_system_without_locks_has_files_nevertheless(
    folder: UsageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", none)
    path = folder.write("ledger", [ledger_row(0, 3)], FIRST_MS)
    left = path.with_name(path.name + PART)
    left.write_bytes(b"who knows")
    UsageFolder(folder.path, "node-1").open()
    assert path.exists() and left.exists()


def test_leaders_of_one_log_write_files_of_different_names(tmp_path: Path) -> None:
    rows = [ledger_row(0, 3)]
    paths = []
    for epoch in (9, 10):
        leader = UsageFolder(tmp_path, "log-1", epoch=epoch)
        leader.open()
        paths.append(leader.write("ledger", rows, FIRST_MS, 1))
    assert [path.name for path in paths] == [
        f"ledger-log-1-e{epoch:08d}-20231114T221400123Z-00000001.ndjson.gz" for epoch in (9, 10)
    ]
    assert [file.path for file in leader.files()] == paths, "in the order of their epochs"


def test_the_next_leader_removes_what_the_last_one_had_not_finished(tmp_path: Path) -> None:
    left = tmp_path / f"ledger-log-1-e00000001-20231114T221400123Z-00000001.ndjson.gz{PART}"
    left.write_bytes(b"half")
    UsageFolder(tmp_path, "log-1", epoch=2).open()
    assert not left.exists()


def test_two_processes_share_a_folder(folder: UsageFolder) -> None:
    other = UsageFolder(folder.path, "node-2")
    other.open()
    folder.write("ledger", [ledger_row(0, 3)], FIRST_MS)
    other.write("ledger", [ledger_row(0, 3)], FIRST_MS)
    assert {file.node for file in folder.files()} == {"node-1", "node-2"}


def test_the_oldest_minutes_make_room_and_nothing_else_does(folder: UsageFolder) -> None:
    for at in range(3):
        folder.write("minutes", [minute_row()], FIRST_MS + 60_000 * at)
        folder.write("ledger", [ledger_row(at, at + 1)], FIRST_MS + 60_000 * at)
    sizes = {file.path: file.size for file in folder.files()}
    minutes = [file.path for file in folder.files() if file.kind == "minutes"]
    over = folder.make_room(sum(sizes.values()) - 1)
    assert over == 0 and [path.exists() for path in minutes] == [False, True, True]
    assert folder.make_room(1) == sum(file.size for file in folder.files()) - 1
    assert [file.kind for file in folder.files()] == ["ledger"] * 3


def test_the_same_rows_are_the_same_bytes() -> None:
    assert packed([ledger_row(0, 3)]) == packed([ledger_row(0, 3)])


def test_a_damaged_file_is_named(folder: UsageFolder) -> None:
    path = folder.write("ledger", [ledger_row(n, n + 1) for n in range(500)], FIRST_MS)
    path.write_bytes(path.read_bytes()[:-20])
    (file,) = found(folder.path)
    with pytest.raises(Damaged, match=path.name):
        list(read(file))
