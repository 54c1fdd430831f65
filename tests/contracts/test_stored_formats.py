"""Data of every released format opens, and says what it said when it was written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from backend_store.client import PeekFilter, Queue, open_store
from backend_store.model import Offset
from tests.support.old_data import TRACE

DATA = Path(__file__).parents[1] / "data"

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the folder of version 1: opening it writes to it."""
    copy = tmp_path / "data"
    copy.mkdir(mode=0o700)
    shutil.copy(DATA / "format_v1" / "data.mdb", copy)
    return copy


async def test_version_1_opens_with_its_queues_messages_attempts_and_keys(folder: Path) -> None:
    store = await open_store(folder)
    try:
        work = store.queue("default", "work")
        assert (work.config.visibility_timeout_ms, work.config.tags) == (60_000, {"a": "b"})
        stats = work.stats()
        assert (stats.ready, stats.in_flight, stats.published_total, stats.acked_total) == (4, 0, 5, 1)
        shown = [item.message for item in (await work.peek(PeekFilter())).items]
        assert [(m["seq"], m["attempt"]) for m in shown] == [(1, 2), (2, 0), (3, 0), (4, 0)]
        assert bytes(shown[0]["body"]) == b'{"tried": "twice"}'
        assert (shown[1]["id"], shown[1]["body_base64"], shown[1]["content_type"]) == (
            "mine",
            "AGJ5dGVz/w==",
            "image/png",
        )
        assert (shown[2]["key"], shown[2]["headers"], shown[2]["reply_to"]) == ("k", {"a": "b"}, "answers")
        assert bytes(shown[3]["body"]).decode() == '"ünïcode"'
        assert store.metadata.keys["k1"].scopes == ("consume:*",)
        assert _stream(store.queue("default", "stream")) == (5, TRACE)
    finally:
        await store.close()


def _stream(queue: Queue) -> tuple[int, str]:
    chunk = queue.read(Offset(0))
    assert chunk is not None and chunk.messages.columns is not None
    return chunk.count, chunk.messages.columns["trace"][0]
