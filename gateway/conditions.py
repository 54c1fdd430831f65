"""Conditional requests, RFC 9110 section 13: a change passes only where what it changes is as its sender knows it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from backend_store.model import Conflict, PushqError
from gateway.http import Call


def etag_of(stored: msgspec.Struct) -> str:
    """Another one for each state of what is stored."""
    return f'"{hashlib.sha256(msgspec.msgpack.encode(stored)).hexdigest()[:24]}"'


def check_conditions(call: Call, etag: str, what: str) -> None:
    """Of something that is there: whether `If-Match` and `If-None-Match`, where they are given, let a change pass.

    Raises `PushqError`.
    """
    wanted, unwanted = call.header(b"if-match"), call.header(b"if-none-match")
    if wanted is not None and not _has(wanted, etag):
        raise changed_meanwhile(what)
    if unwanted is not None and _has(unwanted.replace("W/", ""), etag):
        detail = f"{what} is there as If-None-Match excludes it; a change of it takes If-Match"
        raise PushqError(detail, code="precondition-failed")


@contextmanager
def condition_met(call: Call, what: str) -> Iterator[None]:
    """Where somebody else was faster between the look at `If-Match` and the change, that is a condition that failed."""
    try:
        yield
    except Conflict:
        if call.header(b"if-match") is None:
            raise
        raise changed_meanwhile(what) from None


def changed_meanwhile(what: str) -> PushqError:
    return PushqError(f"{what} was changed meanwhile; read it again", code="precondition-failed")


def _has(tags: str, etag: str) -> bool:
    """Ours are strong and have no comma."""
    return not {"*", etag}.isdisjoint(tag.strip() for tag in tags.split(","))
