"""Issuers of JWTs: which issuers' tokens this server accepts, for which tenants, and by which key they are verified.

Types and checks of the setting `auth.jwt.issuers`. `jwks_refresh` reads the keys themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, get_args
from urllib.parse import urlsplit

import msgspec

from backend_store.model import InvalidRequest
from gateway.api.validate import wrong_name
from gateway.config.tables import check_unlike, explained, given_entries
from gateway.identity.authorization import check_scopes
from gateway.limits import (
    ISSUER_CHARS_MAX,
    ISSUERS_MAX,
    JWKS_MAX_AGE_SECONDS_DEFAULT,
    JWT_KEY_DAYS_DEFAULT,
    JWT_LEEWAY_SECONDS_DEFAULT,
    JWT_SECRET_BYTES_MIN,
)

Algorithm = Literal["HS256", "RS256", "ES256", "EdDSA"]
ALGORITHMS: Final[tuple[Algorithm, ...]] = get_args(Algorithm)
SYMMETRIC: Final[tuple[Algorithm, ...]] = ("HS256",)
ASYMMETRIC: Final[tuple[Algorithm, ...]] = ("RS256", "ES256", "EdDSA")
ANY_TENANT: Final = "*"
SOURCES: Final = ("secret", "secret_file", "public_key_file", "jwks_file", "jwks_url")

_KEY: Final = "auth.jwt.issuers"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Issuer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One entry of the setting. It has one of `SOURCES`, and either `tenant` or `tenants`."""

    issuer: str
    """The value of the claim `iss`."""
    tenant: str | None = None
    """All its tokens belong to this tenant."""
    tenants: tuple[str, ...] = ()
    """For an issuer of the operator: the tenants that the claim `tenant` may name, or `*`."""
    algorithms: tuple[Algorithm, ...] = ()
    """A subset of `auth.jwt.algorithms`; empty: all of them."""
    scopes_max: tuple[str, ...] | None = None
    """Upper bound of its tokens' scopes; None: no bound."""
    secret: str | None = None
    secret_file: str | None = None
    public_key_file: str | None = None
    jwks_file: str | None = None
    jwks_url: str | None = None

    @property
    def source(self) -> str:
        """Which of `SOURCES` it has."""
        return next(name for name in SOURCES if getattr(self, name) is not None)

    @property
    def is_symmetric(self) -> bool:
        return self.source.startswith("secret")

    @property
    def is_operators(self) -> bool:
        """Whether it may grant the scope `operator`."""
        return self.tenant is None


class Jwt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `auth.jwt`: tokens of other issuers that this server accepts."""

    audience: str = "pushq"
    leeway_s: int = JWT_LEEWAY_SECONDS_DEFAULT
    """How far the clocks of an issuer and of this server may differ."""
    key_days_max: int = JWT_KEY_DAYS_DEFAULT
    """How long an API key may last that a caller with a JWT makes or rotates."""
    algorithms: tuple[Algorithm, ...] = ALGORITHMS
    """Allowed algorithms; `HS256` only for an issuer with a secret, the others only for one with a public key."""
    jwks_max_age_s: int = JWKS_MAX_AGE_SECONDS_DEFAULT
    """How often key sets are read again."""
    issuers: tuple[Issuer, ...] = ()

    def algorithms_of(self, issuer: Issuer) -> frozenset[str]:
        """Algorithms of an issuer's tokens: symmetric ones only with a secret, asymmetric only with a public key."""
        possible = SYMMETRIC if issuer.is_symmetric else ASYMMETRIC
        return frozenset(possible) & frozenset(self.algorithms) & frozenset(issuer.algorithms or ALGORITHMS)


def issuer_entries(value: Any) -> tuple[Issuer, ...]:
    """Parses the setting's value, from a file or, as JSON, from a variable. Raises `ValueError`, which names the entry
    and the field.
    """
    given = given_entries(value, _KEY, ISSUERS_MAX, "issuer, tenant and a key")
    entries = tuple(_entry(each, f"{_KEY}[{number}]") for number, each in enumerate(given))
    check_unlike([entry.issuer for entry in entries], _KEY, "issuer")
    return entries


def _entry(given: Any, at: str) -> Issuer:
    try:
        entry = msgspec.convert(given, Issuer)
    except msgspec.ValidationError as error:
        # A value may be a secret, so it is not shown.
        raise ValueError(
            f"{at}: {explained(error, Issuer)}; an entry needs issuer, tenant and one of {', '.join(SOURCES)}"
        ) from None
    wrong = _wrong_name(entry) or _wrong_tenants(entry) or _wrong_source(entry) or _wrong_scopes(entry)
    if wrong is not None:
        raise ValueError(f"{at}.{wrong}")
    return entry


def _wrong_name(entry: Issuer) -> str | None:
    name = entry.issuer
    if 1 <= len(name) <= ISSUER_CHARS_MAX and name.isascii() and name.isprintable() and not set(name) & {" ", "|"}:
        return None
    return f"issuer: invalid name {name[:200]!r}: use 1 to {ISSUER_CHARS_MAX} ASCII characters without spaces and |"


def _wrong_tenants(entry: Issuer) -> str | None:
    if (entry.tenant is None) == (not entry.tenants):
        return "tenant: set the issuer's tenant, or tenants = ['*'] for an issuer run by the operator"
    if entry.tenants == (ANY_TENANT,):
        return None
    named = entry.tenants if entry.tenant is None else (entry.tenant,)
    wrong = next((wrong for name in named if (wrong := wrong_name(name, what="tenant")) is not None), None)
    return f"{'tenants' if entry.tenants else 'tenant'}: {wrong}" if wrong else None


def _wrong_source(entry: Issuer) -> str | None:
    given = [name for name in SOURCES if getattr(entry, name) is not None]
    if len(given) != 1:
        return f"{given[1] if given else 'jwks_url'}: set exactly one of {', '.join(SOURCES)}, not {len(given)}"
    name = given[0]
    if name != "secret" and not getattr(entry, name):
        return f"{name}: the value is empty"
    if name == "secret":
        return wrong_secret((entry.secret or "").encode())
    if name == "jwks_url":
        return _wrong_url(entry.jwks_url or "")
    return None


def wrong_secret(secret: bytes) -> str | None:
    """What is wrong with an HS256 secret; None if it is long enough. A key shorter than its hash could be guessed from
    one token (RFC 7518, 3.2)."""
    if len(secret) < JWT_SECRET_BYTES_MIN:
        return f"secret: HS256 needs at least {JWT_SECRET_BYTES_MIN} random bytes, not {len(secret)}"
    return None


def _wrong_url(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return f"jwks_url: invalid URL {url[:200]!r}"
    if host and (parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)):
        return None if parts.username is None else "jwks_url: remove the user name and password; key sets are public"
    return f"jwks_url: {url[:200]!r} is not secure: use https://…, or http:// on this machine"


def _wrong_scopes(entry: Issuer) -> str | None:
    if entry.scopes_max is None:
        return None
    try:
        check_scopes(entry.scopes_max, pointer="scopes_max")
    except InvalidRequest as error:
        return error.detail
    if "operator" in entry.scopes_max and not entry.is_operators:
        return "scopes_max: an issuer with a single tenant cannot grant operator; remove it"
    return None


def wrong_issuers(jwt: Jwt) -> tuple[str, str] | None:
    """The setting that conflicts with another one, and why; None if there is none."""
    for number, issuer in enumerate(jwt.issuers):
        if not jwt.algorithms_of(issuer):
            named = issuer.algorithms or jwt.algorithms
            fits = SYMMETRIC if issuer.is_symmetric else ASYMMETRIC
            where = f"auth.jwt.issuers[{number}]"
            why = f"{where} has {issuer.source}, which works with {_listed(fits)}, but only {_listed(named)} is allowed"
            return "auth.jwt.algorithms", why
    return None


def _listed(names: Sequence[str]) -> str:
    return " or ".join(names)


def without_secrets(issuers: Sequence[Issuer]) -> list[dict[str, Any]]:
    """The entries with their secrets masked."""
    shown = [msgspec.to_builtins(issuer) for issuer in issuers]
    return [entry | ({"secret": "***"} if "secret" in entry else {}) for entry in shown]
