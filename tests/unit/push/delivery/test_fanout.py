"""The fan-out of a stream: every reader gets every message once and in order, however slowly it reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_store.client import Gap, Queue, Start
from backend_store.core.log.chunk import Chunk
from backend_store.model import Offset
from push.delivery import replay_pacer
from push.delivery.fanout import Fanout, websocket_framer
from push.delivery.stream_reader import Others
from push.limits import CATCH_UP_CHUNKS_PER_TURN, CHUNK_CACHE_MAX
from push.session.subscriptions import StreamSubscription
from tests.support.seeds import examples
from tests.support.streams import StreamWorld
from tests.support.world import World, queue_of


class Reader:
    """An outlet that understands what is written to it."""

    def __init__(self) -> None:
        self.writable = True
        self.seqs: list[int] = []
        self.writes: list[bytes] = []
        self.gaps: list[tuple[int, int]] = []

    def write(self, data: bytes) -> None:
        assert self.writable, "nothing is written to a socket that takes nothing"
        self.writes.append(data)
        self.seqs += [int(seq) for seq in data.split()]

    def delivered(self, queue: Queue, messages: int, size: int, batch: object = None) -> None:
        """Counted elsewhere."""

    def tell_gap(self, number: int, gap: Gap) -> None:
        assert gap.partition is None, "there is only one"
        self.gaps.append((gap.first, gap.last))

    def tell_reset(self, number: int, cursor: str) -> None:
        raise AssertionError("the log is the same")

    def flush_soon(self) -> None:
        """A stream writes at once."""

    def tell_lost(self, number: int, receipts: list[str]) -> None:
        """A stream has no leases."""


class Setup:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.world = StreamWorld()
        self.queue: Any = queue_of(self.world)
        self.framed: list[tuple[int, int, int]] = []
        self.delivered = self.unshown = 0
        self.fanout = Fanout(self.queue, self.loop, {"json": self._frame}, self._count, count_unshown=self._unshown)

    @property
    def end(self) -> int:
        return int(self.world.partition.state.end)

    def _frame(self, chunk: Chunk, start: int, stop: int, number: int, others: Others) -> bytes:
        assert others is None, "there are no others"
        self.framed.append((chunk.base, start, stop))
        return b"".join(b"%d " % (chunk.base + n) for n in range(start, stop))

    def _count(self, count: int) -> None:
        self.delivered += count

    def _unshown(self, count: int) -> None:
        self.unshown += count

    def subscribe(
        self, position: int = 0, credit: int | None = None, number: int = 1
    ) -> tuple[StreamSubscription, Reader]:
        reader = Reader()
        sub = StreamSubscription(
            reader,
            number,
            self.queue,
            start=Start({0: position}, "complete", [], "", {}),
            credit=credit,
            key="json",
        )
        self.fanout.start(sub, reader)
        return sub, reader

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.loop.run_until_complete(asyncio.sleep(0))

    def goes_on(self, sub: StreamSubscription, reader: Reader) -> None:
        """The socket takes bytes again."""
        reader.writable = True
        self.fanout.start(sub, reader)


@pytest.fixture(autouse=True)
def _endless_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are counted here, in chunks; `test_pacing` is about their time."""
    monkeypatch.setattr(replay_pacer, "CATCH_UP_SLICE_SECONDS", 1000.0)
    monkeypatch.setattr(replay_pacer, "CATCH_UP_WORK_SECONDS", 1000.0)


@pytest.fixture
def setup() -> Iterator[Setup]:
    setup = Setup()
    yield setup
    setup.loop.close()


class Broken(Reader):
    """One that fails on what is written to it, once it is live."""

    is_whole = True

    def write(self, data: bytes) -> None:
        assert self.is_whole, "a fault of ours"
        super().write(data)


def test_a_live_reader_that_fails_takes_no_message_from_the_others(setup: Setup) -> None:
    """They were passed over it without a word: the next one that they got was of the next commit."""
    readers = [setup.subscribe()[1], Broken(), setup.subscribe()[1]]
    start = Start({0: 0}, "complete", [], "", {})
    sub = StreamSubscription(readers[1], 1, setup.queue, start=start, credit=None, key="json")
    setup.fanout.start(sub, readers[1])
    after, last = Reader(), Reader()
    setup.turn()
    for reader in (after, last):
        other = StreamSubscription(reader, 1, setup.queue, start=start, credit=None, key="json")
        setup.fanout.start(other, reader)
    setup.turn()
    readers[1].is_whole = False  # type: ignore[attr-defined]
    for body in (b"1", b"2"):
        setup.world.stored(body)
    assert [reader.seqs for reader in (readers[0], readers[2], after, last)] == [[0, 1]] * 4
    assert sub.live is False and sub.reading.places == {0: 0}


def test_what_cannot_be_shown_is_not_passed_over(setup: Setup) -> None:
    _, reader = setup.subscribe()
    setup.turn()
    framer, fails = setup.fanout._framers["json"], [True]

    def frame(*args: Any) -> bytes:
        assert not fails, "a fault of ours"
        return framer(*args)

    setup.fanout._framers["json"] = frame
    setup.world.stored(b"1")
    fails.clear()
    setup.world.stored(b"2")
    setup.turn(3)
    assert reader.seqs == [0, 1]


@pytest.mark.parametrize("credit", [None, 10])
@pytest.mark.parametrize("is_live", [False, True])
def test_a_message_that_can_never_be_shown_is_told_as_a_gap(setup: Setup, *, is_live: bool, credit: int | None) -> None:
    """A reader stood before it for good, and nobody heard of it."""
    framer = setup.fanout._framers["json"]

    def frame(chunk: Chunk, start: int, stop: int, number: int, others: Others) -> bytes:
        assert not start <= 2 - chunk.base < stop, "no message can be made of number 2"
        return framer(chunk, start, stop, number, others)

    setup.fanout._framers["json"] = frame
    sub, reader = setup.subscribe(credit=credit)
    _, other = setup.subscribe(number=2)
    if is_live:
        setup.turn(2)
    setup.world.stored(b"1")
    setup.world.stored(b"2", b"3", b"4")
    setup.turn(10)
    assert reader.seqs == other.seqs == [0, 1, 3]
    assert reader.gaps == other.gaps == [(2, 2)]
    setup.world.stored(b"5")
    setup.turn(3)
    assert reader.seqs == [0, 1, 3, 4] and sub.live
    assert setup.unshown == 2 and setup.delivered == 8


def test_a_chunk_that_cannot_be_cut_into_messages_is_one_gap(setup: Setup) -> None:
    setup.world.stored(b"1")
    setup.world.stored_by_another_program(b"2", b"3", b"4")
    setup.world.stored(b"5")
    framer = setup.fanout._framers["json"]

    def frame(chunk: Chunk, *how: Any) -> bytes:
        chunk.cut()
        return framer(chunk, *how)

    setup.fanout._framers["json"] = frame
    _, reader = setup.subscribe(credit=3)
    _, late = setup.subscribe(position=2)
    setup.turn(10)
    assert (reader.seqs, reader.gaps) == ([0, 4], [(1, 3)])
    assert (late.seqs, late.gaps) == ([4], [(2, 3)])
    assert setup.unshown == 5


def test_live_readers_share_one_frame(setup: Setup) -> None:
    readers = [setup.subscribe()[1] for _ in range(5)]
    setup.turn()
    setup.framed.clear()
    setup.world.stored(b"1", b"2")
    assert setup.framed == [(0, 0, 2)]
    assert all(reader.seqs == [0, 1] for reader in readers)
    assert len({id(reader.writes[0]) for reader in readers}) == 1
    assert setup.delivered == 10


def test_a_reader_from_the_beginning_catches_up_and_goes_on_live(setup: Setup) -> None:
    for _ in range(10 * CATCH_UP_CHUNKS_PER_TURN):
        setup.world.stored(b"1", b"2")
    end = setup.end
    sub, reader = setup.subscribe()
    setup.turn()
    assert 0 < len(reader.seqs) < end and not sub.live, "others get their turn in between"
    setup.turn(20)
    assert reader.seqs == list(range(end)) and sub.live
    setup.world.stored(b"3")
    assert reader.seqs == list(range(end + 1))


def test_a_reader_may_begin_in_the_middle_of_a_chunk(setup: Setup) -> None:
    setup.world.stored(*[b"1"] * 10)
    _, reader = setup.subscribe(position=7)
    setup.turn(2)
    assert reader.seqs == [7, 8, 9]


def test_a_slow_reader_leaves_the_live_ones_and_misses_nothing(setup: Setup) -> None:
    sub, slow = setup.subscribe()
    _, fast = setup.subscribe()
    setup.turn()
    setup.world.stored(b"1")
    slow.writable = False
    setup.world.stored(b"2")
    setup.world.stored(b"3")
    assert (slow.seqs, fast.seqs) == ([0], [0, 1, 2])
    setup.goes_on(sub, slow)
    setup.turn(2)
    setup.world.stored(b"4")
    assert slow.seqs == fast.seqs == [0, 1, 2, 3]


def test_what_is_appended_while_a_reader_catches_up_comes_once(setup: Setup) -> None:
    for _ in range(CATCH_UP_CHUNKS_PER_TURN + 1):
        setup.world.stored(b"1")
    _, reader = setup.subscribe()
    for _ in range(6):
        setup.turn()
        setup.world.stored(b"x")
    setup.turn(5)
    assert reader.seqs == list(range(setup.end))


def test_a_reader_by_credit_gets_so_many_and_waits_for_more(setup: Setup) -> None:
    setup.world.stored(*[b"1"] * 10)
    sub, reader = setup.subscribe(credit=3)
    setup.turn(3)
    assert reader.seqs == [0, 1, 2]
    setup.fanout.allow(sub, 4, reader)
    setup.turn(3)
    setup.fanout.allow(sub, 100, reader)
    setup.turn(3)
    setup.world.stored(b"2")
    setup.turn(3)
    assert reader.seqs == list(range(11)) and sub.credit == 96


def test_credit_given_to_a_reader_without_any_bounds_it_from_then_on(setup: Setup) -> None:
    sub, reader = setup.subscribe()
    setup.turn()
    setup.fanout.allow(sub, 1, reader)
    setup.turn()
    setup.world.stored(b"1", b"2")
    setup.turn(2)
    assert reader.seqs == [0] and sub.credit == 0


def test_a_reader_that_stopped_gets_nothing_more(setup: Setup) -> None:
    live, one = setup.subscribe()
    starting, two = setup.subscribe()
    setup.turn()
    setup.world.stored(b"1")
    setup.fanout.stop(live)
    setup.fanout.start(starting, two)
    setup.fanout.stop(starting)
    setup.world.stored(b"2")
    setup.turn(3)
    assert (one.seqs, two.seqs) == ([0], [0])
    assert setup.fanout._live == {}


def test_readers_of_one_backlog_decode_it_once(setup: Setup) -> None:
    for _ in range(10):
        setup.world.stored(b"1")
    reads = 0
    real = setup.world.partition.read

    def counted(offset: Offset) -> Any:
        nonlocal reads
        reads += 1
        return real(offset)

    setup.world.partition.read = counted  # type: ignore[method-assign]
    readers = [setup.subscribe()[1] for _ in range(20)]
    setup.turn(5)
    assert all(reader.seqs == list(range(10)) for reader in readers)
    assert reads == 10


def test_chunks_kept_for_readers_are_bounded(setup: Setup) -> None:
    for _ in range(3 * CHUNK_CACHE_MAX):
        setup.world.stored(b"1")
    setup.subscribe()
    setup.turn(50)
    assert len(setup.fanout.tails.all[0].chunks) <= CHUNK_CACHE_MAX


def test_a_reader_that_was_behind_a_purge_is_told_what_it_misses(setup: Setup) -> None:
    sub, behind = setup.subscribe()
    _, live = setup.subscribe()
    setup.turn()
    setup.world.stored(b"1")
    behind.writable = False
    setup.world.stored(b"2", b"3")
    setup.world.purge()
    setup.world.commit()
    setup.goes_on(sub, behind)
    setup.turn(2)
    last = setup.world.stored(b"4").base
    assert (behind.gaps, behind.seqs) == ([(1, 2)], [0, last])
    assert (live.gaps, live.seqs) == ([], [0, 1, 2, last])


def test_a_frame_of_a_chunk_is_made_once_and_kept_with_it() -> None:
    made: list[bytes] = []

    def frame(payload: bytes) -> bytes:
        made.append(payload)
        return payload

    world = World(kind="stream")
    world.stored(b"1", b"2")
    chunk = world.partition.read(Offset(0))
    assert chunk is not None
    framer = websocket_framer("json", frame)
    assert framer(chunk, 0, 2, 1, None) is framer(chunk, 0, 2, 1, None)
    framer(chunk, 0, 2, 9, None)
    framer(chunk, 1, 2, 1, None)
    assert len(made) == 3
    first = json.loads(made[0])
    assert (first["sub"], [m["seq"] for m in first["messages"]]) == (1, [0, 1]) and first["cursor"]


steps = st.lists(
    st.tuples(st.sampled_from(["publish", "turn", "block", "go on", "subscribe", "allow"]), st.integers(0, 5)),
    max_size=60,
)


@given(steps)
@settings(max_examples=examples(50, exploring=150))
def test_no_reader_ever_misses_or_repeats_a_message(story: list[tuple[str, int]]) -> None:
    setup = Setup()
    readers: list[tuple[StreamSubscription, Reader, int]] = []
    for what, number in story:
        if what == "publish":
            setup.world.stored(*[b"1"] * (number * 7 + 1))
        elif what == "turn":
            setup.turn()
        elif what == "subscribe":
            begin = setup.end * number // 5
            readers.append((*setup.subscribe(begin, credit=number if number > 2 else None), begin))
        elif readers:
            sub, reader, _ = readers[number % len(readers)]
            if what == "block":
                reader.writable = False
            elif what == "go on":
                setup.goes_on(sub, reader)
            elif sub.credit is not None:
                setup.fanout.allow(sub, number * 10 + 1, reader)
        for _, reader, begin in readers:
            assert reader.seqs == list(range(begin, begin + len(reader.seqs)))
    for sub, reader, _ in readers:
        setup.goes_on(sub, reader)
        if sub.credit is not None:
            setup.fanout.allow(sub, 10_000, reader)
    setup.turn(100)
    setup.loop.close()
    for sub, reader, begin in readers:
        assert reader.seqs == list(range(begin, setup.end)) and sub.live
