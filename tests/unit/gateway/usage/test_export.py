"""The exporter: a row leaves the store only when its file is there for good, and what cannot be written waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backend_store.client.embedded import EmbeddedStore
from gateway.usage.export import Exporter
from gateway.usage.files import UsageFolder, found, read
from gateway.usage.meter import Meter
from gateway.usage.verify import verify
from tests.support.queues import draft
from tests.support.stores import made, opened, published

pytestmark = pytest.mark.anyio

BYTES_MAX = 1 << 30


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    store = await opened()
    yield store
    await store.close()


def exporter(store: EmbeddedStore, folder: Path, *, bytes_max: int = BYTES_MAX) -> Exporter:
    return Exporter(
        folder,
        "node-1",
        ledger=store.ledger,
        audit=store.audit,
        meter=Meter("node-1", store.node.clock_ms),
        clock_ms=store.node.clock_ms,
        period_ms=60_000,
        bytes_max=bytes_max,
        kept_days=400,
    )


def kinds(folder: Path) -> list[str]:
    return sorted(file.kind for file in found(folder))


async def test_what_was_counted_is_in_a_file_and_no_longer_in_the_store(store: EmbeddedStore, tmp_path: Path) -> None:
    await published(await made(store, "q"), draft("1"))
    assert await exporter(store, tmp_path).turn()
    assert kinds(tmp_path) == ["ledger", "minutes"] and not store.ledger.waiting()


async def test_what_cannot_be_written_waits_in_the_store(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await published(await made(store, "q"), draft("1"))
    usage = exporter(store, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(UsageFolder, "write", _no_disk)
        assert not await usage.turn()
        assert usage.failures == 1 and len(store.ledger.waiting()) == 1
    assert await usage.turn()
    assert not store.ledger.waiting() and not verify(tmp_path).broken
    assert [row.operation for file in found(tmp_path) if file.kind == "minutes" for row in read(file)] == ["start"]


def _no_disk(*_: object) -> Path:
    raise OSError("there is no room")


async def test_a_crash_after_the_file_writes_it_again_as_it_was(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await published(await made(store, "q"), draft("1"))

    async def crashes(*_: object, **__: object) -> None:
        raise OSError("the process ends")

    with monkeypatch.context() as patch:
        patch.setattr(store.ledger, "taken", crashes)
        await exporter(store, tmp_path).turn()
    before = {file.path.name: file.path.read_bytes() for file in found(tmp_path) if file.kind == "ledger"}
    await exporter(store, tmp_path).turn()
    assert {file.path.name: file.path.read_bytes() for file in found(tmp_path) if file.kind == "ledger"} == before


async def test_a_full_folder_keeps_the_ledger_in_the_store(store: EmbeddedStore, tmp_path: Path) -> None:
    queue = await made(store, "q")
    usage = exporter(store, tmp_path, bytes_max=10)
    for _ in range(3):
        await published(queue, draft("1"))
        await usage.turn()
    assert usage.is_full and kinds(tmp_path).count("ledger") == 1 and len(store.ledger.waiting()) == 2
    for file in list(found(tmp_path)):
        file.path.unlink()
    await usage.turn()
    assert kinds(tmp_path).count("ledger") == 1 and not store.ledger.waiting()


async def test_a_folder_that_takes_nothing_does_not_fill_the_store(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend_store.node.ledger.LEDGER_ROWS_PER_READ", 3)
    queue = await made(store, "q")
    usage = exporter(store, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(UsageFolder, "write", _no_disk)
        for _ in range(8):
            await published(queue, draft("1"))
            await usage.turn()
    assert len(store.ledger.waiting(10)) == 3
    await usage.turn()
    report = verify(tmp_path)
    (log,) = report.logs.values()
    assert not report.broken and (log.totals["published"], log.held) == (8, 8) and not store.ledger.waiting()


async def test_the_next_process_says_whether_the_last_one_had_ended(store: EmbeddedStore, tmp_path: Path) -> None:
    await exporter(store, tmp_path).turn()
    after_a_crash = exporter(store, tmp_path)
    await after_a_crash.turn()
    await after_a_crash.close()
    await exporter(store, tmp_path).turn()
    files = sorted((file for file in found(tmp_path) if file.kind == "minutes"), key=lambda file: file.number)
    starts = [row.lossy for file in files for row in read(file) if row.operation == "start"]
    assert starts == [False, True, False]
