"""The store in this process: all queues of one node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from backend_store.client.queue import EmbeddedQueue, PublishReply, Purge
from backend_store.core.chunk import Blocks, Columns, column_blocks
from backend_store.core.kept import KeptSession
from backend_store.core.leases import Lease
from backend_store.core.shelves import VIEW_DEAD, VIEW_LATE
from backend_store.metadata.embedded import Metadata
from backend_store.model import Block, Published, PushqError, QueueConfig, QueueNotFound
from backend_store.node.leaving import forwarded
from backend_store.node.node import Node

__all__ = ["EmbeddedQueue", "EmbeddedStore", "Purge", "open_store", "owner_of"]

MOVED_MS: Final = 7 * 24 * 3600 * 1000
"""How long publishes to a deleted queue go where its messages went."""
COMPANION_VIEWS: Final = {".dead": VIEW_DEAD, ".late": VIEW_LATE}


def owner_of(name: str) -> str:
    """The queue a companion belongs to; any other queue is its own."""
    for suffix in COMPANION_VIEWS:
        if name.endswith(suffix):
            return name[: -len(suffix)]
    return name


def companion_view(name: str) -> int | None:
    """Which view of its owner a companion is; None for a name that is none of a companion's."""
    return next((view for suffix, view in COMPANION_VIEWS.items() if name.endswith(suffix)), None)


def companion_config(owner: QueueConfig) -> QueueConfig:
    """What holds for a queue's companions: they keep what comes until somebody acks it."""
    return QueueConfig(
        visibility_timeout_ms=owner.visibility_timeout_ms,
        dead_letter_queue=None,
        max_message_bytes=owner.max_message_bytes,
        encrypted=owner.encrypted,
    )


class Forward:
    """A deleted queue for those who still publish to it: its messages go to another one, with the reason."""

    def __init__(self, name: str, target: EmbeddedQueue, clock_ms: Callable[[], int]):
        self.name = name
        self.config = target.config
        self._target = target
        self._clock_ms = clock_ms

    def blocks(self, columns: Columns, trace: str | None) -> Blocks:
        """A call's messages encoded; they are encoded anew with the reason, so they need no grouping here."""
        return column_blocks(columns, trace)

    def publish(self, blocks: list[Block], reply: PublishReply) -> None:
        made = forwarded(blocks, self.name, self._clock_ms())
        counts = tuple(block.count for block in made)

        def placed(result: Published | PushqError) -> None:
            reply(msgspec.structs.replace(result, counts=counts) if isinstance(result, Published) else result)

        self._target.publish(made, placed)


class EmbeddedStore:
    """All queues of one embedded node, and the metadata beside them."""

    def __init__(self, node: Node):
        self.node = node
        self._queues: dict[int, EmbeddedQueue] = {}
        self._companions: dict[tuple[int, int], EmbeddedQueue] = {}

    @property
    def steady_ms(self) -> Callable[[], int]:
        """The clock that leases go by: it does not jump when somebody sets the time."""
        return self.node.steady_ms

    @property
    def metadata(self) -> Metadata:
        return self.node.metadata

    def queue(self, tenant: str, name: str) -> EmbeddedQueue:
        """Raises `QueueNotFound`."""
        try:
            definition = self.node.metadata.find(tenant, name)
        except QueueNotFound:
            return self._companion(tenant, name)
        found = self._queues.get(definition.uid)
        if found is None:
            found = EmbeddedQueue(self.node, definition, self.node.queues.of(definition))
            self._queues[definition.uid] = found
        return found

    def _companion(self, tenant: str, name: str) -> EmbeddedQueue:
        """A queue's dead letters or late messages: there as soon as the queue is. Raises `QueueNotFound`."""
        owner, view = owner_of(name), companion_view(name)
        if view is None:
            raise QueueNotFound(f"there is no queue {name!r}")
        definition = self.node.metadata.find(tenant, owner)
        found = self._companions.get((definition.uid, view))
        if found is None:
            config = companion_config(definition.config)
            own = msgspec.structs.replace(definition, name=name, config=config)
            found = EmbeddedQueue(self.node, own, self.node.queues.of(definition), view)
            if view == VIEW_DEAD:
                found.redrives = self.queue(tenant, owner).redrives  # of the same messages, by whichever name
            self._companions[definition.uid, view] = found
        return found

    def names(self, tenant: str | None = None) -> Iterator[tuple[str, str]]:
        """(tenant, name) of every queue, and of the companions that hold something."""
        for definition in self.node.metadata.queues.values():
            if tenant is not None and definition.tenant != tenant:
                continue
            yield definition.tenant, definition.name
            held = [partition.state.views for partition in self.node.queues.of(definition).all]
            for suffix, view in COMPANION_VIEWS.items():
                if any(view in views and views[view].live for views in held):
                    yield definition.tenant, definition.name + suffix

    def queues(self) -> list[EmbeddedQueue]:
        return [*self._queues.values(), *self._companions.values()]

    async def create_queue(self, tenant: str, name: str, config: QueueConfig) -> tuple[EmbeddedQueue, bool]:
        """Raises `Conflict` when the queue exists with another config."""
        _, created = await self.node.metadata.create_queue(tenant, name, config, self.node.clock_ms())
        return self.queue(tenant, name), created

    async def update_queue(self, tenant: str, name: str, config: QueueConfig, version: int) -> EmbeddedQueue | None:
        """None when somebody else changed it first."""
        changed = await self.node.metadata.update_queue(tenant, name, config, version)
        if changed is None:
            return None
        queue = self.queue(tenant, name)
        for one in (queue, *queue.groups.values()):
            one.definition = changed
        self.node.queues.configure(changed)
        for view in COMPANION_VIEWS.values():
            if (companion := self._companions.get((changed.uid, view))) is not None:
                own = companion_config(config)
                companion.definition = msgspec.structs.replace(changed, name=companion.name, config=own)
        return queue

    async def delete_queue(self, tenant: str, name: str) -> EmbeddedQueue:
        """Removes the queue and its messages; whoever consumes it must be told by the caller."""
        queue = self.queue(tenant, name)
        await self.node.queues.delete(tenant, name)
        queue.deleted = True
        self._forget(queue)
        return queue

    async def move_queue(self, tenant: str, name: str, target: str) -> EmbeddedQueue:
        """Removes the queue; what it holds, and for a while what is still published to it, goes to another one."""
        queue = self.queue(tenant, name)
        self.node.metadata.find(tenant, target)
        await self.node.queues.move(tenant, name, target, self.node.clock_ms() + MOVED_MS)
        queue.deleted = True
        self._forget(queue)
        return queue

    def _forget(self, queue: EmbeddedQueue) -> None:
        self._queues.pop(queue.definition.uid, None)
        for group in queue.groups.values():
            group.deleted = True
            queue.companions.append(group)
        for view in COMPANION_VIEWS.values():
            if (companion := self._companions.pop((queue.definition.uid, view), None)) is not None:
                companion.deleted = True
                queue.companions.append(companion)

    def target_of(self, tenant: str, name: str) -> Forward | EmbeddedQueue:
        """Where a publish to `name` goes: to the queue, or to the one that a deleted queue's messages went to.

        Raises `QueueNotFound`.
        """
        try:
            return self.queue(tenant, name)
        except QueueNotFound:
            target = self.node.metadata.forwarding(tenant, name, self.node.clock_ms())
            if target is None:
                raise
            return Forward(name, self.queue(tenant, target), self.node.steady_ms)

    def take_kept(self) -> tuple[list[KeptSession], dict[str, Lease]]:
        """The sessions that the last clean stop kept, and their leases by token. Once only."""
        kept = self.node.kept_sessions, self.node.kept_leases
        self.node.kept_sessions, self.node.kept_leases = [], {}
        return kept

    async def close(self, sessions: list[KeptSession] | None = None) -> None:
        """Closes cleanly: leases stay as they are, and `sessions` may come back to theirs after the next start."""
        for queue in self.queues():
            await queue.redrives.end()
        await self.node.close(sessions)


async def open_store(directory: Path) -> EmbeddedStore:
    """Opens or makes the data folder and recovers what is in it. Raises `storage` errors the CLI explains."""
    from backend_store.storage.env import open_engine
    from backend_store.storage.writer import prepare_interpreter

    prepare_interpreter()
    node = Node(open_engine(directory), directory=directory)
    await node.start()
    return EmbeddedStore(node)
