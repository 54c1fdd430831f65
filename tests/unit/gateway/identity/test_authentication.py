"""Keys: who a token is, and from when on it is nobody."""

from __future__ import annotations

import asyncio
import stat
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from backend_store.client import Store
from backend_store.model import NotFound, TokenExpired, Unauthenticated
from gateway.identity import authentication
from gateway.identity.authentication import Keyring, NewKey, make_first_key, same_caller
from gateway.identity.issuers import Issuer, Jwt
from gateway.identity.jwks_refresh import KeySets
from gateway.identity.jwt import Tokens
from tests.support.issuers import SECRET, claims, with_secret
from tests.unit.gateway.conftest import Clock

pytestmark = pytest.mark.anyio


async def make(keyring: Keyring, *scopes: str, expires_at_ms: int | None = None) -> NewKey:
    return await keyring.create(name="k", tenant="default", scopes=scopes or ("admin",), expires_at_ms=expires_at_ms)


def refused(keyring: Keyring, token: str) -> str:
    with pytest.raises(Unauthenticated) as error:
        keyring.identify(token)
    return error.value.detail


async def test_a_key_is_known_by_its_token(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    made = await make(keyring, "publish:a")
    principal = keyring.identify(made.token)
    assert made.token.startswith(f"pushq_{made.stored.id}_")
    assert (principal.id, principal.tenant, principal.access.scopes) == (made.stored.id, "default", ("publish:a",))


async def test_only_the_hash_of_a_token_is_stored(store: Store, clock: Clock) -> None:
    made = await make(Keyring(store, clock))
    stored = store.metadata.keys[made.stored.id]
    assert stored.secret_sha256 == sha256(made.token.encode()).digest()
    assert made.token.split("_", 2)[2] not in repr(stored)


async def test_every_wrong_token_is_refused_in_the_same_words(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    token = (await make(keyring)).token
    wrong = ["", "x", "pushq_", "pushq__", "pushq_nobody_secret", token[:-1], token + "x", token.upper(), "ü", "\ud800"]
    assert len({refused(keyring, each) for each in wrong}) == 1


async def test_a_credential_is_withdrawn_by_a_revocation_or_a_rotation_and_not_by_its_end(
    store: Store, clock: Clock
) -> None:
    keyring = Keyring(store, clock)
    ends = clock() + 1_000
    made = [await make(keyring, "admin", expires_at_ms=ends) for _ in range(3)]
    revoked, rotated, left = (keyring.identify(each.token) for each in made)
    await keyring.rotate(made[1].stored, grace_ms=500)
    assert keyring.withdrawn(rotated) is None
    await keyring.revoke(revoked.id)
    clock.ms += 500
    told = [keyring.withdrawn(each) for each in (revoked, rotated, left)]
    assert told == ["the API key was revoked", "the API key was rotated", None]
    clock.ms = ends
    assert keyring.withdrawn(left) is None and not keyring.still_valid(left)


async def test_a_remembered_identity_is_the_same_object(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    token = (await make(keyring)).token
    assert keyring.identify(token) is keyring.identify(token)


async def test_identities_remembered_are_bounded(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "IDENTITIES_MAX", 3)
    keyring = Keyring(store, clock)
    tokens = [(await make(keyring)).token for _ in range(5)]
    for token in (*tokens, *tokens):
        keyring.identify(token)
    assert len(keyring._identities) == 3


async def test_a_revoked_key_is_unknown_at_once_even_when_it_was_remembered(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    made = await make(keyring)
    principal = keyring.identify(made.token)
    await keyring.revoke(made.stored.id)
    refused(keyring, made.token)
    assert not keyring.still_valid(principal)
    with pytest.raises(NotFound):
        await keyring.revoke(made.stored.id)


async def test_a_key_expires_while_it_is_remembered(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    made = await make(keyring, expires_at_ms=clock.ms + 10)
    principal = keyring.identify(made.token)
    clock.ms += 9
    assert keyring.identify(made.token) is principal and keyring.still_valid(principal)
    clock.ms += 1
    assert "expired" in refused(keyring, made.token)
    assert not keyring.still_valid(principal)


async def test_a_rotated_secret_works_through_its_grace_and_no_longer(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    made = await make(keyring)
    session = keyring.identify(made.token)
    rotated = await keyring.rotate(made.stored, grace_ms=1000)
    assert keyring.identify(rotated.token).id == keyring.identify(made.token).id == made.stored.id
    assert keyring.still_valid(session)
    clock.ms += 1000
    refused(keyring, made.token)
    assert not keyring.still_valid(session)
    assert keyring.still_valid(keyring.identify(rotated.token))


async def test_without_grace_the_old_secret_ends_at_once(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    made = await make(keyring)
    session = keyring.identify(made.token)
    await keyring.rotate(made.stored, grace_ms=0)
    refused(keyring, made.token)
    assert not keyring.still_valid(session)


async def test_keys_are_there_after_a_restart(store: Store, clock: Clock) -> None:
    token = (await make(Keyring(store, clock))).token
    assert Keyring(store, clock).identify(token).name == "k"


async def test_keys_of_one_name_are_one_caller_within_their_tenant(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    one = keyring.identify((await make(keyring)).token)
    two = keyring.identify((await make(keyring)).token)
    other = keyring.identify((await keyring.create(name="x", tenant="default", scopes=("admin",))).token)
    foreign = keyring.identify((await keyring.create(name="k", tenant="acme", scopes=("admin",))).token)
    assert same_caller(one, one) and same_caller(one, two)
    assert not same_caller(one, other) and not same_caller(one, foreign)


# --------------------------------------------------------------------------------------------------------- JWTs

ISSUER = Issuer("https://id.example", tenant="default", secret=SECRET)


def with_tokens(store: Store, clock: Clock, *issuers: Issuer) -> Keyring:
    jwt = Jwt(issuers=issuers or (ISSUER,))
    return Keyring(store, clock, Tokens(jwt, KeySets(jwt)))


def token_of(clock: Clock, issuer: str = ISSUER.issuer, subject: str = "alice", **changed: Any) -> str:
    now_s = clock.ms // 1000
    return with_secret(claims(issuer, "consume:*", sub=subject, exp=now_s + 60, iat=now_s, **changed))


async def test_a_token_is_verified_once_and_remembered_until_it_ends(store: Store, clock: Clock) -> None:
    keyring = with_tokens(store, clock)
    token = token_of(clock)
    principal = keyring.identify(token)
    assert (principal.tenant, principal.name, principal.issuer) == ("default", "alice", ISSUER.issuer)
    assert keyring.identify(token) is principal and keyring.still_valid(principal)
    clock.ms += 90_000
    assert not keyring.still_valid(principal)
    with pytest.raises(TokenExpired):
        keyring.identify(token)
    assert not keyring._identities


async def test_callers_of_two_issuers_or_tenants_are_never_one(store: Store, clock: Clock) -> None:
    second = Issuer("https://id2.example", tenant="default", secret=SECRET)
    root = Issuer("https://root.example", tenants=("*",), secret=SECRET)
    keyring = with_tokens(store, clock, ISSUER, second, root)
    await store.metadata.put_tenant("acme", 1)
    tokens = [
        token_of(clock),
        token_of(clock, second.issuer),
        token_of(clock, root.issuer, tenant="default"),
        token_of(clock, root.issuer, tenant="acme"),
        token_of(clock, subject="bob"),
    ]
    principals = [keyring.identify(token) for token in tokens]
    assert len({principal.id for principal in principals}) == len(tokens)
    assert not [1 for a in principals for b in principals if a is not b and same_caller(a, b)]
    newer = keyring.identify(token_of(clock, jti="2"))
    assert newer is not principals[0] and same_caller(newer, principals[0])


async def test_a_token_ends_with_its_tenant(store: Store, clock: Clock) -> None:
    keyring = with_tokens(store, clock, Issuer(ISSUER.issuer, tenant="acme", secret=SECRET))
    token = token_of(clock)
    assert "tenant 'acme', which does not exist" in refused(keyring, token)
    await store.metadata.put_tenant("acme", 1)
    principal = keyring.identify(token)
    await store.metadata.delete_tenant("acme")
    assert not keyring.still_valid(principal)
    assert "the issuer no longer uses the key that signed the" in refused(keyring, token)
    assert "tenant 'acme', which does not exist" in refused(keyring, token)


async def test_without_issuers_a_token_is_an_unknown_key(store: Store, clock: Clock) -> None:
    assert refused(Keyring(store, clock), token_of(clock)) == refused(Keyring(store, clock), "x")


async def test_a_temporary_key_is_one_key_while_half_its_time_is_left(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    token = keyring.temporary(name="demo", scopes=("view:*",))
    assert keyring.temporary(name="demo", scopes=("view:*",)) == token
    clock.ms += authentication.TEMPORARY_KEY_SECONDS * 500
    later = keyring.temporary(name="demo", scopes=("view:*",))
    assert later != token
    assert keyring.identify(token).name == keyring.identify(later).name == "demo"
    assert not store.metadata.keys


async def test_a_temporary_key_ends_by_itself(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    token = keyring.temporary(name="demo", scopes=("view:*",))
    principal = keyring.identify(token)
    clock.ms += authentication.TEMPORARY_KEY_SECONDS * 1000
    refused(keyring, token)
    assert not keyring.still_valid(principal)


async def test_the_first_start_writes_one_private_line(store: Store, clock: Clock, tmp_path: Path) -> None:
    keyring = Keyring(store, clock)
    path = await make_first_key(keyring, tmp_path)
    lines = path.read_text().splitlines()
    assert len(lines) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keyring.identify(lines[0]).access.is_operator
    assert [file.name for file in tmp_path.iterdir()] == ["admin.key"]


async def test_of_starts_at_the_same_time_one_makes_the_key(store: Store, clock: Clock, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders:
        folder.mkdir()
    paths = await asyncio.gather(*(make_first_key(Keyring(store, clock), folder) for folder in folders))
    [token] = [path.read_text().strip() for path in paths if path.exists()]
    assert Keyring(store, clock).identify(token).access.is_operator
    assert len(Keyring(store, clock).stored()) == 1


async def test_a_later_start_makes_no_other_key(store: Store, clock: Clock, tmp_path: Path) -> None:
    keyring = Keyring(store, clock)
    path = await make_first_key(keyring, tmp_path)
    path.unlink()
    assert not (await make_first_key(keyring, tmp_path)).exists()
    assert len(keyring.stored()) == 1
