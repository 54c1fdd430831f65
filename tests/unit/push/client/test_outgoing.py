from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from push.client.model import Outgoing
from push.client.outgoing import outgoing, publications, sendable
from push.client.times import milliseconds


def test_times_are_seconds_or_timedeltas_and_travel_as_milliseconds() -> None:
    message = outgoing(1, delay=1.5, ttl=timedelta(minutes=2))
    assert (message.delay_ms, message.ttl_ms) == (1500, 120_000)
    assert outgoing(1, delay_ms=7, ttl_ms=8) == Outgoing(body=1, delay_ms=7, ttl_ms=8)


def test_a_time_is_rounded_up_so_that_a_short_one_does_not_become_none() -> None:
    assert [milliseconds(seconds) for seconds in (0, 0.0001, 0.001, 0.0011, 0.3, 2.675)] == [0, 1, 1, 2, 300, 2675]


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan")])
def test_a_time_that_is_none_is_the_callers_error(seconds: float) -> None:
    with pytest.raises(ValueError, match="s: it must be finite and not negative"):
        outgoing(1, delay=seconds)


def test_a_time_given_twice_is_the_callers_error() -> None:
    with pytest.raises(ValueError, match="ttl or ttl_ms"):
        outgoing(1, ttl=1, ttl_ms=1000)


def test_a_moment_travels_in_utc_with_milliseconds() -> None:
    noon = datetime(2026, 11, 21, 12, 0, 0, 123_456, tzinfo=timezone(timedelta(hours=2)))
    assert sendable(outgoing(1, deliver_at=noon)).deliver_at == "2026-11-21T10:00:00.123Z"
    assert sendable(outgoing(1, deliver_at="tomorrow")).deliver_at == "tomorrow", (
        "the server says what is wrong with it"
    )


def test_a_moment_without_a_zone_is_the_callers_error() -> None:
    naive = datetime(2026, 11, 21, 12, tzinfo=UTC).replace(tzinfo=None)
    with pytest.raises(ValueError, match="zone"):
        sendable(Outgoing(body=1, deliver_at=naive))


def test_what_an_ack_publishes_is_grouped_by_queue_in_the_order_given() -> None:
    parts = publications([("b", 1), ("a", 2, {"key": "k", "delay": 1}), ("b", Outgoing(body=3, id="i"))])
    assert parts == [
        ("b", [Outgoing(body=1), Outgoing(body=3, id="i")]),
        ("a", [Outgoing(body=2, key="k", delay_ms=1000)]),
    ]


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match="prio"):
        publications([("a", 1, {"prio": 3})])  # type: ignore[typeddict-unknown-key]
