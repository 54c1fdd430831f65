"""Minutes: one row for each different doing, and a bound on how many."""

from __future__ import annotations

import pytest

from gateway.usage.meter import MINUTE_MS, Meter
from gateway.usage.schema import MinuteRow

START_MS = 1_700_000_040_000


class Clock:
    ms = START_MS

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


def rows(meter: Meter, clock: Clock) -> list[MinuteRow]:
    clock.ms += MINUTE_MS
    return meter.take()


def test_what_one_caller_does_in_a_minute_is_one_row(clock: Clock) -> None:
    meter = Meter("node", clock)
    for _ in range(3):
        meter.count("t", "key", "q", "publish", "ws", messages=100, bytes_in=500, seconds=0.002)
    (row,) = rows(meter, clock)
    assert (row.requests, row.messages, row.bytes_in, row.seconds) == (3, 300, 1500, 0.006)
    assert row.latency_counts == [0, 3, 0, 0, 0, 0, 0, 0] and row.minute == "2023-11-14T22:14:00.000Z"


def test_each_outcome_has_a_row_of_its_own(clock: Clock) -> None:
    meter = Meter("node", clock)
    meter.count("t", "key", "q", "publish", "http")
    meter.count("t", "key", "q", "publish", "http", "queue-full")
    assert {row.outcome for row in rows(meter, clock)} == {"ok", "queue-full"}


def test_a_minute_is_told_only_when_it_is_over(clock: Clock) -> None:
    meter = Meter("node", clock)
    meter.count("t", "key", "q", "publish", "http")
    assert meter.take() == []
    assert len(meter.take(unfinished=True)) == 1


def test_what_came_in_another_minute_is_another_row(clock: Clock) -> None:
    meter = Meter("node", clock)
    meter.count("t", "key", "q", "ack", "ws")
    clock.ms += MINUTE_MS
    meter.count("t", "key", "q", "deliver", "ws")
    assert len({row.minute for row in rows(meter, clock)}) == 2


def test_beyond_the_most_rows_of_a_minute_the_rest_counts_as_other(clock: Clock) -> None:
    meter = Meter("node", clock, rows_max=2)
    for queue in ("a", "b", "c", "d"):
        meter.count("t", "key", queue, "publish", "ws", messages=10)
    found = {row.queue: row.messages for row in rows(meter, clock)}
    assert found == {"a": 10, "b": 10, "other": 20} and meter.overflowed == 2


def test_a_tenant_with_very_many_rows_leaves_room_for_those_of_others(clock: Clock) -> None:
    """Who makes up queues or subjects would else have nobody know what the other tenants used."""
    meter = Meter("node", clock, rows_max=100)
    for number in range(1_000):
        meter.count("t", "key", f"q{number}", "publish", "ws", messages=10)
    for number in range(5):
        meter.count("u", "key", f"q{number}", "publish", "ws", messages=1)
    found = rows(meter, clock)
    assert {row.queue for row in found if row.tenant == "u"} == {f"q{number}" for number in range(5)}
    mine = [row for row in found if row.tenant == "t"]
    assert sum(row.messages for row in mine) == 10_000 and len(found) <= 100
    assert [row.principal for row in mine if row.queue == "other"] == ["other"]
    assert meter.overflowed == 1_000 - len(mine) + 1
    meter.count("t", "key", "q", "publish", "ws")
    assert [row.queue for row in rows(meter, clock)] == ["q"], "another minute"


def test_the_slowest_has_a_bucket_too(clock: Clock) -> None:
    meter = Meter("node", clock)
    meter.count("t", "key", "q", "receive", "http", seconds=59.0)
    assert rows(meter, clock)[0].latency_counts[-1] == 1
