"""Reasons of nacks: what a consumer says of a message, so in an encrypted queue it is stored as secret as the message.

A history is a part of the store's own rows, which stay readable. So the text itself is sealed, by whoever has the keys,
and opened where a dead letter is shown. Reasons from before are read as they are.

    "sealed:1:" | base64 of what `Seal.seal_note` made of the text
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Final

from backend_store.core.sealing import CannotOpen, Seal
from backend_store.model import Unavailable

_SEALED: Final = "sealed:1:"
UNREADABLE: Final = "cannot be decrypted"


def sealed_reason(reason: str | None, seal: Seal | None) -> str | None:
    """As it may be stored in an encrypted queue. While that has no key it is dropped: a nack waits for nothing."""
    if reason is None or seal is None:
        return None
    try:
        return _SEALED + b64encode(seal.seal_note(reason.encode("utf-8", "replace"))).decode()
    except Unavailable:
        return None


def told_reason(reason: str | None, seal: Seal | None) -> str | None:
    """As a consumer said it; a fixed sentence in place of what does not open."""
    if reason is None or not reason.startswith(_SEALED):
        return reason
    try:
        if seal is None:
            return UNREADABLE
        return seal.open_note(b64decode(reason[len(_SEALED) :], validate=True)).decode()
    except (CannotOpen, binascii.Error, UnicodeDecodeError):
        return UNREADABLE


def told_history(rows: Iterable[Any], seal: Seal | None) -> list[list[Any]]:
    """The attempts of a message, their reasons opened."""
    return [[attempt, at_ms, outcome, told_reason(reason, seal)] for attempt, at_ms, outcome, reason in rows]


def moved_history(dead: Mapping[str, Any], of: Seal | None, to: Seal, *, is_encrypted: bool) -> dict[str, Any]:
    """What is known of a message's end when it goes to another queue: what was sealed is sealed for that one, and in an
    encrypted one everything is.
    """
    rows = []
    for attempt, at_ms, outcome, reason in dead.get("history", ()):
        if reason is not None and (is_encrypted or reason.startswith(_SEALED)):
            reason = sealed_reason(told_reason(reason, of), to)
        rows.append([attempt, at_ms, outcome, reason])
    return {**dead, "history": rows}
