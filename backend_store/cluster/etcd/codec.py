"""Requests and answers of etcd's JSON gateway: bytes are base64, 64-bit numbers are text, and zero values are omitted.

Its errors are classified here by what they say about a write: surely not done, or perhaps.
"""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Any, Final, TypeVar, assert_never

import msgspec

from backend_store.cluster.coordinator import Compacted, SessionLost
from backend_store.cluster.core.values import (
    NEVER,
    Compare,
    Delete,
    Field,
    Get,
    Operation,
    Outcome,
    Put,
    Record,
    Relation,
    Revision,
    SessionId,
    Transaction,
    end_of_prefix,
)
from backend_store.model import (
    Forbidden,
    InvalidRequest,
    OutcomeUnknown,
    PushqError,
    StorageFull,
    Unauthenticated,
    Unavailable,
)

T = TypeVar("T")


class Header(msgspec.Struct, frozen=True):
    cluster_id: int = 0
    revision: int = 0


class KeyValue(msgspec.Struct, frozen=True):
    key: bytes
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    version: int = 0
    lease: int = 0


class RangeAnswer(msgspec.Struct, frozen=True):
    header: Header = Header()
    kvs: list[KeyValue] = []
    more: bool = False
    count: int = 0


class ResponseOp(msgspec.Struct, frozen=True):
    response_range: RangeAnswer | None = None


class TxnAnswer(msgspec.Struct, frozen=True):
    header: Header
    succeeded: bool = False
    responses: list[ResponseOp] = []


class LeaseAnswer(msgspec.Struct, frozen=True):
    header: Header
    TTL: int = 0
    """0, and so omitted, where there is no such lease."""


class KeepAliveAnswer(msgspec.Struct, frozen=True):
    result: LeaseAnswer


class StatusAnswer(msgspec.Struct, frozen=True):
    header: Header
    leader: int = 0


class TokenAnswer(msgspec.Struct, frozen=True):
    token: str


class VersionAnswer(msgspec.Struct, frozen=True):
    etcdserver: str


class Anything(msgspec.Struct, frozen=True):
    """An answer whose fields are ignored."""


class Failure(msgspec.Struct, frozen=True):
    """An error answer to a request: `code` (gRPC). In a stream the number is called `grpc_code`."""

    message: str = ""
    error: str = ""
    code: int = 2
    grpc_code: int = 2


class WatchEvent(msgspec.Struct, frozen=True):
    kv: KeyValue
    type: str = "PUT"


class WatchResult(msgspec.Struct, frozen=True):
    header: Header = Header()
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""
    fragment: bool = False
    """The rest of this answer's events comes in the next one."""
    events: list[WatchEvent] = []


class WatchLine(msgspec.Struct, frozen=True):
    result: WatchResult | None = None
    error: Failure | None = None


def decode(data: bytes, kind: type[T]) -> T:
    """Raises `msgspec.MsgspecError`."""
    return msgspec.json.decode(data, type=kind, strict=False)


encode = msgspec.json.Encoder().encode


def text(data: bytes) -> str:
    return b64encode(data).decode()


# --------------------------------------------------------------------------------------------------------- requests


def txn_request(namespace: bytes, transaction: Transaction) -> dict[str, Any]:
    return {
        "compare": [_compare(namespace, compare) for compare in transaction.compares],
        "success": [_operation(namespace, operation) for operation in transaction.then],
        "failure": [_operation(namespace, operation) for operation in transaction.otherwise],
    }


_TARGETS: Final = {
    Field.CREATED_AT: ("CREATE", "create_revision"),
    Field.CHANGED_AT: ("MOD", "mod_revision"),
    Field.VERSION: ("VERSION", "version"),
    Field.VALUE: ("VALUE", "value"),
}
_RESULTS: Final = {
    Relation.EQUAL: "EQUAL",
    Relation.NOT_EQUAL: "NOT_EQUAL",
    Relation.GREATER: "GREATER",
    Relation.LESS: "LESS",
}


def _compare(namespace: bytes, compare: Compare) -> dict[str, str]:
    target, name = _TARGETS[compare.field]
    expected = compare.expected
    return {
        "key": text(namespace + compare.key),
        "target": target,
        "result": _RESULTS[compare.relation],
        name: text(expected) if isinstance(expected, bytes) else str(expected),
    }


def _operation(namespace: bytes, operation: Operation) -> dict[str, Any]:
    key = text(namespace + operation.key)
    match operation:
        case Put(_, value, session):
            return {"request_put": {"key": key, "value": text(value), "lease": str(session or 0)}}
        case Delete():
            return {"request_delete_range": {"key": key}}
        case Get():
            return {"request_range": {"key": key}}
        case _:
            assert_never(operation)


def range_request(
    prefix: bytes, *, after: bytes, limit: int, at: Revision | None, changed_after: Revision
) -> dict[str, Any]:
    request: dict[str, Any] = {
        "key": text(after + b"\x00" if after else prefix),
        "range_end": text(end_of_prefix(prefix) or b"\x00"),
        "limit": str(limit),
    }
    if at is not None:
        request["revision"] = str(at)
    if changed_after > NEVER:
        request["min_mod_revision"] = str(changed_after + 1)
    return request


def watch_request(prefix: bytes, after: Revision) -> dict[str, Any]:
    # From `after` itself, which is known already, and not from the next revision: where history was compacted exactly
    # there, some servers leave out what was deleted at that revision and say nothing (etcd#18089, #19179). Asked like
    # this, they refuse.
    return {
        "create_request": {
            "key": text(prefix),
            "range_end": text(end_of_prefix(prefix) or b"\x00"),
            "start_revision": str(max(1, after)),
            "progress_notify": True,
            "fragment": True,
        }
    }


# ---------------------------------------------------------------------------------------------------------- answers


def record_of(namespace: bytes, found: KeyValue) -> Record:
    return Record(
        found.key.removeprefix(namespace),
        found.value,
        Revision(found.create_revision),
        Revision(found.mod_revision),
        found.version,
        SessionId(found.lease) if found.lease else None,
    )


def outcome_of(namespace: bytes, transaction: Transaction, answer: TxnAnswer) -> Outcome:
    branch = transaction.then if answer.succeeded else transaction.otherwise
    found: list[Record | None] = []
    for operation, response in zip(branch, answer.responses, strict=True):
        if isinstance(operation, Get):
            kvs = response.response_range.kvs if response.response_range is not None else []
            found.append(record_of(namespace, kvs[0]) if kvs else None)
    return Outcome(answer.succeeded, Revision(answer.header.revision), tuple(found))


# ----------------------------------------------------------------------------------------------------------- errors


class TokenRefused(PushqError):
    """The token is not known, or too old: nothing was done. A new one may help."""

    code = "unauthenticated"


class AlreadyThere(PushqError):
    """A lease of this id exists: an earlier try, whose answer was lost, made it."""

    code = "conflict"


_ERRORS: Final[tuple[tuple[str, type[PushqError]], ...]] = (
    ("requested lease not found", SessionLost),
    ("lease already exists", AlreadyThere),
    ("invalid auth token", TokenRefused),
    ("revision of auth store is old", TokenRefused),
    ("user name is empty", TokenRefused),
    ("authentication failed", Unauthenticated),
    ("permission denied", Forbidden),
    ("database space exceeded", StorageFull),
    # These refuse before anything is proposed to the cluster.
    ("too many requests", Unavailable),
    ("etcdserver: no leader", Unavailable),
    ("required revision is a future revision", InvalidRequest),
    ("key is not provided", InvalidRequest),
    ("duplicate key given in txn request", InvalidRequest),
    ("too many operations in txn request", InvalidRequest),
    ("request is too large", InvalidRequest),
)
"""Errors with a certain outcome. Any other answer to a write leaves its outcome open, as a time-out does."""


def error_of(where: str, status: int, data: bytes) -> PushqError:
    """The error for an answer with that HTTP status. `OutcomeUnknown` is only for writes; a reader just asks again."""
    try:
        failure = decode(data, Failure)
    except msgspec.MsgspecError:
        failure = Failure(message=data[:200].decode(errors="replace"))
    return failure_of(where, failure, f"HTTP {status}")


def failure_of(where: str, failure: Failure, what: str) -> PushqError:
    message = (failure.message or failure.error)[:500]
    if "required revision has been compacted" in message:
        return Compacted(f"{where}: {message}", NEVER)
    for known, kind in _ERRORS:
        if known in message:
            return kind(f"{where}: {message}")
    return OutcomeUnknown(f"{where} answered {what}: {message or 'nothing'}")


# ---------------------------------------------------------------------------------------------------------- version

_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")
OLDEST: Final = (3, 4, 0)
DIVERGING: Final = ((3, 5, 0), (3, 5, 2))
"""From and to: members of these versions may disagree for good after one was killed (etcd#13766)."""


def version_problem(version: str) -> str | None:
    """Why a server of this version must not be used, or None."""
    found = _VERSION.match(version)
    if found is None:
        return f"its version {version[:40]!r} is none that is known"
    number = tuple(int(part) for part in found.groups())
    if number[0] != OLDEST[0] or number < OLDEST:
        return f"it is etcd {version}; 3.4 or a newer version of 3 is needed"
    if DIVERGING[0] <= number <= DIVERGING[1]:
        return f"etcd {version} can lose its agreement when a member is killed (etcd#13766); use 3.5.21 or newer"
    return None
