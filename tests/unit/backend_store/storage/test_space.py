"""When publishes stop, and when the ballast goes and comes back."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.storage.engine import Batch, Space, Table
from backend_store.storage.folder import BALLAST_FILE
from backend_store.storage.memory import MemoryEngine
from backend_store.storage.space import Ballast, Decision, SpaceGuard, SpaceRules, decide, make_ballast
from tests.support.storage import commit

MIB = 1 << 20


def _decide(*, used: int, inside: int = 0, held: bool = True) -> Decision:
    """A disk of 10,000 bytes with a ballast of 200; `used` counts the ballast and the file."""
    space = Space(disk_total=10_000, disk_free=10_000 - used, file_bytes=inside + 100, live_bytes=100)
    return decide(space, ballast_held=held, ballast_bytes=200, publish_stop_fraction=0.9)


def test_publishes_go_on_below_the_stop_and_stop_at_it() -> None:
    assert _decide(used=8_999) == Decision(True, Ballast.KEEP, "")
    stopped = _decide(used=9_000)
    assert not stopped.publishes_allowed
    assert stopped.reason == "90.0% of the disk is used; publishes stop at 90%"


def test_free_pages_inside_the_file_count_as_room() -> None:
    assert _decide(used=9_500, inside=1_000).publishes_allowed
    assert not _decide(used=9_500, inside=400).publishes_allowed


def test_the_ballast_goes_at_half_its_size_of_free_disk() -> None:
    assert _decide(used=9_900).ballast is Ballast.KEEP
    assert _decide(used=9_901).ballast is Ballast.RELEASE


def test_the_ballast_comes_back_at_twice_its_size() -> None:
    assert _decide(used=9_601, held=False).ballast is Ballast.KEEP
    assert _decide(used=9_600, held=False).ballast is Ballast.MAKE


def test_without_a_ballast_no_publish_even_if_the_file_has_room_inside() -> None:
    # A chunk needs neighbouring pages; a file whose free pages are scattered would grow, and there is nowhere to grow.
    starved = _decide(used=9_901, inside=8_000)
    assert starved.ballast is Ballast.RELEASE
    assert not starved.publishes_allowed
    still = _decide(used=9_701, inside=8_000, held=False)
    assert not still.publishes_allowed
    assert "the disk has 299 bytes free" in still.reason
    assert _decide(used=9_600, inside=8_000, held=False).publishes_allowed


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.booleans())
def test_releasing_never_leads_straight_back_to_making(used: int, inside: int, held: bool) -> None:
    decision = _decide(used=used, inside=min(inside, used), held=held)
    assert decision.publishes_allowed == (not decision.reason)
    if decision.ballast is Ballast.RELEASE:
        assert _decide(used=used - 200, inside=min(inside, used), held=False).ballast is Ballast.KEEP
    if decision.ballast is Ballast.MAKE:
        assert _decide(used=min(10_000, used + 200), inside=min(inside, used)).ballast is Ballast.KEEP


def test_an_unknown_disk_counts_as_full() -> None:
    assert Space(disk_total=0, disk_free=0, file_bytes=0, live_bytes=0).used_fraction == 1.0


def _guard(tmp_path: Path, engine: MemoryEngine, ballast_bytes: int | None = None) -> SpaceGuard:
    return SpaceGuard(engine, tmp_path, SpaceRules(ballast_bytes=ballast_bytes))


def test_the_ballast_is_made_by_the_first_refresh_with_real_blocks(tmp_path: Path) -> None:
    guard = _guard(tmp_path, MemoryEngine(), ballast_bytes=4 * MIB)
    assert not (tmp_path / BALLAST_FILE).exists()
    guard.refresh()
    made = (tmp_path / BALLAST_FILE).stat()
    assert made.st_size == 4 * MIB
    assert made.st_blocks * 512 >= 4 * MIB
    assert stat.S_IMODE(made.st_mode) == 0o600
    assert guard.publishes_allowed


def test_the_default_ballast_is_two_percent_of_the_disk_and_at_most_256_mib(tmp_path: Path) -> None:
    assert _guard(tmp_path, MemoryEngine(disk_bytes=1000 * MIB)).ballast_bytes == 20 * MIB
    assert _guard(tmp_path, MemoryEngine(disk_bytes=100_000 * MIB)).ballast_bytes == 256 * MIB


def test_publishes_stop_where_the_rules_say(tmp_path: Path) -> None:
    engine = MemoryEngine(disk_bytes=10 * MIB)
    batch = Batch()
    batch.put(Table.META, b"k", bytes(6 * MIB))
    engine.commit(batch, lambda: None)
    for fraction, allowed in ((0.9, True), (0.5, False)):
        guard = SpaceGuard(engine, tmp_path, SpaceRules(fraction, ballast_bytes=MIB))
        guard.refresh()
        assert guard.publishes_allowed is allowed
        assert ("publishes stop at 50%" in guard.reason) is not allowed


def _written_bytes() -> int:
    """What this thread handed to `write` since it began."""
    lines = Path("/proc/thread-self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def test_making_the_full_ballast_does_not_delay_a_start(tmp_path: Path) -> None:
    guard = _guard(tmp_path, MemoryEngine(disk_bytes=100_000 * MIB))
    before = _written_bytes()
    guard.refresh()
    assert _written_bytes() - before < MIB
    assert (tmp_path / BALLAST_FILE).stat().st_size == 256 * MIB


def test_a_ballast_of_another_size_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / BALLAST_FILE).write_bytes(b"cut off")
    guard = _guard(tmp_path, MemoryEngine(), ballast_bytes=MIB)
    guard.refresh()
    assert (tmp_path / BALLAST_FILE).stat().st_size == MIB


def test_a_ballast_that_cannot_be_made_stops_publishes(tmp_path: Path) -> None:
    guard = _guard(tmp_path / "missing", MemoryEngine(), ballast_bytes=MIB)
    guard.refresh()
    assert not guard.publishes_allowed
    assert "no room for a ballast" in guard.reason


def test_a_file_system_that_cannot_reserve_gets_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, offset: int, length: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert make_ballast(tmp_path / "ballast", 3 * MIB + 5)
    assert (tmp_path / "ballast").read_bytes() == bytes(3 * MIB + 5)


def test_much_written_is_checked_before_the_next_second(tmp_path: Path) -> None:
    engine = MemoryEngine(disk_bytes=100 * MIB)
    guard = _guard(tmp_path, engine, ballast_bytes=0)
    guard.refresh()
    commit(engine, (Table.LOG, b"k", bytes(95 * MIB)))
    guard.wrote(MIB - 1)
    assert guard.publishes_allowed
    guard.wrote(1)
    assert not guard.publishes_allowed
