"""The embedded store: all queues of one node in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from backend_store.client.metadata import Definitions, Tenant
from backend_store.client.queue import EmbeddedQueue, PublishReply, Purge
from backend_store.client.sessions import MovingSessions
from backend_store.client.tickets import Tickets
from backend_store.core.leases.leases import Lease
from backend_store.core.leases.session_snapshot import KeptSession
from backend_store.core.log.block import with_names
from backend_store.core.log.chunk import Blocks, Columns, column_blocks
from backend_store.core.log.sealed_block import Sealer
from backend_store.core.log.sublogs import VIEW_DEAD, VIEW_LATE, VIEW_OUTBOX
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
from backend_store.node.clock_jump import refuse_clock_jump
from backend_store.node.ledger import LedgerBook
from backend_store.node.meter import Load
from backend_store.node.node import Node, wall_clock_ms
from backend_store.node.transfer.queue_deletion import forwarded
from backend_store.storage.engine import StorageError, Table
from backend_store.storage.keys import META_DISK_ID
from backend_store.storage.space import DEFAULT_RULES, SpaceRules

__all__ = ["EmbeddedQueue", "EmbeddedStore", "Purge", "open_store", "owner_of"]

MOVED_MS: Final = 7 * 24 * 3600 * 1000
"""How long publishes to a deleted queue are forwarded to the queue that got its messages."""
COMPANION_VIEWS: Final = {".dead": VIEW_DEAD, ".late": VIEW_LATE}
VIEWS_BESIDE: Final = (VIEW_DEAD, VIEW_LATE, VIEW_OUTBOX)
"""Views of a queue besides ready, leased and scheduled messages."""
OUTBOX_SUFFIX: Final = "/outbox"
"""Names a queue's outbox between gateways and backends. No client can use such a name."""


def owner_of(name: str) -> str:
    """The queue that a companion belongs to; any other name is returned as it is."""
    for suffix in COMPANION_VIEWS:
        if name.endswith(suffix):
            return name[: -len(suffix)]
    return name


def companion_view(name: str) -> int | None:
    """The view of its owner that a companion shows; None if the name is not a companion's."""
    return next((view for suffix, view in COMPANION_VIEWS.items() if name.endswith(suffix)), None)


def companion_config(owner: QueueConfig) -> QueueConfig:
    """The config of a queue's companions: they keep messages until those are acked."""
    return QueueConfig(
        visibility_timeout_ms=owner.visibility_timeout_ms,
        dead_letter_queue=None,
        max_message_bytes=owner.max_message_bytes,
        encrypted=owner.encrypted,
    )


class Forward:
    """A deleted queue that still gets publishes: forwards the messages to another queue, with the reason."""

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
        """Returns the blocks as they are: they are sealed together with the reason, in `publish`."""
        return blocks

    def blocks(self, columns: Columns, trace: str | None) -> Blocks:
        """A call's messages encoded. No grouping: they are encoded again with the reason."""
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
        """Why so many more messages and bytes cannot be taken now; None if they can."""
        return self._target.why_full(messages, size)


class EmbeddedStore:
    """All queues of one embedded node, and their metadata."""

    def __init__(self, node: Node):
        self.node = node
        self._queues: dict[int, EmbeddedQueue] = {}
        self._companions: dict[tuple[int, int], EmbeddedQueue] = {}
        self.dropped: dict[int, int] = {}
        """For a shard whose queues are defined elsewhere: uid → definition version of queues that were deleted or moved
        away lately, in order; definitions up to that version do not bring them back."""
        self.tickets = Tickets()
        self.sessions = MovingSessions()
        """Those of gateways elsewhere."""
        self.load: Callable[[], Load] = Load
        """Returns this process's load, where it is measured."""
        self.duties = Duties(node.documents, lambda: node.steady_ms())
        self.extras: dict[str, Any] = {}
        """Slot for what a service keeps for the whole store."""

    @property
    def steady_ms(self) -> Callable[[], int]:
        """The clock of leases: it does not jump when the wall clock is set."""
        return self.node.steady_ms

    @property
    def id(self) -> str:
        """Identity of this copy of the data: a restored copy has another."""
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
        """The stored disk id, as bytes; empty if there is none. A restored copy has another."""
        return self.node.engine.get(Table.META, META_DISK_ID) or b""

    @property
    def metadata(self) -> Definitions:
        return self.node.metadata

    def queue(self, tenant: str, name: str) -> EmbeddedQueue:
        """Raises `QueueNotFound`."""
        return self.here(tenant, name)

    def here(self, tenant: str, name: str) -> EmbeddedQueue:
        """The queue as this process has it, even where another process knows better. Raises `QueueNotFound`."""
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
        """A queue's dead letters or late messages: exists as soon as the queue does. Raises `QueueNotFound`."""
        view = companion_view(name)
        if view is None:
            raise QueueNotFound(f"there is no queue {name!r}")
        return self._beside(self.node.metadata.find(tenant, owner_of(name)), name, view)

    def outbox(self, tenant: str, owner: str) -> EmbeddedQueue:
        """The dead letters of a queue that are on their way to the queue that it names for them. Raises
        `QueueNotFound`."""
        return self._beside(self.node.metadata.find(tenant, owner), owner + OUTBOX_SUFFIX, VIEW_OUTBOX)

    def _beside(self, definition: QueueDefinition, name: str, view: int) -> EmbeddedQueue:
        found = self._companions.get((definition.uid, view))
        if found is None:
            own = msgspec.structs.replace(definition, name=name, config=companion_config(definition.config))
            found = EmbeddedQueue(self.node, own, self.node.queues.of(definition), view)
            if view == VIEW_DEAD:
                found.redrives = self.here(definition.tenant, definition.name).redrives  # the same under either name
            self._companions[definition.uid, view] = found
        return found

    def tenant(self, name: str) -> Tenant | None:
        """A tenant as last known: its limits must not wait for an answer from elsewhere."""
        return self.node.metadata.tenants.get(name)

    def tenants(self) -> list[Tenant]:
        """Tenants known here."""
        return list(self.node.metadata.tenants.values())

    def names(self, tenant: str | None = None) -> Iterator[tuple[str, str]]:
        """(tenant, name) of every queue, and of each companion that holds messages; without `tenant`, of all tenants
        here."""
        metadata = self.node.metadata
        for definition in metadata.queues.values() if tenant is None else metadata.of_tenant(tenant):
            for name in self._names_of(definition):
                yield definition.tenant, name

    def names_of(self, tenant: str, name: str) -> list[str]:
        """A queue's name, and those of its companions that hold messages. Raises `QueueNotFound`."""
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
        """Fetches numbers of queues in another process together; nothing to do here."""

    def held_bytes(self, tenant: str, name: str) -> int:
        """What a queue holds on disk, including its companions and outbox."""
        definition = self.node.metadata.queues.get((tenant, name))
        if definition is None:
            return 0
        states = [partition.state for partition in self.node.queues.of(definition).all]
        beside = [state.views[view] for state in states for view in VIEWS_BESIDE if view in state.views]
        return sum(state.live_bytes for state in states) + sum(tally.live_bytes for tally in beside)

    async def held_of(self, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """The same for several; with queues in another process, unreachable ones are missing."""
        return {name: self.held_bytes(*name) for name in names}

    def queues(self) -> list[EmbeddedQueue]:
        return [*self._queues.values(), *self._companions.values()]

    async def create_queue(self, tenant: str, name: str, config: QueueConfig) -> tuple[EmbeddedQueue, bool]:
        """Returns the queue, and whether it is new. Raises `Conflict` if the queue exists with another config,
        `InvalidRequest` for more than one copy."""
        config = placed(config, ONE_NODE, name)
        definition, created = await self.node.metadata.create_queue(tenant, name, config, self.node.clock_ms())
        await self._seal_ready(definition)
        return self.queue(tenant, name), created

    async def update_queue(self, tenant: str, name: str, config: QueueConfig, version: int) -> EmbeddedQueue | None:
        """Returns None if another change came first."""
        config = placed(config, ONE_NODE, name)
        changed = await self.node.metadata.update_queue(tenant, name, config, version)
        if changed is None:
            return None
        await self._seal_ready(changed)
        return self.configured(changed)

    def configured(self, changed: QueueDefinition) -> EmbeddedQueue:
        """Applies a changed definition from the next decision on."""
        queue, config = self.here(changed.tenant, changed.name), changed.config
        for one in (queue, *queue.groups.values()):
            one.definition = changed
        self.node.queues.configure(changed)
        for view in VIEWS_BESIDE:
            if (companion := self._companions.get((changed.uid, view))) is not None:
                own = companion_config(config)
                companion.definition = msgspec.structs.replace(changed, name=companion.name, config=own)
        return queue

    async def _seal_ready(self, *definitions: QueueDefinition) -> None:
        if self.node.sealer is not None:
            await self.node.sealer.ready([one for one in definitions if one.config.encrypted])

    async def delete_queue(self, tenant: str, name: str) -> EmbeddedQueue:
        """Removes the queue and its messages; the caller must tell its consumers."""
        return await self._delete(tenant, name, only_here=False)

    async def delete_part(self, tenant: str, name: str) -> None:
        """Removes what is here of a queue that also lies elsewhere, and stays there."""
        await self._delete(tenant, name, only_here=True)

    async def _delete(self, tenant: str, name: str, *, only_here: bool) -> EmbeddedQueue:
        queue = self.here(tenant, name)
        await self.node.queues.delete(tenant, name, only_here=only_here)
        queue.deleted = True
        self._forget(queue)
        return queue

    async def move_queue(self, tenant: str, name: str, target: str) -> EmbeddedQueue:
        """Removes the queue. Its messages go to another queue, and so do publishes to it for a while (`MOVED_MS`)."""
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
        for view in VIEWS_BESIDE:
            if (companion := self._companions.pop((queue.definition.uid, view), None)) is not None:
                companion.deleted = True
                queue.companions.append(companion)

    def target_of(self, tenant: str, name: str) -> Forward | EmbeddedQueue:
        """Where a publish to `name` goes: the queue, or the queue that got a deleted queue's messages.

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
        """The sessions saved by the last clean stop, and all kept leases by token. Empty on later calls."""
        kept = self.node.kept_sessions, self.node.kept_leases
        self.node.kept_sessions, self.node.kept_leases = [], {}
        return kept

    async def close(self, sessions: list[KeptSession] | None = None) -> None:
        """Closes cleanly: leases stay, and `sessions` may resume theirs after the next start."""
        for queue in self.queues():
            await queue.redrives.end()
        await self.node.close(sessions)


MakeSealer = Callable[[Metadata], Awaitable[Sealer]]


async def open_store(
    directory: Path,
    make_sealer: MakeSealer | None = None,
    space: SpaceRules = DEFAULT_RULES,
    *,
    clock_jump_days_max: int | None = None,
    is_keyless: bool = False,
) -> EmbeddedStore:
    """Opens or makes the data folder and recovers its content. Raises `storage` errors, which the CLI explains:
    `ClockAhead` where the clock is more than `clock_jump_days_max` beyond the last time in the folder.

    `make_sealer` makes the `Sealer` of the queues' blocks from their stored keys. An exception from it ends the start.
    `is_keyless`: see `Node`.
    """
    from backend_store.storage.env import open_engine
    from backend_store.storage.writer import growing, prepare_interpreter

    prepare_interpreter()
    with growing():
        engine = open_engine(directory)
        try:
            if clock_jump_days_max is not None:
                refuse_clock_jump(engine, wall_clock_ms(), clock_jump_days_max)
        except StorageError:
            engine.close()
            raise
        node = Node(engine, directory=directory, space=space, is_keyless=is_keyless)
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
