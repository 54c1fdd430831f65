"""The door of the listener: how many connections of one address, and of all, there is room for."""

from __future__ import annotations

import json

from gateway.listener.accept_limit import AcceptLimit
from push.intake import Intake
from throttling.gcra import NS_PER_S


def door(intake: Intake, **more: int) -> AcceptLimit:
    return AcceptLimit(intake, connections_max=100, clock_ns=lambda: NS_PER_S, **more)


def test_one_address_leaves_room_for_others() -> None:
    """All of it could be taken by one, with connections that ask for nothing, or for little."""
    intake = Intake()
    at = door(intake)
    come = [at.enter(n + 1, "192.0.2.1") for n in range(100)]
    assert [answer is None for answer in come] == [True] * 90 + [False] * 10
    head, _, body = (come[-1] or b"").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503") and b"retry-after: " in head
    answer = json.loads(body)
    assert answer["code"] == "overloaded" and answer["retry_after_ms"] > 0
    assert "192.0.2.1 has 90 connections open; the process allows 100" in answer["detail"]
    assert intake.refused == {("connection", "address"): 10}
    assert at.enter(91, "192.0.2.2") is None
    at.leave("192.0.2.1")
    assert at.enter(91, "192.0.2.1") is None, "one that went leaves its place"


def test_an_ipv6_network_is_one_address() -> None:
    at = door(Intake())
    assert sum(at.enter(n + 1, f"2001:db8::{n:x}") is None for n in range(100)) == 90
    assert at.enter(91, "2001:db8:0:1::1") is None


def test_what_an_address_may_have_can_be_set() -> None:
    at = door(Intake(), per_address_max=5)
    come = [at.enter(n + 1, "192.0.2.1") for n in range(6)]
    assert [answer is None for answer in come] == [True] * 5 + [False]
    assert b"limits.open_per_address_max is 5" in (come[-1] or b"")
    assert at.enter(6, "192.0.2.2") is None


def test_what_comes_too_fast_takes_no_room() -> None:
    intake = Intake(accepts_per_s=1, accepts_burst=1)
    at = AcceptLimit(intake, connections_max=100, clock_ns=lambda: NS_PER_S)
    assert sum(at.enter(1, "192.0.2.1") is None for _ in range(50)) == 9
    assert intake.refused == {("connection", "pace"): 41}
    assert sum(at.wait("192.0.2.1") for _ in range(100)) == 81
