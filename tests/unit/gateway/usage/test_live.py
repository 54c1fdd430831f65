"""What the job `live_usage` wrote is read in bounds, while it is replaced, and of the tenant that asks alone."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.limits import USAGE_LIVE_BYTES_MAX, USAGE_LIVE_FILES_MAX, USAGE_LIVE_STALE_MS
from gateway.usage import live
from gateway.usage.live import Live, LiveUsage
from tests.support.usage import live_minute, live_queue, write_live

NOW_MS = 1_790_000_000_000
MINUTE = "2026-09-21T14:13:00.000Z"


def looked(folder: Path, tenant: str = "a", now_ms: int = NOW_MS) -> Live:
    return asyncio.run(LiveUsage(folder).of(tenant, now_ms))


def written(folder: Path, **tenants: list[dict[str, Any]]) -> Path:
    return write_live(folder, tenants, last_minute=MINUTE, at_ms=NOW_MS - 1_000)


def test_a_tenant_has_its_own_rows_and_nobody_elses(tmp_path: Path) -> None:
    written(tmp_path, a=[live_queue("q", 3), live_minute(MINUTE, 3)], b=[live_queue("secret", 9)])
    found = looked(tmp_path)
    assert (found.state, found.looked_at_ms, found.last_minute) == ("live", NOW_MS - 1_000, MINUTE)
    assert [(row.minute, row.messages) for row in found.minutes] == [(MINUTE, 3)]
    assert [(row.queue, row.messages) for row in found.queues] == [("q", 3)]
    assert looked(tmp_path, "c") == Live("live", NOW_MS - 1_000, MINUTE)


@pytest.mark.parametrize("tenant", ["../tenant=b", "b/../b", "", "*", "[b]"])
def test_a_name_that_is_none_leads_nowhere(tmp_path: Path, tenant: str) -> None:
    written(tmp_path, b=[live_queue("secret", 9)])
    assert looked(tmp_path, tenant).queues == []


def test_a_job_that_says_nothing_any_more_is_stale_and_one_that_never_wrote_is_absent(tmp_path: Path) -> None:
    assert looked(tmp_path) == Live("absent")
    written(tmp_path, a=[live_queue("q", 3)])
    later = looked(tmp_path, now_ms=NOW_MS + USAGE_LIVE_STALE_MS)
    assert later.state == "stale" and [row.messages for row in later.queues] == [3]


def test_a_job_that_has_counted_nothing_yet_is_live_and_empty(tmp_path: Path) -> None:
    write_live(tmp_path, None, last_minute=None, at_ms=NOW_MS)
    assert looked(tmp_path) == Live("live", NOW_MS, None)


def rename(folder: Path) -> None:
    (folder / "console" / "now.json").write_text(
        json.dumps({"version": 1, "folder": "../../etc", "last_minute": MINUTE})
    )


def of_later(folder: Path) -> None:
    (folder / "console" / "now.json").write_text('{"version": 2, "folder": null, "last_minute": null}')


def not_json(folder: Path) -> None:
    (folder / "console" / "now.json").write_text('{"version": ')


def long_pointer(folder: Path) -> None:
    (folder / "console" / "now.json").write_text(" " * 5_000)


def half_a_row(folder: Path) -> None:
    (path,) = folder.glob("console/page-*/tenants/tenant=a/part-*.json")
    path.write_bytes(path.read_bytes()[:-9])


def too_much(folder: Path) -> None:
    (path,) = folder.glob("console/page-*/tenants/tenant=a/part-*.json")
    path.write_bytes(b"\n" * (USAGE_LIVE_BYTES_MAX + 1))


def too_many(folder: Path) -> None:
    (path,) = folder.glob("console/page-*/tenants/tenant=a/part-*.json")
    for number in range(USAGE_LIVE_FILES_MAX):
        (path.parent / f"part-{number}.json").write_bytes(b"")


@pytest.mark.parametrize("spoil", [rename, of_later, not_json, long_pointer, half_a_row, too_much, too_many])
def test_what_is_not_as_it_should_be_is_told_and_never_raised(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    written(tmp_path, a=[live_queue("q", 3)])
    spoil(tmp_path)
    assert looked(tmp_path) == Live("unreadable")


def test_a_page_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, a=[live_queue("q", 3)])
    read = live._read

    def replaced(folder: Path, tenant: str) -> Any:
        monkeypatch.setattr(live, "_read", read)
        before = next(tmp_path.glob("console/page-*"))
        written(tmp_path, a=[live_queue("q", 4)])
        os.rename(before, before.with_name(f"_{before.name}"))
        return read(folder, tenant)

    monkeypatch.setattr(live, "_read", replaced)
    assert [row.messages for row in looked(tmp_path).queues] == [4]


def test_rows_are_read_once_for_each_page_that_the_job_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, a=[live_queue("q", 3)])
    reads: list[str] = []
    read = live._read
    monkeypatch.setattr(live, "_read", lambda folder, tenant: reads.append(tenant) or read(folder, tenant))

    async def thrice() -> list[int]:
        usage = LiveUsage(tmp_path)
        seen = [(await usage.of("a", NOW_MS)).queues[0].messages for _ in range(2)]
        written(tmp_path, a=[live_queue("q", 5)])
        return [*seen, (await usage.of("a", NOW_MS)).queues[0].messages]

    assert asyncio.run(thrice()) == [3, 3, 5]
    assert reads == ["a", "a"]


def test_a_disk_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, a=[live_queue("q", 3)])
    monkeypatch.setattr(live, "USAGE_LIVE_READ_SECONDS_MAX", 0.05)
    (tmp_path / "console" / "now.json").unlink()
    os.mkfifo(tmp_path / "console" / "now.json")  # to open it waits for somebody who writes

    async def look() -> list[Live]:
        usage = LiveUsage(tmp_path)
        return [await usage.of("a", NOW_MS) for _ in range(3)]

    try:
        assert asyncio.run(look()) == [Live("unreadable")] * 3
    finally:
        os.close(os.open(tmp_path / "console" / "now.json", os.O_RDWR | os.O_NONBLOCK))
