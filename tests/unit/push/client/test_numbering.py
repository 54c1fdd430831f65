"""Numbers and stamps: which message gets which, and what a refusal, a cut or a repeat does to them."""

from __future__ import annotations

import msgspec
import pytest

from push.client.core.clock import stamp_us
from push.client.errors import ApiError, FieldError, Problem, PushqError
from push.client.frames import Codec, Deliver, Error, Ok, Publish, PublishedItem, WireMessage
from push.client.model import Encoding, Outgoing, Published
from tests.unit.push.client.world import WALL_MS, World, bodies, body_of, fields_of, numbers

FULL = Problem(code="queue-full", status=507)
BUSY = Problem(code="overloaded", status=503, retry_after_ms=100)


def opened(**options: object) -> World:
    world = World(**options)  # type: ignore[arg-type]
    world.open()
    return world


def fault(index: int) -> Problem:
    return Problem(code="invalid-request", status=400, errors=(FieldError(f"/messages/{index}/key", "too long"),))


def one_frame(world: World) -> Publish:
    [frame] = world.take(Publish)
    return frame


def answer(world: World, frame: Publish, *failed: int, problem: Problem = FULL) -> None:
    """Confirm all but some, which have an error of their own."""
    items = [
        PublishedItem(error=problem) if index in failed else PublishedItem(id=body_of(message), seq=index)
        for index, message in enumerate(frame.messages)
    ]
    world.feed(Ok(id=frame.id, messages=items, sequencing="producer"))


# What is numbered


def test_numbers_count_from_one_for_each_queue() -> None:
    world = opened()
    world.publish("a", "b", queue="one")
    world.publish("c", queue="two")
    assert [numbers(frame) for frame in world.take(Publish)] == [[1, 2], [1]]


def test_a_message_carries_its_producer_number_and_stamp() -> None:
    world = opened()
    world.publish("a", "b")
    found = [fields_of(message) for message in one_frame(world).messages]
    assert [(fields["producer"], fields["producer_seq"]) for fields in found] == [("p1", 1), ("p1", 2)]
    assert [stamp_us(fields["timestamp"]) for fields in found] == [WALL_MS * 1000, WALL_MS * 1000 + 1]


def test_stamps_are_taken_when_a_message_first_leaves() -> None:
    world = World()
    world.publish("a")
    world.wall_ms += 9_000
    world.open()
    assert stamp_us(fields_of(one_frame(world).messages[0])["timestamp"]) == (WALL_MS + 9_000) * 1000


def test_a_queue_sequenced_by_arrival_is_numbered_no_more_once_it_has_said_so() -> None:
    world = opened()
    world.publish("a")
    world.confirm(one_frame(world), sequencing="arrival")
    world.publish("b")
    assert fields_of(one_frame(world).messages[0]) == {"body": "b"}


@pytest.mark.parametrize("sequencing", ["producer", "clock", None])
def test_other_queues_and_silent_servers_get_numbers_on_and_on(sequencing: str | None) -> None:
    world = opened()
    world.publish("a")
    world.confirm(one_frame(world), sequencing=sequencing)
    world.publish("b")
    assert numbers(one_frame(world)) == [2]


def test_a_queue_that_becomes_sequenced_goes_on_with_its_numbers() -> None:
    world = opened()
    world.publish("a")
    world.confirm(one_frame(world), sequencing="arrival")
    world.publish("b")
    world.confirm(one_frame(world), sequencing="producer")
    world.publish("c")
    assert numbers(one_frame(world)) == [2]


def test_whoever_wants_numbers_always_gets_them() -> None:
    world = opened(number_always=True)
    world.publish("a")
    world.confirm(one_frame(world), sequencing="arrival")
    world.publish("b")
    assert numbers(one_frame(world)) == [2]


def test_numbers_go_on_from_where_the_program_left_off() -> None:
    world = opened(first_number=42)
    world.publish("a", "b")
    assert numbers(one_frame(world)) == [42, 43]
    assert world.numbering.next_numbers == {"q": 44}


def test_a_message_cancelled_before_it_left_has_no_number() -> None:
    world = opened()
    entry = world.core.publish("q", msgspec.Raw(b"\xc0"), "a", world.now)
    world.core.publisher.give_up("q", entry)
    world.publish("b")
    assert numbers(one_frame(world)) == [1]


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_added_fields_stand_beside_the_messages_own(encoding: Encoding) -> None:
    codec = Codec(encoding)
    message = Outgoing(
        body={"x": None}, id="i", key="k", headers={"a": "b"}, content_type="t", priority=1, delay_ms=2,
        deliver_at="d", ttl_ms=3, reply_to="r", correlation_id="c",
    )  # fmt: skip
    added = codec.add_fields(codec.message(message), {"producer": "p", "producer_seq": 7, "timestamp": "t"})
    decode = msgspec.json.decode if encoding == "json" else msgspec.msgpack.decode
    assert decode(added) == msgspec.to_builtins(message) | {"producer": "p", "producer_seq": 7, "timestamp": "t"}


# Repeats


def test_after_a_cut_a_message_keeps_its_number_and_stamp() -> None:
    world = opened()
    world.publish("a", "b")
    first = one_frame(world)
    world.cut()
    world.wall_ms += 5_000
    world.open("s2")
    world.publish("c")
    again = one_frame(world)
    assert [bytes(message) for message in again.messages[:2]] == [bytes(message) for message in first.messages]
    assert numbers(again) == [1, 2, 3]


def test_a_message_refused_for_the_moment_keeps_its_number() -> None:
    world = opened()
    world.publish("a")
    world.feed(Error(id=one_frame(world).id, problem=BUSY))
    world.publish("b")
    world.pass_time(0.1)
    frame = one_frame(world)
    assert (bodies(frame), numbers(frame)) == (["a", "b"], [1, 2])


def test_a_repeat_that_the_server_knew_by_its_number_is_a_duplicate_though_its_place_is_forgotten() -> None:
    world = opened()
    world.publish("a")
    item = PublishedItem(id=None, seq=None, duplicate=True)
    world.feed(Ok(id=one_frame(world).id, messages=[item], sequencing="producer"))
    assert world.results == {"a": Published("", None, 0, True)}


# Refusals


def test_the_number_of_a_refused_message_goes_to_the_next() -> None:
    world = opened()
    world.publish("a")
    world.feed(Error(id=one_frame(world).id, problem=fault(0)))
    assert isinstance(world.results["a"], ApiError)
    world.publish("b")
    assert numbers(one_frame(world)) == [1]


def test_messages_refused_together_with_a_bad_one_close_the_gap_it_leaves() -> None:
    world = opened()
    world.publish("a", "b", "c")
    world.feed(Error(id=one_frame(world).id, problem=fault(1)))
    frame = one_frame(world)
    assert (bodies(frame), numbers(frame)) == (["a", "c"], [1, 2])
    times = [fields_of(message)["timestamp"] for message in frame.messages]
    assert times == sorted(times) and len(set(times)) == 2


def test_a_gap_with_later_numbers_out_stays_one() -> None:
    world = opened(publish_frame_messages_max=2)
    world.publish("a", "b", "c")
    first, second = world.take(Publish)
    world.feed(Error(id=first.id, problem=fault(0)))
    assert numbers(one_frame(world)) == [2], "3 may be stored: b must not come behind it"
    world.confirm(second, sequencing="producer")
    world.publish("d")
    assert numbers(one_frame(world)) == [4]


def test_a_gap_is_closed_when_the_later_ones_are_refused_as_well() -> None:
    world = opened(publish_frame_messages_max=1)
    world.publish("a", "b")
    first, second = world.take(Publish)
    world.feed(Error(id=first.id, problem=fault(0)), Error(id=second.id, problem=fault(0)))
    world.publish("c")
    assert numbers(one_frame(world)) == [1]


def test_an_error_of_the_last_messages_of_a_batch_gives_their_numbers_back() -> None:
    world = opened()
    world.publish("a", "b", "c")
    answer(world, one_frame(world), 1, 2)
    world.publish("d")
    assert numbers(one_frame(world)) == [2]


def test_an_error_in_the_middle_of_a_batch_leaves_a_gap() -> None:
    world = opened()
    world.publish("a", "b", "c")
    answer(world, one_frame(world), 1)
    world.publish("d")
    assert numbers(one_frame(world)) == [4]


def test_a_message_that_goes_again_after_the_one_before_it_failed_takes_its_number() -> None:
    world = opened()
    world.publish("a", "b")
    frame = one_frame(world)
    items = [PublishedItem(error=FULL), PublishedItem(error=BUSY)]
    world.feed(Ok(id=frame.id, messages=items, sequencing="producer"))
    world.pass_time(0.1)
    again = one_frame(world)
    assert (bodies(again), numbers(again)) == (["b"], [1])


def test_what_may_have_been_stored_keeps_its_number_though_a_repeat_is_refused() -> None:
    world = opened()
    world.publish("a")
    one_frame(world)
    world.cut()
    world.open("s2")
    world.feed(Error(id=one_frame(world).id, problem=FULL))
    assert isinstance(world.results["a"], ApiError)
    world.publish("b")
    assert numbers(one_frame(world)) == [2], "the server may have a as 1 from before the cut"


def test_an_outcome_that_the_server_does_not_know_keeps_the_number_used() -> None:
    world = opened(publish_retries_max=0)
    world.publish("a")
    world.feed(Error(id=one_frame(world).id, problem=Problem(code="outcome-unknown", status=504)))
    world.publish("b")
    world.pass_time(1)
    assert numbers(one_frame(world)) == [2]


def test_a_message_given_up_after_refusals_gives_its_number_back() -> None:
    world = opened(publish_timeout_s=5)
    world.publish("a")
    world.feed(Error(id=one_frame(world).id, problem=msgspec.structs.replace(BUSY, retry_after_ms=60_000)))
    world.pass_time(5)
    assert isinstance(world.results["a"], ApiError)
    world.publish("b")
    world.pass_time(60)
    assert world.numbering.next_numbers == {"q": 1}


# Servers and queues


def test_a_server_older_than_the_numbers_gets_the_messages_bare() -> None:
    world = opened()
    world.publish("a", "b")
    errors = tuple(FieldError(f"/messages/{n}/{name}", "unknown") for n in (0, 1) for name in ("producer", "timestamp"))
    world.feed(Error(id=one_frame(world).id, problem=Problem(code="invalid-request", status=400, errors=errors)))
    assert not world.results
    frame = one_frame(world)
    assert [fields_of(message) for message in frame.messages] == [{"body": "a"}, {"body": "b"}]


def test_a_refused_stamp_is_an_error_on_a_server_that_numbers() -> None:
    world = opened()
    world.publish("a")
    world.confirm(one_frame(world), sequencing="clock")
    world.publish("b")
    errors = (FieldError("/messages/0/producer", "no"),)
    world.feed(Error(id=one_frame(world).id, problem=Problem(code="invalid-request", status=400, errors=errors)))
    assert isinstance(world.results["b"], ApiError)


def test_queues_by_arrival_make_room_for_others_and_numbered_ones_never_do() -> None:
    world = opened(publish_queues_max=2)
    for queue, sequencing in (("one", "arrival"), ("two", "producer"), ("three", "producer")):
        world.publish(queue, queue=queue)
        world.confirm(one_frame(world), sequencing=sequencing)
    assert world.numbering.next_numbers == {"two": 2, "three": 2}
    with pytest.raises(PushqError, match="2 queues"):
        world.publish("four", queue="four")


def test_what_is_published_because_of_a_message_is_stamped_after_it() -> None:
    world = opened()
    world.subscribe()
    ahead = WireMessage(id="m", receipt="r", ordering={"timestamp": "2026-09-21T14:13:20.300005Z", "late": False})
    world.feed(Deliver(sub=1, messages=[ahead]))
    world.publish("a")
    assert fields_of(one_frame(world).messages[0])["timestamp"] == "2026-09-21T14:13:20.300006Z"


@pytest.mark.parametrize("timestamp", [None, "not a time", 7, "2126-01-01T00:00:00.000Z"])
def test_a_stamp_that_is_none_or_lies_far_ahead_moves_nothing(timestamp: object) -> None:
    world = opened()
    world.subscribe()
    message = WireMessage(id="m", receipt="r", ordering={"timestamp": timestamp, "late": True})
    world.feed(Deliver(sub=1, messages=[message]))
    world.publish("a")
    assert fields_of(one_frame(world).messages[0])["timestamp"] == "2026-09-21T14:13:20.000Z"


def test_whether_a_queue_drops_repeats_is_unknown_until_it_says() -> None:
    world = opened()
    assert world.numbering.drops_repeats("q")
    for dedupe, does in (("none", False), ("id", True)):
        world.publish(dedupe)
        world.confirm(one_frame(world), dedupe=dedupe)
        assert world.numbering.drops_repeats("q") is does
