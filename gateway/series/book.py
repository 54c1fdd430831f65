"""The series of one process: of each queue that something happened to, of tenants, and of the process itself."""

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
"""What series look back."""
PAUSE_SLOTS_MAX: Final = int(SAMPLE_SECONDS_MAX * 1000) // TIERS[0].step_ms + 1
"""Slots of the finest tier between two looks, at most."""


@dataclass(slots=True, eq=False)
class Watched:
    """A queue as it is looked at: its last pulse, and the one that its last row was made from."""

    definition: QueueDefinition
    pulses: Pulses
    pulse: Pulse
    kept: Pulse
    is_seen: bool = True
    series: Series | None = None
    """While its queue changes or somebody reads them. Without rows of quiet times: those `Book.series_of` adds."""
    packed: Packed | None = None
    """The series of a queue that has been quiet for a while."""
    is_used: bool = False
    """The series were written to or read since they were last written down."""
    changed_ms: int = 0
    """When something was last different: the quietest make room first."""

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
    """To the queues of one tenant."""

    version: int = 0
    """Another one whenever queues came or went, and none that there was before; 0 where there are none."""
    changes: int = 0
    """How often a queue was found to be different."""
    changed_ms: int = 0
    """When that was so last."""


@dataclass(slots=True)
class Book:
    """Written by the sampler, read by everybody else on the same loop."""

    watched: dict[int, Watched] = field(default_factory=dict)
    """By uid."""
    names: dict[tuple[str, str], int] = field(default_factory=dict)
    """Tenant and name → uid."""
    order: Dealt = field(default_factory=Dealt)
    """The names in order."""
    redelivered: Counter[str] = field(default_factory=Counter)
    """By tenant: what all its queues had redelivered."""
    tenants: dict[str, Series] = field(default_factory=dict)
    """Without rows of quiet times: those `series_of_tenant` adds."""
    tallies: dict[str, Tally] = field(default_factory=dict)
    """Of each tenant that has queues with series: their levels, added up."""
    _happened: dict[str, Happened] = field(default_factory=dict)
    _versions: int = 0
    _empty_since: dict[str, int] = field(default_factory=dict)
    """Tenant with series and without such queues → since when, in ms."""
    node: Series = field(default_factory=node_series)
    written_ms: int = 0
    """When rows were last written; 0 before the first."""
    began_ms: int = 0
    """When this process wrote its first rows: of what was before it knows what the file had."""
    forgotten: int = 0
    """Series that made room for others."""
    rows: int = 0
    """Rows of queues that were written: none for a queue that nothing happens to."""
    queues_max: int = SERIES_BYTES_MAX // SERIES_BYTES
    quiet_max: int = QUIET_SERIES_MAX
    _open: set[Watched] = field(default_factory=set)
    """Those whose series are in memory as they are."""
    _packed: set[Watched] = field(default_factory=set)

    def of_queue(self, tenant: str, name: str) -> Watched | None:
        return self.watched.get(self.names.get((tenant, name), -1))

    def happened_to(self, tenant: str) -> Happened:
        return self._happened.get(tenant, _NOTHING)

    def _other_queues(self, tenant: str) -> None:
        """Queues of a tenant came or went."""
        self._versions += 1
        if self.order.count(tenant):
            self._happened.setdefault(tenant, Happened()).version = self._versions
        else:
            self._happened.pop(tenant, None)
            self.redelivered.pop(tenant, None)

    def queues_of(self, tenant: str) -> list[Watched]:
        """One tenant's, by name."""
        return [self.watched[self.names[name]] for name in self.order.of(tenant)]

    def series_of(self, watched: Watched) -> Series | None:
        """A queue's series up to the last look. None where nothing ever happened to it."""
        series = self._opened(watched)
        if series is not None:
            catch_up(series, self.node, self.node.rings[0].last + 1)
        return series

    def series_of_tenant(self, tenant: str) -> Series | None:
        """A tenant's series up to the last look. None where nothing ever happened to it."""
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
        """A queue is looked at for the first time; `stored` is what the process before knew. Whether a row is due: not
        where it follows from what is stored."""
        uid, name = watched.definition.uid, (watched.definition.tenant, watched.definition.name)
        before = self.watched.get(self.names.get(name, -1))
        self._count_redelivered(name[0], before.pulse if before is not None else None, watched.pulse)
        self.watched[uid] = watched
        if name not in self.names:
            self.order.put(name)
        self.names[name] = uid
        self._other_queues(name[0])
        if stored is not None:
            # What the process before saw may have been a moment ago.
            watched.packed, watched.changed_ms = stored, now_ms
            self._packed.add(watched)
            self._tally(watched).add(watched.definition.uid, _waiting(watched))
        return stored is None or not follows(stored, watched.pulse, now_ms, steady_ms)

    def seen(self, watched: Watched, pulse: Pulse, now_ms: int) -> None:
        """A queue is as its pulse says."""
        if pulse is not watched.pulse:
            name = (watched.definition.tenant, watched.definition.name)
            if self.names.get(name) == watched.definition.uid:
                self._count_redelivered(name[0], watched.pulse, pulse)
            watched.pulse = pulse
            happened = self.happened_to(name[0])
            happened.changes += 1
            happened.changed_ms = now_ms

    def forget(self, uid: int) -> None:
        """The queue was deleted."""
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
        """Of a queue that has its name."""
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
        """A row for each of these queues: those that something happened to."""
        seconds = self._passed_seconds(now_ms)
        slot = now_ms // TIERS[0].step_ms
        for watched in some:
            pulse = watched.pulse
            row = row_of(watched.kept, pulse, steady_ms=steady_ms, seconds=seconds)
            if watched.kept is not pulse:
                watched.kept, watched.changed_ms = pulse, now_ms
            if not watched.has_series:
                if not any(row):
                    continue  # nothing ever happened to it
                watched.packed, watched.changed_ms = begun(slot, row), now_ms
                self._packed.add(watched)
            elif (series := self._opened(watched)) is not None:
                catch_up(series, self.node, slot)
                series.write(now_ms, row)
            self.rows += 1
            self._tally(watched).add(watched.definition.uid, _waiting(watched), row)

    def _passed_seconds(self, now_ms: int) -> float:
        """Since the last rows; as long as a slot where the clock was set meanwhile."""
        passed_ms = now_ms - self.written_ms
        if not self.written_ms:
            return 0.0
        return (passed_ms if 0 < passed_ms <= PAUSE_SLOTS_MAX * TIERS[0].step_ms else TIERS[0].step_ms) / 1000

    def is_due(self, now_ms: int) -> bool:
        """Whether another slot has begun, or the clock was set back so far that the last rows do not count."""
        slots = now_ms // TIERS[0].step_ms - self.written_ms // TIERS[0].step_ms
        return slots > 0 or slots < -BACK_SLOTS_MAX

    def close(self, now_ms: int, steady_ms: int, node: Sequence[float]) -> None:
        """The round is over: rows of tenants and of the process."""
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
        """Those of a tenant without queues that have series end when they say nothing any more: it may be deleted."""
        for gone in self.tenants.keys() - self.tallies.keys():
            if gone not in self._empty_since:
                self._empty_since[gone] = now_ms
                self._write_tenant(gone, [0.0] * len(QUEUE_COLUMNS), now_ms)
            elif now_ms - self._empty_since[gone] >= KEPT_MS:
                del self.tenants[gone], self._empty_since[gone]
        # One that nothing happened to has rows that follow from its last one, as quiet queues have.
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
        """Keeps a series in its small form from now on."""
        watched.series, watched.packed = None, small
        self._open.discard(watched)
        self._packed.add(watched)

    def unused(self) -> list[Watched]:
        """Those that are in memory, and were neither written to nor read since this was asked before."""
        found = [watched for watched in self._open if not watched.is_used]
        for watched in self._open:
            watched.is_used = False
        return found

    def all(self) -> Iterator[tuple[Place, Series | Packed]]:
        """Every series, for whoever writes them down. What a quiet queue is like now follows from what is there."""
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


_NOTHING: Final = Happened()


def _waiting(watched: Watched) -> Pulse:
    """What a queue adds to its tenant's numbers: what a stream keeps is read by many and waits for nobody."""
    pulse = watched.pulse
    return pulse._replace(ready=0, oldest_since_ms=0) if watched.definition.config.kind == "stream" else pulse


def _unpacked(small: Packed) -> Series:
    try:
        return unpacked(small, queue_series())
    except (ValueError, zlib.error) as error:
        # Its checksum was right, so it was written like this: plots are no data, and begin anew.
        log.warning("a series does not read", error=str(error))
        return queue_series()


RANGES: dict[str, tuple[int, int]] = {
    "15m": (0, TIERS[0].rows),
    "1h": (1, TIERS[1].rows),
    "6h": (2, TIERS[2].rows // 4),
    "24h": (2, TIERS[2].rows),
}
