"""Collects the statistics of all queues for `/metrics`: some queues by name, the others summed up per tenant.

A queue unchanged since the last scrape is not read again, unless it has series of its own.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from backend_store.client import Store, Toucher, Touches, list_groups
from backend_store.model import ClusterAway, QueueDefinition, QueueNotFound, QueueStats
from gateway.core.dealt import Dealt, Name
from gateway.limits import GROUPS_LABELLED_MAX, QUEUES_LABELLED_MAX
from push.delivery.lookup_retry import answered, asks, found

OTHER: Final = "other"
QUEUES_PER_TURN: Final = 50
ADDED: Final = ("ready", "in_flight", "delayed", "dead", "consumers", "bytes", "published_total", "acked_total")
_SPARE: Final = 64

What = tuple[str, str]
"""What is summed up: (kind, name), such as a field of the stats, messages that ended by reason, partitions by state."""
LAYOUTS: Final = "layouts", ""
MOVING: Final = "moving", ""
GROUPS: Final = "groups", ""
LAG: Final = "lag", ""


class Numbers(NamedTuple):
    """The statistics of one queue."""

    stats: dict[str, QueueStats]
    """Stats by name: its own and those of its companions that hold something."""
    ended: dict[str, int]
    """Messages that ended without an ack, by reason."""
    states: Counter[str]
    """Its partitions by state; empty for a queue that always has one partition."""
    moving: int | None
    """Slots that are moving between its partitions; None for a queue that always has one."""
    lags: dict[str, int]
    """Lag in messages by consumer group."""

    def added_up(self) -> Counter[What]:
        found: Counter[What] = Counter()
        for stats in self.stats.values():
            for name in ADDED:
                if value := getattr(stats, name):
                    found["stats", name] += value
        for reason, count in self.ended.items():
            found["ended", reason] = count
        for state, count in self.states.items():
            found["state", state] = count
        if self.moving is not None:
            found[LAYOUTS], found[MOVING] = 1, self.moving
        if self.lags:
            found[GROUPS], found[LAG] = len(self.lags), sum(self.lags.values())
        return found


@dataclass(slots=True)
class Collected:
    """The result of one scrape. The queue name `OTHER` stands for all further queues of a tenant."""

    shown: set[Name] = field(default_factory=set)
    stats: dict[Name, QueueStats] = field(default_factory=dict)
    ended: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """(tenant, queue, reason) → messages."""
    lags: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """(tenant, queue, group) → lag."""
    partitions: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """(tenant, queue, state) → partitions."""
    moving: Counter[Name] = field(default_factory=Counter)

    def add(self, tenant: str, shown: str, numbers: Numbers) -> None:
        for reason, messages in numbers.ended.items():
            self.ended[tenant, shown, reason] += messages
        for state, count in numbers.states.items():
            self.partitions[tenant, shown, state] += count
        if numbers.moving is not None:
            self.moving[tenant, shown] += numbers.moving


class _Tenant:
    """The sums over a tenant's queues, and since when the oldest message of each waits."""

    def __init__(self) -> None:
        self.sums: Counter[What] = Counter()
        self.since: dict[int, int] = {}
        """Uid → since when its oldest message waits, by the store's steady clock; queues without messages are left
        out."""
        self._oldest: list[tuple[int, int]] = []
        """Heap of (since, uid). Outdated entries are skipped."""

    def put(self, uid: int, since_ms: int) -> None:
        if not since_ms:
            self.since.pop(uid, None)
        elif self.since.get(uid) != since_ms:
            self.since[uid] = since_ms
            heapq.heappush(self._oldest, (since_ms, uid))
            if len(self._oldest) > 2 * len(self.since) + _SPARE:
                self._oldest = [(since, uid) for uid, since in self.since.items()]
                heapq.heapify(self._oldest)

    def oldest(self, without: Iterable[int]) -> int:
        """Since when the oldest message waits in all queues but these; 0 if none waits."""
        passed = {uid: since for uid in without if (since := self.since.pop(uid, 0))}
        while self._oldest and self.since.get(self._oldest[0][1]) != self._oldest[0][0]:
            heapq.heappop(self._oldest)
        since_ms = self._oldest[0][0] if self._oldest else 0
        for uid, since in passed.items():
            self.put(uid, since)
        return since_ms


class QueueNumbers:
    """Collects the statistics of all queues of a gateway; one scrape at a time."""

    def __init__(self, store: Store) -> None:
        self.looked_at = 0
        """Total number of reads of queues."""
        self._store = store
        self._toucher = Toucher(store)
        self._turn = asyncio.Lock()
        self._names = Dealt()
        self._streams = Dealt()
        self._stream_uids: set[int] = set()
        self._uids: dict[Name, int] = {}
        self._name_of: dict[int, Name] = {}
        self._rows: dict[int, Counter[What]] = {}
        """Uid → its share of its tenant's sums; queues with all zeros are left out."""
        self._tenants: dict[str, _Tenant] = {}
        self._due: set[int] = set()
        """Uids of queues that changed since they were read."""

    async def hear(self, _now_ms: int) -> None:
        """Takes the changes since the last scrape, so that they do not pile up if there is no further scrape."""
        if self._toucher.is_listening and not self._turn.locked():
            self._take(self._toucher.take())

    async def collect(self) -> Collected:
        """The statistics now. Raises `PushqError` if a backend is away; what was read until then is kept."""
        async with self._turn:
            token = asks()  # all reads are as of now or later
            try:
                return await self._collect()
            finally:
                if token is not None:
                    answered(token)

    async def _collect(self) -> Collected:
        await self._toucher.refresh()
        self._take(self._toucher.take())
        shown, streams = self._names.first(QUEUES_LABELLED_MAX), self._streams.first(GROUPS_LABELLED_MAX)
        fresh = await self._look({self._uids[name] for name in (*shown, *streams)})
        collected = Collected(set(shown))
        for tenant, name in shown:
            if (numbers := fresh.get(self._uids[tenant, name])) is not None:
                collected.stats.update({(tenant, one): stats for one, stats in numbers.stats.items()})
                collected.add(tenant, name, numbers)
        for tenant, name in streams:
            numbers = fresh.get(self._uids[tenant, name])
            for group, lag in numbers.lags.items() if numbers is not None else ():
                if len(collected.lags) < GROUPS_LABELLED_MAX:
                    collected.lags[tenant, name, group] = lag
        self._add_other_groups(collected)
        of_tenant: dict[str, list[int]] = {tenant: [] for tenant in self._names.tenants}
        for tenant, name in shown:
            of_tenant[tenant].append(self._uids[tenant, name])
        for tenant, uids in of_tenant.items():
            if self._names.count(tenant) > len(uids):
                self._add_others(collected, tenant, uids)
        return collected

    # ------------------------------------------------------------------------------------------- which there are

    def _take(self, touches: Touches | None) -> None:
        if touches is not None:
            for name, definition in touches.defined.items():
                self._redefine(name, definition)
            self._due |= touches.uids & self._name_of.keys()
            return
        definitions = self._store.metadata.queues
        self._names, self._rows, self._tenants = Dealt(definitions), {}, {}
        streams = {name: one.uid for name, one in definitions.items() if one.config.kind == "stream"}
        self._streams, self._stream_uids = Dealt(streams), set(streams.values())
        self._uids = {name: one.uid for name, one in definitions.items()}
        self._name_of = {uid: name for name, uid in self._uids.items()}
        self._due = set(self._name_of)

    def _redefine(self, name: Name, definition: QueueDefinition | None) -> None:
        uid = self._uids.get(name)
        if uid is not None and (definition is None or definition.uid != uid):
            self._put(uid, Counter(), 0)
            del self._uids[name], self._name_of[uid]
            self._due.discard(uid)
            self._names.remove(name)
            if uid in self._stream_uids:
                self._stream_uids.discard(uid)
                self._streams.remove(name)
        if definition is None:
            return
        self._due.add(definition.uid)
        if definition.uid not in self._name_of:
            self._uids[name], self._name_of[definition.uid] = definition.uid, name
            self._names.put(name)
            if definition.config.kind == "stream":
                self._stream_uids.add(definition.uid)
                self._streams.put(name)

    # ------------------------------------------------------------------------------------------------ their numbers

    async def _look(self, own: set[int]) -> dict[int, Numbers]:
        """Reads the queues `own` and those that are due. Returns the statistics of `own`, without unavailable ones."""
        fresh: dict[int, Numbers] = {}
        due = iter(own | self._due)
        while some := [(uid, self._name_of[uid]) for uid in islice(due, QUEUES_PER_TURN)]:
            await self._store.look_ahead([name for _, name in some])
            for uid, name in some:
                try:
                    self.looked_at += 1
                    numbers = await found(partial(_read, self._store, *name))
                except QueueNotFound:
                    self._put(uid, Counter(), 0)  # it was deleted while others were read
                except ClusterAway:
                    self._due.add(uid)  # unavailable: the tenant's sums keep the values read before
                    continue
                else:
                    age_ms = max((stats.oldest_age_ms for stats in numbers.stats.values()), default=0)
                    self._put(uid, numbers.added_up(), self._store.steady_ms() - age_ms if age_ms else 0)
                    if uid in own:
                        fresh[uid] = numbers
                self._due.discard(uid)
            await asyncio.sleep(0)  # thousands of queues must not delay messages
        return fresh

    def _put(self, uid: int, row: Counter[What], since_ms: int) -> None:
        tenant = self._name_of[uid][0]
        known = self._tenants.get(tenant)
        if known is None:
            known = self._tenants[tenant] = _Tenant()
        if uid in self._rows:
            known.sums.subtract(self._rows.pop(uid))
        if row:
            self._rows[uid] = row
            known.sums.update(row)
        known.put(uid, since_ms)

    def _add_others(self, collected: Collected, tenant: str, shown: list[int]) -> None:
        """Adds the sums over a tenant's queues without those that are shown."""
        known = self._tenants.get(tenant, _NOTHING)
        sums = Counter(known.sums)
        for uid in shown:
            sums.subtract(self._rows.get(uid, {}))
        since_ms = known.oldest(shown)
        age_ms = max(0, self._store.steady_ms() - since_ms) if since_ms else 0
        collected.stats[tenant, OTHER] = QueueStats(oldest_age_ms=age_ms, **{one: sums["stats", one] for one in ADDED})
        for (kind, what), value in sums.items():
            if kind == "ended" and value:
                collected.ended[tenant, OTHER, what] = value
            elif kind == "state" and value:
                collected.partitions[tenant, OTHER, what] = value
        if sums[LAYOUTS]:
            collected.moving[tenant, OTHER] = sums[MOVING]

    def _add_other_groups(self, collected: Collected) -> None:
        """Adds the sums over the consumer groups of each tenant without those that are shown."""
        groups: Counter[str] = Counter()
        lags: Counter[str] = Counter()
        for (tenant, _, _), lag in collected.lags.items():
            groups[tenant] += 1
            lags[tenant] += lag
        for tenant in self._streams.tenants:
            sums = self._tenants.get(tenant, _NOTHING).sums
            if sums[GROUPS] > groups[tenant]:
                collected.lags[tenant, OTHER, OTHER] = sums[LAG] - lags[tenant]


_NOTHING: Final = _Tenant()


async def of_queues(store: Store, tenant: str) -> Collected:
    """The statistics of one tenant's queues; reads each of them. The first ones by name are shown. Raises
    `PushqError`."""
    collected = Collected()
    async for shown, name in _turn_by_turn(name for _, name in sorted(store.names(tenant))):
        with suppress(QueueNotFound, ClusterAway):  # it was deleted while others were read, or is unavailable
            stats = await found(store.here(tenant, name).stats)
            known = collected.stats.get((tenant, shown))
            collected.stats[tenant, shown] = stats if known is None else _sum(known, stats)
    async for shown, name in _turn_by_turn(sorted(one.name for one in store.metadata.of_tenant(tenant))):
        with suppress(QueueNotFound, ClusterAway):
            numbers = await found(partial(_read, store, tenant, name, with_stats=False))
            collected.add(tenant, shown, numbers)
            for group, lag in numbers.lags.items():
                own = len(collected.lags) < GROUPS_LABELLED_MAX
                collected.lags[(tenant, name, group) if own else (tenant, OTHER, OTHER)] += lag
    return collected


async def _turn_by_turn(names: Iterable[str]) -> AsyncIterator[tuple[str, str]]:
    """Yields (shown name, name), and gives other tasks a turn: thousands of queues must not delay messages."""
    for number, name in enumerate(names):
        if number % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
            await asyncio.sleep(0)
        yield (name if number < QUEUES_LABELLED_MAX else OTHER), name


def _sum(a: QueueStats, b: QueueStats) -> QueueStats:
    sums = {name: getattr(a, name) + getattr(b, name) for name in ADDED}
    return QueueStats(oldest_age_ms=max(a.oldest_age_ms, b.oldest_age_ms), **sums)


def _read(store: Store, tenant: str, name: str, *, with_stats: bool = True) -> Numbers:
    """Reads one queue's statistics. Raises `LookingUp`, `QueueNotFound` and `ClusterAway`."""
    names = store.names_of(tenant, name) if with_stats else ()
    stats = {one: store.here(tenant, one).stats() for one in names}
    queue = store.here(tenant, name)
    layout = queue.layout
    return Numbers(
        stats,
        dict(queue.ended),
        Counter([each.state for each in layout]) if layout else _NO_STATES,
        sum(each.slots_arriving for each in layout) if layout else None,
        {group.name: sum(part.lag for part in group.lag) for group in list_groups(queue)},
    )


_NO_STATES: Final[Counter[str]] = Counter()
