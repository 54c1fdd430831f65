"""Reasons of nacks: a consumer's text about a message, which an encrypted queue stores encrypted like the message.

A history is part of the store's own rows, which stay readable. So only the text is sealed, where the keys are, and
opened where a dead letter is shown. Reasons stored before that are read as they are.

    "sealed:1:" | base64 of the sealed text that `Seal.seal_note` returns
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Final

from backend_store.core.log.sealed_block import CannotOpen, Seal
from backend_store.model import Unavailable

_SEALED: Final = "sealed:1:"
UNREADABLE: Final = "cannot be decrypted"


def sealed_reason(reason: str | None, seal: Seal | None) -> str | None:
    """Returns a reason as an encrypted queue stores it; None while the queue has no key, since a nack does not wait."""
    if reason is None or seal is None:
        return None
    try:
        return _SEALED + b64encode(seal.seal_note(reason.encode("utf-8", "replace"))).decode()
    except Unavailable:
        return None


def told_reason(reason: str | None, seal: Seal | None) -> str | None:
    """Returns a reason as the consumer gave it, or `UNREADABLE` if it cannot be opened."""
    if reason is None or not reason.startswith(_SEALED):
        return reason
    try:
        if seal is None:
            return UNREADABLE
        return seal.open_note(b64decode(reason[len(_SEALED) :], validate=True)).decode()
    except (CannotOpen, binascii.Error, UnicodeDecodeError):
        return UNREADABLE


def told_history(rows: Iterable[Any], seal: Seal | None) -> list[list[Any]]:
    """Returns the attempts of a message with their reasons opened."""
    return [[attempt, at_ms, outcome, told_reason(reason, seal)] for attempt, at_ms, outcome, reason in rows]


def moved_history(dead: Mapping[str, Any], of: Seal | None, to: Seal, *, is_encrypted: bool) -> dict[str, Any]:
    """Returns the `dead` column of a message that moves to another queue: reasons that were sealed are sealed for that
    queue, and if it is encrypted (`is_encrypted`), all reasons are.
    """
    rows = []
    for attempt, at_ms, outcome, reason in dead.get("history", ()):
        if reason is not None and (is_encrypted or reason.startswith(_SEALED)):
            reason = sealed_reason(told_reason(reason, of), to)
        rows.append([attempt, at_ms, outcome, reason])
    return {**dead, "history": rows}
