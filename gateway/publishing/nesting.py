"""Finds JSON bodies that are nested too deep: consumers in any language must be able to decode what they receive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.limits import BODY_DEPTH_MAX

TOO_DEEP: Final = f"the body is nested more than {BODY_DEPTH_MAX} levels deep; flatten it, or send it as bytes"

_AS_LISTS: Final = bytes.maketrans(b"{}", b"[]")
_BEFORE_OR_OPENING: Final = frozenset(b"[{ \t\r\n")
_TOO_MANY: Final = b"[" * (BODY_DEPTH_MAX + 1)
_VALLEYS: Final = tuple(b"]" * levels + b"[" * levels for levels in (16, 8, 4, 2, 1))
"""Closing and reopening of the same number of levels: removing these does not change the maximum depth."""
_OTHERS: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')


def too_deep(bodies: Sequence[bytes]) -> list[int]:
    """Indexes of the bodies, each valid JSON or empty, that are nested too deep."""
    # Scalars, short and flat values are excluded cheaply, and so are bodies with few brackets.
    return [
        number
        for number, body in enumerate(bodies)
        if len(body) > 2 * BODY_DEPTH_MAX
        and body[0] in _BEFORE_OR_OPENING
        and (body.find(b"{", 1) > 0 or body.find(b"[", 1) > 0)
        and body.count(b"{") + body.count(b"[") > BODY_DEPTH_MAX
        and _is_deep(body)
    ]


def _is_deep(body: bytes) -> bool:
    brackets = _outside_strings(body)
    while _TOO_MANY not in brackets:
        before = len(brackets)
        for valley in _VALLEYS:
            brackets = brackets.replace(valley, b"")
        if len(brackets) == before:  # only opening brackets are left, followed by closing ones
            return before > 2 * BODY_DEPTH_MAX
    return True


def _outside_strings(body: bytes) -> bytes:
    """The brackets outside of strings, all written as those of lists.

    Each step is one pass in C over the result of the step before. A regular expression for strings would keep a hundred
    bytes for each character, and a body may be one string.
    """
    if b"\\" in body:  # only in strings, which afterwards have quotes at their ends and nowhere else
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Removes strings without brackets, two quotes each: the parity of quotes before each bracket stays the same.
    marks = body.translate(_AS_LISTS, _OTHERS).replace(b'""', b"")
    return b"".join(marks.split(b'"')[::2])
