"""Notifies receivers and open streams of transitions of alerts. Silenced alerts go to streams, and to no receiver."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from typing import Any

import msgspec
import structlog

from backend_store.client import timestamp
from backend_store.model import Overloaded, PushqError
from gateway.alerts.alerts import Alerts
from gateway.alerts.core.addresses import Network
from gateway.alerts.core.evaluate import Alert
from gateway.alerts.core.groups import Group
from gateway.alerts.core.rules import Rule
from gateway.alerts.core.silences import Silence
from gateway.alerts.limits import EVENTS_WAITING_MAX, LISTENERS_MAX, LISTENERS_PER_TENANT_MAX, TELLING_MS_MAX
from gateway.alerts.secrets import Secrets
from gateway.alerts.stored import Receiver, telling_id
from gateway.alerts.views import AlertView, alert_view
from gateway.alerts.webhooks import Note, Outcome, Webhooks

log = structlog.get_logger("pushq.alerts")
_encode = msgspec.json.Encoder().encode


class Heard(msgspec.Struct):
    """Outcomes of a receiver's webhooks since the process began."""

    at_ms: int | None = None
    status: int | None = None
    error: str | None = None
    delivered: int = 0
    failed: int = 0


class Listener:
    """One open stream. A stream whose reader is too slow is cut: its queue ends with None."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.waiting: asyncio.Queue[AlertView | None] = asyncio.Queue(EVENTS_WAITING_MAX + 1)
        self.is_cut = False

    def put(self, view: AlertView) -> None:
        if self.is_cut:
            return
        if self.waiting.qsize() >= EVENTS_WAITING_MAX:
            self.is_cut = True
            self.waiting.put_nowait(None)
            return
        self.waiting.put_nowait(view)


class Notifier:
    """Connects `Alerts` with its webhooks and open streams."""

    def __init__(self, alerts: Alerts, secrets_: Secrets, *, networks: Iterable[Network]) -> None:
        self.alerts = alerts
        self.secrets = secrets_
        self.networks = tuple(networks)
        self.webhooks = Webhooks(
            self._secret, self._ended, self._done, may_try=lambda: alerts.teller.is_ours, networks=self.networks
        )
        self.heard: dict[str, Heard] = {}
        self.listeners: set[Listener] = set()
        self._noting: asyncio.Task[None] | None = None
        alerts.on_seen.append(self.show)
        alerts.on_told.append(self.tell)
        alerts.on_grouped.append(lambda note: self._tell(*note))
        alerts.on_duty.append(self.resume)
        alerts.on_lost.append(self.webhooks.cut)
        alerts.on_receiver_gone.append(self.forget)

    async def _secret(self, receiver_id: str) -> bytes:
        return await self.secrets.open(self.alerts.receivers[receiver_id])

    def _ended(self, note: Note, outcome: Outcome) -> None:
        if note.receiver not in self.alerts.receivers:
            return
        heard = self.heard.setdefault(note.receiver, Heard())
        heard.at_ms, heard.status, heard.error = self.alerts.now_ms, outcome.status, outcome.error
        heard.delivered += outcome.ok
        heard.failed += not outcome.ok

    def _done(self, message_id: str) -> None:
        self.alerts.record.told(message_id)
        if self._noting is None or self._noting.done():
            self._noting = asyncio.get_running_loop().create_task(self._note_told(), name="webhooks that arrived")

    async def _note_told(self) -> None:
        while self.alerts.record.has_told:
            self.alerts.record.has_told = False
            await self.alerts.note_told()

    def show(self, rule: Rule, alert: Alert, silence: Silence | None) -> None:
        """Sends a transition to open streams, silenced or not."""
        view = alert_view(self.alerts, rule, alert)
        for listener in self.listeners:
            if listener.tenant == rule.tenant:
                listener.put(view)

    def tell(self, rule: Rule, alert: Alert, silence: Silence | None) -> None:
        if alert.state != "pending" and silence is None:
            self._tell(rule, alert, None)

    def _tell(self, rule: Rule, alert: Alert, group: Group | None) -> None:
        view = self._view(rule, alert, group)
        for receiver in self.alerts.webhooks_of(rule):
            message_id = telling_id(alert, receiver.id, group)
            self.webhooks.send(
                self._note(receiver, message_id, f"alert.{alert.state}", view, _at_ms(alert), group=group)
            )
        for receiver_id in rule.receivers:
            receiver_ = self.alerts.receivers.get(receiver_id)
            if receiver_ is not None and receiver_.tenant == rule.tenant and receiver_.type != "webhook":
                log.warning(f"alert {alert.state}", receiver=receiver_.name, detail=view.detail, subject=view.subject)

    def _view(self, rule: Rule, alert: Alert, group: Group | None) -> AlertView:
        view = alert_view(self.alerts, rule, alert)
        if group is not None:
            view.detail += f", and {group.alerts - 1} more"
        return view

    def resume(self) -> None:
        """Goes on with webhooks that another process began, under the same ids: some may have arrived already."""
        for one in self.alerts.record.tellings():
            receiver = self.alerts.receivers.get(one.receiver)
            if receiver is None or one.at_ms < self.alerts.now_ms - TELLING_MS_MAX:
                self.alerts.record.told(one.id)
                continue
            view, type_ = self._view(one.rule, one.alert, one.group), f"alert.{one.alert.state}"
            self.webhooks.send(self._note(receiver, one.id, type_, view, _at_ms(one.alert), group=one.group))

    def _note(
        self,
        receiver: Receiver,
        message_id: str,
        type_: str,
        view: AlertView,
        at_ms: int | None = None,
        *,
        group: Group | None = None,
    ) -> Note:
        at = timestamp(at_ms if at_ms is not None else self.alerts.now_ms)
        body: dict[str, Any] = {"type": type_, "timestamp": at, "data": view}
        if group is not None:
            body["group"] = {"alerts": group.alerts, "subjects": group.subjects}
        return Note(receiver.tenant, receiver.id, receiver.url, message_id, _encode(body))

    async def test(self, receiver: Receiver, view: AlertView) -> Outcome:
        """Sends one test message, without retries."""
        if receiver.type != "webhook":
            log.warning("alert test", receiver=receiver.name, detail=view.detail)
            return Outcome(True, None, None, 0)
        note = self._note(receiver, f"msg_{secrets.token_hex(12)}", "alert.test", view)
        outcome = await self.webhooks.attempt(note)
        self._ended(note, outcome)
        return outcome

    def forget(self, receiver_id: str) -> None:
        """Drops what is known of a receiver that was deleted."""
        self.secrets.forget(receiver_id)
        self.heard.pop(receiver_id, None)

    def listen(self, tenant: str) -> Listener:
        """Opens a stream. Raises `Overloaded` beyond the process's most, `too-many-connections` beyond the tenant's."""
        own = sum(listener.tenant == tenant for listener in self.listeners)
        if own >= LISTENERS_PER_TENANT_MAX:
            detail = f"this tenant has reached its limit of {own} open alert streams; close one first"
            raise PushqError(detail, code="too-many-connections", retry_after_ms=5_000)
        if len(self.listeners) >= LISTENERS_MAX:
            raise Overloaded(
                f"the server has reached its limit of {LISTENERS_MAX} open alert streams", retry_after_ms=5_000
            )
        listener = Listener(tenant)
        self.listeners.add(listener)
        return listener

    def unlisten(self, listener: Listener) -> None:
        self.listeners.discard(listener)

    async def close(self) -> None:
        for listener in list(self.listeners):
            listener.is_cut = True
            if not listener.waiting.full():
                listener.waiting.put_nowait(None)
        await self.webhooks.close()
        if self._noting is not None:
            await asyncio.gather(self._noting, return_exceptions=True)


def _at_ms(alert: Alert) -> int | None:
    """When the alert got its state: the same at each gateway that reports it."""
    return alert.resolved_at_ms if alert.state == "resolved" else alert.fired_at_ms
