"""Keys: who a token is, and from when on it is nobody."""

from __future__ import annotations

import stat
from hashlib import sha256
from pathlib import Path

import pytest

from backend_store.client import Store
from backend_store.model import NotFound, Unauthenticated
from gateway import auth
from gateway.auth import Keyring, NewKey, make_first_key
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


async def test_a_remembered_identity_is_the_same_object(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    token = (await make(keyring)).token
    assert keyring.identify(token) is keyring.identify(token)


async def test_identities_remembered_are_bounded(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "IDENTITIES_MAX", 3)
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


async def test_a_temporary_key_is_one_key_while_half_its_time_is_left(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    token = keyring.temporary(name="demo", scopes=("view:*",))
    assert keyring.temporary(name="demo", scopes=("view:*",)) == token
    clock.ms += auth.TEMPORARY_KEY_SECONDS * 500
    later = keyring.temporary(name="demo", scopes=("view:*",))
    assert later != token
    assert keyring.identify(token).name == keyring.identify(later).name == "demo"
    assert not store.metadata.keys


async def test_a_temporary_key_ends_by_itself(store: Store, clock: Clock) -> None:
    keyring = Keyring(store, clock)
    token = keyring.temporary(name="demo", scopes=("view:*",))
    principal = keyring.identify(token)
    clock.ms += auth.TEMPORARY_KEY_SECONDS * 1000
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


async def test_a_later_start_makes_no_other_key(store: Store, clock: Clock, tmp_path: Path) -> None:
    keyring = Keyring(store, clock)
    path = await make_first_key(keyring, tmp_path)
    path.unlink()
    assert not (await make_first_key(keyring, tmp_path)).exists()
    assert len(keyring.stored()) == 1
