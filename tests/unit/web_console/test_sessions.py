"""Sessions of the console: they end by themselves, in time and in number."""

from __future__ import annotations

from web_console.limits import (
    LOGIN_ADDRESSES_MAX,
    LOGINS_PER_MINUTE_MAX,
    SESSION_IDLE_SECONDS_MAX,
    SESSION_SECONDS_MAX,
    SESSIONS_MAX,
    SESSIONS_PER_CALLER_MAX,
)
from web_console.server import Caller
from web_console.sessions import Attempts, Session, Sessions


def _begin(sessions: Sessions, secret: str, *, now_s: float = 0.0, who: str = "k1") -> Session:
    caller = Caller(who, "default", "key", ("admin",))
    return sessions.begin(caller, "pushq_k1_secret", secret=secret, form_token="f", now_s=now_s)


def test_a_session_is_found_by_its_secret_alone() -> None:
    sessions = Sessions()
    session = _begin(sessions, "one")
    assert sessions.find("one", 1.0) is session
    assert sessions.find("two", 1.0) is None
    assert "pushq_k1_secret" not in repr(session)


def test_an_idle_session_ends() -> None:
    sessions = Sessions()
    _begin(sessions, "one")
    assert sessions.find("one", SESSION_IDLE_SECONDS_MAX - 1) is not None
    assert sessions.find("one", 2 * SESSION_IDLE_SECONDS_MAX - 1) is None


def test_a_live_page_keeps_nobody_signed_in() -> None:
    sessions = Sessions()
    _begin(sessions, "one")
    assert sessions.find("one", SESSION_IDLE_SECONDS_MAX - 1, is_seen=False) is not None
    assert sessions.find("one", SESSION_IDLE_SECONDS_MAX, is_seen=False) is None


def test_a_session_in_use_ends_after_its_longest_time() -> None:
    sessions = Sessions()
    _begin(sessions, "one")
    now_s = 0.0
    while now_s < SESSION_SECONDS_MAX:
        assert sessions.find("one", now_s) is not None
        now_s += SESSION_IDLE_SECONDS_MAX / 2
    assert sessions.find("one", now_s) is None


def test_signing_out_ends_a_session() -> None:
    sessions = Sessions()
    _begin(sessions, "one")
    assert sessions.end("one") is not None
    assert sessions.find("one", 1.0) is None and sessions.end("one") is None


def test_the_oldest_sessions_make_room() -> None:
    sessions = Sessions()
    for number in range(SESSIONS_PER_CALLER_MAX + 1):
        _begin(sessions, f"mine {number}")
    assert len(sessions) == SESSIONS_PER_CALLER_MAX and sessions.find("mine 0", 0.0) is None
    for number in range(SESSIONS_MAX):
        _begin(sessions, f"other {number}", who=f"k{number}")
    assert len(sessions) == SESSIONS_MAX and sessions.find("mine 1", 0.0) is None


def test_an_address_that_was_refused_often_waits_for_the_next_minute() -> None:
    attempts = Attempts()
    for _ in range(LOGINS_PER_MINUTE_MAX):
        assert attempts.may_try("10.0.0.1", 60.0)
        attempts.refused("10.0.0.1", 60.0)
    assert not attempts.may_try("10.0.0.1", 61.0)
    assert attempts.may_try("10.0.0.2", 61.0) and attempts.may_try("10.0.0.1", 120.0)


def test_more_addresses_than_are_remembered_wait_together() -> None:
    attempts = Attempts()
    for number in range(LOGIN_ADDRESSES_MAX):
        attempts.refused(f"2001:db8:0:{number:x}::1", 60.0)
    for number in range(LOGINS_PER_MINUTE_MAX):
        assert attempts.may_try("10.0.0.1", 61.0)
        attempts.refused(f"10.0.0.{number}", 61.0)
    assert not attempts.may_try("10.0.0.1", 62.0) and not attempts.may_try("10.9.9.9", 62.0)
    assert attempts.may_try("2001:db8:0:1::7", 62.0) and attempts.may_try("10.0.0.1", 120.0)


def test_the_addresses_of_one_network_wait_together_and_leave_room_for_others() -> None:
    """One who has a network would else try without end, and have nobody sign in who was not refused before."""
    attempts = Attempts()
    for number in range(2 * LOGIN_ADDRESSES_MAX):
        attempts.refused(f"2001:db8::{number:x}", 60.0)
    assert not attempts.may_try("2001:db8::ffff:1", 61.0)
    for _ in range(LOGINS_PER_MINUTE_MAX):
        assert attempts.may_try("10.0.0.1", 61.0)
        attempts.refused("10.0.0.1", 61.0)
    assert attempts.may_try("10.0.0.2", 61.0) and attempts.may_try("2001:db8:0:1::1", 61.0)
