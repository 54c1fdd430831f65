"""HTTP handler for the audit log, newest first. A tenant sees the acts of its own keys, an operator sees all."""

from __future__ import annotations

from typing import Final

import msgspec
import structlog

from backend_store.client import AuditEntry
from gateway.api.http import Answer, Call, integer, json_answer
from gateway.api.queues import decode_cursor, encode_cursor, link_to_next
from gateway.api.shapes.usage import AuditPage
from gateway.api.usage import visible_tenant
from gateway.context import Gateway
from gateway.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX, USAGE_AUDIT_LOOKS_MAX
from gateway.usage.schema import AuditRow
from push.operations.checks import field as invalid_field

log = structlog.get_logger("pushq.audit")

FILTERS: Final = ("tenant", "limit", "cursor")
ROWS_PER_READ: Final = 256
_decode: Final = msgspec.json.Decoder(AuditRow).decode


async def acts(gateway: Gateway, call: Call) -> Answer:
    query = call.query(*FILTERS)
    named = query.get("tenant")
    tenant: str | None = visible_tenant(gateway, call, named)
    if named is None and call.principal.access.is_operator:
        tenant = None
    limit = integer(query, "limit", PAGE_ITEMS_DEFAULT, low=1, high=PAGE_ITEMS_MAX)
    assert limit is not None
    found, place, unreadable = _look(gateway, tenant, _place(query.get("cursor")), limit)
    following = encode_cursor(str(place)) if place is not None else None
    kept = {"tenant": named} if named is not None else {}
    return json_answer(
        AuditPage(found, following, unreadable), headers=link_to_next("/v1/audit", limit, following, **kept)
    )


def _place(cursor: str | None) -> int | None:
    text = decode_cursor(cursor)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise invalid_field("/query/cursor", "invalid cursor: pass `next` unchanged")
    return int(text)


def _look(
    gateway: Gateway, tenant: str | None, place: int | None, limit: int
) -> tuple[list[AuditRow], int | None, int]:
    """(up to `limit` acts before `place`, the place to continue from or None at the end, unreadable rows)."""
    found: list[AuditRow] = []
    unreadable = 0
    for _ in range(-(-USAGE_AUDIT_LOOKS_MAX // ROWS_PER_READ)):
        entries = gateway.store.audit.before(place, ROWS_PER_READ)
        for entry in entries:
            if (row := _row(entry)) is None:
                unreadable += 1
            elif tenant is None or row.tenant == tenant:
                if len(found) == limit:
                    return found, place, unreadable
                found.append(row)
            place = entry.seq
        if len(entries) < ROWS_PER_READ:
            return found, None, unreadable
    return found, place, unreadable


def _row(entry: AuditEntry) -> AuditRow | None:
    """The decoded row; None if it is unreadable: the store has reported it, or a newer version wrote it."""
    try:
        return _decode(entry.data) if entry.data else None
    except msgspec.MsgspecError as error:
        log.error("an audit row has an unknown kind", seq=entry.seq, error=str(error))
        return None
