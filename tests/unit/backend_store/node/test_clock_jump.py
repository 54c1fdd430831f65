"""A start with a clock far beyond the last time in the folder is told from one after a short pause."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend_store.node.clock_jump import SEEN, days_since_seen, note_seen, refuse_clock_jump
from backend_store.node.node import Node
from backend_store.storage.engine import Batch, ClockAhead, Engine, Table
from backend_store.storage.keys import META_RESTORED
from backend_store.storage.memory import MemoryEngine
from tests.support.patience import eventually

DAY_MS = 86_400_000
NOW_MS = 20_000 * DAY_MS


def seen(engine: Engine, at_ms: int, key: bytes | None = None) -> None:
    batch = Batch()
    if key is None:
        note_seen(engine, batch, at_ms)
    else:
        batch.put(Table.META, key, at_ms.to_bytes(8))
    engine.commit(batch, lambda: None)


def test_a_clock_further_ahead_than_allowed_is_refused_with_both_days() -> None:
    engine = MemoryEngine()
    seen(engine, NOW_MS - 400 * DAY_MS)
    refuse_clock_jump(engine, NOW_MS, 400)
    with pytest.raises(ClockAhead, match=r"2024-10-04, 400 days after the last time in it, 2023-08-31") as refused:
        refuse_clock_jump(engine, NOW_MS, 399)
    refuse_clock_jump(engine, NOW_MS, refused.value.days)


def test_a_folder_that_knows_no_time_and_a_clock_that_is_behind_are_believed() -> None:
    engine = MemoryEngine()
    refuse_clock_jump(engine, NOW_MS, 1)
    seen(engine, NOW_MS)
    refuse_clock_jump(engine, NOW_MS - 900 * DAY_MS, 1)
    assert days_since_seen(engine, NOW_MS - 900 * DAY_MS) == 0


def test_a_clock_that_was_behind_for_a_while_does_not_make_the_right_one_look_ahead() -> None:
    engine = MemoryEngine()
    seen(engine, NOW_MS)
    seen(engine, NOW_MS - 900 * DAY_MS)
    refuse_clock_jump(engine, NOW_MS + DAY_MS, 1)


def test_a_backup_may_be_old_when_it_is_restored() -> None:
    engine = MemoryEngine()
    seen(engine, NOW_MS - 900 * DAY_MS)
    seen(engine, NOW_MS, META_RESTORED)
    refuse_clock_jump(engine, NOW_MS + DAY_MS, 1)


@pytest.mark.anyio
async def test_a_node_notes_the_time_at_its_start_while_it_runs_and_at_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("backend_store.node.node.SEEN_SECONDS", 0.001)
    engine, now_ms = MemoryEngine(), NOW_MS

    def noted_ms() -> int:
        return int.from_bytes(engine.get(Table.META, SEEN) or b"")

    node = Node(engine, directory=tmp_path, clock_ms=lambda: now_ms)
    await node.start()
    assert noted_ms() == NOW_MS
    now_ms += DAY_MS
    await eventually(lambda: noted_ms() == now_ms)
    monkeypatch.setattr(engine, "close", lambda: None)
    now_ms += DAY_MS
    await node.close()
    assert noted_ms() == now_ms
