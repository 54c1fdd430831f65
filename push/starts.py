"""Where a stream's reader wants to begin, as its request says it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from backend_store.client import Queue, StreamStart
from backend_store.model import FieldError, InvalidRequest

FORMS = '"earliest", "latest", {"seq": n}, {"time": RFC 3339} or {"cursor": c}'


def stream_start(queue: Queue, wanted: Any) -> StreamStart:
    """Resolves `from`. Raises `InvalidRequest` for what is none of its forms."""
    if wanted is None or wanted in ("earliest", "latest"):
        return queue.start(wanted)
    if isinstance(wanted, dict) and len(wanted) == 1:
        name, value = next(iter(wanted.items()))
        if name == "seq" and type(value) is int and value >= 0:
            return queue.start(wanted)
        if name == "cursor" and isinstance(value, str):
            return queue.start(wanted)
        if name == "time" and isinstance(value, str):
            return queue.start({"time": _time_ms(value)})
    raise InvalidRequest(f"`from` is {FORMS}", errors=(FieldError("/from", f"this is none of {FORMS}"),))


def parse_query(text: str | None) -> Any:
    """`from` of an SSE address: earliest, latest, seq:42, time:…, cursor:…"""
    if text is None or text in ("earliest", "latest"):
        return text
    name, _, value = text.partition(":")
    if name == "seq" and value.isascii() and value.isdigit() and len(value) < 20:
        return {"seq": int(value)}
    return {name: value} if value else {"from": text}


def _time_ms(text: str) -> int:
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is None:
            raise ValueError("no time zone")
        return max(0, int(when.timestamp() * 1000))
    except (ValueError, OverflowError) as error:
        detail = f"{text!r} is no RFC 3339 time with a zone, such as 2026-11-21T10:00:00Z"
        raise InvalidRequest(detail, errors=(FieldError("/from/time", detail),)) from error
