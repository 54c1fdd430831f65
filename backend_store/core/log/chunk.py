"""Chunks: the layout of messages in the log, and how they are read back for delivery.

The leader merges the blocks (see `block`) of one commit cycle into a *chunk*, the unit of log, checksum and
replication. All integers are big-endian.

    chunk = entry header (44 bytes) | block | block | ...
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from google_crc32c import extend as crc_extend

from backend_store.core.dedupe.message_ids import message_id
from backend_store.core.log.bits import indexes
from backend_store.core.log.block import (
    ABSENT,
    BLOCK_HEAD,
    CLEAR_COLUMNS,
    FLAG_ALL_BYTES,
    FLAG_CLEAR,
    FLAGS_KNOWN,
    KIND_BYTES,
    KIND_JSON,
    SEALED_COLUMNS,
    U32,
    Blocks,
    ChunkPlan,
    Columns,
    Draft,
    blocks_of,
    column_blocks,
    expanded,
    plain_blocks,
    plan_chunks,
    punch,
    unpack,
)
from backend_store.core.log.sealed_block import (
    NAMED,
    UNREADABLE_TYPE,
    CannotOpen,
    Seal,
    SealedBlock,
    blocks_in,
    whole_copies,
)
from backend_store.core.log.sublogs import MAIN, priority_of
from backend_store.model import CHUNK_MESSAGES_MAX, Block, Epoch, Offset

__all__ = [
    "CLEAR_COLUMNS",
    "ENTRY_CHUNK",
    "ENTRY_HEADER",
    "ENTRY_HEADER_BYTES",
    "ENTRY_RECORD",
    "ENTRY_VERSION",
    "KIND_BYTES",
    "KIND_JSON",
    "KIND_MIXED",
    "SEALED_COLUMNS",
    "Blocks",
    "Chunk",
    "ChunkPlan",
    "Columns",
    "CorruptEntry",
    "Draft",
    "Messages",
    "blocks_of",
    "claimed_messages",
    "clear_column",
    "column_blocks",
    "decode_chunk",
    "encode_entry",
    "extract",
    "holes",
    "message_id",
    "moved_whole",
    "plain_blocks",
    "plan_chunks",
    "punch",
    "read_messages",
]

ENTRY_VERSION = 1
ENTRY_CHUNK = 1
ENTRY_RECORD = 2

# version, type, flags, shelf, epoch, offset, time ms, messages, blocks, payload bytes, trace bytes, prev_crc, crc
ENTRY_HEADER = struct.Struct(">BBBBIQQHHIIII")
ENTRY_HEADER_BYTES = ENTRY_HEADER.size
ENTRY_CRC_AT = ENTRY_HEADER_BYTES - 4
_FLAGS_AT = 2
ENTRY_BARE = 1
"""Flag of a chunk none of whose blocks has a clear part to be read. Entries older than the flag lack it."""

KIND_MIXED = 2
"""The messages of a chunk have different kinds: the column `kind` has the kind of each."""

_FLAGS_OF = itemgetter(0)
"""The flags of a block."""


class CorruptEntry(Exception):
    """Stored bytes that do not verify; the entry must not be served. The message says what was expected."""


def encode_entry(
    entry_type: int,
    payload: Sequence[bytes],
    *,
    seed: int,
    epoch: Epoch,
    offset: Offset,
    time_ms: int,
    count: int,
    shelf: int = MAIN,
    prev_crc: int = 0,
) -> tuple[bytes, int]:
    """Returns one log entry and its checksum. `seed` is the partition's number, which reveals a misplaced entry."""
    body = b"".join(payload)
    flags = 0
    if entry_type == ENTRY_CHUNK and not any(flags & FLAG_CLEAR for flags in set(map(_FLAGS_OF, payload))):
        flags = ENTRY_BARE
    head = ENTRY_HEADER.pack(
        ENTRY_VERSION, entry_type, flags, shelf, epoch, offset, time_ms, count, len(payload), len(body), 0, prev_crc, 0
    )
    crc = crc_extend(crc_extend(seed, head[:ENTRY_CRC_AT]), body)
    return b"".join([head[:ENTRY_CRC_AT], U32.pack(crc), body]), crc


class Chunk:
    """A verified chunk: its header, and its messages, decoded lazily and once for all consumers of this process."""

    __slots__ = (
        "base",
        "blocks",
        "count",
        "data",
        "epoch",
        "partition",
        "rendered",
        "seal",
        "shelf",
        "time_ms",
        "uid",
        "why_unreadable",
        "_clear",
        "_messages",
        "_unreadable",
    )

    def __init__(
        self, data: bytes, *, epoch: Epoch, base: Offset, time_ms: int, count: int, shelf: int = MAIN, blocks: int
    ):
        self.data = data
        self.epoch = epoch
        self.base = base
        self.time_ms = time_ms
        self.count = count
        self.shelf = shelf
        self.blocks = blocks
        self.partition = 0
        """Number, within the queue, of the partition from which the chunk was read."""
        self.uid = 0
        """The uid of that queue, which the cursors of its readers name."""
        self.rendered: dict[Any, Any] = {}
        self.seal: Seal | None = None
        """Opens the sealed blocks of the chunk."""
        self.why_unreadable = ""
        self._unreadable = 0
        self._clear: list[tuple[int, int, dict[str, Any]]] | None = [] if data[_FLAGS_AT] & ENTRY_BARE else None
        self._messages: Messages | None = None

    def cut(self) -> None:
        """Decodes the messages now. Raises `CorruptEntry`."""
        self._messages = self._messages or read_messages(self)

    @property
    def messages(self) -> Messages:
        if self._messages is None:
            self._messages = read_messages(self)
        return self._messages

    @property
    def unreadable(self) -> int:
        """The bits of messages whose block cannot be opened. In `messages` their bodies are empty."""
        self.cut()
        return self._unreadable

    @property
    def is_sealed(self) -> bool:
        """Whether some of its blocks are sealed, so that bodies and headers cannot be read from its bytes."""
        return any(key_id for key_id, _, _ in blocks_in(self.data, ENTRY_HEADER_BYTES, self.blocks))

    def lacks(self, bits: int, why: str) -> None:
        """Marks some of its messages as unreadable, with the reason."""
        self._unreadable |= bits
        self.why_unreadable = why

    @property
    def clear(self) -> list[tuple[int, int, dict[str, Any]]]:
        """(first message, messages, clear part) of each block that has one. Reads heads and clear parts only."""
        if self._clear is None:
            self._clear = _read_clear(self)
        return self._clear


class Messages(NamedTuple):
    """A chunk's messages. `columns` is None if all messages have bodies of one kind and nothing else.

    Otherwise it has one list per column that any message has; `ABSENT` or None stands for messages without a value.
    """

    kind: int
    bodies: list[bytes]
    columns: dict[str, list[Any]] | None


def decode_chunk(data: bytes, *, seed: int, offset: Offset | None = None) -> Chunk:
    """Verifies a stored chunk and returns it. Raises `CorruptEntry`."""
    if len(data) < ENTRY_HEADER_BYTES:
        raise CorruptEntry(f"an entry of {len(data)} bytes is shorter than its header")
    (version, entry_type, _flags, shelf, epoch, base, time_ms, count, blocks, size, _trace, _prev, crc) = (
        ENTRY_HEADER.unpack_from(data)
    )
    if version != ENTRY_VERSION or entry_type != ENTRY_CHUNK:
        raise CorruptEntry(
            f"entry version {version} type {entry_type}: this program reads version {ENTRY_VERSION} chunks"
        )
    if len(data) != ENTRY_HEADER_BYTES + size:
        raise CorruptEntry(f"an entry of {len(data)} bytes says it has {ENTRY_HEADER_BYTES + size}")
    found = crc_extend(crc_extend(seed, data[:ENTRY_CRC_AT]), data[ENTRY_HEADER_BYTES:])
    if found != crc:
        raise CorruptEntry(f"checksum {found:08x}, stored {crc:08x}")
    if offset is not None and offset != base:
        raise CorruptEntry(f"entry of offset {base} lies at offset {offset}")
    return Chunk(data, epoch=Epoch(epoch), base=Offset(base), time_ms=time_ms, count=count, shelf=shelf, blocks=blocks)


def claimed_messages(data: bytes) -> int:
    """Returns how many messages a damaged entry claims to hold; 0 if not even its header can be read."""
    if len(data) < ENTRY_HEADER_BYTES:
        return 0
    count: int = ENTRY_HEADER.unpack_from(data)[7]
    return min(count, CHUNK_MESSAGES_MAX)


# ------------------------------------------------------------------------------------------------- clear parts


def clear_column(chunk: Chunk, name: str) -> list[Any] | None:
    """Returns one clear column for all messages of a chunk, or None if no message has it. Reads no sealed parts."""
    found: list[Any] | None = None
    for start, count, clear in chunk.clear:
        values = clear.get(name)
        if values is None:
            continue
        if found is None:
            found = [ABSENT.get(name)] * chunk.count
        found[start : start + count] = expanded(name, values, count)
    return found


def holes(chunk: Chunk) -> int:
    """Returns the bits of holes, places in the chunk whose message was removed: see `punch`."""
    bits = 0
    for start, _, clear in chunk.clear:
        if "gone" in clear:
            bits |= int.from_bytes(clear["gone"], "little") << start
    return bits


def _read_clear(chunk: Chunk) -> list[tuple[int, int, dict[str, Any]]]:
    found, at, start = [], ENTRY_HEADER_BYTES, 0
    for _ in range(chunk.blocks):
        _flags, _key_id, count, clear_size, sealed_size = BLOCK_HEAD.unpack_from(chunk.data, at)
        at += BLOCK_HEAD.size
        if clear_size:
            found.append((start, count, unpack(chunk.data[at : at + clear_size])))
        start += count
        at += clear_size + sealed_size
    return found


# ------------------------------------------------------------------------------------------------- all messages


def read_messages(chunk: Chunk) -> Messages:
    """Decodes the messages of a verified chunk. Raises `CorruptEntry` for blocks that this program does not know.

    Sealed blocks are opened here, once per chunk; one that cannot be opened is `unreadable`. So is an unsealed block in
    a queue whose blocks are all sealed: no producer can have put it on the disk.
    """
    data, at = chunk.data, ENTRY_HEADER_BYTES
    clears = {start: clear for start, _, clear in chunk.clear}
    bodies: list[bytes] = []
    kinds: list[bytes] = []
    columns: dict[str, list[Any]] = {}
    takes_plain = chunk.seal is None or not chunk.seal.is_always
    for _ in range(chunk.blocks):
        flags, key_id, count, clear_size, sealed_size = BLOCK_HEAD.unpack_from(data, at)
        if flags & ~FLAGS_KNOWN:
            raise CorruptEntry(f"block flags {flags:#x}: this program does not know them")
        at += BLOCK_HEAD.size + clear_size
        if key_id:
            clear = clears.get(len(bodies), {})
            sealed = SealedBlock(flags, key_id, count, clear, data[at : at + sealed_size])
            flags, attributes, own = _opened(chunk, sealed, len(bodies), count)
        elif takes_plain:
            attributes, own = read_sealed(data, at, count)
        else:
            flags, attributes, own = _opened(chunk, None, len(bodies), count)
        at += sealed_size
        if not clear_size and not attributes:
            kinds.append(_kinds_of_all(flags, count))
            bodies += own
            continue
        table = {**clears.get(len(bodies), {}), **attributes}
        kinds.append(block_kinds(flags, count, table))
        for name, values in table.items():
            if name not in columns:
                columns[name] = [ABSENT.get(name)] * chunk.count
            columns[name][len(bodies) : len(bodies) + count] = expanded(name, values, count)
        bodies += own
    return _messages(bodies, b"".join(kinds), columns)


def _opened(chunk: Chunk, block: SealedBlock | None, first: int, count: int) -> tuple[int, dict[str, Any], list[bytes]]:
    """Returns a sealed block's flags, attributes and bodies; placeholders if it cannot be opened. `block` None: a block
    that is not sealed, but should be.
    """
    try:
        if block is None:
            assert chunk.seal is not None, "without a seal nothing must be sealed"
            chunk.seal.refuse_plain()
        if chunk.seal is None:
            raise CannotOpen(f"key {block.key_id} is not there")
        return block.flags, *read_sealed(chunk.seal.open(block), 0, count)
    except CannotOpen as error:
        chunk.lacks(((1 << count) - 1) << first, f"cannot be decrypted: {error}")
        return FLAG_ALL_BYTES, {"content_type": UNREADABLE_TYPE}, [b""] * count


def read_sealed(data: bytes, at: int, count: int) -> tuple[dict[str, Any], list[bytes]]:
    """Returns a block's attributes and bodies from the bytes of its sealed part."""
    (attribute_size,) = U32.unpack_from(data, at)
    at += 4
    attributes: dict[str, Any] = unpack(data[at : at + attribute_size]) if attribute_size else {}
    at += attribute_size
    if count == 1:  # one message per call is a very frequent case
        at, end = at + 4, at + 4 + int.from_bytes(data[at : at + 4], "little")
        return attributes, [data[at:end]]
    lengths = array("I", data[at : at + 4 * count])
    if sys.byteorder == "big":
        lengths.byteswap()
    at += 4 * count
    ends = list(accumulate(lengths, initial=at))
    return attributes, [data[a:b] for a, b in pairwise(ends)]


def block_kinds(flags: int, count: int, table: dict[str, Any]) -> bytes:
    """Removes the block-level entries from a block's table, which leaves the columns. Returns a kind per message."""
    table.pop("gone", None)
    table.pop(NAMED, None)
    mixed: bytes = table.pop("kind", b"")
    return mixed or _kinds_of_all(flags, count)


def _kinds_of_all(flags: int, count: int) -> bytes:
    return (b"\1" if flags & FLAG_ALL_BYTES else b"\0") * count


def _messages(bodies: list[bytes], kinds: bytes, columns: dict[str, list[Any]]) -> Messages:
    if kinds.count(kinds[0]) == len(kinds):
        return Messages(kinds[0], bodies, columns or None)
    return Messages(KIND_MIXED, bodies, {**columns, "kind": list(kinds)})


# ----------------------------------------------------------------------------------------------------- moving


def extract(chunk: Chunk, bits: int, annexes: Mapping[int, Mapping[str, Any]], *, partition: int) -> list[Block]:
    """Returns some of a chunk's messages as new blocks, to be stored elsewhere; none of them may be unreadable.

    What followed from their place in the log is written out: the id and the publish time. `annexes` has columns to add
    by the message's number in the chunk; a value of None removes a column.
    """
    kind, bodies, columns = chunk.messages
    assert not bits & ~holes(chunk) & chunk.unreadable, "what cannot be read is moved in whole blocks"
    numbers = list(indexes(bits & ~holes(chunk)))
    if not numbers:
        return []
    table = {name: [values[n] for n in numbers] for name, values in (columns or {}).items()}
    kinds = bytes(table.pop("kind")) if kind == KIND_MIXED else kind
    none = [None] * len(numbers)
    ids = zip(table.get("id", none), numbers, strict=True)
    table["id"] = [given or message_id(partition, chunk.base + n) for given, n in ids]
    table["at"] = [chunk.time_ms if at is None else at for at in table.get("at", none)]
    for place, number in enumerate(numbers):
        for name, value in annexes.get(number, {}).items():
            table.setdefault(name, [ABSENT.get(name)] * len(numbers))[place] = value or ABSENT.get(name)
    moved = Columns(kinds, [bodies[n] for n in numbers], table, [priority_of(chunk.shelf)] * len(numbers))
    return column_blocks(moved).blocks


def moved_whole(chunk: Chunk, bits: int, annexes: Mapping[int, Mapping[str, Any]], *, partition: int) -> list[Block]:
    """Like `extract`, for messages whose blocks cannot be opened: they stay sealed, to be opened later if possible."""
    return whole_copies(chunk, bits & ~holes(chunk), annexes, blocks_at=ENTRY_HEADER_BYTES, partition=partition)
