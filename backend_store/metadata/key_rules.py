"""What holds of API keys whoever changes them: no change brings back a key that has gone, and an operator stays.

The metadata decide it with the change itself. A gateway that looked first and wrote then would let two operators delete
each other, or a rotation write a key again that was revoked meanwhile. Rules only: keys come in, a refusal comes out.
"""

from __future__ import annotations

from collections.abc import Iterable

from backend_store.model import OPERATOR, ApiKey, Conflict, NotFound


def check_instead(known: ApiKey | None, instead_of: ApiKey | None, key: ApiKey) -> None:
    """Whether `key` may be written where `known` is; `instead_of` is what it was made from, None for a new key.

    Raises `NotFound` for one that has gone meanwhile, `Conflict` for one that was changed, or is not new.
    """
    if known == key:  # asked again after an answer was lost
        return
    if instead_of is None:
        if known is not None:
            raise Conflict(f"there is a key {key.id!r} already")
        return
    if known is None:
        raise NotFound(f"there is no key {key.id!r}")
    if known != instead_of:
        raise Conflict(f"key {key.id!r} was changed meanwhile; look at it again")


def heir(gone: Iterable[ApiKey], others: Iterable[ApiKey]) -> ApiKey | None:
    """Among `others` an operator's key that lasts at least as long as each that goes; None where no operator's goes.

    Without a look at a clock: an operator who is left with a key that ends has been locked out with a delay. Raises
    `Conflict` where there is none.
    """
    ends = [_end(key) for key in gone if OPERATOR in key.scopes]
    if not ends:
        return None
    last = max(ends)
    for key in others:
        if OPERATOR in key.scopes and _end(key) >= last:
            return key
    raise Conflict("this is the last key with the scope operator, or the others end before it; make another one first")


def _end(key: ApiKey) -> float:
    return float("inf") if key.expires_at_ms is None else key.expires_at_ms
