"""Rules for every change of API keys: no change brings back a deleted key, and one operator's key always remains.

The metadata apply them together with the change. A gateway that checked first and wrote later would let two operators
delete each other, or let a rotation restore a key that was revoked meanwhile. No I/O: keys come in, a refusal comes
out.
"""

from __future__ import annotations

from collections.abc import Iterable

from backend_store.model import OPERATOR, ApiKey, Conflict, NotFound


def check_instead(known: ApiKey | None, instead_of: ApiKey | None, key: ApiKey) -> None:
    """Checks that `key` may replace `known`; `instead_of` is what it was made from, None for a new key.

    Raises `NotFound` for a key that was deleted meanwhile, `Conflict` for one that was changed, or is not new.
    """
    if known == key:  # repeated after a lost answer
        return
    if instead_of is None:
        if known is not None:
            raise Conflict(f"key {key.id!r} already exists")
        return
    if known is None:
        raise NotFound(f"there is no key {key.id!r}")
    if known != instead_of:
        raise Conflict(f"key {key.id!r} has been changed since you read it; read it again")


def heir(gone: Iterable[ApiKey], others: Iterable[ApiKey]) -> ApiKey | None:
    """An operator's key among `others` that lasts at least as long as each deleted one; None where no operator's key is
    deleted.

    The present time does not count: an operator who is left with a key that expires would be locked out later. Raises
    `Conflict` where there is no such key.
    """
    ends = [_end(key) for key in gone if OPERATOR in key.scopes]
    if not ends:
        return None
    last = max(ends)
    for key in others:
        if OPERATOR in key.scopes and _end(key) >= last:
            return key
    raise Conflict(
        "this is the last key with the scope operator, or the others expire before it; create another one first"
    )


def _end(key: ApiKey) -> float:
    return float("inf") if key.expires_at_ms is None else key.expires_at_ms
