"""Queues on their way from one cluster to another: begun and given up here, and carried on by every gateway.

Nobody remembers a move but the queue's definition, which the home cluster has: each step is a change of it that names
the version before, so it makes no difference which gateway takes it, or how many try.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from backend_store.remote.store import RemoteBackends

MoveState = Literal["sealing", "draining", "remembering"]
"""sealing: the old cluster is about to take no more publishes; it may still be given up. draining: publishes go to the
new one, and what the old one has is delivered from there. remembering: nothing is left there but what it knows of ids,
and what was forgotten soon."""


class QueueMove(NamedTuple):
    """A move that is under way. Clusters are called by their names, the home cluster too."""

    tenant: str
    queue: str
    source: str
    to: str
    state: MoveState
    since_ms: int
    """When the queue began to be in this state."""
    left: int | None
    """Messages that the old cluster still has, dead letters among them; None: that is not known."""


class Moves:
    """See the file's first sentence."""

    def __init__(self, store: RemoteBackends) -> None:
        self._store = store

    def under_way(self) -> list[QueueMove]:
        """All of them, by tenant and queue. A queue that came by several clusters has one for each that it left."""
        raise NotImplementedError

    async def begin(self, tenant: str, name: str, to: str) -> QueueMove:
        """Has a queue move. The answer comes when that is durable, not when it is done. A queue that is on its way to
        that very cluster is no error. Raises `QueueNotFound`, `NotFound` for a cluster that there is not, `Conflict`
        for a queue that cannot move now, `InvalidRequest` for one that never can, and `Unavailable`."""
        raise NotImplementedError

    async def give_up(self, tenant: str, name: str) -> None:
        """Leaves a queue where it is. Raises `QueueNotFound`, `Conflict` where the new cluster has it already or
        nothing is under way, and `Unavailable`."""
        raise NotImplementedError
