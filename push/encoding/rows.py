"""Stored messages as bytes, column by column.

What all messages of a chunk share (its time, names of fields) becomes one template; what each has of its own becomes
columns; and a message is one `%` of the template with a row of the columns. The template depends only on which columns
there are, so messages with keys or headers cost little more than bodies alone.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Final

import msgspec

from backend_store.client import (
    KIND_BYTES,
    KIND_JSON,
    KIND_MIXED,
    Chunk,
    dead_letter,
    message_id,
    ordering,
    own_priority,
    priority_of,
    timestamp,
    trace_context,
)

to_json = msgspec.json.Encoder().encode
pack = msgspec.msgpack.Encoder().encode
_parse_json = msgspec.json.Decoder().decode

PLACE_DIGITS: Final = 12
"""Hexadecimal digits of an offset in a message's id."""
TEMPLATES_MAX: Final = 512
"""Templates cached: chunks of one commit share one, and a chunk is leased several times."""

_TYPES: Final = ("application/json", "application/octet-stream")
_MORE: Final = frozenset({"exp", "ts", "late", "pr", "ps", "reply_to", "correlation_id", "dead", "trace"})
"""Columns of fields that a message has only if they have a value."""
_AS_THEY_ARE: Final = (
    ("pr", "producer"),
    ("ps", "producer_seq"),
    ("reply_to", "reply_to"),
    ("correlation_id", "correlation_id"),
)
"""Such a column, and the field that shows its values."""
_SHOWN: Final = frozenset({"id", "key", "headers", "content_type", "at"}) | _MORE
_FIELDS_ALWAYS: Final = 11
"""Number of fields of every delivered message, `attempt` and `receipt` included."""


Write = Callable[[Any], bytes]
Columns = frozenset[str]
BARE: Final[Columns] = frozenset()
"""The columns of messages that are only bodies."""
NAMED: Final[Columns] = frozenset({"id"})
"""The columns of messages that have ids and bodies."""


def shown_columns(chunk: Chunk) -> Columns:
    """The columns that are visible to a consumer."""
    columns = chunk.messages.columns
    return _SHOWN.intersection(columns) if columns else BARE


# --------------------------------------------------------------------------------------------------- templates


@lru_cache(maxsize=TEMPLATES_MAX)
def json_template(partition: int, shelf: int, time_ms: int, kind: int, has: Columns) -> bytes:
    """A JSON template of a message up to `attempt`. For a body alone the row is: offset, offset, body."""
    body = b'"body":%b' if kind == KIND_JSON else b'"body_base64":"%b"'
    content_type = b'"%b"' % _TYPES[kind == KIND_BYTES].encode()
    fields = (
        b'{"id":' + (b"%b" if "id" in has else b'"%d-%%012x"' % partition),
        b'"seq":%d',
        b'"partition":%d' % partition,
        b"%b" if kind == KIND_MIXED else body,
        b'"content_type":' + (b"%b" if _varies(kind, has) else content_type),
        b'"headers":' + (b"%b" if "headers" in has else b"{}"),
        b'"key":' + (b"%b" if "key" in has else b"null"),
        b'"priority":' + (b"%b" if "dead" in has else b"%d" % priority_of(shelf)),
        b'"published_at":' + (b"%b" if "at" in has else b'"%b"' % timestamp(time_ms).encode()),
    )
    return b",".join(fields) + (b",%b" if has & _MORE else b",")


@lru_cache(maxsize=TEMPLATES_MAX)
def pack_template(partition: int, shelf: int, time_ms: int, kind: int, has: Columns) -> bytes:
    """`json_template` in MessagePack; for a body alone the row is: offset, offset in 8 bytes, body."""
    content_type = escaped(_TYPES[kind == KIND_BYTES])
    fields = (
        (b"%b" if has & _MORE else bytes([0x80 | _FIELDS_ALWAYS])),
        escaped("id") + (b"%b" if "id" in has else placed_id(partition)),
        escaped("seq") + b"\xcf%b",
        escaped("partition") + escaped(partition),
        escaped("body") + b"%b",
        escaped("content_type") + (b"%b" if _varies(kind, has) else content_type),
        escaped("headers") + (b"%b" if "headers" in has else escaped({})),
        escaped("key") + (b"%b" if "key" in has else escaped(None)),
        escaped("priority") + (b"%b" if "dead" in has else escaped(priority_of(shelf))),
        escaped("published_at") + (b"%b" if "at" in has else escaped(timestamp(time_ms))),
    )
    return b"".join(fields) + (b"%b" if has & _MORE else b"")


def _varies(kind: int, has: Columns) -> bool:
    """Whether the content type differs from message to message."""
    return kind == KIND_MIXED or "content_type" in has


def escaped(value: Any) -> bytes:
    """A MessagePack value as a part of a template."""
    return pack(value).replace(b"%", b"%%")


def placed_id(partition: int) -> bytes:
    """The part of a template for an id that is derived from the offset; takes the offset."""
    return bytes([0xA0 | len(f"{partition}-") + PLACE_DIGITS]) + b"%d-%%0%dx" % (partition, PLACE_DIGITS)


# ----------------------------------------------------------------------------------------------------- columns


class Picked:
    """Some messages of a chunk, as columns."""

    __slots__ = ("_all", "_columns", "bodies", "chunk", "count", "has", "kind", "numbers", "seqs")

    def __init__(self, chunk: Chunk, numbers: Sequence[int]):
        self.kind, bodies, columns = chunk.messages
        self.chunk = chunk
        self.numbers = numbers
        self.count = len(numbers)
        self.has = shown_columns(chunk)
        self._columns = columns or {}
        self._all = len(numbers) == len(bodies)
        self.bodies = bodies if self._all else [bodies[n] for n in numbers]
        base = chunk.base
        self.seqs = [base + n for n in numbers]

    def column(self, name: str) -> Sequence[Any]:
        values = self._columns.get(name)
        if values is None:
            return [None] * self.count
        return values if self._all else [values[n] for n in self.numbers]

    @property
    def kinds(self) -> Sequence[int]:
        return self.column("kind") if self.kind == KIND_MIXED else [self.kind] * self.count

    def ids(self, write: Write) -> Sequence[Any]:
        """Written ids, or the offsets if the template writes ids from them."""
        if "id" not in self.has:
            return self.seqs
        partition = self.chunk.partition
        given = zip(self.column("id"), self.seqs, strict=True)
        return [write(name or message_id(partition, seq)) for name, seq in given]

    def named(self, write: Write) -> Iterator[Sequence[bytes]]:
        """The columns between body and `attempt` that exist, in the order of the templates."""
        has, chunk = self.has, self.chunk
        if _varies(self.kind, has):
            given = zip(self.column("content_type"), self.kinds, strict=True)
            yield [write(value or _TYPES[kind == KIND_BYTES]) for value, kind in given]
        if "headers" in has:
            yield [write(value or {}) for value in self.column("headers")]
        if "key" in has:
            yield [write(value) for value in self.column("key")]
        if "dead" in has:
            yield [write(own_priority(chunk.shelf, row)) for row in self.column("dead")]
        if "at" in has:
            yield [write(timestamp(chunk.time_ms if at_ms is None else at_ms)) for at_ms in self.column("at")]

    def more(self, write: Callable[[str, Any], bytes]) -> Iterator[tuple[bytes, ...]]:
        """One row a message: its optional fields, written; an empty entry where it has none."""
        has, chunk, found = self.has, self.chunk, []
        if "exp" in has:
            found.append([write("expires_at", timestamp(at_ms) if at_ms else None) for at_ms in self.column("exp")])
        if "ts" in has or "late" in has:
            pairs = zip(self.column("ts"), self.column("late"), strict=True)
            found.append([write("ordering", ordering(time_us, late)) for time_us, late in pairs])
        for name, shown in _AS_THEY_ARE:
            if name in has:
                found.append(_written(partial(write, shown), self.column(name)))
        if "dead" in has:
            found.append([write("dead_letter", dead_letter(row, chunk.seal)) for row in self.column("dead")])
        if "trace" in has:
            traces = [trace_context(kept) for kept in self.column("trace")]
            found.append([write("traceparent", parent) for parent, _ in traces])
            found.append([write("tracestate", state) for _, state in traces])
        return zip(*found, strict=True)


def json_columns(chunk: Chunk, numbers: Sequence[int]) -> list[Sequence[Any]]:
    """The columns for `json_template` of some messages of a chunk."""
    picked = Picked(chunk, numbers)
    bodies: Sequence[bytes] = picked.bodies
    if picked.kind == KIND_BYTES:
        bodies = [b64encode(body) for body in bodies]
    elif picked.kind == KIND_MIXED:
        bodies = [
            b'"body_base64":"%b"' % b64encode(body) if kind == KIND_BYTES else b'"body":%b' % body
            for kind, body in zip(picked.kinds, bodies, strict=True)
        ]
    columns = [picked.ids(to_json), picked.seqs, bodies, *picked.named(to_json)]
    if picked.has & _MORE:
        columns.append([b"".join(fields) for fields in picked.more(_json_field)])
    return columns


def pack_columns(chunk: Chunk, numbers: Sequence[int]) -> list[Sequence[Any]]:
    """The columns for `pack_template` of some messages of a chunk."""
    picked = Picked(chunk, numbers)
    kinds = zip(picked.kinds, picked.bodies, strict=True)
    bodies = [pack(body) if kind == KIND_BYTES else as_msgpack(body) for kind, body in kinds]
    seqs = [seq.to_bytes(8, "big") for seq in picked.seqs]
    columns = [picked.ids(pack), seqs, bodies, *picked.named(pack)]
    if picked.has & _MORE:
        more = [[field for field in fields if field] for fields in picked.more(_pack_field)]
        columns.insert(0, [_map_header(_FIELDS_ALWAYS + len(fields)) for fields in more])
        columns.append([b"".join(fields) for fields in more])
    return columns


def _written(write: Write, values: Sequence[Any]) -> list[bytes]:
    """Each value written; a value that all messages share, as the producer of a publish, is written once."""
    if values and values.count(values[0]) == len(values):
        return [write(values[0])] * len(values)
    return [write(value) for value in values]


def _json_field(name: str, value: Any) -> bytes:
    return b"" if value is None else b'"%b":%b,' % (name.encode(), to_json(value))


def _pack_field(name: str, value: Any) -> bytes:
    return b"" if value is None else pack(name) + pack(value)


def _map_header(fields: int) -> bytes:
    return bytes([0x80 | fields]) if fields < 16 else b"\xde" + fields.to_bytes(2, "big")


# --------------------------------------------------------------------------------------- bodies in MessagePack


def as_msgpack(body: bytes) -> bytes:
    """A JSON value as MessagePack. A value that MessagePack cannot hold (a huge number) stays JSON text, in bytes."""
    try:
        return pack(_parse_json(body))
    except (msgspec.MsgspecError, OverflowError, UnicodeError, RecursionError):
        return pack(body)
