"""Publishes under an idempotency key: answers from the reply cache, else publishes to the partition and caches the
reply.

A repeat gets the places of the first call's messages, with `duplicate`. If no reply is cached, the partition decides
whether a call is a repeat, so a lost cache entry costs time and never a second message. While the partition is slow, as
at a change of its leader or on a slow disk, Redis is asked for the reply that another gateway, or this one before its
restart, gave.
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
from gateway.publishing.reply_cache import MemoryReplies, Reply
from push.encoding.publish_reply import repeated_call, runs_of_call
from push.ports import Prepared, Target

if TYPE_CHECKING:
    from gateway.publishing.shared_reply_cache import RedisReplies

PublishReply = Callable[[Published | PushqError], None]

IN_PROGRESS_RETRY_MS: Final = 200
_CLOCK_STEP_SECONDS: Final = 0.001
"""How early a timer of the loop may fire."""


class IdempotentPublish:
    """All calls under idempotency keys of one gateway process. Used from its event loop only."""

    def __init__(self, shared: RedisReplies | None = None, *, ask_seconds: float = REPLIES_ASK_SECONDS) -> None:
        self._memory = MemoryReplies()
        self._shared = shared
        self._ask_seconds = ask_seconds
        self._late: deque[tuple[float, _Call]] = deque()
        """(when to ask Redis, call), earliest first; a call that has its answer by then is skipped."""
        self._timer: asyncio.TimerHandle | None = None
        """Fires for the first entry of `_late`."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def publish(self, queue: Target, prepared: Prepared, reply: PublishReply) -> None:
        """Stores the messages of a call with a claim, or replies with the result of the first such call."""
        claim = prepared.claim
        assert claim is not None
        known = self._memory.begin(claim)
        if known is not None:
            reply(replayed(known, prepared, claim))
            return
        call = _Call(prepared, claim, queue.config.dedupe_window_ms, reply)
        if self._shared is not None:
            loop = self._loop
            if loop is None:  # looked up once: it costs a system call each time
                loop = self._loop = asyncio.get_running_loop()
            self._late.append((loop.time() + self._ask_seconds, call))
            if self._timer is None:
                self._timer = loop.call_later(self._ask_seconds, self._ask, loop, self._shared)
        queue.publish(prepared.blocks, partial(self._stored, call), claim, until_ms=prepared.until_ms)

    async def close(self) -> None:
        """Stops the timer, and waits up to a second for replies on their way to Redis."""
        if self._timer is not None:
            self._timer.cancel()
        if self._shared is not None:
            await self._shared.close()

    def _ask(self, loop: asyncio.AbstractEventLoop, shared: RedisReplies) -> None:
        """Asks Redis for the replies to calls that have waited long. One timer serves all calls, because nearly all are
        answered before."""
        self._timer, late = None, self._late
        while late and (late[0][1].is_answered or late[0][0] <= loop.time() + _CLOCK_STEP_SECONDS):
            _, call = late.popleft()
            if not call.is_answered:
                shared.ask(call.claim, partial(self._found, call), partial(_is_waited_for, call))
        if late:
            self._timer = loop.call_at(late[0][0], self._ask, loop, shared)

    def _found(self, call: _Call, known: Reply | None) -> None:
        """Answers with the reply that Redis has. If its payload differs, the partition decides."""
        if known is not None and known.payload == call.claim.payload:
            self._memory.finish(call.claim, known, call.window_ms)
            call.answer(replayed(known, call.prepared, call.claim))

    def _stored(self, call: _Call, result: Published | PushqError) -> None:
        """Answers with the partition's result. A reply is cached only if it is complete: what was refused may find room
        another time."""
        runs = runs_of_call(result, call.prepared) if isinstance(result, Published) else None
        if runs is None or not isinstance(result, Published):
            self._memory.drop(call.claim)
        else:
            made = Reply(call.claim.payload, runs, result.fsynced, result.replicas)
            self._memory.finish(call.claim, made, call.window_ms)
            # Another process must not repeat a reply that a crash of this one may undo.
            if self._shared is not None and result.fsynced:
                self._shared.finish(call.claim, made, call.window_ms)
        call.answer(result)


class _Call:
    """A call sent to the partition. The first answer wins, be it the partition's or Redis'."""

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
    """The answer to a call whose key has a cached reply."""
    if known.runs is None:
        # With another payload, too: which request owns the key is known only when the first one is answered.
        detail = "a request with this idempotency key is still in progress"
        return RequestInProgress(detail, retry_after_ms=IN_PROGRESS_RETRY_MS)
    if known.payload != claim.payload:
        return IdempotencyMismatch("this idempotency key was already used with another payload; use a new key")
    return repeated_call(known.runs, prepared, fsynced=known.fsynced, replicas=known.replicas)


def is_replay(published: Published) -> bool:
    """Whether every message of the call was stored before."""
    others = published.others
    return published.is_repeat or (
        others is not None
        and len(others) == published.count
        and not any(isinstance(other, PushqError) for other in others.values())
    )
