"""Publishes to a queue in strict order whose idempotency keys are bound before their messages are stored: what comes
behind with the same keys of messages waits for these.

A call is known by the slots of its messages, as bits. It goes when its key is bound, or it has none, and nothing before
it with one of its slots is still there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import structlog

from backend_store.core.bits import indexes
from backend_store.model import Block

log = structlog.get_logger("pushq.node")


class Follower:
    """A call in the line."""

    __slots__ = ("before", "bits", "go", "is_here", "is_ready", "messages", "size")

    def __init__(self, bits: int, blocks: Sequence[Block], go: Callable[[], None], *, is_ready: bool):
        self.bits = bits
        self.go = go
        self.is_here = True
        self.is_ready = is_ready
        self.before = 0
        """In how many of its slots others are before it."""
        self.messages = sum(block.count for block in blocks)
        self.size = sum(len(block.data) for block in blocks)


class Following:
    """See the file's first sentence. All of one queue. A call costs its own slots, however many others are here."""

    def __init__(self) -> None:
        self._lines: dict[int, deque[Follower]] = {}
        """By slot, those that are here or were: each begins with one that is."""
        self._bits = 0
        """The slots with a line."""
        self._count = 0
        self._next: deque[Follower] = deque()
        """Those that may go."""
        self._is_going = False
        self.messages = 0
        """In the line, as `size`, which is bytes."""
        self.size = 0

    def __len__(self) -> int:
        return self._count

    def holds_up(self, bits: int) -> bool:
        """Whether a call with these slots has to wait for one that is here."""
        return bool(self._bits & bits)

    def enter(self, bits: int, blocks: Sequence[Block], go: Callable[[], None], *, is_ready: bool) -> Follower:
        """`go` stores the messages. `is_ready`: no key of its own has to be bound."""
        one = Follower(bits, blocks, go, is_ready=is_ready)
        one.before = (bits & self._bits).bit_count()
        for slot in indexes(bits):
            self._lines.setdefault(slot, deque()).append(one)
        self._bits |= bits
        self._count += 1
        self.messages += one.messages
        self.size += one.size
        return one

    def ready(self, one: Follower) -> None:
        """Its key is bound."""
        one.is_ready = True
        self._go_on((one,))

    def over(self, one: Follower) -> None:
        """It is answered, and stores nothing."""
        self._go_on(self._leave(one))

    def _leave(self, one: Follower) -> list[Follower]:
        """Those that have come to the beginning of another line with that."""
        one.is_here = False
        self._count -= 1
        self.messages -= one.messages
        self.size -= one.size
        first = []
        for slot in indexes(one.bits):
            line = self._lines[slot]
            if line[0] is not one:
                continue  # it is passed over when those before it have gone
            while line and not line[0].is_here:
                line.popleft()
            if line:
                line[0].before -= 1
                first.append(line[0])
            else:
                del self._lines[slot]
                self._bits ^= 1 << slot
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
        self._next.extend(self._leave(one))
        try:
            one.go()
        except Exception:  # those behind it must not wait for ever
            log.exception("messages under an idempotency key could not be stored")
