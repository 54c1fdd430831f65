"""HTTP handlers for API keys: create, list, rotate, revoke. For administrators; other tenants for operators only."""

from __future__ import annotations

import heapq

from backend_store.client import timestamp
from backend_store.model import OPERATOR, ApiKey, Forbidden, NotFound
from gateway.api.http import Answer, Call, integer, json_answer
from gateway.api.queues import decode_cursor, encode_cursor, link_to_next
from gateway.api.shapes.bodies import KeyBody, KeyPage, KeyView, NewKeyView, RotateBody
from gateway.api.validate import time_ms
from gateway.context import Gateway
from gateway.identity.authentication import NewKey
from gateway.identity.authorization import check_scopes, may_administer
from gateway.limits import NAME_CHARS_MAX, PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX, ROTATE_GRACE_MS_MAX
from push.operations.checks import field as invalid_field


def _time(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else timestamp(milliseconds)


def view(gateway: Gateway, key: ApiKey) -> KeyView:
    used = _time(gateway.keyring.last_used_ms(key.id))
    created, expires = timestamp(key.created_at_ms), _time(key.expires_at_ms)
    return KeyView(key.id, key.name, key.tenant, key.scopes, created, expires, used)


def _view_new(made: NewKey) -> NewKeyView:
    key = made.stored
    return NewKeyView(
        key.id, key.name, key.tenant, key.scopes, timestamp(key.created_at_ms), _time(key.expires_at_ms), key=made.token
    )


async def create(gateway: Gateway, call: Call) -> Answer:
    _require_admin(call)
    wanted: KeyBody = await call.fields(KeyBody)
    tenant = call.principal.tenant if wanted.tenant is None else wanted.tenant
    if not may_administer(call.principal.access, "keys", is_own_tenant=tenant == call.principal.tenant):
        raise Forbidden("creating a key for another tenant needs the scope operator")
    if OPERATOR in wanted.scopes and not may_administer(call.principal.access, "operators' keys"):
        raise Forbidden("only an operator can create a key with the scope operator")
    if not 1 <= len(wanted.name) <= NAME_CHARS_MAX:
        raise invalid_field("/name", f"name must have 1 to {NAME_CHARS_MAX} characters, not {len(wanted.name)}")
    scopes = check_scopes(wanted.scopes)
    if tenant not in gateway.store.metadata.tenants:
        raise NotFound(f"unknown tenant {tenant[:NAME_CHARS_MAX]!r}")
    expires_at_ms = _expiry(gateway, call, wanted.expires_at)
    made = await gateway.keyring.create(name=wanted.name, tenant=tenant, scopes=scopes, expires_at_ms=expires_at_ms)
    return json_answer(_view_new(made), 201, ((b"location", f"/v1/keys/{made.stored.id}".encode()), _NO_STORE))


_NO_STORE = (b"cache-control", b"no-store")


def _expiry(gateway: Gateway, call: Call, text: str | None) -> int | None:
    """When the new key expires: by default as late as allowed, which is never, unless the caller's credential
    expires."""
    latest_ms = _latest_ms(gateway, call)
    if text is None:
        return latest_ms
    expires_at_ms = time_ms(text, pointer="/expires_at")
    if expires_at_ms <= gateway.clock_ms():
        raise invalid_field("/expires_at", f"expires_at is in the past: {text}")
    if latest_ms is not None and expires_at_ms > latest_ms:
        detail = f"expires_at must not be later than {timestamp(latest_ms)}, the limit for {_whose(call)}; it is {text}"
        raise invalid_field("/expires_at", detail)
    return expires_at_ms


def _latest_ms(gateway: Gateway, call: Call) -> int | None:
    latest_ms = gateway.keyring.keys_until_ms(call.principal)
    if latest_ms is not None and latest_ms <= gateway.clock_ms():
        raise Forbidden("tokens cannot create or rotate keys here: auth.jwt.key_days_max is 0")
    return latest_ms


def _whose(call: Call) -> str:
    if call.principal.issuer is not None:
        return "callers with a token (auth.jwt.key_days_max)"
    return "a caller whose own key expires then"


async def list_keys(gateway: Gateway, call: Call) -> Answer:
    """The keys of the caller's tenant; of all tenants for an operator."""
    _require_admin(call)
    query = call.query("limit", "cursor")
    limit = integer(query, "limit", PAGE_ITEMS_DEFAULT, low=1, high=PAGE_ITEMS_MAX)
    assert limit is not None
    after = decode_cursor(query.get("cursor"))
    visible = (key for key in gateway.keyring.stored() if key.id > after and _reaches(call, key))
    keys = heapq.nsmallest(limit + 1, visible, key=lambda key: key.id)
    following = encode_cursor(keys[limit - 1].id) if len(keys) > limit else None
    page = KeyPage([view(gateway, key) for key in keys[:limit]], following)
    return json_answer(page, headers=link_to_next("/v1/keys", limit, following))


async def get(gateway: Gateway, call: Call) -> Answer:
    _require_admin(call)
    return json_answer(view(gateway, _find(gateway, call)))


async def rotate(gateway: Gateway, call: Call) -> Answer:
    _require_admin(call)
    key = _find(gateway, call)
    _require_rank(call, key)
    _require_end(gateway, call, key)
    wanted: RotateBody = await call.fields(RotateBody)
    if not 0 <= wanted.grace_ms <= ROTATE_GRACE_MS_MAX:
        raise invalid_field("/grace_ms", f"grace_ms must be between 0 and {ROTATE_GRACE_MS_MAX}, not {wanted.grace_ms}")
    made = await gateway.keyring.rotate(key, grace_ms=wanted.grace_ms)
    await gateway.begun.end_withdrawn()
    return json_answer(_view_new(made), headers=(_NO_STORE,))


async def revoke(gateway: Gateway, call: Call) -> Answer:
    _require_admin(call)
    key = _find(gateway, call)
    _require_rank(call, key)
    await gateway.keyring.revoke(key.id)
    await gateway.begun.end_withdrawn()
    return Answer(204, content_type=None)


def _require_admin(call: Call) -> None:
    if not may_administer(call.principal.access, "keys"):
        raise Forbidden(f"keys need the scope admin, which the key {call.principal.name!r} lacks")


def _require_rank(call: Call, key: ApiKey) -> None:
    """Raises `Forbidden` if an administrator would change an operator's key: rotation reveals the new secret."""
    if OPERATOR in key.scopes and not may_administer(call.principal.access, "operators' keys"):
        raise Forbidden("only an operator can change an operator's key")


def _require_end(gateway: Gateway, call: Call, key: ApiKey) -> None:
    """Raises `Forbidden` if the key lasts longer than one that the caller may create: rotation reveals the new
    secret."""
    latest_ms = _latest_ms(gateway, call)
    if latest_ms is not None and (key.expires_at_ms is None or key.expires_at_ms > latest_ms):
        end = "never expires" if key.expires_at_ms is None else f"expires at {timestamp(key.expires_at_ms)}"
        raise Forbidden(
            f"the key {end}, but {timestamp(latest_ms)} is the limit for {_whose(call)}; create another key, or "
            "rotate this one with a key that lasts as long"
        )


def _reaches(call: Call, key: ApiKey) -> bool:
    return may_administer(call.principal.access, "keys", is_own_tenant=key.tenant == call.principal.tenant)


def _find(gateway: Gateway, call: Call) -> ApiKey:
    key_id = call.params[0]
    key = gateway.store.metadata.keys.get(key_id)
    if key is None or not _reaches(call, key):
        raise NotFound(f"unknown key {key_id[:NAME_CHARS_MAX]!r}")
    call.query()
    return key
