"""Blocks: the first step of a publish, the messages of one call encoded once and stored as they are.

A gateway encodes the messages of a call into *blocks*; the leader merges the blocks of one commit cycle into a *chunk*
(see `chunk`). All integers are big-endian except the column of lengths, which is little-endian so that it can be read
as an array.

    block  = flags u8 | key id u32 | count u16 | clear bytes u32 | sealed bytes u32 | clear | sealed
    clear  = MessagePack {"id": column, "key": column, ..., "gone": bytes}, only what is present (backends may read it)
    sealed = attributes bytes u32 | attributes | lengths u32[count] | bodies       (if key id > 0, see `sealed_block`)
    attributes = MessagePack {"kind": bytes, "content_type": column, "headers": column, ...}, only what is present
    column = a list with one value per message, nil for a message without one; or one value for the whole block;
             for ids also {"prefix": text, "first": number}: each id is the prefix and the next number
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from backend_store.core.dedupe.numbered_ids import NumberedNames, listed, name_in_call
from backend_store.model import (
    BLOCK_BYTES_MAX,
    BLOCK_MESSAGES_MAX,
    CHUNK_BYTES_MAX,
    CHUNK_MESSAGES_MAX,
    Block,
    Claim,
    Stamp,
    Traits,
)

BLOCK_HEAD = struct.Struct(">BIHII")
U32 = struct.Struct(">I")
_HEAD_OF_ONE = struct.Struct(">BIHIII")
"""A block head without a clear part, followed by an attribute size of 0."""
_LENGTH_OF_ONE = struct.Struct("<I")

FLAG_CLEAR = 1
FLAG_ATTRIBUTES = 2
FLAG_ALL_JSON = 4
FLAG_ALL_BYTES = 8
FLAGS_KNOWN = FLAG_CLEAR | FLAG_ATTRIBUTES | FLAG_ALL_JSON | FLAG_ALL_BYTES

BYTES_BESIDE_BODY = 4
"""Bytes that a message with nothing but a body adds to its block beside the body: the length."""

KIND_JSON = 0
KIND_BYTES = 1

CLEAR_COLUMNS = frozenset({"id", "key", "exp", "ts", "pr", "ps", "dead", "at", "late", "trace"})
"""Columns that the store itself reads: id, key, expiry (ms; 0: never), stamp (time in µs, producer, its number), cause
of death, first publish time (ms), whether the message was late, and trace context. Only consumers read the others."""
SEALED_COLUMNS = frozenset({"content_type", "headers", "reply_to", "correlation_id"})
ABSENT: Mapping[str, Any] = {"exp": 0}
"""The value of a column for a message without one, where that is not None."""

pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder().decode


class Draft(NamedTuple):
    """One message before it is encoded: a body of one kind, and the other fields that the caller gave."""

    kind: int
    body: bytes
    columns: dict[str, Any] | None
    priority: int = 0
    due_ms: int = 0
    expires_ms: int = 0
    stamp: Stamp | None = None
    dedupe: bytes | None = None


class Columns(NamedTuple):
    """The messages of one call, column by column. A column that no message has is None."""

    kind: int | bytes
    """One kind for all messages, or one byte per message."""
    bodies: Sequence[bytes]
    table: Mapping[str, Sequence[Any]] = {}
    """`CLEAR_COLUMNS` and `SEALED_COLUMNS` by name."""
    priorities: Sequence[int] | None = None
    dues: Sequence[int] | None = None
    hashes: Sequence[bytes | None] | None = None
    stamps: Sequence[Stamp | None] | None = None
    slots: Sequence[int] | None = None
    """The slot of each message, in a queue with several partitions."""
    partitions: Sequence[int] | None = None
    """The partition that has the slot of each message."""
    claim: Claim | None = None
    """The claim of a call under an idempotency key."""


class Blocks(NamedTuple):
    """A call's messages as blocks. `order`: for each message in the blocks its number in the call; None: unchanged."""

    blocks: list[Block]
    order: list[int] | None = None


# ------------------------------------------------------------------------------------------------------- build


def plain_blocks(
    kind: int,
    bodies: Sequence[bytes],
    trace: str | None = None,
    names: NumberedNames | None = None,
    lengths: list[int] | None = None,
) -> list[Block]:
    """Returns blocks of messages that have a body of one kind, at most an id, and nothing else: the hot path, which
    handles whole columns. `lengths`: the lengths of the bodies, if known.
    """
    flags = FLAG_ALL_JSON if kind == KIND_JSON else FLAG_ALL_BYTES
    if len(bodies) == 1 and not trace and names is None:
        return [_block_of_one(flags, bodies[0])]
    if lengths is None:
        lengths = list(map(len, bodies))
    clear: dict[str, Any] = {"trace": trace} if trace else {}
    blocks = []
    for start, end in _spans(lengths):
        if names is not None:
            clear["id"] = names.packed(start)
        data = _encode(flags, bodies[start:end], lengths[start:end], clear, {})
        blocks.append(Block(data, end - start))
    return blocks


def _block_of_one(flags: int, body: bytes) -> Block:
    """Returns the block that `_encode` makes of a single body, by a shorter way."""
    size = len(body)
    return Block(_HEAD_OF_ONE.pack(flags, 0, 1, 0, 8 + size, 0) + _LENGTH_OF_ONE.pack(size) + body, 1)


def blocks_of(drafts: Sequence[Draft], trace: str | None = None) -> Blocks:
    """Returns blocks of messages with any fields."""
    names = {name for draft in drafts if draft.columns for name in draft.columns}
    table: dict[str, list[Any]] = {name: [(d.columns or {}).get(name) for d in drafts] for name in names}
    if any(d.expires_ms for d in drafts):
        table["exp"] = [d.expires_ms for d in drafts]
    stamps, hashes = [d.stamp for d in drafts], [d.dedupe for d in drafts]
    if any(stamps):
        table["ts"] = [(s.time_us or None) if s else None for s in stamps]
        table["pr"] = [(s.producer or None) if s else None for s in stamps]
        table["ps"] = [(s.number or None) if s else None for s in stamps]
    columns = Columns(
        bytes([d.kind for d in drafts]),
        [d.body for d in drafts],
        table,
        [d.priority for d in drafts],
        [d.due_ms for d in drafts],
        hashes if any(hashes) else None,
        stamps if any(stamps) else None,
    )
    return column_blocks(columns, trace)


def column_blocks(columns: Columns, trace: str | None = None) -> Blocks:
    """Returns blocks of messages given as columns, in their order, except that each block has one partition, one
    priority and one due time.
    """
    count = len(columns.bodies)
    priorities, dues, partitions = columns.priorities, columns.dues, columns.partitions
    if trace:
        columns = columns._replace(table={**columns.table, "trace": [trace] * count})
    priority = priorities[0] if priorities else 0
    due_ms = dues[0] if dues else 0
    is_one = priorities is None or priorities.count(priority) == count
    is_one = is_one and (partitions is None or partitions.count(partitions[0]) == count)
    if is_one and (dues is None or dues.count(due_ms) == count):
        return Blocks(_group_blocks(columns, priority, due_ms))
    columns = with_names(columns)
    none = [0] * count
    groups: dict[tuple[int, int, int], list[int]] = {}
    for number, place in enumerate(zip(partitions or none, priorities or none, dues or none, strict=True)):
        groups.setdefault(place, []).append(number)
    out = Blocks([], [])
    assert out.order is not None
    for (_, priority, due_ms), numbers in groups.items():
        out.blocks.extend(_group_blocks(chosen(columns, numbers), priority, due_ms))
        out.order.extend(numbers)
    return out


def with_names(columns: Columns) -> Columns:
    """Gives each message of a call under an idempotency key a dedupe hash of its own, because the messages will not be
    stored together.
    """
    claim, count = columns.claim, len(columns.bodies)
    if claim is None:
        return columns
    known = columns.hashes or [None] * count
    return columns._replace(hashes=[name_in_call(claim, n) if h is None else h for n, h in enumerate(known)])


def chosen(columns: Columns, numbers: Sequence[int]) -> Columns:
    """Returns columns with only these messages, in this order."""
    kind, hashes, stamps, slots = columns.kind, columns.hashes, columns.stamps, columns.slots
    return Columns(
        kind if isinstance(kind, int) else bytes([kind[n] for n in numbers]),
        [columns.bodies[n] for n in numbers],
        {name: [values[n] for n in numbers] for name, values in columns.table.items()},
        hashes=hashes and [hashes[n] for n in numbers],
        stamps=stamps and [stamps[n] for n in numbers],
        slots=slots and [slots[n] for n in numbers],
    )


def _group_blocks(columns: Columns, priority: int, due_ms: int) -> list[Block]:
    lengths = list(map(len, columns.bodies))
    if len(lengths) == 1:
        return [_block(columns, lengths, priority, due_ms)]
    sizes = _sizes(lengths, columns.table)
    if len(sizes) <= BLOCK_MESSAGES_MAX and sum(sizes) <= BLOCK_BYTES_MAX:
        return [_block(columns, lengths, priority, due_ms)]
    blocks = []
    for start, end in _spans(sizes):
        kind, hashes, stamps, slots = columns.kind, columns.hashes, columns.stamps, columns.slots
        part = Columns(
            kind if isinstance(kind, int) else kind[start:end],
            columns.bodies[start:end],
            {name: values[start:end] for name, values in columns.table.items()},
            hashes=hashes and hashes[start:end],
            stamps=stamps and stamps[start:end],
            slots=slots and slots[start:end],
        )
        blocks.append(_block(part, lengths[start:end], priority, due_ms))
    return blocks


def _sizes(lengths: list[int], table: Mapping[str, Sequence[Any]]) -> list[int]:
    """Estimates the bytes of each message: its body, its texts and its headers."""
    sizes = lengths
    for name, values in table.items():
        if name == "headers":
            more = [sum(map(len, v)) + sum(map(len, v.values())) if v else 0 for v in values]
        elif name == "dead":
            more = [len(pack(v)) if v else 0 for v in values]
        elif name in ("exp", "ts", "ps", "at", "late") or isinstance(values, NumberedNames):
            continue
        else:
            more = [len(v) if v else 0 for v in values]
        sizes = [a + b for a, b in zip(sizes, more, strict=True)]
    return sizes


def _spans(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Splits a call's messages into blocks within the limits, as (start, end); a bigger message has its own block."""
    count = len(sizes)
    if max(sizes) * min(count, BLOCK_MESSAGES_MAX) <= BLOCK_BYTES_MAX:
        return [(start, min(start + BLOCK_MESSAGES_MAX, count)) for start in range(0, count, BLOCK_MESSAGES_MAX)]
    ends = [0, *accumulate(sizes)]
    spans, start = [], 0
    while start < count:
        fitting = bisect_right(ends, ends[start] + BLOCK_BYTES_MAX, start + 1) - 1
        end = max(start + 1, min(start + BLOCK_MESSAGES_MAX, fitting))
        spans.append((start, end))
        start = end
    return spans


def block_of(columns: Columns, priority: int, due_ms: int) -> Block:
    """Returns one block of messages that fit into one."""
    return _block(columns, list(map(len, columns.bodies)), priority, due_ms)


def _block(columns: Columns, lengths: list[int], priority: int, due_ms: int) -> Block:
    kind, bodies, count = columns.kind, columns.bodies, len(lengths)
    clear: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    for name, values in columns.table.items():
        if isinstance(values, NumberedNames):
            clear[name] = values.packed()
            continue
        first = values[0]
        is_one = values.count(first) == count
        if not is_one or (first is not None and first != ABSENT.get(name)):
            (clear if name in CLEAR_COLUMNS else attributes)[name] = first if is_one else values
    flags = 0
    if isinstance(kind, bytes) and kind.count(kind[0]) < count:
        attributes["kind"] = kind
    else:
        flags = FLAG_ALL_BYTES if (kind if isinstance(kind, int) else kind[0]) == KIND_BYTES else FLAG_ALL_JSON
    data = _encode(flags, bodies, lengths, clear, attributes)
    return Block(data, count, priority, due_ms, _traits(columns, clear), _bits(columns.slots))


def _bits(slots: Sequence[int] | None) -> int:
    bits = 0
    for slot in set(slots or ()):
        bits |= 1 << slot
    return bits


def _traits(columns: Columns, clear: dict[str, Any]) -> Traits | None:
    """Returns the part of a block's columns that the leader must read, or None if it need not read any."""
    hashes, stamps, table = columns.hashes, columns.stamps, columns.table
    if hashes is None and stamps is None and "key" not in clear and "exp" not in clear:
        return None
    return Traits(
        hashes if hashes is not None and any(hashes) else None,
        table["key"] if "key" in clear else None,
        table["exp"] if "exp" in clear else None,
        stamps if stamps is not None and any(stamps) else None,
    )


def _encode(
    flags: int, bodies: Sequence[bytes], lengths: list[int], clear: dict[str, Any], attributes: dict[str, Any]
) -> bytes:
    clear_bytes = pack(clear) if clear else b""
    attribute_bytes = pack(attributes) if attributes else b""
    flags |= (FLAG_CLEAR if clear else 0) | (FLAG_ATTRIBUTES if attributes else 0)
    column = array("I", lengths)
    if sys.byteorder == "big":
        column.byteswap()
    sealed_size = 4 + len(attribute_bytes) + BYTES_BESIDE_BODY * len(lengths) + sum(lengths)
    head = BLOCK_HEAD.pack(flags, 0, len(lengths), len(clear_bytes), sealed_size)
    return b"".join([head, clear_bytes, U32.pack(len(attribute_bytes)), attribute_bytes, column, *bodies])


def expanded(name: str, values: Any, count: int) -> list[Any]:
    """Returns a column with one value per message."""
    if isinstance(values, list):
        return values
    if name == "id" and isinstance(values, dict):
        return listed(values, count)
    return [values] * count


# ------------------------------------------------------------------------------------------------- on the leader


def punch(block: Block, bits: int) -> Block:
    """Returns the block with some messages marked as holes: duplicates and refused ones. Their offsets stay used.

    Only the clear part is rewritten, since the leader cannot read the rest.
    """
    flags, key_id, count, clear_size, sealed_size = BLOCK_HEAD.unpack_from(block.data)
    end = BLOCK_HEAD.size + clear_size
    clear: dict[str, Any] = unpack(block.data[BLOCK_HEAD.size : end]) if clear_size else {}
    gone = int.from_bytes(clear.get("gone", b""), "little") | bits
    if not gone:
        return block
    clear_bytes = pack({**clear, "gone": gone.to_bytes((gone.bit_length() + 7) // 8, "little")})
    head = BLOCK_HEAD.pack(flags | FLAG_CLEAR, key_id, count, len(clear_bytes), sealed_size)
    return msgspec.structs.replace(block, data=b"".join([head, clear_bytes, block.data[end:]]))


def gone_of(block: Block) -> int:
    """Returns the bits of a block's holes: see `punch`."""
    flags, _, _, clear_size, _ = BLOCK_HEAD.unpack_from(block.data)
    if not clear_size or not flags & FLAG_CLEAR:
        return 0
    clear: dict[str, Any] = unpack(block.data[BLOCK_HEAD.size : BLOCK_HEAD.size + clear_size])
    return int.from_bytes(clear.get("gone", b""), "little")


_GONE = pack("gone")
_CLEAR_SIZE = slice(7, 11)
"""The size of the clear part, within a block's head."""


def has_holes(blocks: Sequence[Block]) -> bool:
    """Whether some of these messages may be holes; False is certain."""
    for block in blocks:
        data = block.data
        if data.find(_GONE, BLOCK_HEAD.size, BLOCK_HEAD.size + int.from_bytes(data[_CLEAR_SIZE])) >= 0:
            return True
    return False


def has_letters(block: Block) -> bool:
    """Whether some of a block's messages are dead letters, which have a cause of death."""
    flags, _, _, clear_size, _ = BLOCK_HEAD.unpack_from(block.data)
    if not clear_size or not flags & FLAG_CLEAR:
        return False
    found = unpack(block.data[BLOCK_HEAD.size : BLOCK_HEAD.size + clear_size]).get("dead")
    return any(found) if isinstance(found, list) else found is not None


class ChunkPlan(NamedTuple):
    """Blocks that share a chunk, and their number of messages."""

    blocks: list[bytes]
    messages: int


def plan_chunks(blocks: Sequence[Block]) -> list[ChunkPlan]:
    """Groups blocks of one shelf into chunks within the limits, in order."""
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
