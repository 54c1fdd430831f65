"""Scopes: what they let a key do, and which of them are none."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.model import InvalidRequest
from gateway.identity.authorization import (
    REACH,
    VERBS,
    Act,
    Role,
    Verb,
    check_scopes,
    compile_scopes,
    may_administer,
    owner_of,
    role_of,
)

DECISIONS: list[tuple[str, Verb, str, bool]] = [
    # scopes, verb, queue, allowed
    ("publish:orders", "publish", "orders", True),
    ("publish:orders", "publish", "orders2", False),
    ("publish:orders", "publish", "my.orders", False),
    ("publish:orders", "consume", "orders", False),
    ("publish:orders", "view", "orders", False),
    ("consume:orders", "consume", "orders", True),
    ("consume:orders", "view", "orders", False),
    ("view:orders", "view", "orders", True),
    ("view:orders", "manage", "orders", False),
    ("manage:orders", "manage", "orders", True),
    ("manage:orders", "publish", "orders", False),
    ("publish:*", "publish", "anything.at_all-9", True),
    ("publish:shop.*", "publish", "shop.orders", True),
    ("publish:shop.*", "publish", "shop", False),
    ("publish:shop.*", "publish", "shopXorders", False),
    ("publish:*.eu", "publish", "orders.eu", True),
    ("publish:*.eu", "publish", "orders.eu.old", False),
    ("publish:a*b*c", "publish", "abc", True),
    ("publish:a*b*c", "publish", "a-then-b-then-c", True),
    ("publish:a*b*c", "publish", "acb", False),
    ("publish:a**c", "publish", "abc", True),
    ("publish:a publish:b", "publish", "b", True),
    ("publish:a consume:b", "consume", "a", False),
    ("consume:orders", "consume", "orders.dead", True),
    ("consume:orders", "consume", "orders.late", True),
    ("consume:orders", "consume", "orders.other", False),
    ("consume:orders.dead", "consume", "orders.dead", True),
    ("consume:orders.dead", "consume", "orders", False),
    ("admin", "manage", "orders", True),
    ("operator", "publish", "orders", True),
    ("", "view", "orders", False),
]


@pytest.mark.parametrize(("scopes", "verb", "queue", "allowed"), DECISIONS)
def test_scopes_decide(scopes: str, verb: Verb, queue: str, allowed: bool) -> None:
    assert compile_scopes(scopes.split()).may(verb, queue) is allowed


MEMBER, ADMINISTRATOR, OPERATOR = "publish:* consume:* view:* manage:*", "admin", "operator"

ADMINISTRATION: list[tuple[Act, str, bool, bool]] = [
    # act, scopes, in the own tenant, in another one
    ("keys", MEMBER, False, False),
    ("keys", ADMINISTRATOR, True, False),
    ("keys", OPERATOR, True, True),
    ("operators' keys", MEMBER, False, False),
    ("operators' keys", ADMINISTRATOR, False, False),
    ("operators' keys", OPERATOR, True, True),
    ("connections", MEMBER, False, False),
    ("connections", ADMINISTRATOR, True, False),
    ("connections", OPERATOR, True, True),
    ("queue deletion", MEMBER, False, False),
    ("queue deletion", ADMINISTRATOR, True, False),
    ("queue deletion", OPERATOR, True, False),
    ("tenants", MEMBER, False, False),
    ("tenants", ADMINISTRATOR, False, False),
    ("tenants", OPERATOR, True, True),
]


@pytest.mark.parametrize(("act", "scopes", "own", "other"), ADMINISTRATION)
def test_a_role_reaches_its_own_tenant_or_all(act: Act, scopes: str, own: bool, other: bool) -> None:
    access = compile_scopes(scopes.split())
    assert may_administer(access, act) is own
    assert may_administer(access, act, is_own_tenant=False) is other


def test_every_act_is_decided_for_every_role() -> None:
    assert {act for act, *_ in ADMINISTRATION} == set(REACH)
    assert all(set(roles) == set(get_args(Role)) for roles in REACH.values())


def test_a_ticket_or_a_token_cut_down_has_the_role_that_is_left() -> None:
    operator = compile_scopes(["admin", "operator"])
    assert role_of(operator.narrowed(["admin"])) == "administrator"
    assert role_of(operator.narrowed(["consume:*"])) == "member"
    assert role_of(compile_scopes(["consume:*"]).narrowed(["admin", "operator"])) == "member"


@pytest.mark.parametrize(
    ("pattern", "allowed"), [("*a" * 60 + "*b", False), ("a*" * 60, True), ("*ab" * 40 + "*", False)]
)
def test_a_pattern_of_many_stars_is_decided_at_once(pattern: str, allowed: bool) -> None:
    """It runs on the event loop: everybody waits for it."""
    began = time.thread_time()
    assert compile_scopes([f"view:{pattern}"]).may("view", "a" * 127) is allowed
    assert time.thread_time() - began < 0.5


@given(st.text("ab*", min_size=1, max_size=8), st.text("ab", min_size=1, max_size=10))
def test_a_pattern_means_what_stars_mean(pattern: str, name: str) -> None:
    assert compile_scopes([f"view:{pattern}"]).may("view", name) is fnmatchcase(name, pattern)


def test_a_decision_is_the_same_when_asked_again() -> None:
    access = compile_scopes(["publish:a"])
    assert [access.may("publish", q) for q in ("a", "b", "a", "b")] == [True, False, True, False]


def test_only_admin_and_operator_administer() -> None:
    assert [
        (compile_scopes([s]).is_admin, compile_scopes([s]).is_operator) for s in ("admin", "operator", "manage:*")
    ] == [
        (True, False),
        (True, True),
        (False, False),
    ]


def test_narrowed_rights_never_reach_further_than_before() -> None:
    narrowed = compile_scopes(["consume:shop.*", "view:*"]).narrowed(["consume:*", "publish:*", "admin"])
    assert narrowed.may("consume", "shop.orders")
    assert not narrowed.may("consume", "bank.orders")
    assert not narrowed.may("publish", "shop.orders")
    assert not narrowed.may("view", "shop.orders")
    assert not narrowed.is_admin


def test_an_administrator_can_narrow_its_rights_to_one_queue() -> None:
    narrowed = compile_scopes(["admin", "operator"]).narrowed(["consume:orders"])
    assert narrowed.may("consume", "orders")
    assert not narrowed.may("consume", "others")
    assert not narrowed.is_admin and not narrowed.is_operator


@pytest.mark.parametrize("scope", ["admin", "operator", "publish:*", "view:a.b-c_d*", *(f"{v}:q" for v in VERBS)])
def test_a_scope_of_the_protocol_is_taken(scope: str) -> None:
    assert check_scopes([scope]) == (scope,)


@pytest.mark.parametrize(
    "scope",
    ["", "publish", "publish:", "read:orders", "admin:*", "publish:a b", "publish:ü", "publish:" + "a" * 129, ":q"],
)
def test_what_is_no_scope_is_refused_with_its_place(scope: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_scopes(["admin", scope])
    assert [e.pointer for e in refused.value.errors] == ["/scopes/1"]


def test_a_scope_given_twice_counts_once() -> None:
    assert check_scopes(["view:a", "admin", "view:a"]) == ("view:a", "admin")


def test_no_scopes_and_too_many_are_refused() -> None:
    for scopes in ([], ["admin"] * 101):
        with pytest.raises(InvalidRequest):
            check_scopes(scopes)


def test_too_many_scopes_are_not_looked_at() -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_scopes([""] * 1_000_000)
    assert [(e.pointer, e.detail) for e in refused.value.errors] == [
        ("/scopes", "a key can have at most 100 scopes, not 1000000")
    ]


def test_a_scope_that_is_very_long_is_told_by_its_beginning() -> None:
    for scope in ("x" * 100_000, "view:" + "x" * 100_000):
        with pytest.raises(InvalidRequest) as refused:
            check_scopes([scope])
        assert len(refused.value.detail) < 1000


def test_companions_belong_to_their_queue() -> None:
    assert [owner_of(q) for q in ("orders", "orders.dead", "orders.late", "dead")] == [
        "orders",
        "orders",
        "orders",
        "dead",
    ]
