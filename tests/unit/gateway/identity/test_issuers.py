"""Issuers in the settings: what an entry may be, and that no key ever serves two kinds of algorithms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.identity.issuers import Jwt, issuer_entries, without_secrets

SECRET = "s" * 32
GOOD = {"issuer": "https://id.acme.example", "tenant": "acme", "jwks_url": "https://id.acme.example/keys"}


def entry(**changed: Any) -> dict[str, Any]:
    return {name: value for name, value in (GOOD | changed).items() if value is not None}


@pytest.mark.parametrize(
    ("changed", "allowed"),
    [
        ({}, {"RS256", "ES256", "EdDSA"}),
        ({"algorithms": ["ES256"]}, {"ES256"}),
        ({"algorithms": ["HS256", "EdDSA"]}, {"EdDSA"}),
        ({"jwks_url": None, "secret": SECRET}, {"HS256"}),
        ({"jwks_url": None, "secret_file": "x", "algorithms": ["HS256", "RS256"]}, {"HS256"}),
        ({"jwks_url": None, "public_key_file": "x"}, {"RS256", "ES256", "EdDSA"}),
    ],
)
def test_a_secret_and_a_public_key_never_share_an_algorithm(changed: dict[str, Any], allowed: set[str]) -> None:
    (issuer,) = issuer_entries([entry(**changed)])
    assert Jwt().algorithms_of(issuer) == allowed


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"isuer": "x"}, "unknown field `isuer`"),
        ({"issuer": None}, "missing required field `issuer`"),
        ({"issuer": "a b"}, "ASCII characters without spaces and"),
        ({"issuer": "a|b"}, "ASCII characters without spaces and"),
        ({"issuer": ""}, "ASCII characters without spaces and"),
        ({"tenant": None}, "tenant: set the issuer's tenant, or tenants ="),
        ({"tenants": ["*"]}, "tenant: set the issuer's tenant, or tenants ="),
        ({"tenant": "*"}, "tenant: invalid tenant name '*'"),
        ({"tenant": None, "tenants": ["acme", "*"]}, "tenants: invalid tenant name '*'"),
        ({"jwks_url": None}, "one of secret, secret_file, public_key_file, jwks_file, jwks_url, not 0"),
        ({"jwks_file": "keys.json"}, "not 2"),
        ({"jwks_url": "http://id.acme.example/keys"}, "is not secure: use https://…, or http:// on this"),
        ({"jwks_url": "http://127.0.0.1.evil.example/keys"}, "is not secure: use https://…, or http:// on this"),
        ({"jwks_url": "file:///etc/passwd"}, "is not secure: use https://…, or http:// on this"),
        ({"jwks_url": "https://"}, "is not secure: use https://…, or http:// on this"),
        ({"jwks_url": "https://[::1"}, "jwks_url: invalid URL"),
        ({"jwks_url": "https://me:secret@id.acme.example"}, "jwks_url: remove the user name and password; key sets"),
        ({"jwks_url": None, "secret": "short"}, "HS256 needs at least 32 random bytes, not 5"),
        ({"jwks_url": None, "secret_file": ""}, "secret_file: the value is empty"),
        ({"algorithms": ["none"]}, "Invalid enum value 'none'"),
        ({"algorithms": ["HS512"]}, "Invalid enum value 'HS512'"),
        ({"scopes_max": []}, "scopes is empty; give at least one"),
        ({"scopes_max": ["read"]}, "invalid scope 'read'"),
        ({"scopes_max": ["operator"]}, "scopes_max: an issuer with a single tenant cannot"),
    ],
)
def test_a_wrong_entry_is_named_with_its_field(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as error:
        issuer_entries([entry(issuer="good"), entry(**changed)])
    assert str(error.value).startswith("auth.jwt.issuers[1]") and says in str(error.value)


def test_two_entries_of_one_issuer_are_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"is already used by auth\.jwt\.issuers\[0\]"):
        issuer_entries([entry(), entry(tenant="beta")])


def test_a_variable_has_the_entries_as_json() -> None:
    assert issuer_entries(json.dumps([entry()])) == issuer_entries([entry()])
    for wrong in ("{", "{}"):
        with pytest.raises(ValueError, match=r"must be a list|is not valid JSON"):
            issuer_entries(wrong)


def test_secrets_are_never_shown() -> None:
    shown = without_secrets(issuer_entries([entry(jwks_url=None, secret=SECRET), entry(issuer="b")]))
    assert SECRET not in json.dumps(shown)
    assert [each.get("secret") for each in shown] == ["***", None]
