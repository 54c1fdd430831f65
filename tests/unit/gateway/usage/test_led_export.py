"""A backend's exports: each leader of a shard writes files of its own, and their rows are the shard's."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backend_store.client.embedded import EmbeddedStore
from backend_store.model import Unavailable
from gateway.usage.files import UsageFolder, found, read
from gateway.usage.led_export import LedExports
from gateway.usage.verify import verify
from tests.support.patience import eventually
from tests.support.queues import draft
from tests.support.stores import made, opened, published

pytestmark = pytest.mark.anyio

LOG = "4d1b8c4e-0000-4000-8000-000000000001"
PERIOD_MS = 20


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    store = await opened()
    yield store
    await store.close()


def exports(store: EmbeddedStore, folder: Path, *, period_ms: int = PERIOD_MS) -> LedExports:
    return LedExports(folder, clock_ms=store.node.clock_ms, period_ms=period_ms, bytes_max=1 << 30, kept_days=400)


def lead(usage: LedExports, store: EmbeddedStore, epoch: int) -> None:
    usage.lead(3, LOG, epoch, ledger=store.ledger, audit=store.audit)


def names(folder: Path) -> list[str]:
    return sorted(file.path.name for file in found(folder)) if folder.exists() else []


async def test_what_is_counted_while_a_shard_is_led_is_written(store: EmbeddedStore, tmp_path: Path) -> None:
    usage = exports(store, tmp_path)
    lead(usage, store, 7)
    await published(await made(store, "q"), draft("1"))
    await eventually(lambda: len(names(tmp_path)) == 1 and not store.ledger.waiting())
    assert names(tmp_path)[0].startswith(f"ledger-{LOG}-e00000007-") and usage.written.files["ledger"] == 1
    await usage.close()


async def test_a_clean_stop_writes_what_nobody_took_over(store: EmbeddedStore, tmp_path: Path) -> None:
    usage = exports(store, tmp_path, period_ms=3_600_000)
    lead(usage, store, 1)
    await eventually(tmp_path.exists)
    await published(await made(store, "q"), draft("1"))
    await usage.close()
    assert len(names(tmp_path)) == 1 and not store.ledger.waiting()


async def test_who_leads_no_more_writes_no_more(store: EmbeddedStore, tmp_path: Path) -> None:
    usage = exports(store, tmp_path)
    lead(usage, store, 1)
    usage.lose(3)
    await published(await made(store, "q"), draft("1"))
    await usage.close()
    assert not names(tmp_path) and usage.waiting_seconds == 0


async def test_the_next_leader_repeats_what_the_last_one_wrote_and_did_not_take(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await made(store, "q")
    await published(queue, draft("1"))

    async def deposed(*_: object, **__: object) -> None:
        raise Unavailable("it is led elsewhere")

    first = exports(store, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(store.ledger, "taken", deposed)
        lead(first, store, 9)
        await eventually(lambda: len(names(tmp_path)) == 1)
        await first.close()
    await published(queue, draft("2"))
    second = exports(store, tmp_path)
    lead(second, store, 10)
    await second.close()
    report = verify(tmp_path)
    assert all(name.endswith("-00000001.ndjson.gz") for name in names(tmp_path)), "the second has the first one's rows"
    assert len(names(tmp_path)) == 2 and not report.broken
    (log,) = report.logs.values()
    assert log.totals["published"] == 2 and log.held == 2


async def test_who_leads_again_does_not_wait_for_ever_for_what_it_wrote_before(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk did not answer then; the file is named when it does, and is the same rows under another epoch."""
    await published(await made(store, "q"), draft("1"))
    monkeypatch.setattr("gateway.usage.led_export.USAGE_LEAD_SECONDS_MAX", 0.05)
    answers, asked, fsync = threading.Event(), threading.Event(), os.fsync

    def hung(descriptor: int) -> None:
        if not asked.is_set():
            asked.set()
            answers.wait()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", hung)
    usage = exports(store, tmp_path)
    lead(usage, store, 1)
    await eventually(asked.is_set)
    usage.lose(3)
    lead(usage, store, 2)
    await eventually(lambda: len(names(tmp_path)) == 1)
    assert "-e00000002-" in names(tmp_path)[0]
    answers.set()
    await eventually(lambda: len(names(tmp_path)) == 2)
    await usage.close()
    report = verify(tmp_path)
    assert not report.broken and [log.totals["published"] for log in report.logs.values()] == [1]


async def test_no_file_has_what_is_not_confirmed(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await published(await made(store, "q"), draft("1"))
    usage = exports(store, tmp_path, period_ms=3_600_000)

    async def deposed() -> None:
        raise Unavailable("it is led elsewhere")

    monkeypatch.setattr(store.ledger, "confirmed", deposed)
    lead(usage, store, 1)
    await usage.close()
    assert not names(tmp_path) and len(store.ledger.waiting()) == 1


async def test_shards_that_are_written_at_once_look_at_the_folder_once(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [store, *[await opened() for _ in range(3)]]
    for number, one in enumerate(stores):
        await published(await made(one, f"q{number}"), draft("1"))
    looks: list[Path] = []

    def look(folder: UsageFolder, bytes_max: int) -> int:
        looks.append(folder.path)
        time.sleep(0.2)  # as with many files
        return 0

    monkeypatch.setattr(UsageFolder, "make_room", look)
    usage = exports(store, tmp_path, period_ms=3_600_000)
    for number, one in enumerate(stores):
        usage.lead(number, one.node.copy_id, 1, ledger=one.ledger, audit=one.audit)
    await eventually(lambda: len(names(tmp_path)) == len(stores))
    assert len(looks) < len(stores)
    await usage.close()
    for one in stores[1:]:
        await one.close()


async def test_shards_are_written_each_for_itself(store: EmbeddedStore, tmp_path: Path) -> None:
    other = await opened()
    usage = exports(store, tmp_path)
    for number, one in enumerate((store, other)):
        await published(await made(one, f"q{number}"), draft("1"))
        usage.lead(number, one.node.copy_id, 1, ledger=one.ledger, audit=one.audit)
    await usage.close()
    assert {row.queue for file in found(tmp_path) for row in read(file)} == {"q0", "q1"}
    await other.close()
