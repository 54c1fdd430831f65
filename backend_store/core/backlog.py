"""The backlog of a work queue in memory: what is ready, what waits for its time, and what lies on disk.

Ready messages are *runs*, a chunk and some of its bits. Chunks from `next_scan` on are not in memory, and the shell
hands them over one at a time when the runs are used up.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from typing import Literal

from backend_store.core.bits import lowest
from backend_store.core.chunk import Chunk
from backend_store.core.leases import ChunkState
from backend_store.core.limits import CHUNKS_LOADED_BYTES_MAX, DELAYED_RUNS_MAX, READY_RUNS_AHEAD
from backend_store.model import Offset


class Run:
    """Messages of one chunk that may be handed out."""

    __slots__ = ("bits", "state")

    def __init__(self, state: ChunkState, bits: int):
        self.state = state
        self.bits = bits


class Backlog:
    """The chunks that somebody may still want something of."""

    def __init__(self, *, next_scan: Offset):
        self.next_scan = next_scan
        self.delayed = 0
        self._chunks: dict[int, ChunkState] = {}
        self._ready: deque[Run] = deque()
        self._due: list[tuple[int, int, Run]] = []
        self._due_number = 0
        self._loaded: OrderedDict[int, ChunkState] = OrderedDict()
        self._loaded_bytes = 0

    # -------------------------------------------------------------------------------------------------- chunks

    def knows(self, base: int) -> bool:
        return base in self._chunks

    def supply(self, chunk: Chunk) -> None:
        """Gives a chunk back that had been dropped."""
        state = self._chunks[chunk.base]
        state.chunk = chunk
        self._keep(state)

    def lose(self, base: int) -> None:
        """Gives a chunk up whose stored bytes are broken: nothing more of it can be handed out."""
        state = self._chunks[base]
        self.delayed -= state.delayed.bit_count()
        state.delayed = 0
        state.settled = state.full & ~state.leased
        self._forget(state)

    def _keep(self, state: ChunkState) -> None:
        self._loaded[state.base] = state
        self._loaded_bytes += state.size
        while self._loaded_bytes > CHUNKS_LOADED_BYTES_MAX and len(self._loaded) > 1:
            _, oldest = self._loaded.popitem(last=False)
            self._loaded_bytes -= oldest.size
            oldest.chunk = None

    def _forget(self, state: ChunkState) -> None:
        self._chunks.pop(state.base, None)
        if self._loaded.pop(state.base, None) is not None:
            self._loaded_bytes -= state.size

    def adopt(self, chunk: Chunk, *, settled: int, started: int, attempts: dict[int, tuple[int, int]]) -> ChunkState:
        """Takes a chunk's stored marks into memory."""
        state = ChunkState(chunk, settled=settled, started=started)
        state.attempts = {index: tries for index, (tries, _) in attempts.items() if tries > 1}
        state.due = {index: due for index, (_, due) in attempts.items() if due}
        state.recorded = bool(attempts)
        self._chunks[chunk.base] = state
        self._keep(state)
        return state

    def clear(self) -> None:
        self._chunks.clear()
        self._loaded.clear()
        self._loaded_bytes = 0
        self._ready.clear()
        self._due.clear()
        self.delayed = 0

    # --------------------------------------------------------------------------------------------------- ready

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def wants(self, base: int) -> bool:
        """Whether a chunk just committed should go straight to the ready runs: it is next, and few wait before it."""
        return base == self.next_scan and len(self._ready) < READY_RUNS_AHEAD

    def missing(self) -> int | None:
        """The chunk that the next `take` needs and that is not in memory."""
        while self._ready:
            run = self._ready[0]
            if run.bits & run.state.free:
                return None if run.state.chunk is not None else run.state.base
            self._ready.popleft()
        return None

    def scan(
        self,
        chunk: Chunk,
        now_ms: int,
        *,
        settled: int = 0,
        started: int = 0,
        attempts: dict[int, tuple[int, int]] | None = None,
    ) -> None:
        """Takes the next chunk of the backlog: what is free becomes ready, what is due later waits."""
        self.next_scan = Offset(chunk.base + chunk.count)
        state = self._chunks.get(chunk.base)
        if state is None:
            state = self.adopt(chunk, settled=settled, started=started, attempts=attempts or {})
        elif state.chunk is None:
            self.supply(chunk)
        self.delay_again(chunk.base, now_ms)
        if state.free:
            self._ready.append(Run(state, state.free))

    def delay_again(self, base: int, now_ms: int) -> None:
        """Lets a chunk's messages wait for the due times that were stored with them."""
        state = self._chunks[base]
        for index, due in state.due.items():
            if due > now_ms and state.free >> index & 1:
                self.delay(state, 1 << index, due)

    def draw(self, limit: int) -> tuple[ChunkState, int] | None:
        """Takes up to `limit` ready messages of one chunk out of the runs."""
        while self._ready:
            run = self._ready[0]
            bits = run.bits & run.state.free
            if bits.bit_count() > limit:
                drawn = lowest(bits, limit)
                run.bits = bits ^ drawn
                return run.state, drawn
            self._ready.popleft()
            if bits:
                return run.state, bits
        return None

    def put_back(self, state: ChunkState, bits: int) -> None:
        """Makes messages the first to be handed out."""
        self._ready.appendleft(Run(state, bits))

    # --------------------------------------------------------------------------------------------------- delays

    @property
    def can_delay(self) -> bool:
        return len(self._due) < DELAYED_RUNS_MAX

    def delay(self, state: ChunkState, bits: int, due_ms: int) -> None:
        state.delayed |= bits
        self.delayed += bits.bit_count()
        self._due_number += 1
        heapq.heappush(self._due, (due_ms, self._due_number, Run(state, bits)))

    def wake(self, now_ms: int) -> bool:
        """Makes ready what has become due. True if there is something new to hand out."""
        woken = False
        while self._due and self._due[0][0] <= now_ms:
            run = heapq.heappop(self._due)[2]
            bits = run.bits & run.state.delayed
            run.state.delayed &= ~bits
            self.delayed -= bits.bit_count()
            if bits:
                self._ready.appendleft(Run(run.state, bits))
                woken = True
        return woken

    def next_due_ms(self) -> int | None:
        return self._due[0][0] if self._due else None

    # ------------------------------------------------------------------------------------------------ what it knows

    def progress(self, base: int) -> tuple[int, int, dict[int, int]] | None:
        """(settled bits, started bits, attempts of those with more than one) of a chunk in memory."""
        state = self._chunks.get(base)
        return None if state is None else (state.settled | state.settling, state.started, state.attempts)

    def state_of(self, base: int, index: int) -> Literal["ready", "in_flight", "delayed"]:
        state = self._chunks.get(base)
        if state is not None and state.leased >> index & 1:
            return "in_flight"
        if state is not None and state.delayed >> index & 1:
            return "delayed"
        return "ready"
