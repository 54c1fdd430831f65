"""Checks that every transport makes alike, and the rows that answer receipts."""

from __future__ import annotations

import re
from typing import Any

from backend_store.client import Gap, Queue
from backend_store.model import VISIBILITY_MS_MAX, FieldError, InvalidRequest, Verdict
from push.limits import CREDIT_MAX, IDEMPOTENCY_KEY_CHARS_MAX, PUBLISH_MS_MAX
from push.protocol import REQUEST_ID_CHARS_MAX, RequestId

DELAY_MS_MAX = VISIBILITY_MS_MAX
REASON_CHARS_MAX = 256
_PRINTABLE = re.compile(r"[ -~]*")
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def results(receipts: list[str], verdicts: list[Verdict]) -> list[dict[str, Any]]:
    """One row a receipt, as HTTP and WebSocket both answer."""
    return [
        {"receipt": receipt, "ok": True} if verdict.ok else {"receipt": receipt, "ok": False, "error": verdict.error}
        for receipt, verdict in zip(receipts, verdicts, strict=True)
    ]


def checked_credit(credit: int, *, pointer: str = "/credit") -> int:
    if not 1 <= credit <= CREDIT_MAX:
        raise field(pointer, f"credit must be between 1 and {CREDIT_MAX}, not {credit}")
    return credit


def check_delay(delay_ms: int | None) -> None:
    if delay_ms is not None and not 0 <= delay_ms <= DELAY_MS_MAX:
        raise field("/delay_ms", f"delay_ms must be between 0 and {DELAY_MS_MAX}, not {delay_ms}")


def checked_visibility(visibility_ms: int) -> int:
    if not 0 <= visibility_ms <= VISIBILITY_MS_MAX:
        raise field(
            "/visibility_timeout_ms",
            f"visibility_timeout_ms must be between 0 and {VISIBILITY_MS_MAX}, not {visibility_ms}",
        )
    return visibility_ms


def visibility_of(queue: Queue, wanted_ms: int | None) -> int:
    """A consumer's visibility timeout in ms: the one it asks for, or the queue's. Raises `InvalidRequest` if it asks
    for one on a queue without leases."""
    if wanted_ms is None:
        return queue.config.visibility_timeout_ms
    if queue.config.delivery == "at_most_once" and not queue.is_companion:
        raise field(
            "/visibility_timeout_ms",
            "this queue delivers at_most_once, so messages have no lease; remove visibility_timeout_ms",
        )
    return checked_visibility(wanted_ms)


def checked_idempotency_key(text: str, *, name: str = "idempotency_key", pointer: str = "/idempotency_key") -> str:
    """Raises `InvalidRequest` for a key that is empty, too long, or not printable ASCII."""
    if not 1 <= len(text) <= IDEMPOTENCY_KEY_CHARS_MAX:
        raise field(pointer, f"{name} must have 1 to {IDEMPOTENCY_KEY_CHARS_MAX} characters, not {len(text)}")
    if _PRINTABLE.fullmatch(text) is None:
        raise field(pointer, f"{name} must be printable ASCII, such as a UUID")
    return text


def checked_timeout(timeout_ms: int, *, name: str = "timeout_ms", pointer: str = "/timeout_ms") -> int:
    if not 1 <= timeout_ms <= PUBLISH_MS_MAX:
        raise field(pointer, f"{name} must be between 1 and {PUBLISH_MS_MAX}, not {timeout_ms}")
    return timeout_ms


def checked_reason(reason: str | None) -> str | None:
    if reason is not None and len(reason) > REASON_CHARS_MAX:
        raise field("/reason", f"reason must have at most {REASON_CHARS_MAX} characters, not {len(reason)}")
    return reason


def gap_fields(gap: Gap) -> dict[str, int]:
    """The fields by which a frame or an event names messages that a consumer will never get."""
    fields = {"from": gap.first, "to": gap.last}
    return fields if gap.partition is None else {**fields, "partition": gap.partition}


def check_has_groups(queue: Queue, *, pointer: str = "/group") -> None:
    """Raises `InvalidRequest` for a work queue."""
    if queue.config.kind != "stream":
        raise field(pointer, f"{queue.name!r} is a work queue; only streams have groups")


def checked_group(name: str, *, pointer: str = "/group") -> str:
    """The name of a consumer group. Raises `InvalidRequest`."""
    if _GROUP.fullmatch(name) is None:
        rule = "1 to 128 characters from A-Z a-z 0-9 _ . -, starting with a letter or digit"
        raise field(pointer, f"invalid group name {name[:200]!r}: use {rule}")
    return name


def check_id(request_id: RequestId) -> None:
    if isinstance(request_id, str) and len(request_id) > REQUEST_ID_CHARS_MAX:
        raise field("/id", f"id must have at most {REQUEST_ID_CHARS_MAX} characters, not {len(request_id)}")


def field(pointer: str, detail: str) -> InvalidRequest:
    return InvalidRequest(detail, errors=(FieldError(pointer, detail),))


def not_yet(pointer: str, what: str) -> InvalidRequest:
    return field(pointer, f"this version does not have {what} yet")
