"""Tokens: which key verifies one, and that nothing in the token itself decides that."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from backend_store.model import Unauthenticated
from gateway.identity.issuers import Issuer, Jwt
from gateway.identity.jwks_refresh import KeySets
from gateway.identity.jwt import Tokens
from tests.support.issuers import SECRET, SigningKey, claims, raw_token, with_secret

pytestmark = pytest.mark.anyio

KEY = SigningKey("EdDSA", "ed")
SHOP = Issuer("shop", tenant="acme", secret=SECRET)


def now_ms(given: dict[str, Any]) -> int:
    return int(given["iat"]) * 1000


@pytest.fixture
async def tokens(tmp_path: Any) -> Tokens:
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [KEY.jwk]}))
    signer = Issuer("signer", tenant="beta", jwks_file=str(tmp_path / "keys.json"))
    jwt = Jwt(issuers=(SHOP, signer))
    return Tokens(jwt, KeySets(jwt))


async def test_the_issuer_says_which_key_and_the_key_which_algorithm(tokens: Tokens) -> None:
    for issuer, tenant, sign in (("shop", "acme", with_secret), ("signer", "beta", KEY.sign)):
        given = claims(issuer, "consume:*")
        verified = tokens.verify(sign(given), now_ms(given))
        assert (verified.grant.tenant, verified.issuer.issuer) == (tenant, issuer)
        assert tokens.trusts(issuer, verified.fingerprint)
        assert not tokens.trusts({"shop": "signer", "signer": "shop"}[issuer], verified.fingerprint)


async def test_each_issuers_tokens_are_verified_by_its_own_key_only(tokens: Tokens) -> None:
    for token in (
        KEY.sign(claims("shop", "consume:*")),
        with_secret(claims("signer", "consume:*"), kid="ed"),
        raw_token({"alg": "HS256", "kid": "ed"}, claims("signer", "consume:*"), b"x" * 32),
    ):
        with pytest.raises(Unauthenticated, match="`alg` is not allowed"):
            tokens.verify(token, 0)


async def test_a_token_without_iss_is_of_the_one_issuer_of_its_tenant(tokens: Tokens) -> None:
    given = {name: value for name, value in claims("", "consume:*").items() if name != "iss"}
    verified = tokens.verify(with_secret(given | {"tenant": "acme"}), now_ms(given))
    assert (verified.grant.tenant, verified.issuer.issuer) == ("acme", "shop")
    with pytest.raises(Unauthenticated, match="`alg` is not allowed"):
        tokens.verify(with_secret(given | {"tenant": "beta"}), now_ms(given))
    for odd in (
        given,
        given | {"tenant": "nobody"},
        given | {"tenant": ["acme"]},
    ):
        with pytest.raises(Unauthenticated, match="is not a known issuer"):
            tokens.verify(with_secret(odd), now_ms(given))


async def test_a_token_without_iss_is_nobodys_where_a_tenant_has_two_issuers() -> None:
    entries = (SHOP, Issuer("other", tenant="acme", secret="o" * 32), Issuer("any", tenants=("*",), secret="a" * 32))
    jwt = Jwt(issuers=entries)
    given = {name: value for name, value in claims("", "consume:*").items() if name != "iss"}
    for tenant in ("acme", "beta"):
        with pytest.raises(Unauthenticated, match="is not a known issuer"):
            Tokens(jwt, KeySets(jwt)).verify(with_secret(given | {"tenant": tenant}), now_ms(given))


async def test_what_looks_like_a_token_has_two_dots(tokens: Tokens) -> None:
    assert tokens.looks_like("a.b.c")
    assert not tokens.looks_like("pushq_0123_secret") and not tokens.looks_like("a.b") and not tokens.looks_like("")


async def test_claims_count_as_they_were_signed_not_as_they_were_first_read(tokens: Tokens) -> None:
    """Base64 may be written in ways that one reader forgives and another does not."""
    given = claims("shop", "consume:*")
    header, body, signature = with_secret(given).split(".")
    padded = body + "=" * (-len(body) % 4)
    spaced = body[:4] + "\n" + body[4:]
    for odd in (f"{header}.{spaced}.{signature}", f"{header}!.{body}.{signature}"):
        with pytest.raises(Unauthenticated):
            tokens.verify(odd, now_ms(given))
    if padded != body:
        with pytest.raises(Unauthenticated):
            tokens.verify(f"{header}.{padded}.{signature}", now_ms(given))


async def test_of_a_claim_that_is_given_twice_one_counts_for_all_checks(tokens: Tokens) -> None:
    twice = b'{"iss":"signer","iss":"shop","sub":"a","aud":"pushq","exp":9999999999,"scope":"consume:*"}'
    body = base64.urlsafe_b64encode(twice).rstrip(b"=").decode()
    header, _, signature = raw_token({"alg": "HS256"}, {}, b"x" * 32).split(".")
    with pytest.raises(Unauthenticated, match="the token's signature is invalid"):
        tokens.verify(f"{header}.{body}.{signature}", 0)
