"""HTTP handlers for tenants, which share this server and are isolated from each other. For operators."""

from __future__ import annotations

import heapq

import msgspec

from backend_store.client import timestamp
from backend_store.client.metadata import Tenant
from backend_store.model import FieldError, Forbidden, InvalidRequest, NotFound, Quotas
from gateway.api import dashboards
from gateway.api.conditions import changed_meanwhile, check_conditions, condition_met, etag_of
from gateway.api.http import Answer, Call, integer, json_answer
from gateway.api.queues import decode_cursor, encode_cursor, link_to_next
from gateway.api.shapes.bodies import TenantBody, TenantPage, TenantView
from gateway.api.validate import check_name
from gateway.context import Gateway
from gateway.identity.authorization import may_administer
from gateway.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX, QUOTA_MAX


async def put(gateway: Gateway, call: Call) -> Answer:
    _require_operator(call)
    name = call.params[0]
    check_name(name, what="tenant")
    wanted: TenantBody = await call.fields(TenantBody)
    if wanted.quotas is not None:
        _check_quotas(wanted.quotas)
    known = _known(gateway, call, name)
    with condition_met(call, _named(name)):
        tenant, created = await gateway.store.metadata.put_tenant(
            name, gateway.clock_ms(), wanted.quotas, instead_of=known
        )
    # Not looked up again: a look-up that must ask runs the handler again, and the tenant would not be new any more.
    return _shown(tenant, 201 if created else 200)


def _known(gateway: Gateway, call: Call, name: str) -> Tenant | None:
    """The tenant whose `ETag` the request names; None for a request without conditions. Raises the problem
    `precondition-failed`."""
    if call.header(b"if-match") is None and call.header(b"if-none-match") is None:
        return None
    known = gateway.store.metadata.tenants.get(name)
    if known is not None:
        check_conditions(call, etag_of(known), _named(name))
    elif call.header(b"if-match") is not None:
        raise changed_meanwhile(_named(name))
    return known


def _named(name: str) -> str:
    return f"tenant {name!r}"


def _check_quotas(quotas: Quotas) -> None:
    errors = [
        FieldError(f"/quotas/{name}", f"{name} must be between 1 and {QUOTA_MAX}, or null for no limit, not {value}")
        for name, value in msgspec.structs.asdict(quotas).items()
        if value is not None and not 1 <= value <= QUOTA_MAX
    ]
    if errors:
        raise InvalidRequest(errors[0].detail, errors=tuple(errors))


async def get(gateway: Gateway, call: Call) -> Answer:
    return _shown(gateway.store.metadata.tenants[_visible(gateway, call)])


async def list_tenants(gateway: Gateway, call: Call) -> Answer:
    _require_operator(call)
    query = call.query("limit", "cursor")
    limit = integer(query, "limit", PAGE_ITEMS_DEFAULT, low=1, high=PAGE_ITEMS_MAX)
    assert limit is not None
    after = decode_cursor(query.get("cursor"))
    names = heapq.nsmallest(limit + 1, (name for name in gateway.store.metadata.tenants if name > after))
    following = encode_cursor(names[limit - 1]) if len(names) > limit else None
    page = TenantPage([_view(gateway.store.metadata.tenants[name]) for name in names[:limit]], following)
    return json_answer(page, headers=link_to_next("/v1/tenants", limit, following))


async def delete(gateway: Gateway, call: Call) -> Answer:
    name = _visible(gateway, call)
    await gateway.store.metadata.delete_tenant(name)
    gateway.keyring.forget_tenant(name)
    await gateway.watching.forget_tenant(name)
    await dashboards.forget_tenant(gateway.store.documents, name)
    return Answer(204, content_type=None)


def _shown(tenant: Tenant, status: int = 200) -> Answer:
    return json_answer(_view(tenant), status, ((b"etag", etag_of(tenant).encode()),))


def _view(tenant: Tenant) -> TenantView:
    return TenantView(tenant.name, timestamp(tenant.created_at_ms), tenant.quotas)


def _visible(gateway: Gateway, call: Call) -> str:
    """The named tenant, if the caller may see it: for all but operators, other tenants do not exist. Raises
    `NotFound`."""
    name, principal = call.params[0], call.principal
    known = name in gateway.store.metadata.tenants
    if not known or (name != principal.tenant and not may_administer(principal.access, "tenants")):
        raise NotFound(f"unknown tenant {name[:100]!r}")
    _require_operator(call)
    call.query()
    return name


def _require_operator(call: Call) -> None:
    if not may_administer(call.principal.access, "tenants"):
        raise Forbidden(f"tenants need the scope operator, which the key {call.principal.name!r} lacks")
