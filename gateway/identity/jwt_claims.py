"""Turns the claims of a verified JWT into a grant. Pure rules: claims, issuer and time in, a grant or a refusal out.

The signature was verified before (RFC 7519, RFC 8725).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend_store.model import OPERATOR, InvalidRequest, TokenExpired, Unauthenticated
from gateway.api.validate import wrong_name
from gateway.identity.authorization import check_scopes
from gateway.identity.issuers import ANY_TENANT, Issuer
from gateway.limits import SCOPE_CHARS_MAX, SUBJECT_CHARS_MAX

TIME_S_MAX = 1 << 40
"""Upper bound of a claim that is a time, in seconds since 1970: about 35,000 years."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token lets its bearer do, and until when in ms since 1970."""

    subject: str
    tenant: str
    scopes: tuple[str, ...]
    until_ms: int


def granted(claims: Mapping[str, Any], issuer: Issuer, *, audience: str, leeway_s: int, now_ms: int) -> Grant:
    """Checks the claims. Raises `Unauthenticated`, which names the claim, and `TokenExpired`."""
    now_s = now_ms / 1000
    if "iss" in claims:
        is_of_issuer = claims["iss"] == issuer.issuer
    else:
        is_of_issuer = issuer.tenant is not None and claims.get("tenant") == issuer.tenant
    if not is_of_issuer:
        raise Unauthenticated("the token's `iss` does not match its issuer")
    until_s = _required_time(claims, "exp") + leeway_s
    if now_s >= until_s:
        raise TokenExpired(f"the token expired {now_s - until_s + leeway_s:.0f} s ago")
    for name in ("nbf", "iat"):
        begins_s = _time(claims, name)
        if begins_s is not None and begins_s > now_s + leeway_s:
            raise Unauthenticated(
                f"the token's `{name}` is {begins_s - now_s:.0f} s in the future by this server's clock"
            )
    _check_audience(claims.get("aud"), audience)
    return Grant(_subject(claims), _tenant(claims, issuer), _scopes(claims, issuer), int(until_s * 1000))


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not 0 <= value <= TIME_S_MAX:
        raise Unauthenticated(f"the token's `{name}` must be a number of seconds since 1970")
    return float(value)


def _required_time(claims: Mapping[str, Any], name: str) -> float:
    value = _time(claims, name)
    if value is None:
        raise Unauthenticated(f"the token's `{name}` is missing")
    return value


def _check_audience(audiences: Any, audience: str) -> None:
    named = audiences if isinstance(audiences, list) else [audiences]
    if audience not in named:
        raise Unauthenticated(f"the token's `aud` must contain {audience!r}")


def _subject(claims: Mapping[str, Any]) -> str:
    subject = claims.get("sub")
    if isinstance(subject, str) and 1 <= len(subject) <= SUBJECT_CHARS_MAX and subject.isprintable():
        return subject
    raise Unauthenticated(f"the token's `sub` must have 1 to {SUBJECT_CHARS_MAX} printable characters")


def _tenant(claims: Mapping[str, Any], issuer: Issuer) -> str:
    claimed = claims.get("tenant")
    if issuer.tenant is not None:
        if claimed is not None and claimed != issuer.tenant:
            raise Unauthenticated("the token's `tenant` is not the tenant of its issuer")
        return issuer.tenant
    if not isinstance(claimed, str) or wrong_name(claimed, what="tenant") is not None:
        raise Unauthenticated("the token's `tenant` is missing; this issuer requires it")
    if issuer.tenants != (ANY_TENANT,) and claimed not in issuer.tenants:
        raise Unauthenticated("the token's `tenant` is not one of its issuer's tenants")
    return claimed


def _scopes(claims: Mapping[str, Any], issuer: Issuer) -> tuple[str, ...]:
    given = claims.get("scope")
    if not isinstance(given, str) or len(given) > SCOPE_CHARS_MAX:
        raise Unauthenticated(
            f"the token's `scope` must be space-separated scopes of at most {SCOPE_CHARS_MAX} characters"
        )
    try:
        scopes = check_scopes(given.split(" ") if given else [], pointer="scope")
    except InvalidRequest as error:
        raise Unauthenticated(f"the token's {error.detail}") from None
    if OPERATOR in scopes and not issuer.is_operators:
        raise Unauthenticated(
            "the token's `scope` contains operator, which an issuer with a single tenant cannot grant"
        )
    return scopes
