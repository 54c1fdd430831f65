"""A publish call on its way in: every message is checked, then all are encoded into blocks for one partition."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Sequence
from math import isfinite
from typing import Any

import msgspec

from backend_store.client import KIND_BYTES, KIND_JSON, Draft, Queue, blocks_of, plain_blocks
from backend_store.model import MESSAGES_PER_REQUEST_MAX, FieldError, InvalidRequest, MessageTooLarge, PushqError
from push.ports import Encoding, Prepared
from push.protocol import PublishMessage

NAME_BYTES_MAX = 256
HEADERS_MAX = 64
HEADERS_BYTES_MAX = 16 * 1024
CONTENT_TYPE_CHARS_MAX = 256
ERRORS_SHOWN_MAX = 20

_parse_json = msgspec.json.Decoder().decode
_write_json = msgspec.json.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode

_LATER = (
    ("deliver_at", "scheduled delivery"),
    ("ttl_ms", "expiry"),
    ("producer", "producer sequences"),
    ("producer_seq", "producer sequences"),
    ("timestamp", "sorting by timestamp"),
)


def prepare_plain(queue: Queue, bodies: Sequence[Any], encoding: Encoding, trace: str | None = None) -> Prepared:
    """Messages that are only bodies: raw JSON values, or bytes."""
    _check_count(len(bodies))
    raw = list(map(bytes, bodies)) if encoding == "json" else bodies
    limit = queue.config.max_message_bytes
    if max(map(len, raw)) > limit:
        errors = [FieldError(f"/messages/{n}", _too_large(len(b), limit)) for n, b in enumerate(raw) if len(b) > limit]
        _refuse(errors, [], len(raw))
    return Prepared(plain_blocks(KIND_JSON if encoding == "json" else KIND_BYTES, raw, trace), None)


def prepare(queue: Queue, messages: Sequence[PublishMessage], encoding: Encoding, trace: str | None = None) -> Prepared:
    """Messages of any shape. Raises `InvalidRequest` or `MessageTooLarge`; then nothing of the call is accepted."""
    _check_count(len(messages))
    drafts: list[Draft] = []
    wrong: list[FieldError] = []
    large: list[FieldError] = []
    limit = queue.config.max_message_bytes
    for number, message in enumerate(messages):
        errors: list[FieldError] = []
        draft = _draft(message, encoding, f"/messages/{number}", errors)
        wrong.extend(errors)
        if draft is not None:
            size = len(draft.body) + _headers_size(message.headers)
            if size > limit:
                large.append(FieldError(f"/messages/{number}", _too_large(size, limit)))
            drafts.append(draft)
    if wrong or large:
        _refuse(large, wrong, len(messages))
    ids = [m.id for m in messages]
    return Prepared(blocks_of(drafts, trace), ids if any(ids) else None)


def _check_count(count: int) -> None:
    if count == 0:
        detail = "messages is empty; send at least one"
    elif count > MESSAGES_PER_REQUEST_MAX:
        detail = f"{count} messages; a request takes {MESSAGES_PER_REQUEST_MAX}"
    else:
        return
    raise InvalidRequest(detail, errors=(FieldError("/messages", detail),))


def _too_large(size: int, limit: int) -> str:
    return f"{size} bytes of body and headers; this queue takes {limit} a message"


def _refuse(large: list[FieldError], wrong: list[FieldError], count: int) -> None:
    errors = wrong or large
    kind: type[PushqError] = InvalidRequest if wrong else MessageTooLarge
    affected = len({e.pointer.split("/")[2] for e in errors})
    detail = f"{affected} of {count} messages refused, nothing was accepted: {errors[0].detail}"
    raise kind(detail, errors=tuple(errors[:ERRORS_SHOWN_MAX]))


def _draft(message: PublishMessage, encoding: Encoding, at: str, errors: list[FieldError]) -> Draft | None:
    _check_names(message, at, errors)
    _check_later(message, at, errors)
    _check_headers(message, at, errors)
    body = _body(message, encoding, at, errors)
    if body is None:
        return None
    columns = {
        name: value
        for name in ("id", "key", "content_type", "headers", "reply_to", "correlation_id")
        if (value := getattr(message, name)) is not None and value != {}
    }
    return Draft(body[0], body[1], columns or None)


def _body(message: PublishMessage, encoding: Encoding, at: str, errors: list[FieldError]) -> tuple[int, bytes] | None:
    raw = bytes(message.body)
    if (message.body_base64 is not None) == bool(raw):
        errors.append(FieldError(f"{at}/body", "a message has either `body` (any value, null too) or `body_base64`"))
        return None
    if message.body_base64 is not None:
        try:
            return KIND_BYTES, b64decode(message.body_base64, validate=True)
        except (Base64Error, ValueError):
            errors.append(FieldError(f"{at}/body_base64", "this is not base64"))
            return None
    return (KIND_JSON, raw) if encoding == "json" else _msgpack_body(raw, at, errors)


def _msgpack_body(raw: bytes, at: str, errors: list[FieldError]) -> tuple[int, bytes] | None:
    """Bytes stay bytes; any other value is stored as the JSON value it equals, so that every consumer can read it."""
    try:
        value = _unpack(raw)
        if isinstance(value, bytes):
            return KIND_BYTES, value
        text = _write_json(value)
        if not _is_json(value):
            raise TypeError("bytes, times and NaN inside a value have no JSON form")
        return KIND_JSON, text
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        errors.append(FieldError(f"{at}/body", f"the value has no JSON form: {error}; send it as bytes"))
        return None


def _is_json(value: Any) -> bool:
    """Whether a value is the same value in JSON: the encoder would write bytes as base64 and NaN as null."""
    if isinstance(value, dict):
        return all(map(_is_json, value.values()))
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, float):
        return isfinite(value)
    return value is None or isinstance(value, bool | int | str)


def _check_names(message: PublishMessage, at: str, errors: list[FieldError]) -> None:
    for name, value in (
        ("id", message.id),
        ("key", message.key),
        ("reply_to", message.reply_to),
        ("correlation_id", message.correlation_id),
        ("content_type", message.content_type),
    ):
        if value is None:
            continue
        size = len(value.encode("utf-8", "surrogatepass"))
        if not 1 <= size <= NAME_BYTES_MAX:
            errors.append(FieldError(f"{at}/{name}", f"{name} has {size} bytes; it may have 1 to {NAME_BYTES_MAX}"))


def _check_later(message: PublishMessage, at: str, errors: list[FieldError]) -> None:
    """Settings whose behaviour is not built are refused by name, never accepted and ignored."""
    for name, what in _LATER:
        if getattr(message, name) is not None:
            errors.append(FieldError(f"{at}/{name}", f"this version does not have {what} yet: leave {name!r} out"))
    if message.priority != 0:
        errors.append(FieldError(f"{at}/priority", f"priority is {message.priority}; this queue has 1, so only 0"))
    if message.delay_ms != 0:
        errors.append(FieldError(f"{at}/delay_ms", "this version does not have delayed messages yet"))


def _headers_size(headers: dict[str, str] | None) -> int:
    return sum(len(k.encode()) + len(v.encode()) for k, v in headers.items()) if headers else 0


def _check_headers(message: PublishMessage, at: str, errors: list[FieldError]) -> None:
    headers = message.headers
    if not headers:
        return
    if len(headers) > HEADERS_MAX:
        errors.append(FieldError(f"{at}/headers", f"{len(headers)} headers; a message may have {HEADERS_MAX}"))
    size = _headers_size(headers)
    if size > HEADERS_BYTES_MAX:
        errors.append(FieldError(f"{at}/headers", f"{size} bytes of headers; a message may have {HEADERS_BYTES_MAX}"))
