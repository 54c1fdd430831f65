"""Combines a queue's views of one kind, one per partition, into one.

A receipt names its partition, so each goes to the view that gave it out. Ready messages are leased from the views in
turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from backend_store.core.leases.leases import Holder, Lease
from backend_store.core.leases.receipts import partition_of_token
from backend_store.model import PushqError
from backend_store.node.views.acks import SettleReply
from backend_store.node.views.view import View

AskView = Callable[[View, dict[str, int], SettleReply], None]


class Views:
    """One queue's views of one kind. Nearly always there is one view, and then calls go to it directly."""

    __slots__ = ("_by_partition", "_next", "all")

    def __init__(self, views: Sequence[View]):
        self.all: Sequence[View] = ()
        self._by_partition: dict[int, View] = {}
        self._next = 0
        self.set(views)

    def set(self, views: Sequence[View]) -> None:
        """Replaces the views: partitions came or went."""
        self.all = views
        self._by_partition = {view.partition.index: view for view in views}

    @property
    def first(self) -> View:
        return self.all[0]

    # ------------------------------------------------------------------------------------------------------ receipts

    def ask(self, grouped: dict[str, int], ask: AskView, reply: SettleReply) -> None:
        """Has each view decide about its own receipts; `reply` gets token → bits of all."""
        if len(self.all) == 1:
            ask(self.all[0], grouped, reply)
            return
        own = self.by_view(grouped)
        if not own:
            reply({})
            return
        answer = Together(len(own), reply)
        for view, receipts in own:
            ask(view, receipts, answer.told)

    def by_view(self, grouped: dict[str, int]) -> list[tuple[View, dict[str, int]]]:
        """Receipts by the view that gave them out; those of retired partitions are left out."""
        if len(self.all) == 1:
            return [(self.all[0], grouped)]
        own: dict[int, dict[str, int]] = {}
        for token, bits in grouped.items():
            partition = partition_of_token(token)
            if partition in self._by_partition:
                own.setdefault(partition, {})[token] = bits
        return [(self._by_partition[partition], receipts) for partition, receipts in own.items()]

    def of(self, lease: Lease) -> View | None:
        """The view that gave a lease out; None if its partition is gone."""
        return self.all[0] if len(self.all) == 1 else self._by_partition.get(lease.state.partition)

    # ------------------------------------------------------------------------------------------------------ delivery

    @property
    def has_ready(self) -> bool:
        if len(self.all) == 1:
            return self.all[0].has_ready
        return any(view.has_ready for view in self.all)

    @property
    def ready(self) -> int:
        if len(self.all) == 1:
            return self.all[0].ready
        return sum(view.ready for view in self.all)

    def take(self, limit: int, holder: Holder, visibility_ms: int) -> Lease | None:
        """Leases messages of one chunk of one partition; the next call begins with the next partition."""
        if len(self.all) == 1:
            return self.all[0].take(limit, holder, visibility_ms)
        most = self.first.core.policy.in_flight_max - sum(view.core.in_flight for view in self.all)
        if most <= 0:
            return None
        count = len(self.all)
        for turn in range(self._next, self._next + count):
            # A view with nothing ready is asked too: it may have paused its reading, and sets its timer only when
            # asked.
            lease = self.all[turn % count].take(min(limit, most), holder, visibility_ms)
            if lease is not None:
                self._next = (turn + 1) % count
                return lease
        return None

    def on_ready(self, wake: Callable[[], None]) -> None:
        for view in self.all:
            view.on_ready = wake

    # -------------------------------------------------------------------------------------------------------- numbers

    def sum(self, number: Callable[[View], int]) -> int:
        return sum(map(number, self.all))


class Together:
    """Merges the answers of several views. An error of one view is the whole answer: the caller repeats the request."""

    def __init__(self, count: int, reply: SettleReply):
        self._left = count
        self._reply = reply
        self._done: dict[str, int] = {}
        self._error: PushqError | None = None

    def told(self, done: dict[str, int] | PushqError) -> None:
        self._left -= 1
        if isinstance(done, PushqError):
            self._error = done
        else:
            self._done |= done
        if not self._left:
            self._reply(self._error if self._error is not None else self._done)


def giving_back(due_ms: int | None, reason: str | None, *, tried: bool) -> AskView:
    return partial(_give_back, due_ms, reason, tried)


def _give_back(
    due_ms: int | None, reason: str | None, tried: bool, view: View, own: dict[str, int], told: SettleReply
) -> None:
    view.give_back(own, due_ms, reason, told, tried=tried)


def extending(visibility_ms: int) -> AskView:
    return partial(_extend, visibility_ms)


def _extend(visibility_ms: int, view: View, own: dict[str, int], told: SettleReply) -> None:
    view.extend(own, visibility_ms, told)
