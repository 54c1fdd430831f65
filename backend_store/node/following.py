"""Publishes to a queue in strict order whose idempotency keys are bound before their messages are stored: what comes
behind with the same keys of messages waits for these.

A call is known by the slots of its messages, as bits. It goes when its key is bound, or it has none, and nothing before
it with one of its slots is still there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from backend_store.model import Block

log = structlog.get_logger("pushq.node")


class Follower:
    """A call in the line."""

    __slots__ = ("bits", "go", "is_ready", "messages", "size")

    def __init__(self, bits: int, blocks: Sequence[Block], go: Callable[[], None], *, is_ready: bool):
        self.bits = bits
        self.go = go
        self.is_ready = is_ready
        self.messages = sum(block.count for block in blocks)
        self.size = sum(len(block.data) for block in blocks)


class Following:
    """See the file's first sentence. All of one queue."""

    def __init__(self) -> None:
        self._line: list[Follower] = []
        self._is_going = self._goes_again = False
        self.messages = 0
        """In the line, as `size`, which is bytes."""
        self.size = 0

    def __len__(self) -> int:
        return len(self._line)

    def holds_up(self, bits: int) -> bool:
        """Whether a call with these slots has to wait for one that is here."""
        return any(one.bits & bits for one in self._line)

    def enter(self, bits: int, blocks: Sequence[Block], go: Callable[[], None], *, is_ready: bool) -> Follower:
        """`go` stores the messages. `is_ready`: no key of its own has to be bound."""
        one = Follower(bits, blocks, go, is_ready=is_ready)
        self._line.append(one)
        self.messages += one.messages
        self.size += one.size
        return one

    def ready(self, one: Follower) -> None:
        """Its key is bound."""
        one.is_ready = True
        self._go_on()

    def over(self, one: Follower) -> None:
        """It is answered, and stores nothing."""
        self._leave(self._line.index(one))
        self._go_on()

    def _leave(self, at: int) -> Follower:
        one = self._line.pop(at)
        self.messages -= one.messages
        self.size -= one.size
        return one

    def _go_on(self) -> None:
        if self._is_going:
            self._goes_again = True
            return
        self._is_going = self._goes_again = True
        try:
            while self._goes_again:
                self._goes_again = False
                self._let_go()
        finally:
            self._is_going = False

    def _let_go(self) -> None:
        at = before = 0
        while at < len(self._line):
            one = self._line[at]
            if one.is_ready and not one.bits & before:
                self._leave(at)
                try:
                    one.go()
                except Exception:  # those behind it must not wait for ever
                    log.exception("messages under an idempotency key could not be stored")
            else:
                before |= one.bits
                at += 1
