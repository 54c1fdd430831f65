"""HTTP handlers for alert rules: create, change, show, try out. Rules about the process and shards are for
operators."""

from __future__ import annotations

import math
import re

import msgspec

from backend_store.client import timestamp
from backend_store.model import FieldError, Forbidden, InvalidRequest
from gateway.alerts.alerts import RECEIVER_IDS, Alerts, new_id
from gateway.alerts.core.rules import KINDS, Kind, Rule, default_clear_at
from gateway.alerts.limits import (
    FOR_MS_MAX,
    PREVIEW_SUBJECTS_MAX,
    RECEIVERS_PER_RULE_MAX,
    TEXT_CHARS_MAX,
    WINDOW_MS_MAX,
    WINDOW_MS_MIN,
)
from gateway.alerts.prometheus import rules_file
from gateway.alerts.views import AlertView, rule_view
from gateway.api.conditions import check_conditions, condition_met, etag_of
from gateway.api.http import Answer, Call, Header, json_answer
from gateway.api.paging import page_of
from gateway.api.shapes.alerts import (
    PATTERN_RULE,
    KindPage,
    KindView,
    PreviewItem,
    RuleBody,
    RulePage,
    RulePreview,
    TestPage,
    TestView,
)
from gateway.api.usage import visible_tenant
from gateway.context import Gateway
from gateway.limits import NAME_CHARS_MAX
from gateway.usage.schema import LATENCY_SECONDS_BUCKETS
from push.problems import nearest

LATENCIES_MS = tuple(round(bound * 1000) for bound in LATENCY_SECONDS_BUCKETS)


async def kinds(gateway: Gateway, call: Call) -> Answer:
    call.query()
    items = [
        KindView(
            name,
            kind.about,
            kind.unit,
            "above" if kind.is_above else "below",
            kind.meaning,
            fields_of(name, kind),
            "operator" if kind.is_for_operators else None,
        )
        for name, kind in KINDS.items()
    ]
    return json_answer(KindPage(items))


def fields_of(name: str, kind: Kind) -> list[str]:
    """Fields of rules of this kind beside those of all rules."""
    found = ["objective"] if kind.is_slo else ["limit", "clear_at"]
    if name == "slo_latency":
        found.append("latency_ms")
    if kind.has_window:
        found.append("window_ms")
    if kind.has_queues:
        found.append("queue")
    return found


async def create(gateway: Gateway, call: Call) -> Answer:
    tenant = visible_tenant(gateway, call, None)
    rule = _rule(gateway, call, tenant, await call.fields(RuleBody), None)
    alerts = gateway.watching.alerts
    await alerts.put_rule(rule, None)
    return _shown(alerts, rule, 201, ((b"location", f"/v1/alert-rules/{rule.id}".encode()),))


async def list_rules(gateway: Gateway, call: Call) -> Answer:
    query = call.query("tenant", "limit", "cursor")
    tenant = visible_tenant(gateway, call, query.get("tenant"))
    alerts = gateway.watching.alerts
    own = [rule for rule in alerts.rules.values() if rule.tenant == tenant]
    found, following, headers = page_of(query, own, lambda rule: f"{rule.name}/{rule.id}", "/v1/alert-rules")
    return json_answer(RulePage([rule_view(alerts, rule) for rule in found], following), headers=headers)


async def get(gateway: Gateway, call: Call) -> Answer:
    rule = _find(gateway, call)
    call.query()
    return _shown(gateway.watching.alerts, rule)


async def put(gateway: Gateway, call: Call) -> Answer:
    known = _find(gateway, call)
    _check_may(call, KINDS[known.kind])
    check_conditions(call, etag_of(known), _named(known))
    rule = _rule(gateway, call, known.tenant, await call.fields(RuleBody), known)
    alerts = gateway.watching.alerts
    with condition_met(call, _named(known)):
        await alerts.put_rule(rule, known)
    return _shown(alerts, rule)


async def delete(gateway: Gateway, call: Call) -> Answer:
    rule = _find(gateway, call)
    _check_may(call, KINDS[rule.kind])
    call.query()
    check_conditions(call, etag_of(rule), _named(rule))
    with condition_met(call, _named(rule)):
        await gateway.watching.alerts.delete_rule(rule, is_as_known=call.header(b"if-match") is not None)
    return Answer(204, content_type=None)


def _shown(alerts: Alerts, rule: Rule, status: int = 200, headers: tuple[Header, ...] = ()) -> Answer:
    return json_answer(rule_view(alerts, rule), status, ((b"etag", etag_of(rule).encode()), *headers))


def _named(rule: Rule) -> str:
    return f"alert rule {rule.name!r}"


async def preview(gateway: Gateway, call: Call) -> Answer:
    """The alerts that a rule would find now."""
    tenant = visible_tenant(gateway, call, None)
    rule = _rule(gateway, call, tenant, await call.fields(RuleBody), None)
    is_above = KINDS[rule.kind].is_above
    found = []
    for subject, value in gateway.watching.alerts.values(rule, gateway.clock_ms()):
        is_past = value is not None and (value > rule.limit if is_above else value < rule.limit)
        shown = None if value is None else round(value, 3)
        found.append(PreviewItem(subject, shown, "firing" if is_past else "unknown" if value is None else "quiet"))
    firing = sum(item.would == "firing" for item in found)
    found.sort(key=lambda item: (item.would != "firing", item.subject))
    return json_answer(RulePreview(len(found), firing, found[:PREVIEW_SUBJECTS_MAX]))


async def test(gateway: Gateway, call: Call) -> Answer:
    """Sends a message marked as a test to the rule's receivers."""
    rule = _find(gateway, call)
    call.query()
    watching = gateway.watching
    items = []
    for receiver_id in rule.receivers:
        outcome = await watching.notifier.test(
            watching.alerts.receiver(rule.tenant, receiver_id), sample_view(rule, gateway.clock_ms())
        )
        items.append(TestView(receiver_id, outcome.ok, outcome.status, outcome.error, outcome.ms))
    return json_answer(TestPage(items))


async def prometheus(gateway: Gateway, call: Call) -> Answer:
    """The tenant's rules as a Prometheus rules file, as far as metrics can express them."""
    query = call.query("tenant")
    tenant = visible_tenant(gateway, call, query.get("tenant"))
    own = [rule for rule in gateway.watching.alerts.rules.values() if rule.tenant == tenant]
    return Answer(200, rules_file(own).encode(), content_type=b"application/yaml")


def sample_view(rule: Rule, now_ms: int) -> AlertView:
    """A made-up alert of a rule, for tests."""
    at = timestamp(now_ms)
    return AlertView(
        "test", rule.id, rule.name, rule.kind, rule.severity, rule.tenant, "test", None, "firing", rule.limit,
        rule.limit, KINDS[rule.kind].unit, at, at, None, None, None, f"{rule.name}: this is a test, nothing is wrong",
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- checking


def _find(gateway: Gateway, call: Call) -> Rule:
    tenant = visible_tenant(gateway, call, None)
    return gateway.watching.alerts.rule(tenant, call.params[0])


def _check_may(call: Call, kind: Kind) -> None:
    if kind.is_for_operators and not call.principal.access.is_operator:
        what = {"node": "the process", "shard": "shards"}[kind.about]
        why = "they affect every tenant, so only operators may create such rules"
        raise Forbidden(f"this rule is about {what}: {why}, and {call.principal.name!r} lacks the scope operator")


_KINDS_ARE = f"; use one of {', '.join(KINDS)}"


def _rule(gateway: Gateway, call: Call, tenant: str, given: RuleBody, known: Rule | None) -> Rule:
    """The rule to store. Raises `InvalidRequest` with all errors, and `Forbidden`."""
    kind = KINDS.get(given.kind)
    if kind is None:
        raise _invalid("/kind", f"unknown kind {given.kind[:100]!r}{nearest(given.kind, KINDS) or _KINDS_ARE}")
    _check_may(call, kind)
    if kind.about == "shard" and gateway.cluster is None:
        detail = (
            f"{given.kind} is about cluster shards, but this server does not watch a cluster: set cluster.coordinator"
        )
        raise _invalid("/kind", detail)
    errors = list(_wrong(given, kind, gateway.watching.alerts, tenant))
    if errors:
        raise InvalidRequest(errors[0].detail, errors=tuple(errors))
    now_ms = gateway.clock_ms()
    limit = 1.0 if kind.is_slo else given.limit
    assert limit is not None
    return Rule(
        known.id if known is not None else new_id("rule"),
        tenant,
        given.name,
        given.kind,
        given.queue,
        limit,
        given.clear_at if given.clear_at is not None else default_clear_at(kind, limit),
        given.for_ms,
        given.keep_ms,
        given.window_ms,
        given.severity,
        tuple(dict.fromkeys(given.receivers)),
        given.enabled,
        given.note,
        given.objective,
        given.latency_ms,
        known.created_at_ms if known is not None else now_ms,
        known.created_by if known is not None else call.principal.name,
        now_ms,
    )


def _wrong(given: RuleBody, kind: Kind, alerts: Alerts, tenant: str) -> list[FieldError]:
    found: list[FieldError] = []

    def check(is_wrong: bool, field: str, detail: str) -> None:
        if is_wrong:
            found.append(FieldError(f"/{field}", detail))

    allowed = fields_of(given.kind, kind)
    defaults = {field.name: field.default for field in msgspec.structs.fields(RuleBody)}
    for name in ("limit", "clear_at", "window_ms", "queue", "objective", "latency_ms"):
        check(
            name not in allowed and getattr(given, name) != defaults[name], name, f"{given.kind} does not take {name}"
        )
    check(not 1 <= len(given.name) <= NAME_CHARS_MAX, "name", f"name must have 1 to {NAME_CHARS_MAX} characters")
    check(len(given.note) > TEXT_CHARS_MAX, "note", f"note must have at most {TEXT_CHARS_MAX} characters")
    check(
        re.fullmatch(PATTERN_RULE, given.queue) is None,
        "queue",
        "queue must be a pattern of 1 to 128 characters from A-Z a-z 0-9 _ . - and *",
    )
    for name in ("for_ms", "keep_ms"):
        value = getattr(given, name)
        check(not 0 <= value <= FOR_MS_MAX, name, f"{name} must be between 0 and {FOR_MS_MAX}, not {value}")
    is_window = WINDOW_MS_MIN <= given.window_ms <= WINDOW_MS_MAX
    check(not is_window, "window_ms", f"window_ms must be between {WINDOW_MS_MIN} and {WINDOW_MS_MAX}")
    if kind.is_slo:
        objective = given.objective
        is_fine = objective is not None and 0 < objective < 100
        check(not is_fine, "objective", "objective must be a percentage above 0 and below 100, such as 99.9")
    else:
        check(given.limit is None, "limit", f"{given.kind} needs a limit, in {kind.unit}")
        numbers = [value for value in (given.limit, given.clear_at) if value is not None]
        check(not all(map(math.isfinite, numbers)), "limit", "limit must be a finite number")
        for name in ("limit", "clear_at"):
            value = getattr(given, name)
            is_low = value is not None and value < 0 and not kind.is_signed
            check(is_low, name, f"{name} must not be negative for {given.kind}, but is {value:g}" if is_low else "")
        if given.limit is not None and given.clear_at is not None:
            is_past = given.clear_at > given.limit if kind.is_above else given.clear_at < given.limit
            side = "above" if kind.is_above else "below"
            check(is_past, "clear_at", f"clear_at must not be {side} limit, or alerts would end before they begin")
    if given.kind == "slo_latency":
        check(
            given.latency_ms not in LATENCIES_MS,
            "latency_ms",
            f"latency_ms must be one of {', '.join(map(str, LATENCIES_MS))}",
        )
    check(
        len(given.receivers) > RECEIVERS_PER_RULE_MAX,
        "receivers",
        f"receivers must have at most {RECEIVERS_PER_RULE_MAX} entries",
    )
    for number, receiver_id in enumerate(given.receivers):
        receiver = alerts.receivers.get(receiver_id)
        is_there = receiver is not None and receiver.tenant == tenant
        check(not is_there, f"receivers/{number}", f"unknown receiver {receiver_id[:100]!r}; {RECEIVER_IDS}")
    return found


def _invalid(pointer: str, detail: str) -> InvalidRequest:
    return InvalidRequest(detail, errors=(FieldError(pointer, detail),))
