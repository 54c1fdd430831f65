"""Converts a stored message to a dictionary of the public `Message`, for paths that show messages one by one."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from backend_store.core.leases.nack_reasons import told_history
from backend_store.core.log.chunk import KIND_BYTES, KIND_MIXED, Chunk, clear_column, message_id
from backend_store.core.log.sealed_block import Seal
from backend_store.core.log.sublogs import own_priority
from backend_store.core.reorder.hlc import format_stamp

CONTENT_TYPE_JSON = "application/json"
CONTENT_TYPE_BYTES = "application/octet-stream"
_MORE = frozenset({"exp", "ts", "late", "pr", "ps", "reply_to", "correlation_id", "dead", "trace"})


@lru_cache(maxsize=1024)
def timestamp(time_ms: int) -> str:
    """RFC 3339, UTC, milliseconds. Cached, because all messages of a chunk and many leases share one."""
    return format_stamp(time_ms * 1000)


def ordering(time_us: int | None, late: bool | None) -> dict[str, Any] | None:
    """A message's place in time as its producer gave it; None if it has none and is not late."""
    if time_us is None and not late:
        return None
    return {"timestamp": None if time_us is None else format_stamp(time_us), "late": bool(late)}


def dead_letter(dead: Mapping[str, Any] | None, seal: Seal | None) -> dict[str, Any] | None:
    """Why a message ended, as consumers of dead letters see it. Reasons of attempts are the consumers' own; `seal`
    opens those that were stored sealed.
    """
    if dead is None:
        return None
    return {
        "from": dead.get("from"),
        "reason": dead["reason"],
        "at": timestamp(dead["at"]),
        "attempts": dead.get("attempts", 0),
        "history": attempts_ended(dead.get("history", ()), seal),
    }


def attempts_ended(rows: Iterable[Any], seal: Seal | None) -> list[dict[str, Any]]:
    """Attempts that ended without an ack, latest last."""
    return [
        {"attempt": attempt, "at": timestamp(at_ms), "outcome": outcome, "reason": reason}
        for attempt, at_ms, outcome, reason in told_history(rows, seal)
    ]


def trace_context(kept: str | None) -> tuple[str | None, str | None]:
    """A producer's (`traceparent`, `tracestate`), which share a column."""
    if kept is None:
        return None, None
    traceparent, _, tracestate = kept.partition(" ")
    return traceparent, tracestate or None


def full_message(chunk: Chunk, index: int, *, partition: int | None = None) -> dict[str, Any]:
    """The message without receipt and attempt. `body` is raw JSON; binary bodies are in `body_base64` instead."""
    partition = chunk.partition if partition is None else partition
    kind, bodies, columns = chunk.messages
    row = {name: values[index] for name, values in columns.items()} if columns else {}
    if kind == KIND_MIXED:
        kind = row["kind"]
    offset, dead = chunk.base + index, row.get("dead")
    out: dict[str, Any] = {"id": row.get("id") or message_id(partition, offset), "seq": offset, "partition": partition}
    if kind == KIND_BYTES:
        out["body_base64"] = b64encode(bodies[index]).decode()
    else:
        out["body"] = msgspec.Raw(bodies[index])
    out["content_type"] = row.get("content_type") or (CONTENT_TYPE_BYTES if kind == KIND_BYTES else CONTENT_TYPE_JSON)
    out["headers"] = row.get("headers") or {}
    out["key"] = row.get("key")
    out["priority"] = own_priority(chunk.shelf, dead)
    out["published_at"] = timestamp(chunk.time_ms if row.get("at") is None else row["at"])
    return out if row.keys().isdisjoint(_MORE) else out | _more(row, chunk.seal)


def _more(row: dict[str, Any], seal: Seal | None) -> dict[str, Any]:
    """Optional fields of a message, those with a value."""
    traceparent, tracestate = trace_context(row.get("trace"))
    more = {
        "expires_at": timestamp(row["exp"]) if row.get("exp") else None,
        "ordering": ordering(row.get("ts"), row.get("late")),
        "producer": row.get("pr"),
        "producer_seq": row.get("ps"),
        "reply_to": row.get("reply_to"),
        "correlation_id": row.get("correlation_id"),
        "dead_letter": dead_letter(row.get("dead"), seal),
        "traceparent": traceparent,
        "tracestate": tracestate,
    }
    return {name: value for name, value in more.items() if value is not None}


def message_id_of(chunk: Chunk, index: int) -> str:
    """The message's id: its producer's, or the one derived from its offset."""
    ids = clear_column(chunk, "id")
    return (ids[index] if ids else None) or message_id(chunk.partition, chunk.base + index)


def headers_of(chunk: Chunk, index: int) -> dict[str, str]:
    columns = chunk.messages.columns
    headers: dict[str, str] | None = columns["headers"][index] if columns and "headers" in columns else None
    return headers or {}
