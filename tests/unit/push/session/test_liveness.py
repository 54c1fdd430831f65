"""Whether a client still reads, told by what comes from it."""

from __future__ import annotations

from push.session.liveness import Liveness

UNREAD_MS = 10_000


def nothing() -> int:
    """Waits for the peer's kernel."""
    return 0


def test_a_client_is_asked_at_half_of_the_time_and_loses_its_credit_at_the_end_of_it() -> None:
    hearing = Liveness()
    hearing.sent(0)
    hearing.sent(3_000)
    said = {ms: hearing.judge(ms, UNREAD_MS, nothing) for ms in range(0, 13_000, 1_000)}
    assert {ms: word for ms, word in said.items() if word} == {5_000: "ask", 10_000: "withhold"}


def test_a_word_of_any_kind_begins_the_time_anew() -> None:
    hearing = Liveness()
    hearing.sent(0)
    assert hearing.judge(5_000, UNREAD_MS, nothing) == "ask"
    hearing.heard += 1
    assert hearing.judge(20_000, UNREAD_MS, nothing) is None, "and nothing was sent since"
    hearing.sent(20_000)
    assert hearing.judge(24_000, UNREAD_MS, nothing) is None
    assert hearing.judge(25_000, UNREAD_MS, nothing) == "ask"


def test_nobody_loses_credit_who_was_not_asked() -> None:
    hearing = Liveness()
    hearing.sent(0)
    assert hearing.judge(60_000, UNREAD_MS, nothing) == "ask", "the beat of the house was late"
    assert hearing.judge(61_000, UNREAD_MS, nothing) == "withhold"


def test_who_is_heard_again_gets_messages_again() -> None:
    hearing = Liveness()
    hearing.sent(0)
    assert [hearing.judge(ms, UNREAD_MS, nothing) for ms in (5_000, 10_000, 11_000)] == ["ask", "withhold", None]
    hearing.heard += 1
    assert hearing.judge(12_000, UNREAD_MS, nothing) == "restore"
    assert hearing.judge(13_000, UNREAD_MS, nothing) is None


def test_who_reads_large_messages_slowly_is_given_more_time_as_long_as_it_goes_on() -> None:
    hearing = Liveness()
    hearing.sent(0)
    waiting = {5_000: 900, 10_000: 500, 15_000: 100, 20_000: 100}
    said = {ms: hearing.judge(ms, UNREAD_MS, lambda ms=ms: waiting[ms]) for ms in waiting}  # type: ignore[misc]
    assert said == {5_000: "ask", 10_000: None, 15_000: None, 20_000: "withhold"}
