"""The client's errors, sorted by who can act on them.

`ApiError` is the server's answer: its `code` is stable, and `retryable` says whether the same request may succeed
later. `Unavailable` and `OutcomeUnknown` come from the network; `LeaseLost` means that another consumer may have the
message; `RequestTimeout` that no reply came.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from push.client.model import Published

RETRYABLE_CODES = frozenset(
    {
        "rate-limited",
        "too-many-connections",
        "not-leader",
        "unavailable",
        "overloaded",
        "draining",
        "request-in-progress",
        "not-durable",
        "outcome-unknown",
    }
)


class FieldError(msgspec.Struct, frozen=True):
    """One entry of a problem's `errors`: a JSON pointer into the request, and what is wrong there."""

    pointer: str = ""
    detail: str = ""


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An RFC 9457 problem as Pushq sends it, over HTTP and inside frames alike."""

    type: str = "about:blank"
    title: str = ""
    status: int = 0
    detail: str = ""
    code: str = "internal"
    errors: tuple[FieldError, ...] = ()
    retry_after_ms: int | None = None
    trace_id: str | None = None


class PushqError(Exception):
    """The base of all errors that this package raises on purpose."""

    code: str = "internal"
    retryable: bool = False


class ApiError(PushqError):
    """The server refused; `problem` is its whole answer."""

    def __init__(self, problem: Problem) -> None:
        said = problem.detail or problem.title
        more = "".join(f"; {error.pointer}: {error.detail}" for error in problem.errors if error.detail not in said)
        super().__init__(f"{problem.code}: {said}{more}")
        self.problem = problem
        self.code = problem.code
        self.retryable = problem.code in RETRYABLE_CODES

    @property
    def status(self) -> int:
        """The HTTP status that belongs to the code, also if the answer came in a frame."""
        return self.problem.status

    @property
    def detail(self) -> str:
        """The server's explanation."""
        return self.problem.detail or self.problem.title

    @property
    def retry_after_s(self) -> float | None:
        """How long the server asks to wait, in seconds; None if it names no time."""
        return None if self.problem.retry_after_ms is None else self.problem.retry_after_ms / 1000


class Unauthenticated(ApiError):
    """No credential, or one that the server does not know (401, close code 4501)."""


class Forbidden(ApiError):
    """The key lacks the scope for this (403, close code 4503)."""


class NotFound(ApiError):
    """No such queue or resource, or another tenant's (404, close code 4504)."""


class Replaced(ApiError):
    """A newer connection took the session over (close code 4509)."""


class TooLarge(ApiError):
    """A message or frame above the server's limit (413, close code 4513)."""


class Full(ApiError):
    """The queue, its window of ids, or the server's disk takes no more (507). Nothing was stored."""


class ProtocolFault(ApiError):
    """One side sent something that the other cannot read (close code 4500)."""


class Unavailable(PushqError):
    """No server answered in time, or the server takes no session at the moment: then `problem` is its answer, and
    `code` the code of that. Nothing was accepted, and trying again may help."""

    code = "unavailable"
    retryable = True

    def __init__(self, detail: str, problem: Problem | None = None) -> None:
        super().__init__(detail)
        self.problem = problem
        if problem is not None:
            self.code = problem.code


class OutcomeUnknown(PushqError):
    """The request was sent and no answer came: it may have been carried out. Repeat it with the same id."""

    code = "outcome-unknown"
    retryable = True


class LeaseLost(PushqError):
    """The lease has ended: the message is, or will be, delivered again. `ids` names the messages."""

    code = "stale-receipt"

    def __init__(self, detail: str, ids: Sequence[str] = ()) -> None:
        super().__init__(detail)
        self.ids = tuple(ids)


class RequestTimeout(PushqError, TimeoutError):
    """No reply came in time. The request may have been handled all the same; a late reply is dropped."""

    code = "request-timeout"
    retryable = True


class NoReplyQueue(PushqError):
    """`request` has no queue for the replies, and may not create one; the error says what would help."""

    code = "no-reply-queue"


class SessionClosed(PushqError):
    """The session was closed by this client; open another one with `connect`. Unconfirmed requests may have been
    carried out."""

    code = "closed"


class PublishManyFailed(PushqError):
    """Some messages of a `publish_many` were refused; `results` has one entry a message, in order."""

    code = "publish-failed"

    def __init__(self, results: Sequence[Published | PushqError]) -> None:
        failed = [result for result in results if isinstance(result, PushqError)]
        super().__init__(f"{len(failed)} of {len(results)} messages were not stored; the first error: {failed[0]}")
        self.results = tuple(results)
        self.retryable = all(error.retryable for error in failed)


_CLASS_BY_CODE: dict[str, type[ApiError]] = {
    "unauthenticated": Unauthenticated,
    "forbidden": Forbidden,
    "queue-not-found": NotFound,
    "not-found": NotFound,
    "message-too-large": TooLarge,
    "queue-full": Full,
    "dedupe-full": Full,
    "storage-full": Full,
}

NOT_PUSHQ = "not-pushq"
"""The code of an answer that is not Pushq's."""

_STOP_CODES: dict[int, tuple[type[ApiError], str, int]] = {
    4500: (ProtocolFault, "invalid-request", 400),
    4501: (Unauthenticated, "unauthenticated", 401),
    4503: (Forbidden, "forbidden", 403),
    4504: (NotFound, "queue-not-found", 404),
    4509: (Replaced, "conflict", 409),
    4513: (TooLarge, "message-too-large", 413),
    1009: (TooLarge, "message-too-large", 413),
}


def api_error(problem: Problem) -> ApiError:
    """The typed error for a server's problem."""
    return _CLASS_BY_CODE.get(problem.code, ApiError)(problem)


def is_definite(error: ApiError) -> bool:
    """Whether this refusal is certain that nothing was done: 500 and 504 are not."""
    return error.code not in ("internal", "outcome-unknown")


def is_stop(close_code: int) -> bool:
    """Whether this close code forbids a reconnect. (1009: the same frame would be too big again.)"""
    return 4500 <= close_code <= 4999 or close_code == 1009


def stop_error(close_code: int, reason: str, told: Problem | None) -> ApiError:
    """The typed error for a close code that forbids a reconnect; `told` is the `error` frame sent before it, if any."""
    kind, code, status = _STOP_CODES.get(close_code, (ApiError, "internal", 500))
    if told is not None:
        return kind(told)
    return kind(
        Problem(code=code, status=status, detail=f"the server closed the session with {close_code} {reason}".strip())
    )


def problem_of(body: bytes, status: int, headers: Mapping[str, str]) -> Problem:
    """The problem in an HTTP answer; a made-up one if the body is not problem+json, such as a proxy's page."""
    try:
        problem = msgspec.convert(msgspec.json.decode(body), Problem, strict=False)
    except (msgspec.DecodeError, msgspec.ValidationError):
        problem = Problem(status=status, code=_code_for(status), detail=f"HTTP {status} without a problem document")
    if problem.retry_after_ms is None and re.fullmatch("[0-9]{1,9}", after := _header(headers, "retry-after")):
        problem = msgspec.structs.replace(problem, retry_after_ms=int(after) * 1000)
    return problem


def _header(headers: Mapping[str, str], name: str) -> str:
    """A header of a mapping whose names may have any case; "" if there is none."""
    return next((value for key, value in headers.items() if key.lower() == name), "")


def _code_for(status: int) -> str:
    known: dict[int, str] = {
        400: "invalid-request",
        401: "unauthenticated",
        403: "forbidden",
        404: "not-found",
        409: "conflict",
        413: "message-too-large",
        429: "rate-limited",
        502: "unavailable",
        503: "unavailable",
        504: "outcome-unknown",
    }
    return known.get(status, "internal" if status >= 500 else "invalid-request")


def problem_from_frame(value: Any) -> Problem:
    """The `problem` object of a frame, however incomplete."""
    try:
        return msgspec.convert(value, Problem, strict=False)
    except msgspec.ValidationError:
        return Problem(detail=f"malformed problem {value!r:.200}")
