"""HTTP handlers for receivers of alerts: webhooks, each with a secret that is shown once, and the server's log."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec

from backend_store.client import timestamp
from backend_store.model import FieldError, InvalidRequest
from gateway.alerts.alerts import new_id
from gateway.alerts.core.addresses import refused
from gateway.alerts.core.rules import Rule
from gateway.alerts.core.signing import secret_text
from gateway.alerts.limits import URL_CHARS_MAX
from gateway.alerts.notifier import Heard
from gateway.alerts.stored import Receiver
from gateway.alerts.views import NewReceiverView, ReceiverView, receiver_fields
from gateway.api.alert_rules import sample_view
from gateway.api.conditions import check_conditions, condition_met, etag_of
from gateway.api.http import Answer, Call, Header, json_answer
from gateway.api.paging import page_of
from gateway.api.shapes.alerts import ReceiverBody, ReceiverPage, TestView
from gateway.api.usage import visible_tenant
from gateway.context import Gateway
from gateway.limits import NAME_CHARS_MAX


async def create(gateway: Gateway, call: Call) -> Answer:
    tenant = visible_tenant(gateway, call, None)
    given: ReceiverBody = await call.fields(ReceiverBody)
    _check(gateway, given)
    receiver_id, secret, master, sealed = new_id("receiver"), None, "", b""
    if given.type == "webhook":
        secret, master, sealed = await gateway.watching.secrets.sealed(receiver_id)
    receiver = Receiver(
        receiver_id, tenant, given.name, given.type, given.url or "", master, sealed, gateway.clock_ms()
    )
    await gateway.watching.alerts.put_receiver(receiver, None)
    view = NewReceiverView(**_fields(gateway, receiver), secret=secret_text(secret) if secret is not None else None)
    return json_answer(
        view, 201, (_etag_header(receiver), (b"location", f"/v1/alert-receivers/{receiver_id}".encode()))
    )


async def list_receivers(gateway: Gateway, call: Call) -> Answer:
    query = call.query("tenant", "limit", "cursor")
    tenant = visible_tenant(gateway, call, query.get("tenant"))
    own = [one for one in gateway.watching.alerts.receivers.values() if one.tenant == tenant]
    found, following, headers = page_of(query, own, lambda one: f"{one.name}/{one.id}", "/v1/alert-receivers")
    return json_answer(ReceiverPage([_view(gateway, one) for one in found], following), headers=headers)


async def get(gateway: Gateway, call: Call) -> Answer:
    receiver = _find(gateway, call)
    call.query()
    return _shown(gateway, receiver)


async def put(gateway: Gateway, call: Call) -> Answer:
    """Changes name or address; the secret and the type stay."""
    receiver = _find(gateway, call)
    check_conditions(call, etag(receiver), _named(receiver))
    given: ReceiverBody = await call.fields(ReceiverBody)
    _check(gateway, given)
    if given.type != receiver.type:
        raise _invalid("/type", "type cannot be changed; create another receiver")
    changed = msgspec.structs.replace(receiver, name=given.name, url=given.url or "")
    with condition_met(call, _named(receiver)):
        await gateway.watching.alerts.put_receiver(changed, receiver)
    return _shown(gateway, changed)


async def delete(gateway: Gateway, call: Call) -> Answer:
    receiver = _find(gateway, call)
    call.query()
    check_conditions(call, etag(receiver), _named(receiver))
    await gateway.watching.alerts.delete_receiver(receiver, is_as_known=call.header(b"if-match") is not None)
    gateway.watching.notifier.forget(receiver.id)
    return Answer(204, content_type=None)


async def test(gateway: Gateway, call: Call) -> Answer:
    """Sends one message marked as a test, and returns its outcome."""
    receiver = _find(gateway, call)
    call.query()
    now_ms = gateway.clock_ms()
    rule = Rule(
        "test",
        receiver.tenant,
        "test",
        "depth",
        "*",
        0,
        0,
        0,
        0,
        0,
        "info",
        (),
        True,
        "",
        None,
        None,
        now_ms,
        "",
        now_ms,
    )
    outcome = await gateway.watching.notifier.test(receiver, sample_view(rule, now_ms))
    return json_answer(TestView(receiver.id, outcome.ok, outcome.status, outcome.error, outcome.ms))


def _find(gateway: Gateway, call: Call) -> Receiver:
    tenant = visible_tenant(gateway, call, None)
    return gateway.watching.alerts.receiver(tenant, call.params[0])


def _fields(gateway: Gateway, receiver: Receiver) -> dict[str, Any]:
    heard = gateway.watching.notifier.heard.get(receiver.id, Heard())
    return {
        **receiver_fields(receiver),
        "last_at": timestamp(heard.at_ms) if heard.at_ms is not None else None,
        "last_status": heard.status,
        "last_error": heard.error,
        "delivered": heard.delivered,
        "failed": heard.failed,
    }


def etag(receiver: Receiver) -> str:
    """The ETag of what may be changed: independent of deliveries, and of the master key that sealed the secret."""
    return etag_of(msgspec.structs.replace(receiver, master="", sealed=b""))


def _etag_header(receiver: Receiver) -> Header:
    return b"etag", etag(receiver).encode()


def _shown(gateway: Gateway, receiver: Receiver) -> Answer:
    return json_answer(_view(gateway, receiver), headers=(_etag_header(receiver),))


def _named(receiver: Receiver) -> str:
    return f"receiver {receiver.name!r}"


def _view(gateway: Gateway, receiver: Receiver) -> ReceiverView:
    return ReceiverView(**_fields(gateway, receiver))


def _check(gateway: Gateway, given: ReceiverBody) -> None:
    if not 1 <= len(given.name) <= NAME_CHARS_MAX:
        raise _invalid("/name", f"name must have 1 to {NAME_CHARS_MAX} characters")
    if given.type == "log":
        if given.url is not None:
            raise _invalid("/url", "a receiver of type log has no url; remove it")
        return
    wrong = wrong_url(given.url or "")
    if wrong is None:
        host = urlsplit(given.url or "").hostname or ""
        is_address = ":" in host or host.replace(".", "").isdigit()
        # A host name is checked at each delivery, because the addresses it resolves to may change.
        wrong = refused(host, gateway.watching.notifier.networks) if is_address else None
    if wrong is not None:
        raise _invalid("/url", wrong)


def wrong_url(url: str) -> str | None:
    """What is wrong with a webhook's URL, as a message; None if it is valid."""
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return "invalid url: use https://HOST[:PORT]/PATH"
    if not is_web or len(url) > URL_CHARS_MAX or not url.isascii() or not url.isprintable() or " " in url:
        return f"url must be https://HOST[:PORT]/PATH, at most {URL_CHARS_MAX} ASCII characters"
    if parts.username is not None or parts.password is not None:
        return "remove the password from url: webhooks are signed instead"
    return "remove the fragment (#…) from url" if parts.fragment else None


def _invalid(pointer: str, detail: str) -> InvalidRequest:
    return InvalidRequest(detail, errors=(FieldError(pointer, detail),))
