from __future__ import annotations

import math

import pytest

from push.client.core import Subscribed
from push.client.core.effects import Phase
from push.client.errors import Forbidden, NotFound, Problem, ProtocolFault, Replaced, TooLarge, Unauthenticated
from push.client.frames import (
    Ack,
    Begin,
    Bye,
    Credit,
    Deliver,
    Ended,
    Error,
    Extend,
    GapFrame,
    Nack,
    Ok,
    Pong,
    Publish,
    ResetFrame,
    ServerPing,
    Subscribe,
    UnreadMessage,
    Unsubscribe,
    WireMessage,
)
from push.client.model import Connected, Disconnected, Gap, Postponed, Reset, Stopped, Unreadable
from tests.unit.push.client.world import World

# Connecting and staying connected


def test_the_first_frame_is_connect_and_nothing_goes_before_its_answer() -> None:
    world = World()
    world.publish("a")
    connect = world.core.connect("secret", world.now)
    assert (connect.token, connect.resume) == ("secret", None)
    assert world.take_all() == []


def test_a_reconnect_asks_for_the_session_it_had() -> None:
    world = World()
    world.open("s1")
    world.cut()
    connect = world.core.connect("secret", world.now)
    assert connect.resume is not None and connect.resume.session == "s1"


def test_a_ping_is_answered() -> None:
    world = World()
    world.open()
    world.feed(ServerPing())
    assert world.take(Pong) == [Pong()]


def test_silence_beyond_two_pings_and_grace_is_death() -> None:
    world = World()
    world.open(ping_ms=1_000)
    world.pass_time(6.9)
    assert not world.core.is_dead(world.now)
    world.feed(ServerPing())
    world.pass_time(6.9)
    assert not world.core.is_dead(world.now)
    assert world.core.next_wakeup(world.now) == pytest.approx(world.now + 0.1)
    world.pass_time(0.2)
    assert world.core.is_dead(world.now)


def test_a_server_that_does_not_answer_connect_is_dead_too() -> None:
    world = World(open_timeout_s=3)
    world.core.connect("secret", world.now)
    world.pass_time(3)
    assert world.core.is_dead(world.now)


# Losing the connection


@pytest.mark.parametrize("code", [None, 1001, 1006, 1011, 1012, 4000, 4001, 4002, 4003, 4008, 4401, 4499])
def test_these_closes_are_followed_by_a_reconnect(code: int | None) -> None:
    world = World()
    world.open()
    assert world.cut(code) < math.inf
    assert world.core.phase is Phase.OFFLINE


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (4500, ProtocolFault),
        (4501, Unauthenticated),
        (4503, Forbidden),
        (4504, NotFound),
        (4509, Replaced),
        (4513, TooLarge),
        (1009, TooLarge),
    ],
)
def test_these_closes_end_the_session_with_a_typed_error_for_every_waiter(code: int, kind: type[Exception]) -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a")
    world.settle(world.get(state))
    world.publish("m")
    assert world.cut(code) == math.inf
    assert isinstance(world.results["m"], kind)
    assert isinstance(world.settled["ack a"], kind)
    assert isinstance(state.ended, kind)
    assert isinstance(world.events[-1], Stopped)
    with pytest.raises(kind):
        world.publish("n")
    with pytest.raises(kind):
        world.core.subscribe(Subscribed(queue="q", credit=1))


def test_the_error_told_before_the_close_is_the_one_raised() -> None:
    world = World()
    world.core.connect("bad", world.now)
    world.feed(Error(problem=Problem(code="unauthenticated", status=401, detail="no such key")))
    world.cut(4501)
    assert isinstance(world.core.error, Unauthenticated)
    assert world.core.error.detail == "no such key"


def test_the_wait_before_a_reconnect_doubles_up_to_its_cap() -> None:
    world = World(chance=1.0)
    waits = [world.cut() for _ in range(8)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 20, 20]


def test_the_wait_is_any_part_of_the_longest() -> None:
    assert World(chance=0.0).cut() == 0
    assert World(chance=0.5).cut() == 0.25


def test_a_connection_that_lasted_starts_the_waits_anew() -> None:
    world = World()
    for _ in range(5):
        world.cut()
    world.open()
    world.now += 10
    assert world.cut() == 0.5


def test_a_connection_that_did_not_last_goes_on_with_them() -> None:
    world = World()
    for _ in range(3):
        world.cut()
    world.open()
    world.now += 1
    assert world.cut() == 4


def test_the_servers_goodbye_comes_before_the_jitter() -> None:
    world = World()
    world.open()
    world.feed(Bye(code=4000, reason="drain", retry_ms=60_000))
    assert world.cut(4000) == 60.5
    assert world.events[-1] == Disconnected("drain", 60.5)


def test_a_server_that_says_goodbye_and_stays_is_cut() -> None:
    world = World(drain_timeout_s=15)
    world.open()
    world.feed(Bye(code=4000))
    world.feed(ServerPing())
    world.pass_time(15)
    assert world.core.is_dead(world.now)


# Subscriptions across connections


def test_a_subscription_is_reopened_from_its_last_cursor() -> None:
    world = World()
    world.open()
    world.subscribe(start="earliest")
    world.deliver("a", cursor="c1", with_receipt=False)
    world.deliver("b", cursor="c2", with_receipt=False)
    world.cut()
    world.open("s2")
    assert world.take(Subscribe)[0].start == {"cursor": "c2"}


def test_a_reset_moves_the_cursor_and_is_told() -> None:
    world = World()
    world.open()
    world.subscribe()
    world.deliver("a", cursor="c1", with_receipt=False)
    world.feed(ResetFrame(sub=1, cursor="c9"))
    world.cut()
    world.open("s2")
    assert Reset("q", "c9") in world.events
    assert world.take(Subscribe)[0].start == {"cursor": "c9"}


def test_a_gap_is_told() -> None:
    world = World()
    world.open()
    world.subscribe()
    world.feed(GapFrame(sub=1, start=4, end=9))
    assert world.events[-1] == Gap("q", 4, 9)


def test_a_cut_before_the_first_message_of_latest_is_told_as_a_reset() -> None:
    world = World()
    world.open()
    world.subscribe(start="latest")
    world.cut()
    world.open("s2")
    assert Reset("q", None) in world.events


def test_the_cursor_of_the_subscribe_answer_is_where_latest_goes_on() -> None:
    world = World()
    world.open()
    world.core.subscribe(Subscribed(queue="q", credit=5, start="latest"))
    world.feed(Ok(id=world.take(Subscribe)[0].id, sub=1, cursor="c0"))
    world.cut()
    world.open("s2")
    assert world.take(Subscribe)[0].start == {"cursor": "c0"}
    assert not [event for event in world.events if isinstance(event, Reset)]


def test_a_resumed_session_keeps_the_unread_messages() -> None:
    world = World()
    world.open("s1")
    state = world.subscribe()
    world.deliver("a")
    world.cut()
    world.open("s1")
    assert world.events[-1] == Connected("s1", True)
    assert world.get(state).message.id == "a"


def test_a_new_session_drops_the_unread_ones_because_they_come_again() -> None:
    world = World()
    world.open("s1")
    state = world.subscribe()
    world.deliver("a")
    world.cut()
    world.open("s2")
    assert world.events[-1] == Connected("s2", False)
    assert state.take(world.now) is None


def test_a_new_session_extends_at_once_what_the_user_holds() -> None:
    """If only the gateway of the old session is gone, the lease goes on."""
    world = World()
    world.open("s1")
    state = world.subscribe(visibility_timeout_ms=30_000)
    world.deliver("a", "b")
    delivery = world.get(state)
    world.cut()
    world.open("s2")
    world.pass_time(0)
    [frame] = world.take(Extend)
    assert list(frame.receipts) == ["r-a"]
    world.answer(frame)
    world.pass_time(15)
    world.answer(world.take(Extend)[0], ok=False)
    assert delivery.is_lost, "from then on it is as with any lease"


def test_a_lease_that_a_new_session_cannot_extend_is_left_to_its_ack() -> None:
    world = World()
    world.open("s1")
    state = world.subscribe(visibility_timeout_ms=30_000)
    world.deliver("a")
    delivery = world.get(state)
    world.cut()
    world.open("s2")
    world.pass_time(0)
    world.answer(world.take(Extend)[0], ok=False)
    assert not delivery.is_lost and not world.lost
    world.settle(delivery)
    world.answer(world.take(Ack)[0])
    assert world.settled == {"ack a": None}


def test_a_new_session_keeps_unread_messages_of_a_stream() -> None:
    world = World()
    world.open("s1")
    state = world.subscribe()
    world.deliver("a", cursor="c1", with_receipt=False)
    world.cut()
    world.open("s2")
    assert world.take(Subscribe)[0].credit == 9
    assert world.get(state).message.id == "a"


def test_credit_of_messages_without_receipts_goes_back_as_they_are_read() -> None:
    world = World()
    world.open()
    state = world.subscribe(credit=4)
    world.deliver("a", "b", "c", cursor="c3", with_receipt=False)
    world.get(state)
    assert world.take(Credit) == []
    world.get(state)
    assert world.take(Credit) == [Credit(sub=1, n=2)]
    world.get(state)
    assert world.take(Credit) == []


def test_credit_of_leased_messages_is_left_to_their_acks() -> None:
    world = World()
    world.open()
    state = world.subscribe(credit=1)
    world.deliver("a")
    world.get(state)
    assert world.take(Credit) == []


def test_automatic_acks_of_a_queue_give_no_credit_back_because_the_server_counts_by_itself() -> None:
    world = World()
    world.open()
    state = world.subscribe(credit=1, ack="auto")
    world.deliver("a", "b", with_receipt=False)
    world.get(state)
    assert world.take_all() == []


def test_a_reader_far_behind_on_automatic_acks_unsubscribes_until_it_has_caught_up() -> None:
    world = World(auto_inbox_factor=3)
    world.open()
    state = world.subscribe(credit=1, ack="auto")
    world.deliver("a", "b", "c", "d", with_receipt=False)
    pause = world.take(Unsubscribe)
    assert [frame.sub for frame in pause] == [1]
    world.deliver("e", with_receipt=False)
    world.feed(Ok(id=pause[0].id))
    assert [world.get(state).message.id for _ in range(3)] == ["a", "b", "c"]
    assert not state.needs_step and world.take_all() == []
    world.get(state)
    assert state.needs_step
    world.accept(2)
    assert state.sub == 2 and world.get(state).message.id == "e"


def test_a_refused_subscription_ends_with_the_servers_error() -> None:
    world = World()
    world.open()
    state = world.core.subscribe(Subscribed(queue="q", credit=1))
    world.feed(Error(id=world.take(Subscribe)[0].id, problem=Problem(code="queue-not-found", status=404)))
    assert isinstance(state.ended, NotFound)
    assert world.take(Subscribe) == []


def test_a_subscription_refused_for_the_moment_is_asked_for_again() -> None:
    world = World()
    world.open()
    state = world.core.subscribe(Subscribed(queue="q", credit=1))
    problem = Problem(code="unavailable", status=503, retry_after_ms=3_000)
    world.feed(Error(id=world.take(Subscribe)[0].id, problem=problem))
    assert world.take(Subscribe) == []
    assert world.core.next_wakeup(world.now) == pytest.approx(world.now + 3.5)
    assert world.events[-1] == Postponed("q", problem, 3.5)
    world.pass_time(3.5)
    world.accept()
    assert state.sub == 1


def test_a_subscription_that_the_server_ended_raises_after_the_messages_it_brought() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a")
    world.feed(Ended(sub=1, problem=Problem(code="queue-not-found", status=404)))
    assert world.get(state).message.id == "a"
    assert isinstance(state.ended, NotFound)


def test_unsubscribing_is_told_to_the_server_once() -> None:
    world = World()
    world.open()
    state = world.subscribe(sub=3)
    world.core.unsubscribe(state)
    world.core.unsubscribe(state)
    assert [frame.sub for frame in world.take(Unsubscribe)] == [3]
    world.feed(Deliver(sub=3, messages=[WireMessage(id="late", receipt="r")]))
    assert state.take(world.now) is None


def test_a_subscription_left_before_its_answer_is_unsubscribed_when_it_comes() -> None:
    world = World()
    world.open()
    state = world.core.subscribe(Subscribed(queue="q", credit=1))
    frame = world.take(Subscribe)[0]
    world.core.unsubscribe(state)
    world.feed(Ok(id=frame.id, sub=5))
    assert [f.sub for f in world.take(Unsubscribe)] == [5]


def test_two_subscriptions_get_their_own_messages() -> None:
    world = World()
    world.open()
    one, two = world.subscribe(1, queue="one"), world.subscribe(2, queue="two")
    world.deliver("b", sub=2)
    world.deliver("a", sub=1)
    assert (world.get(one).message.id, world.get(two).message.id) == ("a", "b")


def test_publishes_wait_for_the_connection_and_then_go() -> None:
    world = World()
    world.publish("a")
    world.open()
    world.confirm(world.take(Publish)[0])
    assert world.core.is_idle


def test_the_servers_goodbye_widens_one_wait_only() -> None:
    world = World()
    world.open()
    world.feed(Bye(code=4000, reason="drain", retry_ms=60_000))
    assert [world.cut(4000), world.cut()] == [60.5, 1]


# Messages that cannot be decoded


def test_a_message_that_cannot_be_decoded_is_given_back_with_the_reason_and_told() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    unread = UnreadMessage("b", receipt="r-b", why="Number out of range" + "!" * 500)
    world.feed(Deliver(sub=1, messages=[WireMessage(id="a", receipt="r-a")], unread=[unread]))
    (nack,) = world.take(Nack)
    assert (nack.receipts, nack.delay_ms) == (["r-b"], None)
    assert nack.reason is not None and len(nack.reason) == 256
    assert nack.reason.startswith("the consumer cannot decode it: Number out of range")
    (event,) = [event for event in world.events if isinstance(event, Unreadable)]
    assert (event.queue, event.id) == ("q", "b")
    assert world.get(state).message.id == "a" and state.take(world.now) is None
    world.answer(nack, ok=False)  # somebody else has it meanwhile: nobody here has to know
    assert world.lost == [] and world.settled == {}


def test_of_a_stream_a_message_that_cannot_be_decoded_gives_its_credit_back() -> None:
    world = World()
    world.open()
    world.subscribe(credit=2)
    world.feed(Deliver(sub=1, messages=[], cursor="c1", unread=[UnreadMessage("b"), UnreadMessage("c")]))
    frames = world.take_all()
    assert [frame for frame in frames if isinstance(frame, Nack)] == []
    assert [(frame.sub, frame.n) for frame in frames if isinstance(frame, Credit)] == [(1, 2)]
    assert [event.id for event in world.events if isinstance(event, Unreadable)] == ["b", "c"]


# What a handler began with


def test_what_the_user_has_and_has_not_settled_is_told_as_begun() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a", "b", "c")
    world.settle(world.get(state))
    world.get(state)
    assert world.take(Begin) == [Begin(sub=1, receipts=["r-b"])], "the ack of `a` says it, and nobody has `c`"
    assert world.take(Begin) == [], "once"


def test_what_was_begun_is_told_before_the_subscription_ends() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a", "b")
    world.get(state)
    world.core.unsubscribe(state)
    told = [type(frame) for frame in world.take_all()]
    assert told == [Begin, Unsubscribe]


def test_what_was_begun_during_a_cut_is_told_to_the_next_connection() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a")
    world.cut()
    world.get(state)
    world.open()
    world.accept(sub=4)
    assert world.take(Begin) == [Begin(sub=4, receipts=["r-a"])]


def test_with_automatic_acks_there_is_nothing_to_begin() -> None:
    world = World()
    world.open()
    state = world.core.subscribe(Subscribed(queue="q", credit=10, ack="auto"))
    assert world.accept().attempts is None
    world.deliver("a")
    world.get(state)
    assert world.take(Begin) == []


def test_what_waited_for_a_handler_that_hangs_goes_back_untried() -> None:
    world = World()
    world.open()
    state = world.subscribe(handler_limit_s=60.0, visibility_timeout_ms=10_000)
    world.deliver("a", "b")
    world.get(state)
    given_back: list[Nack] = []
    for _ in range(14):
        world.pass_time(5)
        given_back += world.take(Nack)
    assert [(list(frame.receipts), frame.tried) for frame in given_back] == [(["r-b"], False)]
    assert state.take(world.now) is None
