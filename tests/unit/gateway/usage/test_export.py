"""The exporter: a row leaves the store only when its file is there for good, and what cannot be written waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from backend_store.client.embedded import EmbeddedStore
from backend_store.model import StorageFull
from backend_store.storage.engine import Batch, StorageFailed, Table
from backend_store.storage.seal import seal
from gateway.usage.export import Exporter
from gateway.usage.files import UsageFolder, found, read
from gateway.usage.meter import Meter
from gateway.usage.verify import verify
from tests.support.patience import eventually
from tests.support.queues import draft
from tests.support.stores import made, opened, published
from tests.support.usage import audit_row

pytestmark = pytest.mark.anyio

BYTES_MAX = 1 << 30


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    store = await opened()
    yield store
    await store.close()


def exporter(store: EmbeddedStore, folder: Path, *, bytes_max: int = BYTES_MAX, period_ms: int = 60_000) -> Exporter:
    return Exporter(
        folder,
        "node-1",
        ledger=store.ledger,
        audit=store.audit,
        meter=Meter("node-1", store.node.clock_ms),
        clock_ms=store.node.clock_ms,
        period_ms=period_ms,
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


async def overwritten(store: EmbeddedStore, key: bytes, row: bytes) -> None:
    batch = Batch()
    batch.put(Table.USAGE, key, row)
    await store.ledger._write(batch)


async def test_a_row_that_does_not_read_is_passed_over_said_once_and_counted(
    store: EmbeddedStore, tmp_path: Path
) -> None:
    usage = exporter(store, tmp_path)
    for name in ("a", "b", "c"):
        await published(await made(store, name), draft("1"))
    await store.ledger.cut()
    flipped, foreign, _ = (one.key for one in store.ledger.waiting())
    await overwritten(store, flipped, b"\0" * 40)
    await overwritten(store, foreign, seal(foreign, b"\xc1"))
    with capture_logs() as logs:
        for _ in range(2):
            assert await usage.turn()
    assert [row.queue for file in found(tmp_path) if file.kind == "ledger" for row in read(file)] == ["c", "c"]
    assert usage.written.unreadable == 2 and usage.failures == 0 and usage.waiting_seconds == 0
    assert [one["log_level"] for one in logs if "does not read" in one["event"]] == ["error", "error"]
    assert store.node.engine.get(Table.USAGE, flipped) is not None, "it stays for whoever repairs it"


async def test_more_rows_that_do_not_read_than_one_file_takes_hold_up_no_others(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend_store.node.ledger.LEDGER_ROWS_PER_READ", 2)
    usage = exporter(store, tmp_path)
    for number in range(4):
        await published(await made(store, f"q{number}"), draft("1"))
        await store.ledger.cut()
    for one in store.ledger.waiting(3):
        await overwritten(store, one.key, b"\0" * 40)
    assert await usage.turn() and await usage.turn()
    assert {row.queue for file in found(tmp_path) if file.kind == "ledger" for row in read(file)} == {"q3"}
    assert not store.ledger.is_behind and usage.written.unreadable == 3


async def test_a_days_total_that_does_not_read_keeps_no_rows_from_their_file(
    store: EmbeddedStore, tmp_path: Path
) -> None:
    queue = await made(store, "q")
    usage = exporter(store, tmp_path)
    await published(queue, draft("1"))
    assert await usage.turn()
    ((key, _),) = store.node.engine.scan(Table.USAGE, b"d", b"e", 2)
    await overwritten(store, key, b"\0" * 40)
    await published(queue, draft("2"))
    assert await usage.turn() and not store.ledger.waiting()
    assert usage.written.unreadable == 1 and store.node.engine.get(Table.USAGE, key) == b"\0" * 40
    (log,) = verify(tmp_path).logs.values()
    assert log.totals["published"] == 2


async def test_acts_that_do_not_read_are_passed_over(store: EmbeddedStore, tmp_path: Path) -> None:
    act = msgspec.json.encode(audit_row())
    for data in (act, b"{}", act):
        await store.audit.put(store.audit.begin(), data, has_ended=True)
    await overwritten(store, b"a" + (1).to_bytes(8, "big"), b"\0" * 40)
    usage = exporter(store, tmp_path)
    assert await usage.turn() and await usage.turn()
    assert [list(read(file)) for file in found(tmp_path) if file.kind == "audit"] == [[audit_row()]]
    assert usage.written.unreadable == 2 and store.audit.exported == 3


async def test_a_disk_that_hangs_is_not_waited_for_and_holds_one_thread(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.usage.writing.USAGE_ROOM_SECONDS_MAX", 0.05)
    hangs, looks = threading.Event(), []

    def look(folder: UsageFolder, bytes_max: int) -> int:
        looks.append(folder.path)
        assert hangs.wait(60)
        return 0

    usage = exporter(store, tmp_path)
    monkeypatch.setattr(UsageFolder, "make_room", look)
    await published(await made(store, "q"), draft("1"))
    assert [await usage.turn() for _ in range(3)] == [False] * 3
    assert len(looks) == 1 and usage.failures == 3
    assert store.ledger.waiting(), "what was counted is in the store, and its rows wait"
    hangs.set()
    await eventually(usage.turn)
    assert not store.ledger.waiting()


@pytest.mark.parametrize("error", [StorageFull("there is no room"), StorageFailed("the disk"), RuntimeError("a fault")])
async def test_whatever_is_wrong_with_one_turn_the_next_one_tries_again(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fails() -> None:
        raise error

    await published(await made(store, "q"), draft("1"))
    usage = exporter(store, tmp_path, period_ms=20)
    with monkeypatch.context() as patch:
        patch.setattr(store.ledger, "cut", fails)
        running = asyncio.create_task(usage.run())
        await eventually(lambda: usage.failures > 1)
        assert kinds(tmp_path) == ["minutes"], "what is wrong with the store keeps no minutes from their files"
    await eventually(lambda: "ledger" in kinds(tmp_path))
    usage.stop()
    await running


async def test_the_next_process_says_whether_the_last_one_had_ended(store: EmbeddedStore, tmp_path: Path) -> None:
    await exporter(store, tmp_path).turn()
    after_a_crash = exporter(store, tmp_path)
    await after_a_crash.turn()
    await after_a_crash.close()
    await exporter(store, tmp_path).turn()
    files = sorted((file for file in found(tmp_path) if file.kind == "minutes"), key=lambda file: file.number)
    starts = [row.lossy for file in files for row in read(file) if row.operation == "start"]
    assert starts == [False, True, False]
