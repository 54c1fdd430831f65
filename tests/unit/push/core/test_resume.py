"""Sessions that were cut wait for their owner, for a limited time and in limited numbers."""

from __future__ import annotations

from push.core.resume import Parked, ParkingLot


def parked(name: str, until_ms: int = 100, principal: str = "p", tenant: str = "t") -> Parked[int]:
    return Parked(name, principal, until_ms, {("default", "q"): 1}, tenant=tenant)


def lot(*sessions: Parked[int], sessions_max: int = 3) -> ParkingLot[int]:
    found: ParkingLot[int] = ParkingLot(sessions_max)
    for session in sessions:
        found.park(session)
    return found


def test_a_session_comes_back_once() -> None:
    a = parked("a")
    waiting = lot(a)
    assert waiting.take("a", "p") is a
    assert waiting.take("a", "p") is None


def test_a_session_comes_back_to_its_owner_only() -> None:
    waiting = lot(parked("a", principal="mine"))
    assert waiting.take("a", "yours") is None
    assert waiting.take("a", "mine") is not None


def test_a_session_whose_time_is_over_is_handed_out_for_clearing() -> None:
    a, b, c = parked("a", 10), parked("b", 20), parked("c", 30)
    waiting = lot(a, b, c)
    assert waiting.expired(9) == []
    assert waiting.expired(20) == [a, b]
    assert waiting.all() == [c]
    assert waiting.expired(99) == [c]


def test_a_session_that_waits_longer_keeps_no_other_one_behind_it() -> None:
    restored, cut = parked("restored", until_ms=500), parked("cut", until_ms=100)
    sessions = lot(restored, cut)
    assert sessions.expired(100) == [cut] and sessions.expired(499) == [] and sessions.expired(500) == [restored]


def test_sessions_that_come_and_go_leave_nothing_behind() -> None:
    sessions = lot()
    for until_ms in range(1000):
        sessions.park(parked("a", until_ms=until_ms))
        assert len(sessions._times) < 100
    assert sessions.expired(998) == [] and [one.session for one in sessions.expired(999)] == ["a"]


def test_the_oldest_makes_room() -> None:
    a, b, c, d = (parked(name) for name in "abcd")
    waiting = lot(a, b, c)
    assert waiting.park(d) is a
    assert waiting.all() == [b, c, d] and len(waiting) == 3


def test_a_session_that_is_parked_again_waits_from_then_on() -> None:
    a, b, again = parked("a", 10), parked("b", 20), parked("a", 30)
    waiting = lot(a, b)
    assert waiting.park(again) is None
    assert waiting.expired(20) == [b]
    assert waiting.all() == [again]


def test_sessions_of_one_tenant_take_no_place_of_others() -> None:
    """A tenant whose sockets come and go had those of all others forgotten."""
    quiet = parked("quiet", tenant="quiet")
    waiting = lot(quiet, sessions_max=20)
    evicted = [waiting.park(parked(f"{n}", tenant="loud")) for n in range(40)]
    assert quiet not in evicted and len(waiting) == 19, "it has nine times as many as are free, beside the other"
    assert [one.session for one in evicted if one is not None] == [f"{n}" for n in range(22)], "its own oldest go"
    assert waiting.park(parked("third", tenant="third")) is None
    assert waiting.take("quiet", "p") is quiet


def test_where_all_places_are_taken_whoever_has_none_takes_the_oldest() -> None:
    a, b, c, d = (parked(name, tenant=name) for name in "abcd")
    waiting = lot(a, b, c)
    assert waiting.park(d) is a
    assert waiting.all() == [b, c, d]
