"""Claims: what a verified token grants, and every way in which it grants nothing."""

from __future__ import annotations

from typing import Any

import pytest

from backend_store.model import TokenExpired, Unauthenticated
from gateway.identity.issuers import Issuer
from gateway.identity.jwt_claims import Grant, granted
from gateway.limits import SUBJECT_CHARS_MAX

NOW_S = 1_700_000_000
CUSTOMERS = Issuer("https://id.acme.example", tenant="acme", secret="x")
OPERATORS = Issuer("https://id.pushq.example", tenants=("*",), secret="x")
SOME = Issuer("https://id.some.example", tenants=("acme", "beta"), secret="x")


def claims(issuer: Issuer = CUSTOMERS, **changed: Any) -> dict[str, Any]:
    """Good claims with changes; None leaves a claim out."""
    good = {"iss": issuer.issuer, "sub": "alice", "aud": "pushq", "exp": NOW_S + 60, "scope": "consume:* publish:jobs"}
    return {name: value for name, value in (good | changed).items() if value is not None}


def ask(given: dict[str, Any], issuer: Issuer = CUSTOMERS, now_s: float = NOW_S) -> Grant:
    return granted(given, issuer, audience="pushq", leeway_s=30, now_ms=int(now_s * 1000))


def test_good_claims_grant_their_scopes_until_they_end_with_the_leeway() -> None:
    assert ask(claims()) == Grant("alice", "acme", ("consume:*", "publish:jobs"), (NOW_S + 90) * 1000)


@pytest.mark.parametrize(
    "changed",
    [
        {"aud": ["other", "pushq"]},
        {"tenant": "acme"},
        {"tenant": "acme", "iss": None},
        {"nbf": NOW_S + 30},
        {"iat": NOW_S + 29.5},
        {"exp": NOW_S - 29},
        {"exp": NOW_S + 0.5},
        {"jti": "x", "email": "alice@acme.example", "nested": {"a": [1]}},
        {"sub": "auth0|5f7c8ec7c33c6c004bbafe82"},
        {"scope": "admin"},
    ],
)
def test_what_a_token_may_also_say_is_no_obstacle(changed: dict[str, Any]) -> None:
    assert ask(claims(**changed)).tenant == "acme"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"iss": "https://evil.example"}, "`iss`"),
        ({"iss": None}, "`iss`"),
        ({"iss": None, "tenant": "beta"}, "`iss`"),
        ({"exp": None}, "`exp` is missing"),
        ({"exp": NOW_S - 30}, "expired 30 s ago"),
        ({"exp": str(NOW_S + 60)}, "`exp` must be a number of seconds"),
        ({"exp": True}, "`exp` must be a number of seconds"),
        ({"exp": float("nan")}, "`exp` must be a number of seconds"),
        ({"exp": float("inf")}, "`exp` must be a number of seconds"),
        ({"exp": 10**30}, "`exp` must be a number of seconds"),
        ({"exp": -1}, "`exp` must be a number of seconds"),
        ({"nbf": NOW_S + 31}, "`nbf` is 31 s in the future"),
        ({"nbf": "soon"}, "`nbf` must be a number of seconds"),
        ({"iat": NOW_S + 31}, "`iat` is 31 s in the future"),
        ({"aud": None}, "`aud` must contain 'pushq'"),
        ({"aud": "pushq2"}, "`aud`"),
        ({"aud": ["pus", "hq"]}, "`aud`"),
        ({"aud": {"pushq": 1}}, "`aud`"),
        ({"aud": []}, "`aud`"),
        ({"sub": None}, "printable characters"),
        ({"sub": ""}, "`sub`"),
        ({"sub": 7}, "`sub`"),
        ({"sub": "a" * (SUBJECT_CHARS_MAX + 1)}, "`sub`"),
        ({"sub": "alice\nadmin"}, "`sub`"),
        ({"tenant": "default"}, "is not the tenant of its issuer"),
        ({"tenant": ["acme"]}, "`tenant`"),
        ({"scope": None}, "must be space-separated scopes of at most"),
        ({"scope": ""}, "scope"),
        ({"scope": ["admin"]}, "`scope`"),
        ({"scope": "consume:* root"}, "invalid scope 'root'"),
        ({"scope": "consume:*  publish:a"}, "invalid scope ''"),
        ({"scope": "consume:a/b"}, "consume:a/b"),
        ({"scope": "x" * 7000}, "`scope`"),
        ({"scope": "operator"}, "contains operator, which an issuer with a single"),
        ({"scope": "admin operator"}, "operator"),
    ],
)
def test_a_token_that_lacks_anything_is_refused_with_the_claims_name(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(Unauthenticated) as error:
        ask(claims(**changed))
    assert says in error.value.detail


def test_only_an_expired_token_asks_for_a_newer_one() -> None:
    with pytest.raises(TokenExpired):
        ask(claims(exp=NOW_S - 30))
    with pytest.raises(Unauthenticated) as error:
        ask(claims(nbf=NOW_S + 100))
    assert not isinstance(error.value, TokenExpired)


def test_only_an_issuer_of_one_tenant_is_known_by_that_tenant() -> None:
    for issuer in (OPERATORS, SOME):
        for tenant in ("acme", None):
            with pytest.raises(Unauthenticated, match="`iss`"):
                ask(claims(iss=None, tenant=tenant), issuer)


@pytest.mark.parametrize(
    ("issuer", "tenant", "granted_to"),
    [
        (OPERATORS, "acme", "acme"),
        (OPERATORS, "default", "default"),
        (OPERATORS, None, None),
        (OPERATORS, "*", None),
        (OPERATORS, "../acme", None),
        (SOME, "beta", "beta"),
        (SOME, "gamma", None),
        (SOME, None, None),
        (SOME, "*", None),
    ],
)
def test_an_operators_issuer_names_the_tenant_in_each_token(
    issuer: Issuer, tenant: str | None, granted_to: str | None
) -> None:
    given = claims(issuer, tenant=tenant, scope="operator")
    if granted_to is not None:
        assert ask(given, issuer) == Grant("alice", granted_to, ("operator",), (NOW_S + 90) * 1000)
    else:
        with pytest.raises(Unauthenticated, match="`tenant`"):
            ask(given, issuer)
