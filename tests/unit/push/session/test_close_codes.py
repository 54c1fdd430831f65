"""Close codes carry advice."""

from __future__ import annotations

from push.session.close_codes import Close, may_reconnect


def test_the_codes_are_those_of_the_protocol() -> None:
    assert {close.name: close.value for close in Close} == {
        "DRAIN": 4000, "SLOW_CONSUMER": 4001, "TIMED_OUT": 4002, "KICKED": 4003, "RATE_LIMITED": 4008,
        "TOKEN_EXPIRED": 4401, "PROTOCOL_ERROR": 4500, "UNAUTHENTICATED": 4501, "FORBIDDEN": 4503,
        "NO_SUCH_QUEUE": 4504, "REPLACED": 4509, "TOO_LARGE": 4513,
    }  # fmt: skip


def test_a_client_stops_after_45xx_to_49xx_only() -> None:
    assert all(may_reconnect(code) for code in (1000, 1001, 1006, 1011, 4000, 4401, 4499, 3000))
    assert not any(may_reconnect(code) for code in (4500, 4501, 4513, 4999))
