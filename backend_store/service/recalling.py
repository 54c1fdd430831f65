"""What a shard knows of a publish call's messages: asked by gateways before they bring the call to another place of its
queue. Nothing is stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from backend_store.client.embedded import EmbeddedStore
from backend_store.model import Claim, Published, PushqError, QueueNotFound, Unavailable
from backend_store.node.calls import Call
from backend_store.node.turned_away import RETRY_MS, recalled
from backend_store.service.asked import Asked
from backend_store.storage.engine import Batch
from backend_store.wire.store_frames import Placed, SentBlock, blocks_of_sent, placed


class FindKnown(Asked, frozen=True):
    """To a shard of a place that the messages' slots lay in: which of them are known there. `version`: of the
    definition by which they lie elsewhere. Of the blocks only the traits are looked at: `data` may be empty.

    The answer is that of a publish: repeats have their places, and all others are refused as `OnTheMove`; that is the
    error where nothing is known.
    """

    tenant: str
    name: str
    uid: int
    version: int
    blocks: list[SentBlock]
    claim: tuple[bytes, bytes] | None = None


async def _find_known(store: EmbeddedStore, asked: FindKnown) -> Placed:
    own = store.node.metadata.queues.get((asked.tenant, asked.name))
    if own is None or own.uid != asked.uid:
        raise QueueNotFound(f"queue {asked.name!r} is not here")
    queue = store.node.queues.of(own)
    if queue.definition.version < asked.version:
        detail = f"queue {asked.name!r} is not known here as it is now"  # what is not known might still be taken
        raise Unavailable(detail, retry_after_ms=RETRY_MS)
    known = recalled(queue.all, _call_of(asked), queue.config)
    if isinstance(known, PushqError):
        raise known
    await store.node.committer.write(Batch())  # behind the commit that stores what is known
    return placed(known, store.node.copies())


def _call_of(asked: FindKnown) -> Call:
    blocks = blocks_of_sent(asked.blocks)
    claim = Claim(*asked.claim) if asked.claim is not None else None
    return Call(
        blocks,
        sum(block.count for block in blocks),
        size=0,
        is_plain=False,
        must_fit=False,
        dedupes=False,
        reply=_nobody,
        claim=claim,
    )


def _nobody(result: Published | PushqError) -> None:
    """Whoever asks has the answer."""


HANDLERS: Final[dict[type, Callable[[EmbeddedStore, Any], Awaitable[Any]]]] = {FindKnown: _find_known}
