from __future__ import annotations

import pytest

from push.client.errors import ApiError, FieldError, OutcomeUnknown, Problem, TooLarge, Unavailable
from push.client.frames import Error, Ok, Publish, PublishedItem
from push.client.model import Published
from tests.unit.push.client.world import World, bodies

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
    entry.wanted = False
    assert world.take(Publish) == []
    assert world.core.is_idle


def test_an_answer_of_the_wrong_length_is_an_error_for_each_message() -> None:
    world = World()
    world.open()
    world.publish("a", "b")
    world.feed(Ok(id=world.take(Publish)[0].id, messages=[PublishedItem(id="a", seq=1)]))
    assert all(isinstance(result, ApiError) for result in world.results.values()) and len(world.results) == 2
