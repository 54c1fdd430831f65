"""HTTP handlers for silences: until a given time, and for a stated reason, matching alerts are not sent to
receivers."""

from __future__ import annotations

import asyncio
import re

import msgspec

from backend_store.model import FieldError, InvalidRequest
from gateway.alerts.alerts import RULE_IDS, new_id
from gateway.alerts.core.silences import Silence, state_of
from gateway.alerts.limits import PREVIEW_SUBJECTS_MAX, SILENCE_MS_MAX, TEXT_CHARS_MAX
from gateway.alerts.views import SilenceView, alert_view, muted, silence_view
from gateway.api.conditions import check_conditions, condition_met, etag_of
from gateway.api.http import Answer, Call, Header, json_answer
from gateway.api.paging import page_of
from gateway.api.shapes.alerts import PATTERN_RULE, SilenceBody, SilencePage, SilencePreview
from gateway.api.usage import visible_tenant
from gateway.api.validate import time_ms
from gateway.context import Gateway
from gateway.limits import NAME_CHARS_MAX

_LATE_MS = 1 << 53


async def create(gateway: Gateway, call: Call) -> Answer:
    tenant = visible_tenant(gateway, call, None)
    silence = _silence(gateway, call, tenant, await call.fields(SilenceBody))
    alerts = gateway.watching.alerts
    await alerts.put_silence(silence, None)
    location = (b"location", f"/v1/silences/{silence.id}".encode())
    return json_answer(silence_view(alerts, silence), 201, (_etag_header(silence), location))


async def preview(gateway: Gateway, call: Call) -> Answer:
    """The current alerts that a silence would mute."""
    tenant = visible_tenant(gateway, call, None)
    silence = _silence(gateway, call, tenant, await call.fields(SilenceBody))
    alerts = gateway.watching.alerts
    found = muted(alerts, silence)
    return json_answer(SilencePreview(len(found), [alert_view(alerts, *pair) for pair in found[:PREVIEW_SUBJECTS_MAX]]))


async def list_silences(gateway: Gateway, call: Call) -> Answer:
    """A page of silences; the one that ends last comes first."""
    query = call.query("tenant", "limit", "cursor")
    tenant = visible_tenant(gateway, call, query.get("tenant"))
    alerts = gateway.watching.alerts
    own = [one for one in alerts.silences.values() if one.tenant == tenant]
    found, following, headers = page_of(
        query, own, lambda one: f"{_LATE_MS - one.ends_at_ms:017d}/{one.id}", "/v1/silences"
    )
    views: list[SilenceView] = []
    for one in found:
        views.append(silence_view(alerts, one))
        await asyncio.sleep(0)  # each view reads all alerts of the tenant: give other tasks their turn
    return json_answer(SilencePage(views, following), headers=headers)


async def get(gateway: Gateway, call: Call) -> Answer:
    silence = _find(gateway, call)
    call.query()
    return json_answer(silence_view(gateway.watching.alerts, silence), headers=(_etag_header(silence),))


async def end(gateway: Gateway, call: Call) -> Answer:
    """Ends a silence now; it stays in the list."""
    silence = _find(gateway, call)
    call.query()
    what = "the silence"
    check_conditions(call, etag_of(silence), what)
    now_ms = gateway.clock_ms()
    if state_of(silence, now_ms) != "expired":
        ended = msgspec.structs.replace(silence, starts_at_ms=min(silence.starts_at_ms, now_ms), ends_at_ms=now_ms)
        with condition_met(call, what):
            await gateway.watching.alerts.put_silence(ended, silence)
    return Answer(204, content_type=None)


def _etag_header(silence: Silence) -> Header:
    """The ETag of the stored silence; whether it has begun or is over depends on the clock and is not part of it."""
    return b"etag", etag_of(silence).encode()


def _find(gateway: Gateway, call: Call) -> Silence:
    tenant = visible_tenant(gateway, call, None)
    return gateway.watching.alerts.silence(tenant, call.params[0])


def _silence(gateway: Gateway, call: Call, tenant: str, given: SilenceBody) -> Silence:
    errors: list[FieldError] = []

    def check(is_wrong: bool, field: str, detail: str) -> None:
        if is_wrong:
            errors.append(FieldError(f"/{field}", detail))

    now_ms = gateway.clock_ms()
    starts_ms = time_ms(given.starts_at, pointer="/starts_at") if given.starts_at is not None else now_ms
    check((given.ends_at is None) == (given.duration_ms is None), "ends_at", "set either ends_at or duration_ms")
    if given.ends_at is not None:
        ends_ms = time_ms(given.ends_at, pointer="/ends_at")
    else:
        ends_ms = starts_ms + (given.duration_ms or 0)
    check(not max(now_ms, starts_ms) < ends_ms, "ends_at", "a silence must end in the future, after it starts")
    check(ends_ms > starts_ms + SILENCE_MS_MAX, "ends_at", "a silence can last at most a year")
    check(
        not 1 <= len(given.reason.strip()) <= TEXT_CHARS_MAX,
        "reason",
        f"reason must have 1 to {TEXT_CHARS_MAX} characters",
    )
    check(len(given.author or "") > NAME_CHARS_MAX, "author", f"author must have at most {NAME_CHARS_MAX} characters")
    if given.queue is not None:
        is_pattern = re.fullmatch(PATTERN_RULE, given.queue) is not None
        check(not is_pattern, "queue", "queue must be a pattern of 1 to 128 characters from A-Z a-z 0-9 _ . - and *")
    if given.rule is not None:
        rule = gateway.watching.alerts.rules.get(given.rule)
        is_there = rule is not None and rule.tenant == tenant
        check(not is_there, "rule", f"unknown alert rule {given.rule[:100]!r}; {RULE_IDS}")
    is_everything = given.rule is None and given.queue is None and given.severity is None
    check(is_everything, "queue", 'set what to silence: `rule`, `queue` ("*" for all) or `severity`')
    if errors:
        raise InvalidRequest(errors[0].detail, errors=tuple(errors))
    author = given.author or call.principal.name
    return Silence(
        new_id("silence"),
        tenant,
        given.rule,
        given.queue,
        given.severity,
        author,
        given.reason,
        starts_ms,
        ends_ms,
        now_ms,
    )
