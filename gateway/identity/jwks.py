"""Parses public keys of issuers, a JWK Set (RFC 7517) or a PEM file, into keys that verify one algorithm each.

A set comes from outside, so an unusable entry is left out and reported, and does not affect the others.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from backend_store.words import counted
from gateway.identity.issuers import Algorithm
from gateway.limits import JWKS_BYTES_MAX, JWKS_KEYS_MAX, KEY_ID_CHARS_MAX, RSA_BITS_MAX, RSA_BITS_MIN

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey

ALGORITHM_OF: Final[dict[tuple[str, str | None], Algorithm]] = {
    ("RSA", None): "RS256",
    ("EC", "P-256"): "ES256",
    ("OKP", "Ed25519"): "EdDSA",
}
"""By `kty` and `crv`: a key verifies this algorithm and no other."""
_RSA_EXPONENT_MAX: Final = 1 << 32


class BadKeys(ValueError):
    """A key set or file that cannot be used, and why."""


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A key with its one algorithm, so that a token cannot choose another."""

    algorithm: Algorithm
    material: PublicKey | bytes
    fingerprint: bytes
    """Identifies the key material across reads of a set."""
    id: str | None = None


@dataclass(frozen=True, slots=True)
class KeySet:
    keys: tuple[VerifyingKey, ...]
    left_out: tuple[str, ...] = ()
    """Entries that were not taken, and why; for the log."""

    def find(self, key_id: str | None, algorithm: str) -> VerifyingKey | None:
        """The key that a token names. A token that names none can only mean the only key of its algorithm."""
        fitting = [key for key in self.keys if key.algorithm == algorithm]
        if key_id is None:
            return fitting[0] if len(fitting) == 1 else None
        return next((key for key in fitting if key.id == key_id), None)


def secret_key(secret: bytes) -> VerifyingKey:
    return VerifyingKey("HS256", secret, sha256(b"secret" + secret).digest())


def pem_key(pem: bytes) -> VerifyingKey:
    """The one public key of a PEM file. Raises `BadKeys`."""
    try:
        key = load_pem_public_key(pem)
    except Exception as error:
        # The library may raise any exception for hostile input.
        raise BadKeys(f"not a public key in PEM format: {str(error)[:200]}") from None
    return _verifying(key, None)


def parse_set(document: bytes) -> KeySet:
    """Parses a JWK Set. Raises `BadKeys` if it is not one, or none of its keys can be used."""
    if len(document) > JWKS_BYTES_MAX:
        raise BadKeys(f"the key set is larger than {JWKS_BYTES_MAX} bytes")
    try:
        entries = msgspec.json.decode(document, type=dict[str, Any]).get("keys")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadKeys(f"not a JSON object: {str(error)[:200]}") from None
    if not isinstance(entries, list):
        raise BadKeys("the list `keys` is missing")
    if len(entries) > JWKS_KEYS_MAX:
        raise BadKeys(f"the key set has {len(entries)} keys; the maximum is {JWKS_KEYS_MAX}")
    keys: list[VerifyingKey] = []
    left_out: list[str] = []
    for number, entry in enumerate(entries):
        try:
            key = _entry(entry)
            if any((key.id, key.algorithm) == (other.id, other.algorithm) for other in keys):
                raise BadKeys("duplicate kid")
            keys.append(key)
        except BadKeys as error:
            left_out.append(f"keys[{number}]: {error}")
    if not keys:
        raise BadKeys(f"none of its {counted(len(entries), 'key')} are usable: {'; '.join(left_out[:3])}")
    return KeySet(tuple(keys), tuple(left_out))


def _entry(entry: Any) -> VerifyingKey:
    if not isinstance(entry, dict):
        raise BadKeys("not an object")
    key_id = entry.get("kid")
    if key_id is not None and not (isinstance(key_id, str) and 1 <= len(key_id) <= KEY_ID_CHARS_MAX):
        raise BadKeys(f"kid must be a string of 1 to {KEY_ID_CHARS_MAX} characters")
    algorithm = _algorithm(entry)
    if "d" in entry:
        raise BadKeys("this is a private key, exposed to everyone who can read the set; replace it")
    uses = entry.get("key_ops", ["verify"])
    if entry.get("use", "sig") != "sig" or not isinstance(uses, list) or "verify" not in uses:
        raise BadKeys("the key is not for signatures")
    _check_numbers(entry)
    try:
        key = PyJWK(entry, algorithm).key
    except (PyJWTError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise BadKeys(f"cannot parse the key: {str(error)[:200]}") from None
    return _verifying(key, key_id)


def _algorithm(entry: Mapping[str, Any]) -> Algorithm:
    kind, curve = entry.get("kty"), entry.get("crv")
    if kind == "oct":
        raise BadKeys("this is a secret, but key sets are public; set it as `secret_file`")
    algorithm = ALGORITHM_OF.get((kind, curve)) if isinstance(kind, str) and isinstance(curve, str | None) else None
    if algorithm is None or entry.get("alg", algorithm) != algorithm:
        raise BadKeys("unsupported key type; use RS256, ES256 (P-256) or EdDSA (Ed25519)")
    return algorithm


def _check_numbers(entry: Mapping[str, Any]) -> None:
    """Refuses numbers so large that one verification would take seconds, before the library sees them."""
    for name in ("n", "e", "x", "y"):
        text = entry.get(name, "")
        if not isinstance(text, str) or len(text) > RSA_BITS_MAX // 4:
            raise BadKeys(f"{name} is too long, or not a string")
    if entry["kty"] == "RSA":
        exponent = entry.get("e", "")
        try:
            number = int.from_bytes(base64.urlsafe_b64decode(exponent + "=" * (-len(exponent) % 4)), "big")
        except ValueError:
            raise BadKeys("e is not valid base64url") from None
        if number > _RSA_EXPONENT_MAX:
            raise BadKeys("e is too large")


def _verifying(key: Any, key_id: str | None) -> VerifyingKey:
    algorithm: Algorithm
    if isinstance(key, RSAPublicKey):
        if not RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX:
            raise BadKeys(f"an RSA key must have {RSA_BITS_MIN} to {RSA_BITS_MAX} bits, not {key.key_size}")
        algorithm = "RS256"
    elif isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1):
        algorithm = "ES256"
    elif isinstance(key, Ed25519PublicKey):
        algorithm = "EdDSA"
    else:
        raise BadKeys("unsupported key type; use RSA, EC P-256 or Ed25519")
    encoded = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return VerifyingKey(algorithm, key, sha256(encoded).digest(), key_id)
