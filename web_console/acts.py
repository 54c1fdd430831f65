"""What a form of the console does: one request to the API each, and what the next page says about it."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from web_console.pages import dashboards
from web_console.visit import Problem, Visit, page_path, queue_path
from web_console.wording import counted

Form = dict[str, str]


class Done(NamedTuple):
    notice: str
    target: str | None = None
    """Where to go; None leads back."""
    secret: str | None = None
    """What is shown this once."""


def _wrong(detail: str) -> Problem:
    return Problem(400, "Invalid request", "invalid-request", detail)


def _whole(form: Form, name: str) -> int | None:
    text = form.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise _wrong(f"{name} is {text[:50]!r}; it is a whole number")
    return int(text)


def _number(form: Form, name: str) -> float | None:
    text = form.get(name, "").strip()
    try:
        return float(text) if text else None
    except ValueError:
        raise _wrong(f"{name} is {text[:50]!r}; it is a number") from None


def _typed(form: Form, word: str) -> None:
    """What cannot be undone asks for the name of what it is done to."""
    if form.get("typed", "").strip() != word:
        raise _wrong(f"type {word!r} to do this; nothing was done")


def _given(form: Form, *names: str) -> dict[str, str]:
    return {name: form[name].strip() for name in names if form.get(name, "").strip()}


def _headers(text: str) -> dict[str, str]:
    headers = {}
    for line in text.splitlines():
        if line.strip():
            name, colon, value = line.partition(":")
            if not colon:
                raise _wrong(f"{line[:50]!r} is no header; write one a line, as name: value")
            headers[name.strip()] = value.strip()
    return headers


async def publish(visit: Visit, form: Form) -> Done:
    name, text = form.get("queue", ""), form.get("body", "").replace("\r\n", "\n")
    message: dict[str, Any] = {**_given(form, "key"), "headers": _headers(form.get("headers", ""))}
    if form.get("message_id"):
        message["id"] = form["message_id"].strip()
    for field in ("delay_ms", "ttl_ms", "priority"):
        if (value := _whole(form, field)) is not None:
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
        raise _wrong(f"the body is no JSON ({error}); correct it, or send it as text") from None


async def create_queue(visit: Visit, form: Form) -> Done:
    name = form.get("name", "").strip()
    config = _given(form, "kind", "ordering", "delivery")
    if "/" in name or not name:
        raise _wrong("a queue's name has 1 to 128 of A-Z a-z 0-9 _ . -")
    await visit.ask("PUT", queue_path(name), config)
    return Done(f"Queue {name} is there", page_path("queues", name))


async def purge(visit: Visit, form: Form) -> Done:
    name = form.get("queue", "")
    _typed(form, name)
    job = (await visit.ask("POST", queue_path(name, "purge"), {"confirm": name})).json()
    return Done(f"Purged {counted(job['total'], 'message')} of {name}")


async def redrive(visit: Visit, form: Form) -> Done:
    name = form.get("queue", "")
    body: dict[str, Any] = _given(form, "to")
    wanted: dict[str, Any] = _given(form, "reason", "older_than")
    if form.get("ids", "").strip():
        wanted["ids"] = form["ids"].split()
    if wanted:
        body["filter"] = wanted
    if (rate := _number(form, "rate_per_s")) is not None:
        body["rate_per_s"] = rate
    if form.get("how") == "count":
        total = (await visit.ask("POST", queue_path(name, "redrives"), {**body, "dry_run": True})).json()["total"]
        return Done(f"It would move {counted(total, 'message')}; nothing was moved")
    _typed(form, name)
    job = (await visit.ask("POST", queue_path(name, "redrives"), body)).json()
    return Done(f"Redrive {job['id']} of {counted(job['total'], 'message')} has begun")


async def cancel_redrive(visit: Visit, form: Form) -> Done:
    await visit.ask("DELETE", queue_path(form.get("queue", ""), "redrives", form.get("item", "")))
    return Done("The redrive was stopped; what was moved stays moved")


async def disconnect(visit: Visit, form: Form) -> Done:
    await visit.ask("DELETE", f"/v1/connections/{form.get('item', '')}")
    return Done(f"Connection {form.get('item', '')} was ended")


async def make_key(visit: Visit, form: Form) -> Done:
    body: dict[str, Any] = {**_given(form, "name", "tenant", "expires_at"), "scopes": form.get("scopes", "").split()}
    made = (await visit.ask("POST", "/v1/keys", body)).json()
    return Done(f"The key {made['name']}", secret=made["key"])


async def rotate_key(visit: Visit, form: Form) -> Done:
    body = {"grace_ms": _whole(form, "grace_ms") or 0}
    made = (await visit.ask("POST", f"/v1/keys/{form.get('item', '')}/rotate", body)).json()
    return Done(f"The new secret of {made['name']}", secret=made["key"])


async def revoke_key(visit: Visit, form: Form) -> Done:
    _typed(form, form.get("item", ""))
    await visit.ask("DELETE", f"/v1/keys/{form.get('item', '')}")
    return Done("The key was revoked")


async def make_tenant(visit: Visit, form: Form) -> Done:
    name = form.get("name", "").strip()
    quotas = {quota: value for quota in QUOTAS if (value := _whole(form, quota)) is not None}
    await visit.ask("PUT", f"/v1/tenants/{name}", {"quotas": quotas} if quotas else {})
    return Done(f"Tenant {name} is there")


QUOTAS: Final = (
    "requests_per_s", "publish_messages_per_s", "publish_bytes_per_s", "connections", "subscriptions", "queues",
    "stored_bytes",
)  # fmt: skip


async def make_rule(visit: Visit, form: Form) -> Done:
    body: dict[str, Any] = _given(form, "name", "kind", "queue", "severity", "note")
    for field in ("limit", "clear_at", "objective", "latency_ms"):
        if (value := _number(form, field)) is not None:
            body[field] = value
    for field in ("for_ms", "window_ms"):
        if (whole := _whole(form, field)) is not None:
            body[field] = whole
    await visit.ask("POST", "/v1/alert-rules", body)
    return Done(f"Rule {body.get('name', '')} watches from now on")


async def delete_rule(visit: Visit, form: Form) -> Done:
    await visit.ask("DELETE", f"/v1/alert-rules/{form.get('item', '')}")
    return Done("The rule was deleted")


async def silence(visit: Visit, form: Form) -> Done:
    body: dict[str, Any] = _given(form, "rule", "queue", "severity", "reason")
    body["duration_ms"] = (_whole(form, "minutes") or 60) * 60_000
    if form.get("how") == "preview":
        told = (await visit.ask("POST", "/v1/silences/preview", body)).json()
        return Done(
            f"It would mute {counted(told['mutes'], 'alert that fires', 'alerts that fire')} now; nothing was silenced"
        )
    made = (await visit.ask("POST", "/v1/silences", body)).json()
    return Done(f"Silenced until {made['ends_at']}; it mutes {counted(made['mutes'], 'alert')} now")


async def end_silence(visit: Visit, form: Form) -> Done:
    await visit.ask("DELETE", f"/v1/silences/{form.get('item', '')}")
    return Done("The silence has ended")


async def save_dashboard(visit: Visit, form: Form) -> Done:
    name, tenant = form.get("name", "").strip(), visit.caller.tenant
    queues = dashboards.checked(name, form.get("queues", ""), visit.server.dashboards(tenant))
    missing = [queue for queue in queues if queue not in {row.name for row in await visit.queues()}]
    if missing:
        raise _wrong(f"there is no queue {missing[0][:100]!r}")
    await visit.server.save_dashboard(tenant, name, queues)
    return Done(f"Dashboard {name} is saved", page_path("dashboards", name))


async def remove_dashboard(visit: Visit, form: Form) -> Done:
    await visit.server.save_dashboard(visit.caller.tenant, form.get("item", ""), None)
    return Done("The dashboard was removed")


Act = Callable[[Visit, Form], Awaitable[Done]]

ACTS: Final[dict[str, Act]] = {
    "publish": publish,
    "create queue": create_queue,
    "purge": purge,
    "redrive": redrive,
    "cancel redrive": cancel_redrive,
    "disconnect": disconnect,
    "make key": make_key,
    "rotate key": rotate_key,
    "revoke key": revoke_key,
    "make tenant": make_tenant,
    "make rule": make_rule,
    "delete rule": delete_rule,
    "silence": silence,
    "end silence": end_silence,
    "save dashboard": save_dashboard,
    "remove dashboard": remove_dashboard,
}
