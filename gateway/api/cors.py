"""Headers of cross-origin requests (CORS), by which pages of other origins may read answers. The desk decides which
origins are allowed."""

from __future__ import annotations

from typing import Final

from gateway.api.http import Answer, Header

EXPOSED: Final = b"ETag, Idempotency-Replayed, Link, Location, RateLimit, RateLimit-Policy, Retry-After"
METHODS: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
HEADERS_ALLOWED_DEFAULT: Final = (
    b"authorization, content-type, idempotency-key, if-match, if-none-match, last-event-id, pushq-timeout-ms"
)
PREFLIGHT_SECONDS: Final = b"600"

VARY: Final[Header] = (b"vary", b"Origin")


def is_preflight(method: str, headers: dict[bytes, bytes]) -> bool:
    """Whether it is a browser's preflight request, which has no credentials and so is answered before the 401."""
    return method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers


def preflight(headers: dict[bytes, bytes]) -> Answer:
    wanted = headers.get(b"access-control-request-headers", HEADERS_ALLOWED_DEFAULT)
    return Answer(
        204,
        headers=(
            (b"access-control-allow-methods", METHODS),
            (b"access-control-allow-headers", wanted),
            (b"access-control-max-age", PREFLIGHT_SECONDS),
        ),
        content_type=None,
    )


def granted(origin: bytes) -> tuple[Header, ...]:
    """The headers of an answer to an allowed page. No "credentials": scripts send the token, there are no cookies."""
    return (b"access-control-allow-origin", origin), (b"access-control-expose-headers", EXPOSED), VARY
