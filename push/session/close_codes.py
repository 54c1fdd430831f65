"""WebSocket close codes that carry advice: 4000–4499 reconnect, 4500–4999 stop."""

from __future__ import annotations

from enum import IntEnum


class Close(IntEnum):
    DRAIN = 4000
    SLOW_CONSUMER = 4001
    TIMED_OUT = 4002
    KICKED = 4003
    RATE_LIMITED = 4008
    TOKEN_EXPIRED = 4401
    PROTOCOL_ERROR = 4500
    UNAUTHENTICATED = 4501
    FORBIDDEN = 4503
    NO_SUCH_QUEUE = 4504
    REPLACED = 4509
    TOO_LARGE = 4513


def may_reconnect(code: int) -> bool:
    """Whether a client should reconnect after a close: after any code but our 4500–4999."""
    return not 4500 <= code <= 4999
