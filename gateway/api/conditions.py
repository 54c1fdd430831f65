"""Conditional requests (RFC 9110, section 13): a change is made only if its target is in the state the caller knows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from backend_store.model import Conflict, PushqError
from gateway.api.http import Call


def etag_of(stored: msgspec.Struct) -> str:
    """A strong ETag of what is stored, different for each state."""
    return f'"{hashlib.sha256(msgspec.msgpack.encode(stored)).hexdigest()[:24]}"'


def check_conditions(call: Call, etag: str, what: str) -> None:
    """Checks `If-Match` and `If-None-Match`, if given, for a change to something that exists.

    Raises the problem `precondition-failed`.
    """
    wanted, unwanted = call.header(b"if-match"), call.header(b"if-none-match")
    if wanted is not None and not _has(wanted, etag):
        raise changed_meanwhile(what)
    if unwanted is not None and _has(unwanted.replace("W/", ""), etag):
        detail = f"{what} already exists, as excluded by If-None-Match; send If-Match to change it"
        raise PushqError(detail, code="precondition-failed")


@contextmanager
def condition_met(call: Call, what: str) -> Iterator[None]:
    """Turns a `Conflict` into `precondition-failed` if the request has `If-Match`: another caller's change came between
    the check and this one."""
    try:
        yield
    except Conflict:
        if call.header(b"if-match") is None:
            raise
        raise changed_meanwhile(what) from None


def changed_meanwhile(what: str) -> PushqError:
    return PushqError(f"{what} has been changed since you read it; read it again and retry", code="precondition-failed")


def _has(tags: str, etag: str) -> bool:
    """Whether a list of ETags has this one; ours are strong and contain no comma."""
    return not {"*", etag}.isdisjoint(tag.strip() for tag in tags.split(","))
