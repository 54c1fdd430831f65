"""Server-sent events as bytes: one event a message, its id an opaque cursor to resume from."""

from __future__ import annotations

from typing import Any

from backend_store.client import Chunk, cursors_along, encode_cursor
from push.encode import encode, keep_rendered, stream_messages, visible
from push.tails import Others


def event(name: str, data: bytes, cursor: str | None = None, retry_ms: int | None = None) -> bytes:
    """One event. JSON has no raw line ends, so its text is one `data:` line."""
    head = b"" if cursor is None else b"id: %b\n" % cursor.encode()
    retry = b"" if retry_ms is None else b"retry: %d\n" % retry_ms
    return b"%b%bevent: %b\ndata: %b\n\n" % (retry, head, name.encode(), data)


def json_event(name: str, value: Any, *, retry_ms: int | None = None) -> bytes:
    return event(name, encode(value, "json"), retry_ms=retry_ms)


def sse_framer(chunk: Chunk, start: int, stop: int, number: int, others: Others = None) -> bytes:
    """The messages of a stream's chunk as events, made once for all who read the same."""
    along = cursors_along(others, chunk.partition, chunk.epoch) if others is not None else None
    key = ("sse", start, stop, along(chunk.base + stop) if along is not None else "")
    data: bytes | None = chunk.rendered.get(key)
    if data is None:
        messages = stream_messages(chunk, start, stop, "json")
        after = [chunk.base + n + 1 for n in visible(chunk, start, stop)]
        cursors = [along(n) if along is not None else encode_cursor(chunk.epoch, n) for n in after]
        data = b"".join([event("message", m, cursor) for m, cursor in zip(messages, cursors, strict=True)])
        keep_rendered(chunk, key, data)
    return data
