"""The line of a strictly ordered queue's publishes whose idempotency keys are bound before their messages are stored:
later calls with the same slots wait for earlier ones.

A call goes on when its key is bound, or it has none, and no earlier call with one of its slots is left. A call that
waits only for earlier calls is refused when its time is over; for a call whose key is not bound yet, the answer to the
key decides.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence

import structlog

from backend_store.core.log.bits import indexes
from backend_store.model import Block
from backend_store.node.commit.publish_call import PublishReply
from backend_store.node.timers.alarms import Alarms

log = structlog.get_logger("pushq.node")


def _nothing() -> None:
    """For a call that has nothing to store any more."""


def _unheard(result: object) -> None:
    """For a call without a listener."""


class Follower:
    """A call in the line."""

    __slots__ = ("before", "bits", "go", "is_here", "is_ready", "messages", "reply", "size", "until_ms")

    def __init__(
        self,
        bits: int,
        blocks: Sequence[Block],
        go: Callable[[], None],
        reply: PublishReply,
        *,
        is_ready: bool,
        until_ms: int,
    ):
        self.bits = bits
        self.go = go
        self.reply = reply
        self.is_here = True
        self.is_ready = is_ready
        self.until_ms = until_ms
        self.before = 0
        """In how many of its slots earlier calls are left."""
        self.messages = sum(block.count for block in blocks)
        self.size = sum(len(block.data) for block in blocks)


class OrderedClaims:
    """The line of one queue. A call costs its own slots, however many others wait."""

    def __init__(self) -> None:
        self._lines: dict[int, OrderedDict[Follower, None]] = {}
        """Waiting calls by slot. An `OrderedDict`: a plain dictionary would scan past all removed entries to find its
        first."""
        self._bits = 0
        """Slots with waiting calls."""
        self._count = 0
        self._next: deque[Follower] = deque()
        """Calls that may go on."""
        self._is_going = False
        self._alarms: Alarms[Follower] = Alarms()
        """When each ready call is refused."""
        self.messages = 0
        """Messages in the line; `size` is their bytes."""
        self.size = 0

    def __len__(self) -> int:
        return self._count

    def holds_up(self, bits: int) -> bool:
        """Whether a call with these slots has to wait."""
        return bool(self._bits & bits)

    def enter(
        self,
        bits: int,
        blocks: Sequence[Block],
        go: Callable[[], None],
        *,
        is_ready: bool,
        reply: PublishReply = _unheard,
        until_ms: int = 0,
    ) -> Follower:
        """Adds a call. `go` stores its messages and has `reply` called. `is_ready`: the call has no key to bind. After
        `until_ms` the caller has stopped waiting; 0 for no limit."""
        one = Follower(bits, blocks, go, reply, is_ready=is_ready, until_ms=until_ms)
        one.before = (bits & self._bits).bit_count()
        for slot in indexes(bits):
            self._lines.setdefault(slot, OrderedDict())[one] = None
        self._bits |= bits
        self._watch(one)
        self._count += 1
        self.messages += one.messages
        self.size += one.size
        return one

    def ready(self, one: Follower) -> None:
        """The call's key is bound."""
        one.is_ready = True
        self._go_on((one,))
        self._watch(one)

    def over(self, one: Follower) -> None:
        """Removes a call that is answered and stores nothing."""
        self._go_on(self._leave(one))

    @property
    def until_ms(self) -> int | None:
        """When the next call is refused; None if no call has a limit."""
        return self._alarms.next_ms()

    def give_up(self, now_ms: int, refuse: Callable[[PublishReply], None]) -> None:
        """Refuses calls whose time is over. Calls behind them still wait for calls before them."""
        over = self._alarms.take(now_ms)
        replies = [one.reply for one in over]
        first = [other for one in over for other in self._leave(one)]
        for reply in replies:
            refuse(reply)
        self._go_on(first)

    def _watch(self, one: Follower) -> None:
        if one.until_ms and one.is_ready and one.is_here:
            self._alarms.set(one, one.until_ms)

    def _leave(self, one: Follower) -> list[Follower]:
        """Removes a call; returns the calls that became first in one of its slots."""
        one.is_here = False
        self._count -= 1
        self.messages -= one.messages
        self.size -= one.size
        if one.until_ms:
            self._alarms.drop(one)
        one.go, one.reply = _nothing, _unheard  # the object may live on for a while, its messages must not
        first = []
        for slot in indexes(one.bits):
            line = self._lines[slot]
            was_first = next(iter(line)) is one
            del line[one]
            if not line:
                del self._lines[slot]
                self._bits ^= 1 << slot
            elif was_first:
                head = next(iter(line))
                head.before -= 1
                first.append(head)
        return first

    def _go_on(self, some: Iterable[Follower]) -> None:
        self._next.extend(some)
        if self._is_going:
            return
        self._is_going = True
        try:
            while self._next:
                self._let_go(self._next.popleft())
        finally:
            self._is_going = False

    def _let_go(self, one: Follower) -> None:
        if not one.is_here or not one.is_ready or one.before:
            return
        go = one.go
        self._next.extend(self._leave(one))
        try:
            go()
        except Exception:  # calls behind it must not wait for ever
            log.exception("messages under an idempotency key could not be stored")
