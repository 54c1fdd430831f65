"""Server-sent events as bytes: one event a message, with an opaque cursor as its id to resume from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from backend_store.client import Chunk, cursors_along, encode_cursor
from push.delivery.stream_reader import Others
from push.encoding.deliveries import encode, keep_rendered, stream_messages, visible

_LINE_ENDS_AS_SPACES: Final = bytes.maketrans(b"\r\n", b"  ")


def json_event(name: str, value: Any, *, retry_ms: int | None = None) -> bytes:
    """One of our own events. The encoder writes no raw line ends, so its text is one `data:` line."""
    retry = b"" if retry_ms is None else b"retry: %d\n" % retry_ms
    return b"%bevent: %b\ndata: %b\n\n" % (retry, name.encode(), encode(value, "json"))


def message_events(messages: Sequence[bytes], cursors: Iterable[str]) -> bytes:
    """Events of messages, each with the cursor after it.

    A body is handed on as its producer wrote it. In an event, a line end of it would begin another field, and an empty
    line would end the event. In JSON line ends stand between values only, where a space means the same.
    """
    whole = b"".join(messages)
    if b"\n" in whole or b"\r" in whole:
        messages = [message.translate(_LINE_ENDS_AS_SPACES) for message in messages]
    rows = zip(map(str.encode, cursors), messages, strict=True)
    return b"".join([b"id: %b\nevent: message\ndata: %b\n\n" % row for row in rows])


def sse_framer(chunk: Chunk, start: int, stop: int, number: int, others: Others = None) -> bytes:
    """The messages of a stream's chunk as events, rendered once for all readers of the same part."""
    along = cursors_along(others, chunk.partition, chunk.epoch, uid=chunk.uid) if others is not None else None
    key = ("sse", start, stop, along(chunk.base + stop) if along is not None else "")
    data: bytes | None = chunk.rendered.get(key)
    if data is None:
        after = [chunk.base + n + 1 for n in visible(chunk, start, stop)]
        cursors = [along(n) if along is not None else encode_cursor(chunk.epoch, n, uid=chunk.uid) for n in after]
        data = message_events(stream_messages(chunk, start, stop, "json"), cursors)
        keep_rendered(chunk, key, data)
    return data
