"""The store in this process: all queues of one node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from backend_store.client.metadata import Definitions, Tenant
from backend_store.client.queue import EmbeddedQueue, PublishReply, Purge
from backend_store.client.tickets import Tickets
from backend_store.core.block import with_names
from backend_store.core.chunk import Blocks, Columns, column_blocks
from backend_store.core.kept import KeptSession
from backend_store.core.leases import Lease
from backend_store.core.sealing import Sealer
from backend_store.core.shelves import VIEW_DEAD, VIEW_LATE, VIEW_OUTBOX
from backend_store.metadata.documents import Documents
from backend_store.metadata.duties import Duties
from backend_store.metadata.embedded import Metadata
from backend_store.model import (
    ONE_NODE,
    Block,
    Claim,
    Published,
    PushqError,
    QueueConfig,
    QueueDefinition,
    QueueNotFound,
    placed,
)
from backend_store.node.audit import AuditLog
from backend_store.node.leaving import forwarded
from backend_store.node.ledger import LedgerBook
from backend_store.node.meter import Load
from backend_store.node.node import Node
from backend_store.storage.engine import Table
from backend_store.storage.keys import META_DISK_ID
from backend_store.storage.space import DEFAULT_RULES, SpaceRules

__all__ = ["EmbeddedQueue", "EmbeddedStore", "Purge", "open_store", "owner_of"]

MOVED_MS: Final = 7 * 24 * 3600 * 1000
"""How long publishes to a deleted queue go where its messages went."""
COMPANION_VIEWS: Final = {".dead": VIEW_DEAD, ".late": VIEW_LATE}
VIEWS_BESIDE: Final = (VIEW_DEAD, VIEW_LATE, VIEW_OUTBOX)
"""What a queue holds beside what is ready, leased and scheduled."""


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

    def __init__(self, name: str, target: EmbeddedQueue):
        self.name = name
        self.uid = target.uid
        self.config = target.config
        self._target = target

    @property
    def content_key(self) -> bytes:
        return self._target.content_key

    @property
    def is_split(self) -> bool:
        return self._target.is_split

    def sealed(self, blocks: list[Block]) -> list[Block]:
        """They are sealed once the reason is with them."""
        return blocks

    def blocks(self, columns: Columns, trace: str | None) -> Blocks:
        """A call's messages encoded; they are encoded anew with the reason, so they need no grouping here."""
        return column_blocks(with_names(columns), trace)

    def steady_ms(self) -> int:
        return self._target.steady_ms()

    def publish(
        self, blocks: list[Block], reply: PublishReply, claim: Claim | None = None, *, until_ms: int = 0
    ) -> None:
        try:
            made = self._target.sealed(forwarded(blocks, self.name, self.steady_ms()))
        except PushqError as error:
            reply(error)
            return
        counts = tuple(block.count for block in made)

        def placed(result: Published | PushqError) -> None:
            reply(msgspec.structs.replace(result, counts=counts) if isinstance(result, Published) else result)

        self._target.publish(made, placed, claim, until_ms=until_ms)

    def why_full(self, messages: int = 1, size: int = 1) -> PushqError | None:
        """Why not so many messages more, of so many bytes, can be taken now."""
        return self._target.why_full(messages, size)


class EmbeddedStore:
    """All queues of one embedded node, and the metadata beside them."""

    def __init__(self, node: Node):
        self.node = node
        self._queues: dict[int, EmbeddedQueue] = {}
        self._companions: dict[tuple[int, int], EmbeddedQueue] = {}
        self.dropped: dict[int, int] = {}
        """Of a shard that others define queues for: those that were deleted or moved away lately, in order; up to which
        version no definition brings them back."""
        self.tickets = Tickets()
        """Of gateways on this machine."""
        self.load: Callable[[], Load] = Load
        """How full this process is, where somebody measures that."""
        self.duties = Duties(node.documents, lambda: node.steady_ms())
        self.extras: dict[str, Any] = {}
        """Room for what a service keeps for the whole store."""

    @property
    def steady_ms(self) -> Callable[[], int]:
        """The clock that leases go by: it does not jump when somebody sets the time."""
        return self.node.steady_ms

    @property
    def id(self) -> str:
        """Identity of this copy of the data: a restored one has another."""
        return self.node.engine.disk_id

    @property
    def ledger(self) -> LedgerBook:
        return self.node.ledger

    @property
    def audit(self) -> AuditLog:
        return self.node.audit

    @property
    def documents(self) -> Documents:
        return self.node.documents

    @property
    def identity(self) -> bytes:
        """Of this data: a copy that was restored from a backup has another one."""
        return self.node.engine.get(Table.META, META_DISK_ID) or b""

    @property
    def metadata(self) -> Definitions:
        return self.node.metadata

    def queue(self, tenant: str, name: str) -> EmbeddedQueue:
        """Raises `QueueNotFound`."""
        return self.here(tenant, name)

    def here(self, tenant: str, name: str) -> EmbeddedQueue:
        """The queue as this process has it, whoever else may know better. Raises `QueueNotFound`."""
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
                found.redrives = self.here(tenant, owner).redrives  # of the same messages, by whichever name
            self._companions[definition.uid, view] = found
        return found

    def tenant(self, name: str) -> Tenant | None:
        """A tenant as it was last known: what it may use must not wait for anybody."""
        return self.node.metadata.tenants.get(name)

    def tenants(self) -> list[Tenant]:
        """Those known here."""
        return list(self.node.metadata.tenants.values())

    def names(self, tenant: str | None = None) -> Iterator[tuple[str, str]]:
        """(tenant, name) of every queue, and of the companions that hold something; of all tenants, those here."""
        metadata = self.node.metadata
        for definition in metadata.queues.values() if tenant is None else metadata.of_tenant(tenant):
            for name in self._names_of(definition):
                yield definition.tenant, name

    def names_of(self, tenant: str, name: str) -> list[str]:
        """A queue, and those of its companions that hold something. Raises `QueueNotFound`."""
        return self._names_of(self.node.metadata.find(tenant, name))

    def _names_of(self, definition: QueueDefinition) -> list[str]:
        held = [partition.state.views for partition in self.node.queues.of(definition).all]
        companions = [
            definition.name + suffix
            for suffix, view in COMPANION_VIEWS.items()
            if any(view in views and views[view].live for views in held)
        ]
        return [definition.name, *companions]

    async def look_ahead(self, names: Iterable[tuple[str, str]]) -> None:
        """Of queues in another process the numbers are asked for together; here they are at hand."""

    def held_bytes(self, tenant: str, name: str) -> int:
        """What a queue holds on the disk, with its companions and what is on its way to another queue."""
        definition = self.node.metadata.queues.get((tenant, name))
        if definition is None:
            return 0
        states = [partition.state for partition in self.node.queues.of(definition).all]
        beside = [state.views[view] for state in states for view in VIEWS_BESIDE if view in state.views]
        return sum(state.live_bytes for state in states) + sum(tally.live_bytes for tally in beside)

    async def held_of(self, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """The same of several; in another process some may be missing, of which it is not heard."""
        return {name: self.held_bytes(*name) for name in names}

    def queues(self) -> list[EmbeddedQueue]:
        return [*self._queues.values(), *self._companions.values()]

    async def create_queue(self, tenant: str, name: str, config: QueueConfig) -> tuple[EmbeddedQueue, bool]:
        """Raises `Conflict` when the queue exists with another config, `InvalidRequest` for more copies than one."""
        config = placed(config, ONE_NODE, name)
        definition, created = await self.node.metadata.create_queue(tenant, name, config, self.node.clock_ms())
        await self._seal_ready(definition)
        return self.queue(tenant, name), created

    async def update_queue(self, tenant: str, name: str, config: QueueConfig, version: int) -> EmbeddedQueue | None:
        """None when somebody else changed it first."""
        config = placed(config, ONE_NODE, name)
        changed = await self.node.metadata.update_queue(tenant, name, config, version)
        if changed is None:
            return None
        await self._seal_ready(changed)
        return self.configured(changed)

    def configured(self, changed: QueueDefinition) -> EmbeddedQueue:
        """Takes over a definition that changed: it holds from the next decision on."""
        queue, config = self.here(changed.tenant, changed.name), changed.config
        for one in (queue, *queue.groups.values()):
            one.definition = changed
        self.node.queues.configure(changed)
        for view in COMPANION_VIEWS.values():
            if (companion := self._companions.get((changed.uid, view))) is not None:
                own = companion_config(config)
                companion.definition = msgspec.structs.replace(changed, name=companion.name, config=own)
        return queue

    async def _seal_ready(self, *definitions: QueueDefinition) -> None:
        if self.node.sealer is not None:
            await self.node.sealer.ready([one for one in definitions if one.config.encrypted])

    async def delete_queue(self, tenant: str, name: str) -> EmbeddedQueue:
        """Removes the queue and its messages; whoever consumes it must be told by the caller."""
        return await self._delete(tenant, name, only_here=False)

    async def delete_part(self, tenant: str, name: str) -> None:
        """Removes what is here of a queue that stays elsewhere."""
        await self._delete(tenant, name, only_here=True)

    async def _delete(self, tenant: str, name: str, *, only_here: bool) -> EmbeddedQueue:
        queue = self.here(tenant, name)
        await self.node.queues.delete(tenant, name, only_here=only_here)
        queue.deleted = True
        self._forget(queue)
        return queue

    async def move_queue(self, tenant: str, name: str, target: str) -> EmbeddedQueue:
        """Removes the queue; what it holds, and for a while what is still published to it, goes to another one."""
        queue = self.here(tenant, name)
        self.node.metadata.find(tenant, target)
        await self.node.queues.move(tenant, name, target, self.node.steady_ms() + MOVED_MS)
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
            target = self.node.metadata.forwarding(tenant, name, self.node.steady_ms())
            if target is None:
                raise
            return Forward(name, self.queue(tenant, target))

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


MakeSealer = Callable[[Metadata], Awaitable[Sealer]]


async def open_store(
    directory: Path, make_sealer: MakeSealer | None = None, space: SpaceRules = DEFAULT_RULES
) -> EmbeddedStore:
    """Opens or makes the data folder and recovers what is in it. Raises `storage` errors the CLI explains.

    `make_sealer` makes what seals the queues' blocks, from their stored keys. What it raises ends the start.
    """
    from backend_store.storage.env import open_engine
    from backend_store.storage.writer import growing, prepare_interpreter

    prepare_interpreter()
    with growing():
        node = Node(open_engine(directory), directory=directory, space=space)
    if make_sealer is not None:
        try:
            node.seal_with(await make_sealer(node.metadata))
        except BaseException:
            await node.writer.close()
            node.engine.close()
            raise
    with growing():
        await node.start()
    if node.sealer is not None:
        await node.sealer.ready([one for one in node.metadata.queues.values() if one.config.encrypted])
    return EmbeddedStore(node)
