"""Prepares a publish call: checks every message, then encodes all of them into blocks, each for one partition.

Messages are processed column by column (see `columns`), so a field that no message has costs nothing.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import msgspec

from backend_store.client import (
    BYTES_BESIDE_BODY,
    KIND_BYTES,
    KIND_JSON,
    Block,
    Blocks,
    Columns,
    HybridClock,
    column_blocks,
    plain_blocks,
)
from backend_store.model import MESSAGES_PER_REQUEST_MAX, FieldError, InvalidRequest, QueueConfig
from gateway.publishing.columns import CallColumns
from gateway.publishing.dedupe_hash import hashes
from gateway.publishing.idempotency_keys import Named
from gateway.publishing.nesting import TOO_DEEP, too_deep
from gateway.publishing.number_range import OUT_OF_RANGE, unreadable
from gateway.publishing.timing import due_times, expiries, priorities, stamp_columns, stamps
from push.ports import Encoding, Prepared
from push.protocol import PublishMessage

_write_json = msgspec.json.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode

ContentKey = Callable[[], bytes]
"""Returns the key for hashes of contents; called only if there are any."""

NameCall = Callable[[int | bytes, Sequence[bytes], Sequence[int], dict[str, Sequence[Any]]], Named]
"""Makes the claim and message names of a call under an idempotency key, from its kinds, bodies, their lengths and the
other columns."""

Encode = Callable[[Columns, str | None], Blocks]
"""Encodes checked columns into blocks; the queue decides for which partitions."""

_TEXTS = ("id", "key", "content_type", "reply_to", "correlation_id")


def prepare_plain(
    config: QueueConfig,
    bodies: Sequence[Any],
    encoding: Encoding,
    trace: str | None = None,
    *,
    now_ms: int,
    clock: HybridClock,
    encode: Encode = column_blocks,
    content_key: ContentKey = bytes,
    name: NameCall | None = None,
    is_split: bool = False,
) -> Prepared:
    """Prepares messages that have nothing but bodies: raw JSON values, or bytes. Raises like `prepare`.

    `is_split`: the queue has several partitions.
    """
    _check_count(len(bodies))
    raw = list(map(bytes, bodies)) if encoding == "json" else bodies
    kind = KIND_JSON if encoding == "json" else KIND_BYTES
    lengths = list(map(len, raw))
    named = name(kind, raw, lengths, {}) if name is not None else None
    is_plain = named is None or (config.dedupe == "none" and not is_split)
    is_plain = is_plain and max(lengths) <= config.max_message_bytes and _takes_bodies_alone(config)
    if not is_plain or (encoding == "json" and (too_deep(raw) or unreadable(raw))):
        return _prepared(
            config,
            CallColumns(len(raw), {}),
            kind,
            raw,
            trace,
            named,
            now_ms=now_ms,
            clock=clock,
            encode=encode,
            content_key=content_key,
        )
    if named is None:
        return Prepared(plain_blocks(kind, raw, trace, None, lengths), None)
    return Prepared(plain_blocks(kind, raw, trace, named.ids, lengths), named.ids, None, named.claim)


def prepare(
    config: QueueConfig,
    messages: Sequence[PublishMessage],
    encoding: Encoding,
    trace: str | None = None,
    *,
    now_ms: int,
    clock: HybridClock,
    encode: Encode = column_blocks,
    content_key: ContentKey = bytes,
    name: NameCall | None = None,
) -> Prepared:
    """Prepares messages of any shape. Raises `InvalidRequest` or `MessageTooLarge`; then no message is accepted.

    Delays and TTLs count from `now_ms`. `clock` stamps messages that need a time and have none. `encode` makes blocks
    for the queue's partitions; `name` names the messages of a call under an idempotency key.
    """
    _check_count(len(messages))
    given = CallColumns.of(messages)
    kind, bodies = _bodies(given, encoding)
    names = name(kind, bodies, list(map(len, bodies)), given.beside_bodies()) if name is not None else None
    return _prepared(
        config, given, kind, bodies, trace, names, now_ms=now_ms, clock=clock, encode=encode, content_key=content_key
    )


def looks_at_calls(config: QueueConfig) -> bool:
    """Whether publishes to this queue must be prepared call by call, or may be merged in their order: merging is
    allowed if the queue has no limits, no deduplication, and takes bodies alone."""
    is_endless = config.max_messages is None and config.max_bytes is None
    return not (is_endless and config.dedupe == "none" and _takes_bodies_alone(config))


def size_apart(blocks: Sequence[Block], bodies: Sequence[Any], count: int) -> int:
    """Bytes that the bodies in `blocks` would take if they were split over `count` blocks instead; all blocks hold
    bodies alone."""
    own = sum(map(len, bodies)) + BYTES_BESIDE_BODY * len(bodies)
    beside = sum([len(block.data) for block in blocks]) - own
    return own + beside // len(blocks) * count


def _takes_bodies_alone(config: QueueConfig) -> bool:
    """Whether the queue stores bodies without further columns: no time, no number, no hash."""
    return (
        config.sequencing == "arrival"
        and config.message_ttl_ms is None
        and not config.delay_ms
        and config.dedupe != "content"
        and config.delivery != "exactly_once"
    )


def _prepared(
    config: QueueConfig,
    given: CallColumns,
    kind: int | bytes,
    bodies: Sequence[bytes],
    trace: str | None,
    names: Named | None = None,
    *,
    now_ms: int,
    clock: HybridClock,
    encode: Encode = column_blocks,
    content_key: ContentKey = bytes,
) -> Prepared:
    table: dict[str, Sequence[Any]] = {n: values for n in _TEXTS if (values := given.text(n)) is not None}
    if names is not None:
        table["id"] = names.ids if "id" not in table else _filled(table["id"], names.ids)
    headers, header_sizes = given.headers()
    if headers is not None:
        table["headers"] = headers
    _check_sizes(given, bodies, header_sizes, config.max_message_bytes)
    _check_values(given, kind, bodies, config.max_message_bytes)
    dues = due_times(given, config, now_ms)
    expires = expiries(given, config, now_ms, dues)
    if expires is not None:
        table["exp"] = expires
    table.update(stamp_columns(given, config, now_ms, clock))
    columns = Columns(
        kind,
        bodies,
        table,
        priorities(given, config),
        dues,
        hashes(given, config, kind, bodies, table, names.ids if names is not None else None, content_key),
        stamps(given, config, table),
        claim=names.claim if names is not None else None,
    )
    if given.has_errors:
        given.refuse()
    blocks, order = encode(columns, trace)
    return Prepared(blocks, table.get("id"), order, names.claim if names is not None else None)


def _filled(own: Sequence[str | None], names: Sequence[str]) -> list[str]:
    return [name if one is None else one for one, name in zip(own, names, strict=True)]


def _check_count(count: int) -> None:
    if count == 0:
        detail = "messages is empty; send at least one"
    elif count > MESSAGES_PER_REQUEST_MAX:
        detail = f"messages must have at most {MESSAGES_PER_REQUEST_MAX} entries, not {count}"
    else:
        return
    raise InvalidRequest(detail, errors=(FieldError("/messages", detail),))


def _check_sizes(given: CallColumns, bodies: Sequence[bytes], headers: list[int], limit: int) -> None:
    sizes = list(map(len, bodies))
    if headers:
        sizes = [a + b for a, b in zip(sizes, headers, strict=True)]
    if max(sizes) <= limit:
        return
    for number, size in enumerate(sizes):
        if size > limit:
            given.too_large(number, f"the body and headers have {size} bytes; this queue allows {limit} per message")


def _check_values(given: CallColumns, kind: int | bytes, bodies: Sequence[bytes], limit: int) -> None:
    """Checks JSON bodies for depth and number range; not those refused for their size, because it reads every byte."""
    if isinstance(kind, bytes):
        bodies = [body if own == KIND_JSON else b"" for own, body in zip(kind, bodies, strict=True)]
    elif kind != KIND_JSON:
        return
    if max(map(len, bodies)) > limit:
        bodies = [body if len(body) <= limit else b"" for body in bodies]
    for number in too_deep(bodies):
        given.wrong(number, "body", TOO_DEEP)
    for number in unreadable(bodies):
        given.wrong(number, "body", OUT_OF_RANGE)


# ------------------------------------------------------------------------------------------------------- bodies


def _bodies(given: CallColumns, encoding: Encoding) -> tuple[int | bytes, list[bytes]]:
    """The kind of all bodies, or one kind each, and the bodies. A body that is wrong is returned empty."""
    raw = given.raw_bodies()
    base64 = given.column("body_base64")
    if base64 is None and encoding == "json" and all(raw):
        return KIND_JSON, raw
    found = [
        _body(given, number, encoding, body, text)
        for number, (body, text) in enumerate(zip(raw, base64 or [None] * given.count, strict=True))
    ]
    return bytes([kind for kind, _ in found]), [body for _, body in found]


def _body(given: CallColumns, number: int, encoding: Encoding, raw: bytes, base64: str | None) -> tuple[int, bytes]:
    if (base64 is not None) == bool(raw):
        given.wrong(number, "body", "set either `body` (any value, including null) or `body_base64`")
    elif base64 is not None:
        try:
            return KIND_BYTES, b64decode(base64, validate=True)
        except (Base64Error, ValueError):
            given.wrong(number, "body_base64", "body_base64 is not valid base64")
    elif encoding == "json":
        return KIND_JSON, raw
    else:
        return _msgpack_body(given, number, raw)
    return KIND_BYTES, b""


def _msgpack_body(given: CallColumns, number: int, raw: bytes) -> tuple[int, bytes]:
    """Bytes stay bytes; any other value is stored as the equal JSON value, so that every consumer can read it."""
    try:
        value = _unpack(raw)
        if isinstance(value, bytes):
            return KIND_BYTES, value
        text = _write_json(value)
        if not _is_json(value):
            raise TypeError("bytes, times and NaN have no JSON representation")
        return KIND_JSON, text
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        given.wrong(number, "body", f"the value has no JSON representation: {error}; send it as bytes")
        return KIND_BYTES, b""


def _is_json(value: Any) -> bool:
    """Whether JSON can represent the value: the encoder would write bytes as base64 and NaN as null."""
    if isinstance(value, dict):
        return all(map(_is_json, value.values()))
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, float):
        return isfinite(value)
    return value is None or isinstance(value, bool | int | str)
