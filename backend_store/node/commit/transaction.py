"""A transaction (consume-transform-produce): settles receipts and publishes messages in one commit, or does neither.

The queues may have different partitions on this node; the transaction is atomic because one commit holds all its parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from backend_store.core.log.sublogs import VIEW_MAIN
from backend_store.model import Block, Published, PushqError
from backend_store.node.publishing.queue_limits import NOTHING, Amount

if TYPE_CHECKING:
    from backend_store.core.leases.leases import Lease
    from backend_store.node.partitions import Partitions
    from backend_store.node.views.acks import Acks
    from backend_store.node.views.view import View

JointReply = Callable[["TransactionResult | PushqError"], None]


@dataclass(slots=True)
class TransactionResult:
    """`settled`: token → the bits that are settled. `places`: where the messages are, one entry per publish. Without
    places nothing was published: either this same request had settled the receipts before, or one of them no longer
    holds its message, and then none is settled.
    """

    settled: dict[str, int]
    places: list[Published] = field(default_factory=list)


@dataclass(slots=True)
class Transaction:
    acks: list[tuple[View, dict[str, int]]]
    """Receipts by the view that gave them out, as token → bits."""
    publishes: list[tuple[Partitions, list[Block]]]
    reply: JointReply
    moves: bool = False
    """The published messages are the settled ones: they move, and were not acked by a consumer."""
    behind: list[Callable[[], None]] = field(default_factory=list)
    """Called after the transaction: ends of leases that it settles in part, which came after it."""

    def settles(self, view: Acks, lease: Lease) -> bool:
        """Whether the transaction settles something that a lease still holds."""
        return any(one is view and grouped.get(lease.token, 0) & lease.bits for one, grouped in self.acks)

    def decide(self) -> None:
        """Called once at the start of a commit cycle, before any member's decisions."""
        self._decide()
        self.leave()

    def leave(self) -> None:
        """The transaction is decided, or never will be: stops blocking leases."""
        for view, grouped in self.acks:
            view.let_go(self, grouped)
        behind, self.behind = self.behind, []
        for end in behind:
            end()

    def _decide(self) -> None:
        for view, _ in self.acks:
            view.decide_settles()  # earlier acks, and other transactions with the same receipts
        if not all(view.core.holds(grouped) for view, grouped in self.acks):
            self._look_again()
            return
        error = self._why_not()
        if error is not None:
            self.reply(error)
            return
        result = TransactionResult({})
        waiting = len(self.acks) + len(self.publishes)
        places: dict[int, Published] = {}

        def landed() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                result.places = [places[number] for number in sorted(places)]
                self.reply(result)

        def settled(done: dict[str, int] | PushqError) -> None:
            if isinstance(done, PushqError):
                self.reply(done)
                return
            result.settled |= done
            landed()

        def published(number: int, place: Published | PushqError) -> None:
            if isinstance(place, PushqError):
                self.reply(place)
                return
            places[number] = place
            landed()

        for view, grouped in self.acks:
            if view.number == VIEW_MAIN:
                inbox = view.partition.inbox
                inbox.freed = inbox.freed.plus(Amount(*view.core.held_by(grouped)))
            if self.moves:
                view.move_out(grouped)
            view.settle(grouped, settled)
            view.decide_settles()
        for number, (queue, blocks) in enumerate(self.publishes):
            stays = self._stays_in(queue)
            queue.publish(blocks, partial(published, number), must_fit=True, moves=self.moves, stays=stays)

    def _look_again(self) -> None:
        """Answers without doing anything: with what was settled, if these same receipts settled all of it before."""
        before: dict[str, int] = {}
        waiting = len(self.acks)

        def known(settled: dict[str, int]) -> None:
            nonlocal waiting
            before.update(settled)
            waiting -= 1
            if not waiting:
                acks = [(token, bits) for _, grouped in self.acks for token, bits in grouped.items()]
                whole = all(before.get(token, 0) & bits == bits and bits for token, bits in acks)
                self.reply(TransactionResult(before if whole else {}))

        for view, grouped in self.acks:
            view.settle_again(grouped, known)

    def _why_not(self) -> PushqError | None:
        """Asks each queue once about all that it is to take."""
        calls: dict[Partitions, list[list[Block]]] = {}
        for queue, blocks in self.publishes:
            calls.setdefault(queue, []).append(blocks)
        for queue, theirs in calls.items():
            freed = None if self._stays_in(queue) else self._freed_in(queue)
            if (error := queue.why_refused(theirs, freed, is_own=self._is_own(queue))) is not None:
                return error
        return None

    def _stays_in(self, queue: Partitions) -> bool:
        """Whether the transaction only moves messages within a queue."""
        return self.moves and all(_is_in(queue, view) for view, _ in self.acks)

    def _is_own(self, queue: Partitions) -> bool:
        """Whether it only moves the queue's own messages from one view to another."""
        return self.moves and all(queue.get(view.partition.index) is view.partition for view, _ in self.acks)

    def _freed_in(self, queue: Partitions) -> Amount:
        """What the transaction settles of a queue that it publishes to."""
        freed = NOTHING
        for view, grouped in self.acks:
            if _is_in(queue, view):
                freed = freed.plus(Amount(*view.core.held_by(grouped)))
        return freed


def _is_in(queue: Partitions, view: View) -> bool:
    return view.number == VIEW_MAIN and queue.get(view.partition.index) is view.partition
