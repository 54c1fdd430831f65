from __future__ import annotations

from push.client.errors import ApiError, LeaseLost, OutcomeUnknown, Problem
from push.client.frames import Ack, Error, Extend, Nack, Unsubscribe
from push.client.model import Lost
from tests.unit.push.client.world import World


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
        (["r-a", "r-c"], 0, None),
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
