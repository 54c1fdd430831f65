"""Verifies JWTs: turns a token into its grant. The issuer determines the keys, and the key its algorithm.

A token only names one of its issuer's keys and chooses nothing else about its verification: `alg` must match that key,
and addresses of keys (`jku`, `x5u`) are ignored.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from jwt import PyJWS
from jwt.exceptions import PyJWTError

from backend_store.model import Unauthenticated
from gateway.identity.issuers import ALGORITHMS, Issuer, Jwt
from gateway.identity.jwks_refresh import Keys, KeySets
from gateway.identity.jwt_claims import Grant, granted

_SEGMENTS: Final = 3
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class Verified:
    """A verified token's grant, and the issuer that signed it."""

    grant: Grant
    issuer: Issuer
    fingerprint: bytes
    """The fingerprint of the key that signed it."""


class Tokens:
    """Verifies tokens of the configured issuers."""

    def __init__(self, jwt: Jwt, key_sets: KeySets) -> None:
        self.key_sets = key_sets
        self.key_days_max = jwt.key_days_max
        self._jwt = jwt
        self._issuers = {issuer.issuer: issuer for issuer in jwt.issuers}
        self._algorithms = {name: jwt.algorithms_of(issuer) for name, issuer in self._issuers.items()}
        self._jws = PyJWS(algorithms=ALGORITHMS)

    @staticmethod
    def looks_like(token: str) -> bool:
        """Whether the text has the form of a JWT; an API key has no dots."""
        return token.count(".") == _SEGMENTS - 1

    def verify(self, token: str, now_ms: int) -> Verified:
        """Verifies a token. Raises `Unauthenticated`, which says what is wrong, and `Unavailable` while the issuer's
        keys are not known yet."""
        header, claims = _parts(token)
        if "crit" in header:
            raise Unauthenticated("the token's header has `crit`, but this server supports no extensions")
        issuer = self._issuer_of(claims)
        if issuer is None:
            raise Unauthenticated("the token's `iss` is not a known issuer")
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self._algorithms[issuer.issuer]:
            allowed = ", ".join(sorted(self._algorithms[issuer.issuer]))
            raise Unauthenticated(f"the token's `alg` is not allowed; its issuer may use {allowed}")
        if key_id is not None and not isinstance(key_id, str):
            raise Unauthenticated("the token's `kid` must be a string")
        key = self.key_sets.of[issuer.issuer].find(key_id, algorithm)
        try:
            signed = self._jws.decode(token, key.material, algorithms=[key.algorithm])
        except (PyJWTError, TypeError, ValueError):
            raise Unauthenticated("the token's signature is invalid") from None
        grant = granted(
            _object(signed), issuer, audience=self._jwt.audience, leeway_s=self._jwt.leeway_s, now_ms=now_ms
        )
        return Verified(grant, issuer, key.fingerprint)

    def _issuer_of(self, claims: dict[str, Any]) -> Issuer | None:
        """By `iss`; a token without one is of the only issuer that its `tenant` has. None: nobody's."""
        if "iss" in claims:
            name = claims["iss"]
            return self._issuers.get(name) if isinstance(name, str) else None
        tenant = claims.get("tenant")
        of_tenant = [
            issuer for issuer in self._issuers.values() if issuer.tenant is not None and issuer.tenant == tenant
        ]
        return of_tenant[0] if len(of_tenant) == 1 else None

    def trusts(self, issuer: str, fingerprint: bytes) -> bool:
        """Whether tokens signed by this key of an issuer are still valid: they are until the key leaves the set."""
        keys: Keys | None = self.key_sets.of.get(issuer)
        return keys is not None and keys.has(fingerprint)


def _parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims, unverified: used only to find the issuer and its key."""
    segments = token.split(".")
    if len(segments) != _SEGMENTS or not token.isascii():
        raise Unauthenticated("malformed JWT: it must have three base64url parts")
    try:
        header, claims = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in segments[:2])
    except (binascii.Error, ValueError):
        raise Unauthenticated("malformed JWT: it must have three base64url parts") from None
    return _object(header), _object(claims)


def _object(data: bytes) -> dict[str, Any]:
    try:
        return _decode_object(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unauthenticated("malformed JWT: its parts must be JSON objects") from None
