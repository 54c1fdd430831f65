"""Alerts of an application in this process: what is kept of them, who pays for a list, and who changes what."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

from backend_store.client import Store
from backend_store.model import Conflict, NotFound, QueueConfig, StorageFull
from gateway.alerts import alerts as alerting
from gateway.alerts import views
from gateway.alerts.alerts import Alerts
from gateway.alerts.asked import AskedRules
from gateway.alerts.core.evaluate import Alert
from gateway.alerts.core.rules import Rule
from gateway.alerts.core.silences import Silence
from gateway.alerts.limits import (
    GROUP_ALERTS_MIN,
    GROUP_SUBJECTS_MAX,
    HISTORY_PER_TENANT_MAX,
    LISTENERS_PER_TENANT_MAX,
    RESOLVED_KEPT_MS,
    RESOLVED_PER_TENANT_MAX,
    TELLING_MS_MAX,
    WEBHOOKS_PER_TENANT_WAITING_MAX,
    WRITE_ROWS_MAX,
)
from gateway.alerts.notifier import Heard
from gateway.alerts.secrets import Renewal
from gateway.alerts.setup import Watching
from gateway.alerts.stored import RECEIVERS, TELLING, Receiver, gone
from gateway.alerts.webhooks import Note, Outcome
from gateway.app import Application, create_app
from gateway.config.settings import Settings
from gateway.identity.authorization import compile_pattern
from tests.support.queues import draft
from tests.support.stores import published
from tests.unit.gateway.conftest import Clock

pytestmark = pytest.mark.anyio

RULE = Rule(
    "rule_1", "shop", "deep", "depth", "*", 0, 0, 0, 0, 60_000, "warning", (), True, "", None, None, 0, "me", 0
)  # fmt: skip
RECEIVER = Receiver("receiver_1", "shop", "ops", "webhook", "https://hooks.example/", "m", b"sealed", 0)


@pytest.fixture
async def app(store: Store, clock: Clock) -> AsyncIterator[Application]:
    app = create_app(store, Settings(), clock_ms=clock)
    yield app
    await app.gateway.hub.close()


@pytest.fixture
def watching(app: Application) -> Watching:
    return app.gateway.watching


@pytest.fixture
def alerts(watching: Watching) -> Alerts:
    return watching.alerts


async def flapped(alerts: Alerts, clock: Clock, monkeypatch: pytest.MonkeyPatch, *, subjects: int, times: int) -> None:
    """So many queues are past the limit of the tenant's rule, and well again, so many times."""
    for value in (1.0, 0.0) * times:
        clock.ms += 1
        values = [(f"q{n}", value) for n in range(subjects)]
        monkeypatch.setattr(alerts, "values", lambda rule, now_ms, values=values: values)
        alerts._asked = AskedRules(alerts._book)
        await alerts.evaluate(clock.ms)


async def test_of_alerts_that_are_over_the_newest_of_an_hour_are_listed(
    alerts: Alerts, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await alerts.put_rule(RULE, None)
    await flapped(alerts, clock, monkeypatch, subjects=900, times=3)
    listed = list(alerts.of_tenant("shop"))
    assert len(listed) == RESOLVED_PER_TENANT_MAX and {alert.state for _, alert in listed} == {"resolved"}
    assert max(alert.resolved_at_ms or 0 for _, alert in listed) == clock.ms
    clock.ms += RESOLVED_KEPT_MS
    await flapped(alerts, clock, monkeypatch, subjects=1, times=1)
    assert len(list(alerts.of_tenant("shop"))) == 1


async def test_nothing_is_kept_of_a_receiver_that_was_deleted_at_another_gateway(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts, stays = watching.alerts, msgspec.structs.replace(RECEIVER, id="receiver_2")
    for one in (RECEIVER, stays):
        await alerts.put_receiver(one, None)
        watching.notifier._ended(Note("shop", one.id, one.url, "m", b""), Outcome(True, 200, None, 1))
        watching.secrets._known[one.id] = (one.sealed, b"")
    await alerts._documents.write([gone(RECEIVERS, RECEIVER.id)])
    monkeypatch.setattr(alerts._documents, "changes_elsewhere", lambda *kinds: 1)
    alerts._take_over()
    assert list(alerts.receivers) == list(watching.notifier.heard) == list(watching.secrets._known) == [stays.id]


async def test_of_webhooks_those_that_will_be_sent_are_written_down(
    watching: Watching, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds that are dropped at once would be rows for every gateway to hear of, twice."""
    alerts, arrived = watching.alerts, asyncio.Event()

    async def attempt(_: Any) -> Outcome:
        await arrived.wait()
        return Outcome(True, 200, None, 1)

    monkeypatch.setattr(watching.notifier.webhooks, "attempt", attempt)
    receivers = [msgspec.structs.replace(RECEIVER, id=f"receiver_{number}") for number in range(3)]
    for receiver in receivers:
        await alerts.put_receiver(receiver, None)
    for number in range(8):
        told = tuple(one.id for one in receivers)
        await alerts.put_rule(msgspec.structs.replace(RULE, id=f"rule_{number}", receivers=told), None)
    monkeypatch.setattr(alerts, "values", lambda rule, now_ms: [(f"q{n}", 1.0) for n in range(GROUP_ALERTS_MIN - 1)])
    write, rows = alerts._documents.write, []

    async def counted(documents: Any, *, duty: Any = None) -> None:
        given = list(documents)
        rows.extend(one for one in given if one.kind == TELLING)
        await write(given, duty=duty)

    monkeypatch.setattr(alerts._documents, "write", counted)
    await alerts.evaluate(clock.ms)
    sent = watching.notifier.webhooks.waiting
    await settled_notes(watching)
    assert sent == WEBHOOKS_PER_TENANT_WAITING_MAX == len(alerts._documents.all(TELLING))
    arrived.set()
    await asyncio.gather(*watching.notifier.webhooks._tasks)
    await settled_notes(watching)
    assert alerts._documents.all(TELLING) == [] and not alerts.record.unwritten
    assert len(rows) == 2 * WEBHOOKS_PER_TENANT_WAITING_MAX


async def test_what_begins_and_ends_while_nothing_can_be_written_is_no_pile_of_rows(
    alerts: Alerts, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await alerts.put_rule(RULE, None)
    write, pieces = alerts._documents.write, []

    async def full(documents: Any, *, duty: Any = None) -> None:
        raise StorageFull("there is no room")

    monkeypatch.setattr(alerts._documents, "write", full)
    await flapped(alerts, clock, monkeypatch, subjects=200, times=8)
    assert len(alerts.record.unwritten) == HISTORY_PER_TENANT_MAX, "the newest lines, and no alert that is over"

    async def counted(documents: Any, *, duty: Any = None) -> None:
        given = list(documents)
        pieces.append(len(given))
        await write(given, duty=duty)

    monkeypatch.setattr(alerts._documents, "write", counted)
    await flapped(alerts, clock, monkeypatch, subjects=1, times=1)
    assert not len(alerts.record.unwritten) and max(pieces) == WRITE_ROWS_MAX
    stored = alerts._documents.all("alert-history")
    assert len(stored) == HISTORY_PER_TENANT_MAX and not alerts._documents.all("alert")


async def test_many_alerts_of_one_rule_are_told_with_one_webhook_that_goes_on_after_a_crash(
    watching: Watching, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Note] = []
    alerts = watching.alerts
    monkeypatch.setattr(watching.notifier.webhooks, "send", sent.append)
    await alerts.put_receiver(RECEIVER, None)
    await alerts.put_rule(msgspec.structs.replace(RULE, receivers=(RECEIVER.id,)), None)
    monkeypatch.setattr(alerts, "values", lambda rule, now_ms: [(f"q{n}", float(n)) for n in range(120)])
    await alerts.evaluate(clock.ms)
    (note,) = sent
    body = msgspec.json.decode(note.body)
    assert body["type"] == "alert.firing" and body["data"]["subject"] == "q119"
    assert body["data"]["detail"].endswith(", and 118 more")
    assert body["group"]["alerts"] == 119 and body["group"]["subjects"][:2] == ["q119", "q118"]
    assert len(body["group"]["subjects"]) == GROUP_SUBJECTS_MAX and len(alerts.open[RULE.id]) == 119
    watching.notifier.resume()
    assert sent[1].id == note.id and msgspec.json.decode(sent[1].body) == body, "the next process says the same"
    monkeypatch.setattr(alerts, "values", lambda rule, now_ms: [(f"q{n}", float(n > 5)) for n in range(120)])
    await alerts.evaluate(clock.ms)
    assert sorted(msgspec.json.decode(one.body)["data"]["subject"] for one in sent[2:]) == [
        f"q{n}" for n in range(1, 6)
    ]
    assert all("group" not in msgspec.json.decode(one.body) for one in sent[2:]), "a few are told one by one"


@pytest.mark.parametrize("change", ["delete", "disable"])
async def test_a_rule_whose_end_could_not_be_written_down_has_its_alerts_as_before(
    alerts: Alerts, clock: Clock, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Found anew they would have another id: told twice, and the first ones never over."""
    await alerts.put_rule(RULE, None)
    monkeypatch.setattr(alerts, "values", lambda rule, now_ms: [("q", 1.0)])
    await alerts.evaluate(clock.ms)
    before = alerts.open[RULE.id]["q"]

    async def full(documents: Any, *, duty: Any = None) -> None:
        raise StorageFull("there is no room")

    with monkeypatch.context() as no_room:
        no_room.setattr(alerts._documents, "write", full)
        disabled = msgspec.structs.replace(RULE, enabled=False)
        with pytest.raises(StorageFull):
            await (alerts.delete_rule(RULE) if change == "delete" else alerts.put_rule(disabled, RULE))
    await alerts.evaluate(clock.ms)
    assert alerts.open[RULE.id]["q"] == before and alerts.fired == 1
    await alerts.delete_rule(RULE)
    assert not alerts.open and not alerts._documents.all("alert") and not len(alerts.record.unwritten)


async def test_an_alert_after_one_of_which_nothing_was_written_down_has_another_id(
    app: Application, alerts: Alerts, store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver that knows webhooks by their id would take it for one that was told before."""
    told: list[str] = []
    await alerts.put_rule(RULE, None)
    for process in (alerts, create_app(store, Settings(), clock_ms=clock).gateway.watching.alerts):
        process.on_told.append(lambda rule, alert, silence: told.append(alert.id))

        async def full(documents: Any, *, duty: Any = None) -> None:
            raise StorageFull("there is no room")

        with monkeypatch.context() as no_room:
            no_room.setattr(store.documents, "write", full)
            await flapped(process, clock, monkeypatch, subjects=1, times=1)
        clock.ms += TELLING_MS_MAX
    assert told[0] == told[1] != told[2] == told[3]


async def settled_notes(watching: Watching) -> None:
    if (noting := watching.notifier._noting) is not None:
        await noting


@pytest.mark.parametrize(
    ("kind", "limit"), [("depth", 1), ("dead_letters", 0), ("oldest_age_ms", 600_000), ("growth", 0.001)]
)
async def test_a_rule_about_queues_to_which_nothing_happens_is_not_asked_again(
    app: Application, alerts: Alerts, store: Store, clock: Clock, kind: str, limit: float
) -> None:
    queues = [(await store.create_queue("shop", f"q{n}", QueueConfig()))[0] for n in range(20)]
    await published(queues[3], draft("1"))
    kept = {"kind": kind, "limit": limit, "clear_at": limit, "window_ms": 60_000}
    await alerts.put_rule(msgspec.structs.replace(RULE, **kept), None)
    sampler, asked = app.gateway.sampler, []
    for _ in range(200):
        clock.ms += 2_500
        await sampler.look()
        asked.append(alerts.asked)
    assert asked[-1] == asked[120] and not list(alerts.of_tenant("shop"))
    await published(queues[3], draft("2"), draft("3"))
    for _ in range(3):
        clock.ms += 2_500
        await sampler.look()
    assert alerts.asked > asked[-1]
    if kind in ("depth", "growth"):
        assert [alert.subject for _, alert in alerts.of_tenant("shop")] == ["q3"]


async def test_what_happens_to_queues_of_other_tenants_has_no_rule_asked(
    app: Application, alerts: Alerts, store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rule of every tenant went through all names for each queue that was made, and through its own queues for
    each message of anybody."""
    for number in range(5):
        await store.create_queue("shop", f"q{number}", QueueConfig())
    await alerts.put_rule(msgspec.structs.replace(RULE, kind="depth", limit=1, clear_at=1), None)
    sampler, asked, matched = app.gateway.sampler, [], list[str]()
    monkeypatch.setattr(alerting, "compile_pattern", lambda text: matched.append(text) or compile_pattern(text))

    async def look() -> None:
        clock.ms += 5_000
        await sampler.look()
        asked.append(alerts.asked)

    await look()
    assert len(matched) == 1
    other, _ = await store.create_queue("default", "other", QueueConfig())
    await published(other, draft("1"))
    await look()
    await published(other, draft("2"))
    await store.create_queue("default", "another", QueueConfig())
    await store.delete_queue("default", "other")
    await look()
    assert asked == [1, 1, 1] and len(matched) == 1
    await store.create_queue("shop", "new", QueueConfig())
    await published(store.queue("shop", "new"), draft("1"), draft("2"), draft("3"))
    await look()
    assert [alert.subject for _, alert in alerts.of_tenant("shop")] == ["new"] and len(matched) == 2
    for name in ("new", *(f"q{number}" for number in range(5))):
        await store.delete_queue("shop", name)
    await look()
    assert not [alert for _, alert in alerts.of_tenant("shop") if alert.state != "resolved"]
    await store.create_queue("shop", "q1", QueueConfig())
    await published(store.queue("shop", "q1"), draft("1"), draft("2"))
    await look()
    assert [alert.subject for _, alert in alerts.of_tenant("shop") if alert.state != "resolved"] == ["q1"]


class Untouched(deque[Alert]):
    def __iter__(self) -> Any:
        raise AssertionError("another tenant's alerts were gone through")


class UntouchedAlerts(dict[str, Alert]):
    def values(self) -> Any:
        raise AssertionError("another tenant's alerts were gone through")


async def test_a_list_costs_what_its_own_tenant_has(alerts: Alerts) -> None:
    await alerts.put_rule(RULE, None)
    mine = msgspec.structs.replace(RULE, id="rule_2", tenant="mine")
    await alerts.put_rule(mine, None)
    found = Alert("a", "rule_2", "q", "firing", 1, 0)
    alerts.record.open = {"rule_1": UntouchedAlerts(), "rule_2": {"q": found}}
    alerts.record.resolved = {"shop": Untouched()}
    assert list(alerts.of_tenant("mine")) == [(mine, found)]


async def test_nothing_is_left_of_a_tenant_that_was_removed(
    watching: Watching, alerts: Alerts, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slo = msgspec.structs.replace(RULE, id="rule_2", kind="slo_availability", objective=99.9)
    for rule in (RULE, slo):
        await alerts.put_rule(rule, None)
    await alerts.put_receiver(RECEIVER, None)
    await alerts.evaluate(clock.ms)
    await flapped(alerts, clock, monkeypatch, subjects=2, times=2)
    watching.notifier.heard[RECEIVER.id] = Heard()
    watching.secrets._known[RECEIVER.id] = (b"sealed", b"secret")
    assert alerts.sources.budgets.known(slo) is not None and alerts.record.resolved
    await watching.forget_tenant("shop")
    assert not alerts.rules and not alerts.receivers and not alerts.history and not alerts.record.resolved
    assert alerts.sources.budgets.known(slo) is None
    assert not watching.notifier.heard and not watching.secrets._known
    assert alerts._documents.rows() == {}


async def test_a_change_of_what_was_deleted_meanwhile_does_not_bring_it_back(alerts: Alerts) -> None:
    await alerts.put_rule(RULE, None)
    await alerts.put_receiver(RECEIVER, None)
    for delete, put, known in (
        (alerts.delete_rule, alerts.put_rule, RULE),
        (alerts.delete_receiver, alerts.put_receiver, RECEIVER),
    ):
        await delete(known)  # type: ignore[arg-type]
        with pytest.raises(NotFound):
            await put(msgspec.structs.replace(known, name="other"), known)  # type: ignore[arg-type]
    assert not alerts.rules and not alerts.receivers and alerts._documents.rows() == {}


async def test_of_two_changes_of_one_thing_the_second_looks_again(alerts: Alerts) -> None:
    await alerts.put_rule(RULE, None)
    await alerts.put_receiver(RECEIVER, None)
    puts: list[tuple[Callable[..., Awaitable[None]], Rule | Receiver]]
    puts = [(alerts.put_rule, RULE), (alerts.put_receiver, RECEIVER)]
    for put, known in puts:
        first = msgspec.structs.replace(known, name="first")
        await put(first, known)
        with pytest.raises(Conflict):
            await put(msgspec.structs.replace(known, name="second"), known)
        await put(msgspec.structs.replace(first, name="second"), first)
    assert alerts.rules["rule_1"].name == alerts.receivers["receiver_1"].name == "second"


async def test_a_rotation_of_master_keys_keeps_an_address_that_was_changed_meanwhile(
    watching: Watching, alerts: Alerts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two receivers: of one the address is changed while its secret is sealed anew, the other is deleted."""
    gone = msgspec.structs.replace(RECEIVER, id="receiver_2")
    for receiver in (RECEIVER, gone):
        await alerts.put_receiver(receiver, None)
    masters = Masters(alerts, gone)
    monkeypatch.setattr(type(watching.secrets), "masters", masters)
    await Renewal(alerts, watching.secrets).renew()
    assert alerts.receivers == {
        RECEIVER.id: msgspec.structs.replace(
            RECEIVER, url="https://new.example/", master="new", sealed=b"sealed by the new"
        )
    }


class Masters:
    """A new master key is active; while it seals for the first time, somebody changes what is sealed."""

    active = "new"

    def __init__(self, alerts: Alerts, gone: Receiver) -> None:
        self.alerts = alerts
        self.gone: Receiver | None = gone

    async def unwrap(self, keys: list[Any]) -> list[bytes]:
        return [b"secret" for _ in keys]

    async def wrap(self, secrets: list[Any]) -> list[Any]:
        if self.gone is not None:
            gone, self.gone = self.gone, None
            await self.alerts.delete_receiver(gone)
            await self.alerts.put_receiver(msgspec.structs.replace(RECEIVER, url="https://new.example/"), RECEIVER)
        return [Wrapped("new", b"sealed by the new") for _ in secrets]


class Wrapped(msgspec.Struct):
    master: str
    data: bytes


async def test_streams_of_one_tenant_leave_room_for_the_others(watching: Watching) -> None:
    notifier = watching.notifier
    for _ in range(LISTENERS_PER_TENANT_MAX):
        last = notifier.listen("shop")
    with pytest.raises(Exception, match="this tenant has reached") as refused:
        notifier.listen("shop")
    assert refused.value.code == "too-many-connections"  # type: ignore[attr-defined]
    notifier.listen("other")
    notifier.unlisten(last)
    notifier.listen("shop")


SILENCE = Silence("silence_1", "shop", None, "q*", None, "me", "", 0, 1 << 52, 0)


async def test_what_a_silence_mutes_costs_one_look_at_each_queue_however_many_rules_found_it(
    alerts: Alerts, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of silences that each looked at each alert of each rule held everybody up for seconds."""
    for number in range(10):
        await alerts.put_rule(msgspec.structs.replace(RULE, id=f"rule_{number}"), None)
    await flapped(alerts, clock, monkeypatch, subjects=50, times=1)
    monkeypatch.setattr(alerts, "values", lambda rule, now_ms: [(f"q{n}", 1.0) for n in range(50)])
    alerts._asked = AskedRules(alerts._book)
    await alerts.evaluate(clock.ms)
    looks: list[str] = []
    monkeypatch.setattr(views, "compile_pattern", lambda text: looks.append(text) or compile_pattern(text))
    assert len(views.muted(alerts, SILENCE)) == 500 and len(looks) == 50
    assert views.muted(alerts, msgspec.structs.replace(SILENCE, tenant="other")) == [] and len(looks) == 50


async def test_an_alert_costs_no_look_at_the_silences_of_other_tenants(alerts: Alerts) -> None:
    others = [msgspec.structs.replace(SILENCE, id=f"silence_{n}", tenant=f"t{n}") for n in range(2, 20)]
    for one in (SILENCE, *others):
        await alerts.put_silence(one, None)
    assert alerts.muting(RULE, "q1") == (SILENCE, None)
    known, alerts.silences = alerts.silences, {}
    assert alerts.muting(RULE, "q1") == (SILENCE, None), "they were looked at once"
    alerts.silences = known
    await alerts.put_silence(msgspec.structs.replace(SILENCE, ends_at_ms=1), SILENCE)
    assert alerts.muting(RULE, "q1")[0] is None
    await alerts.put_silence(msgspec.structs.replace(SILENCE, id="silence_99"), None)
    await alerts.forget_tenant("shop")
    assert alerts.muting(RULE, "q1") == (None, None)


async def test_rules_of_some_tenants_leave_room_for_the_first_ones_of_others(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty tenants with all the rules they may have left nobody else a single one."""
    monkeypatch.setattr(alerting, "RULES_MAX", 8)

    async def put(tenant: str, number: int) -> None:
        rule = msgspec.structs.replace(RULE, id=f"rule_{tenant}_{number}", tenant=tenant, name=f"r{number}")
        await watching.alerts.put_rule(rule, None)

    async def fill(tenant: str) -> tuple[int, str]:
        for number in range(9):
            try:
                await put(tenant, number)
            except Conflict as error:
                return number, error.detail
        raise AssertionError("there is no bound")

    count, why = await fill("many")
    assert count == 4
    assert why.startswith("this tenant has 4 alert rules, and the last 4 of this server's 8")
    assert [(await fill(tenant))[0] for tenant in ("second", "third", "fourth")] == [2, 1, 1]
    with pytest.raises(Conflict, match="limit of 8 alert rules over all tenants; ask an operator"):
        await put("fifth", 0)
