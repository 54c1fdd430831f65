"""What rules are told of rates and growth: after a restart, and by a process that looks seldom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from backend_store.client import Store
from backend_store.core.log.chunk import KIND_JSON, Draft
from backend_store.model import COMPANION, QueueConfig
from gateway.alerts.core.rules import Rule
from gateway.app import Application, create_app
from gateway.config.settings import Settings
from gateway.series.book import PAUSE_SLOTS_MAX, Book
from gateway.series.file import SeriesFile
from tests.support.stores import died, published
from tests.unit.gateway.conftest import Clock

pytestmark = pytest.mark.anyio

MESSAGE = Draft(KIND_JSON, b"1", {})
RULE = Rule(
    "rule_1", "default", "dying", "dead_letter_rate", "*", 5, 4, 0, 0, 60_000, "warning", (), True, "", None, None, 0,
    "me", 0,
)  # fmt: skip


class Process:
    """One process after the other over the same store, and what its rule told."""

    def __init__(self, store: Store, clock: Clock, folder: Path) -> None:
        self.store = store
        self.clock = clock
        self.folder = folder
        self.told: list[str] = []
        self.app: Application
        self.start()

    def start(self) -> None:
        self.app = create_app(self.store, Settings(), clock_ms=self.clock, series_folder=self.folder)
        for place, series in SeriesFile(self.folder).read():
            self.app.gateway.sampler._take_over(place, series)
        self.app.gateway.watching.alerts.on_told.append(lambda rule, alert, _: self.told.append(alert.state))

    async def restart(self, *, after_ms: int, has_series: bool) -> None:
        if has_series:
            SeriesFile(self.folder).write_now(self.app.gateway.sampler.book.all())
        await self.app.gateway.hub.close()
        self.clock.ms += after_ms
        self.start()

    async def look(self, *, every_ms: int = 5_000, times: int = 1) -> None:
        for _ in range(times):
            self.clock.ms += every_ms
            await self.app.gateway.sampler.look()

    def value(self, rule: Rule) -> float | None:
        ((_, value),) = self.app.gateway.watching.alerts.values(rule, self.clock.ms)
        return value


@pytest.fixture
async def process(store: Store, clock: Clock, tmp_path: Path) -> AsyncIterator[Process]:
    config = QueueConfig(max_attempts=1, dead_letter_queue=COMPANION)
    await store.create_queue("default", "orders", config)
    process = Process(store, clock, tmp_path)
    yield process
    await process.app.gateway.hub.close()


async def fires(process: Process) -> None:
    await process.app.gateway.watching.alerts.put_rule(RULE, None)
    await process.look(times=20)
    await died(process.store.queue("default", "orders"), *[MESSAGE] * 10)
    await process.look(times=3)
    assert process.told == ["firing"] and process.value(RULE) == 10


@pytest.mark.parametrize(("after_ms", "has_series"), [(3_000, True), (20_000, True), (3_000, False)])
async def test_a_restart_ends_no_alert_before_its_time(process: Process, after_ms: int, has_series: bool) -> None:
    await fires(process)
    await process.restart(after_ms=after_ms, has_series=has_series)
    await process.look()
    assert process.value(RULE) == (10 if has_series else None)
    await process.look()
    assert process.told == ["firing"]
    await process.look(times=14)
    assert process.told == ["firing", "resolved"], "no message has died for longer than the window"


async def test_what_dies_soon_after_a_start_is_told_at_once(process: Process) -> None:
    await process.app.gateway.watching.alerts.put_rule(RULE, None)
    await process.look()
    assert process.value(RULE) is None, "what was before is not known"
    await died(process.store.queue("default", "orders"), *[MESSAGE] * 10)
    await process.look()
    assert process.told == ["firing"] and process.value(RULE) == 10


async def test_growth_after_a_start_is_unknown_and_not_none(process: Process) -> None:
    growth = msgspec.structs.replace(RULE, kind="growth")
    await process.look()
    assert process.value(growth) is None
    await process.look(times=12)
    assert process.value(growth) == 0


@pytest.mark.parametrize("every_ms", [5_000, 20_000, 60_000])
async def test_rates_are_right_however_seldom_a_busy_process_looks(process: Process, every_ms: int) -> None:
    """One message a second dies."""
    orders = process.store.queue("default", "orders")
    rule = msgspec.structs.replace(RULE, window_ms=240_000)
    await process.look(every_ms=every_ms, times=2)
    for _ in range(300_000 // every_ms):
        await died(orders, *[MESSAGE] * (every_ms // 1_000))
        await process.look(every_ms=every_ms)
    assert process.value(rule) == pytest.approx(60, rel=0.01)
    # Of a window shorter than a pause the last row says how it was.
    assert process.value(msgspec.structs.replace(rule, window_ms=10_000)) == pytest.approx(60, rel=0.01)


@pytest.mark.parametrize("every_ms", [5_000, 20_000, 60_000])
async def test_growth_is_right_however_seldom_a_busy_process_looks(process: Process, every_ms: int) -> None:
    orders = process.store.queue("default", "orders")
    rule = msgspec.structs.replace(RULE, kind="growth")
    for _ in range(1_200_000 // every_ms):
        await published(orders, *[MESSAGE] * (every_ms // 1_000))
        await process.look(every_ms=every_ms)
        for window_ms in (60_000, 850_000):
            value = process.value(msgspec.structs.replace(rule, window_ms=window_ms))
            assert value is None or value == pytest.approx(1, rel=0.01)
    assert all(process.value(msgspec.structs.replace(rule, window_ms=ms)) is not None for ms in (60_000, 850_000))


async def test_requests_are_counted_however_seldom_a_busy_process_looks(process: Process) -> None:
    rule = msgspec.structs.replace(RULE, kind="slo_availability", limit=1.0, objective=99.0)
    await process.app.gateway.watching.alerts.put_rule(rule, None)
    await process.look(every_ms=60_000)
    meter = process.app.gateway.usage.meter
    for second in range(300):
        process.clock.ms += 1_000
        meter.turn()
        for outcome in ("ok", "internal"):
            meter.count("default", "k", "orders", "publish", "http", outcome)
        if second % 100 == 99:  # looks themselves take long
            await process.look(every_ms=0)
    budget = process.app.gateway.watching.alerts.sources.budgets.of(rule)
    assert budget.counts(process.clock.ms // 60_000, 10) == (600, 300)


def test_a_row_is_about_the_time_since_the_one_before() -> None:
    book = Book()
    for slot in (100, 101, 105, 106 + PAUSE_SLOTS_MAX):
        book.node.write(slot * 5_000, [0.0] * 7)
    assert book.spans(100, 107) == [1, 1, 0, 0, 0, 4, 0]
    assert book.spans(103, 106) == [0, 0, 3], "of the row only what is in the window"
    assert book.spans(106 + PAUSE_SLOTS_MAX, 107 + PAUSE_SLOTS_MAX) == [1]


async def test_a_rate_has_what_happened_since_the_last_row_and_has_it_once(process: Process) -> None:
    await process.app.gateway.watching.alerts.put_rule(RULE, None)
    await process.look(times=20)
    await died(process.store.queue("default", "orders"), *[MESSAGE] * 10)
    rows = process.app.gateway.sampler.book.rows
    await process.look(every_ms=2_000)
    assert process.told == ["firing"] and process.value(RULE) == 10 and process.app.gateway.sampler.book.rows == rows
    await process.look(every_ms=3_000)
    assert process.app.gateway.sampler.book.rows > rows and process.value(RULE) == 10


async def test_what_the_process_is_like_is_known_as_of_each_look(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = msgspec.structs.replace(RULE, kind="memory_used_percent", limit=0)
    await process.look()
    before = process.value(rule)
    monkeypatch.setattr("gateway.series.sampler.used_bytes", lambda: 0)
    await process.look(every_ms=2_000)
    assert before is not None and before > 0 and process.value(rule) == 0


async def test_a_total_adds_up_the_queues_of_its_pattern_and_leaves_streams_out(process: Process) -> None:
    for name, config in (("orders.eu", QueueConfig()), ("orders.us", QueueConfig()), ("other", QueueConfig())):
        await process.store.create_queue("default", name, config)
        await published(process.store.queue("default", name), *[MESSAGE] * 10)
    await process.store.create_queue("default", "orders.log", QueueConfig(kind="stream"))
    await published(process.store.queue("default", "orders.log"), *[MESSAGE] * 10)
    await process.look()
    rule = msgspec.structs.replace(RULE, kind="total_depth", queue="orders.*", limit=15, clear_at=13)
    assert process.app.gateway.watching.alerts.values(rule, process.clock.ms) == [("orders.*", 20)]


async def test_a_total_of_which_a_part_was_not_looked_at_yet_ends_no_alert(process: Process) -> None:
    rule = msgspec.structs.replace(RULE, kind="total_depth", limit=15, clear_at=13)
    for name in ("orders", "more"):
        if name != "orders":
            await process.store.create_queue("default", name, QueueConfig())
        await published(process.store.queue("default", name), *[MESSAGE] * 10)
    await process.app.gateway.watching.alerts.put_rule(rule, None)
    await process.look()
    assert process.told == ["firing"] and process.value(rule) == 20
    await process.store.create_queue("default", "new", QueueConfig())
    assert process.value(rule) == 20, "past the limit whatever the new one has"
    calmer = msgspec.structs.replace(rule, limit=30)
    assert process.value(calmer) is None, "the new one may have eleven"
    assert process.value(msgspec.structs.replace(calmer, id="rule_2", queue="o*")) == 10, "it is none of these"
    await process.look()
    assert process.value(calmer) == 20
    await process.store.delete_queue("default", "more")
    await process.store.create_queue("default", "newer", QueueConfig())
    assert process.value(calmer) is None, "as many as before are not the same ones"
    await process.look()
    assert process.value(calmer) == 10
    for kind in ("total_growth", "total_dead_letter_rate", "total_redelivery_rate"):
        assert process.value(msgspec.structs.replace(calmer, kind=kind, limit=5)) is None, "nobody looked for a minute"
