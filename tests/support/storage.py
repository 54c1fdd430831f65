"""Storage for tests: small checksummed entries, a disk that is really small, and a process that commits until killed.

`python -m tests.support.storage hammer FOLDER` is that process: it prints each number once its commit is durable.
"""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backend_store.storage.engine import Batch, Engine, Table
from backend_store.storage.env import open_engine
from backend_store.storage.keys import log_key, log_range, mark_key, parse_log_key
from backend_store.storage.verify import walk

REPLICA = 7
WINDOW = 50
"""Entries the hammer keeps: each commit adds one and deletes the one this far back."""
COUNTER = b"hammer"


def entry(key: bytes, payload: bytes) -> bytes:
    """A value tied to its key: the checksum covers the key."""
    return zlib.crc32(key + payload).to_bytes(4) + payload


def entry_problem(key: bytes, value: bytes) -> str | None:
    """The check callback for such entries."""
    wanted = zlib.crc32(key + value[4:]).to_bytes(4)
    return None if value[:4] == wanted else f"checksum {value[:4].hex()}, expected {wanted.hex()}"


def commit(engine: Engine, *rows: tuple[Table, bytes, bytes | None]) -> None:
    """Commits these rows in one transaction; a value of None deletes."""
    batch = Batch()
    for table, key, value in rows:
        if value is None:
            batch.delete(table, key)
        else:
            batch.put(table, key, value)
    engine.commit(batch, lambda: None)


def all_rows(engine: Engine, table: Table) -> dict[bytes, bytes]:
    return dict(walk(engine, table))


def hammer_batch(number: int, payload: bytes) -> Batch:
    """The commit of this number: log, marks and counter must agree, so a torn snapshot is detected."""
    batch = Batch()
    key = log_key(REPLICA, number)
    batch.put(Table.LOG, key, entry(key, payload))
    batch.put(Table.MARKS, mark_key(REPLICA, 0, number), b"%d" % number)
    batch.put(Table.META, COUNTER, b"%d" % number)
    if number >= WINDOW:
        batch.delete(Table.LOG, log_key(REPLICA, number - WINDOW))
        batch.delete(Table.MARKS, mark_key(REPLICA, 0, number - WINDOW))
    return batch


def hammered_to(engine: Engine) -> int:
    """The last number committed, or -1. Asserts that the rows are exactly those left by the commits up to it."""
    stored = engine.get(Table.META, COUNTER)
    last = -1 if stored is None else int(stored)
    wanted = list(range(max(0, last - WINDOW + 1), last + 1))
    log = engine.scan(Table.LOG, *log_range(REPLICA), WINDOW * 2)
    assert [parse_log_key(key)[1] for key, _ in log] == wanted
    assert [int(value) for _, value in engine.scan(Table.MARKS, *log_range(REPLICA), WINDOW * 2)] == wanted
    assert [entry_problem(key, value) for key, value in log] == [None] * len(wanted)
    return last


@contextmanager
def hammering(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that commits to the folder as fast as it can; killed at the end if it is still running."""
    command = [sys.executable, "-m", "tests.support.storage", "hammer", str(path)]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def last_reported(process: subprocess.Popen[str]) -> int:
    """The last number reported by a killed hammer, from the rest of its pipe; an incomplete line is ignored."""
    assert process.stdout is not None
    whole = [line for line in process.stdout if line.endswith("\n")]
    return int(whole[-1]) if whole else -1


@contextmanager
def small_disk(path: Path, size_mib: int) -> Iterator[Path]:
    """A separate file system of this size, mounted at the path."""
    path.mkdir()
    options = f"size={size_mib}m,mode=700"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(path)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        raise AssertionError(f"this test mounts a {size_mib} MiB tmpfs and must run as root: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        # Lazily: a failed test may still have open files there, and must not leave the mount behind.
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def _hammer(path: Path) -> None:
    engine = open_engine(path)
    number = hammered_to(engine) + 1
    while True:
        engine.commit(hammer_batch(number, bytes([number % 251]) * (number * 97 % 9000)), lambda: None)
        print(number, flush=True)
        number += 1


if __name__ == "__main__":
    assert sys.argv[1] == "hammer"
    _hammer(Path(sys.argv[2]))
