"""Settles receipts: acks and nacks wait here for the next commit and are answered with it; extensions of leases kept in
memory take effect at once.

This is the half of a view that decides about leased messages; `view` is the half that leases them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from backend_store.core.limits import DELAYED_RUNS_MAX
from backend_store.core.ready.attempt_policy import Outcome
from backend_store.core.ready.work_queue import WorkView
from backend_store.model import Overloaded, PushqError
from backend_store.node.limits import STRANGE_RECEIPTS_PER_CYCLE

if TYPE_CHECKING:
    from backend_store.core.leases.leases import Lease
    from backend_store.node.commit.transaction import Transaction
    from backend_store.node.partition import Partition

SettleReply = Callable[[dict[str, int] | PushqError], None]
"""Gets token → bits: those of the receipts in question for which the request succeeded."""


class Settle(NamedTuple):
    """Acks that wait for the next commit: token → bits, and the callback for the answer."""

    grouped: dict[str, int]
    reply: SettleReply


class Strange(msgspec.Struct):
    """The receipts of one ack that match no lease in memory; each cycle checks some of them."""

    tokens: Iterator[tuple[str, int]]
    left: int
    done: dict[str, int]
    """Decided so far, of the whole ack."""
    reply: SettleReply


class Return(NamedTuple):
    """A nack that waits for its commit."""

    grouped: dict[str, int]
    due_ms: int | None
    reason: str | None
    tried: bool
    reply: SettleReply


class Acks:
    """Waiting acks and nacks of one view. `core` makes the decisions."""

    partition: Partition
    core: WorkView

    def __init__(self) -> None:
        self._settles: list[Settle] = []
        self._strange: deque[Strange] = deque()
        self._settled: list[tuple[Callable[[Any], None], dict[str, int] | PushqError]] = []
        """Decided before this cycle: by a transaction, or because leases were about to end."""
        self._returns: list[Return] = []
        self._steps: dict[str, list[Transaction]] = {}
        """By token: transactions that wait for a cycle and settle some of that lease."""
        self._is_over = False
        """The queue or group is deleted: no cycle answers later requests of a transaction."""

    @property
    def ready(self) -> int:
        """Messages that are not leased and are due."""
        raise NotImplementedError

    def load_for(self, grouped: dict[str, int]) -> None:
        """Reads the chunks named by receipts from before a restart."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------ commands

    def settle(self, grouped: dict[str, int], reply: SettleReply) -> None:
        """Acks; `reply` gets token → the bits that are settled."""
        if self.partition.closed:
            reply(self.partition.deleted())
            return
        self._settles.append(Settle(grouped, reply))
        self.partition.request()

    def settle_again(self, grouped: dict[str, int], reply: Callable[[dict[str, int]], None]) -> None:
        """`reply` gets token → the bits that these same receipts settled before, once that is durable."""
        if self._is_over:
            reply({})
            return
        self._settled.append((reply, self.core.won(grouped)))
        self.partition.request()

    def settle_soon(self, grouped: dict[str, int], reply: SettleReply | None = None) -> None:
        """Acks without a hurry: no caller waits for the outcome, though `reply` hears of it. In strict order the next
        message of a key does wait."""
        if self.partition.closed and reply is not None:
            reply(self.partition.deleted())
            return
        self._settles.append(Settle(grouped, reply or _no_answer))
        if self.core.is_strict and self.ready:
            self.partition.request()
        else:
            self.partition.request_soon()

    def give_back(
        self,
        grouped: dict[str, int],
        due_ms: int | None,
        reason: str | None,
        reply: SettleReply,
        *,
        tried: bool = True,
    ) -> None:
        """Nacks: once durable, the messages are ready again at once (0), at `due_ms`, or after the queue's back-off
        (None). The attempt counts only if `tried`.
        """
        if self.partition.closed:
            reply(self.partition.deleted())
            return
        self._returns.append(Return(grouped, due_ms, reason, tried, reply))
        self.partition.request()

    def extend(self, grouped: dict[str, int], visibility_ms: int, reply: SettleReply) -> None:
        """Extends leases: at once if leases are kept in memory; if they are stored, when that is durable."""
        now_ms = self.partition.steady_ms()
        held = self.core.extend(grouped, visibility_ms, now_ms)
        self.partition.wake_at(now_ms + visibility_ms)
        if self.core.policy.stores_leases and held:
            self.when_durable(lambda done: reply(done if isinstance(done, PushqError) else held))
        else:
            reply(held)

    def when_durable(self, reply: SettleReply) -> None:
        """`reply` runs when everything decided so far is durable."""
        self._settles.append(Settle({}, reply))
        self.partition.request()

    @property
    def awaits_decisions(self) -> bool:
        """Acks or nacks wait for the next commit."""
        return bool(self._settles or self._strange or self._settled or self._returns)

    def take_waiting(self) -> list[Callable[[Any], None]]:
        """Takes the callbacks of all waiting requests; the queue is deleted."""
        settles, self._settles = self._settles, []
        returns, self._returns = self._returns, []
        settled, self._settled = self._settled, []
        strange, self._strange = self._strange, deque()
        self._is_over = True
        return [
            *(one.reply for one in settles),
            *(one.reply for one in strange),
            *(reply for reply, _ in settled),
            *(one.reply for one in returns),
        ]

    # ------------------------------------------------------------------------------------------------- commits

    def decide(self, answers: list[tuple[Callable[[Any], None], Any]]) -> None:
        """Decides the waiting receipts."""
        if self._settles:
            self.decide_settles()
        if self._strange:
            self._decide_strange()
        answers += self._settled
        self._settled = []
        if self._returns:
            answers += self._decide_returns()

    def decide_first(self) -> None:
        """Decides acks and nacks that came before leases end; they are answered with the next commit."""
        if self._settles:
            self.decide_settles()
        if self._returns and not self._steps:
            self._settled += self._decide_returns()
        elif self._returns:
            behind = [one for one in self._returns if not self._steps.keys().isdisjoint(one.grouped)]
            self._returns = [one for one in self._returns if one not in behind]
            self._settled += self._decide_returns()
            self._returns = behind

    def await_step(self, step: Transaction, grouped: dict[str, int]) -> None:
        """Notes that a transaction waits for a cycle in which it settles `grouped` (token → bits)."""
        for token in grouped:
            self._steps.setdefault(token, []).append(step)

    def let_go(self, step: Transaction, grouped: dict[str, int]) -> None:
        """Removes a transaction that no longer waits."""
        for token in grouped:
            self._steps[token].remove(step)
            if not self._steps[token]:
                del self._steps[token]

    def comes_behind(self, lease: Lease, end: Callable[[], None]) -> bool:
        """Whether a transaction that settles some of the lease came first. The transaction is decided at the start of a
        cycle, with all that it publishes, and not before; `end`, which ends the lease, is called after it."""
        for step in reversed(self._steps.get(lease.token, ())):
            if step.settles(self, lease):
                step.behind.append(end)
                return True
        return False

    def _decide_returns(self) -> list[tuple[Callable[[Any], None], dict[str, int] | PushqError]]:
        returns, self._returns = self._returns, []
        now_ms = self.partition.steady_ms()
        return [(one.reply, self._decide_return(one, now_ms)) for one in returns]

    def decide_settles(self) -> None:
        """Decides the waiting acks; they are answered with this cycle's commit, unless some of their receipts match no
        lease in memory.
        """
        waiting, self._settles = self._settles, []
        is_strange = self.core.is_strange
        for grouped, reply in waiting:
            strange = {token: bits for token, bits in grouped.items() if is_strange(token)}
            if not strange:  # nearly always: running leases
                settled = self.core.settle(grouped)
                if reply is not _no_answer:
                    self._settled.append((reply, settled))
                continue
            known = {token: bits for token, bits in grouped.items() if token not in strange}
            self._strange.append(Strange(iter(strange.items()), len(strange), self.core.settle(known), reply))

    def _decide_strange(self) -> None:
        """Checks some of the receipts without a lease in memory: each costs a signature check and maybe a chunk read.

        Forged receipts come in thousands, so a cycle checks a bounded number, and an ack with many goes last in the
        next cycle.
        """
        budget = STRANGE_RECEIPTS_PER_CYCLE
        for _ in range(len(self._strange)):
            if not budget:
                break
            one = self._strange.popleft()
            own = dict(islice(one.tokens, budget))
            budget -= len(own)
            one.left -= len(own)
            self.load_for(own)
            one.done.update(self.core.settle(own))
            if one.left:
                self._strange.append(one)
            else:
                self._settled.append((one.reply, one.done))
        if self._strange:
            self.partition.request()

    def _decide_return(self, one: Return, now_ms: int) -> dict[str, int] | PushqError:
        core = self.core
        waits = one.due_ms or (one.due_ms is None and one.tried and core.policy.backoff_ms)
        if waits and not core.can_delay:
            return Overloaded(
                f"queue {self.partition.label!r} has reached the limit of {DELAYED_RUNS_MAX} pending delays"
            )
        outcome = Outcome.NACKED if one.tried else Outcome.UNTRIED
        returned: dict[str, int] = {}
        for token, bits in one.grouped.items():
            lease = core.leases.get(token)
            for part in list(lease.parts()) if lease is not None else ():
                given = core.give_back(part, bits, due_ms=one.due_ms, now_ms=now_ms, outcome=outcome, reason=one.reason)
                if given:
                    returned[token] = returned.get(token, 0) | given
                    part.holder.released(given.bit_count())
        return returned


def _no_answer(done: dict[str, int] | PushqError) -> None:
    """For acks whose caller does not wait for the answer."""
