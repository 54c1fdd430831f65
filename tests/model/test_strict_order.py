"""Strict order by key against a reference of one list a key: any order of events, small bounds, parts on the disk."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend_store.core.leases.leases import ChunkState
from backend_store.core.limits import KEYED_STUCK_MS
from backend_store.core.log.bits import indexes
from backend_store.core.partitions.slots import slot_of
from backend_store.core.ready import key_index, key_queues, strict
from backend_store.core.ready.key_index import Key
from backend_store.core.ready.key_queues import ParkedRow, Spill
from backend_store.core.ready.strict import StrictRuns
from tests.support.chunks import any_chunk, chunk_state
from tests.support.seeds import examples


class Item(NamedTuple):
    """A message in the reference: its place in the order of its key."""

    number: int
    index: int
    late: int
    """Counts late ones, which come behind the last one of their key that was drawn; 0 for others."""
    base: int
    at: int
    """Which message of its chunk it is."""


SMALL = {
    (key_queues, "KEYED_RUNS_IN_MEMORY_MAX"): 3,
    (key_queues, "KEYED_CHUNKS_IN_MEMORY_MAX"): 4,
    (key_queues, "KEYED_SPILL_ROWS_MAX"): 2,
    (strict, "KEYED_LOADED_FIRST_MAX"): 2,
    (key_index, "KEYED_COLUMNS_MAX"): 1,
    (key_index, "FEW_KEYS_MAX"): 8,
}
"""Bounds small enough to be reached."""
KEY_RUN_MAX = 2
QUIET_STEPS = 4
"""Draws between two restarts: runs that only start anew park nothing."""
keys_of_chunk = st.lists(st.sampled_from([None, "a", "b", "c", "d"]), min_size=1, max_size=8)
any_number = st.integers(0, 1 << 20)


class StrictOrder(RuleBasedStateMachine):
    """The shell and the view around the runs, reduced to what the runs see of them."""

    def __init__(self) -> None:
        super().__init__()
        self._bounds = {place: getattr(*place) for place in SMALL}
        for place, value in SMALL.items():
            setattr(*place, value)
        self.now_ms = 0
        self.runs = StrictRuns(KEY_RUN_MAX)
        self.states: dict[int, ChunkState] = {}
        self.columns: dict[int, list[Key]] = {}
        self.rows: dict[tuple[int, int], ParkedRow] = {}
        self.in_commit: Spill | None = None
        self.pushed = 0
        self.late = 0
        self.loose: set[Key] = set()
        """Keys with late messages that wait for another partition: older ones here must go before them."""
        self.last_drawn: dict[Key, tuple[int, int]] = {}
        """The place of the last message of each key that was drawn and is not late."""
        self.quiet_steps = 0
        # The reference: what waits of each key, in its order, and what somebody has of it.
        self.waiting: dict[Key, list[Item]] = {}
        self.held: dict[tuple[int, int], Item] = {}
        self.delayed: dict[tuple[int, int], Item] = {}
        self.closed: dict[int, int] = {}
        """Slot → from which chunk on its messages wait for those in another partition."""

    def teardown(self) -> None:
        try:
            self._drain()
        finally:
            for place, value in self._bounds.items():
                setattr(*place, value)

    @initialize(few_keys_max=st.sampled_from([0, 8]))
    def begin(self, few_keys_max: int) -> None:
        """Chunks keep whole columns of keys, or bits by key."""
        key_index.FEW_KEYS_MAX = few_keys_max

    # ---------------------------------------------------------------------------------------------------- the view

    def state(self, base: int) -> ChunkState:
        return self.states[base]

    def key(self, item: Item) -> Key:
        return self.columns[item.base][item.at]

    def locked(self) -> set[Key]:
        return {self.key(item) for item in (*self.held.values(), *self.delayed.values())}

    @rule(keys=keys_of_chunk)
    def publish(self, keys: list[Key]) -> None:
        base = len(self.columns) * 8
        self.columns[base] = keys
        self.states[base] = chunk_state(base, keys)
        if keys == [None] * len(keys):
            self.states[base].keys = None
        self.pushed += 1
        for index, key in enumerate(keys):
            self.waiting.setdefault(key, []).append(Item(self.pushed, index, 0, base, index))
        self.runs.push(self.states[base], self.states[base].full)

    @rule(keys=keys_of_chunk)
    def come_late(self, keys: list[Key]) -> None:
        """Late messages go before those of their keys that nobody had."""
        base = len(self.columns) * 8
        self.columns[base] = keys
        state = self.states[base] = chunk_state(base, keys)
        if keys == [None] * len(keys):
            state.keys = None
        state.late = state.full
        self.late += 1
        for index, key in enumerate(keys):
            waiting = self.waiting.setdefault(key, [])
            place = self.last_drawn.get(key, (0, 0))
            if self._is_closed(Item(*place, 0, base, index)):
                self.loose.add(key)
            waiting.append(Item(*place, self.late * 8 + index, base, index))
            waiting.sort()
        self.runs.push_late(state, state.full)

    @rule(chunks=st.lists(keys_of_chunk, min_size=2, max_size=4), lands=st.booleans())
    def pile_up(self, chunks: list[list[Key]], lands: bool) -> None:
        """Consumers take all they can and settle nothing for a while: some of what waits goes to the disk."""
        for keys in chunks:
            self.publish(keys)
        while self.draw(8):
            pass
        for later_ms in (KEYED_STUCK_MS, KEYED_STUCK_MS, 0):
            self.commit_lands()
            self.commit(later_ms)
        if lands:
            self.commit_lands()

    @rule(limit=st.integers(1, 6))
    def draw_some(self, limit: int) -> None:
        self.draw(limit)

    def draw(self, limit: int) -> bool:
        drawn = self._draw(limit)
        if drawn is None:
            stuck = {key for key, items in self.waiting.items() if not all(map(self._is_closed, items))}
            stuck -= self.locked()
            assert not stuck or self._is_on_disk(stuck), f"messages of {stuck} could be drawn"
            return False
        state, bits = drawn
        assert bits.bit_count() <= limit
        assert not bits & ~state.free
        state.leased |= bits
        state.started |= bits
        by_key: dict[Key, list[Item]] = {}
        locked = self.locked()
        for index in indexes(bits):
            key = self.columns[state.base][index]
            item = next(item for item in self.waiting[key] if (item.base, item.at) == (state.base, index))
            by_key.setdefault(key, []).append(item)
        for key, items in by_key.items():
            assert key not in locked, f"{key} was handed out to two"
            assert len(items) <= KEY_RUN_MAX
            assert not any(map(self._is_closed, items)), f"{key} was handed out before what is in another partition"
            first = [item for item in self.waiting[key] if not self._is_closed(item)][: len(items)]
            assert items == first or key in self.loose, f"{key} was handed out of order"
            self.waiting[key] = [item for item in self.waiting[key] if item not in items]
            drawn_places = [(item.number, item.index) for item in items if not item.late]
            self.last_drawn[key] = max([self.last_drawn.get(key, (0, 0)), *drawn_places])
            self.held |= {(item.base, item.at): item for item in items}
        self.quiet_steps += 1
        return True

    def _is_closed(self, item: Item) -> bool:
        return item.base >= self.closed.get(slot_of(self.key(item) or ""), item.base + 1)

    @rule(key=st.sampled_from([None, "a", "b", "c", "d"]))
    def come(self, key: Key) -> None:
        """A slot comes from another partition: from here on its messages wait. If they did before, the first do not
        any more."""
        self.closed = {**self.closed, slot_of(key or ""): 8 * len(self.columns)}
        self.runs.close(self.closed)

    @precondition(lambda self: self.closed)
    @rule(pick=any_number)
    def release(self, pick: int) -> None:
        """What the messages of a slot waited for is settled."""
        slot = sorted(self.closed)[pick % len(self.closed)]
        self.closed = {other: base for other, base in self.closed.items() if other != slot}
        self.runs.close(self.closed)

    def _draw(self, limit: int) -> tuple[ChunkState, int] | None:
        while True:
            wanted = self.runs.wanted
            if wanted is not None:
                row = self.rows[wanted]
                self.runs.unpark(row.number, self._adopted(row), row.bits)
            elif (base := self.runs.missing()) is not None:
                state = self.state(base)
                assert state.chunk is None
                state.chunk = any_chunk(base, state.count)
            else:
                return self.runs.draw(limit)

    def _adopted(self, row: ParkedRow) -> ChunkState | None:
        settled = {(item.base, item.at) for item in self._unsettled()}
        keys = self.columns[row.base]
        if not any((row.base, index) in settled for index in range(len(keys))):
            return None  # its rows are gone
        if row.base not in self.states:
            bits = sum(1 << index for index in range(len(keys)) if (row.base, index) not in settled)
            self.states[row.base] = chunk_state(row.base, keys, settled=bits)
        return self.states[row.base]

    def _unsettled(self) -> list[Item]:
        waiting = [item for items in self.waiting.values() for item in items]
        return [*waiting, *self.held.values(), *self.delayed.values()]

    def _is_on_disk(self, keys: set[Key]) -> bool:
        """The rest of these keys is in rows that have not been written yet."""
        coming = self.in_commit.rows if self.in_commit is not None else []
        return keys <= {self.columns[row.base][next(iter(indexes(row.bits)))] for row in coming}

    @precondition(lambda self: self.held)
    @rule(picks=st.lists(any_number, min_size=1, max_size=6), outcome=st.sampled_from(["ack", "ack", "nack", "delay"]))
    def end(self, picks: list[int], outcome: str) -> None:
        chosen = {sorted(self.held)[pick % len(self.held)] for pick in picks}
        by_base: dict[int, int] = {}
        for base, index in chosen:
            by_base[base] = by_base.get(base, 0) | 1 << index
        items = [self.held.pop(place) for place in sorted(chosen)]
        for item in items if outcome == "delay" else ():
            self.delayed[item.base, item.at] = item
        for base, bits in sorted(by_base.items(), reverse=True):
            state = self.state(base)
            state.leased ^= bits
            if outcome == "delay":
                state.delayed |= bits
                continue
            if outcome == "ack":
                state.settled |= bits
            self.runs.freed(state, bits)
            if outcome == "nack":
                self.runs.put_back(state, bits)
        if outcome == "nack":
            self._wait_again(items)

    def _wait_again(self, items: list[Item]) -> None:
        for item in items:
            self.waiting[self.key(item)].append(item)
            self.waiting[self.key(item)].sort()

    @precondition(lambda self: self.delayed)
    @rule(pick=any_number)
    def wake(self, pick: int) -> None:
        place = sorted(self.delayed)[pick % len(self.delayed)]
        item = self.delayed.pop(place)
        state = self.state(item.base)
        state.delayed &= ~(1 << item.at)
        self.runs.freed(state, 1 << item.at)
        self.runs.put_back(state, 1 << item.at)
        self._wait_again([item])

    @rule(pick=any_number)
    def expire(self, pick: int) -> None:
        """A message that nobody holds is settled: it was too old, or acked with an old receipt."""
        waiting = [item for item in self._unsettled() if (item.base, item.at) not in self.held | self.delayed]
        if waiting:
            item = sorted(waiting)[pick % len(waiting)]
            self.waiting[self.key(item)].remove(item)
            if item.base in self.states:
                self.state(item.base).settled |= 1 << item.at
                self.runs.freed(self.state(item.base), 1 << item.at)

    @rule(pick=any_number)
    def leave_memory(self, pick: int) -> None:
        if self.states:
            self.states[sorted(self.states)[pick % len(self.states)]].chunk = None

    # ---------------------------------------------------------------------------------------------------- the disk

    @rule(later_ms=st.sampled_from([0, KEYED_STUCK_MS]))
    def commit(self, later_ms: int) -> None:
        self.now_ms += later_ms
        if self.in_commit is None:
            self.in_commit = self.runs.take_spill(self.now_ms)

    @rule()
    def commit_lands(self) -> None:
        if self.in_commit is not None:
            rows, done = self.in_commit
            self.in_commit = None
            self.rows |= {(row.number, row.position): row for row in rows}
            for place in done:
                del self.rows[place]
            self.runs.spilled()
        for state in self.runs.take_idle():
            if not state.leased | state.delayed:
                assert self.states.pop(state.base) is state

    @precondition(lambda self: self.quiet_steps >= QUIET_STEPS and not any(i.late for i in self._unsettled()))
    @rule()
    def restart(self) -> None:
        """A clean stop: leases are kept, and the lane is read anew."""
        self.quiet_steps = 0
        self.loose.clear()
        self.runs = StrictRuns(KEY_RUN_MAX)
        self.runs.close(self.closed)
        self.rows.clear()
        self.in_commit = None
        self.states.clear()
        unsettled = {(item.base, item.at): item for item in self._unsettled()}
        for base, keys in self.columns.items():
            bits = sum(1 << index for index in range(len(keys)) if (base, index) not in unsettled)
            state = self.states[base] = chunk_state(base, keys, settled=bits)
            state.leased = sum(1 << item.at for item in self.held.values() if item.base == base)
            state.delayed = sum(1 << item.at for item in self.delayed.values() if item.base == base)
            if state.leased | state.delayed:
                self.runs.hold(state, state.leased | state.delayed)
        for state in self.states.values():
            self.runs.push(state, state.free)

    @invariant()
    def wants_more_only_when_nothing_may_be_drawn(self) -> None:
        assert not (self.runs and self.runs.wants_more)

    def _drain(self) -> None:
        """Everything that was published comes, and nothing is left behind in memory."""
        self.closed = {}
        self.runs.close(self.closed)
        for _ in range(len(self.columns) * 8 + 8):
            if not self._unsettled():
                break
            self.commit_lands()
            while self.delayed:
                self.wake(0)
            self.draw(8)
            while self.held:
                self.end(list(range(len(self.held))), "ack")
        assert not self._unsettled()
        self.commit_lands()
        assert self._draw(1) is None
        left = self.runs._lines
        assert (self.runs._at, left.by_key, left.parked, left.count, left.rows, left.chunks) == ({}, {}, {}, 0, 0, 0)
        assert not self.runs._behind
        assert not any(base in self.runs._spots for base in self.columns)


TestStrictOrder = StrictOrder.TestCase
TestStrictOrder.settings = settings(
    max_examples=examples(60, exploring=300),
    stateful_step_count=50,
    report_multiple_bugs=False,
)
