"""Errors as callers see them: RFC 9457 problems, the same object over HTTP, WebSocket and SSE, from one table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from backend_store.model import FieldError, InvalidRequest, PushqError
from push.limits import FINDINGS_MAX


class Kind(NamedTuple):
    status: int
    title: str


KINDS: dict[str, Kind] = {
    "invalid-request": Kind(400, "The request is not valid"),
    "unauthenticated": Kind(401, "Credentials are missing or invalid"),
    "forbidden": Kind(403, "Not allowed"),
    "queue-not-found": Kind(404, "No such queue"),
    "not-found": Kind(404, "Not found"),
    "method-not-allowed": Kind(405, "Method not allowed"),
    "conflict": Kind(409, "Conflict with the current state"),
    "stale-receipt": Kind(409, "The receipt is no longer valid"),
    "request-in-progress": Kind(409, "The same request is still in progress"),
    "precondition-failed": Kind(412, "Changed since it was read"),
    "message-too-large": Kind(413, "Too large"),
    "unsupported-media-type": Kind(415, "Unsupported media type"),
    "idempotency-mismatch": Kind(422, "Idempotency key reused with another payload"),
    "precondition-required": Kind(428, "If-Match is required"),
    "rate-limited": Kind(429, "Too many requests"),
    "too-many-connections": Kind(429, "Too many connections"),
    "internal": Kind(500, "Internal error"),
    "not-leader": Kind(503, "Not the leader"),
    "unavailable": Kind(503, "Unavailable"),
    "overloaded": Kind(503, "Overloaded"),
    "draining": Kind(503, "Shutting down"),
    "not-durable": Kind(503, "Too few replicas"),
    "outcome-unknown": Kind(504, "The outcome is unknown"),
    "queue-full": Kind(507, "The queue is full"),
    "storage-full": Kind(507, "The disk is full"),
    "dedupe-full": Kind(507, "The deduplication window is full"),
}
"""Each code of the public protocol with its HTTP status and title. A code never changes its meaning."""

RETRY_AFTER_MS_DEFAULTS: Mapping[int, int] = MappingProxyType({429: 1_000, 503: 1_000, 507: 5_000})
"""By status, for errors that name no time. Room comes back as consumers settle, which takes longer than a peak."""


def problem(error: PushqError, trace_id: str | None = None) -> dict[str, Any]:
    """The problem object. `type` is the path of a page that this server serves."""
    kind = KINDS[error.code]
    out: dict[str, Any] = {
        "type": f"/docs/reference/errors#{error.code}",
        "title": kind.title,
        "status": kind.status,
        "detail": error.detail,
        "code": error.code,
    }
    if error.errors:
        out["errors"] = [{"pointer": e.pointer, "detail": e.detail} for e in error.errors[:FINDINGS_MAX]]
        if (more := len(error.errors) - FINDINGS_MAX) > 0:
            out["detail"] += f" ({more} more errors are not shown)"
    if (retry_after_ms := retry_after(error)) is not None:
        out["retry_after_ms"] = retry_after_ms
    if trace_id is not None:
        out["trace_id"] = trace_id
    return out


def retry_after(error: PushqError) -> int | None:
    """When trying again makes sense, in ms. Always set for 429, 503 and 507."""
    if error.retry_after_ms is None:
        return RETRY_AFTER_MS_DEFAULTS.get(KINDS[error.code].status)
    return error.retry_after_ms


# ------------------------------------------------------------------------------------------- decoding errors

_NONE: Mapping[str, str] = MappingProxyType({})
_AT = re.compile(r"^(?P<text>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.S)
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.S)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?`, or nothing if no known name is similar."""
    found = get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def invalid(error: Exception, known: Mapping[str, str] = _NONE) -> InvalidRequest:
    """What is wrong with a body or frame, from the decoder's error.

    `known` maps each field name to the field that contains it (empty at the top): for an unknown field the error says
    where it belongs, or the most similar name.
    """
    if isinstance(error, UnicodeDecodeError):
        return InvalidRequest(f"the text is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}")
    if not isinstance(error, msgspec.ValidationError):
        return InvalidRequest(f"cannot parse the body: {error}")
    match = _AT.match(str(error))
    assert match is not None
    text, pointer = match["text"], _pointer(match["path"] or "$")
    unknown = _UNKNOWN.match(text)
    if unknown is not None:
        name = unknown["name"]
        detail = f"unknown field {name[:200]!r}{_belongs(name, known) or nearest(name[:200], known)}"
        return InvalidRequest(detail, errors=(FieldError(f"{pointer}/{_escape(name)}", detail),))
    missing = _MISSING.match(text)
    if missing is not None:
        detail = f"the field {missing['name']!r} is missing"
        return InvalidRequest(detail, errors=(FieldError(f"{pointer}/{_escape(missing['name'])}", detail),))
    return InvalidRequest(f"{pointer or 'the body'}: {text}", errors=(FieldError(pointer, text),))


def _belongs(name: str, known: Mapping[str, str]) -> str:
    if (holder := known.get(name)) is None:
        return ""
    return f" here; it belongs inside `{holder}`" if holder else " here; it belongs at the top level"


def _pointer(path: str) -> str:
    """`$.messages[0].body` as an RFC 6901 pointer; the decoder writes `[...]` where it does not say which."""
    steps = re.findall(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]", path)
    return "".join("/" + _escape(name or number) for name, number in steps)


def _escape(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")
