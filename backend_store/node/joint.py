"""Consume, transform, produce in one step: receipts are settled and messages published with one commit, or neither.

The queues may have different partitions of this node; what makes the step whole is that one transaction has them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from backend_store.model import Block, Published, PushqError

if TYPE_CHECKING:
    from backend_store.node.partition import Partition
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
    view: View
    grouped: dict[str, int]
    publishes: list[tuple[Partition, list[Block]]]
    reply: JointReply

    def decide(self) -> None:
        """Called once at the start of a commit cycle, before anybody's decisions."""
        view = self.view
        view.decide_settles()  # acks that came before, and other steps with the same receipts
        view.load_for(self.grouped)
        if not view.core.holds(self.grouped):
            view.settle_again(self.grouped, self._refuse)
            return
        error = self._why_not()
        if error is not None:
            self.reply(error)
            return
        result = JointResult({})
        waiting = 1 + len(self.publishes)
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
            result.settled = done
            landed()

        def published(number: int, place: Published | PushqError) -> None:
            if isinstance(place, PushqError):
                self.reply(place)
                return
            places[number] = place
            landed()

        view.settle(self.grouped, settled)
        view.decide_settles()
        for number, (partition, blocks) in enumerate(self.publishes):
            partition.publish(blocks, partial(published, number), must_fit=True)

    def _refuse(self, settled: dict[str, int]) -> None:
        """Nothing was done now. Where all of it was done before, by these receipts, that is the answer."""
        whole = all(settled.get(token, 0) & bits == bits and bits for token, bits in self.grouped.items())
        self.reply(JointResult(settled if whole else {}))

    def _why_not(self) -> PushqError | None:
        for partition, blocks in self.publishes:
            error = partition.why_not(blocks) or partition.why_refused(blocks)
            if error is not None:
                return error
        return None
