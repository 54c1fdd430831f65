"""One partition, run: takes commands, has the core decide them in cycles, and answers when they are durable.

The partition owns its state; everybody else sends it a command and is called back. Nothing here awaits: a command is
decided in one breath, and the answer comes from the commit that made it true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import structlog

from backend_store.core.chunk import Chunk
from backend_store.core.kept import KeptLease
from backend_store.core.leases import Holder, Lease, receipts_of
from backend_store.core.limits import DELAYED_RUNS_MAX
from backend_store.core.log import append
from backend_store.core.records import PartitionState, Purged, Record
from backend_store.core.work import WorkView
from backend_store.model import Block, Offset, Overloaded, Published, PushqError, QueueNotFound, StorageFull
from backend_store.node.committer import Committer
from backend_store.node.limits import INBOX_BYTES_MAX, INBOX_MESSAGES_MAX
from backend_store.node.reader import LogReader, Progress
from backend_store.node.rows import stage, stage_state
from backend_store.node.sweeper import add_garbage
from backend_store.storage.engine import Batch, Engine

log = structlog.get_logger("pushq.partition")

PublishReply = Callable[[Published | PushqError], None]
SettleReply = Callable[[dict[str, int] | PushqError], None]
PurgeReply = Callable[[int | PushqError], None]


class Decided(NamedTuple):
    """What the commit in flight makes true: the state after it, and who is answered what."""

    chunks: list[Chunk]
    answers: list[tuple[Callable[[Any], None], Any]]
    after: PartitionState


class Surroundings(Protocol):
    """What a partition needs of its node."""

    engine: Engine
    committer: Committer

    def publishes_allowed(self) -> bool: ...
    def why_no_publishes(self) -> str: ...
    def wrote(self, size: int) -> None: ...
    def quarantine(self, partition: Partition, offset: int, data: bytes, reason: str) -> None: ...


class Partition:
    def __init__(self, node: Surroundings, *, replica: int, label: str, state: PartitionState, view: WorkView | None):
        self.node = node
        self.replica = replica
        self.label = label
        self.state = state
        self.view = view
        self.closed = False
        self.on_ready: Callable[[], None] = _nothing
        self.on_appended: Callable[[list[Chunk]], None] = _ignore_chunks
        self.on_deadline: Callable[[Partition, int], None] = _ignore_deadline
        self.on_purged: Callable[[], None] = _nothing
        self._publishes: list[tuple[list[Block], PublishReply]] = []
        self._publish_count = 0
        self._publish_bytes = 0
        self._settles: list[tuple[dict[str, int], SettleReply]] = []
        self._returns: list[tuple[dict[str, int], int, SettleReply]] = []
        self._purges: list[PurgeReply] = []
        self._written_off = [0, 0]
        self._decided: Decided | None = None
        self._reader = LogReader(node.engine, replica, self._broken)

    # ------------------------------------------------------------------------------------------------ commands

    def publish(self, blocks: list[Block], reply: PublishReply) -> None:
        """Stores messages; `reply` gets their place once they are durable, or the error that kept them out."""
        if self.closed:
            reply(self._deleted())
            return
        if not self.node.publishes_allowed():
            reply(StorageFull(f"queue {self.label!r}: {self.node.why_no_publishes()}"))
            return
        count = sum(b.count for b in blocks)
        size = sum(len(b.data) for b in blocks)
        if self._publish_count + count > INBOX_MESSAGES_MAX or self._publish_bytes + size > INBOX_BYTES_MAX:
            reply(
                Overloaded(
                    f"queue {self.label!r}: {self._publish_count} messages wait for the disk", retry_after_ms=1000
                )
            )
            return
        self._publishes.append((blocks, reply))
        self._publish_count += count
        self._publish_bytes += size
        self.node.committer.request(self)

    def settle(self, grouped: dict[str, int], reply: SettleReply) -> None:
        """Acks; `reply` gets token → the bits that are settled."""
        if self.closed:
            reply(self._deleted())
            return
        self._settles.append((grouped, reply))
        self.node.committer.request(self)

    def settle_soon(self, grouped: dict[str, int]) -> None:
        """Acks whose outcome nobody waits for."""
        self._settles.append((grouped, _no_answer))
        self.node.committer.request_soon(self)

    def give_back(self, grouped: dict[str, int], due_ms: int, reply: SettleReply) -> None:
        """Nacks: the attempt counts, the messages are free again (at `due_ms`, if given) once that is durable."""
        if self.closed:
            reply(self._deleted())
            return
        self._returns.append((grouped, due_ms, reply))
        self.node.committer.request(self)

    def give_back_lease(self, lease: Lease) -> None:
        """Returns what a holder that went away still held."""
        if self._view.give_back(lease, lease.bits):
            self.node.committer.request(self)

    def unsent(self, lease: Lease) -> None:
        """Takes back what was leased and never left: the attempt does not count."""
        self._view.unsent(lease, lease.bits)
        self.node.committer.ride_along(self)
        self.on_ready()

    def extend(self, grouped: dict[str, int], visibility_ms: int, now_ms: int) -> dict[str, int]:
        """Moves deadlines at once: a lease is memory, and so is its end."""
        held = self._view.extend(grouped, visibility_ms, now_ms)
        self.on_deadline(self, now_ms + visibility_ms)
        return held

    def purge(self, reply: PurgeReply) -> None:
        """Drops everything stored so far; `reply` gets how many messages that were."""
        if self.closed:
            reply(self._deleted())
            return
        self._purges.append(reply)
        self.node.committer.request(self)

    def write_off(self, messages: int, size: int) -> None:
        """Counts messages out whose entry is broken and was put aside."""
        self._written_off[0] += messages
        self._written_off[1] += size
        self.node.committer.request(self)

    def close(self) -> None:
        """The queue is deleted: nothing more is written, and whoever waits is told."""
        self.closed = True
        publishes, self._publishes = self._publishes, []
        settles, self._settles = self._settles, []
        returns, self._returns = self._returns, []
        purges, self._purges = self._purges, []
        waiting: list[Callable[[Any], None]] = [
            *(reply for _, reply in publishes),
            *(reply for _, reply in settles),
            *(reply for _, _, reply in returns),
            *purges,
        ]
        for reply in waiting:
            self._tell(reply, self._deleted())
        if self.view is not None:
            self.view.purge()
            self.view.next_scan = Offset(self.state.end)

    def _deleted(self) -> QueueNotFound:
        return QueueNotFound(f"queue {self.label!r} was deleted")

    # ---------------------------------------------------------------------------------------------- group commit

    def prepare(self, batch: Batch, now_ms: int) -> None:
        if self.closed:
            return
        publishes, self._publishes = self._publishes, []
        self._publish_count = self._publish_bytes = 0
        appended = append(self.state, [b for call in publishes for b in call[0]], seed=self.replica, now_ms=now_ms)
        decided = Decided(appended.chunks, self._places(publishes), appended.state)
        after = decided.after
        stage(batch, self.replica, appended.records)
        if self.view is not None:
            self._decide_receipts(batch, decided)
        (messages, size), self._written_off = self._written_off, [0, 0]
        after.live = max(0, after.live - messages)
        after.live_bytes = max(0, after.live_bytes - size)
        if self._purges:
            self._decide_purge(batch, decided)
        stage_state(batch, self.replica, after)
        self._decided = decided
        if publishes:
            self.node.wrote(sum(len(c.data) for c in appended.chunks))

    def _places(self, publishes: list[tuple[list[Block], PublishReply]]) -> list[tuple[Callable[[Any], None], Any]]:
        answers: list[tuple[Callable[[Any], None], Any]] = []
        base = self.state.end
        for blocks, reply in publishes:
            count = sum(b.count for b in blocks)
            answers.append((reply, Published(0, Offset(base), count)))
            base += count
        return answers

    def _decide_receipts(self, batch: Batch, decided: Decided) -> None:
        view, after = self._view, decided.after
        settles, self._settles = self._settles, []
        returns, self._returns = self._returns, []
        for grouped, reply in settles:
            self._load_for(view, grouped)
            decided.answers.append((reply, view.settle(grouped)))
        for grouped, due_ms, reply in returns:
            decided.answers.append((reply, self._decide_return(view, grouped, due_ms)))
        has_decided = view.has_decided
        records, settled, done = view.records()
        stage(batch, self.replica, records)
        after.live -= settled
        after.acked_total += settled
        after.live_bytes -= sum(state.size for state in done)
        if has_decided:
            after.end += 1  # the decision's own place in the log

    def _decide_return(self, view: WorkView, grouped: dict[str, int], due_ms: int) -> dict[str, int] | PushqError:
        if due_ms and not view.can_delay:
            return Overloaded(f"queue {self.label!r}: {DELAYED_RUNS_MAX} delays wait already, the most a queue keeps")
        returned: dict[str, int] = {}
        for token, bits in grouped.items():
            lease = view.leases.get(token)
            for part in list(lease.parts()) if lease is not None else ():
                given = view.give_back(part, bits, due_ms)
                if given:
                    returned[token] = returned.get(token, 0) | given
                    part.holder.released(given.bit_count())
        return returned

    def _decide_purge(self, batch: Batch, decided: Decided) -> None:
        purges, self._purges = self._purges, []
        after = decided.after
        record: Record = Purged(Offset(after.end))
        stage(batch, self.replica, [record])
        add_garbage(batch, self.replica, after.end)
        gone, after.live, after.live_bytes = after.live, 0, 0
        after.floor = after.end
        after.end += 1
        decided.answers.extend((reply, gone) for reply in purges)

    def committed(self) -> None:
        if self._decided is None:
            assert self.closed, f"{self.label}: a commit that nobody prepared"
            return
        (chunks, answers, after), self._decided = self._decided, None
        before, self.state = self.state, after
        purged = after.floor > before.floor
        view = self.view
        if view is not None and not self.closed:
            if purged:
                view.purge()
                view.next_scan = Offset(after.floor)
            else:
                self._apply(view, chunks, before.end)
        for reply, value in answers:
            self._tell(reply, value)
        if self.closed:
            return  # the queue is deleted: its consumers were told, and nothing is handed out any more
        if purged:
            self._tell(self.on_purged)
        if chunks:
            self._tell(self.on_appended, chunks)
        if view is not None:
            self._tell(self.on_ready)

    def _apply(self, view: WorkView, chunks: list[Chunk], end: Offset | int) -> None:
        view.committed()
        if view.delayed and (wakeup_ms := view.next_wakeup_ms()) is not None:
            self.on_deadline(self, wakeup_ms)
        for chunk in chunks:
            if view.wants(chunk.base):
                view.scan(chunk, self.state.time_ms)
            end = chunk.base + chunk.count
        if view.next_scan == end:
            view.next_scan = Offset(self.state.end)  # what follows the last message is a decision's place

    def failed(self, error: PushqError) -> None:
        """The process is about to end; whoever waits for the commit is told that the outcome is unknown."""
        decided, self._decided = self._decided, None
        for reply, _ in decided.answers if decided is not None else ():
            self._tell(reply, error)

    def _tell(self, listener: Callable[..., None], *what: Any) -> None:
        try:
            listener(*what)
        except Exception:
            # The listener's own fault; what the others wait for is true and must still be told.
            log.exception("a listener failed on what it was told", queue=self.label)

    # ------------------------------------------------------------------------------------------------- delivery

    @property
    def _view(self) -> WorkView:
        assert self.view is not None, f"{self.label}: a stream has no leases without a group"
        return self.view

    @property
    def has_ready(self) -> bool:
        view = self._view
        return view.has_ready or view.next_scan < self.state.high_watermark

    def recover(self, now_ms: int) -> None:
        """Takes up the delays that outlast a restart: such messages are not ready, wherever in the backlog they lie."""
        if self.view is None:
            return
        for base in self._reader.delayed(now_ms):
            if base >= self.state.floor:
                self._delay_again(base, now_ms)
        if (wakeup_ms := self.view.next_wakeup_ms()) is not None:
            self.on_deadline(self, wakeup_ms)

    def _delay_again(self, base: int, now_ms: int) -> None:
        chunk = self.read(Offset(base))
        if chunk is not None and chunk.base == base:
            self._adopt(self._view, chunk)
            self._view.delay_again(base, now_ms)

    def restore(self, kept: KeptLease, holder: Holder) -> Lease | None:
        """Takes up a lease that a clean stop kept."""
        view = self._view
        chunk = self.read(Offset(kept.base))
        if chunk is None or chunk.base != kept.base:
            return None
        self._adopt(view, chunk)
        lease = view.restore(kept, holder)
        if lease is not None:
            self.on_deadline(self, lease.deadline_ms)
        return lease

    def take(self, limit: int, holder: Holder, visibility_ms: int, now_ms: int) -> Lease | None:
        """Leases up to `limit` messages of one chunk, or nothing. The lease's chunk is in memory when this returns."""
        view = self._view
        while True:
            missing = view.missing()
            if missing is not None:
                self._supply(view, missing)
                continue
            if not view.has_ready and not self._scan_next(view, now_ms):
                return None
            if not view.has_ready:
                continue
            lease = view.take(limit, holder, visibility_ms, now_ms)
            if lease is not None:
                self.node.committer.ride_along(self)
                self.on_deadline(self, lease.deadline_ms)
                return lease
            if view.has_ready:
                return None  # the queue's in-flight limit

    def _scan_next(self, view: WorkView, now_ms: int) -> bool:
        chunk = self.read(Offset(max(view.next_scan, self.state.floor)))
        if chunk is None:
            view.next_scan = Offset(self.state.end)
            return False
        self._adopt(view, chunk)
        view.scan(chunk, now_ms)
        return True

    def _adopt(self, view: WorkView, chunk: Chunk) -> None:
        if not view.knows(chunk.base):
            stored = self._reader.progress(chunk.base)
            view.adopt(chunk, settled=stored.settled, started=stored.started, attempts=stored.attempts)

    def _load_for(self, view: WorkView, grouped: dict[str, int]) -> None:
        """Reads the chunks that receipts from before a restart name."""
        for base in view.unknown_bases(grouped):
            if self.state.floor <= base < self.state.high_watermark:
                chunk = self.read(Offset(base))
                if chunk is not None and chunk.base == base:
                    self._adopt(view, chunk)

    def _supply(self, view: WorkView, base: int) -> None:
        chunk = self.read(Offset(base))
        if chunk is not None and chunk.base == base:
            view.supply(chunk)
        else:
            view.lose(base)  # broken since it was last read, and put aside

    def read(self, offset: Offset) -> Chunk | None:
        """The first committed chunk at or above `offset`. A corrupt one is put aside, counted and skipped.

        What was purged is not there, even while its rows still wait to be swept.
        """
        return self._reader.first(max(offset, self.state.floor), self.state.high_watermark)

    def progress(self, base: int) -> Progress:
        """What is stored of a chunk's messages."""
        return self._reader.progress(base)

    def _broken(self, offset: int, data: bytes, reason: str) -> None:
        self.node.quarantine(self, offset, data, reason)

    def next_wakeup_ms(self) -> int | None:
        return None if self.view is None else self.view.next_wakeup_ms()

    def tick(self, now_ms: int) -> None:
        """Ends leases that ran out and wakes messages that became due."""
        view = self._view
        for lease in view.leases.expired(now_ms):
            receipts = receipts_of(lease.token, lease.bits)
            view.give_back(lease, lease.bits)
            lease.holder.released(len(receipts))
            lease.holder.lost(receipts)
            self.node.committer.request(self)
        if view.wake(now_ms):
            self.on_ready()


def _no_answer(done: dict[str, int] | PushqError) -> None:
    """Nobody waits for this answer."""


def _nothing() -> None:
    """Nobody listens yet."""


def _ignore_chunks(chunks: list[Chunk]) -> None:
    """Nobody listens yet."""


def _ignore_deadline(partition: Partition, deadline_ms: int) -> None:
    """Nobody keeps time yet."""
