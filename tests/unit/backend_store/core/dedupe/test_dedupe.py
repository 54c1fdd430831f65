"""What is known of ids in memory: the dict of the newest, and the filter for all others."""

from array import array
from hashlib import blake2b

from backend_store.core.dedupe.dedupe import FALSE_POSITIVE_RATE, Bounds, Filter, Recent
from backend_store.core.dedupe.id_runs import RECORD, Known

SMALL = Bounds(generation_ids_min=100, generation_ids_grown=1000)


def hash_of(number: int) -> bytes:
    return blake2b(b"%d" % number, digest_size=16).digest()


def hashes(numbers: range) -> list[bytes]:
    return [hash_of(number) for number in numbers]


def recent_of(*arrivals: tuple[range, int]) -> Recent:
    """Ids of these numbers, which are their offsets too, at these times."""
    recent = Recent()
    for numbers, time_ms in arrivals:
        recent.add(hashes(numbers), array("Q", numbers), time_ms)
    return recent


# ---------------------------------------------------------------------------------------------------------- the dict


def test_an_id_is_known_with_its_offset_and_its_time() -> None:
    recent = recent_of((range(3), 10), (range(3, 5), 20))
    assert recent.find(hash_of(1)) == Known(offset=1, time_ms=10)
    assert recent.find(hash_of(4)) == Known(offset=4, time_ms=20)
    assert recent.find(hash_of(5)) is None
    assert (len(recent), recent.oldest_ms, recent.newest_ms) == (5, 10, 20)


def test_only_known_ids_are_among_many() -> None:
    recent = recent_of((range(10), 1))
    assert not recent.among([hash_of(10), None])
    assert set(recent.among([hash_of(10), None, hash_of(3)])) == {hash_of(3)}


def test_an_id_that_came_again_is_known_by_its_later_message() -> None:
    recent = recent_of((range(2), 10))
    recent.add([hash_of(0)], array("Q", [70]), 500)
    assert recent.find(hash_of(0)) == Known(offset=70, time_ms=500)
    recent.forget(2)
    assert recent.find(hash_of(0)) == Known(offset=70, time_ms=500)
    assert recent.find(hash_of(1)) is None
    assert len(recent) == 1


def test_what_is_left_is_found_after_the_oldest_were_forgotten() -> None:
    recent = recent_of((range(4), 10), (range(4, 9), 20))
    recent.forget(3)
    recent.add(hashes(range(9, 12)), array("Q", range(9, 12)), 30)
    assert [recent.find(hash_of(n)) for n in (2, 3, 8, 11)] == [None, Known(3, 10), Known(8, 20), Known(11, 30)]
    assert recent.time_of(0) == 10


def test_ids_after_the_horizon_are_live() -> None:
    recent = recent_of((range(4), 10), (range(4, 9), 20))
    assert [recent.live(horizon) for horizon in (9, 10, 19, 20)] == [9, 5, 5, 0]


def test_a_time_before_the_last_counts_as_the_last() -> None:
    recent = recent_of((range(1), 100), (range(1, 2), 90))
    assert recent.find(hash_of(1)) == Known(offset=1, time_ms=100)


def test_the_dict_gives_all_its_ids_as_records() -> None:
    recent = recent_of((range(2), 10), (range(2, 3), 20))
    records = [RECORD.pack(hash_of(n), ~t, n) for n, t in ((0, 10), (1, 10), (2, 20))]
    assert list(recent.records(2)) == [records[:2], records[2:]]


# -------------------------------------------------------------------------------------------------------- the filter


def filled(*stretches: tuple[range, int]) -> Filter:
    filter_ = Filter(SMALL)
    stored = 0
    for numbers, newest_ms in stretches:
        stored += len(numbers)
        filter_.make_room(len(numbers), stored=stored, newest_ms=newest_ms)
        filter_.add(hashes(numbers))
    return filter_


def test_the_filter_never_says_new_of_an_id_that_was_here() -> None:
    filter_ = filled((range(90), 10), (range(90, 900), 20), (range(900, 5000), 30))
    assert filter_.maybe(hashes(range(5000))) == set(hashes(range(5000)))


def test_the_filter_says_new_of_almost_all_others() -> None:
    filter_ = filled((range(90), 10), (range(90, 900), 20), (range(900, 20_000), 30))
    wrong = len(filter_.maybe(hashes(range(20_000, 70_000))))
    assert wrong <= 50_000 * FALSE_POSITIVE_RATE * 3 * 3


def test_an_empty_filter_suspects_nobody() -> None:
    assert Filter(SMALL).maybe([hash_of(1), None]) == set()


def test_a_generation_leaves_when_its_newest_id_is_out_of_the_window() -> None:
    filter_ = filled((range(100), 10), (range(100, 1000), 20))
    filter_.expire(9)
    assert filter_.maybe(hashes(range(1000))) == set(hashes(range(1000)))
    filter_.expire(10)
    assert not filter_.maybe(hashes(range(100))) & set(hashes(range(90)))
    assert filter_.maybe(hashes(range(100, 1000))) == set(hashes(range(100, 1000)))
    filter_.expire(20)
    assert filter_.maybe(hashes(range(1000))) == set()


def test_a_growing_filter_has_few_generations_and_a_steady_one_two() -> None:
    filter_ = Filter(Bounds())
    step, stored, most = 16_384, 0, 0
    for number in range(120):
        stored += step
        filter_.make_room(step, stored=stored, newest_ms=number)
    assert len(filter_._generations) <= 2
    for number in range(120, 1000):
        filter_.make_room(step, stored=stored, newest_ms=number)
        filter_.expire(number - 120)
        most = max(most, len(filter_._generations)) if number > 360 else 0
    assert most <= 3
