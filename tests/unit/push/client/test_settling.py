from __future__ import annotations

from push.client.core.numbering import Numbered
from push.client.core.settling import Step
from push.client.errors import ApiError, LeaseLost, OutcomeUnknown, Problem
from push.client.frames import Ack, Error, Extend, Nack, Publish, Unsubscribe
from push.client.model import Lost
from tests.unit.push.client.world import World, bodies, numbers, raw


def test_acks_of_one_turn_share_a_frame_and_end_with_the_answer() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a", "b")
    for _ in range(2):
        world.settle(world.get(state))
    frames = world.take(Ack)
    assert [(frame.queue, frame.sub, list(frame.receipts)) for frame in frames] == [("q", 1, ["r-a", "r-b"])]
    assert not world.settled
    world.answer(frames[0])
    assert world.settled == {"ack a": None, "ack b": None}


def test_nacks_with_other_delays_have_frames_of_their_own() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a", "b", "c")
    world.settle(world.get(state), "nack")
    world.settle(world.get(state), "nack", delay_ms=500, reason="later")
    world.settle(world.get(state), "nack")
    frames = world.take(Nack)
    assert [(list(f.receipts), f.delay_ms, f.reason) for f in frames] == [
        (["r-a", "r-c"], None, None),
        (["r-b"], 500, "later"),
    ]


def test_a_refused_receipt_raises_lease_lost_and_marks_the_message() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a")
    delivery = world.get(state)
    world.settle(delivery)
    world.answer(world.take(Ack)[0], ok=False)
    assert isinstance(world.settled["ack a"], LeaseLost)
    assert delivery.is_lost
    assert world.events[-1] == Lost("q", ("a",))


def test_an_unanswered_ack_is_repeated_after_a_cut() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a")
    world.settle(world.get(state))
    first = world.take(Ack)[0]
    world.cut()
    world.open()
    again = world.take(Ack)[0]
    assert again.receipts == first.receipts and again.id != first.id
    assert again.sub is None, "the number belonged to the connection before"
    world.answer(again)
    assert world.settled == {"ack a": None}


def test_a_repeated_nack_that_finds_its_receipt_stale_had_its_effect_before() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a")
    world.settle(world.get(state), "nack")
    world.take(Nack)
    world.cut()
    world.open()
    world.answer(world.take(Nack)[0], ok=False)
    assert world.settled == {"nack a": None}


def test_acks_gather_while_many_frames_are_unanswered() -> None:
    world = World(settle_frames_in_flight_max=1)
    world.open()
    state = world.subscribe()
    world.deliver("a", "b", "c")
    world.settle(world.get(state))
    first = world.take(Ack)[0]
    world.settle(world.get(state))
    assert world.take(Ack) == []
    world.settle(world.get(state))
    assert world.take(Ack) == []
    world.answer(first)
    assert [list(frame.receipts) for frame in world.take(Ack)] == [["r-b", "r-c"]]


def test_a_frame_has_at_most_its_number_of_receipts() -> None:
    world = World(settle_frame_receipts_max=2)
    world.open()
    state = world.subscribe()
    world.deliver("a", "b", "c")
    for _ in range(3):
        world.settle(world.get(state))
    assert [list(frame.receipts) for frame in world.take(Ack)] == [["r-a", "r-b"], ["r-c"]]


def test_an_overloaded_server_gets_the_acks_again() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a")
    world.settle(world.get(state))
    problem = Problem(code="overloaded", status=503, retry_after_ms=200)
    world.feed(Error(id=world.take(Ack)[0].id, problem=problem))
    assert world.take(Ack) == []
    world.pass_time(0.2)
    assert [list(frame.receipts) for frame in world.take(Ack)] == [["r-a"]]


def test_acks_wait_for_two_minutes_at_most_whatever_is_asked() -> None:
    world = World(settle_timeout_s=600)
    world.open()
    state = world.subscribe(handler_limit_s=0.0)
    world.deliver("a")
    world.settle(world.get(state))
    a_day = Problem(code="rate-limited", status=429, retry_after_ms=86_400_000)
    world.feed(Error(id=world.take(Ack)[0].id, problem=a_day))
    world.pass_time(120)
    assert [list(frame.receipts) for frame in world.take(Ack)] == [["r-a"]]


def test_a_refusal_for_good_is_raised() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a")
    world.settle(world.get(state))
    world.feed(Error(id=world.take(Ack)[0].id, problem=Problem(code="forbidden", status=403)))
    assert isinstance(world.settled["ack a"], ApiError)


def test_an_ack_without_an_answer_ends_with_outcome_unknown() -> None:
    world = World(settle_timeout_s=5)
    world.open()
    state = world.subscribe()
    world.deliver("a")
    world.settle(world.get(state))
    world.take(Ack)
    world.pass_time(5)
    assert isinstance(world.settled["ack a"], OutcomeUnknown)
    assert world.core.is_idle


def test_acks_go_before_the_unsubscribe_that_gives_the_rest_back() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a", "b")
    world.settle(world.get(state))
    world.core.unsubscribe(state)
    frames = world.take_all()
    assert [type(frame) for frame in frames] == [Ack, Unsubscribe]


def test_the_users_extension_is_sent_with_its_time() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a")
    world.settle(world.get(state), "extend", visibility_timeout_ms=90_000)
    frame = world.take(Extend)[0]
    assert (list(frame.receipts), frame.visibility_timeout_ms) == (["r-a"], 90_000)
    world.answer(frame)
    assert world.settled == {"extend a": None}


def test_a_nack_may_ask_for_no_delay_at_all_which_is_another_thing_than_the_queues_own() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a", "b")
    world.settle(world.get(state), "nack", delay_ms=0)
    world.settle(world.get(state), "nack")
    assert [frame.delay_ms for frame in world.take(Nack)] == [0, None]


def test_a_message_whose_ack_was_refused_is_held_on() -> None:
    world = World()
    world.open()
    state = world.subscribe(visibility_timeout_ms=10_000)
    world.deliver("a")
    delivery = world.get(state)
    world.settle(delivery)
    world.feed(Error(id=world.take(Ack)[0].id, problem=Problem(code="queue-full", status=507)))
    assert isinstance(world.settled["ack a"], ApiError)
    world.pass_time(6)
    assert [list(frame.receipts) for frame in world.take(Extend)] == [["r-a"]]
    world.settle(delivery, "nack")
    world.answer(world.take(Nack)[0])
    assert world.settled["nack a"] is None


# An ack that publishes


def step(*parts: tuple[str, str]) -> Step:
    return Step([(queue, [Numbered(raw(body))]) for queue, body in parts])


def test_an_ack_takes_what_it_publishes_along() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a")
    world.settle(world.get(state), step=step(("bills", "x"), ("mails", "y")))
    [frame] = world.take(Ack)
    assert frame.publish is not None
    assert [(part.queue, bodies(part), numbers(part)) for part in frame.publish] == [
        ("bills", ["x"], [1]),
        ("mails", ["y"], [1]),
    ]
    world.answer(frame)
    assert world.settled == {"ack a": None}


def test_an_ack_that_publishes_travels_alone() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a", "b", "c")
    world.settle(world.get(state))
    world.settle(world.get(state), step=step(("bills", "x")))
    world.settle(world.get(state), step=step(("bills", "x")))
    frames = world.take(Ack)
    assert [(list(frame.receipts), frame.publish is None) for frame in frames] == [
        (["r-a"], True),
        (["r-b"], False),
        (["r-c"], False),
    ]


def test_several_receipts_share_one_step() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a", "b")
    one = step(("bills", "x"))
    world.settle(world.get(state), step=one)
    world.settle(world.get(state), step=one)
    [frame] = world.take(Ack)
    assert list(frame.receipts) == ["r-a", "r-b"] and frame.publish is not None and len(frame.publish) == 1


def test_numbers_go_on_between_publishes_and_acks_that_publish() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a")
    world.publish("m", queue="bills")
    assert [numbers(frame) for frame in world.take(Publish)] == [[1]]
    world.settle(world.get(state), step=step(("bills", "x")))
    world.publish("n", queue="bills")
    frames = world.take_all()
    assert [numbers(part) for frame in frames if isinstance(frame, Ack) for part in frame.publish or ()] == [[2]]
    assert [numbers(frame) for frame in frames if isinstance(frame, Publish)] == [[3]]


def test_an_ack_that_publishes_is_repeated_word_for_word_after_a_cut() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a")
    world.settle(world.get(state), step=step(("bills", "x")))
    first = world.take(Ack)[0].publish
    world.cut()
    world.wall_ms += 1_000
    world.open()
    again = world.take(Ack)[0].publish
    assert first is not None and again is not None
    assert [bytes(each) for each in first[0].messages] == [bytes(each) for each in again[0].messages]


def test_a_lost_lease_publishes_nothing_and_gives_the_number_back() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a")
    world.settle(world.get(state), step=step(("bills", "x")))
    world.answer(world.take(Ack)[0], ok=False)
    error = world.settled["ack a"]
    assert isinstance(error, LeaseLost) and error.ids == ("a",)
    assert world.numbering.next_numbers == {"bills": 1}


def test_a_lost_lease_after_a_repeat_keeps_the_number_used() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a")
    world.settle(world.get(state), step=step(("bills", "x")))
    world.take(Ack)
    world.cut()
    world.open()
    world.answer(world.take(Ack)[0], ok=False)
    assert world.numbering.next_numbers == {"bills": 2}, "the first ack may have been done"


def test_a_step_of_several_receipts_that_failed_leaves_their_messages_in_hand() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a", "b")
    one = step(("bills", "x"))
    held = [world.get(state), world.get(state)]
    for delivery in held:
        world.settle(delivery, step=one)
    world.answer(world.take(Ack)[0], ok=False)
    error = world.settled["ack a"]
    assert isinstance(error, LeaseLost) and error.ids == ("a", "b")
    assert not any(delivery.is_lost for delivery in held), "one of the two leases holds, and nobody knows which"
    world.settle(held[0])
    world.answer(world.take(Ack)[0])
    assert world.settled["ack a"] is None
