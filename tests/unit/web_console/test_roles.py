"""Who sees which view and does which act, line by line."""

from __future__ import annotations

import pytest

from web_console.acts import ACTS as HANDLERS
from web_console.roles import ACTS, ROLES, VIEWS, Role, role_of
from web_console.views import VIEWS as PAGES

SEEN = {
    "overview": "VOCA",
    "queues": "VOCA",
    "queue": "VOCA",
    "messages": "VOCA",
    "message": "VOCA",
    "dead letters": "OCA",
    "publish": "OCA",
    "queue settings": "OCA",
    "alerts": "VOCA",
    "alert history": "VOCA",
    "rules": "CA",
    "receivers": "CA",
    "silences": "CA",
    "connections": "CA",
    "dashboards": "CA",
    "dashboard": "CA",
    "node": "A",
    "tenants": "A",
    "keys": "CA",
    "usage": "CA",
    "audit": "CA",
    "settings": "A",
    "help": "VOCA",
}
DONE = {
    "publish": "OCA",
    "create queue": "OCA",
    "change queue": "OCA",
    "delete queue": "CA",
    "purge": "OCA",
    "redrive": "OCA",
    "cancel redrive": "OCA",
    "disconnect": "CA",
    "make key": "CA",
    "rotate key": "CA",
    "revoke key": "CA",
    "make tenant": "A",
    "change tenant": "A",
    "make rule": "CA",
    "change rule": "CA",
    "switch rule": "CA",
    "test rule": "CA",
    "delete rule": "CA",
    "make receiver": "CA",
    "change receiver": "CA",
    "test receiver": "CA",
    "delete receiver": "CA",
    "silence": "CA",
    "end silence": "CA",
    "drain": "A",
    "end drain": "A",
    "remove": "A",
    "end removal": "A",
    "rebalance": "A",
    "save dashboard": "CA",
    "remove dashboard": "CA",
}


def _letters(roles: frozenset[Role]) -> str:
    return "".join(letter for letter, role in zip("VOCA", ROLES, strict=True) if role in roles)


def test_every_view_is_for_the_roles_of_the_table() -> None:
    assert {name: _letters(roles) for name, roles in VIEWS.items()} == SEEN


def test_every_act_is_for_the_roles_of_the_table() -> None:
    assert {name: _letters(roles) for name, roles in ACTS.items()} == DONE


def test_the_table_has_each_view_and_act_that_there_is_and_no_other() -> None:
    assert {view.name for view in PAGES} == set(VIEWS)
    assert set(HANDLERS) == set(ACTS)
    assert all(view.cli for view in PAGES)


@pytest.mark.parametrize(
    ("scopes", "role"),
    [
        (("view:*",), "viewer"),
        (("view:orders", "view:mail"), "viewer"),
        (("view:*", "consume:orders"), "operator"),
        (("manage:*",), "operator"),
        (("admin",), "customer"),
        (("operator",), "admin"),
        (("admin", "operator"), "admin"),
    ],
)
def test_scopes_amount_to_a_role(scopes: tuple[str, ...], role: Role) -> None:
    assert role_of(scopes) == role
