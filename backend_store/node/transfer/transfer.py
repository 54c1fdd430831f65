"""Moves messages from one queue's log to another's: out of an outbox, or out of a deleted queue.

A message leaves its old log and enters the new one in one commit. Messages that the new queue cannot take now stay
where they are and are tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import structlog

from backend_store.core.leases.leases import Lease
from backend_store.core.limits import TAKE_MESSAGES_MAX
from backend_store.core.log.bits import indexes, lowest
from backend_store.core.log.chunk import Chunk, clear_column
from backend_store.core.log.sublogs import is_scheduled, own_priority
from backend_store.model import Block, PushqError, QueueConfig, QueueFull
from backend_store.node.commit.transaction import Transaction, TransactionResult
from backend_store.node.limits import TRANSFER_LEASE_MS, TRANSFER_RETRY_SECONDS, TRANSFERS_AT_ONCE_MAX
from backend_store.node.transfer.reseal import resealed, unopened

if TYPE_CHECKING:
    from backend_store.node.partitions import Partitions
    from backend_store.node.views.view import View

log = structlog.get_logger("pushq.transfer")

Moved = Callable[[int, PushqError | None], None]
"""(messages, why they stayed): called at the end of one transfer."""


def move(
    view: View,
    lease: Lease,
    target: Partitions,
    annexes: Mapping[int, dict[str, Any]],
    moved: Moved,
    priority: int | None = None,
    *,
    is_new: bool = False,
    at_once: int = 0,
) -> None:
    """Moves what a lease holds, or as much as the other queue has room for; the rest becomes ready again.

    After an internal error the lease keeps what is left until it runs out.

    `priority` None: each message keeps its own, as far as the other queue has that many. `is_new`: the other queue's
    delay and time to live apply, as for messages published there. `at_once`: bits of messages that no longer wait for
    their due time.
    """
    _Move(view, lease, target, annexes, moved, priority, is_new=is_new, at_once=at_once).go_on(lease.bits.bit_count())


class _Move:
    """Moves one lease. If not all of it finds room, the first half is tried, and so on: a queue with room for five of
    eight gets five.
    """

    def __init__(
        self,
        view: View,
        lease: Lease,
        target: Partitions,
        annexes: Mapping[int, dict[str, Any]],
        moved: Moved,
        priority: int | None,
        *,
        is_new: bool,
        at_once: int,
    ):
        self._is_new = is_new
        self._at_once = at_once
        self._view = view
        self._lease = lease
        self._target = target
        self._annexes = annexes
        self._told = moved
        self._priority = priority
        self._moved = 0

    def go_on(self, count: int) -> None:
        """Tries the first `count` messages that are left."""
        bits = lowest(self._lease.bits, count)
        try:
            step = step_of(
                self._view,
                self._lease,
                self._target,
                self._annexes,
                self._decided(count),
                self._priority,
                bits,
                is_new=self._is_new,
                at_once=self._at_once,
            )
        except PushqError as error:  # no key to seal them with now
            self._end(error)
            return
        except Exception:
            # A bug with these messages: they stay leased for a while, so that others may move, and are then tried
            # again.
            log.exception("messages could not be moved", queue=self._view.partition.label)
            self._lease.chunk = None
            self._told(self._moved, None)
            return
        self._view.partition.settle_and_publish(step)

    def _decided(self, count: int) -> Callable[[bool, PushqError | None], None]:
        def decided(has_moved: bool, error: PushqError | None) -> None:
            if has_moved:
                self._moved += count
            left = self._lease.bits.bit_count()
            if has_moved and left:
                self.go_on(min(count, left))
            elif isinstance(error, QueueFull) and count > 1 and left:
                self.go_on(min(count // 2, left))
            else:
                self._end(error)

        return decided

    def _end(self, error: PushqError | None) -> None:
        lease = self._lease
        lease.chunk = None
        self._told(self._moved, error)
        if lease.bits:
            # `unsent` makes them ready at once: whether to wait was decided before.
            self._view.unsent(lease)


def step_of(
    view: View,
    lease: Lease,
    target: Partitions,
    annexes: Mapping[int, dict[str, Any]],
    decided: Callable[[bool, PushqError | None], None],
    priority: int | None = None,
    bits: int | None = None,
    *,
    is_new: bool = False,
    at_once: int = 0,
) -> Transaction:
    """The transaction that moves what a lease holds, or only `bits` of it, to another log. `decided` gets whether it
    did, and why not. Unreadable messages move in whole blocks, which only their own queue can use.

    Raises `Unavailable` while the other queue has no key to seal with.
    """
    assert lease.chunk is not None, "a lease is moved with its chunk in memory"
    bits = lease.bits if bits is None else bits
    blocks = [
        msgspec.structs.replace(block, priority=wanted, due_ms=due_ms)
        for wanted, own in by_priority(lease.chunk, bits, target, annexes, priority)
        for due_ms, part in _by_due(view, lease, own, target, usual_due(target) if is_new else 0, at_once)
        for block in _blocks_of(view, lease.chunk, part, target, as_new(annexes, part, target, due_ms, is_new=is_new))
    ]

    def told(result: TransactionResult | PushqError) -> None:
        has_moved = isinstance(result, TransactionResult) and bool(result.places)
        decided(has_moved, result if isinstance(result, PushqError) else None)

    return Transaction([(view, {lease.token: bits})], [(target, blocks)], told, moves=True)


def by_priority(
    chunk: Chunk, bits: int, target: Target, annexes: Mapping[int, dict[str, Any]], priority: int | None
) -> list[tuple[int, int]]:
    """The messages by their priority in the other queue, highest first. Priorities above its highest become that
    one.
    """
    highest = target.config.priorities - 1
    if priority is not None or not highest:
        return [(min(priority or 0, highest), bits)]
    lying, found = clear_column(chunk, "dead"), dict[int, int]()
    for index in indexes(bits):
        end = annexes.get(index, {}).get("dead") or (lying[index] if lying is not None else None)
        own = min(own_priority(chunk.shelf, end), highest)
        found[own] = found.get(own, 0) | 1 << index
    return sorted(found.items(), reverse=True)


def _may_wait(target: Target) -> bool:
    """Whether messages of a queue can have a due time."""
    return target.config.kind == "work" and target.config.sequencing == "arrival"


def usual_due(target: Target) -> int:
    """When a message that comes to a queue now and has no due time of its own is due; 0 for at once."""
    delay_ms = target.config.delay_ms
    return target.steady_ms() + delay_ms if delay_ms and _may_wait(target) else 0


def as_new(
    annexes: Mapping[int, dict[str, Any]], bits: int, target: Target, due_ms: int, *, is_new: bool
) -> Mapping[int, dict[str, Any]]:
    """Adds the expiry that new messages have in a queue with a time to live."""
    life_ms = target.config.message_ttl_ms
    if not is_new or life_ms is None:
        return annexes
    ends_ms = (due_ms or target.steady_ms()) + life_ms
    return {index: {**annexes.get(index, {}), "exp": ends_ms} for index in indexes(bits)}


def _by_due(
    view: View, lease: Lease, bits: int, target: Partitions, usual_ms: int, at_once: int
) -> list[tuple[int, int]]:
    """The messages by due time, 0 for those that have none. Messages of a deleted queue move before they are due and
    keep their due time, except those in `at_once`.
    """
    state = lease.state
    if not is_scheduled(state.shelf) or not _may_wait(target):
        return [(usual_ms, bits)]
    reader, now_ms = view.partition.reader, view.partition.steady_ms()
    waiting = bits & ~at_once
    later = {due: reader.due_bits(state.base, due) & waiting for due in reader.schedule_of(state.base) if due > now_ms}
    for part in later.values():
        bits &= ~part
    return [(due_ms, part) for due_ms, part in ((usual_ms, bits), *sorted(later.items())) if part]


def _blocks_of(
    view: View, chunk: Chunk, bits: int, target: Partitions, annexes: Mapping[int, dict[str, Any]]
) -> list[Block]:
    number = view.partition.index
    found = resealed(
        chunk,
        bits & ~chunk.unreadable,
        annexes,
        partition=number,
        seal=target.seal,
        is_encrypted=target.config.encrypted,
    )
    if whole := bits & chunk.unreadable:
        routing = target.routing if target.map is not None else None
        found += unopened(chunk, whole, annexes, partition=number, routing=routing)
    return found


class Target(Protocol):
    """The queue that messages go to: its config and its clock."""

    @property
    def config(self) -> QueueConfig: ...

    def steady_ms(self) -> int: ...


class Timers(Protocol):
    is_closing: bool

    def later(self, seconds: float, call: Callable[[], None]) -> None: ...


class Transfer:
    """Moves everything in a view as it becomes ready. An ordinary consumer, except that it never gives up."""

    gateway = ""

    def __init__(
        self,
        view: View,
        target: Callable[[], Partitions | None],
        timers: Timers,
        *,
        annex: Callable[[Lease, int], dict[str, Any]] | None = None,
        on_idle: Callable[[], None] | None = None,
        stays: Callable[[Lease], None] | None = None,
    ):
        self.view = view
        self._target = target
        self._timers = timers
        self._annex = annex
        self._on_idle = on_idle
        self._stays = stays
        """Called with leases whose target queue no longer exists; without it such messages wait for a target."""
        self._at_once = 0
        self._is_pumping = False
        self._waits = False
        self._said_why = False
        view.on_ready = self.pump

    def pump(self) -> None:
        """Leases and moves what is ready, a bounded number of leases at once."""
        if self._waits or self._is_pumping or self._timers.is_closing:
            return
        self._is_pumping = True
        try:
            while self._at_once < TRANSFERS_AT_ONCE_MAX and self.view.has_ready and not self._waits:
                target = self._target()
                if target is None and self._stays is None:
                    self._try_later("the queue it is for does not exist")
                    return
                lease = self.view.take(TAKE_MESSAGES_MAX, self, TRANSFER_LEASE_MS)
                if lease is None:
                    break
                self.view.end_unreadable(lease)
                if not lease.bits:
                    continue
                if target is None:
                    assert self._stays is not None
                    self._stays(lease)
                    continue
                annexes = {n: self._annex(lease, n) for n in indexes(lease.bits)} if self._annex else {}
                self._at_once += 1
                move(self.view, lease, target, annexes, self._moved, is_new=True)
        finally:
            self._is_pumping = False
        if self._on_idle is not None and not self._at_once:
            self._on_idle()

    def _moved(self, messages: int, error: PushqError | None) -> None:
        self._at_once -= 1
        if error is not None:
            self._try_later(error.detail)
            return
        self._said_why = False
        self.pump()  # the other queue's commit reports this; this queue asked its consumers before

    def _try_later(self, why: str) -> None:
        if not self._said_why:
            view = self.view
            log.warning(
                "messages wait for their new queue", queue=view.partition.label, messages=view.tally.live, reason=why
            )
            self._said_why = True
        if not self._waits:
            self._waits = True
            self._timers.later(TRANSFER_RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._waits = False
        if not self.view.partition.closed:
            self.pump()

    # A holder of leases, as the view sees it

    def released(self, count: int) -> None:
        """There is no credit to return."""

    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None:
        """Lost messages are leased again later."""

    def sendable(self) -> None:
        """Leases are only in memory here, whatever the queue's setting."""
