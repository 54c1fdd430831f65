from __future__ import annotations

from datetime import timedelta

import pytest

from push.client.errors import ApiError, FieldError, OutcomeUnknown, Problem, TooLarge, Unavailable
from push.client.frames import Error, Ok, Publish, PublishedItem
from push.client.model import Published, TraceContext
from push.client.producer import checked_timeout, checked_trace
from tests.unit.push.client.world import World, bodies, raw

OVERLOADED = Problem(code="overloaded", status=503, detail="busy", retry_after_ms=700)


def test_publishes_of_one_turn_share_a_frame() -> None:
    world = World()
    world.open()
    world.publish("a", "b", "c")
    frames = world.take(Publish)
    assert [bodies(frame) for frame in frames] == [["a", "b", "c"]]


def test_each_queue_has_its_own_frame() -> None:
    world = World()
    world.open()
    world.publish("a", queue="one")
    world.publish("b", queue="two")
    assert [(frame.queue, bodies(frame)) for frame in world.take(Publish)] == [("one", ["a"]), ("two", ["b"])]


def test_a_frame_holds_at_most_a_hundred_messages() -> None:
    world = World()
    world.open()
    world.publish(*(f"m{n}" for n in range(250)))
    assert [len(frame.messages) for frame in world.take(Publish)] == [100, 100, 50]


def test_a_frame_holds_at_most_its_bytes_and_a_bigger_message_goes_alone() -> None:
    world = World(publish_frame_bytes_max=1000)
    world.open()
    world.publish("x" * 450, "y" * 450, "z" * 450, "w" * 5000, "v")
    assert [len(frame.messages) for frame in world.take(Publish)] == [2, 1, 1, 1]


def test_messages_of_one_trace_share_a_frame_that_says_so() -> None:
    world = World()
    world.open()
    one, other = TraceContext("00-1", "a=b"), TraceContext("00-1", None)
    for number, trace in enumerate([one, one, other, None, None]):
        world.core.publish("q", raw(f"m{number}"), number, world.now, None, trace)
    found = [(len(frame.messages), frame.traceparent, frame.tracestate) for frame in world.take(Publish)]
    assert found == [(2, "00-1", "a=b"), (1, "00-1", None), (2, None, None)]


@pytest.mark.parametrize(
    ("traceparent", "tracestate"),
    [
        ("nonsense", None),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
        (None, "a=b"),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "ä"),
    ],
)
def test_what_is_no_trace_context_is_refused_before_it_leaves(traceparent: str | None, tracestate: str | None) -> None:
    with pytest.raises(ValueError, match="trace"):
        checked_trace(traceparent, tracestate)


def test_small_publishes_gather_while_several_frames_are_unanswered() -> None:
    world = World(publish_frames_in_flight_max=2)
    world.open()
    sent = []
    for ticket in ("a", "b", "c", "d"):
        world.publish(ticket)
        sent += world.take(Publish)
    assert [bodies(frame) for frame in sent] == [["a"], ["b"]]
    world.confirm(sent[0])
    assert [bodies(frame) for frame in world.take(Publish)] == [["c", "d"]]


def test_full_frames_go_though_several_are_unanswered() -> None:
    world = World(publish_frames_in_flight_max=1, publish_frame_messages_max=2)
    world.open()
    world.publish("a", "b", "c", "d", "e")
    assert [bodies(frame) for frame in world.take(Publish)] == [["a", "b"], ["c", "d"]]


def test_a_publish_ends_only_with_the_servers_answer() -> None:
    world = World()
    world.open()
    world.publish("a")
    frame = world.take(Publish)[0]
    assert not world.results
    world.feed(Ok(id=frame.id, messages=[PublishedItem(id="a", seq=7, partition=2, duplicate=True)]))
    assert world.results == {"a": Published("a", 7, 2, True)}


def test_the_window_is_full_until_a_confirmation() -> None:
    world = World(publish_window_messages=2)
    world.open()
    world.publish("a", "b")
    assert world.core.publisher.window_left == 0
    world.confirm(world.take(Publish)[0])
    assert world.core.publisher.window_left == 2


def test_an_error_of_one_message_fails_that_message_only() -> None:
    world = World()
    world.open()
    world.publish("a", "b")
    frame = world.take(Publish)[0]
    full = Problem(code="queue-full", status=507, detail="full")
    world.feed(Ok(id=frame.id, messages=[PublishedItem(id="a", seq=1), PublishedItem(id="b", error=full)]))
    assert world.results["a"] == Published("a", 1)
    assert isinstance(world.results["b"], ApiError) and world.results["b"].code == "queue-full"


def test_a_refused_frame_fails_the_message_it_points_at_and_the_others_go_again() -> None:
    world = World()
    world.open()
    world.publish("a", "b", "c")
    problem = Problem(code="message-too-large", status=413, errors=(FieldError("/messages/1/body", "too long"),))
    world.feed(Error(id=world.take(Publish)[0].id, problem=problem))
    assert list(world.results) == ["b"] and isinstance(world.results["b"], TooLarge)
    assert [bodies(frame) for frame in world.take(Publish)] == [["a", "c"]]


def test_a_refused_frame_that_points_at_nobody_goes_again_one_by_one() -> None:
    world = World()
    world.open()
    world.publish("a", "b")
    world.feed(Error(id=world.take(Publish)[0].id, problem=Problem(code="invalid-request", status=400)))
    alone = world.take(Publish)
    assert [bodies(frame) for frame in alone] == [["a"], ["b"]]
    world.confirm(alone[0])
    world.feed(Error(id=alone[1].id, problem=Problem(code="invalid-request", status=400)))
    assert isinstance(world.results["a"], Published)
    assert isinstance(world.results["b"], ApiError)


def test_a_missing_queue_fails_the_whole_frame() -> None:
    world = World()
    world.open()
    world.publish("a", "b")
    world.feed(Error(id=world.take(Publish)[0].id, problem=Problem(code="queue-not-found", status=404)))
    assert all(isinstance(result, ApiError) for result in world.results.values()) and len(world.results) == 2


def test_an_overloaded_server_gets_the_messages_again_after_the_time_it_names() -> None:
    world = World()
    world.open()
    world.publish("a")
    world.feed(Error(id=world.take(Publish)[0].id, problem=OVERLOADED))
    world.publish("b")
    assert world.take(Publish) == []
    assert world.core.next_wakeup(world.now) == pytest.approx(world.now + 0.7)
    world.pass_time(0.7)
    assert [bodies(frame) for frame in world.take(Publish)] == [["a", "b"]]


def test_a_queue_is_held_for_two_minutes_at_most_whatever_is_asked() -> None:
    world = World()
    world.open()
    world.publish("a")
    a_day = Problem(code="rate-limited", status=429, retry_after_ms=86_400_000)
    world.feed(Error(id=world.take(Publish)[0].id, problem=a_day))
    world.pass_time(119)
    assert isinstance(world.results["a"], ApiError)
    world.publish("b")
    assert world.take(Publish) == []
    world.pass_time(1)
    assert [bodies(frame) for frame in world.take(Publish)] == [["b"]]


def test_retries_end_with_the_servers_own_error() -> None:
    world = World(publish_retries_max=1)
    world.open()
    world.publish("a")
    for _ in range(2):
        world.feed(Error(id=world.take(Publish)[0].id, problem=OVERLOADED))
        world.pass_time(1)
    assert isinstance(world.results["a"], ApiError) and world.results["a"].code == "overloaded"


def test_unanswered_messages_go_again_in_order_after_a_cut() -> None:
    world = World(publish_frame_messages_max=2)
    world.open()
    world.publish("a", "b", "c")
    first = world.take(Publish)
    world.cut()
    world.publish("d")
    assert world.take(Publish) == []
    world.open("s2")
    again = world.take(Publish)
    assert [bodies(frame) for frame in again] == [["a", "b"], ["c", "d"]]
    assert bytes(first[0].messages[0]) == bytes(again[0].messages[0])
    assert not {frame.id for frame in first} & {frame.id for frame in again}


def test_a_late_answer_to_a_frame_given_up_changes_nothing() -> None:
    world = World(publish_timeout_s=5)
    world.open()
    world.publish("a")
    frame = world.take(Publish)[0]
    world.pass_time(5)
    world.results.clear()
    world.confirm(frame)
    assert world.results == {}


def test_an_unconfirmed_message_ends_with_outcome_unknown() -> None:
    world = World(publish_timeout_s=5)
    world.open()
    world.publish("a")
    world.take(Publish)
    world.pass_time(4.9)
    assert not world.results
    assert world.core.next_wakeup(world.now) == pytest.approx(world.now + 0.1)
    world.pass_time(0.2)
    assert isinstance(world.results["a"], OutcomeUnknown)
    assert world.core.is_idle


def test_a_message_that_was_never_sent_ends_with_unavailable() -> None:
    world = World(publish_timeout_s=5)
    world.publish("a")
    world.pass_time(5)
    assert isinstance(world.results["a"], Unavailable)


def test_a_cancelled_publish_that_has_not_left_is_not_sent() -> None:
    world = World()
    world.open()
    entry = world.core.publish("q", b"\xc0", "a", world.now)  # type: ignore[arg-type]
    world.core.publisher.give_up("q", entry)
    assert world.take(Publish) == []
    assert world.core.is_idle


def test_an_answer_of_the_wrong_length_is_an_error_for_each_message() -> None:
    world = World()
    world.open()
    world.publish("a", "b")
    world.feed(Ok(id=world.take(Publish)[0].id, messages=[PublishedItem(id="a", seq=1)]))
    assert all(isinstance(result, ApiError) for result in world.results.values()) and len(world.results) == 2


# A time of the caller's own


def timed(world: World, timeout_s: float | None, *tickets: str) -> None:
    for ticket in tickets:
        world.core.publish("q", raw(ticket), ticket, world.now, timeout_s=timeout_s)


def test_a_frame_tells_the_server_what_is_left_of_its_time() -> None:
    world = World()
    timed(world, 2.0, "a")
    world.pass_time(0.5)
    world.open()
    assert [frame.timeout_ms for frame in world.take(Publish)] == [1500]
    world.pass_time(0.4)
    world.cut()
    world.open("s2")
    assert [frame.timeout_ms for frame in world.take(Publish)] == [1100]


def test_messages_of_different_times_do_not_share_a_frame() -> None:
    world = World()
    world.open()
    timed(world, 2.0, "a", "b")
    timed(world, 3.0, "c")
    timed(world, None, "d", "e")
    found = [(bodies(frame), frame.timeout_ms) for frame in world.take(Publish)]
    assert found == [(["a", "b"], 2000), (["c"], 3000), (["d", "e"], None)]


def test_a_frame_has_the_time_of_its_first_message_to_end_and_none_that_ends_much_later() -> None:
    world = World(publish_apart_s=0.1)
    for ticket in ("a", "b", "c"):
        timed(world, 2.0, ticket)
        world.pass_time(0.06)
    world.open()
    found = [(bodies(frame), frame.timeout_ms) for frame in world.take(Publish)]
    assert found == [(["a", "b"], 1820), (["c"], 1940)]


@pytest.mark.parametrize("code", ["overloaded", "outcome-unknown"])
def test_what_the_server_refuses_when_the_time_is_over_does_not_go_again(code: str) -> None:
    world = World()
    world.open()
    timed(world, 0.5, "a")
    frame = world.take(Publish)[0]
    world.pass_time(0.51)
    assert not world.results, "the answer is on its way"
    world.feed(Error(id=frame.id, problem=Problem(code=code, status=503 if code == "overloaded" else 504)))
    result = world.results["a"]
    assert isinstance(result, ApiError if code == "overloaded" else OutcomeUnknown) and result.code == code
    world.pass_time(5)
    assert world.take(Publish) == [] and world.core.is_idle


def test_a_refusal_within_the_time_goes_again_until_it_is_over() -> None:
    world = World()
    world.open()
    timed(world, 1.0, "a")
    world.feed(Error(id=world.take(Publish)[0].id, problem=OVERLOADED))
    world.pass_time(0.7)
    again = world.take(Publish)
    assert [frame.timeout_ms for frame in again] == [300]
    world.feed(Error(id=again[0].id, problem=OVERLOADED))
    world.pass_time(0.3)
    assert isinstance(world.results["a"], ApiError) and world.results["a"].code == "overloaded"


def test_without_an_answer_the_client_gives_up_a_little_after_the_time() -> None:
    world = World(publish_grace_s=1.0)
    world.open()
    timed(world, 0.5, "a")
    world.take(Publish)
    world.pass_time(1.4)
    assert not world.results
    assert world.core.next_wakeup(world.now) == pytest.approx(world.now + 0.1)
    world.pass_time(0.11)
    assert isinstance(world.results["a"], OutcomeUnknown) and "0.5 s" in str(world.results["a"])


def test_a_cut_after_the_time_ends_the_message_and_nothing_is_sent_again() -> None:
    world = World(publish_grace_s=1.0)
    world.open()
    timed(world, 0.5, "a")
    world.take(Publish)
    world.pass_time(0.6)
    assert not world.results
    world.cut()
    world.open("s2")
    world.pass_time(0)
    assert isinstance(world.results["a"], OutcomeUnknown) and world.take(Publish) == []


def test_what_never_left_is_given_up_when_its_time_is_over_whatever_waits_before_it() -> None:
    world = World()
    world.publish("patient")
    timed(world, 0.5, "a")
    timed(world, 0.2, "b")
    world.pass_time(0.3)
    assert isinstance(world.results["b"], Unavailable) and list(world.results) == ["b"]
    assert world.core.next_wakeup(world.now) == pytest.approx(world.now + 0.2)
    world.pass_time(0.2)
    assert isinstance(world.results["a"], Unavailable)
    world.open()
    assert [bodies(frame) for frame in world.take(Publish)] == [["patient"]]


def test_a_refusal_after_a_try_without_an_answer_leaves_the_outcome_open() -> None:
    world = World()
    world.open()
    timed(world, 0.5, "a")
    world.take(Publish)
    world.cut()
    world.open("s2")
    frame = world.take(Publish)[0]
    world.pass_time(0.5)
    world.feed(Error(id=frame.id, problem=OVERLOADED))
    assert isinstance(world.results["a"], OutcomeUnknown)


@pytest.mark.parametrize("timeout", [0, -1, 60.001, float("nan"), timedelta(minutes=2)])
def test_a_time_that_no_server_would_take_is_refused_before_it_leaves(timeout: float | timedelta) -> None:
    with pytest.raises(ValueError, match="time"):
        checked_timeout(timeout)
    assert checked_timeout(timedelta(milliseconds=1)) == 0.001 and checked_timeout(60) == 60
