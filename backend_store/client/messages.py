"""One stored message as a dictionary of the public `Message`, for the paths that show messages one by one."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from backend_store.core.chunk import KIND_BYTES, KIND_JSON, Chunk

CONTENT_TYPE_JSON = "application/json"
CONTENT_TYPE_BYTES = "application/octet-stream"


@lru_cache(maxsize=256)
def timestamp(time_ms: int) -> str:
    """RFC 3339, UTC, milliseconds. Kept, because all messages of a chunk and many leases share one."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}Z"


def message_id(partition: int, offset: int) -> str:
    """The id of a message whose producer gave it none: its place."""
    return f"{partition}-{offset:012x}"


def full_message(chunk: Chunk, index: int, *, partition: int = 0) -> dict[str, Any]:
    """The message without receipt and attempt. `body` is raw JSON, or `body_base64` stands in its place."""
    kind, bodies, columns = chunk.messages
    row = (columns[index] if columns else None) or {}
    kind = row.get("kind", KIND_JSON) if columns else kind
    offset = chunk.base + index
    out: dict[str, Any] = {
        "id": row.get("id") or message_id(partition, offset),
        "seq": offset,
        "partition": partition,
    }
    if kind == KIND_BYTES:
        out["body_base64"] = b64encode(bodies[index]).decode()
    else:
        out["body"] = msgspec.Raw(bodies[index])
    out["content_type"] = row.get("content_type") or (CONTENT_TYPE_BYTES if kind == KIND_BYTES else CONTENT_TYPE_JSON)
    out["headers"] = row.get("headers") or {}
    out["key"] = row.get("key")
    out["priority"] = 0
    out["published_at"] = timestamp(chunk.time_ms)
    for name in ("reply_to", "correlation_id"):
        if row.get(name) is not None:
            out[name] = row[name]
    return out
