"""Hostile tokens against a real server: none of them opens anything, over any transport."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.support.issuers import SECRET, KeyServer, SigningKey, claims, issuers_env, key_server, raw_token, with_secret
from tests.support.server import PushqServer

ACME = "https://id.acme.example"
BETA = "https://id.beta.example"
GAMMA = "https://id.gamma.example"
ROOT = "https://id.pushq.example"

RSA = SigningKey("RS256", "rsa-1")
EC = SigningKey("ES256", "ec-1")
ED = SigningKey("EdDSA", "ed-1")
STRANGER = SigningKey("RS256", "stranger")


@pytest.fixture(scope="module")
def keys() -> Iterator[KeyServer]:
    with key_server(RSA, EC) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, keys: KeyServer) -> Iterator[PushqServer]:
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "gamma.pem").write_bytes(RSA.pem)
    env = issuers_env(
        {"issuer": ACME, "tenant": "acme", "jwks_url": keys.url},
        {"issuer": BETA, "tenant": "beta", "secret": SECRET},
        {"issuer": GAMMA, "tenant": "acme", "public_key_file": str(folder / "gamma.pem"), "scopes_max": ["view:*"]},
        {"issuer": ROOT, "tenants": ["*"], "secret": SECRET[::-1]},
    )
    with PushqServer(folder / "data", env=env) as running:
        for tenant in ("acme", "beta"):
            assert httpx2.put(f"{running.url}/v1/tenants/{tenant}", headers=running.headers).status_code == 201
        yield running


def ask(server: PushqServer, token: str | bytes, path: str = "/v1/queues") -> tuple[int, str, str]:
    """Status, code and detail."""
    authorization = b"Bearer " + (token if isinstance(token, bytes) else token.encode())
    answer = httpx2.get(server.url + path, headers={b"authorization": authorization})
    body = answer.json()
    return answer.status_code, body.get("code", ""), body.get("detail", "")


@pytest.mark.parametrize("key", [RSA, EC], ids=lambda key: key.algorithm)
def test_a_good_token_opens_its_tenant(server: PushqServer, key: SigningKey) -> None:
    token = key.sign(claims(ACME, "admin"))
    assert ask(server, token)[0] == 200
    made = httpx2.put(f"{server.url}/v1/queues/of-acme", headers={"Authorization": f"Bearer {token}"})
    assert made.status_code in (200, 201) and made.json()["owner"] == "acme"
    assert ask(server, with_secret(claims(BETA, "admin")), "/v1/queues/of-acme")[1] == "queue-not-found"


# ------------------------------------------------------------------------------------------------ the algorithm


def _public_key_as_a_secret(form: bytes) -> str:
    """What a library would take that picks HMAC by the header and the public key by the settings."""
    header = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "kid": RSA.id}).encode()).rstrip(b"=")
    body = base64.urlsafe_b64encode(json.dumps(claims(ACME, "admin")).encode()).rstrip(b"=")
    signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(header + b"." + body, form)
    return b".".join([header, body, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


@pytest.mark.parametrize("form", [RSA.pem, RSA.pem.strip(), json.dumps(RSA.jwk).encode(), RSA.jwk["n"].encode(), b""])
def test_a_public_key_is_no_secret(server: PushqServer, form: bytes) -> None:
    status, code, detail = ask(server, _public_key_as_a_secret(form))
    assert (status, code) == (401, "unauthenticated") and "`alg` is not allowed" in detail


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "nOnE", "", "HS512", "RS512", "PS256", None, 7, ["RS256"]]
)
@pytest.mark.parametrize("issuer", [ACME, BETA])
def test_no_other_algorithm_is_ever_used(server: PushqServer, algorithm: Any, issuer: str) -> None:
    header = {"alg": algorithm, "kid": RSA.id, "typ": "JWT"}
    for signature in (b"", b"x" * 32):
        assert ask(server, raw_token(header, claims(issuer, "admin"), signature))[:2] == (401, "unauthenticated")


def test_a_token_of_one_algorithm_is_not_verified_by_a_key_of_another(server: PushqServer) -> None:
    assert ask(server, EC.sign(claims(ACME, "admin"), kid=RSA.id))[0] in (401, 503)
    assert ask(server, ED.sign(claims(ACME, "admin")))[0] in (401, 503)
    assert ask(server, with_secret(claims(GAMMA, "view:*"), RSA.jwk["n"]))[0] == 401


# --------------------------------------------------------------------------------------------------- the claims


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"lives_s": -31}, "expired"),
        ({"nbf": int(time.time()) + 3600}, "`nbf`"),
        ({"iat": int(time.time()) + 3600}, "`iat`"),
        ({"aud": "another-service"}, "`aud`"),
        ({"aud": None}, "`aud`"),
        ({"exp": None}, "`exp`"),
        ({"exp": "never"}, "`exp`"),
        ({"exp": 1e300}, "`exp`"),
        ({"sub": None}, "`sub`"),
        ({"tenant": "default"}, "`tenant`"),
        ({"tenant": "beta"}, "`tenant`"),
        ({"scope": "operator"}, "operator"),
        ({"scope": "admin operator"}, "operator"),
        ({"scope": "everything"}, "invalid scope"),
        ({"scope": None}, "`scope`"),
        ({"iss": "https://id.acme.example/"}, "`iss`"),
        ({"iss": "https://evil.example"}, "`iss`"),
        ({"iss": None}, "`iss`"),
        ({"iss": [ACME]}, "`iss`"),
    ],
)
def test_a_well_signed_token_with_wrong_claims_is_refused_by_their_name(
    server: PushqServer, changed: dict[str, Any], says: str
) -> None:
    given = claims(ACME, **({"scope": "admin"} | {k: v for k, v in changed.items() if k != "iss"}))
    if "iss" in changed:
        given = {k: v for k, v in (given | {"iss": changed["iss"]}).items() if v is not None}
    # The library's own encoder would refuse some of these before they are sent.
    header = base64.urlsafe_b64encode(json.dumps({"alg": "RS256", "kid": RSA.id}).encode()).rstrip(b"=")
    body = base64.urlsafe_b64encode(json.dumps(given).encode()).rstrip(b"=")
    signature = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256).sign(header + b"." + body, RSA.private)
    token = b".".join([header, body, base64.urlsafe_b64encode(signature).rstrip(b"=")])
    status, code, detail = ask(server, token)
    assert (status, code) == (401, "unauthenticated") and says in detail


def test_an_issuer_speaks_for_its_own_tenant_only(server: PushqServer) -> None:
    """One issuer's key under another's name, and the other way round."""
    assert ask(server, RSA.sign(claims(BETA, "admin")))[0] == 401
    assert ask(server, with_secret(claims(ACME, "admin"), kid=RSA.id))[0] == 401
    assert ask(server, with_secret(claims(ROOT, "operator", tenant="acme")))[0] == 401


def test_only_the_operators_issuer_makes_operators(server: PushqServer) -> None:
    token = with_secret(claims(ROOT, "operator", tenant="acme"), SECRET[::-1])
    assert ask(server, token, "/v1/tenants")[0] == 200
    assert ask(server, with_secret(claims(ROOT, "operator", tenant="nobody"), SECRET[::-1]))[0] == 401
    assert ask(server, with_secret(claims(BETA, "admin")), "/v1/tenants")[0] == 403


def test_a_token_opens_no_more_than_its_issuer_may_give(server: PushqServer) -> None:
    token = RSA.sign(claims(GAMMA, "admin"))
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx2.put(f"{server.url}/v1/queues/of-gamma", headers=headers).status_code == 403
    assert (
        httpx2.post(f"{server.url}/v1/keys", json={"name": "k", "scopes": ["admin"]}, headers=headers).status_code
        == 403
    )


# ------------------------------------------------------------------------------------------- header and signature


@pytest.mark.parametrize(
    "header",
    [
        {"crit": ["exp"], "exp": 1},
        {"crit": []},
        {"crit": ["b64"], "b64": False},
        {"b64": False},
        {"kid": 7},
        {"kid": ["rsa-1"]},
        {"kid": {"rsa-1": 1}},
        {"kid": None, "alg": "EdDSA"},
    ],
)
def test_a_header_that_asks_for_more_is_refused(server: PushqServer, header: dict[str, Any]) -> None:
    token = raw_token({"alg": "RS256", "kid": RSA.id} | header, claims(ACME, "admin"), b"x" * 256)
    assert ask(server, token)[:2] == (401, "unauthenticated")


@pytest.mark.parametrize(
    "key_id",
    [
        "../../../../dev/null",
        "/proc/self/environ",
        "rsa-1\0",
        "' OR 1=1 --",
        "http://127.0.0.1:1/",
        "__class__",
        "",
        "k" * 5000,
    ],
)
def test_the_name_of_a_key_is_only_a_name(server: PushqServer, key_id: str) -> None:
    """At first it may be one that was published a moment ago; after a look it is nobody's."""
    token = raw_token({"alg": "RS256", "kid": key_id}, claims(ACME, "admin"), b"x" * 256)
    assert ask(server, token)[:2] in ((401, "unauthenticated"), (503, "unavailable"))


def test_keys_that_a_token_brings_along_are_not_looked_at(server: PushqServer, keys: KeyServer) -> None:
    with key_server(STRANGER) as evil:
        for brought in ({"jku": evil.url}, {"x5u": evil.url}, {"jwk": STRANGER.jwk}, {"jku": evil.url, "kid": RSA.id}):
            token = STRANGER.sign(claims(ACME, "admin"), **({"kid": RSA.id} | brought))
            assert ask(server, token)[:2] == (401, "unauthenticated")
        assert evil.asked == 0


def test_a_changed_token_does_not_verify(server: PushqServer) -> None:
    header, body, signature = RSA.sign(claims(ACME, "view:*")).split(".")
    better = base64.urlsafe_b64encode(json.dumps(claims(ACME, "admin")).encode()).rstrip(b"=").decode()
    for token in (
        f"{header}.{better}.{signature}",
        f"{header}.{body}.",
        f"{header}.{body}.{signature[:-8]}",
        f"{header}.{body}.{signature[::-1]}",
        f".{body}.{signature}",
        f"{header}..{signature}",
        "..",
        "a.b.c",
        f"{header}.{body}",
        f"{header}.{body}.{signature}.{signature}",
        f"{header}.{body}.{signature}\u00fc",
        raw_token([], {}),
        raw_token({"alg": "RS256"}, []),
        raw_token({"alg": "RS256"}, {"iss": {"a": ACME}}),
    ):
        assert ask(server, token)[:2] == (401, "unauthenticated"), token


def test_a_huge_or_deep_token_is_refused_before_anything_is_computed(server: PushqServer) -> None:
    deep = base64.urlsafe_b64encode(b"[" * 3000 + b"]" * 3000).decode()
    for token in (
        RSA.sign(claims(ACME, "admin", padding="x" * 9000)),
        "a" * 30_000 + ".b.c",
        "." * 30_000,
        f"{deep}.e30.x",
        f"e30.{deep}.x",
    ):
        began = time.monotonic()
        assert ask(server, token)[:2] == (401, "unauthenticated")
        assert time.monotonic() - began < 1


# ------------------------------------------------------------------------------------------------------ sockets


def closed_with(server: PushqServer, first: dict[str, Any], headers: dict[str, str] | None = None) -> tuple[str, int]:
    """The code of the error, and that of the close."""
    with connect(server.ws_url, additional_headers=headers) as ws:
        if headers is None:
            ws.send(json.dumps(first))
        error = json.loads(ws.recv(5))
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(5)
        assert closed.value.rcvd is not None
        return error["problem"]["code"], closed.value.rcvd.code


@pytest.mark.parametrize("way", ["frame", "header"])
def test_a_socket_with_a_bad_token_is_told_whether_a_newer_one_would_help(server: PushqServer, way: str) -> None:
    def opened_with(token: str) -> tuple[str, int]:
        if way == "frame":
            return closed_with(server, {"type": "connect", "token": token})
        return closed_with(server, {}, {"Authorization": f"Bearer {token}"})

    assert opened_with(raw_token({"alg": "none"}, claims(ACME, "admin"))) == ("unauthenticated", 4501)
    assert opened_with(EC.sign(claims(ACME, "admin", lives_s=-31))) == ("unauthenticated", 4401)
    unknown = opened_with(SigningKey("ES256", "unknown-yet").sign(claims(ACME, "admin")))
    assert unknown in (("unavailable", 4002), ("unauthenticated", 4501))


def test_a_hostile_key_set_changes_nothing_for_the_good_key_in_it(tmp_path: Path) -> None:
    hostile = [
        {"kty": "oct", "kid": "ec-1", "k": base64.urlsafe_b64encode(b"a" * 32).decode()},
        {"kty": "RSA", "kid": "huge", "n": "A" * 90_000, "e": "AQAB"},
        {"kty": "RSA", "kid": "slow", "n": RSA.jwk["n"], "e": "_" * 300},
        {"kty": "EC", "crv": "P-256", "kid": "off-curve", "x": "AAAA", "y": "AAAA"},
        None,
        "x",
    ]
    with key_server() as keys:
        keys.publish([*hostile, EC])
        with PushqServer(
            tmp_path / "data", env=issuers_env({"issuer": ACME, "tenant": "default", "jwks_url": keys.url})
        ) as server:
            assert ask(server, EC.sign(claims(ACME, "admin")))[0] == 200
            forged = with_secret(claims(ACME, "admin"), b"a" * 32, kid="ec-1")
            assert ask(server, forged)[:2] == (401, "unauthenticated")
            for name in ("huge", "slow", "off-curve"):
                token = raw_token({"alg": "RS256", "kid": name}, claims(ACME, "admin"), b"x" * 256)
                assert ask(server, token)[0] in (401, 503)


# ---------------------------------------------------------------------------------------------- keys made by tokens


def call(server: PushqServer, token: str, path: str, body: dict[str, Any]) -> httpx2.Response:
    return httpx2.post(server.url + path, headers={"Authorization": f"Bearer {token}"}, json=body)


def in_days(days: float) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).isoformat()


def test_no_key_that_a_token_makes_or_rotates_is_endless(server: PushqServer) -> None:
    token = with_secret(claims(BETA, "admin", lives_s=60))
    new = {"name": "kept", "scopes": ["admin"]}
    made = call(server, token, "/v1/keys", new).json()
    ends = datetime.fromisoformat(made["expires_at"])
    assert timedelta(days=89) < ends - datetime.now(UTC) <= timedelta(days=90)
    late = call(server, token, "/v1/keys", new | {"expires_at": in_days(91)})
    assert late.status_code == 400 and "auth.jwt.key_days_max" in late.json()["detail"]
    assert late.json()["errors"][0]["pointer"] == "/expires_at"
    # Nor does that key make one that lasts longer than itself.
    assert call(server, made["key"], "/v1/keys", new).json()["expires_at"] == made["expires_at"]
    assert call(server, made["key"], "/v1/keys", new | {"expires_at": in_days(90.5)}).status_code == 400
    endless = call(server, server.key, "/v1/keys", new | {"tenant": "beta"}).json()
    for credential in (token, made["key"]):
        refused = call(server, credential, f"/v1/keys/{endless['id']}/rotate", {"grace_ms": 0})
        assert refused.status_code == 403 and "never expires" in refused.json()["detail"]
        assert call(server, credential, f"/v1/keys/{made['id']}/rotate", {"grace_ms": 60_000}).status_code == 200
    assert call(server, server.key, f"/v1/keys/{endless['id']}/rotate", {"grace_ms": 0}).status_code == 200
