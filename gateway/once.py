"""Publishes under an idempotency key: replies that are known → the partition, which decides → the reply, kept.

A repeat gets the places of the first messages, with `duplicate`. Whether it is one is the partition's to say wherever
no reply is known, so what is lost here costs time and never a second message. While the partition takes long, as at a
change of its leader or on a slow disk, Redis is asked what another gateway, or this one before its restart, answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from backend_store.model import (
    Claim,
    IdempotencyMismatch,
    Published,
    PushqError,
    RequestInProgress,
)
from gateway.limits import REPLIES_ASK_SECONDS
from gateway.replies import MemoryReplies, Reply
from push.ports import Prepared, Target
from push.published import repeated_call, runs_of_call

if TYPE_CHECKING:
    from gateway.shared_replies import RedisReplies

PublishReply = Callable[[Published | PushqError], None]

IN_PROGRESS_RETRY_MS: Final = 200
_CLOCK_STEP_SECONDS: Final = 0.001
"""A timer may be so much too early, by the loop's clock."""


class Once:
    """One gateway's calls under idempotency keys. Belongs to the event loop."""

    def __init__(self, shared: RedisReplies | None = None, *, ask_seconds: float = REPLIES_ASK_SECONDS) -> None:
        self._memory = MemoryReplies()
        self._shared = shared
        self._ask_seconds = ask_seconds
        self._late: deque[tuple[float, _Call]] = deque()
        """When Redis is asked about which call, if it has no answer by then."""
        self._timer: asyncio.TimerHandle | None = None
        """For the first of them."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def publish(self, queue: Target, prepared: Prepared, reply: PublishReply) -> None:
        """Stores the messages of a call with a claim, or tells what became of the first such call."""
        claim = prepared.claim
        assert claim is not None
        known = self._memory.begin(claim)
        if known is not None:
            reply(replayed(known, prepared, claim))
            return
        call = _Call(prepared, claim, queue.config.dedupe_window_ms, reply)
        if self._shared is not None:
            loop = self._loop
            if loop is None:  # asked for once: it costs a call of the system each time
                loop = self._loop = asyncio.get_running_loop()
            self._late.append((loop.time() + self._ask_seconds, call))
            if self._timer is None:
                self._timer = loop.call_later(self._ask_seconds, self._ask, loop, self._shared)
        queue.publish(prepared.blocks, partial(self._stored, call), claim, until_ms=prepared.until_ms)

    async def close(self) -> None:
        """Waits a moment for replies on their way."""
        if self._timer is not None:
            self._timer.cancel()
        if self._shared is not None:
            await self._shared.close()

    def _ask(self, loop: asyncio.AbstractEventLoop, shared: RedisReplies) -> None:
        """Asks for the replies to calls that wait long. Nearly all have their answer: one timer does for all."""
        self._timer, late = None, self._late
        while late and (late[0][1].is_answered or late[0][0] <= loop.time() + _CLOCK_STEP_SECONDS):
            _, call = late.popleft()
            if not call.is_answered:
                shared.ask(call.claim, partial(self._found, call), partial(_is_waited_for, call))
        if late:
            self._timer = loop.call_at(late[0][0], self._ask, loop, shared)

    def _found(self, call: _Call, known: Reply | None) -> None:
        """What Redis has. Whether a payload is another one than the first, the partition says."""
        if known is not None and known.payload == call.claim.payload:
            self._memory.finish(call.claim, known, call.window_ms)
            call.answer(replayed(known, call.prepared, call.claim))

    def _stored(self, call: _Call, result: Published | PushqError) -> None:
        """The partition's word. A reply is kept where it is complete: what was refused may find room another time."""
        runs = runs_of_call(result, call.prepared) if isinstance(result, Published) else None
        if runs is None or not isinstance(result, Published):
            self._memory.drop(call.claim)
        else:
            made = Reply(call.claim.payload, runs, result.fsynced, result.replicas)
            self._memory.finish(call.claim, made, call.window_ms)
            # What a crash of this process may take back must not be told by another one.
            if self._shared is not None and result.fsynced:
                self._shared.finish(call.claim, made, call.window_ms)
        call.answer(result)


class _Call:
    """A call that the partition decides. Whoever knows the answer first gives it."""

    __slots__ = ("claim", "prepared", "window_ms", "_reply")

    def __init__(self, prepared: Prepared, claim: Claim, window_ms: int, reply: PublishReply) -> None:
        self.prepared = prepared
        self.claim = claim
        self.window_ms = window_ms
        self._reply: PublishReply | None = reply

    @property
    def is_answered(self) -> bool:
        return self._reply is None

    def answer(self, result: Published | PushqError) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            reply(result)


def _is_waited_for(call: _Call) -> bool:
    return not call.is_answered


def replayed(known: Reply, prepared: Prepared, claim: Claim) -> Published | PushqError:
    """The answer to a call whose key is known."""
    if known.runs is None:
        # Also with another payload: whose the key is, only the answer under way can tell.
        detail = "a request under this idempotency key is still in progress"
        return RequestInProgress(detail, retry_after_ms=IN_PROGRESS_RETRY_MS)
    if known.payload != claim.payload:
        return IdempotencyMismatch(
            "this idempotency key belongs to a request with another payload; take a new key for it"
        )
    return repeated_call(known.runs, prepared, fsynced=known.fsynced, replicas=known.replicas)


def is_replay(published: Published) -> bool:
    """Whether each message of the call was there before."""
    others = published.others
    return published.is_repeat or (
        others is not None
        and len(others) == published.count
        and not any(isinstance(other, PushqError) for other in others.values())
    )
