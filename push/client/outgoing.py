"""From the arguments of `publish` to the fields of a message: times become milliseconds and RFC 3339."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from push.client.model import Outgoing
from push.client.times import Duration, Moment, milliseconds, time_text


class PublishOptions(TypedDict, total=False):
    """The options of a message beside its body; `Pushq.publish` explains each."""

    id: str | None
    key: str | None
    priority: int | None
    delay: Duration | None
    delay_ms: int | None
    deliver_at: Moment | None
    ttl: Duration | None
    ttl_ms: int | None
    headers: Mapping[str, str] | None
    content_type: str | None
    reply_to: str | None
    correlation_id: str | None


Publication = tuple[str, Any] | tuple[str, Any, PublishOptions]
"""What an ack publishes: a queue's name, a body (or an `Outgoing`), and options if there are any."""


def outgoing(
    body: Any,
    *,
    id: str | None = None,
    key: str | None = None,
    priority: int | None = None,
    delay: Duration | None = None,
    delay_ms: int | None = None,
    deliver_at: Moment | None = None,
    ttl: Duration | None = None,
    ttl_ms: int | None = None,
    headers: Mapping[str, str] | None = None,
    content_type: str | None = None,
    reply_to: str | None = None,
    correlation_id: str | None = None,
) -> Outgoing:
    """A message to publish. Raises `ValueError` for an invalid time, or one that is given twice."""
    return Outgoing(
        body=body,
        id=id,
        key=key,
        priority=priority,
        delay_ms=one_time("delay", delay, delay_ms),
        deliver_at=deliver_at,
        ttl_ms=one_time("ttl", ttl, ttl_ms),
        headers=headers,
        content_type=content_type,
        reply_to=reply_to,
        correlation_id=correlation_id,
    )


def publications(given: Iterable[Publication]) -> list[tuple[str, list[Outgoing]]]:
    """What an ack publishes, by queue, in the order given."""
    parts: dict[str, list[Outgoing]] = {}
    for queue, body, *rest in given:
        options: PublishOptions = rest[0] if rest else {}
        message = body if isinstance(body, Outgoing) else outgoing(body, **options)
        parts.setdefault(queue, []).append(message)
    return list(parts.items())


def sendable(message: Outgoing) -> Outgoing:
    """The message with its time as text. Raises `ValueError` for a time without a zone."""
    if not isinstance(message.deliver_at, datetime):
        return message
    return msgspec.structs.replace(message, deliver_at=time_text(message.deliver_at))


def one_time(name: str, duration: Duration | None, ms: int | None) -> int | None:
    """Milliseconds from the one that was given. Raises `ValueError` if both were."""
    if duration is None:
        return ms
    if ms is not None:
        raise ValueError(f"give either {name} or {name}_ms, not both")
    return milliseconds(duration)
