"""Looks up which messages of publish calls a shard knows already: gateways ask before they send the calls to another
place of the queue. Nothing is stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from backend_store.client.embedded import EmbeddedStore
from backend_store.model import Claim, Published, PushqError, QueueNotFound, Unavailable
from backend_store.node.commit.publish_call import Call
from backend_store.node.publishing.moved_away import RETRY_MS, recalled
from backend_store.service.asked import Asked
from backend_store.storage.engine import Batch
from backend_store.wire.store_frames import Placed, SentBlock, Wrong, blocks_of_sent, placed, wrong


class Recall(NamedTuple):
    """One call. Only the traits of the blocks are used: `data` may be empty."""

    blocks: list[SentBlock]
    claim: tuple[bytes, bytes] | None = None


Answer = tuple[Placed | None, Wrong | None]
"""The answer to one call, shaped like that to a publish: repeats have their positions, and all other messages are
refused as `OnTheMove`; that is the error where no message is known."""


class FindKnown(Asked, frozen=True):
    """To a shard of a place that had the messages' slots: which of the messages it knows. `version`: of the definition
    that puts the slots elsewhere. Each call has its answer, in the order of the calls.
    """

    tenant: str
    name: str
    uid: int
    version: int
    calls: list[Recall]


async def _find_known(store: EmbeddedStore, asked: FindKnown) -> list[Answer]:
    own = store.node.metadata.queues.get((asked.tenant, asked.name))
    if own is None or own.uid != asked.uid:
        raise QueueNotFound(f"queue {asked.name!r} is not here")
    queue = store.node.queues.of(own)
    if queue.definition.version < asked.version:
        # Messages that are not known here might still be accepted here.
        detail = f"queue {asked.name!r} is not known here as it is now"
        raise Unavailable(detail, retry_after_ms=RETRY_MS)
    results = [recalled(queue.all, _call_of(one), queue.config) for one in asked.calls]
    if any(isinstance(one, Published) for one in results):
        await store.node.committer.write(Batch())  # after the commit that stores the known messages
    copies = store.node.copies()
    return [(None, wrong(one)) if isinstance(one, PushqError) else (placed(one, copies), None) for one in results]


def _call_of(asked: Recall) -> Call:
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
    """Ignores the result: the asker gets it as the answer."""


HANDLERS: Final[dict[type, Callable[[EmbeddedStore, Any], Awaitable[Any]]]] = {FindKnown: _find_known}
