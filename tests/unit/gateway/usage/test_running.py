"""The mark of a process that counts usage, and what a gateway that was killed leaves."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.usage.files import PART
from gateway.usage.running import Running

GONE = "gateway-0123456789ab"
HERE = "gateway-ba9876543210"
LASTING = "4d1b8c4e-0000-4000-8000-000000000001"
MARKS = """
import sys
from pathlib import Path
from gateway.usage.running import Running
marks = [Running(Path(sys.argv[1]), node) for node in sys.argv[2:]]
print([mark.begin() for mark in marks], flush=True)
sys.stdin.read()
"""


def marks(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("running-*"))


def test_the_next_process_of_a_node_learns_that_the_last_one_had_not_ended(tmp_path: Path) -> None:
    first = Running(tmp_path, LASTING)
    assert not first.begin()
    second = Running(tmp_path, LASTING)
    assert second.begin()
    second.end()
    assert marks(tmp_path) == []
    assert not first.begin()
    first.end()


def test_a_mark_that_may_not_be_opened_stays_and_keeps_nobody_from_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a gateway that another user ran."""
    mark, open_ = tmp_path / f"running-{GONE}", os.open
    mark.touch()

    def refused(path: Path, *how: int) -> int:
        if Path(path) == mark:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_(path, *how)

    monkeypatch.setattr(os, "open", refused)
    here = Running(tmp_path, HERE)
    assert not here.begin() and mark.exists()
    here.end()


def test_a_mark_that_was_taken_for_one_of_a_gateway_that_is_gone_is_left_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process found it between the moments in which it was made and locked."""
    lock, meant = fcntl.flock, [True]

    def too_late(descriptor: int, how: int) -> None:
        if meant.pop() if meant else False:
            (tmp_path / f"running-{HERE}").unlink()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", too_late)
    here = Running(tmp_path, HERE)
    assert not here.begin() and marks(tmp_path) == [f"running-{HERE}"]
    here.end()


def test_a_lock_is_asked_for_of_a_file_that_is_open_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system in the network refuses it otherwise."""
    lock = fcntl.flock

    def of_network(descriptor: int, how: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", of_network)
    (tmp_path / f"running-{GONE}").touch()
    here = Running(tmp_path, HERE)
    assert here.begin() and marks(tmp_path) == [f"running-{HERE}"]
    here.end()


def test_what_a_killed_gateway_left_goes_and_what_is_of_others_stays(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MARKS, str(tmp_path), GONE, LASTING],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as killed:  # fmt: skip
        assert killed.stdout is not None and killed.stdout.readline() == "[False, False]\n"
        left = tmp_path / f"minutes-{GONE}-20231114T221400123Z-00000001.ndjson.gz{PART}"
        left.write_bytes(b"half")
        beside = Running(tmp_path, HERE)
        assert not beside.begin() and marks(tmp_path) == sorted(f"running-{one}" for one in (GONE, HERE, LASTING))
        killed.kill()
    next_ = Running(tmp_path, "gateway-000000000000")
    assert next_.begin(), "minutes of it may be lost"
    assert f"running-{GONE}" not in marks(tmp_path) and not left.exists()
    assert {f"running-{HERE}", f"running-{LASTING}"} <= {*marks(tmp_path)}, "one works, one comes back"
    beside.end()
    next_.end()
    assert marks(tmp_path) == [f"running-{LASTING}"]
