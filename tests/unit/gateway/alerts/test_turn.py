"""Changes of rules while backends do not answer: they end in time, and a look at the rules does not stand behind."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from backend_store.model import Conflict, OutcomeUnknown, Unavailable
from backend_store.remote.definitions.documents import RemoteDocuments
from gateway.alerts import record, reports, turn
from gateway.alerts.alerts import Alerts
from gateway.alerts.core.evaluate import Alert
from gateway.alerts.limits import WRITE_ROWS_MAX
from gateway.alerts.record import Record
from gateway.alerts.reports import Reports
from gateway.alerts.stored import RULES, put
from gateway.api.conditions import etag_of
from gateway.series.book import Book
from tests.unit.gateway.alerts.test_alerts import RULE

pytestmark = pytest.mark.anyio

CHANGE_S = 0.3
SLOW_S = 5.0


class Sources:
    async def report(self, *_: Any) -> None: ...

    async def forget_gone(self) -> None: ...

    def forget(self, rule_id: str) -> None: ...


async def never(operation: Any) -> msgspec.Raw:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.fixture
def alerts(monkeypatch: pytest.MonkeyPatch) -> Alerts:
    """Of a gateway whose backends answer nothing."""
    monkeypatch.setattr(turn, "CHANGE_SECONDS_MAX", CHANGE_S)
    monkeypatch.setattr(record, "WRITE_SECONDS_MAX", CHANGE_S)
    sources: Any = Sources()
    documents: Any = RemoteDocuments(never, holder="a", are_shared=False)
    return Alerts(documents, Book(), sources, clock_ms=lambda: 1, steady_ms=lambda: 1)


async def test_changes_that_wait_for_backends_end_in_time_and_say_what_became_of_them(alerts: Alerts) -> None:
    changes = [alerts.put_rule(msgspec.structs.replace(RULE, id=f"rule_{n}"), None) for n in range(20)]
    async with asyncio.timeout(SLOW_S):
        errors = await asyncio.gather(*changes, return_exceptions=True)
    assert type(errors[0]) is OutcomeUnknown, "it had begun"
    assert {type(error) for error in errors} == {OutcomeUnknown, Unavailable}


@pytest.mark.parametrize("lands", [False, True])
async def test_a_change_that_is_asked_for_again_meets_the_one_that_was_not_answered_in_time(
    alerts: Alerts, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    """With If-Match it is 412 where the first one was made, as it is where somebody else made it."""
    documents: Any = alerts._documents
    documents.take([put(RULES, RULE.id, RULE)], [], is_first=True)
    alerts._take_over()
    known = alerts.rule(RULE.tenant, RULE.id)
    wanted = msgspec.structs.replace(known, note="wanted", updated_at_ms=known.updated_at_ms + 1)
    with pytest.raises(OutcomeUnknown):
        await alerts.put_rule(wanted, known)
    if lands:
        documents.take([put(RULES, RULE.id, wanted)], [], is_first=False)
        with pytest.raises(Conflict):
            await alerts.put_rule(wanted, known)
        assert etag_of(alerts.rule(RULE.tenant, RULE.id)) == etag_of(wanted) != etag_of(known), "the next look has it"
        with pytest.raises(Conflict):
            await alerts.delete_rule(known, is_as_known=True)
    else:
        monkeypatch.setattr(documents, "write", written)
        await alerts.put_rule(wanted, known)
        assert alerts.rule(RULE.tenant, RULE.id) == wanted


async def written(rows: Any) -> None:
    """They are on the disk."""


async def test_a_look_does_not_stand_behind_changes_that_wait(alerts: Alerts) -> None:
    began = time.monotonic()
    changes = [
        asyncio.create_task(alerts.put_rule(msgspec.structs.replace(RULE, id=f"rule_{n}"), None)) for n in range(20)
    ]
    await asyncio.sleep(0)
    async with asyncio.timeout(SLOW_S):
        await alerts.evaluate(1)
    assert time.monotonic() - began < 10 * CHANGE_S, "it waits for those that have begun, and not for each in turn"
    await asyncio.gather(*changes, return_exceptions=True)


async def test_a_look_does_not_wait_for_ever_for_what_other_gateways_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "WRITE_SECONDS_MAX", CHANGE_S)
    documents: Any = RemoteDocuments(never, holder="a", are_shared=True)
    told = Reports(documents, "here")
    told._seen["gone"] = b"", 0.0, reports.Report("there", {}, {}, 1)
    async with asyncio.timeout(SLOW_S):
        await told.say({"loop_lag_ms": 1.0}, {})
        await told.forget(())


async def test_a_tenant_is_forgotten_in_time_though_nobody_writes_it_down(alerts: Alerts) -> None:
    """It is gone already: nobody can ask for that again."""
    alerts.rules[RULE.id] = RULE
    async with asyncio.timeout(SLOW_S):
        await alerts.forget_tenant(RULE.tenant)
    assert not alerts.rules
    waiting = asyncio.create_task(alerts.put_rule(RULE, None))
    await asyncio.sleep(0)
    alerts.rules["rule_2"] = msgspec.structs.replace(RULE, id="rule_2")
    await alerts.forget_tenant(RULE.tenant)
    assert not alerts.rules
    await asyncio.gather(waiting, return_exceptions=True)


async def test_what_is_written_later_than_a_look_waits_for_it_is_not_written_anew_with_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Backends whose commits all take longer would never have the next piece."""
    monkeypatch.setattr(record, "WRITE_SECONDS_MAX", CHANGE_S)
    asked: list[list[str]] = []

    async def late(operation: Any) -> msgspec.Raw:
        asked.append([one.name for one in operation.documents])
        try:
            return await never(operation)
        finally:
            documents.take([one for one in operation.documents if one.data is not None], [], is_first=False)

    documents: Any = RemoteDocuments(late, holder="a", are_shared=True)
    kept = Record(documents, {RULE.id: RULE}, 1)
    lines = 2 * WRITE_ROWS_MAX
    for number in range(lines):
        kept.note(RULE, Alert(f"alert{number}", RULE.id, "q", "firing", 1.0, 1, 1), 1, None)
    async with asyncio.timeout(SLOW_S):
        for _ in range(3):
            await kept.write(None)
    assert [len(one) for one in asked] == [WRITE_ROWS_MAX] * 2 and not len(kept.unwritten)
    assert len({name for one in asked for name in one}) == lines
    assert kept.read({RULE.id: RULE}) == [], "its own lines are no news"
