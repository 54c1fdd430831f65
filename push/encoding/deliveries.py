"""Encodes messages for a consumer: those of a lease, with receipts, and those of a stream, as bytes of frames.

Most messages are a body and nothing else. For those the common parts of a lease (time, token, field names) become one
template, and each message costs one `%`; `rows` does the same for messages with more. Bodies are handed on as they were
stored; they are converted only if the consumer's encoding is not the producer's.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Raw

from backend_store.client import KIND_BYTES, SUFFIXES, Chunk, Lease, full_message, holes, indexes, message_id
from push.encoding.rows import (
    BARE,
    NAMED,
    as_msgpack,
    escaped,
    json_columns,
    json_template,
    pack,
    pack_columns,
    pack_template,
    shown_columns,
    to_json,
)
from push.limits import RENDERED_PER_CHUNK_MAX
from push.ports import Encoding

ROWS_MIN = 3
"""Fewer messages are written one by one: columns pay off from this number on."""

SUFFIX_BYTES = tuple(s.encode() for s in SUFFIXES)

_JSON_FREE = b'"attempt":1,"receipt":null}'
_PACK_ATTEMPT = escaped("attempt")
_PACK_RECEIPT = escaped("receipt")
_PACK_FREE = _PACK_ATTEMPT + b"\x01" + _PACK_RECEIPT + b"\xc0"


# ----------------------------------------------------------------------------------------------------- deliver


def leased_messages(lease: Lease, encoding: Encoding) -> list[bytes]:
    """The messages of a lease, each encoded with its receipt. Callable once: the lease lets go of its chunk.

    A lease of messages that are settled already has no receipts: there is nothing left to ack.
    """
    chunk, lease.chunk = lease.chunk, None
    assert chunk is not None, "a lease is encoded once"
    kind, bodies, columns = chunk.messages
    if not lease.receipts:
        return _leased_rows(lease, chunk, encoding)
    if columns is not None:
        if encoding == "msgpack" and kind == KIND_BYTES and not lease.state.attempts and shown_columns(chunk) == NAMED:
            return _leasedpack_named(lease, chunk, bodies, columns["id"])
        return _leased_rows(lease, chunk, encoding)
    if encoding == "json":
        return _leased_json(lease, chunk, kind, bodies)
    return _leasedpack(lease, chunk, kind, bodies)


def _leased_json(lease: Lease, chunk: Chunk, kind: int, bodies: list[bytes]) -> list[bytes]:
    template = json_template(chunk.partition, chunk.shelf, chunk.time_ms, kind, BARE)
    template += b'"attempt":%%d,"receipt":"%b%%b"}' % lease.token.encode()
    base, attempts, suffixes = chunk.base, lease.state.attempts, SUFFIX_BYTES
    if kind == KIND_BYTES:
        return [
            template % (base + n, base + n, b64encode(bodies[n]), attempts.get(n, 1), suffixes[n])
            for n in indexes(lease.bits)
        ]
    if attempts:
        return [
            template % (base + n, base + n, bodies[n], attempts.get(n, 1), suffixes[n]) for n in indexes(lease.bits)
        ]
    return [template % (base + n, base + n, bodies[n], 1, suffixes[n]) for n in indexes(lease.bits)]


def _leasedpack(lease: Lease, chunk: Chunk, kind: int, bodies: list[bytes]) -> list[bytes]:
    template = pack_template(chunk.partition, chunk.shelf, chunk.time_ms, kind, BARE)
    template += _PACK_ATTEMPT + b"%b" + _receipt(lease.token)
    base, attempts, suffixes = chunk.base, lease.state.attempts, SUFFIX_BYTES
    write = pack if kind == KIND_BYTES else as_msgpack
    if attempts:
        counts = {n: pack(attempts.get(n, 1)) for n in indexes(lease.bits)}
        return [
            template % (base + n, (base + n).to_bytes(8, "big"), write(bodies[n]), counts[n], suffixes[n])
            for n in indexes(lease.bits)
        ]
    return [
        template % (base + n, (base + n).to_bytes(8, "big"), write(bodies[n]), b"\x01", suffixes[n])
        for n in indexes(lease.bits)
    ]


def _leasedpack_named(lease: Lease, chunk: Chunk, bodies: list[bytes], names: Sequence[str | None]) -> list[bytes]:
    """Encodes messages of bytes with ids of their own at their first attempt: those of publishes with idempotency
    keys."""
    template = pack_template(chunk.partition, chunk.shelf, chunk.time_ms, KIND_BYTES, NAMED)
    template += _PACK_ATTEMPT + b"\x01" + _receipt(lease.token)
    base, partition, suffixes = chunk.base, chunk.partition, SUFFIX_BYTES
    return [
        template
        % (
            pack(names[n] or message_id(partition, base + n)),
            (base + n).to_bytes(8, "big"),
            pack(bodies[n]),
            suffixes[n],
        )
        for n in indexes(lease.bits)
    ]


def _receipt(token: str) -> bytes:
    return _PACK_RECEIPT + b"\xd9" + bytes([len(token) + 2]).replace(b"%", b"%%") + token.encode() + b"%b"


def _leased_rows(lease: Lease, chunk: Chunk, encoding: Encoding) -> list[bytes]:
    numbers = list(indexes(lease.bits))
    if len(numbers) < ROWS_MIN:
        return [_leased_one(lease, chunk, number, encoding) for number in numbers]
    attempts = lease.state.attempts
    counts: Sequence[Any] = [attempts.get(n, 1) for n in numbers] if attempts else [1] * len(numbers)
    if encoding == "json":
        tail = b'"receipt":"%b%%b"}' % lease.token.encode() if lease.receipts else b'"receipt":null}'
        tail = b'"attempt":%d,' + tail
    else:
        tail = _PACK_ATTEMPT + b"%b" + (_receipt(lease.token) if lease.receipts else _PACK_RECEIPT + b"\xc0")
        counts = [pack(count) for count in counts]
    columns = [counts, [SUFFIX_BYTES[n] for n in numbers]] if lease.receipts else [counts]
    return _rows(chunk, numbers, encoding, tail, columns)


def _leased_one(lease: Lease, chunk: Chunk, number: int, encoding: Encoding) -> bytes:
    message = full_message(chunk, number)
    message["attempt"] = lease.attempt_of(number)
    message["receipt"] = lease.token + SUFFIXES[number] if lease.receipts else None
    if encoding == "json":
        return to_json(message)
    body = chunk.messages.bodies[number]
    message["body"] = body if message.pop("body_base64", None) is not None else Raw(as_msgpack(body))
    return pack(message)


def stream_messages(chunk: Chunk, start: int, stop: int, encoding: Encoding) -> list[bytes]:
    """Messages `start` to `stop` of a stream's chunk, without lease or receipt. `visible` says which of them exist."""
    return _rows(chunk, visible(chunk, start, stop), encoding, _JSON_FREE if encoding == "json" else _PACK_FREE, [])


def numbered_messages(chunk: Chunk, numbers: Sequence[int]) -> list[bytes]:
    """Some messages of a chunk as JSON, without a receipt; leaves out those that do not exist or cannot be read."""
    _ = chunk.messages  # `unreadable` is known only once the messages were read
    gone = holes(chunk) | chunk.unreadable
    there = [number for number in numbers if not gone >> number & 1] if gone else numbers
    return _rows(chunk, there, "json", _JSON_FREE, []) if there else []


def visible(chunk: Chunk, start: int, stop: int) -> Sequence[int]:
    """The numbers of the messages that exist and can be decrypted: a duplicate or a refused message leaves its offset
    empty."""
    gone = holes(chunk) | chunk.unreadable
    return range(start, stop) if not gone else [n for n in range(start, stop) if not gone >> n & 1]


def _rows(
    chunk: Chunk, numbers: Sequence[int], encoding: Encoding, tail: bytes, more: list[Sequence[Any]]
) -> list[bytes]:
    shape = chunk.partition, chunk.shelf, chunk.time_ms, chunk.messages.kind, shown_columns(chunk)
    if encoding == "json":
        template, columns = json_template(*shape) + tail, json_columns(chunk, numbers)
    else:
        template, columns = pack_template(*shape) + tail, pack_columns(chunk, numbers)
    return [template % row for row in zip(*columns, *more, strict=True)]


def keep_rendered(chunk: Chunk, key: tuple[Any, ...], data: bytes) -> None:
    """Caches a part of a chunk as its bytes, for the next reader of the same part. Readers in step share one or two."""
    if len(chunk.rendered) >= RENDERED_PER_CHUNK_MAX:
        chunk.rendered.clear()
    chunk.rendered[key] = data


def deliver_frame(sub: int, messages: list[bytes], encoding: Encoding, cursor: str | None = None) -> bytes:
    """A `deliver` frame around messages that are encoded already."""
    if encoding == "json":
        tail = b"]}" if cursor is None else b'],"cursor":"%b"}' % cursor.encode()
        return b'{"type":"deliver","sub":%d,"messages":[%b%b' % (sub, b",".join(messages), tail)
    head = bytes([0x83 if cursor is None else 0x84]) + _PACK_DELIVER + pack(sub) + _PACK_MESSAGES
    tail = b"" if cursor is None else _PACK_CURSOR + pack(cursor)
    return b"".join([head, array_header(len(messages)), *messages, tail])


_PACK_DELIVER = pack("type") + pack("deliver") + pack("sub")
_PACK_MESSAGES = pack("messages")
_PACK_CURSOR = pack("cursor")


def array_header(size: int) -> bytes:
    if size < 16:
        return bytes([0x90 | size])
    return b"\xdc" + size.to_bytes(2, "big") if size < 65536 else b"\xdd" + size.to_bytes(4, "big")


def encode(value: Any, encoding: Encoding) -> bytes:
    return to_json(value) if encoding == "json" else pack(value)


def join(frames: Iterable[bytes], encoding: Encoding) -> bytes:
    """Several encoded objects as one frame."""
    parts = list(frames)
    if len(parts) == 1:
        return parts[0]
    if encoding == "json":
        return b"[" + b",".join(parts) + b"]"
    return array_header(len(parts)) + b"".join(parts)


def cut(parts: list[bytes], size_max: int) -> list[list[bytes]]:
    """Groups encoded parts so that each group stays below a size; a part that is bigger has a group to itself."""
    if sum(map(len, parts)) <= size_max:
        return [parts] if parts else []
    groups: list[list[bytes]] = []
    size = 0
    for part in parts:
        if not groups or size + len(part) > size_max:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += len(part)
    return groups
