"""Which role sees which view and may do which act: a table, checked line by line in a test.

The API checks each request again, by the scopes of the key: this table hides what would be refused anyway, and covers
pages that show the answers of several calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

Role = Literal["viewer", "operator", "customer", "admin"]
"""A viewer sees queues, without payloads; an operator acts on queues; a customer administers its own tenant; an admin
the whole server."""

ROLES: Final[tuple[Role, ...]] = ("viewer", "operator", "customer", "admin")

_ALL: Final = frozenset(ROLES)
_WORKERS: Final = frozenset[Role]({"operator", "customer", "admin"})
_OWNERS: Final = frozenset[Role]({"customer", "admin"})
_ADMIN: Final = frozenset[Role]({"admin"})

VIEWS: Final[dict[str, frozenset[Role]]] = {
    "overview": _ALL,
    "queues": _ALL,
    "queue": _ALL,
    "messages": _ALL,
    "message": _ALL,
    "dead letters": _WORKERS,
    "publish": _WORKERS,
    "queue settings": _WORKERS,
    "alerts": _ALL,
    "alert history": _ALL,
    "rules": _OWNERS,
    "receivers": _OWNERS,
    "silences": _OWNERS,
    "connections": _OWNERS,
    "dashboards": _OWNERS,
    "dashboard": _OWNERS,
    "node": _ADMIN,
    "tenants": _ADMIN,
    "keys": _OWNERS,
    "usage": _OWNERS,
    "audit": _OWNERS,
    "settings": _ADMIN,
    "help": _ALL,
}

ACTS: Final[dict[str, frozenset[Role]]] = {
    "publish": _WORKERS,
    "create queue": _WORKERS,
    "change queue": _WORKERS,
    "delete queue": _OWNERS,
    "purge": _WORKERS,
    "redrive": _WORKERS,
    "cancel redrive": _WORKERS,
    "disconnect": _OWNERS,
    "make key": _OWNERS,
    "rotate key": _OWNERS,
    "revoke key": _OWNERS,
    "make tenant": _ADMIN,
    "change tenant": _ADMIN,
    "make rule": _OWNERS,
    "change rule": _OWNERS,
    "switch rule": _OWNERS,
    "test rule": _OWNERS,
    "delete rule": _OWNERS,
    "make receiver": _OWNERS,
    "change receiver": _OWNERS,
    "test receiver": _OWNERS,
    "delete receiver": _OWNERS,
    "silence": _OWNERS,
    "end silence": _OWNERS,
    "drain": _ADMIN,
    "end drain": _ADMIN,
    "remove": _ADMIN,
    "end removal": _ADMIN,
    "rebalance": _ADMIN,
    "save dashboard": _OWNERS,
    "remove dashboard": _OWNERS,
}


def role_of(scopes: Sequence[str]) -> Role:
    """The role that corresponds to a key's scopes."""
    if "operator" in scopes:
        return "admin"
    if "admin" in scopes:
        return "customer"
    if any(not scope.startswith("view:") for scope in scopes):
        return "operator"
    return "viewer"


def may_see(role: Role, view: str) -> bool:
    return role in VIEWS[view]


def may_do(role: Role, act: str) -> bool:
    return role in ACTS[act]
