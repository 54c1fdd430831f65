"""Start positions: where a stream's reader or consumer group begins, as a request says it."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from backend_store.client import GroupQueue, Queue, Start, decode_cursor, open_group
from backend_store.model import FieldError, InvalidRequest, PushqError
from push.operations.checks import check_has_groups, checked_group

FORMS = '"earliest", "latest", {"seq": n}, {"time": RFC 3339} or {"cursor": c}'
POSITIONS = '"earliest", "latest", {"seq": n} or {"time": RFC 3339}'


def stream_start(queue: Queue, wanted: Any) -> Start:
    """Resolves `from`. Raises `InvalidRequest` if it has none of the forms."""
    return queue.parts.start(checked_start(wanted))


async def group_queue(stream: Queue, name: str, wanted: Any) -> GroupQueue:
    """The consumer group of that name. A new group begins at `wanted`; an existing one goes on at its offsets.

    Raises `InvalidRequest`.
    """
    check_has_groups(stream)
    opened: asyncio.Future[GroupQueue | PushqError] = asyncio.get_running_loop().create_future()
    open_group(stream, checked_group(name), checked_start(wanted), lambda group: resolved(opened, group))
    group = await opened
    if isinstance(group, PushqError):
        raise group
    return group


def resolved(done: asyncio.Future[Any], result: Any) -> None:
    if not done.done():  # or the client left, and its request was cancelled
        done.set_result(result)


def checked_start(wanted: Any) -> Any:
    """`from` as the store takes it: times in milliseconds. Raises `InvalidRequest` if it has none of the forms."""
    if isinstance(wanted, dict) and len(wanted) == 1 and isinstance(wanted.get("cursor"), str):
        decode_cursor(wanted["cursor"])
        return wanted
    return _checked(wanted, "from", FORMS)


def checked_position(wanted: Any) -> Any:
    """`position` of a consumer group, as the store takes it. Raises `InvalidRequest`."""
    return _checked(wanted, "position", POSITIONS)


def _checked(wanted: Any, name: str, forms: str) -> Any:
    if wanted is None or wanted in ("earliest", "latest"):
        return wanted
    if isinstance(wanted, dict) and len(wanted) == 1:
        form, value = next(iter(wanted.items()))
        if form == "seq" and type(value) is int and value >= 0:
            return wanted
        if form == "time" and isinstance(value, str):
            return {"time": _time_ms(value, f"/{name}/time")}
    raise InvalidRequest(f"`{name}` must be {forms}", errors=(FieldError(f"/{name}", f"must be {forms}"),))


def parse_query(text: str | None) -> Any:
    """`from` of an SSE address: earliest, latest, seq:42, time:…, cursor:…"""
    if text is None or text in ("earliest", "latest"):
        return text
    name, _, value = text.partition(":")
    if name == "seq" and value.isascii() and value.isdigit() and len(value) < 20:
        return {"seq": int(value)}
    return {name: value} if value else {"from": text}


def _time_ms(text: str, pointer: str) -> int:
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is None:
            raise ValueError("no time zone")
        return max(0, int(when.timestamp() * 1000))
    except (ValueError, OverflowError) as error:
        detail = f"invalid time {text!r}: use RFC 3339 with a time zone, such as 2026-11-21T10:00:00Z"
        raise InvalidRequest(detail, errors=(FieldError(pointer, detail),)) from error
