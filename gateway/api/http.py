"""Requests and answers of the HTTP API: a handler receives a `Call` and returns an `Answer`.

Calls on the hot path take a few microseconds each, so an answer is bytes that one function writes, and a request is
parsed only as far as its handler asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from backend_store.client import ASKED
from backend_store.model import FieldError, InvalidRequest, MessageTooLarge, PushqError, Unavailable
from gateway.api.validate import escape
from gateway.limits import REQUEST_BODY_SECONDS_MAX
from gateway.listener.fast_path import body_at_hand
from push.encoding.whole_numbers import text_with_whole_numbers
from push.operations.checks import field as invalid_field
from push.problems import KINDS, invalid, nearest, problem, retry_after

if TYPE_CHECKING:
    from gateway.admission.request_bodies import RequestBodies
    from gateway.admission.throttle import Account
    from gateway.identity.authentication import Principal
    from push.spans import Batch

Header = tuple[bytes, bytes]

JSON: Final = b"application/json"
PROBLEM: Final = b"application/problem+json"
HTML: Final = b"text/html; charset=utf-8"

encode_json: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode


class ClientGone(Exception):
    """The client closed its connection before its request was complete: there is no client to answer."""


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    headers: tuple[Header, ...] = ()
    content_type: bytes | None = JSON


def json_answer(value: Any, status: int = 200, headers: tuple[Header, ...] = ()) -> Answer:
    return Answer(status, encode_json(value), headers)


def problem_answer(error: PushqError, trace_id: str | None = None) -> Answer:
    """The problem answer (RFC 9457) to a refused request; `KINDS` has the status of each code."""
    headers = [(name.lower().encode(), value.encode()) for name, value in error.headers]
    if error.code == "unauthenticated":
        headers.append((b"www-authenticate", b"Bearer"))
    if (wait_ms := retry_after(error)) is not None:
        headers.append((b"retry-after", b"%d" % max(1, -(-wait_ms // 1000))))
    return Answer(KINDS[error.code].status, encode_json(problem(error, trace_id)), tuple(headers), PROBLEM)


async def write(send: Send, answer: Answer, extra: tuple[Header, ...] = ()) -> None:
    headers: list[Header] = [(b"content-length", b"%d" % len(answer.body)), *answer.headers, *extra]
    if answer.content_type is not None:
        headers.append((b"content-type", answer.content_type))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


class Call:
    """One request below `/v1` by an authenticated caller; `dispatch` makes it, a handler reads it."""

    __slots__ = (
        "_body",
        "account",
        "batch",
        "body_bytes_max",
        "bytes_in",
        "headers",
        "held",
        "is_local",
        "messages",
        "params",
        "principal",
        "receive",
        "scope",
        "until",
    )

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        headers: dict[bytes, bytes],
        principal: Principal,
        params: list[str],
        *,
        body_bytes_max: int,
        is_local: bool,
        account: Account,
        held: RequestBodies,
        until: float = inf,
    ) -> None:
        self.scope = scope
        self.receive = receive
        self.headers = headers
        self.principal = principal
        self.params = params
        """The variable parts of the path, in order."""
        self.body_bytes_max = body_bytes_max
        self._body: bytes | None = None
        self.account = account
        """The account that its rate limits are charged to."""
        self.is_local = is_local
        """Whether it came over `DIR/admin.sock`."""
        self.held = held
        """The room its body takes among the bodies of all requests that are not answered yet."""
        self.until = until
        """When its caller stops waiting, in seconds of the loop's clock."""
        self.bytes_in = 0
        """Bytes of the body that were read so far."""
        self.messages = 0
        """How many messages the request was about; the handler sets it, for usage metering."""

        self.batch: Batch | None = None
        """The messages of the answer, if spans are recorded."""

    def count(self, messages: int, batch: Batch | None = None) -> None:
        self.messages += messages
        self.batch = batch

    def waits_longer(self, wait_ms: int) -> None:
        """Extends the deadline of the request's calls to other nodes by the wait that the caller asked for."""
        if (asked := ASKED.get()) is not None:
            asked.until = self.until + max(0, wait_ms) / 1000

    @property
    def content_type(self) -> str:
        """The media type without its parameters, in lower case; empty when none is given."""
        return self.headers.get(b"content-type", b"").split(b";", 1)[0].strip().lower().decode("latin-1")

    @property
    def address(self) -> str:
        """The client's address; empty if there is none, as on a UNIX socket."""
        client = self.scope.get("client")
        return str(client[0]) if client else ""

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    async def body(self) -> bytes:
        """The request's body; a handler that runs again gets the same bytes.

        Raises `MessageTooLarge` as soon as the limit is passed, `Overloaded` without room for it, `InvalidRequest` if
        it takes too long, `Unavailable` when the request's time is over, and `ClientGone`.
        """
        if self._body is None:
            self._body = await self._read_body()
        return self._body

    async def _read_body(self) -> bytes:
        encoding = self.headers.get(b"content-encoding", b"identity")
        if encoding.lower() != b"identity":
            detail = f"this version does not take bodies with Content-Encoding: {encoding.decode('latin-1')}"
            raise PushqError(detail, code="unsupported-media-type")
        declared = self.headers.get(b"content-length", b"")
        if declared.isdigit():
            self._check_size(int(declared[:20]))  # before reading: with "100 Continue" the client would send it
        if (whole := body_at_hand(self.receive)) is not None:
            self._check_size(len(whole))
            self.held.add(len(whole))
            return whole
        ends = asyncio.get_running_loop().time() + REQUEST_BODY_SECONDS_MAX
        try:
            async with asyncio.timeout_at(min(ends, self.until)):
                return await self._parts()
        except TimeoutError:
            close = (("Connection", "close"),)
            if self.until < ends:
                detail = "the body did not arrive in time; nothing was done"
                raise Unavailable(detail, retry_after_ms=100, headers=close) from None
            raise InvalidRequest(f"the body did not arrive within {REQUEST_BODY_SECONDS_MAX} s", headers=close)

    async def _parts(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] != "http.request":
                raise ClientGone
            part = message.get("body", b"")
            parts.append(part)
            size += len(part)
            self._check_size(size)
            self.held.add(len(part))
            if not message.get("more_body"):
                return b"".join(parts)

    def _check_size(self, size: int) -> None:
        self.bytes_in = size
        if size > self.body_bytes_max:
            raise MessageTooLarge(
                f"the request body must have at most {self.body_bytes_max} bytes, this one has {size} or more"
            )

    async def fields(self, kind: type[Any]) -> Any:
        """The JSON body as a struct; an empty body is an object without fields. A query beside it is refused."""
        return decode(await self.json_bytes(), kind)

    async def json_bytes(self) -> bytes:
        self.query()
        content_type = self.content_type
        body = await self.body()
        if content_type in ("application/json", "") or content_type.endswith("+json"):
            return body or b"{}"
        if not body:
            return b"{}"
        raise PushqError(
            f"send this body as Content-Type: application/json, not {content_type[:100]!r}",
            code="unsupported-media-type",
        )

    def query(self, *known: str, later: dict[str, str] | None = None, prefix: str | None = None) -> dict[str, str]:
        """The query's parameters. Raises `InvalidRequest`, which names unknown and repeated ones.

        Names that extend `prefix` are known, too. `later`: names that a later version will take, and what they are.
        """
        raw: bytes = self.scope["query_string"]
        if not raw:
            return {}
        pairs = _pairs(raw)
        found: dict[str, str] = {}
        errors: list[FieldError] = []
        for name, value in pairs:
            pointer = f"/query/{escape(name)}"
            if later and (what := later.get(name.partition(".")[0])) is not None:
                errors.append(FieldError(pointer, f"this version does not have {what} yet"))
            elif name not in known and not (prefix and name.startswith(prefix) and name != prefix):
                errors.append(FieldError(pointer, f"unknown parameter {name[:100]!r}{nearest(name, known)}"))
            elif name in found:
                errors.append(FieldError(pointer, f"duplicate parameter {name!r}"))
            found[name] = value
        if errors:
            raise InvalidRequest(errors[0].detail, errors=tuple(errors))
        return found


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        text = raw.decode("ascii")
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=100)
    except (UnicodeDecodeError, ValueError):
        raise InvalidRequest(
            "the query string is malformed: it must be percent-encoded UTF-8 with at most 100 parameters"
        )


# ---------------------------------------------------------------------------------------------------- decoding

_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def decode(body: bytes, kind: type[Any]) -> Any:
    """Decodes a JSON body. Raises `InvalidRequest` with a pointer, and for an unknown field the nearest known name."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        if not body.isascii():
            body.decode()  # the decoder checks UTF-8 only in the strings that it keeps
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if isinstance(error, msgspec.ValidationError) and "got `float`" in str(error):
            return _decode_whole_numbers(body, kind)
        raise invalid(error, field_names(kind))


def _decode_whole_numbers(body: bytes, kind: type[Any]) -> Any:
    try:
        return _decoders[kind].decode(text_with_whole_numbers(body, kind))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise invalid(error, field_names(kind))


def field_names(kind: Any) -> dict[str, str]:
    """Field → the field that contains it, for each field of a request of this kind at any depth; "" for the outermost
    ones."""
    return _names(msgspec.inspect.type_info(kind), "", {})


def _names(info: Any, holder: str, seen: dict[str, str]) -> dict[str, str]:
    if isinstance(info, msgspec.inspect.StructType):
        for field in info.fields:
            seen.setdefault(field.encode_name, holder)
        for field in info.fields:
            _names(field.type, field.encode_name, seen)
    elif isinstance(info, msgspec.inspect.ListType):
        _names(info.item_type, holder, seen)
    elif isinstance(info, msgspec.inspect.UnionType):
        for part in info.types:
            _names(part, holder, seen)
    return seen


def integer(query: dict[str, str], name: str, default: int | None, *, low: int, high: int) -> int | None:
    """A whole number from the query. Raises `InvalidRequest`."""
    text = query.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high:
        return int(text)
    raise invalid_field(f"/query/{name}", f"{name} must be a whole number between {low} and {high}, not {text[:50]!r}")
