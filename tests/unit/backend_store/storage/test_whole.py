"""Files that were cut or whose pages are broken: a start refuses them with the figures, and a read that meets it ends
the process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend_store.model import Unavailable
from backend_store.storage.engine import Batch, StorageBroken, StorageCorrupt, Table
from backend_store.storage.env import LmdbEngine, open_engine
from backend_store.storage.folder import DATA_FILE, LOCK_FILE
from backend_store.storage.keys import log_key
from backend_store.storage.whole import look_at
from backend_store.storage.writer import Writer
from tests.support.storage import all_rows, commit

PAGE = 4096
ROWS = 600
_FLAGS_AT = 10
"""Of a page's header: what kind of page it is."""
_COMMIT_AT = 16 + 24 + 2 * 48 + 8


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with hundreds of entries that was closed cleanly."""
    path = tmp_path_factory.mktemp("sound") / "data"
    engine = open_engine(path)
    for start in range(0, ROWS, 50):
        commit(engine, *((Table.LOG, log_key(7, n), bytes([n % 256]) * 300) for n in range(start, start + 50)))
    engine.close()
    return path


def copy(sound: Path, target: Path, *, was_clean: bool = True) -> Path:
    target.mkdir()
    (target / DATA_FILE).write_bytes((sound / DATA_FILE).read_bytes())
    (target / LOCK_FILE).write_bytes(b"" if was_clean else b"1\n")
    return target


def flip(path: Path, at: int, bits: int = 1) -> None:
    with (path / DATA_FILE).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ bits]))


def served(path: Path) -> int | None:
    """How many entries a start would serve; None where it refuses the folder."""
    try:
        engine = open_engine(path)
    except StorageCorrupt:
        return None
    found = len(all_rows(engine, Table.LOG))
    engine.close()
    return found


def test_a_sound_file_is_as_long_as_it_says(sound: Path, tmp_path: Path) -> None:
    head = look_at(sound)
    assert (head.problem, head.is_short, head.is_long) == (None, False, False)
    for was_clean in (True, False):
        engine = open_engine(copy(sound, tmp_path / str(was_clean), was_clean=was_clean))
        assert len(all_rows(engine, Table.LOG)) == ROWS
        engine.close()


@pytest.mark.parametrize("was_clean", [True, False])
def test_a_file_that_was_cut_is_refused_with_both_lengths(sound: Path, tmp_path: Path, *, was_clean: bool) -> None:
    path = copy(sound, tmp_path / "data", was_clean=was_clean)
    whole = (path / DATA_FILE).stat().st_size
    os.truncate(path / DATA_FILE, whole // 2)
    with pytest.raises(
        StorageCorrupt, match=f"has {whole // 2} bytes but should have {whole}.*Restore it from a backup"
    ):
        open_engine(path)


def test_an_empty_file_is_no_new_store(sound: Path, tmp_path: Path) -> None:
    path = copy(sound, tmp_path / "data")
    os.truncate(path / DATA_FILE, 0)
    with pytest.raises(StorageCorrupt, match="is empty"):
        open_engine(path)
    assert (path / DATA_FILE).stat().st_size == 0


def test_a_head_that_would_bring_back_the_commit_before_is_refused(sound: Path, tmp_path: Path) -> None:
    for place, bits in ((0, 1), (0, 4), (PAGE, 1), (PAGE, 8)):
        path = copy(sound, tmp_path / f"{place}-{bits}")
        flip(path, place + _COMMIT_AT, bits)
        with pytest.raises(StorageCorrupt, match="one is wrong"):
            open_engine(path)


def test_after_an_unclean_end_no_broken_header_is_served(sound: Path, tmp_path: Path) -> None:
    """Whatever bit of a page's kind or bounds is flipped: the start refuses, or every row is there."""
    pages = (sound / DATA_FILE).stat().st_size // PAGE
    refused = 0
    for page in range(2, pages, 7):
        path = copy(sound, tmp_path / str(page), was_clean=False)
        flip(path, page * PAGE + _FLAGS_AT + page % 6, 1 << page % 8)
        if (rows := served(path)) is None:
            refused += 1
        else:
            assert rows == ROWS
    assert refused > 3


def test_rows_that_are_gone_without_a_word_are_missed_at_a_clean_start(sound: Path, tmp_path: Path) -> None:
    """A leaf page that ends early: its last rows are not there, and nothing of the page is wrong by itself."""
    path = copy(sound, tmp_path / "data")
    data = (path / DATA_FILE).read_bytes()
    key = log_key(7, ROWS // 2)
    page = data.index(key) // PAGE
    bound = int.from_bytes(data[page * PAGE + 12 : page * PAGE + 14], "little")
    with (path / DATA_FILE).open("r+b") as file:
        file.seek(page * PAGE + 12)
        file.write((bound - 4).to_bytes(2, "little"))
    with pytest.raises(StorageCorrupt, match=f'of {ROWS} rows of the table "log" {ROWS - 2} are found'):
        open_engine(path)


@pytest.fixture
def broken(sound: Path, tmp_path: Path) -> Iterator[LmdbEngine]:
    """An engine whose pages are broken while it is open, all but the first two."""
    path = copy(sound, tmp_path / "data")
    engine = open_engine(path)
    commit(engine, (Table.META, b"one", b"commit more"))
    with (path / DATA_FILE).open("r+b") as file:
        for page in range(2, (path / DATA_FILE).stat().st_size // PAGE):
            file.seek(page * PAGE + _FLAGS_AT)
            file.write(bytes(2))
    yield engine
    engine._failed = engine._failed or StorageBroken("nothing more is written")
    engine.close()


def test_a_read_of_a_broken_page_is_told_and_is_no_mistake_of_ours(broken: LmdbEngine) -> None:
    told: list[StorageBroken] = []
    broken.on_broken = told.append
    for number, read in enumerate(
        (
            lambda: broken.get(Table.LOG, log_key(7, 5)),
            lambda: broken.first_at_or_above(Table.LOG, log_key(7, 5), log_key(8, 0)),
            lambda: broken.scan(Table.LOG, log_key(7, 5), log_key(8, 0), 10),
        )
    ):
        with pytest.raises(Unavailable, match="MDB_") as error:
            read()
        assert len(told) == number + 1
        assert error.value.detail == (
            "stored messages cannot be read, so the server exits; nothing of this request was done"
        )


@pytest.mark.anyio
async def test_after_a_read_of_a_broken_page_nothing_is_written(broken: LmdbEngine) -> None:
    ended: list[BaseException] = []
    writer = Writer(broken, asyncio.get_running_loop(), on_fatal=ended.append)
    for _ in range(2):
        with pytest.raises(StorageBroken):
            broken.get(Table.LOG, log_key(7, 5))
    await asyncio.sleep(0)
    assert [type(error) for error in ended] == [StorageBroken]
    answers: list[BaseException | None] = []
    with pytest.raises(StorageBroken):
        writer.submit(Batch(), answers.append)
    await writer.close()
    assert not writer.busy and answers == []


def test_a_file_that_is_cut_while_it_is_open_is_noticed_without_reading_it(sound: Path, tmp_path: Path) -> None:
    path = copy(sound, tmp_path / "data")
    engine = open_engine(path)
    engine.space()
    whole = (path / DATA_FILE).stat().st_size
    os.truncate(path / DATA_FILE, 2 * PAGE)
    with pytest.raises(StorageBroken) as error:
        engine.space()
    assert f"it had {whole} bytes and now has {2 * PAGE}" in str(error.value)
    os.truncate(path / DATA_FILE, whole)  # what closing reads is there again, as zeros
    engine._failed = error.value
    engine.close()
