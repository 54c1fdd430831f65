"""Messages as bytes of a frame: whole batches through templates, one odd message at a time through dictionaries.

Most messages are a body and nothing else. For those a lease's common parts (time, token, names of fields) become one
template, and each message costs one `%`. Bodies are handed on as they were stored; only a consumer whose encoding is
not the producer's makes them be converted.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from backend_store.client import KIND_BYTES, SUFFIXES, Chunk, Lease, full_message, indexes, message_id, timestamp
from backend_store.model import Published
from push.limits import RENDERED_PER_CHUNK_MAX
from push.ports import Encoding

_json = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_parse_json = msgspec.json.Decoder().decode

SUFFIX_BYTES = tuple(s.encode() for s in SUFFIXES)

TEMPLATES_MAX = 256
"""Templates kept: chunks of one commit share one, and a chunk is leased several times."""

# ------------------------------------------------------------------------------------------------ JSON template

_JSON_HEAD = b'{"id":"0-%%012x","seq":%%d,"partition":0,%s,"content_type":"%s","headers":{},"key":null,'
_JSON_TAIL = b'"priority":0,"published_at":"%s",'
_JSON_LEASED = b'"attempt":%%d,"receipt":"%s%%b"}'
_JSON_FREE = b'"attempt":1,"receipt":null}'


@lru_cache(maxsize=TEMPLATES_MAX)
def _json_template(time_ms: int, kind: int) -> bytes:
    if kind == KIND_BYTES:
        head = _JSON_HEAD % (b'"body_base64":"%b"', b"application/octet-stream")
    else:
        head = _JSON_HEAD % (b'"body":%b', b"application/json")
    return head + _JSON_TAIL % timestamp(time_ms).encode()


def _json_bodies(kind: int, bodies: list[bytes]) -> list[bytes]:
    return [b64encode(b) for b in bodies] if kind == KIND_BYTES else bodies


# ----------------------------------------------------------------------------------------- MessagePack template


def _escaped(value: Any) -> bytes:
    return _pack(value).replace(b"%", b"%%")


_PACK_ID = _escaped("id") + b"\xae0-%012x" + _escaped("seq") + b"\xcf%b" + _escaped("partition") + b"\x00"
_PACK_BODY = _escaped("body") + b"%b%b"
_PACK_LEASED_FIELDS = 11


@lru_cache(maxsize=TEMPLATES_MAX)
def _pack_template(time_ms: int, kind: int) -> bytes:
    content_type = "application/octet-stream" if kind == KIND_BYTES else "application/json"
    constant: dict[str, Any] = {"headers": {}, "key": None, "priority": 0}
    middle = b"".join(_escaped(k) + _escaped(v) for k, v in constant.items())
    return (
        bytes([0x80 | _PACK_LEASED_FIELDS])
        + _PACK_ID
        + _PACK_BODY
        + _escaped("content_type")
        + _escaped(content_type)
        + middle
        + _escaped("published_at")
        + _escaped(timestamp(time_ms))
    )


def _bin_header(size: int) -> bytes:
    if size < 256:
        return b"\xc4" + size.to_bytes(1, "big")
    return b"\xc5" + size.to_bytes(2, "big") if size < 65536 else b"\xc6" + size.to_bytes(4, "big")


_BIN_HEADERS = tuple(_bin_header(n) for n in range(1024))


def _pack_body(kind: int, body: bytes) -> tuple[bytes, bytes]:
    if kind == KIND_BYTES:
        size = len(body)
        return (_BIN_HEADERS[size] if size < 1024 else _bin_header(size)), body
    return b"", as_msgpack(body)


def as_msgpack(body: bytes) -> bytes:
    """A JSON value as MessagePack. What MessagePack cannot hold (a huge number) goes as its JSON text, in bytes."""
    try:
        return _pack(_parse_json(body))
    except (msgspec.MsgspecError, OverflowError, UnicodeError, RecursionError):
        return _pack(body)


# ----------------------------------------------------------------------------------------------------- deliver


def leased_messages(lease: Lease, encoding: Encoding) -> list[bytes]:
    """The messages of a lease, each encoded with its receipt. Once: the lease lets go of its chunk."""
    chunk, lease.chunk = lease.chunk, None
    assert chunk is not None, "a lease is encoded once"
    kind, bodies, columns = chunk.messages
    if columns is not None:
        return [_leased_one(lease, chunk, index, encoding) for index in indexes(lease.bits)]
    if encoding == "json":
        return _leased_json(lease, chunk, kind, bodies)
    return _leased_pack(lease, chunk, kind, bodies)


def _leased_json(lease: Lease, chunk: Chunk, kind: int, bodies: list[bytes]) -> list[bytes]:
    template = _json_template(chunk.time_ms, kind) + _JSON_LEASED % lease.token.encode()
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


def _leased_pack(lease: Lease, chunk: Chunk, kind: int, bodies: list[bytes]) -> list[bytes]:
    token = lease.token.encode()
    template = _pack_template(chunk.time_ms, kind) + _escaped("attempt") + b"%b" + _escaped("receipt")
    template += b"\xd9" + bytes([len(token) + 2]).replace(b"%", b"%%") + token + b"%b"
    base, attempts, suffixes, headers = chunk.base, lease.state.attempts, SUFFIX_BYTES, _BIN_HEADERS
    if kind == KIND_BYTES and not attempts:
        out = []
        for n in indexes(lease.bits):
            body, seq = bodies[n], base + n
            size = len(body)
            header = headers[size] if size < 1024 else _bin_header(size)
            out.append(template % (seq, seq.to_bytes(8, "big"), header, body, b"\x01", suffixes[n]))
        return out
    return [
        template
        % (
            base + n,
            (base + n).to_bytes(8, "big"),
            *_pack_body(kind, bodies[n]),
            _pack(attempts.get(n, 1)),
            suffixes[n],
        )
        for n in indexes(lease.bits)
    ]


def _leased_one(lease: Lease, chunk: Chunk, index: int, encoding: Encoding) -> bytes:
    message = full_message(chunk, index)
    message["attempt"] = lease.attempt_of(index)
    message["receipt"] = lease.token + SUFFIXES[index]
    return one_message(message, encoding)


def one_message(message: dict[str, Any], encoding: Encoding) -> bytes:
    """A message dictionary, encoded; MessagePack carries bodies as values or bytes, never as base64."""
    if encoding == "json":
        return _json(message)
    body_base64 = message.pop("body_base64", None)
    if body_base64 is not None:
        message["body"] = msgspec.convert(body_base64, bytes)
    else:
        message["body"] = msgspec.Raw(as_msgpack(bytes(message["body"])))
    return _pack(message)


def stream_messages(chunk: Chunk, start: int, stop: int, encoding: Encoding) -> list[bytes]:
    """Messages `start` to `stop` of a stream's chunk: no lease, no receipt."""
    kind, bodies, columns = chunk.messages
    base = chunk.base
    if columns is not None:
        return [_free_one(chunk, index, encoding) for index in range(start, stop)]
    if encoding == "json":
        template = _json_template(chunk.time_ms, kind) + _JSON_FREE
        ready = _json_bodies(kind, bodies[start:stop])
        return [template % (n, n, body) for n, body in enumerate(ready, base + start)]
    template = _pack_template(chunk.time_ms, kind) + _escaped("attempt") + b"\x01" + _escaped("receipt") + b"\xc0"
    return [
        template % (n, n.to_bytes(8, "big"), *_pack_body(kind, body))
        for n, body in enumerate(bodies[start:stop], base + start)
    ]


def _free_one(chunk: Chunk, index: int, encoding: Encoding) -> bytes:
    return one_message({**full_message(chunk, index), "attempt": 1, "receipt": None}, encoding)


def keep_rendered(chunk: Chunk, key: tuple[Any, ...], data: bytes) -> None:
    """Keeps a part of a chunk as its bytes, for the next who reads just that. Readers in step share one or two."""
    if len(chunk.rendered) >= RENDERED_PER_CHUNK_MAX:
        chunk.rendered.clear()
    chunk.rendered[key] = data


def deliver_frame(sub: int, messages: list[bytes], encoding: Encoding, cursor: str | None = None) -> bytes:
    """A `deliver` frame around messages that are encoded already."""
    if encoding == "json":
        tail = b"]}" if cursor is None else b'],"cursor":"%b"}' % cursor.encode()
        return b'{"type":"deliver","sub":%d,"messages":[%b%b' % (sub, b",".join(messages), tail)
    head = bytes([0x83 if cursor is None else 0x84]) + _PACK_DELIVER + _pack(sub) + _PACK_MESSAGES
    tail = b"" if cursor is None else _PACK_CURSOR + _pack(cursor)
    return b"".join([head, array_header(len(messages)), *messages, tail])


_PACK_DELIVER = _pack("type") + _pack("deliver") + _pack("sub")
_PACK_MESSAGES = _pack("messages")
_PACK_CURSOR = _pack("cursor")


def array_header(size: int) -> bytes:
    if size < 16:
        return bytes([0x90 | size])
    return b"\xdc" + size.to_bytes(2, "big") if size < 65536 else b"\xdd" + size.to_bytes(4, "big")


# --------------------------------------------------------------------------------------------------- published


def published_messages_json(published: Published, ids: list[str | None] | None) -> bytes:
    """The JSON array of `{id, seq, partition, duplicate}` for a publish call."""
    offsets = range(published.base, published.base + published.count)
    if ids is None:
        return b"[%b]" % b",".join([_PLACED_JSON % (n, n) for n in offsets])
    rows = [
        {
            "id": given or message_id(published.partition, n),
            "seq": n,
            "partition": published.partition,
            "duplicate": False,
        }
        for n, given in zip(offsets, ids, strict=True)
    ]
    return _json(rows)


_PLACED_JSON = b'{"id":"0-%012x","seq":%d,"partition":0,"duplicate":false}'
_PLACED_PACK = (
    b"\x84"
    + _escaped("id")
    + b"\xae0-%012x"
    + _escaped("seq")
    + b"\xcf%b"
    + _escaped("partition")
    + b"\x00"
    + _escaped("duplicate")
    + b"\xc2"
)
_OK_JSON = b'{"type":"ok","id":%b,"messages":%b,"durability":{"fsynced":true,"replicas":1}}'
_OK_PACK_HEAD = b"\x84" + _pack("type") + _pack("ok") + _pack("durability") + _pack({"fsynced": True, "replicas": 1})
_PACK_KEY_ID = _pack("id")


def published_ok(
    request_id: int | str, published: Published, ids: list[str | None] | None, encoding: Encoding
) -> bytes:
    """The `ok` of a publish frame."""
    if encoding == "json":
        return _OK_JSON % (_json(request_id), published_messages_json(published, ids))
    head = _OK_PACK_HEAD + _PACK_KEY_ID + _pack(request_id) + _PACK_MESSAGES + array_header(published.count)
    offsets = range(published.base, published.base + published.count)
    if ids is None:
        return head + b"".join([_PLACED_PACK % (n, n.to_bytes(8, "big")) for n in offsets])
    return head + b"".join(
        _pack(
            {
                "id": given or message_id(published.partition, n),
                "seq": n,
                "partition": published.partition,
                "duplicate": False,
            }
        )
        for n, given in zip(offsets, ids, strict=True)
    )


def encode(value: Any, encoding: Encoding) -> bytes:
    return _json(value) if encoding == "json" else _pack(value)


def join(frames: Iterable[bytes], encoding: Encoding) -> bytes:
    """Several encoded objects as one frame."""
    parts = list(frames)
    if len(parts) == 1:
        return parts[0]
    if encoding == "json":
        return b"[" + b",".join(parts) + b"]"
    return array_header(len(parts)) + b"".join(parts)


def cut(parts: list[bytes], size_max: int) -> list[list[bytes]]:
    """Groups encoded parts so that each group stays below a size; a part that is bigger stands alone."""
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
