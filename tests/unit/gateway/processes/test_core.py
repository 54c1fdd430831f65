"""The crew of a server: who is started when, what follows an end, and in which order all of them leave."""

from __future__ import annotations

import pytest

from gateway.processes.core import DESK, STORAGE, Crew, Drain, Kill, Over, Serving, Start, pause_ms
from gateway.processes.limits import (
    GATEWAY_END_MS_MAX,
    RESTART_MS_MAX,
    RESTART_MS_MIN,
    STEADY_MS,
    STORAGE_END_MS_MAX,
)

DRAIN_MS = 4_000


def serving(gateways: int = 2) -> Crew:
    crew = Crew(gateways, DRAIN_MS)
    crew.begin()
    for number in range(gateways + 1):
        crew.ready(number, 0)
    assert crew.phase == "serving"
    return crew


def test_the_storage_comes_first_then_the_first_gateway_then_the_others() -> None:
    crew = Crew(3, DRAIN_MS)
    assert crew.begin() == [Start(STORAGE)]
    assert crew.ready(STORAGE, 0) == [Start(DESK)]
    assert crew.ready(DESK, 0) == [Start(2), Start(3)]
    assert crew.ready(3, 0) == []
    assert crew.ready(2, 0) == [Serving()]


def test_what_cannot_start_at_first_ends_the_server_with_its_reason() -> None:
    crew = Crew(2, DRAIN_MS)
    crew.begin()
    crew.ready(STORAGE, 0)
    assert crew.failed(DESK, "the certificate is gone") == []
    assert crew.ended(DESK, 3, 5) == [Drain(STORAGE)]
    assert crew.ended(STORAGE, 0, 6) == [Over(3, "the certificate is gone")]


def test_a_process_that_ends_before_it_is_ready_has_said_nothing_and_ends_the_server_too() -> None:
    crew = Crew(2, DRAIN_MS)
    crew.begin()
    assert crew.ended(STORAGE, -9, 5) == [Over(3, "the storage process exited with code -9 before it was ready")]


def test_a_process_that_dies_is_started_again_after_a_pause_that_grows() -> None:
    crew, now_ms, pauses = serving(), 0, []
    for _ in range(12):
        assert crew.ended(2, -9, now_ms) == []
        due_ms = crew.wakes_ms()
        assert due_ms is not None and crew.tick(due_ms - 1) == []
        assert crew.tick(due_ms) == [Start(2)]
        pauses.append(due_ms - now_ms)
        now_ms = due_ms
        assert crew.ready(2, now_ms) == []
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (2 * RESTART_MS_MIN, RESTART_MS_MAX)


def test_a_process_that_served_for_a_while_is_started_again_soon() -> None:
    crew = serving()
    for at_ms in (10, 20, 30):
        crew.ended(STORAGE, -9, at_ms)
        crew.tick(crew.wakes_ms() or 0)
        crew.ready(STORAGE, at_ms)
    crew.ended(STORAGE, -9, 30 + STEADY_MS)
    assert crew.wakes_ms() == 30 + STEADY_MS + RESTART_MS_MIN


def test_one_that_cannot_start_again_is_tried_for_as_long_as_the_server_runs() -> None:
    crew = serving()
    crew.ended(STORAGE, -9, 0)
    for _ in range(5):
        now_ms = crew.wakes_ms() or 0
        assert crew.tick(now_ms) == [Start(STORAGE)]
        crew.failed(STORAGE, "the folder is in use")
        assert crew.ended(STORAGE, 3, now_ms) == []
    assert crew.phase == "serving"


def test_the_gateways_leave_before_the_storage() -> None:
    crew = serving()
    assert crew.asked_to_end(0) == [Drain(1), Drain(2)]
    assert crew.ended(2, 0, 10) == []
    assert crew.ended(1, 0, 20) == [Drain(STORAGE)]
    assert crew.ended(STORAGE, 0, 30) == [Over(0, "")]


def test_what_dies_while_the_server_drains_is_not_started_again() -> None:
    crew = serving()
    crew.ended(2, -9, 0)
    assert crew.asked_to_end(1) == [Drain(1)]
    assert crew.ended(STORAGE, -9, 2) == []
    assert crew.ended(1, 0, 3) == [Over(0, "")]


def test_what_does_not_leave_is_killed_and_the_exit_code_says_so() -> None:
    crew = serving()
    crew.asked_to_end(0)
    crew.ended(1, 0, 10)
    assert crew.wakes_ms() == DRAIN_MS + GATEWAY_END_MS_MAX
    assert crew.tick(DRAIN_MS + GATEWAY_END_MS_MAX) == [Kill(2)]
    assert crew.ended(2, -9, 50_000) == [Drain(STORAGE)]
    assert crew.tick(50_000 + STORAGE_END_MS_MAX) == [Kill(STORAGE)]
    assert crew.ended(STORAGE, -9, 90_000) == [Over(1, "")]


def test_the_second_signal_does_not_wait() -> None:
    crew = serving()
    crew.asked_to_end(0)
    crew.ended(1, 0, 1)
    assert crew.asked_to_end(2) == [Kill(STORAGE), Kill(2), Over(1, "")]


def test_a_signal_during_the_start_ends_what_was_started() -> None:
    crew = Crew(2, DRAIN_MS)
    crew.begin()
    assert crew.asked_to_end(0) == [Drain(STORAGE)]
    assert crew.ended(STORAGE, -15, 1) == [Over(0, "")]


@pytest.mark.parametrize("failures", [0, 1, 5, 1_000_000])
def test_a_pause_has_bounds(failures: int) -> None:
    assert RESTART_MS_MIN <= pause_ms(failures) <= RESTART_MS_MAX
