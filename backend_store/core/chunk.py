"""Blocks and chunks: how messages lie in the log.

A gateway encodes the messages of one publish call into *blocks*; the leader merges the blocks of one commit cycle
into a *chunk*, the unit of log, checksum and replication. All integers are big-endian but the column of lengths,
which is little-endian so that it can be read as an array.

    chunk  = entry header (44 bytes) | block | block | ...
    block  = flags u8 | key id u32 | count u16 | clear bytes u32 | sealed bytes u32 | clear | sealed
    clear  = MessagePack {"id": [...], "key": [...], "trace": str}, only what is present      (backends may read it)
    sealed = attributes bytes u32 | attributes | lengths u32[count] | bodies                    (sealed when key id > 0)
    attributes = MessagePack {"kind": bytes, "content_type": [...], "headers": [...], ...}, only what is present
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import msgspec
from google_crc32c import extend as crc_extend

from backend_store.model import (
    BLOCK_BYTES_MAX,
    BLOCK_MESSAGES_MAX,
    CHUNK_BYTES_MAX,
    CHUNK_MESSAGES_MAX,
    Block,
    Epoch,
    Offset,
)

ENTRY_VERSION = 1
ENTRY_CHUNK = 1
ENTRY_RECORD = 2

# version, type, flags, lane, epoch, offset, time ms, messages, blocks, payload bytes, trace bytes, prev_crc, crc
_ENTRY = struct.Struct(">BBBBIQQHHIIII")
ENTRY_HEADER_BYTES = _ENTRY.size
_CRC_AT = ENTRY_HEADER_BYTES - 4
_BLOCK = struct.Struct(">BIHII")
_U32 = struct.Struct(">I")

FLAG_CLEAR = 1
FLAG_ATTRIBUTES = 2
FLAG_ALL_JSON = 4
FLAG_ALL_BYTES = 8
_FLAGS_KNOWN = FLAG_CLEAR | FLAG_ATTRIBUTES | FLAG_ALL_JSON | FLAG_ALL_BYTES

KIND_JSON = 0
KIND_BYTES = 1

CLEAR_COLUMNS = ("id", "key")
SEALED_COLUMNS = ("content_type", "headers", "reply_to", "correlation_id")

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


class CorruptEntry(Exception):
    """Stored bytes that do not verify. The sentence says what was expected; the entry must not be served."""


class Draft(NamedTuple):
    """One message on its way into a block: a body of one kind, and what else the caller gave."""

    kind: int
    body: bytes
    columns: dict[str, Any] | None


# ------------------------------------------------------------------------------------------------------- build


def plain_blocks(kind: int, bodies: Sequence[bytes], trace: str | None = None) -> list[Block]:
    """Blocks of messages that have a body of one kind and nothing else: the hot path, whole columns at a time."""
    flags = FLAG_ALL_JSON if kind == KIND_JSON else FLAG_ALL_BYTES
    lengths = list(map(len, bodies))
    if len(bodies) <= BLOCK_MESSAGES_MAX and sum(lengths) <= BLOCK_BYTES_MAX:
        return [_block(flags, bodies, lengths, {}, {}, trace)]
    blocks = []
    for start, end in _spans(lengths):
        blocks.append(_block(flags, bodies[start:end], lengths[start:end], {}, {}, trace))
    return blocks


def blocks_of(drafts: Sequence[Draft], trace: str | None = None) -> list[Block]:
    """Blocks of messages of any shape, in their order."""
    lengths = [len(d.body) + _attribute_bytes(d.columns) for d in drafts]
    blocks = []
    for start, end in _spans(lengths):
        part = drafts[start:end]
        clear = _columns(part, CLEAR_COLUMNS)
        attributes = _columns(part, SEALED_COLUMNS)
        kinds = bytes(d.kind for d in part)
        flags = 0
        if not any(kinds):
            flags = FLAG_ALL_JSON
        elif all(kinds):
            flags = FLAG_ALL_BYTES
        else:
            attributes["kind"] = kinds
        bodies = [d.body for d in part]
        blocks.append(_block(flags, bodies, list(map(len, bodies)), clear, attributes, trace))
    return blocks


def _attribute_bytes(columns: dict[str, Any] | None) -> int:
    if not columns:
        return 0
    headers = columns.get("headers")
    size = sum(len(v) for v in columns.values() if isinstance(v, str))
    return size + (sum(len(k) + len(v) for k, v in headers.items()) if headers else 0)


def _spans(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Cuts a call's messages into blocks within the limits; a bigger message stands alone."""
    spans, start, size = [], 0, 0
    for index, length in enumerate(lengths):
        full = index - start >= BLOCK_MESSAGES_MAX or (size + length > BLOCK_BYTES_MAX and index > start)
        if full:
            spans.append((start, index))
            start, size = index, 0
        size += length
    spans.append((start, len(lengths)))
    return spans


def _columns(drafts: Sequence[Draft], names: Sequence[str]) -> dict[str, Any]:
    columns = {}
    for name in names:
        values = [d.columns.get(name) if d.columns else None for d in drafts]
        if any(v is not None for v in values):
            columns[name] = values
    return columns


def _block(
    flags: int,
    bodies: Sequence[bytes],
    lengths: Sequence[int],
    clear: dict[str, Any],
    attributes: dict[str, Any],
    trace: str | None,
) -> Block:
    if trace:
        clear = {**clear, "trace": trace}
    clear_bytes = _pack(clear) if clear else b""
    attribute_bytes = _pack(attributes) if attributes else b""
    flags |= (FLAG_CLEAR if clear else 0) | (FLAG_ATTRIBUTES if attributes else 0)
    column = array("I", lengths)
    if sys.byteorder == "big":
        column.byteswap()
    sealed_size = 4 + len(attribute_bytes) + 4 * len(lengths) + sum(lengths)
    head = _BLOCK.pack(flags, 0, len(lengths), len(clear_bytes), sealed_size)
    data = b"".join([head, clear_bytes, _U32.pack(len(attribute_bytes)), attribute_bytes, column.tobytes(), *bodies])
    return Block(data, len(lengths))


class ChunkPlan(NamedTuple):
    """Blocks that share a chunk, and how many messages they hold."""

    blocks: list[bytes]
    messages: int


def plan_chunks(blocks: Sequence[Block]) -> list[ChunkPlan]:
    """Groups blocks into chunks within the limits, in order."""
    plans: list[ChunkPlan] = []
    data: list[bytes] = []
    count = size = 0
    for block in blocks:
        over = count + block.count > CHUNK_MESSAGES_MAX or size + len(block.data) > CHUNK_BYTES_MAX
        if over and data:
            plans.append(ChunkPlan(data, count))
            data, count, size = [], 0, 0
        data.append(block.data)
        count += block.count
        size += len(block.data)
    if data:
        plans.append(ChunkPlan(data, count))
    return plans


def encode_entry(
    entry_type: int,
    payload: Sequence[bytes],
    *,
    seed: int,
    epoch: Epoch,
    offset: Offset,
    time_ms: int,
    count: int,
    lane: int = 0,
    prev_crc: int = 0,
) -> tuple[bytes, int]:
    """One log entry and its checksum. `seed` is the partition's number, so a misplaced entry shows at once."""
    body = b"".join(payload)
    head = _ENTRY.pack(
        ENTRY_VERSION, entry_type, 0, lane, epoch, offset, time_ms, count, len(payload), len(body), 0, prev_crc, 0
    )
    crc = crc_extend(crc_extend(seed, head[:_CRC_AT]), body)
    return b"".join([head[:_CRC_AT], _U32.pack(crc), body]), crc


# -------------------------------------------------------------------------------------------------------- read


class Chunk:
    """A verified chunk: its header, and its messages cut out lazily, once, for every consumer of this process."""

    __slots__ = ("base", "blocks", "count", "data", "epoch", "lane", "rendered", "time_ms", "_messages")

    def __init__(self, data: bytes, *, epoch: Epoch, base: Offset, time_ms: int, count: int, lane: int, blocks: int):
        self.data = data
        self.epoch = epoch
        self.base = base
        self.time_ms = time_ms
        self.count = count
        self.lane = lane
        self.blocks = blocks
        self.rendered: dict[Any, Any] = {}
        self._messages: Messages | None = None

    def cut(self) -> None:
        """Cuts the messages out now. Raises `CorruptEntry`."""
        self._messages = self._messages or read_messages(self)

    @property
    def messages(self) -> Messages:
        if self._messages is None:
            self._messages = read_messages(self)
        return self._messages


class Messages(NamedTuple):
    """The columns of a chunk's messages. `columns` is None where every message is only a body of one kind."""

    kind: int
    bodies: list[bytes]
    columns: list[dict[str, Any] | None] | None


def decode_chunk(data: bytes, *, seed: int, offset: Offset | None = None) -> Chunk:
    """Verifies a stored chunk. Raises `CorruptEntry`."""
    if len(data) < ENTRY_HEADER_BYTES:
        raise CorruptEntry(f"an entry of {len(data)} bytes is shorter than its header")
    (version, entry_type, _flags, lane, epoch, base, time_ms, count, blocks, size, _trace, _prev, crc) = (
        _ENTRY.unpack_from(data)
    )
    if version != ENTRY_VERSION or entry_type != ENTRY_CHUNK:
        raise CorruptEntry(
            f"entry version {version} type {entry_type}: this program reads version {ENTRY_VERSION} chunks"
        )
    if len(data) != ENTRY_HEADER_BYTES + size:
        raise CorruptEntry(f"an entry of {len(data)} bytes says it has {ENTRY_HEADER_BYTES + size}")
    found = crc_extend(crc_extend(seed, data[:_CRC_AT]), data[ENTRY_HEADER_BYTES:])
    if found != crc:
        raise CorruptEntry(f"checksum {found:08x}, stored {crc:08x}")
    if offset is not None and offset != base:
        raise CorruptEntry(f"entry of offset {base} lies at offset {offset}")
    return Chunk(data, epoch=Epoch(epoch), base=Offset(base), time_ms=time_ms, count=count, lane=lane, blocks=blocks)


def claimed_messages(data: bytes) -> int:
    """How many messages a broken entry says it holds; 0 when not even its header can be read."""
    if len(data) < ENTRY_HEADER_BYTES:
        return 0
    count: int = _ENTRY.unpack_from(data)[7]
    return min(count, CHUNK_MESSAGES_MAX)


def read_messages(chunk: Chunk) -> Messages:
    """Cuts a verified chunk into its messages."""
    data, at = chunk.data, ENTRY_HEADER_BYTES
    parts = []
    for _ in range(chunk.blocks):
        flags, key_id, count, clear_size, sealed_size = _BLOCK.unpack_from(data, at)
        if flags & ~_FLAGS_KNOWN or key_id:
            raise CorruptEntry(f"block flags {flags:#x}, key {key_id}: this program does not know them")
        at += _BLOCK.size
        clear = data[at : at + clear_size]
        at += clear_size
        parts.append((flags, count, clear, *_read_sealed(data, at, count)))
        at += sealed_size
    return _join_blocks(parts)


def _read_sealed(data: bytes, at: int, count: int) -> tuple[bytes, list[bytes]]:
    (attribute_size,) = _U32.unpack_from(data, at)
    at += 4
    attributes = data[at : at + attribute_size]
    at += attribute_size
    lengths = array("I", data[at : at + 4 * count])
    if sys.byteorder == "big":
        lengths.byteswap()
    at += 4 * count
    ends = list(accumulate(lengths, initial=at))
    return attributes, [data[a:b] for a, b in pairwise(ends)]


def _join_blocks(parts: list[tuple[int, int, bytes, bytes, list[bytes]]]) -> Messages:
    bodies = parts[0][4] if len(parts) == 1 else [body for part in parts for body in part[4]]
    first = parts[0][0]
    if first in (FLAG_ALL_JSON, FLAG_ALL_BYTES) and all(part[0] == first for part in parts):
        return Messages(KIND_JSON if first == FLAG_ALL_JSON else KIND_BYTES, bodies, None)
    columns: list[dict[str, Any] | None] = []
    for flags, count, clear, attributes, _ in parts:
        columns.extend(_rows(flags, count, clear, attributes))
    return Messages(KIND_JSON, bodies, columns)


def _rows(flags: int, count: int, clear: bytes, attributes: bytes) -> list[dict[str, Any] | None]:
    """A block's columns as one dict a message; the kind is in it when it is not JSON."""
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    table: dict[str, Any] = {**(_unpack(clear) if clear else {}), **(_unpack(attributes) if attributes else {})}
    trace = table.pop("trace", None)
    kinds = table.pop("kind", bytes([KIND_BYTES]) * count if flags & FLAG_ALL_BYTES else bytes(count))
    for name, values in table.items():
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                row[name] = value
    for row, kind in zip(rows, kinds, strict=True):
        if kind != KIND_JSON:
            row["kind"] = kind
        if trace is not None:
            row["trace"] = trace
    return [row or None for row in rows]
