"""Publishes under an idempotency key: replies that are known → the partition, which decides → the reply, kept.

A repeat gets the places of the first messages, with `duplicate`. Whether it is one is the partition's to say wherever
no reply is known, so what is lost here costs a round trip and never a second message.
"""

from __future__ import annotations

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
from gateway.replies import MemoryReplies, Reply
from push.ports import Prepared, Target
from push.published import repeated_call, runs_of_call

if TYPE_CHECKING:
    from gateway.shared_replies import RedisReplies

PublishReply = Callable[[Published | PushqError], None]

IN_PROGRESS_RETRY_MS: Final = 200


class Once:
    """One gateway's calls under idempotency keys. Belongs to the event loop."""

    def __init__(self, shared: RedisReplies | None = None) -> None:
        self._memory = MemoryReplies()
        self._shared = shared

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
            self._shared.begin(claim, partial(self._told, queue, prepared, claim, reply))

    async def close(self) -> None:
        """Waits a moment for replies on their way."""
        if self._shared is not None:
            await self._shared.close()

    def _told(self, queue: Target, prepared: Prepared, claim: Claim, reply: PublishReply, known: Reply | None) -> None:
        """What Redis knows of a call."""
        if known is None:
            self._store(queue, prepared, claim, reply)
            return
        if known.runs is not None:
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
        runs = runs_of_call(result, prepared) if isinstance(result, Published) else None
        if runs is None or not isinstance(result, Published):
            self._memory.drop(claim)
            if self._shared is not None:
                self._shared.drop(claim)
            return
        made = Reply(claim.payload, runs, result.fsynced, result.replicas)
        window_ms = queue.config.dedupe_window_ms
        self._memory.finish(claim, made, window_ms)
        if self._shared is None:
            return
        if result.fsynced:
            self._shared.finish(claim, made, window_ms)
        else:
            # What a crash of this process may take back must not be told by another one.
            self._shared.drop(claim)


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
