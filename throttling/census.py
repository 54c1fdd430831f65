"""Counts the open connections and subscriptions of each tenant, principal and address, and caps them."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Literal, NamedTuple

Kind = Literal["connections", "subscriptions"]


class Who(NamedTuple):
    """The account of something open. An empty part is not known, and not counted."""

    tenant: str = ""
    principal: str = ""
    address: str = ""


@lru_cache(maxsize=10_000)
def network_of(address: str) -> str:
    """The key by which an address is counted: an IPv6 customer has 2^64 addresses, which count as one."""
    if ":" not in address:
        return address
    try:
        return str(IPv6Address(int(IPv6Address(address.partition("%")[0])) >> 64 << 64)) + "/64"
    except ValueError:
        return address


class Caps(NamedTuple):
    """The caps of one kind; 0 is unlimited."""

    tenant: int = 0
    principal: int = 0
    address: int = 0


NOBODY = Who()
NO_CAPS = Caps()


class Full(NamedTuple):
    """The cap that one more would exceed."""

    kind: Kind
    per: str
    subject: str
    cap: int


class Census:
    """Counts of what is open. Keeps only accounts with something open, so open connections bound its size."""

    def __init__(self, *, connections: Caps = NO_CAPS, subscriptions: Caps = NO_CAPS) -> None:
        self._caps: dict[Kind, Caps] = {"connections": connections, "subscriptions": subscriptions}
        self._open: Counter[tuple[Kind, str, str]] = Counter()
        self.refused: Counter[tuple[Kind, str]] = Counter()
        """Refusals by kind and by the part whose cap it was."""

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, kind: Kind, who: Who, *, tenant_cap: int | None = None) -> Full | None:
        """Counts one more for each part of `who` and returns None; counts nothing if a cap is reached, and returns it.
        `tenant_cap` is the tenant's own cap, if it has one."""
        caps = self._caps[kind]
        if tenant_cap is not None:
            caps = caps._replace(tenant=tenant_cap)
        parts = [(kind, per, subject) for per, subject in zip(Who._fields, who, strict=True) if subject]
        for key in parts:
            cap: int = getattr(caps, key[1])
            if cap and self._open[key] >= cap:
                self.refused[kind, key[1]] += 1
                return Full(kind, key[1], key[2], cap)
        self._open.update(parts)
        return None

    def leave(self, kind: Kind, who: Who) -> None:
        for per, subject in zip(Who._fields, who, strict=True):
            key = (kind, per, subject)
            if subject:
                self._open[key] -= 1
                assert self._open[key] >= 0, f"{per} {subject} left more often than it came"
                if not self._open[key]:
                    del self._open[key]
