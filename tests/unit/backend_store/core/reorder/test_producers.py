"""A producer's numbers: what is next, held, missing or repeated, and what is kept of it."""

from __future__ import annotations

import msgspec
import pytest

from backend_store.core.limits import (
    GAPS_PER_PRODUCER_MAX,
    PRODUCERS_PER_PARTITION_MAX,
    RECENT_RUNS_PER_PRODUCER_MAX,
)
from backend_store.core.reorder.producers import Producer, Producers
from backend_store.core.reorder.records import (
    ProducerAdvanced,
    ProducerForgotten,
    WatermarkRaised,
    decode_producer,
    decode_watermark,
    encode_producer,
    encode_watermark,
)
from backend_store.model import Stamp


def holding(*numbers: int, last: int = 0) -> Producer:
    producer = Producer("p", 1, last)
    for number in numbers:
        producer.hold(number, number * 10)
    return producer


def test_what_follows_without_a_gap_is_let_go() -> None:
    producer = holding(4, 2, 3, 6, last=1)
    assert producer.advance(1) == ([20, 30, 40], 0)
    assert (producer.last, producer.held) == (4, {6: 60})


def test_gaps_before_a_number_are_given_up_and_no_others() -> None:
    producer = holding(3, 5, 6, 9)
    assert producer.advance(5) == ([30, 50, 60], 2)
    assert producer.record().gaps == ((1, 2), (4, 4))
    assert (producer.last, producer.held) == (6, {9: 90})


def test_a_missing_number_is_missing_until_it_comes() -> None:
    producer = holding(9)
    producer.advance(9)
    producer.fill(4)
    producer.fill(1)
    producer.fill(8)
    assert producer.record().gaps == ((2, 3), (5, 7))
    assert [n for n in range(12) if producer.is_missing(n)] == [2, 3, 5, 6, 7]


def test_too_many_gaps_become_fewer_and_lose_no_missing_number() -> None:
    numbers = range(2, 2 * GAPS_PER_PRODUCER_MAX + 12, 2)
    producer = holding(*numbers)
    offsets, given_up = producer.advance(numbers[-1])
    assert len(offsets) == given_up == len(numbers)
    gaps = producer.record().gaps
    assert len(gaps) == GAPS_PER_PRODUCER_MAX and gaps[0] == (1, 11) and gaps[1] == (13, 13)
    assert all(producer.is_missing(number - 1) for number in numbers)
    producer.fill(5)
    assert len(producer.record().gaps) == GAPS_PER_PRODUCER_MAX and producer.is_missing(13)


def test_the_offset_of_a_recent_message_is_known_and_that_of_an_old_one_is_not() -> None:
    producer = Producer("p", 1)
    for number in range(1, RECENT_RUNS_PER_PRODUCER_MAX + 2):
        producer.note(number, number * 10)
    assert (producer.original(1), producer.original(2)) == (-1, 20)


def test_a_run_of_neighbours_takes_one_place() -> None:
    producer = Producer("p", 1)
    for number in range(1, 1001):
        producer.note(number, 7_000 + number)
    assert producer.record().recent == ((1, 7_001, 1000),)
    assert [producer.original(n) for n in (1, 500, 1000, 1001)] == [7_001, 7_500, 8_000, -1]


def test_a_held_message_is_known_by_its_offset() -> None:
    assert holding(5).original(5) == 50


def test_a_number_that_came_twice_is_known_by_its_latest_place() -> None:
    producer = Producer("p", 1)
    for number, offset in ((5, 10), (9, 20), (5, 30)):
        producer.note(number, offset)
    assert producer.original(5) == 30


def test_the_longest_idle_producer_with_nothing_held_is_named_first() -> None:
    producers = Producers()
    for name, time_ms in (("a", 1), ("b", 2), ("c", 3), ("d", 9)):
        producers.add(Producer(name, time_ms))
    waits = producers.get("b")
    assert waits is not None
    waits.hold(7, 70)
    assert list(producers.idle(before_ms=9, busy=())) == ["a", "c"]
    assert list(producers.idle(before_ms=9, busy=("a",))) == ["c"]
    heard = producers.get("a")
    assert heard is not None
    producers.heard(heard, 10)
    assert list(producers.idle(before_ms=9, busy=())) == ["c"]
    assert producers.longest_idle_ms(default=0) == 2


def test_there_is_room_for_so_many_producers() -> None:
    producers = Producers()
    for number in range(PRODUCERS_PER_PARTITION_MAX - 1):
        producers.add(Producer(str(number), 1))
    assert not producers.is_full(0) and producers.is_full(1)
    producers.add(Producer("last", 1))
    assert producers.is_full(0) and not producers.is_full(-1)


def test_a_producer_that_comes_back_in_the_cycle_that_forgot_it_is_stored_anew() -> None:
    producers = Producers()
    for name in ("a", "b"):
        producers.add(Producer(name, 1, last=5))
    producers.forget("a")
    producers.forget("b")
    back = Producer("a", 2)
    producers.add(back)
    producers.heard(back, 3)
    assert producers.records() == [ProducerForgotten("b"), ProducerAdvanced("a", 0, 3, (), ())]
    assert producers.records() == []


def test_a_producer_that_was_heard_and_then_forgotten_leaves_no_row() -> None:
    producers = Producers()
    producers.add(Producer("a", 1))
    heard = producers.get("a")
    assert heard is not None
    producers.heard(heard, 2)
    producers.forget("a")
    assert producers.records() == [ProducerForgotten("a")]


# ----------------------------------------------------------------------------------------------------------- rows


def test_a_producers_row_reads_back_as_the_state_it_was() -> None:
    producer = holding(3, 9, 10, last=1)
    producer.note(3, 77)
    producer.note(9, 10**12)
    producer.advance(9)
    producer.time_ms = 1_700_000_000_123
    record = producer.record()
    assert decode_producer("p", encode_producer(record)) == record
    again = Producer.restored(record)
    assert again.record() == record
    assert again.is_missing(2) and again.original(9) == 10**12


def test_a_watermark_reads_back() -> None:
    record = WatermarkRaised(Stamp(1_786_106_096_789_012, "zürich", 2**53), 1_786_106_097_790)
    assert decode_watermark(encode_watermark(record)) == record


def test_a_row_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 2"):
        decode_producer("p", msgspec.msgpack.encode([2, 1, 1, [], []]))
    with pytest.raises(ValueError, match="version 2"):
        decode_watermark(msgspec.msgpack.encode([2, 1, 1, "p", 1]))


def test_what_is_no_row_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_producer("p", b"\xc1")
    with pytest.raises(msgspec.DecodeError):
        decode_watermark(encode_producer(Producer("p", 1).record()))
