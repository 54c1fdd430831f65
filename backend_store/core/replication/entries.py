"""Entries: the unit of log and replication, bytes with a header that says where in the log they belong.

An entry is a chunk of messages, a decision record, or the *barrier* that a leader appends first. Followers store the
leader's bytes. `prev_crc` chains each entry to the previous one and is covered by the entry's own checksum, so two logs
that share an entry share everything below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from google_crc32c import extend as crc_extend

from backend_store.core.log.chunk import (
    ENTRY_CRC_AT,
    ENTRY_HEADER,
    ENTRY_HEADER_BYTES,
    ENTRY_RECORD,
    ENTRY_VERSION,
    CorruptEntry,
    encode_entry,
)
from backend_store.model import Epoch, Offset

ENTRY_BARRIER = 3
"""First entry of each epoch; it takes one offset and has no content."""


class Draft(NamedTuple):
    """An entry before the leader appends it: a payload that takes `offsets` offsets."""

    offsets: int
    payload: Sequence[bytes]
    kind: int = ENTRY_RECORD


class Entry(NamedTuple):
    """An entry of the log with its decoded header. `data` has the header and the payload."""

    offset: Offset
    offsets: int
    epoch: Epoch
    time_ms: int
    prev_crc: int
    crc: int
    data: bytes

    @property
    def end(self) -> Offset:
        return Offset(self.offset + self.offsets)

    @property
    def payload(self) -> bytes:
        return self.data[ENTRY_HEADER_BYTES:]


def seal(draft: Draft, *, partition: int, epoch: Epoch, offset: Offset, time_ms: int, prev_crc: int) -> Entry:
    data, crc = encode_entry(
        draft.kind,
        draft.payload,
        seed=partition,
        epoch=epoch,
        offset=offset,
        time_ms=time_ms,
        count=draft.offsets,
        prev_crc=prev_crc,
    )
    return Entry(offset, draft.offsets, epoch, time_ms, prev_crc, crc, data)


def decode(data: bytes, *, partition: int) -> Entry:
    """Verifies an entry's checksum and lengths, and returns the entry. Raises `CorruptEntry`."""
    if len(data) < ENTRY_HEADER_BYTES:
        raise CorruptEntry(f"an entry of {len(data)} bytes is shorter than its header")
    (version, _type, _flags, _shelf, epoch, offset, time_ms, count, _blocks, size, _trace, prev_crc, crc) = (
        ENTRY_HEADER.unpack_from(data)
    )
    if version != ENTRY_VERSION or len(data) != ENTRY_HEADER_BYTES + size or count < 1:
        raise CorruptEntry(f"entry version {version} of {len(data)} bytes says it has {count} offsets in {size} bytes")
    if crc != crc_extend(crc_extend(partition, data[:ENTRY_CRC_AT]), data[ENTRY_HEADER_BYTES:]):
        raise CorruptEntry(f"entry at offset {offset}: its checksum is not {crc:08x}")
    return Entry(Offset(offset), count, Epoch(epoch), time_ms, prev_crc, crc, data)
