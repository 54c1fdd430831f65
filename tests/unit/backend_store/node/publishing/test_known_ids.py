"""A partition's ids: known for the window, on the disk with their messages, at every commit; and at what cost."""

from __future__ import annotations

import random
import tempfile
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from backend_store.core.dedupe.dedupe import Bounds
from backend_store.core.dedupe.id_runs import RECORD
from backend_store.node.publishing.id_runs import run_key
from backend_store.node.publishing.known_ids import IdStore, id_range
from backend_store.storage.engine import Batch, Engine, Row, StorageCorrupt, Table
from backend_store.storage.env import open_engine
from backend_store.storage.memory import MemoryEngine
from backend_store.storage.seal import seal
from tests.support.seeds import examples
from tests.support.storage import all_rows, commit

REPLICA = 7
WINDOW_MS = 1000
SMALL = Bounds(
    ids_max=100_000,
    recent_ids_max=300,
    arrival_row_ids_min=40,
    runs_per_merge=3,
    step_ids=1,
    take_ids_min=20,
    step_filter_ids=1,
    sweep_rows=2,
    read_rows=1,
    generation_ids_min=500,
    generation_ids_grown=1000,
)
"""Everything happens soon, and in many commits: each of them is a place to crash at."""


def hash_of(number: int) -> bytes:
    return blake2b(b"%d" % number, digest_size=16).digest()


class Counting(MemoryEngine):
    """Counts reads of single rows."""

    reads = 0

    def get(self, table: Table, key: bytes) -> bytes | None:
        self.reads += 1
        return super().get(table, key)

    def first_at_or_above(self, table: Table, start: bytes, end: bytes) -> Row | None:
        self.reads += 1
        return super().first_at_or_above(table, start, end)


class Publisher:
    """Numbered messages on their way through a store: the number is the offset, and what the hash is made of."""

    def __init__(self, engine: Engine, bounds: Bounds = SMALL):
        self.engine = engine
        self.bounds = bounds
        self.now_ms = 1_700_000_000_000
        self.window_ms = WINDOW_MS
        self.batches: list[Batch] = []
        self.ids = IdStore(engine, REPLICA, bounds)

    def restart(self) -> None:
        self.ids = IdStore(self.engine, REPLICA, self.bounds)

    def known(self, numbers: range) -> dict[int, int]:
        """Number → offset of those that are known."""
        hashes = [hash_of(number) for number in numbers]
        found = self.ids.lookup(hashes, now_ms=self.now_ms, window_ms=self.window_ms)
        return {numbers[position]: offset for position, offset in found.items()}

    def is_known(self, numbers: range) -> bool:
        """Whether all of them are, each with its own offset; asserts that it is all of them or none."""
        found = self.known(numbers)
        assert found in ({}, {number: number for number in numbers})
        return bool(found)

    def add(self, numbers: range) -> None:
        self.ids.add([hash_of(number) for number in numbers], numbers.start, now_ms=self.now_ms)

    def commit(self) -> None:
        batch = Batch()
        self.ids.stage(batch)
        self.engine.commit(batch, lambda: None)
        self.ids.committed()
        self.batches.append(batch)

    def publish(self, numbers: range, *, per_commit: int = 50, ms_per_commit: int = 0) -> None:
        for start in range(numbers.start, numbers.stop, per_commit):
            self.add(range(start, min(start + per_commit, numbers.stop)))
            self.commit()
            self.now_ms += ms_per_commit

    def settle(self) -> None:
        """Commits until nothing is left to do."""
        for _ in range(10_000):
            if not self.ids.is_busy:
                return
            self.commit()
        raise AssertionError("the store never comes to rest")

    def rows(self) -> int:
        return len(all_rows(self.engine, Table.IDS))


@pytest.fixture
def publisher() -> Publisher:
    return Publisher(MemoryEngine())


# -------------------------------------------------------------------------------------------------------- what is known


def test_a_repeated_id_is_answered_with_the_offset_of_the_first(publisher: Publisher) -> None:
    publisher.ids.add([hash_of(1), hash_of(2)], 70, now_ms=publisher.now_ms)
    publisher.commit()
    assert publisher.known(range(4)) == {1: 70, 2: 71}


def test_messages_without_an_id_are_new_each_time_and_keep_their_place(publisher: Publisher) -> None:
    ids = [None, hash_of(1), None, hash_of(3)]
    assert publisher.ids.lookup(ids, now_ms=publisher.now_ms, window_ms=WINDOW_MS) == {}
    publisher.ids.add(ids, 10, now_ms=publisher.now_ms)
    publisher.ids.add([None], 14, now_ms=publisher.now_ms)
    assert publisher.ids.lookup(ids, now_ms=publisher.now_ms, window_ms=WINDOW_MS) == {1: 11, 3: 13}
    assert len(publisher.ids) == 2


def test_each_id_may_bring_an_offset_of_its_own(publisher: Publisher) -> None:
    publisher.ids.add([hash_of(1), None, hash_of(2)], [5, 6, 900], now_ms=publisher.now_ms)
    publisher.commit()
    publisher.restart()
    assert publisher.known(range(4)) == {1: 5, 2: 900}


def test_an_id_is_known_as_soon_as_it_is_decided(publisher: Publisher) -> None:
    publisher.add(range(3))
    assert publisher.is_known(range(3))
    batch = Batch()
    publisher.ids.stage(batch)
    assert publisher.is_known(range(3))
    publisher.engine.commit(batch, lambda: None)
    assert publisher.is_known(range(3))


def test_an_id_is_new_again_when_the_window_has_passed(publisher: Publisher) -> None:
    publisher.publish(range(3))
    publisher.now_ms += WINDOW_MS - 1
    assert publisher.is_known(range(3))
    publisher.now_ms += 1
    assert not publisher.is_known(range(3))


def test_an_id_is_new_again_when_the_window_has_passed_also_within_a_run_that_has_newer_ones(
    publisher: Publisher,
) -> None:
    publisher.publish(range(300), per_commit=50, ms_per_commit=100)
    publisher.settle()
    assert publisher.is_known(range(300))
    publisher.now_ms += 500
    assert not publisher.is_known(range(50))
    assert publisher.is_known(range(100, 300))


def test_an_id_that_came_again_after_the_window_is_answered_with_its_new_offset(publisher: Publisher) -> None:
    publisher.publish(range(1000))
    publisher.settle()
    publisher.now_ms += WINDOW_MS
    for _ in range(4):
        publisher.ids.add([hash_of(number) for number in range(1000)], 5000, now_ms=publisher.now_ms)
        publisher.commit()
        publisher.settle()
        assert publisher.known(range(1000)) == {number: 5000 + number for number in range(1000)}
        publisher.restart()


def test_a_window_made_shorter_holds_at_once_and_one_made_longer_for_what_is_still_in_it(publisher: Publisher) -> None:
    publisher.publish(range(10))
    publisher.now_ms += 500
    publisher.publish(range(10, 20))
    publisher.window_ms = 500
    assert publisher.known(range(20)) == {number: number for number in range(10, 20)}
    publisher.window_ms = 10_000
    publisher.now_ms += 9_999
    assert publisher.is_known(range(10, 20))


# ------------------------------------------------------------------------------------------------- restarts, crashes


@pytest.mark.parametrize("count", [1, 299, 300, 1500])
def test_ids_are_known_after_a_restart(publisher: Publisher, count: int) -> None:
    publisher.publish(range(count))
    publisher.restart()
    assert publisher.is_known(range(count))
    publisher.settle()
    publisher.restart()
    assert publisher.is_known(range(count))
    assert not publisher.is_known(range(count, count + 100))


def test_ids_are_known_after_the_folder_was_closed_and_opened_again(tmp_path: Path) -> None:
    first = Publisher(open_engine(tmp_path))
    first.publish(range(2000))
    first.engine.close()
    second = Publisher(open_engine(tmp_path))
    assert second.is_known(range(2000))
    second.settle()
    assert second.is_known(range(2000)) and not second.is_known(range(2000, 4000))
    second.engine.close()


def test_a_process_that_dies_at_any_commit_leaves_exactly_the_committed_ids(publisher: Publisher) -> None:
    committed = 0
    interrupted: set[int] = set()
    while committed < 5400:
        publisher.add(range(committed, committed + 90))
        publisher.commit()
        committed += 90
        interrupted |= {build.level for build in publisher.ids._runs._builds}
        reborn = Publisher(publisher.engine)
        # Each time the newest, and another seventh of the others.
        assert reborn.is_known(range(max(0, committed - 900), committed))
        assert reborn.is_known(range(committed // 90 % 7, committed, 7))
        assert not reborn.is_known(range(committed, committed + 50))
        assert len(reborn.ids) == committed
    assert interrupted == {0, 1, 2}, "crashes in the middle of a freeze, of a merge and of a merge of merged runs"


def test_a_store_that_crashes_again_and_again_goes_on_and_leaves_no_rows_behind(publisher: Publisher) -> None:
    random_ = random.Random(5)
    committed = 0
    for _ in range(30):
        for _ in range(random_.randrange(1, 12)):
            publisher.add(range(committed, committed + 60))
            publisher.commit()
            committed += 60
        publisher.restart()
        assert publisher.is_known(range(max(0, committed - 500), committed))
    assert publisher.is_known(range(committed))
    publisher.settle()
    counted = {run.number for run in publisher.ids._runs._runs}
    found = {int.from_bytes(key[5:9]) for key in all_rows(publisher.engine, Table.IDS) if key[4] == 2}
    assert found == counted
    assert len(publisher.ids) == committed


def test_a_run_that_a_crash_left_unfinished_neither_counts_nor_mixes_with_the_next(publisher: Publisher) -> None:
    for number in range(100):
        record = RECORD.pack(hash_of(number), ~publisher.now_ms, number)
        key = run_key(REPLICA, 0, record)
        commit(publisher.engine, (Table.IDS, key, seal(key, record)))
    assert not publisher.is_known(range(100))
    publisher.publish(range(100, 900))
    publisher.settle()
    publisher.restart()
    assert publisher.is_known(range(100, 900)) and not publisher.is_known(range(100))


def test_new_ids_are_told_from_old_ones_while_the_filter_is_filled_after_a_start(publisher: Publisher) -> None:
    publisher.publish(range(3000))
    publisher.settle()
    publisher.restart()
    steps = 0
    while publisher.ids.is_busy or not steps:
        assert publisher.is_known(range(steps * 7 % 2900, steps * 7 % 2900 + 100))
        assert not publisher.is_known(range(3000, 3100))
        publisher.commit()
        steps += 1
    assert steps > 10


# ------------------------------------------------------------------------------------------------------ how many fit


def test_a_full_store_has_no_room_until_the_window_has_passed() -> None:
    publisher = Publisher(MemoryEngine(), SMALL._replace(ids_max=1000))
    publisher.publish(range(600), per_commit=300)
    publisher.settle()
    publisher.now_ms += 500
    publisher.publish(range(600, 990))
    assert publisher.ids.has_room(10) and not publisher.ids.has_room(11)
    publisher.now_ms += 499
    publisher.known(range(1))
    assert not publisher.ids.has_room(11)
    publisher.now_ms += 1
    publisher.known(range(1))
    assert publisher.ids.has_room(11)


def test_what_is_out_of_the_window_leaves_no_rows(publisher: Publisher) -> None:
    publisher.publish(range(2500), ms_per_commit=1)
    publisher.settle()
    assert publisher.rows() > 10
    publisher.now_ms += WINDOW_MS
    publisher.ids.move_on(publisher.now_ms, WINDOW_MS)
    publisher.commit()
    publisher.settle()
    assert len(publisher.ids) == 0
    assert [key[4] for key in all_rows(publisher.engine, Table.IDS)] == [0], "only the list of runs, and it is empty"
    publisher.publish(range(10))
    assert publisher.is_known(range(10))


def test_the_rows_of_a_slow_flow_go_as_time_passes(publisher: Publisher) -> None:
    for number in range(400):
        publisher.known(range(number, number + 1))
        publisher.publish(range(number, number + 1))
        publisher.now_ms += 50
    assert len(publisher.ids) <= WINDOW_MS // 50 + SMALL.arrival_row_ids_min
    assert publisher.rows() <= 2
    publisher.restart()
    assert publisher.is_known(range(381, 400)) and not publisher.is_known(range(381))


def test_the_store_says_when_its_next_rows_are_out_of_the_window(publisher: Publisher) -> None:
    assert publisher.ids.next_expiry_ms(WINDOW_MS) is None
    began_ms = publisher.now_ms
    publisher.publish(range(40))
    publisher.now_ms += 10
    publisher.publish(range(40, 80))
    assert publisher.ids.next_expiry_ms(WINDOW_MS) == began_ms + WINDOW_MS
    publisher.publish(range(80, 400))
    publisher.settle()
    assert publisher.ids.next_expiry_ms(WINDOW_MS) == began_ms + 10 + WINDOW_MS


# -------------------------------------------------------------------------------------------------------- what it costs


def test_a_queue_without_ids_costs_one_read_and_no_row() -> None:
    engine = Counting()
    publisher = Publisher(engine)
    assert engine.reads == 0
    for _ in range(10):
        publisher.commit()
    assert engine.reads == 1 and not any(publisher.batches) and not publisher.ids.is_busy


def test_new_ids_are_not_looked_up_on_the_disk() -> None:
    engine = Counting()
    publisher = Publisher(engine)
    publisher.publish(range(5000))
    publisher.settle()
    engine.reads = 0
    assert not publisher.is_known(range(5000, 15_000))
    assert engine.reads <= 10_000 * 0.005 * len(publisher.ids._runs._runs)


def test_an_id_costs_one_read_a_run() -> None:
    engine = Counting()
    publisher = Publisher(engine)
    publisher.publish(range(5000))
    publisher.settle()
    engine.reads = 0
    assert publisher.is_known(range(1))
    assert engine.reads <= len(publisher.ids._runs._runs)


def test_small_commits_share_an_arrival_row(publisher: Publisher) -> None:
    publisher.publish(range(200), per_commit=1)
    assert publisher.rows() == 200 // SMALL.arrival_row_ids_min
    publisher.publish(range(200, 1000), per_commit=1)
    publisher.restart()
    assert publisher.is_known(range(1000))


def test_no_commit_carries_much_more_than_its_own_ids() -> None:
    publisher = Publisher(MemoryEngine(), Bounds(recent_ids_max=2000, runs_per_merge=4))
    publisher.publish(range(40_000), per_commit=200)
    changes = [len(batch.rows.get(Table.IDS, {})) for batch in publisher.batches]
    assert max(changes) <= 256
    publisher.settle()
    assert publisher.is_known(range(40_000))


def test_runs_stay_few_and_in_the_order_of_time(publisher: Publisher) -> None:
    publisher.publish(range(40_000), per_commit=200, ms_per_commit=1)
    publisher.settle()
    runs = publisher.ids._runs._runs
    assert [run.level for run in runs] == sorted((run.level for run in runs), reverse=True)
    assert all(a.newest_ms <= b.oldest_ms for a, b in pairwise(runs))
    assert sum(run.level < 2 for run in runs) <= 2 * SMALL.runs_per_merge
    assert sum(run.count for run in runs) + len(publisher.ids._recent) == 40_000


# --------------------------------------------------------------------------------------------------------- broken rows


def damage(engine: Engine, kind: int, *, number: int = 0) -> None:
    """Flips a bit of the row of this kind that has the number."""
    key, row = [item for item in all_rows(engine, Table.IDS).items() if item[0][4] == kind][number]
    commit(engine, (Table.IDS, key, row[:20] + bytes([row[20] ^ 1]) + row[21:]))


@pytest.mark.parametrize("kind", [0, 1])
def test_a_store_whose_list_or_newest_ids_do_not_verify_refuses_every_look_up(publisher: Publisher, kind: int) -> None:
    publisher.publish(range(390))
    publisher.settle()
    key, row = next(item for item in all_rows(publisher.engine, Table.IDS).items() if item[0][4] == kind)
    commit(publisher.engine, (Table.IDS, key, row[:3] + bytes([row[3] ^ 1]) + row[4:]))
    publisher.restart()
    for _ in range(2):
        with pytest.raises(StorageCorrupt, match="does not match its checksum"):
            publisher.known(range(1))
        publisher.commit()
    assert not publisher.batches[-1], "what cannot be read must not be written over"


def test_a_look_up_that_hits_a_broken_row_fails_and_the_others_go_on(publisher: Publisher) -> None:
    publisher.publish(range(3000))
    publisher.settle()
    damage(publisher.engine, 2, number=3)
    publisher.restart()
    publisher.commit()
    publisher.settle()
    failed, known = 0, 0
    for number in range(3000):
        try:
            known += publisher.is_known(range(number, number + 1))
        except StorageCorrupt:
            failed += 1
    assert known + failed == 3000 and 0 < failed < 1000
    publisher.publish(range(3000, 5000))
    publisher.settle()
    assert publisher.is_known(range(4000, 5000))


def test_a_broken_run_is_not_merged_and_goes_when_its_window_is_over(publisher: Publisher) -> None:
    publisher.publish(range(600))
    publisher.settle()
    damage(publisher.engine, 2)
    publisher.now_ms += 500
    publisher.publish(range(600, 1800))
    publisher.settle()
    assert any(run.level == 0 and run.newest_ms == publisher.now_ms - 500 for run in publisher.ids._runs._runs)
    publisher.now_ms += 500
    assert publisher.is_known(range(600, 1800))
    publisher.commit()
    publisher.settle()
    publisher.restart()
    assert publisher.is_known(range(600, 1800)) and not publisher.is_known(range(600))


def test_all_rows_of_a_queue_lie_in_its_own_range(publisher: Publisher) -> None:
    other = IdStore(publisher.engine, REPLICA + 1, SMALL)
    publisher.publish(range(1000))
    assert other.lookup([hash_of(1)], now_ms=publisher.now_ms, window_ms=WINDOW_MS) == {}
    start, end = id_range(REPLICA)
    assert all(start <= key < end for key in all_rows(publisher.engine, Table.IDS))


# --------------------------------------------------------------------------------------------------------------- model


Places = dict[bytes, tuple[int, int]]
"""Hash → (offset, time) of the latest message that was new when it came."""


class IdModel(RuleBasedStateMachine):
    """The store against a dict with times, through crashes before and after a commit and windows that change."""

    bounds = SMALL._replace(recent_ids_max=60, arrival_row_ids_min=10, runs_per_merge=2, generation_ids_min=100)

    def __init__(self) -> None:
        super().__init__()
        self.engine = self.make_engine()
        self.ids = IdStore(self.engine, REPLICA, self.bounds)
        self.now_ms = 1_000
        self.window_ms = 5_000
        self.horizon_ms = -(10**9)
        """The latest there was: an id that was out of the window once may be forgotten for good."""
        self.end = 0
        self.committed: Places = {}
        self.staged: Places = {}
        self.added: Places = {}
        self.batch: Batch | None = None

    def make_engine(self) -> Engine:
        return MemoryEngine()

    def teardown(self) -> None:
        self.engine.close()

    def look_up(self, ids: IdStore, expected: Places, hashes: list[bytes]) -> dict[int, int]:
        found = ids.lookup(hashes, now_ms=self.now_ms, window_ms=self.window_ms)
        self.horizon_ms = max(self.horizon_ms, self.now_ms - self.window_ms)
        for position, hash_ in enumerate(hashes):
            offset, time_ms = expected.get(hash_, (-1, -(10**9)))
            if time_ms > self.horizon_ms:
                assert found.get(position) == offset
            elif self.now_ms - time_ms >= self.window_ms:
                assert position not in found
            else:
                assert found.get(position, offset) == offset
        return found

    @property
    def everything(self) -> Places:
        return self.committed | self.staged | self.added

    @rule(fresh=st.sampled_from([0, 1, 15, 60, 250]), repeated=st.integers(0, 30), seed=st.integers(0, 2**32))
    def publish(self, fresh: int, repeated: int, seed: int) -> None:
        random_, known = random.Random(seed), list(self.everything)
        hashes = [random_.randbytes(16) for _ in range(fresh)] + random_.sample(known, min(repeated, len(known)))
        random_.shuffle(hashes)
        hashes = list(dict.fromkeys(hashes))
        found = self.look_up(self.ids, self.everything, hashes)
        new = [hash_ for position, hash_ in enumerate(hashes) if position not in found]
        self.ids.add(new, self.end, now_ms=self.now_ms)
        self.added |= {hash_: (offset, self.now_ms) for offset, hash_ in enumerate(new, self.end)}
        self.end += len(new)

    @precondition(lambda self: self.batch is None)
    @rule()
    def stage(self) -> None:
        self.batch = Batch()
        self.ids.stage(self.batch)
        self.staged, self.added = self.added, {}

    @precondition(lambda self: self.batch is not None)
    @rule()
    def land(self) -> None:
        assert self.batch is not None
        self.engine.commit(self.batch, lambda: None)
        self.check()  # the rows are on the disk, and the store does not know yet
        self.ids.committed()
        self.committed |= self.staged
        self.staged, self.batch = {}, None

    @rule(count=st.integers(1, 30))
    def commit_some(self, count: int) -> None:
        for _ in range(count):
            if self.batch is None:
                self.stage()
            self.land()

    @rule()
    def crash(self) -> None:
        self.staged, self.added, self.batch = {}, {}, None
        self.ids = IdStore(self.engine, REPLICA, self.bounds)

    @rule(ms=st.sampled_from([1, 40, 300, 2_000]))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    @rule(window_ms=st.sampled_from([1, 300, 2_000, 5_000, 20_000]))
    def change_window(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self.ids.move_on(self.now_ms, window_ms)
        self.horizon_ms = max(self.horizon_ms, self.now_ms - window_ms)

    @rule()
    def check_what_a_crash_would_leave(self) -> None:
        self.look_up(IdStore(self.engine, REPLICA, self.bounds), self.committed, list(self.committed))

    @invariant()
    def check(self) -> None:
        self.look_up(self.ids, self.everything, list(self.everything)[-300:])
        assert len(self.ids) >= sum(self.horizon_ms < time_ms for _, time_ms in self.everything.values())


class IdModelOnDisk(IdModel):
    """The same over LMDB."""

    def make_engine(self) -> Engine:
        self.folder = tempfile.TemporaryDirectory()
        return open_engine(Path(self.folder.name))

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


TestIdModel = IdModel.TestCase
TestIdModel.settings = settings(max_examples=examples(20, exploring=60), stateful_step_count=50, deadline=None)
TestIdModelOnDisk = IdModelOnDisk.TestCase
TestIdModelOnDisk.settings = settings(max_examples=examples(5, exploring=10), stateful_step_count=40, deadline=None)
