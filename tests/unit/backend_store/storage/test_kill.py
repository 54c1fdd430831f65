"""A process that commits is killed with SIGKILL, again and again on one folder: what it reported is there."""

from __future__ import annotations

import random
import time
from pathlib import Path

from backend_store.storage.env import open_engine, structure_problems
from tests.support.storage import hammered_to, hammering, last_reported

KILLS = 8


def test_everything_reported_committed_survives_kill_9(tmp_path: Path) -> None:
    seed = 20_110_511
    pause = random.Random(seed)
    known = -1
    for _ in range(KILLS):
        with hammering(tmp_path / "data") as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            time.sleep(pause.uniform(0, 0.06))
            process.kill()
            process.wait()
            reported = max(int(first), last_reported(process))
        engine = open_engine(tmp_path / "data")
        assert not engine.was_clean
        committed = hammered_to(engine)
        # At most one commit may have become durable without having been reported.
        assert reported <= committed <= reported + 1, f"seed {seed}"
        assert reported > known
        known = committed
        engine.close()
    assert known > KILLS
    assert structure_problems(tmp_path / "data") == []


def test_a_clean_close_after_a_crash_makes_the_next_start_clean(tmp_path: Path) -> None:
    with hammering(tmp_path / "data") as process:
        assert process.stdout is not None
        process.stdout.readline()
    crashed = open_engine(tmp_path / "data")
    crashed.close()
    closed = open_engine(tmp_path / "data")
    assert (crashed.was_clean, closed.was_clean) == (False, True)
    closed.close()
