"""What SLOs have counted: the next process goes on with it, of the rule as it is, and it goes with the rule."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
from structlog.testing import capture_logs

from backend_store.client import Document, Store
from backend_store.metadata.documents import DOCUMENTS
from backend_store.model import QueueConfig
from backend_store.storage.engine import Batch, Table
from gateway.alerts.alerts import MINUTE_MS
from gateway.alerts.core.rules import Rule
from gateway.alerts.stored import BUDGETS
from gateway.app import Application, create_app
from gateway.config.settings import Settings
from tests.unit.gateway.conftest import Clock

pytestmark = pytest.mark.anyio

RULE = Rule(
    "rule_1", "default", "works", "slo_availability", "*", 1, 1, 0, 0, 60_000, "warning", (), True, "", 99.9, None, 0,
    "me", 0,
)  # fmt: skip


class Process:
    """One process after the other over the same store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.app: Application
        self.start()

    def start(self) -> None:
        self.app = create_app(self.store, Settings(), clock_ms=self.clock)

    async def restart(self, *, is_clean: bool) -> None:
        await self.app.gateway.hub.close()
        if is_clean:
            await self.app.gateway.watching.close()
        self.start()
        await self.look(after_ms=0)

    async def look(self, *, after_ms: int) -> None:
        self.clock.ms += after_ms
        await self.app.gateway.sampler.look()

    def count(self, outcome: str, requests: int) -> None:
        for _ in range(requests):
            self.app.gateway.usage.meter.count("default", "me", "orders", "publish", "ws", outcome)

    def value(self, rule: Rule = RULE) -> float | None:
        return self.app.gateway.watching.alerts.sources.burn(rule, self.clock.ms)

    @property
    def rows(self) -> list[tuple[str, bytes]]:
        return self.store.documents.all(BUDGETS)


@pytest.fixture
async def process(store: Store, clock: Clock) -> AsyncIterator[Process]:
    await store.create_queue("default", "orders", QueueConfig())
    clock.ms -= clock.ms % MINUTE_MS
    process = Process(store, clock)
    await process.app.gateway.watching.alerts.put_rule(RULE, None)
    await process.look(after_ms=0)
    yield process
    await process.app.gateway.hub.close()


async def burning(process: Process) -> float:
    process.count("ok", 70)
    process.count("internal", 30)
    await process.look(after_ms=MINUTE_MS)
    value = process.value()
    assert value is not None and value > 1
    return value


@pytest.mark.parametrize("is_clean", [True, False])
async def test_the_next_process_goes_on_with_what_was_counted(process: Process, *, is_clean: bool) -> None:
    """After a crash, too, but for the minute in which it came."""
    value = await burning(process)
    process.count("ok", 100)
    await process.restart(is_clean=is_clean)
    assert process.value() == (value / 2 if is_clean else value)
    (firing,) = process.app.gateway.watching.alerts.open[RULE.id].values()
    assert firing.state == "firing"


async def test_it_is_written_down_once_a_minute_one_row_of_an_hour(process: Process) -> None:
    await burning(process)
    (row,) = process.rows
    process.count("ok", 100)
    await process.look(after_ms=MINUTE_MS // 2)
    assert process.rows == [row]
    await process.look(after_ms=MINUTE_MS // 2)
    ((name, data),) = process.rows
    assert name == row[0] and data != row[1] and len(data) < 60


async def test_what_a_rule_counted_before_it_was_changed_is_not_what_it_is_about_now(process: Process) -> None:
    await burning(process)
    changed = msgspec.structs.replace(RULE, queue="other*", updated_at_ms=1)
    await process.app.gateway.watching.alerts.put_rule(changed, RULE)
    await process.look(after_ms=MINUTE_MS)
    assert process.value(changed) is None
    await process.restart(is_clean=False)
    assert process.value(changed) is None


async def test_it_goes_with_the_rule(process: Process) -> None:
    await burning(process)
    assert process.rows
    await process.app.gateway.watching.alerts.delete_rule(RULE)
    assert not process.rows
    await process.look(after_ms=MINUTE_MS)
    await process.app.gateway.watching.close()
    assert not process.rows


@pytest.mark.parametrize("is_damaged", [True, False])
async def test_a_row_that_does_not_read_is_said_and_the_slo_begins_anew(process: Process, *, is_damaged: bool) -> None:
    await burning(process)
    ((name, _),) = process.rows
    await process.store.documents.write([Document(BUDGETS, name, b"\xc1")])
    if is_damaged:
        damaged = Batch()
        damaged.put(Table.META, DOCUMENTS + f"{BUDGETS}/{name}".encode(), b"damaged")
        await process.store.documents._write(damaged)
    with capture_logs() as logs:
        await process.restart(is_clean=False)
    assert process.value() is None and [one["rule"] for one in logs if "cannot be read" in one["event"]] == [RULE.id]
