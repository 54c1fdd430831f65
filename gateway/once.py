"""Publishes under an idempotency key: replies that are known → the partition, which decides → the reply, kept.

A repeat gets the places of the first messages, with `duplicate`. Whether it is one is the partition's to say wherever
no reply is known, so what is lost here costs a round trip and never a second message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

import structlog

from backend_store.model import (
    Claim,
    IdempotencyMismatch,
    Published,
    PushqError,
    RequestInProgress,
)
from gateway.limits import ANSWERS_SECONDS_MAX
from gateway.replies import MemoryReplies, RedisReplies, Reply
from push.ports import Prepared, Target
from push.published import places_of_call, repeated_call

log = structlog.get_logger("pushq.once")

PublishReply = Callable[[Published | PushqError], None]

IN_PROGRESS_RETRY_MS: Final = 200


class Once:
    """One gateway's calls under idempotency keys. Belongs to the event loop."""

    def __init__(self, shared: RedisReplies | None = None) -> None:
        self._memory = MemoryReplies()
        self._shared = shared
        self._tasks: set[asyncio.Task[None]] = set()

    def publish(self, queue: Target, prepared: Prepared, reply: PublishReply) -> None:
        """Stores the messages of a call with a claim, or tells what became of the first such call.

        With a Redis the call waits for it first, so a later one without a key may overtake it.
        """
        claim = prepared.claim
        assert claim is not None
        known = self._memory.begin(claim)
        if known is not None:
            reply(replayed(known, prepared, claim))
        elif self._shared is None:
            self._store(queue, prepared, claim, reply)
        else:
            self._spawn(self._ask(self._shared, queue, prepared, claim, reply))

    async def close(self) -> None:
        """Waits a moment for replies on their way."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ANSWERS_SECONDS_MAX)
        if self._shared is not None:
            await self._shared.close()

    async def _ask(
        self, shared: RedisReplies, queue: Target, prepared: Prepared, claim: Claim, reply: PublishReply
    ) -> None:
        try:
            known = await shared.begin(claim)
        except Exception:
            # A fault of ours: the partition knows as well, and the caller must not wait for ever.
            log.exception("a shared reply could not be asked for")
            known = None
        if known is None:
            self._store(queue, prepared, claim, reply)
            return
        if known.places is not None:
            self._memory.finish(claim, known, queue.config.dedupe_window_ms)
        else:
            self._memory.drop(claim)
        reply(replayed(known, prepared, claim))

    def _store(self, queue: Target, prepared: Prepared, claim: Claim, reply: PublishReply) -> None:
        def stored(result: Published | PushqError) -> None:
            self._keep(queue, prepared, claim, result)
            reply(result)

        queue.publish(prepared.blocks, stored, claim, until_ms=prepared.until_ms)

    def _keep(self, queue: Target, prepared: Prepared, claim: Claim, result: Published | PushqError) -> None:
        """Keeps a reply that is complete: where a message was refused, a repeat may find room for it."""
        places = places_of_call(result, prepared) if isinstance(result, Published) else None
        if places is None or not isinstance(result, Published):
            self._memory.drop(claim)
            if self._shared is not None:
                self._spawn(self._shared.drop(claim))
            return
        made = Reply(claim.payload, tuple(places), result.fsynced, result.replicas)
        window_ms = queue.config.dedupe_window_ms
        self._memory.finish(claim, made, window_ms)
        if self._shared is None:
            return
        # What a crash of this process may take back must not be told by another one.
        keep = self._shared.finish(claim, made, window_ms) if result.fsynced else self._shared.drop(claim)
        self._spawn(keep)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="idempotency")
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("idempotent publish failed", exc_info=error)


def replayed(known: Reply, prepared: Prepared, claim: Claim) -> Published | PushqError:
    """The answer to a call whose key is known."""
    if known.places is None:
        # Also with another payload: whose the key is, only the answer under way can tell.
        detail = "a request under this idempotency key is still in progress"
        return RequestInProgress(detail, retry_after_ms=IN_PROGRESS_RETRY_MS)
    if known.payload != claim.payload:
        return IdempotencyMismatch(
            "this idempotency key belongs to a request with another payload; take a new key for it"
        )
    return repeated_call(known.places, prepared, fsynced=known.fsynced, replicas=known.replicas)


def is_replay(published: Published) -> bool:
    """Whether each message of the call was there before."""
    others = published.others
    return (
        others is not None
        and len(others) == published.count
        and not any(isinstance(other, PushqError) for other in others.values())
    )
