"""Key sets over time: read ahead, read again for an unknown key, and kept while their server is away."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from backend_store.model import Unauthenticated, Unavailable
from gateway.identity.issuers import Issuer, Jwt
from gateway.identity.jwks import BadKeys, parse_set
from gateway.identity.jwks_refresh import FreshKeys, KeySets
from gateway.limits import JWKS_BYTES_MAX, JWKS_REFRESH_SECONDS_MIN, JWKS_STALE_SECONDS_MAX
from tests.support.issuers import SECRET, SigningKey, key_server
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio

OLD = SigningKey("ES256", "old")
NEW = SigningKey("ES256", "new")


class World:
    """A key set, its server and its clock, all moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.published: list[SigningKey] = [OLD]
        self.is_away = False
        self.keys = FreshKeys("https://id.example", self._read, max_age_s=300, steady_s=lambda: self.now_s)

    async def _read(self) -> bytes:
        if self.is_away:
            raise OSError("nobody is there")
        return json.dumps({"keys": [key.jwk for key in self.published]}).encode()

    def answer(self, key_id: str) -> str:
        try:
            self.keys.find(key_id, "ES256")
        except (Unauthenticated, Unavailable) as error:
            return error.code
        return "known"


async def test_before_the_first_reading_nobody_is_told_that_a_token_is_wrong() -> None:
    world = World()
    assert world.answer("old") == "unavailable"
    assert await world.keys.look()
    assert world.answer("old") == "known"


async def test_an_unknown_key_is_looked_for_before_it_is_refused() -> None:
    world = World()
    await world.keys.look()
    world.published = [OLD, NEW]
    world.now_s += JWKS_REFRESH_SECONDS_MIN + 1
    assert world.answer("new") == "unavailable"
    assert world.answer("made-up") == "unavailable"
    world.now_s += 0.1
    await world.keys.look()
    world.now_s += 0.1
    assert (world.answer("new"), world.answer("made-up")) == ("known", "unauthenticated")


async def test_a_key_published_after_the_last_reading_is_not_refused_for_good() -> None:
    world = World()
    await world.keys.look()
    world.now_s += 1
    with pytest.raises(Unavailable) as told:
        world.keys.find("new", "ES256")
    assert told.value.retry_after_ms is not None and 9_000 <= told.value.retry_after_ms <= 11_000
    world.now_s += 1
    await world.keys.look()
    assert world.answer("new") == "unauthenticated"
    world.now_s += JWKS_REFRESH_SECONDS_MIN
    assert world.answer("new") == "unavailable"


async def test_made_up_names_of_keys_fill_no_memory() -> None:
    world = World()
    await world.keys.look()
    for number in range(1000):
        world.answer(f"made-up-{number}")
    assert len(world.keys._missed) <= 100


async def test_while_the_server_is_away_its_keys_stay_good_for_a_day() -> None:
    world = World()
    await world.keys.look()
    world.is_away = True
    world.now_s += JWKS_STALE_SECONDS_MAX
    assert not await world.keys.look()
    assert world.answer("old") == "known"
    world.now_s += 1
    assert not await world.keys.look()
    assert world.answer("old") == "unavailable"
    world.is_away = False
    assert await world.keys.look() and world.answer("old") == "known"


async def test_a_key_that_left_the_set_is_not_trusted_any_more() -> None:
    world = World()
    await world.keys.look()
    fingerprint = world.keys.find("old", "ES256").fingerprint
    assert world.keys.has(fingerprint)
    world.published = [NEW]
    await world.keys.look()
    assert not world.keys.has(fingerprint)


async def test_a_thousand_unknown_keys_cost_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.identity.jwks_refresh.JWKS_REFRESH_SECONDS_MIN", 0.2)
    with key_server(OLD) as server:
        sets = KeySets(Jwt(issuers=(Issuer("a", tenant="acme", jwks_url=server.url),)))
        await sets.start()
        try:
            assert server.asked == 1
            server.publish([OLD, NEW])
            for _ in range(1000):
                with pytest.raises(Unavailable):
                    sets.of["a"].find("new", "ES256")
            await eventually(lambda: _is_known(sets, "new"))
            assert server.asked == 2
        finally:
            await sets.close()


def _is_known(sets: KeySets, key_id: str) -> bool:
    try:
        return sets.of["a"].find(key_id, "ES256") is not None
    except (Unavailable, Unauthenticated):
        return False


async def test_a_start_waits_for_no_server_of_keys_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.identity.jwks_refresh.JWKS_START_SECONDS_MAX", 0.1)
    with key_server(OLD) as server:
        server.delay_s = 1
        sets = KeySets(Jwt(issuers=(Issuer("a", tenant="acme", jwks_url=server.url),)))
        async with asyncio.timeout(0.8):
            await sets.start()
        with pytest.raises(Unavailable):
            sets.of["a"].find("old", "ES256")
        await eventually(lambda: _is_known(sets, "old"))
        await sets.close()


@pytest.mark.parametrize(
    ("status", "headers", "body", "why"),
    [
        (302, {"location": "http://127.0.0.1:1/"}, b"", "returned 302"),
        (500, {}, b"", "returned 500"),
        (200, {"content-encoding": "gzip"}, b"", "compressed"),
        (200, {}, b" " * (JWKS_BYTES_MAX + 1), "larger than"),
        (200, {}, b"<html>", "not a JSON object"),
    ],
)
async def test_an_answer_that_is_no_key_set_changes_nothing(
    status: int, headers: dict[str, str], body: bytes, why: str
) -> None:
    with key_server(OLD) as server:
        sets = KeySets(Jwt(issuers=(Issuer("a", tenant="acme", jwks_url=server.url),)))
        await sets.start()
        server.status, server.headers, server.body = status, headers, body
        with pytest.raises(BadKeys, match=why):
            parse_set(await sets._fetch(server.url))
        (keys,) = sets.fresh
        assert not await keys.look()
        assert _is_known(sets, "old") and keys.reads == {"ok": 1, "failed": 1}
        await sets.close()


async def test_keys_in_files_are_read_at_the_start_and_named_when_they_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [OLD.jwk]}))
    (tmp_path / "public.pem").write_bytes(NEW.pem)
    (tmp_path / "secret").write_text(SECRET + "\n")
    good = {"jwks_file": "keys.json", "public_key_file": "public.pem", "secret_file": "secret"}
    for source, name in good.items():
        issuer = Issuer("a", tenant="acme", **{source: str(tmp_path / name)})
        algorithm = "HS256" if source == "secret_file" else "ES256"
        assert KeySets(Jwt(issuers=(issuer,))).of["a"].find("old", algorithm).algorithm == algorithm
    (tmp_path / "bad").write_text("x")
    for source in good:
        for name in ("bad", "missing"):
            issuer = Issuer("a", tenant="acme", **{source: str(tmp_path / name)})
            with pytest.raises(BadKeys, match=f"issuer 'a', {source}"):
                KeySets(Jwt(issuers=(issuer,)))
