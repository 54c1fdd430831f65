"""The backlog of a view in memory: which messages are ready, which wait for a due time, and which are only on disk.

Ready messages are *runs* (a chunk and some of its bits), in one lane per priority. Chunks from a lane's `next_scan` on
are not in memory; the shell reads them one at a time when the runs are used up.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from backend_store.core.leases.leases import ChunkState
from backend_store.core.limits import CHUNKS_LOADED_BYTES_MAX, DELAYED_RUNS_MAX
from backend_store.core.log.chunk import Chunk, clear_column, holes
from backend_store.core.log.records import Retry
from backend_store.core.log.sublogs import SORTING
from backend_store.core.ready.arrival import ArrivalRuns, Run, Runs
from backend_store.core.ready.fair import FairRuns
from backend_store.core.ready.priorities import Lane, Lanes
from backend_store.model import Offset


class Backlog:
    """The chunks of a view that are still needed, their ready runs and their delays."""

    def __init__(
        self,
        *,
        next_scan: Offset,
        more: bool = True,
        shelves: Sequence[int] = (0,),
        make_runs: Callable[[], Runs] = ArrivalRuns,
        reads_keys: bool = False,
        is_fair: bool = False,
    ):
        self.lanes = Lanes(shelves, make_runs, next_scan, more=more)
        self.reads_keys = reads_keys
        self.is_fair = is_fair
        self.nacked_delayed = 0
        self.scheduled = 0
        """Messages published for later whose due time has not come."""
        self.held = 0
        """Messages of a sorting queue that wait for their turn."""
        self.due_waits = False
        """True while scheduled messages whose due time has come are still on disk."""
        self.ended_bytes = 0
        """Bytes of ended messages in chunks that are still stored, as far as they are known. A chunk that was not read
        since the start counts as whole."""
        self._chunks: dict[int, ChunkState] = {}
        self._due: list[tuple[int, int, Run]] = []
        self._due_number = 0
        self._loaded: OrderedDict[int, ChunkState] = OrderedDict()
        self._loaded_bytes = 0

    @property
    def delayed(self) -> int:
        return self.nacked_delayed + self.scheduled + self.held

    # -------------------------------------------------------------------------------------------------- chunks

    def knows(self, base: int) -> bool:
        return base in self._chunks

    def state(self, base: int) -> ChunkState | None:
        return self._chunks.get(base)

    def states(self) -> Iterable[ChunkState]:
        """Every chunk in memory, in no order."""
        return self._chunks.values()

    def supply(self, chunk: Chunk) -> None:
        """Puts back the bytes of a chunk that memory had dropped."""
        state = self._chunks[chunk.base]
        state.chunk = chunk
        self._keep(state)

    def _give_up(self, state: ChunkState) -> None:
        """Gives up a chunk whose stored bytes are damaged: none of its messages can be handed out. Decisions on it that
        are on their way to the disk stand.
        """
        left = state.present
        self.undelay(state, left)
        state.lane.runs.freed(state, left)
        state.settled |= left
        self._forget(state)

    def _count_ended(self, state: ChunkState, gone: int) -> None:
        """Updates `ended_bytes` for a chunk whose `gone` messages have ended."""
        ended = state.size * gone.bit_count() // state.count
        self.ended_bytes += ended - state.ended_bytes
        state.ended_bytes = ended

    def _keep(self, state: ChunkState) -> None:
        self._loaded[state.base] = state
        self._loaded_bytes += state.size
        while self._loaded_bytes > CHUNKS_LOADED_BYTES_MAX and len(self._loaded) > 1:
            _, oldest = self._loaded.popitem(last=False)
            self._loaded_bytes -= oldest.size
            oldest.chunk = None

    def _forget(self, state: ChunkState) -> None:
        self._chunks.pop(state.base, None)
        self._count_ended(state, 0)
        if self._loaded.pop(state.base, None) is not None:
            self._loaded_bytes -= state.size

    def adopt(self, chunk: Chunk, *, settled: int, started: int, attempts: Mapping[int, Retry]) -> ChunkState:
        """Creates the state of a chunk in memory from its stored marks and attempts."""
        state = ChunkState(chunk, settled=settled, started=started)
        if attempts:
            state.attempts = {index: retry.tries for index, retry in attempts.items() if retry.tries != 1}
            state.due = {index: retry.due_ms for index, retry in attempts.items() if retry.due_ms}
            state.history = {index: retry.history for index, retry in attempts.items() if retry.history}
            state.recorded = True
        if chunk.clear:
            state.settled |= holes(chunk)
            state.expires = clear_column(chunk, "exp")
            if self.reads_keys:
                state.keys = clear_column(chunk, "key")
                state.late = _late(chunk) if chunk.shelf == SORTING else 0
        state.lane = self.lanes.of(chunk.shelf)
        if state.settled:
            self._count_ended(state, state.settled)
        self._chunks[chunk.base] = state
        self._keep(state)
        return state

    def clear(self, next_scan: Offset) -> None:
        self._chunks.clear()
        self._loaded.clear()
        self._loaded_bytes = 0
        self.lanes.clear(next_scan)
        self._due.clear()
        self.nacked_delayed = self.scheduled = self.ended_bytes = 0
        self.due_waits = False

    # --------------------------------------------------------------------------------------------------- ready

    @property
    def has_ready(self) -> bool:
        """Whether there may be messages to hand out, in memory or on disk."""
        return self.due_waits or any(lane.waits for lane in self.lanes.all)

    def scan(self, lane: Lane, chunk: Chunk, now_ms: int) -> None:
        """Takes the next chunk of a lane: free messages become ready, those with a later due time wait for it."""
        lane.next_scan = Offset(chunk.base + chunk.count)
        state = self._chunks.get(chunk.base)
        if state is None:
            state = self.adopt(chunk, settled=0, started=0, attempts={})
        elif state.chunk is None:
            self.supply(chunk)
        if state.due:
            self.delay_again(chunk.base, now_ms)
        free = state.free
        if free:
            self._line_up(lane, state, free)

    def _line_up(self, lane: Lane, state: ChunkState, bits: int) -> None:
        """Adds messages to a lane. With `is_fair`, the first messages that have a key make the lane fair; without keys
        fairness would be only a cost.
        """
        runs = lane.runs
        if state.keys is not None and self.is_fair and isinstance(runs, ArrivalRuns):
            lane.runs = runs = FairRuns.from_arrival(runs)
        runs.push(state, bits)

    def came(self, chunk: Chunk, now_ms: int) -> None:
        """Takes a chunk that was just committed: it is next in its lane, or it waits on disk for its turn."""
        lane = self.lanes.of(chunk.shelf)
        if lane.takes_new:
            self.scan(lane, chunk, now_ms)
        else:
            lane.more = True

    def became_due(self, state: ChunkState, bits: int) -> None:
        """Makes scheduled messages ready whose due time has come."""
        if bits := bits & state.free:
            self._line_up(state.lane, state, bits)

    def delay_again(self, base: int, now_ms: int) -> None:
        """Delays a chunk's messages until the due times that were stored for them."""
        state = self._chunks[base]
        for index, due in state.due.items():
            if due > now_ms and state.free >> index & 1:
                self.delay(state, 1 << index, due)

    def put_back(self, state: ChunkState, bits: int) -> None:
        """Puts messages at the front of their lane. Those of a chunk that is yet to be scanned come with that scan."""
        if not self._is_ahead(state):
            state.lane.runs.put_back(state, bits)

    def _is_ahead(self, state: ChunkState) -> bool:
        """Whether the lane has yet to scan the chunk: after a restart its messages may come back before that."""
        lane: Lane = state.lane
        return lane.more and state.shelf == lane.shelf and state.base >= lane.next_scan

    def forget_idle(self, state: ChunkState) -> None:
        """Drops the state of a chunk whose messages are waited for on disk alone."""
        busy = state.leased | state.returning | state.delayed | state.settling | state.committing
        if not busy and self._chunks.get(state.base) is state:
            self._forget(state)

    # --------------------------------------------------------------------------------------------------- delays

    @property
    def can_delay(self) -> bool:
        return len(self._due) < DELAYED_RUNS_MAX

    def delay(self, state: ChunkState, bits: int, due_ms: int) -> None:
        """Delays messages until `due_ms`; `wake` makes them ready."""
        state.delayed |= bits
        state.lane.runs.hold(state, bits)
        self.nacked_delayed += bits.bit_count()
        self._due_number += 1
        heapq.heappush(self._due, (due_ms, self._due_number, Run(state, bits)))

    def undelay(self, state: ChunkState, bits: int) -> None:
        """Ends the delay of messages that were settled meanwhile or are ready again."""
        bits &= state.delayed
        state.delayed &= ~bits
        self.nacked_delayed -= bits.bit_count()

    def wake(self, now_ms: int) -> bool:
        """Makes messages ready that have become due. Returns True if there are any."""
        woken = False
        while self._due and self._due[0][0] <= now_ms:
            run = heapq.heappop(self._due)[2]
            bits = run.bits & run.state.delayed
            self.undelay(run.state, bits)
            if bits:
                run.state.lane.runs.freed(run.state, bits)
                self.put_back(run.state, bits)
                woken = True
        return woken

    def next_due_ms(self) -> int | None:
        return self._due[0][0] if self._due else None

    # ------------------------------------------------------------------------------------------- progress and state

    def progress(self, base: int) -> tuple[int, int, dict[int, int]] | None:
        """Returns (settled bits, started bits, attempts where more than one) of a chunk, or None if not in memory."""
        state = self._chunks.get(base)
        if state is None:
            return None
        return state.settled | state.settling | state.committing, state.started, state.attempts

    def state_of(self, base: int, index: int) -> Literal["ready", "in_flight", "delayed"]:
        state = self._chunks.get(base)
        if state is not None and state.leased >> index & 1:
            return "in_flight"
        if state is not None and state.delayed >> index & 1:
            return "delayed"
        return "ready"


def _late(chunk: Chunk) -> int:
    column = clear_column(chunk, "late")
    return sum(1 << index for index, is_late in enumerate(column or ()) if is_late)
