"""Copies that a backend gives up: what is told where one cannot be deleted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from backend_store.shard.departures import Departures

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("error", [OSError("the disk is gone"), AssertionError("a fault of ours")])
async def test_a_copy_that_cannot_be_deleted_is_told_whatever_the_reason(tmp_path: Path, error: Exception) -> None:
    """Where it was no fault of the disk nobody heard of it before the backend ended."""

    async def close() -> None:
        raise error

    shard: Any = SimpleNamespace(number=7, replicated=SimpleNamespace(replica=None), close=close)
    view: Any = SimpleNamespace(records={})
    coordinator: Any = None
    departures = Departures(coordinator, view, tmp_path, lambda number: shard)
    with capture_logs() as told:
        departures._delete(shard)
        await departures.finish()
    assert [(row["event"], row["shard"], row["error"]) for row in told] == [("a copy cannot be deleted", 7, str(error))]
    assert departures.left == {7}
