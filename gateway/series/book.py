"""The series of one process: of each queue that something happened to, of tenants, and of the process itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from backend_store.client import Pulse, Pulses
from backend_store.model import QueueDefinition
from gateway.series.core.columns import (
    NODE_COLUMNS,
    NODE_LEVELS,
    QUEUE_COLUMNS,
    QUEUE_LEVELS,
    added,
    row_of,
)
from gateway.series.core.ring import TIERS, Series
from gateway.series.limits import SAMPLE_SECONDS_MAX, SERIES_BYTES_MAX

Place = tuple[str, int]
"""Tenant and uid of a queue; uid 0 is the tenant itself, the empty tenant the process."""
NODE: Place = ("", 0)
PAUSE_SLOTS_MAX: Final = int(SAMPLE_SECONDS_MAX * 1000) // TIERS[0].step_ms + 1
"""Slots of the finest tier between two looks, at most."""


@dataclass(slots=True)
class Watched:
    """A queue as it is looked at: its last pulse, and the one that its last row was made from."""

    definition: QueueDefinition
    pulses: Pulses
    pulse: Pulse
    kept: Pulse
    is_seen: bool = True
    series: Series | None = None
    changed_ms: int = 0
    """When something was last different: the quietest make room first."""


def queue_series() -> Series:
    return Series(len(QUEUE_COLUMNS), len(QUEUE_LEVELS))


def node_series() -> Series:
    return Series(len(NODE_COLUMNS), len(NODE_LEVELS))


SERIES_BYTES = queue_series().bytes


@dataclass(slots=True)
class Book:
    """Written by the sampler, read by everybody else on the same loop."""

    watched: dict[int, Watched] = field(default_factory=dict)
    """By uid."""
    names: dict[tuple[str, str], int] = field(default_factory=dict)
    """Tenant and name → uid."""
    tenants: dict[str, Series] = field(default_factory=dict)
    node: Series = field(default_factory=node_series)
    written_ms: int = 0
    """When rows were last written; 0 before the first."""
    began_ms: int = 0
    """When this process wrote its first rows: of what was before it knows what the file had."""
    version: int = 0
    """Another one whenever queues came or went."""
    forgotten: int = 0
    """Series that made room for others."""
    queues_max: int = SERIES_BYTES_MAX // SERIES_BYTES

    def of_queue(self, tenant: str, name: str) -> Watched | None:
        return self.watched.get(self.names.get((tenant, name), -1))

    def forget(self, uid: int) -> None:
        """The queue was deleted."""
        watched = self.watched.pop(uid)
        self.version += 1
        name = (watched.definition.tenant, watched.definition.name)
        if self.names.get(name) == uid:
            del self.names[name]

    def write(self, some: Iterable[Watched], now_ms: int, steady_ms: int, totals: dict[str, list[float]]) -> None:
        """A row for each of these queues, added to the totals of their tenants."""
        seconds = (now_ms - self.written_ms) / 1000 if self.written_ms else 0.0
        for watched in some:
            pulse = watched.pulse
            row = row_of(watched.kept, pulse, steady_ms=steady_ms, seconds=seconds)
            if watched.kept is not pulse:
                watched.kept, watched.changed_ms = pulse, now_ms
            if watched.series is None:
                if not any(row):
                    continue  # nothing ever happened to it
                watched.series, watched.changed_ms = queue_series(), now_ms
            watched.series.write(now_ms, row)
            total = totals.get(watched.definition.tenant)
            if total is None:
                total = totals[watched.definition.tenant] = [0.0] * len(QUEUE_COLUMNS)
            added(total, row)

    def close(self, now_ms: int, totals: dict[str, list[float]], node: Sequence[float]) -> None:
        """The round is over: rows of tenants and of the process."""
        for tenant, total in totals.items():
            self.tenants.setdefault(tenant, queue_series()).write(now_ms, total)
        for gone in self.tenants.keys() - totals.keys():
            self.tenants[gone].write(now_ms, [0.0] * len(QUEUE_COLUMNS))
        self.node.write(now_ms, node)
        self.written_ms = now_ms
        self.began_ms = self.began_ms or now_ms
        self._make_room()

    def _make_room(self) -> None:
        held = [watched for watched in self.watched.values() if watched.series is not None]
        if len(held) <= self.queues_max:
            return
        held.sort(key=lambda watched: watched.changed_ms)
        for watched in held[: len(held) - self.queues_max]:
            watched.series = None
            self.forgotten += 1

    def all(self) -> Iterator[tuple[Place, Series]]:
        """Every series, for whoever writes them down."""
        yield NODE, self.node
        for tenant, series in list(self.tenants.items()):
            yield (tenant, 0), series
        for uid, watched in list(self.watched.items()):
            if watched.series is not None:
                yield (watched.definition.tenant, uid), watched.series

    @property
    def bytes(self) -> int:
        """Memory of the rings."""
        rings = 1 + len(self.tenants) + sum(watched.series is not None for watched in self.watched.values())
        return rings * SERIES_BYTES

    def spans(self, start: int, end: int) -> list[int]:
        """For slots of the finest tier how many of them, from `start` on, a row there is about; 0 where none is.

        A row says how it was since the look before, and a busy process looks less often than a slot is long.
        """
        before = start - PAUSE_SLOTS_MAX
        spans, last = [], before - 1
        for slot, is_there in enumerate(self.covered(0, before, end), before):
            span = 0
            if is_there:
                span = slot - last if last >= before else 1
                last = slot
            if slot >= start:
                spans.append(min(span, slot - start + 1))
        return spans

    def covered(self, tier: int, start: int, end: int) -> list[bool]:
        """In which slots of a tier this process looked at all."""
        return [value == value for value in self.node.column(tier, 0, start, end)]


RANGES: dict[str, tuple[int, int]] = {
    "15m": (0, TIERS[0].rows),
    "1h": (1, TIERS[1].rows),
    "6h": (2, TIERS[2].rows // 4),
    "24h": (2, TIERS[2].rows),
}
