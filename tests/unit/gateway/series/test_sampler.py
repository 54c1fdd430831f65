"""The sampler: a queue's numbers come into its series, and the series come back after a restart."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from backend_store.client import Store
from backend_store.core.log.chunk import KIND_JSON, Draft
from backend_store.model import COMPANION, QueueConfig
from gateway.app import Application, create_app
from gateway.config.settings import Settings
from gateway.series import file
from gateway.series.book import KEPT_MS, Book
from gateway.series.core.columns import QUEUE_COLUMNS
from gateway.series.core.ring import Series
from gateway.series.file import FILE, SeriesFile
from gateway.series.sampler import Sampler
from tests.support.patience import eventually
from tests.support.stores import died, drained, published
from tests.support.world import Consumer
from tests.unit.gateway.conftest import Clock

pytestmark = pytest.mark.anyio

MESSAGE = Draft(KIND_JSON, b"1", {})


def sampler_of(store: Store, clock: Clock, folder: Path | None = None) -> tuple[Application, Sampler]:
    app = create_app(store, Settings(), clock_ms=clock, series_folder=folder)
    return app, app.gateway.sampler


async def look(sampler: Sampler, clock: Clock, looks: int = 1) -> None:
    for _ in range(looks):
        clock.ms += 5_000
        await sampler.look()


def column(sampler: Sampler, clock: Clock, queue: str, name: str, steps: int) -> list[float]:
    watched = sampler.book.of_queue("default", queue)
    series = sampler.book.series_of(watched) if watched is not None else None
    assert series is not None
    end = clock.ms // 5_000 + 1
    return series.column(0, QUEUE_COLUMNS.index(name), end - steps, end)


async def test_levels_and_rates_follow_what_happens(store: Store, clock: Clock) -> None:
    app, sampler = sampler_of(store, clock)
    queue, _ = await store.create_queue("default", "orders", QueueConfig())
    await look(sampler, clock)
    assert not sampler.book.of_queue("default", "orders").has_series  # type: ignore[union-attr]
    await published(queue, *[MESSAGE] * 10)
    await look(sampler, clock, 2)
    await drained(queue)
    await look(sampler, clock)
    assert column(sampler, clock, "orders", "ready", 3) == [10, 10, 0]
    assert column(sampler, clock, "orders", "published_per_s", 3) == [2, 0, 0]
    assert column(sampler, clock, "orders", "acked_per_s", 3) == [0, 0, 2]
    assert column(sampler, clock, "orders", "oldest_age_ms", 3)[2] == 0
    await app.gateway.hub.close()


async def test_the_quick_numbers_are_the_exact_ones(store: Store, clock: Clock) -> None:
    """A queue that nothing happened to is not added up anew, and says the same."""
    app, sampler = sampler_of(store, clock)
    fails, _ = await store.create_queue("default", "fails", QueueConfig(max_attempts=2, dead_letter_queue=COMPANION))
    await store.create_queue("default", "wide", QueueConfig(partitions=3))
    await published(store.queue("default", "wide"), *[MESSAGE] * 20)
    await died(fails, MESSAGE, MESSAGE)
    await published(fails, MESSAGE)
    for _ in range(3):
        await look(sampler, clock)
        for name in ("fails", "wide"):
            stats, watched = store.queue("default", name).stats(), sampler.book.of_queue("default", name)
            assert watched is not None
            pulse = watched.pulse._asdict()
            since = pulse["oldest_since_ms"]
            assert stats.oldest_age_ms == (store.steady_ms() - since if since else 0)
            assert {k: pulse[k] for k in pulse if hasattr(stats, k)} == {
                k: getattr(stats, k) for k in pulse if hasattr(stats, k)
            }
    fails_now = sampler.book.of_queue("default", "fails")
    assert fails_now is not None and fails_now.pulse.redelivered_total == 2 and fails_now.pulse.ended_total == 2
    await app.gateway.hub.close()


async def test_a_deleted_queue_is_forgotten_and_one_of_its_name_begins_anew(store: Store, clock: Clock) -> None:
    app, sampler = sampler_of(store, clock)
    queue, _ = await store.create_queue("default", "orders", QueueConfig())
    await published(queue, MESSAGE)
    await look(sampler, clock)
    await store.delete_queue("default", "orders")
    await store.create_queue("default", "orders", QueueConfig())
    await look(sampler, clock)
    watched = sampler.book.of_queue("default", "orders")
    assert watched is not None and not watched.has_series and len(sampler.book.watched) == 1
    await app.gateway.hub.close()


async def test_series_come_back_after_a_restart(store: Store, clock: Clock, tmp_path: Path) -> None:
    app, sampler = sampler_of(store, clock, tmp_path)
    queue, _ = await store.create_queue("default", "orders", QueueConfig())
    await published(queue, *[MESSAGE] * 7)
    await look(sampler, clock, 3)
    await sampler.save()
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    again, later = sampler_of(store, clock, tmp_path)
    for place, series in SeriesFile(tmp_path).read():
        later._take_over(place, series)
    clock.ms += 20_000
    await look(later, clock)
    found = column(later, clock, "orders", "ready", 6)
    assert found[0] == 7 and found[5] == 7 and found[2] != found[2]  # nobody looked while it was down
    await app.gateway.hub.close()
    await again.gateway.hub.close()


async def test_a_damaged_file_costs_what_lies_behind_the_damage(tmp_path: Path) -> None:
    file = SeriesFile(tmp_path)
    all_of_them = [((f"t{n}", 0), Series(10, 6)) for n in range(3)]
    file.write_now(iter(all_of_them))
    whole = (tmp_path / FILE).read_bytes()
    assert len(file.read()) == 3
    (tmp_path / FILE).write_bytes(whole[:-5])
    assert len(file.read()) == 2
    (tmp_path / FILE).write_bytes(b"nonsense")
    assert file.read() == []
    (tmp_path / FILE).unlink()
    assert file.read() == []


async def test_the_quietest_queues_make_room(store: Store, clock: Clock) -> None:
    app, sampler = sampler_of(store, clock)
    sampler.book.quiet_max = 2
    for name in ("a", "b", "c"):
        queue, _ = await store.create_queue("default", name, QueueConfig())
        await published(queue, MESSAGE)
        await look(sampler, clock)
    kept = {w.definition.name for w in sampler.book.watched.values() if w.has_series}
    assert kept == {"b", "c"} and sampler.book.forgotten == 1
    await app.gateway.hub.close()


async def test_tenants_are_added_up_apart(store: Store, clock: Clock) -> None:
    app, sampler = sampler_of(store, clock)
    await store.metadata.put_tenant("acme", 1)
    for tenant, name, messages in (("default", "a", 2), ("default", "b", 3), ("acme", "c", 50)):
        queue, _ = await store.create_queue(tenant, name, QueueConfig())
        await published(queue, *[MESSAGE] * messages)
    await look(sampler, clock)
    book: Book = sampler.book
    slot = clock.ms // 5_000
    assert {t: s.column(0, 0, slot, slot + 1) for t in book.tenants if (s := book.series_of_tenant(t))} == {
        "default": [5.0],
        "acme": [50.0],
    }
    await app.gateway.hub.close()


async def test_series_of_a_tenant_end_a_day_after_its_last_queue(store: Store, clock: Clock) -> None:
    """Each tenant that was ever there had some for ever, in memory and in the file, whoever deleted it."""
    app, sampler = sampler_of(store, clock)
    await store.metadata.put_tenant("acme", 1)
    for name in ("first", "second"):
        queue, _ = await store.create_queue("acme", name, QueueConfig())
        await published(queue, MESSAGE)
        await look(sampler, clock, 2)
        await store.delete_queue("acme", name)
        await look(sampler, clock, 2)
        assert not sampler.book.tallies, "it has no queues"
        clock.ms += KEPT_MS - 20_000
        await look(sampler, clock)
    series, slot = sampler.book.series_of_tenant("acme"), clock.ms // 5_000
    assert series is not None
    assert series.column(0, 0, slot, slot + 1) == [0.0]
    assert any(value > 0 for value in series.column(2, 0, slot // 60 - 288, slot // 60)), "what it was may be looked at"
    clock.ms += 20_000
    await look(sampler, clock)
    assert not sampler.book.tenants
    await app.gateway.hub.close()


async def test_what_a_stream_keeps_is_no_backlog_of_its_tenant(store: Store, clock: Clock) -> None:
    app, sampler = sampler_of(store, clock)
    for name, kind in (("news", "stream"), ("orders", "work")):
        queue, _ = await store.create_queue("default", name, QueueConfig(kind=kind))
        await published(queue, *[MESSAGE] * (7 if kind == "stream" else 2))
        await look(sampler, clock, 3)
    await look(sampler, clock)
    assert column(sampler, clock, "news", "ready", 1) == [7.0]
    series, slot = sampler.book.series_of_tenant("default"), clock.ms // 5_000
    assert series is not None
    for name in ("ready", "oldest_age_ms"):
        assert series.column(0, QUEUE_COLUMNS.index(name), slot - 5, slot - 4) == [0.0]
    assert series.column(0, QUEUE_COLUMNS.index("ready"), slot, slot + 1) == [2.0]
    await app.gateway.hub.close()


async def test_a_write_that_is_cancelled_ends_before_its_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on, is_open = threading.Event(), threading.Event(), []

    def slow(fd: int, records: Iterable[bytes]) -> None:
        begun.set()
        assert may_go_on.wait(30)
        is_open.append(os.fstat(fd).st_ino == (tmp_path / FILE).with_suffix(".partial").stat().st_ino)

    monkeypatch.setattr(file, "_put", slow)
    writing = asyncio.create_task(SeriesFile(tmp_path).write(iter([(("t", 0), Series(10, 6))])))
    assert await asyncio.to_thread(begun.wait, 30)
    for _ in range(3):
        writing.cancel()
        done, _ = await asyncio.wait([writing], timeout=0.05)
        assert not done
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert is_open == [True] and not (tmp_path / FILE).exists()


async def test_a_queue_that_nothing_happens_to_is_not_looked_at(store: Store, clock: Clock) -> None:
    app, sampler = sampler_of(store, clock)
    for number in range(200):
        queue, _ = await store.create_queue("default", f"q{number}", QueueConfig())
        await published(queue, MESSAGE)
    await look(sampler, clock, 2)  # the second one hears of the commits that the first one saw the ends of
    book, looked_at, rows = sampler.book, sampler.looked_at, sampler.book.rows
    await look(sampler, clock, 100)
    assert (sampler.looked_at, book.rows) == (looked_at, rows) and rows == 200
    await published(store.queue("default", "q7"), MESSAGE)
    await look(sampler, clock)
    assert (sampler.looked_at, book.rows) == (looked_at + 1, rows + 1)
    assert column(sampler, clock, "q7", "ready", 4) == [1, 1, 1, 2]
    assert column(sampler, clock, "q8", "ready", 103)[1:] == [1] * 102
    slot = clock.ms // 5_000
    tenant = book.series_of_tenant("default")
    assert tenant is not None and tenant.column(0, 0, slot - 1, slot + 1) == [200, 201]
    await app.gateway.hub.close()


async def test_leases_consumers_and_time_touch_a_queue(store: Store, clock: Clock) -> None:
    """What changes a queue's numbers and is no publish."""
    app, sampler = sampler_of(store, clock)
    queue, _ = await store.create_queue("default", "orders", QueueConfig())
    await published(queue, MESSAGE)
    await look(sampler, clock, 2)
    lease = queue.take(1, Consumer(), 30_000)
    assert lease is not None
    queue.consumers += 1
    await look(sampler, clock)
    pulse = sampler.book.watched[queue.uid].pulse
    assert (pulse.in_flight, pulse.consumers, pulse.ready) == (1, 1, 0)
    queue.consumers -= 1
    queue.give_back_lease(lease)
    await published(queue, MESSAGE)  # what was given back comes with the same commit
    await look(sampler, clock)
    pulse = sampler.book.watched[queue.uid].pulse
    assert (pulse.in_flight, pulse.consumers, pulse.ready) == (0, 0, 2)
    await app.gateway.hub.close()


async def test_series_of_quiet_queues_are_packed_and_open_as_they_were(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    app, sampler = sampler_of(store, clock, tmp_path)
    queue, _ = await store.create_queue("default", "orders", QueueConfig())
    for _ in range(3):
        await published(queue, MESSAGE)
        await look(sampler, clock)
    watched = sampler.book.watched[queue.uid]

    def is_packed() -> bool:
        return watched.series is None and watched.packed is not None

    await sampler.save()
    assert not is_packed()
    await sampler.save()
    assert is_packed() and sampler.book.bytes < 100_000
    await look(sampler, clock, 2)
    assert is_packed()
    assert column(sampler, clock, "orders", "ready", 6)[1:] == [1, 2, 3, 3, 3]
    await app.gateway.hub.close()


async def test_what_follows_from_the_file_is_not_written_anew(store: Store, clock: Clock, tmp_path: Path) -> None:
    app, sampler = sampler_of(store, clock, tmp_path)
    for name in ("same", "other"):
        queue, _ = await store.create_queue("default", name, QueueConfig())
        await published(queue, MESSAGE)
    await look(sampler, clock, 3)
    await sampler.save()
    await published(queue, MESSAGE)
    again, later = sampler_of(store, clock, tmp_path)
    for place, small in SeriesFile(tmp_path).read():
        later._take_over(place, small)
    await look(later, clock, 2)
    assert later.book.rows == 1
    assert column(later, clock, "same", "ready", 5) == [1] * 5
    assert column(later, clock, "other", "ready", 5) == [1, 1, 1, 2, 2]
    await app.gateway.hub.close()
    await again.gateway.hub.close()


@pytest.mark.parametrize("hours", [1, 24 * 365])
async def test_series_go_on_when_the_clock_is_set_back(store: Store, clock: Clock, hours: int) -> None:
    """They stood still until it had caught up, and with them every alert about rates and growth."""
    app, sampler = sampler_of(store, clock)
    queue, _ = await store.create_queue("default", "orders", QueueConfig())
    quiet, _ = await store.create_queue("default", "quiet", QueueConfig())
    await published(quiet, MESSAGE)
    clock.ms += hours * 3_600_000
    await published(queue, *[MESSAGE] * 10)
    await look(sampler, clock, 3)
    clock.ms -= hours * 3_600_000
    await published(queue, *[MESSAGE] * 5)
    await look(sampler, clock, 2)
    assert column(sampler, clock, "orders", "ready", 2) == [15, 15]
    assert column(sampler, clock, "orders", "published_per_s", 2) == [1, 0]
    assert column(sampler, clock, "quiet", "ready", 2) == [1, 1]
    assert sampler.book.covered(0, clock.ms // 5_000 - 1, clock.ms // 5_000 + 1) == [True, True]
    assert sampler.book.began_ms <= clock.ms
    await app.gateway.hub.close()


async def test_a_clock_that_is_set_forward_thins_no_rate(store: Store, clock: Clock) -> None:
    app, sampler = sampler_of(store, clock)
    queue, _ = await store.create_queue("default", "orders", QueueConfig())
    await look(sampler, clock)
    clock.ms += 3_600_000
    await published(queue, *[MESSAGE] * 10)
    await look(sampler, clock)
    assert column(sampler, clock, "orders", "published_per_s", 1) == [2]
    await app.gateway.hub.close()


async def test_series_of_a_process_with_a_clock_ahead_keep_nobody_out_after_a_restart(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    queue, _ = await store.create_queue("default", "orders", QueueConfig())
    clock.ms += 3_600_000
    app, sampler = sampler_of(store, clock, tmp_path)
    await published(queue, *[MESSAGE] * 10)
    await look(sampler, clock, 2)
    await sampler.save()
    await app.gateway.hub.close()
    clock.ms -= 3_600_000
    app, sampler = sampler_of(store, clock, tmp_path)
    running = asyncio.create_task(sampler.run())
    await eventually(lambda: sampler.looks > 0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await look(sampler, clock)
    assert column(sampler, clock, "orders", "ready", 1) == [10]
    await app.gateway.hub.close()


async def test_a_queue_that_is_made_changed_or_deleted_has_no_others_looked_at(store: Store, clock: Clock) -> None:
    """With a queue made every other second all 100,000 were."""
    app, sampler = sampler_of(store, clock)
    for number in range(30):
        await store.create_queue("default", f"q{number}", QueueConfig())
    await look(sampler, clock)
    looked_at = sampler.looked_at
    await store.create_queue("default", "new", QueueConfig())
    await published(store.queue("default", "new"), MESSAGE)
    await store.delete_queue("default", "q3")
    await store.delete_queue("default", "q4")
    await store.create_queue("default", "q4", QueueConfig())
    await store.update_queue("default", "q5", QueueConfig(max_attempts=7), version=1)
    await look(sampler, clock)
    assert sampler.looked_at - looked_at <= 4
    found = {definition.name for definition in (one.definition for one in sampler.book.watched.values())}
    assert found == {"new", *(f"q{number}" for number in range(30) if number != 3)}
    assert sampler.book.watched.keys() == {one.uid for one in store.node.metadata.queues.values()}
    assert sampler.book.names.keys() == store.node.metadata.queues.keys()
    assert column(sampler, clock, "new", "ready", 1) == [1]
    await app.gateway.hub.close()


async def test_a_tenant_that_nothing_happens_to_costs_nothing(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row was written for each tenant there is, every five seconds."""
    app, sampler = sampler_of(store, clock)
    for number in range(20):
        await store.metadata.put_tenant(f"t{number}", 1)
        queue, _ = await store.create_queue(f"t{number}", "q", QueueConfig())
        await published(queue, MESSAGE)
    await look(sampler, clock, 2)
    writes: list[Series] = []
    write = Series.write

    def counted(series: Series, ms: int, row: Sequence[float]) -> None:
        writes.append(series)
        write(series, ms, row)

    with monkeypatch.context() as patched:
        patched.setattr(Series, "write", counted)
        await look(sampler, clock, 40)
    assert writes == [sampler.book.node] * 40
    await published(store.queue("t3", "q"), MESSAGE)
    await look(sampler, clock, 2)
    await store.delete_queue("t4", "q")
    await look(sampler, clock, 4)
    slot = clock.ms // 5_000
    for tenant, ready in (("t3", [1.0] * 40 + [2.0] * 6), ("t5", [1.0] * 46), ("t4", [1.0] * 42 + [0.0] * 4)):
        series = sampler.book.series_of_tenant(tenant)
        assert series is not None and series.column(0, 0, slot - 45, slot + 1) == ready
        rates = series.column(0, QUEUE_COLUMNS.index("published_per_s"), slot - 45, slot + 1)
        assert rates == pytest.approx([0.0] * 40 + [0.2 if tenant == "t3" else 0.0] + [0.0] * 5)
    await app.gateway.hub.close()


@pytest.mark.parametrize("gap_ms", [1_000_000, 5_000_000, KEPT_MS])
async def test_a_process_that_slept_knows_nothing_of_that_time(store: Store, clock: Clock, gap_ms: int) -> None:
    """The series of a queue that was quiet could not be read after that."""
    app, sampler = sampler_of(store, clock)
    queue, _ = await store.create_queue("default", "orders", QueueConfig())
    await published(queue, MESSAGE)
    await look(sampler, clock, 3)
    clock.ms += gap_ms
    await look(sampler, clock)
    found = column(sampler, clock, "orders", "ready", 100)
    assert found[-1:] == [1.0] and all(value != value for value in found[:-1])
    await app.gateway.hub.close()
