"""The filter of a peek, and its evaluation on a chunk: column by column, cheapest first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from backend_store.core.dedupe.message_ids import parse_message_id
from backend_store.core.log.bits import indexes
from backend_store.core.log.chunk import KIND_BYTES, KIND_MIXED, Chunk, Messages, clear_column


@dataclass(frozen=True)
class PeekFilter:
    """Selects messages in one state that meet all given conditions.

    `since_ms` and `until_ms` bound the time of publishing: at or after the one, before the other. `contains` is
    searched in the body as stored: JSON text, or bytes.
    """

    state: str = "ready"
    limit: int = 100
    cursor: str | None = None
    partition: int | None = None
    from_seq: int | None = None
    id: str | None = None
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    contains: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    @cached_property
    def needles(self) -> tuple[bytes, ...]:
        """The byte strings to search for `contains`: as given, and as JSON writes it with and without escapes."""
        text = self.contains
        if text is None:
            return ()
        written = (json.dumps(text, ensure_ascii=is_ascii)[1:-1] for is_ascii in (False, True))
        return tuple(dict.fromkeys(form.encode() for form in (text, *written)))


def matching(chunk: Chunk, bits: int, wanted: PeekFilter) -> int:
    """Those of a chunk's messages that match, whatever their state."""
    if bits and wanted.id is not None:
        bits &= with_id(chunk, wanted.id)
    if bits and wanted.key is not None:
        bits &= _equal(clear_column(chunk, "key"), wanted.key)
    if bits and (wanted.since_ms is not None or wanted.until_ms is not None):
        bits &= _between(chunk, wanted.since_ms or 0, wanted.until_ms)
    if bits and wanted.headers:
        bits &= _with_headers(chunk, bits, wanted.headers)
    if bits and wanted.contains:
        bits &= _with_text(chunk, bits, wanted.needles)
    return bits


def with_id(chunk: Chunk, message_id: str) -> int:
    """The messages with this id: set by a producer, or derived from their offset."""
    ids = clear_column(chunk, "id")
    bits = _equal(ids, message_id)
    index = offset_of(message_id, chunk.partition) - chunk.base
    if 0 <= index < chunk.count and not (ids and ids[index]):
        bits |= 1 << index
    return bits


def offset_of(message_id: str, partition: int) -> int:
    """The offset that an id names in this partition; -1 for a producer's id, or one of another partition."""
    place = parse_message_id(message_id)
    return place[1] if place is not None and place[0] == partition else -1


def _equal(column: Sequence[Any] | None, value: object) -> int:
    if column is None or value not in column:
        return 0
    return sum(1 << index for index, one in enumerate(column) if one == value)


def _between(chunk: Chunk, since_ms: int, until_ms: int | None) -> int:
    moved = clear_column(chunk, "at")
    times = [chunk.time_ms] if moved is None else [chunk.time_ms if at is None else at for at in moved]
    fits = [since_ms <= at and (until_ms is None or at < until_ms) for at in times]
    if moved is None:
        return (1 << chunk.count) - 1 if fits[0] else 0
    return sum(1 << index for index, fit in enumerate(fits) if fit)


def _with_headers(chunk: Chunk, bits: int, wanted: Mapping[str, str]) -> int:
    if not chunk.is_sealed and not all(part.encode() in chunk.data for pair in wanted.items() for part in pair):
        return 0  # in no message of the chunk: no need to decode them
    columns = chunk.messages.columns or {}
    rows: Sequence[Mapping[str, str] | None] = columns.get("headers") or [None] * chunk.count
    return sum(1 << index for index in indexes(bits) if wanted.items() <= (rows[index] or {}).items())


def _with_text(chunk: Chunk, bits: int, needles: Sequence[bytes]) -> int:
    if not chunk.is_sealed and not any(needle in chunk.data for needle in needles):
        return 0
    messages = chunk.messages
    return sum(1 << index for index in indexes(bits) if _has_text(messages, index, needles))


def _has_text(messages: Messages, index: int, needles: Sequence[bytes]) -> bool:
    kind, bodies, columns = messages
    if kind == KIND_MIXED and columns is not None:
        kind = columns["kind"][index]
    body = bodies[index]
    return needles[0] in body if kind == KIND_BYTES else any(needle in body for needle in needles)
