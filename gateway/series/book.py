"""The series of one process: of each queue to which something has happened, of tenants, and of the process itself."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from backend_store.client import Pulse, Pulses
from backend_store.model import QueueDefinition
from gateway.core.dealt import Dealt
from gateway.series.core.columns import (
    NODE_COLUMNS,
    NODE_LEVELS,
    QUEUE_COLUMNS,
    QUEUE_LEVELS,
    row_of,
)
from gateway.series.core.quiet import catch_up
from gateway.series.core.ring import BACK_SLOTS_MAX, TIERS, Series
from gateway.series.core.tally import Tally
from gateway.series.limits import QUIET_SERIES_MAX, SAMPLE_SECONDS_MAX, SERIES_BYTES_MAX
from gateway.series.packed import Packed, begun, follows, packed, unpacked

log = structlog.get_logger("pushq.series")

Place = tuple[str, int]
"""Tenant and uid of a queue; uid 0 is the tenant itself, the empty tenant the process."""
NODE: Place = ("", 0)
KEPT_MS: Final = max(tier.rows * tier.step_ms for tier in TIERS)
"""How far series reach back."""
PAUSE_SLOTS_MAX: Final = int(SAMPLE_SECONDS_MAX * 1000) // TIERS[0].step_ms + 1
"""The most slots of the finest tier between two rounds of sampling."""


@dataclass(slots=True, eq=False)
class Watched:
    """A sampled queue: its last pulse, and the pulse that its last row was made from."""

    definition: QueueDefinition
    pulses: Pulses
    pulse: Pulse
    kept: Pulse
    is_seen: bool = True
    series: Series | None = None
    """Set while the queue changes or its series is read. It lacks rows of quiet times, which `Book.series_of` adds."""
    packed: Packed | None = None
    """The compressed series of a queue that has been quiet for a while."""
    is_used: bool = False
    """The series was written or read since the last call of `Book.unused`."""
    changed_ms: int = 0
    """When the queue last changed: the queues quiet for longest are evicted first."""

    @property
    def has_series(self) -> bool:
        return self.series is not None or self.packed is not None


def queue_series() -> Series:
    return Series(len(QUEUE_COLUMNS), len(QUEUE_LEVELS))


def node_series() -> Series:
    return Series(len(NODE_COLUMNS), len(NODE_LEVELS))


SERIES_BYTES = queue_series().bytes


@dataclass(slots=True)
class Happened:
    """Changes of the queues of one tenant."""

    version: int = 0
    """A new number, never used before, whenever queues are added or removed; 0 where the tenant has none."""
    changes: int = 0
    """How often a queue was found to have changed."""
    changed_ms: int = 0
    """When that was last the case."""


@dataclass(slots=True)
class Book:
    """All series of the process. The sampler writes it; others on the same event loop read it."""

    watched: dict[int, Watched] = field(default_factory=dict)
    """By uid."""
    names: dict[tuple[str, str], int] = field(default_factory=dict)
    """Tenant and name → uid."""
    order: Dealt = field(default_factory=Dealt)
    """The names in order."""
    redelivered: Counter[str] = field(default_factory=Counter)
    """By tenant: redeliveries of all its queues."""
    tenants: dict[str, Series] = field(default_factory=dict)
    """They lack rows of quiet times, which `series_of_tenant` adds."""
    tallies: dict[str, Tally] = field(default_factory=dict)
    """By tenant that has queues with series: their levels, added up."""
    _happened: dict[str, Happened] = field(default_factory=dict)
    _versions: int = 0
    _empty_since: dict[str, int] = field(default_factory=dict)
    """Tenants with series and without such queues → since when, in ms."""
    node: Series = field(default_factory=node_series)
    written_ms: int = 0
    """When rows were last written; 0 before the first."""
    began_ms: int = 0
    """When this process wrote its first rows: older ones came from the file."""
    forgotten: int = 0
    """Series that were evicted."""
    rows: int = 0
    """Rows written for queues; quiet queues get none."""
    queues_max: int = SERIES_BYTES_MAX // SERIES_BYTES
    quiet_max: int = QUIET_SERIES_MAX
    _open: set[Watched] = field(default_factory=set)
    """Queues whose series are in memory uncompressed."""
    _packed: set[Watched] = field(default_factory=set)

    def of_queue(self, tenant: str, name: str) -> Watched | None:
        return self.watched.get(self.names.get((tenant, name), -1))

    def happened_to(self, tenant: str) -> Happened:
        return self._happened.get(tenant, _NOTHING)

    def _other_queues(self, tenant: str) -> None:
        """Queues of a tenant were added or removed."""
        self._versions += 1
        if self.order.count(tenant):
            self._happened.setdefault(tenant, Happened()).version = self._versions
        else:
            self._happened.pop(tenant, None)
            self.redelivered.pop(tenant, None)

    def queues_of(self, tenant: str) -> list[Watched]:
        """A tenant's queues, by name."""
        return [self.watched[self.names[name]] for name in self.order.of(tenant)]

    def series_of(self, watched: Watched) -> Series | None:
        """A queue's series up to the last round; None where nothing ever happened to the queue."""
        series = self._opened(watched)
        if series is not None:
            catch_up(series, self.node, self.node.rings[0].last + 1)
        return series

    def series_of_tenant(self, tenant: str) -> Series | None:
        """A tenant's series up to the last round; None where nothing ever happened to its queues."""
        series = self.tenants.get(tenant)
        if series is not None:
            catch_up(series, self.node, self.node.rings[0].last + 1)
        return series

    def _opened(self, watched: Watched) -> Series | None:
        if watched.packed is not None:
            watched.series, watched.packed = _unpacked(watched.packed), None
            self._packed.discard(watched)
            self._open.add(watched)
        watched.is_used = True
        if watched.series is not None and self.written_ms:
            watched.series.go_back(self.written_ms)
        return watched.series

    def met(self, watched: Watched, stored: Packed | None, now_ms: int, steady_ms: int) -> bool:
        """Adds a queue that is sampled for the first time. `stored`: its series from the previous process. Returns
        whether a row is due: not if it follows from `stored`."""
        uid, name = watched.definition.uid, (watched.definition.tenant, watched.definition.name)
        before = self.watched.get(self.names.get(name, -1))
        self._count_redelivered(name[0], before.pulse if before is not None else None, watched.pulse)
        self.watched[uid] = watched
        if name not in self.names:
            self.order.put(name)
        self.names[name] = uid
        self._other_queues(name[0])
        if stored is not None:
            # The previous process may have seen a change a moment ago.
            watched.packed, watched.changed_ms = stored, now_ms
            self._packed.add(watched)
            self._tally(watched).add(watched.definition.uid, _waiting(watched))
        return stored is None or not follows(stored, watched.pulse, now_ms, steady_ms)

    def seen(self, watched: Watched, pulse: Pulse, now_ms: int) -> None:
        """Takes over a queue's new pulse."""
        if pulse is not watched.pulse:
            name = (watched.definition.tenant, watched.definition.name)
            if self.names.get(name) == watched.definition.uid:
                self._count_redelivered(name[0], watched.pulse, pulse)
            watched.pulse = pulse
            happened = self.happened_to(name[0])
            happened.changes += 1
            happened.changed_ms = now_ms

    def forget(self, uid: int) -> None:
        """Drops a deleted queue."""
        watched = self.watched.pop(uid)
        self._open.discard(watched)
        self._packed.discard(watched)
        if watched.has_series:
            self._tally(watched).remove(uid)
        name = (watched.definition.tenant, watched.definition.name)
        if self.names.get(name) == uid:
            del self.names[name]
            self.order.remove(name)
            self._count_redelivered(name[0], watched.pulse, None)
        self._other_queues(name[0])

    def _count_redelivered(self, tenant: str, before: Pulse | None, now: Pulse | None) -> None:
        """Only for the queue that has its name now."""
        more = (now.redelivered_total if now else 0) - (before.redelivered_total if before else 0)
        if more:
            self.redelivered[tenant] += more

    def _tally(self, watched: Watched) -> Tally:
        tenant = watched.definition.tenant
        found = self.tallies.get(tenant)
        if found is None:
            found = self.tallies[tenant] = Tally()
        return found

    def write(self, some: Iterable[Watched], now_ms: int, steady_ms: int) -> None:
        """Writes a row for each of these queues, those to which something happened."""
        seconds = self._passed_seconds(now_ms)
        slot = now_ms // TIERS[0].step_ms
        for watched in some:
            pulse = watched.pulse
            row = row_of(watched.kept, pulse, steady_ms=steady_ms, seconds=seconds)
            if watched.kept is not pulse:
                watched.kept, watched.changed_ms = pulse, now_ms
            if not watched.has_series:
                if not any(row):
                    continue  # nothing ever happened to the queue
                watched.packed, watched.changed_ms = begun(slot, row), now_ms
                self._packed.add(watched)
            elif (series := self._opened(watched)) is not None:
                catch_up(series, self.node, slot)
                series.write(now_ms, row)
            self.rows += 1
            self._tally(watched).add(watched.definition.uid, _waiting(watched), row)

    def _passed_seconds(self, now_ms: int) -> float:
        """Seconds since the last rows; the length of a slot if the clock was set meanwhile."""
        passed_ms = now_ms - self.written_ms
        if not self.written_ms:
            return 0.0
        return (passed_ms if 0 < passed_ms <= PAUSE_SLOTS_MAX * TIERS[0].step_ms else TIERS[0].step_ms) / 1000

    def is_due(self, now_ms: int) -> bool:
        """Whether another slot has begun, or the clock was set back too far to wait for it."""
        slots = now_ms // TIERS[0].step_ms - self.written_ms // TIERS[0].step_ms
        return slots > 0 or slots < -BACK_SLOTS_MAX

    def close(self, now_ms: int, steady_ms: int, node: Sequence[float]) -> None:
        """Ends a round: writes the rows of tenants and of the process, and evicts series beyond the limits."""
        if now_ms < self.began_ms:
            self.began_ms = now_ms
        self._close_tenants(now_ms, steady_ms)
        self.node.write(now_ms, node)
        self.written_ms = now_ms
        self.began_ms = self.began_ms or now_ms
        if len(self._open) > self.queues_max:
            for watched in self._quietest(self._open, self.queues_max):
                assert watched.series is not None
                self.pack(watched, packed(watched.series))
        if len(self._open) + len(self._packed) > self.quiet_max:
            self._forget_quietest()

    def _close_tenants(self, now_ms: int, steady_ms: int) -> None:
        """Writes the rows of tenants. The series of a tenant without queues that have series ends once all its rows are
        too old: the tenant may be deleted."""
        for gone in self.tenants.keys() - self.tallies.keys():
            if gone not in self._empty_since:
                self._empty_since[gone] = now_ms
                self._write_tenant(gone, [0.0] * len(QUEUE_COLUMNS), now_ms)
            elif now_ms - self._empty_since[gone] >= KEPT_MS:
                del self.tenants[gone], self._empty_since[gone]
        # A tenant whose queues did not change has rows that follow from its last one, as quiet queues have.
        for tenant, tally in [found for found in self.tallies.items() if found[1].is_changed]:
            self._write_tenant(tenant, tally.row(steady_ms), now_ms)
            if tally:
                self._empty_since.pop(tenant, None)
            else:
                del self.tallies[tenant]

    def _write_tenant(self, tenant: str, row: Sequence[float], now_ms: int) -> None:
        series = self.tenants.setdefault(tenant, queue_series())
        catch_up(series, self.node, now_ms // TIERS[0].step_ms)
        series.write(now_ms, row)

    def _quietest(self, of: set[Watched], kept: int) -> list[Watched]:
        return sorted(of, key=lambda watched: watched.changed_ms)[: max(0, len(of) - kept)]

    def _forget_quietest(self) -> None:
        for watched in self._quietest(self._open | self._packed, self.quiet_max):
            self._open.discard(watched)
            self._packed.discard(watched)
            self._tally(watched).remove(watched.definition.uid)
            watched.series = watched.packed = None
            self.forgotten += 1

    def pack(self, watched: Watched, small: Packed) -> None:
        """Keeps a series compressed from now on."""
        watched.series, watched.packed = None, small
        self._open.discard(watched)
        self._packed.add(watched)

    def unused(self) -> list[Watched]:
        """Queues with uncompressed series that were neither written nor read since the last call."""
        found = [watched for watched in self._open if not watched.is_used]
        for watched in self._open:
            watched.is_used = False
        return found

    def all(self) -> Iterator[tuple[Place, Series | Packed]]:
        """Every series, for the file's writer, without rows of quiet times: those follow from the others."""
        yield NODE, self.node
        for tenant, series in list(self.tenants.items()):
            yield (tenant, 0), series
        for watched in (*self._open, *self._packed):
            held = watched.series or watched.packed
            if held is not None:
                yield (watched.definition.tenant, watched.definition.uid), held

    @property
    def bytes(self) -> int:
        """Memory of the rings."""
        return (1 + len(self.tenants) + len(self._open)) * SERIES_BYTES + sum(one.bytes for one in self._small())

    def _small(self) -> Iterator[Packed]:
        for watched in self._packed:
            if watched.packed is not None:
                yield watched.packed

    def spans(self, start: int, end: int) -> list[int]:
        """For each slot of the finest tier, the number of slots since `start` that its row covers; 0 where there is
        none.

        A row covers the time since the previous round, and a busy process samples less often than a slot is long.
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
        """In which slots of a tier this process sampled at all."""
        return [value == value for value in self.node.column(tier, 0, start, end)]


_NOTHING: Final = Happened()


def _waiting(watched: Watched) -> Pulse:
    """What a queue adds to its tenant's numbers: messages that a stream retains wait for no consumer."""
    pulse = watched.pulse
    return pulse._replace(ready=0, oldest_since_ms=0) if watched.definition.config.kind == "stream" else pulse


def _unpacked(small: Packed) -> Series:
    try:
        return unpacked(small, queue_series())
    except (ValueError, zlib.error) as error:
        # The checksum was right, so it was written like this. Only plots are lost: begin anew.
        log.warning("a series cannot be read", error=str(error))
        return queue_series()


RANGES: dict[str, tuple[int, int]] = {
    "15m": (0, TIERS[0].rows),
    "1h": (1, TIERS[1].rows),
    "6h": (2, TIERS[2].rows // 4),
    "24h": (2, TIERS[2].rows),
}
