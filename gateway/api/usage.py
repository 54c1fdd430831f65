"""HTTP handlers for a tenant's usage by queue: counted from committed records, exact as of the last commit."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final

from backend_store.client import QueueTotal, timestamp
from backend_store.model import Forbidden, NotFound
from gateway.api.http import Answer, Call, integer, json_answer
from gateway.api.queues import decode_cursor, encode_cursor, link_to_next
from gateway.api.shapes.usage import LiveUsageView, UsagePage, UsageView
from gateway.api.validate import check_name
from gateway.context import Gateway
from gateway.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX, USAGE_DAYS_PER_REQUEST_MAX
from push.operations.checks import field as invalid_field

FILTERS: Final = ("from", "to", "queue", "tenant", "limit", "cursor")
LIVE_FILTERS: Final = ("tenant",)
_EPOCH: Final = date(1970, 1, 1)


async def totals(gateway: Gateway, call: Call) -> Answer:
    """The tenant's queues by name, each with its counts of the days asked for."""
    query = call.query(*FILTERS)
    tenant = visible_tenant(gateway, call, query.get("tenant"))
    if (queue := query.get("queue")) is not None:
        check_name(queue, what="queue")
    limit = integer(query, "limit", PAGE_ITEMS_DEFAULT, low=1, high=PAGE_ITEMS_MAX)
    assert limit is not None
    first, last = _days(gateway.clock_ms(), query.get("from"), query.get("to"))
    after = decode_cursor(query.get("cursor"))
    found = await gateway.store.ledger.totals(
        first_day=(first - _EPOCH).days, last_day=(last - _EPOCH).days, tenant=tenant, queue=queue
    )
    rest = [total for total in found if _place(total) > after]
    following = encode_cursor(_place(rest[limit - 1])) if len(rest) > limit else None
    items = [_view(total) for total in rest[:limit]]
    page = UsagePage(items, following, tenant, first.isoformat(), last.isoformat(), found.unreadable)
    kept = {name: query[name] for name in ("from", "to", "queue", "tenant") if name in query}
    return json_answer(page, headers=link_to_next("/v1/usage", limit, following, **kept))


async def live(gateway: Gateway, call: Call) -> Answer:
    """A tenant's last hour by minute, as the job `live_usage` counted it from files."""
    tenant = visible_tenant(gateway, call, call.query(*LIVE_FILTERS).get("tenant"))
    if gateway.live_usage is None:
        raise NotFound("live usage is not available: usage.live_dir is not set")
    found = await gateway.live_usage.of(tenant, gateway.clock_ms())
    looked_at = None if found.looked_at_ms is None else timestamp(found.looked_at_ms)
    view = LiveUsageView(tenant, found.state, looked_at, found.last_minute, found.minutes, found.queues)
    return json_answer(view)


def visible_tenant(gateway: Gateway, call: Call, named: str | None) -> str:
    """The tenant that a request is about. For all but operators, other tenants do not exist. Raises `Forbidden`
    without the scope admin, and `NotFound`."""
    principal = call.principal
    if not principal.access.is_admin:
        raise Forbidden(f"usage and audit need the scope admin, which the key {principal.name!r} lacks")
    if named is None or named == principal.tenant:
        return principal.tenant
    if not principal.access.is_operator or named not in gateway.store.metadata.tenants:
        raise NotFound(f"unknown tenant {named[:100]!r}")
    return named


def _days(now_ms: int, from_: str | None, to: str | None) -> tuple[date, date]:
    """The first and the last day in UTC; by default the current month so far."""
    today = datetime.fromtimestamp(now_ms // 1000, UTC).date()
    last = _day("to", to) if to is not None else today
    first = _day("from", from_) if from_ is not None else last.replace(day=1)
    if first > last:
        raise invalid_field("/query/from", f"from must not be after to ({first} is after {last})")
    if last - first >= timedelta(days=USAGE_DAYS_PER_REQUEST_MAX):
        raise invalid_field(
            "/query/from", f"{first} to {last} is too long: a request covers at most {USAGE_DAYS_PER_REQUEST_MAX} days"
        )
    return first, last


def _day(name: str, text: str) -> date:
    try:
        found = date.fromisoformat(text)
        if found.isoformat() == text and found >= _EPOCH:
            return found
    except ValueError:
        pass
    raise invalid_field(f"/query/{name}", f"{name} must be a day in UTC, such as 2026-11-22, not {text[:50]!r}")


def _place(total: QueueTotal) -> str:
    return f"{total.queue}/{total.uid:020d}"


def _view(total: QueueTotal) -> UsageView:
    counts = total.counts
    kinds = {kind: count for kind, count in sorted(counts.items()) if not kind.endswith("_bytes")}
    delivered = counts.get("settled", 0) + counts.get("read", 0)
    return UsageView(
        total.queue, total.uid, counts.get("published", 0), counts.get("published_bytes", 0), delivered, kinds
    )
