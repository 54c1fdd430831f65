"""Consume, transform, produce in one step: receipts are settled and messages published with one commit, or neither.

The queues may have different partitions of this node; what makes the step whole is that one transaction has them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from backend_store.core.shelves import VIEW_MAIN
from backend_store.model import Block, Published, PushqError
from backend_store.node.room import NOTHING, Amount

if TYPE_CHECKING:
    from backend_store.core.leases import Lease
    from backend_store.node.partitions import Partitions
    from backend_store.node.settling import Settling
    from backend_store.node.view import View

JointReply = Callable[["JointResult | PushqError"], None]


@dataclass(slots=True)
class JointResult:
    """Token → the bits that are settled; where the messages stand, one a publish. Without places nothing was published:
    the receipts had been settled by this very request before, or one of them no longer holds its message, and then none
    is settled.
    """

    settled: dict[str, int]
    places: list[Published] = field(default_factory=list)


@dataclass(slots=True)
class Joint:
    acks: list[tuple[View, dict[str, int]]]
    """Receipts by the view that gave them out, as token → bits."""
    publishes: list[tuple[Partitions, list[Block]]]
    reply: JointReply
    moves: bool = False
    """The messages that are published are those that are settled: nobody has acked them."""
    behind: list[Callable[[], None]] = field(default_factory=list)
    """Ends of leases that it settles some of, and that came after it."""

    def settles(self, view: Settling, lease: Lease) -> bool:
        """Whether it is asked to settle something that a lease still holds."""
        return any(one is view and grouped.get(lease.token, 0) & lease.bits for one, grouped in self.acks)

    def decide(self) -> None:
        """Called once at the start of a commit cycle, before anybody's decisions."""
        self._decide()
        self.leave()

    def leave(self) -> None:
        """It is decided, or never will be: nothing waits for that any more."""
        for view, grouped in self.acks:
            view.let_go(self, grouped)
        behind, self.behind = self.behind, []
        for end in behind:
            end()

    def _decide(self) -> None:
        for view, _ in self.acks:
            view.decide_settles()  # acks that came before, and other steps with the same receipts
        if not all(view.core.holds(grouped) for view, grouped in self.acks):
            self._look_again()
            return
        error = self._why_not()
        if error is not None:
            self.reply(error)
            return
        result = JointResult({})
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
        """Nothing is done now. Where all of it was done before, by these receipts, that is the answer."""
        before: dict[str, int] = {}
        waiting = len(self.acks)

        def known(settled: dict[str, int]) -> None:
            nonlocal waiting
            before.update(settled)
            waiting -= 1
            if not waiting:
                acks = [(token, bits) for _, grouped in self.acks for token, bits in grouped.items()]
                whole = all(before.get(token, 0) & bits == bits and bits for token, bits in acks)
                self.reply(JointResult(before if whole else {}))

        for view, grouped in self.acks:
            view.settle_again(grouped, known)

    def _why_not(self) -> PushqError | None:
        """Each queue is asked once about all that it is to take."""
        calls: dict[Partitions, list[list[Block]]] = {}
        for queue, blocks in self.publishes:
            calls.setdefault(queue, []).append(blocks)
        for queue, theirs in calls.items():
            freed = None if self._stays_in(queue) else self._freed_in(queue)
            if (error := queue.why_refused(theirs, freed, is_own=self._is_own(queue))) is not None:
                return error
        return None

    def _stays_in(self, queue: Partitions) -> bool:
        """Whether the step only moves messages within a queue."""
        return self.moves and all(_is_in(queue, view) for view, _ in self.acks)

    def _is_own(self, queue: Partitions) -> bool:
        """Whether it only moves what the queue has, from one of its views to another."""
        return self.moves and all(queue.get(view.partition.index) is view.partition for view, _ in self.acks)

    def _freed_in(self, queue: Partitions) -> Amount:
        """What the step settles of a queue that it publishes to."""
        freed = NOTHING
        for view, grouped in self.acks:
            if _is_in(queue, view):
                freed = freed.plus(Amount(*view.core.held_by(grouped)))
        return freed


def _is_in(queue: Partitions, view: View) -> bool:
    return view.number == VIEW_MAIN and queue.get(view.partition.index) is view.partition
