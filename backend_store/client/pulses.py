"""Samples the numbers of thousands of queues repeatedly: an unchanged queue costs next to nothing.

A commit replaces a partition's state object, so the same object means the same numbers. Only leases and consumers
change besides, and those are plain counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from backend_store.client.embedded import EmbeddedStore
from backend_store.client.queue import EmbeddedQueue
from backend_store.core.log.records import PartitionState
from backend_store.core.log.sublogs import VIEW_DEAD, VIEW_MAIN, VIEW_OUTBOX
from backend_store.core.ready.attempt_policy import Reason
from backend_store.core.ready.work_queue import WorkView
from backend_store.metadata.recent import Recent
from backend_store.model import QueueDefinition, QueueNotFound
from backend_store.node.partition import Partition

_DEAD_LETTERS = (Reason.MAX_ATTEMPTS, Reason.EXPIRED, Reason.OVERFLOW, Reason.UNDELIVERABLE, Reason.QUEUE_DELETED)


class Pulse(NamedTuple):
    """A queue's numbers at one moment. Those ending in `_total` only grow while the process lives."""

    ready: int
    in_flight: int
    delayed: int
    dead: int
    oldest_since_ms: int
    """When the oldest message came, by the steady clock; 0 if there is none. Unlike an age it stays constant."""
    consumers: int
    published_total: int
    acked_total: int
    redelivered_total: int
    ended_total: int
    """Messages that ended without an ack, except cancelled ones."""


class Pulses:
    """Samples one queue."""

    __slots__ = ("_core", "_last", "_parts", "_partition", "_state", "queue")

    def __init__(self, queue: EmbeddedQueue):
        self.queue = queue
        self._parts: tuple[Partition, ...] = ()
        self._partition: Partition | None = None
        self._core: WorkView | None = None
        self._state: PartitionState | None = None
        self._last: Pulse | None = None

    def take(self) -> Pulse:
        """The current numbers; the same object as last time if nothing changed."""
        queue, last, core = self.queue, self._last, self._core
        parts = queue._partitions.all
        if parts is not self._parts or queue.groups:
            if len(parts) != 1 or queue.groups:
                return self._whole()
            self._parts, self._partition, last = parts, parts[0], None
            self._core = core = queue._views.all[0].core if queue._views is not None else None
        partition = self._partition
        assert partition is not None
        state = partition.state
        if (
            last is not None
            and state is self._state
            and last.consumers == queue.consumers
            and (core is None or (last.in_flight == core.in_flight and last.delayed == core.delayed))
        ):
            return last
        self._state = state
        self._last = last = self._fresh(partition, state, core)
        return last

    def _fresh(self, partition: Partition, state: PartitionState, core: WorkView | None) -> Pulse:
        in_flight, delayed = (core.in_flight, core.delayed) if core is not None else (0, 0)
        oldest = partition.oldest(VIEW_MAIN) if state.live else None
        return Pulse(
            max(0, state.live - in_flight - delayed),
            in_flight,
            delayed,
            sum(state.views[view].live for view in (VIEW_DEAD, VIEW_OUTBOX) if view in state.views),
            partition.steady_of(oldest) if oldest is not None else 0,
            self.queue.consumers,
            state.published_total,
            state.acked_total,
            core.came_back if core is not None else 0,
            sum(state.ended.get(reason, 0) for reason in _DEAD_LETTERS) if state.ended else 0,
        )

    def _whole(self) -> Pulse:
        """For a queue with several partitions, or groups: the sums."""
        queue, self._parts = self.queue, ()
        stats, ended = queue.stats(), queue.ended
        views = [view for one in (queue, *queue.groups.values()) if one._views is not None for view in one._views.all]
        return Pulse(
            stats.ready,
            stats.in_flight,
            stats.delayed,
            stats.dead,
            min((partition.steady_of(oldest) for partition, oldest in self._oldest()), default=0),
            stats.consumers,
            stats.published_total,
            stats.acked_total,
            sum(view.core.came_back for view in views),
            sum(ended.get(reason, 0) for reason in _DEAD_LETTERS),
        )

    def _oldest(self) -> Iterator[tuple[Partition, int]]:
        """Each non-empty partition, and when its oldest message came by its log's clock."""
        for partition in self.queue._partitions.all:
            if partition.state.live and (oldest := partition.oldest(VIEW_MAIN)) is not None:
                yield partition, oldest


class MetadataElsewhere(Protocol):
    @property
    def queues(self) -> Mapping[tuple[str, str], QueueDefinition]: ...
    @property
    def queues_changed(self) -> Recent[tuple[str, str]]: ...


class PulsesElsewhere(Protocol):
    """A store whose queues are in another process."""

    @property
    def metadata(self) -> MetadataElsewhere: ...
    def all_definitions(self) -> list[QueueDefinition]: ...
    def pulses_of(self, definition: QueueDefinition) -> Any: ...
    def listen_pulses(self) -> Callable[[], set[int]]: ...
    async def refresh_pulses(self) -> None: ...


def definitions(store: EmbeddedStore | PulsesElsewhere) -> list[QueueDefinition]:
    """Every queue of this process, of all tenants, at this moment."""
    if not isinstance(store, EmbeddedStore):
        return store.all_definitions()
    return list(store.node.metadata.queues.values())


class Touches(NamedTuple):
    """The queues in which something happened since the last call."""

    uids: set[int]
    defined: dict[tuple[str, str], QueueDefinition | None]
    """By tenant and name, queues that were made, changed or deleted; None if no queue has the name now."""


class Toucher:
    """Tells in which queues something happened. For queues in another process it knows what their pulses report."""

    def __init__(self, store: EmbeddedStore | PulsesElsewhere):
        self._store = store
        self._take: Callable[[], set[int]] | None = None
        self._defined = 0

    @property
    def is_listening(self) -> bool:
        """Whether `take` was called: from then on changes gather until taken, deleted queues included."""
        return self._take is not None

    async def refresh(self) -> None:
        """Returns when all changes up to now are known, or cannot be known soon."""
        if not isinstance(self._store, EmbeddedStore):
            await self._store.refresh_pulses()

    def take(self) -> Touches | None:
        """Changes since the last call. None: look at all queues, because this is the first call, or too many
        definitions changed to tell which.
        """
        rows, changed = self._rows()
        names = changed.since(self._defined) if self._take is not None else None
        self._defined = changed.version
        if self._take is None:
            # Only once a caller asks: changes that nothing takes would pile up.
            self._take = self._listen()
        uids = self._take()
        return Touches(uids, {name: rows.get(name) for name in names}) if names is not None else None

    def _rows(self) -> tuple[Mapping[tuple[str, str], QueueDefinition], Recent[tuple[str, str]]]:
        if isinstance(self._store, EmbeddedStore):
            rows = self._store.node.metadata.queues
            return rows, rows.recent
        return self._store.metadata.queues, self._store.metadata.queues_changed

    def _listen(self) -> Callable[[], set[int]]:
        if not isinstance(self._store, EmbeddedStore):
            return self._store.listen_pulses()
        touched = self._store.node.touched.listen()
        return lambda: {partition.title.uid for partition in touched()}


def pulses_of(store: EmbeddedStore | PulsesElsewhere, definition: QueueDefinition) -> Pulses | None:
    """Samples a queue; None if it was deleted meanwhile, or its numbers are not here yet."""
    if not isinstance(store, EmbeddedStore):
        found: Pulses | None = store.pulses_of(definition)
        return found
    try:
        return Pulses(EmbeddedStore.here(store, definition.tenant, definition.name))
    except QueueNotFound:
        return None
