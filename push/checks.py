"""Checks that every transport makes alike, and the rows that answer receipts."""

from __future__ import annotations

from typing import Any

from backend_store.model import VISIBILITY_MS_MAX, FieldError, InvalidRequest, Verdict
from push.limits import CREDIT_MAX
from push.protocol import REQUEST_ID_CHARS_MAX, RequestId

DELAY_MS_MAX = VISIBILITY_MS_MAX
REASON_CHARS_MAX = 256


def results(receipts: list[str], verdicts: list[Verdict]) -> list[dict[str, Any]]:
    """One row a receipt, as HTTP and WebSocket both answer."""
    return [
        {"receipt": receipt, "ok": True} if verdict.ok else {"receipt": receipt, "ok": False, "error": verdict.error}
        for receipt, verdict in zip(receipts, verdicts, strict=True)
    ]


def checked_credit(credit: int, *, pointer: str = "/credit") -> int:
    if not 1 <= credit <= CREDIT_MAX:
        raise field(pointer, f"credit is {credit}; it goes from 1 to {CREDIT_MAX}")
    return credit


def checked_visibility(visibility_ms: int) -> int:
    if not 0 <= visibility_ms <= VISIBILITY_MS_MAX:
        raise field(
            "/visibility_timeout_ms", f"visibility_timeout_ms is {visibility_ms}; it goes from 0 to {VISIBILITY_MS_MAX}"
        )
    return visibility_ms


def checked_reason(reason: str | None) -> str | None:
    if reason is not None and len(reason) > REASON_CHARS_MAX:
        raise field("/reason", f"a reason of {len(reason)} characters; it may have {REASON_CHARS_MAX}")
    return reason


def check_id(request_id: RequestId) -> None:
    if isinstance(request_id, str) and len(request_id) > REQUEST_ID_CHARS_MAX:
        raise field("/id", f"an id of {len(request_id)} characters; it may have {REQUEST_ID_CHARS_MAX}")


def field(pointer: str, detail: str) -> InvalidRequest:
    return InvalidRequest(detail, errors=(FieldError(pointer, detail),))


def not_yet(pointer: str, what: str) -> InvalidRequest:
    return field(pointer, f"this version does not have {what} yet")
