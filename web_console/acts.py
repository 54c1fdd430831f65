"""The console's forms: each sends one request to the API, and says what the next page reports about it."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote

import msgspec

from web_console import alert_acts, cluster_acts, queue_acts
from web_console.forms import Done, Form, duration, given, number, typed, version, whole, wrong
from web_console.pages import dashboards
from web_console.pages.access import QUOTAS
from web_console.visit import Problem, Visit, page_path, queue_path
from web_console.wording import counted


def _headers(text: str) -> dict[str, str]:
    headers = {}
    for line in text.splitlines():
        if line.strip():
            name, colon, value = line.partition(":")
            if not colon:
                raise wrong(f"{line[:50]!r} is not a header; write one per line, as name: value", "headers")
            headers[name.strip()] = value.strip()
    return headers


async def publish(visit: Visit, form: Form) -> Done:
    name, text = form.get("queue", ""), form.get("body", "").replace("\r\n", "\n")
    message: dict[str, Any] = {**given(form, "key"), "headers": _headers(form.get("headers", ""))}
    if form.get("message_id"):
        message["id"] = form["message_id"].strip()
    for field in ("delay_ms", "ttl_ms", "priority"):
        if (value := whole(form, field)) is not None:
            message[field] = value
    message |= _body(text, form.get("as", "json"))
    answer = (await visit.ask("POST", queue_path(name, "messages"), {"messages": [message]})).json()
    placed = answer["messages"][0]
    if placed.get("error"):
        error = placed["error"]
        raise Problem(error.get("status", 400), error.get("title", "Refused"), error["code"], error.get("detail", ""))
    return Done(f"Published {placed['id']}", f"{page_path('queues', name, 'publish')}?sent={quote(placed['id'])}")


def _body(text: str, form: str) -> dict[str, Any]:
    if form == "text":
        return {"body_base64": base64.b64encode(text.encode()).decode(), "content_type": "text/plain; charset=utf-8"}
    try:
        return {"body": msgspec.json.decode(text.encode())}
    except msgspec.DecodeError as error:
        raise wrong(f"the body is not valid JSON ({error}); correct it, or send it as text", "body") from None


async def redrive(visit: Visit, form: Form) -> Done:
    name = form.get("queue", "")
    body: dict[str, Any] = given(form, "to")
    wanted: dict[str, Any] = given(form, "reason", "older_than")
    if form.get("ids", "").strip():
        wanted["ids"] = form["ids"].split()
    if wanted:
        body["filter"] = wanted
    if (rate := number(form, "rate_per_s")) is not None:
        body["rate_per_s"] = rate
    if form.get("how") == "count":
        total = (await visit.ask("POST", queue_path(name, "redrives"), {**body, "dry_run": True})).json()["total"]
        return Done(f"It would move {counted(total, 'message')}; nothing was moved")
    typed(form, name)
    job = (await visit.ask("POST", queue_path(name, "redrives"), body)).json()
    return Done(f"Redrive {job['id']} of {counted(job['total'], 'message')} started")


async def cancel_redrive(visit: Visit, form: Form) -> Done:
    await visit.ask("DELETE", queue_path(form.get("queue", ""), "redrives", form.get("item", "")))
    return Done("Redrive stopped; messages already moved are not moved back")


async def disconnect(visit: Visit, form: Form) -> Done:
    await visit.ask("DELETE", f"/v1/connections/{form.get('item', '')}")
    return Done(f"Connection {form.get('item', '')} was ended")


async def make_key(visit: Visit, form: Form) -> Done:
    body: dict[str, Any] = {**given(form, "name", "tenant", "expires_at"), "scopes": form.get("scopes", "").split()}
    made = (await visit.ask("POST", "/v1/keys", body)).json()
    return Done(f"The key {made['name']}", secret=made["key"])


async def rotate_key(visit: Visit, form: Form) -> Done:
    body = {"grace_ms": duration(form, "grace_ms") or 0}
    made = (await visit.ask("POST", f"/v1/keys/{form.get('item', '')}/rotate", body)).json()
    return Done(f"The new secret of {made['name']}", secret=made["key"])


async def revoke_key(visit: Visit, form: Form) -> Done:
    typed(form, form.get("item", ""))
    await visit.ask("DELETE", f"/v1/keys/{form.get('item', '')}")
    return Done("The key was revoked")


async def make_tenant(visit: Visit, form: Form) -> Done:
    name = form.get("name", "").strip()
    if "/" in name or not name:
        raise wrong("a tenant name must have 1 to 128 characters from A-Z a-z 0-9 _ . -", "name")
    if await visit.maybe(f"/v1/tenants/{name}") is not None:
        raise wrong(f"there is a tenant {name!r} already; select its name in the table to edit its quotas", "name")
    await visit.ask("PUT", f"/v1/tenants/{name}", {"quotas": _quotas(form)})
    return Done(f"Tenant {name} created")


async def change_tenant(visit: Visit, form: Form) -> Done:
    """All its quotas: the form shows each as it is. Fails if the tenant was changed since."""
    name, known = form.get("item", ""), version(form)
    await visit.ask("PUT", f"/v1/tenants/{name}", {"quotas": _quotas(form)}, headers=known)
    return Done(f"Quotas of {name} updated", "/console/tenants")


def _quotas(form: Form) -> dict[str, int]:
    return {quota: value for quota in QUOTAS if (value := whole(form, quota)) is not None}


async def save_dashboard(visit: Visit, form: Form) -> Done:
    name, tenant = form.get("name", "").strip(), visit.caller.tenant
    queues = dashboards.checked(name, form.get("queues", ""), visit.server.dashboards(tenant))
    missing = [queue for queue in queues if queue not in {row.name for row in await visit.queues()}]
    if missing:
        raise wrong(f"there is no queue {missing[0][:100]!r}", "queues")
    await visit.server.save_dashboard(tenant, name, queues)
    return Done(f"Dashboard {name} saved", page_path("dashboards", name))


async def remove_dashboard(visit: Visit, form: Form) -> Done:
    await visit.server.save_dashboard(visit.caller.tenant, form.get("item", ""), None)
    return Done("The dashboard was removed")


Act = Callable[[Visit, Form], Awaitable[Done]]

ACTS: Final[dict[str, Act]] = {
    "publish": publish,
    "create queue": queue_acts.create_queue,
    "change queue": queue_acts.change_queue,
    "delete queue": queue_acts.delete_queue,
    "purge": queue_acts.purge,
    "redrive": redrive,
    "cancel redrive": cancel_redrive,
    "disconnect": disconnect,
    "make key": make_key,
    "rotate key": rotate_key,
    "revoke key": revoke_key,
    "make tenant": make_tenant,
    "change tenant": change_tenant,
    "make rule": alert_acts.make_rule,
    "change rule": alert_acts.change_rule,
    "switch rule": alert_acts.switch_rule,
    "test rule": alert_acts.test_rule,
    "delete rule": alert_acts.delete_rule,
    "make receiver": alert_acts.make_receiver,
    "change receiver": alert_acts.change_receiver,
    "test receiver": alert_acts.test_receiver,
    "delete receiver": alert_acts.delete_receiver,
    "silence": alert_acts.silence,
    "end silence": alert_acts.end_silence,
    "drain": cluster_acts.drain,
    "end drain": cluster_acts.end_drain,
    "remove": cluster_acts.remove,
    "end removal": cluster_acts.end_removal,
    "rebalance": cluster_acts.rebalance,
    "save dashboard": save_dashboard,
    "remove dashboard": remove_dashboard,
}
