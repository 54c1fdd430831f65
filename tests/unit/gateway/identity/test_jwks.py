"""Key sets: what is a key for us in what an issuer publishes, and that the rest spoils nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm

from gateway.identity.jwks import BadKeys, parse_set, pem_key
from gateway.limits import JWKS_BYTES_MAX, JWKS_KEYS_MAX
from tests.support.issuers import SigningKey

RSA = SigningKey("RS256", "rsa")
EC = SigningKey("ES256", "ec")
ED = SigningKey("EdDSA", "ed")


def document(*entries: Any) -> bytes:
    return json.dumps({"keys": entries}).encode()


def test_a_key_is_found_by_its_name_and_its_one_algorithm() -> None:
    keys = parse_set(document(RSA.jwk, EC.jwk, ED.jwk))
    for key in (RSA, EC, ED):
        found = keys.find(key.id, key.algorithm)
        assert found is not None and found.algorithm == key.algorithm
        assert found.fingerprint == pem_key(key.pem).fingerprint
        for other in {"RS256", "ES256", "EdDSA", "HS256", "none"} - {key.algorithm}:
            assert keys.find(key.id, other) is None


def test_a_token_without_a_name_means_the_only_key_of_its_kind() -> None:
    other = SigningKey("ES256", "other")
    assert parse_set(document(EC.jwk, ED.jwk)).find(None, "ES256") is not None
    assert parse_set(document(EC.jwk, other.jwk)).find(None, "ES256") is None


def _changed(key: SigningKey, **changed: Any) -> dict[str, Any]:
    return {name: value for name, value in (key.jwk | changed).items() if value is not None}


WEAK = RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key(), as_dict=True)
PRIVATE = RSAAlgorithm.to_jwk(RSA.private, as_dict=True)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"kty": "oct", "k": "c2VjcmV0", "kid": "x"}, "this is a secret, but key sets are public; set it as"),
        ({**PRIVATE, "kid": "x"}, "private key"),
        ({**WEAK, "kid": "x"}, "bits, not 1024"),
        (_changed(RSA, n="A" * 10_000), "too long"),
        (_changed(RSA, e="_" * 20), "e is too large"),
        (_changed(RSA, e="!"), "cannot parse the key"),
        (_changed(RSA, n=5), "not a string"),
        (_changed(RSA, n=None), "cannot parse the key"),
        (_changed(RSA, alg="HS256"), "unsupported key type; use RS256, ES256"),
        (_changed(RSA, alg="none"), "unsupported key type; use RS256, ES256"),
        (_changed(RSA, use="enc"), "not for signatures"),
        (_changed(EC, key_ops=["sign"]), "not for signatures"),
        (_changed(EC, crv="P-384"), "unsupported key type; use RS256, ES256"),
        (_changed(EC, crv=["P-256"]), "unsupported key type; use RS256, ES256"),
        (_changed(EC, x="AAAA"), "cannot parse the key"),
        (_changed(ED, crv="Ed448"), "unsupported key type; use RS256, ES256"),
        (_changed(ED, x="AAAA"), "cannot parse the key"),
        (_changed(ED, kid=7), "kid"),
        (_changed(ED, kid="k" * 300), "kid"),
        ({"kid": "x"}, "unsupported key type; use RS256, ES256"),
        ("key", "not an object"),
        (None, "not an object"),
    ],
)
def test_an_entry_that_is_no_key_is_left_out_and_the_others_count(entry: Any, why: str) -> None:
    keys = parse_set(document(entry, EC.jwk))
    assert [key.id for key in keys.keys] == ["ec"]
    assert why in keys.left_out[0]
    with pytest.raises(BadKeys, match="none of its 1 key"):
        parse_set(document(entry))


def test_of_two_keys_with_one_name_the_first_counts() -> None:
    other = SigningKey("ES256", "ec")
    keys = parse_set(document(EC.jwk, other.jwk))
    found = keys.find("ec", "ES256")
    assert found is not None and found.fingerprint == pem_key(EC.pem).fingerprint
    assert "duplicate kid" in keys.left_out[0]


@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b"\xff",
        b'{"keys": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b" " * (JWKS_BYTES_MAX + 1),
        document(*[{}] * (JWKS_KEYS_MAX + 1)),
    ],
)
def test_a_document_that_is_no_key_set_is_refused_whole(hostile: bytes) -> None:
    with pytest.raises(BadKeys):
        parse_set(hostile)


def _pem(key: Any) -> bytes:
    encoded: bytes = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return encoded


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        _pem(ec.generate_private_key(ec.SECP384R1()).public_key()),
        _pem(ed448.Ed448PrivateKey.generate().public_key()),
    ],
)
def test_a_file_with_no_key_for_us_is_refused(pem: bytes) -> None:
    with pytest.raises(BadKeys):
        pem_key(pem)
