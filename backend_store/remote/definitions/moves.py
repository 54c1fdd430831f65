"""Moves queues from one cluster to another: starts and cancels moves, and takes their steps, as every gateway does.

The state of a move is in the queue's definition alone, stored by the home cluster. Each step changes the definition and
names the version before, so any gateway may take it, and several may try. See `metadata.relocation`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import structlog

from backend_store.core.host_lanes.single_lane import needs_single_lane
from backend_store.core.partitions.slots import ALL_SLOTS, SLOTS, unpacked
from backend_store.metadata.elsewhere import ClusterSize
from backend_store.metadata.sharing import leaving_slots, open_places, why_waits
from backend_store.model import (
    Conflict,
    FormerPlace,
    NotFound,
    PushqError,
    QueueDefinition,
    QueueNotFound,
    Replication,
    Unavailable,
    Whereabouts,
)
from backend_store.node.node import wall_clock_ms
from backend_store.remote.limits import (
    MOVE_FORGET_MS,
    MOVE_LOOK_SECONDS,
    MOVE_REMEMBER_SECONDS,
    MOVE_STEP_SECONDS,
    MOVE_STEPS_MAX,
    OTHERS_SECONDS_MAX,
    READY_LOOK_SECONDS,
)
from backend_store.remote.queues.placed_streams import PlacedStream
from backend_store.service.left_behind import Left
from backend_store.service.relocating import (
    Arrive,
    BeginRelocation,
    FindEnd,
    FindLeft,
    ForgetPlace,
    GiveUpRelocation,
    GoOnSpreading,
    NoteSettled,
    SpreadQueue,
)

if TYPE_CHECKING:
    from backend_store.remote.cluster import BackendCluster
    from backend_store.remote.home import Home
    from backend_store.remote.store import RemoteBackends

log = structlog.get_logger("pushq.remote")

MoveState = Literal["sealing", "draining", "remembering"]
"""sealing: the old cluster is about to stop taking publishes. draining: publishes go to the new cluster, and the old
one still delivers what it has. remembering: the old cluster has only remembered ids left."""

_end = msgspec.msgpack.Decoder(int).decode
_left = msgspec.msgpack.Decoder(Left).decode
_definition = msgspec.msgpack.Decoder(QueueDefinition).decode


NOTHING = Left(0, 0)


class QueueMove(NamedTuple):
    """A move in progress. `source` and `to` are names of clusters, also for the home cluster."""

    tenant: str
    queue: str
    source: str
    to: str
    state: MoveState
    since_ms: int
    """When the queue entered this state."""
    left: int | None
    """Messages left in the old cluster, dead letters included; None if unknown. If that cluster keeps other slots of
    the queue: in strict order, the messages that the new cluster waits for."""
    share: float = 1.0
    """The share of the queue's slots that moves; of a queue that left in several steps, that of the last step."""


class QueueShare(NamedTuple):
    """The share of a queue's publishes that goes to a cluster; `cluster` is its name."""

    cluster: str
    share: float


class Moves:
    """All moves, as one gateway sees and advances them; `RemoteBackends` owns it."""

    def __init__(self, store: RemoteBackends) -> None:
        self._store = store
        self._left: dict[tuple[int, Whereabouts], Left] = {}
        """(uid, former place) → what was left there when last asked."""
        self._moving: dict[int, QueueDefinition] = {}
        """By uid, the queues whose move has steps left."""
        self._shared: dict[int, QueueDefinition] = {}
        """By uid, the queues that `shared` returns."""
        self._news: dict[int, asyncio.Event] = {}
        """By uid, wakes the task that takes the queue's steps: its definition has changed."""
        self._has_groups_left: dict[int, bool] = {}
        """By uid of a stream: whether consumer groups still have messages to read at a former place."""
        self._waits: dict[int, str] = {}
        """By uid, the reason for waiting that was logged last."""
        self._steps = asyncio.Semaphore(MOVE_STEPS_MAX)

    def under_way(self) -> list[QueueMove]:
        """All moves, sorted by tenant and queue. A queue that moved more than once has one for each cluster it left."""
        found = [move for definition in self._moving.values() for move in self._moves_of(definition)]
        return sorted(found, key=lambda move: (move.tenant, move.queue))

    def _moves_of(self, definition: QueueDefinition) -> list[QueueMove]:
        found = []
        of = definition.tenant, definition.name
        if definition.moving_to is not None:
            source = definition.moving_from or definition.place
            names = self._name(source.cluster), self._name(definition.moving_to.cluster)
            share = _share(leaving_slots(definition, source))
            found.append(QueueMove(*of, *names, "sealing", definition.moving_since_ms, None, share))
        to = definition.cluster
        for former in definition.former:
            left = self._left.get((definition.uid, former.place))
            number = left.unsettled + left.beside if left is not None else None
            state: MoveState = "remembering" if number == 0 else "draining"
            went = unpacked(former.settling) or unpacked(former.slots)
            if went:
                to = _owner(definition, went).cluster
            share = _share(went or ALL_SLOTS)
            names = self._name(former.cluster), self._name(to)
            found.append(QueueMove(*of, *names, state, former.left_at_ms, number, share))
            to = former.cluster
        return found

    def shared(self) -> list[QueueDefinition]:
        """Queues that several clusters share, with no move in progress or planned."""
        return list(self._shared.values())

    def shares(self, definition: QueueDefinition) -> list[QueueShare]:
        """The share of publishes that goes to each cluster now."""
        places = open_places(definition)
        return [QueueShare(self._name(one.cluster), _share(unpacked(one.slots))) for one in places]

    def goal(self, definition: QueueDefinition) -> list[str]:
        """The names of the clusters that a queue is being spread over; [] if no further step is planned."""
        return [self._name(place.cluster) for place in definition.goal]

    def _name(self, cluster: str) -> str:
        known = self._store.clusters.get(cluster)
        return known.name if known is not None else cluster

    async def begin(self, tenant: str, name: str, to: str) -> QueueMove:
        """Begins to move a queue, all parts of it if it is split. Returns when the decision is durable, not when the
        move is done. A queue that is already moving to that cluster is no error. Raises `QueueNotFound`, `NotFound` for
        an unknown cluster, `Conflict` for a queue that cannot move now, `InvalidRequest` for one that never can, and
        `Unavailable`."""
        target = (await self._targets(tenant, name, [to]))[0]
        asked = BeginRelocation(
            tenant, name, target.key, len(target.homes), target.lanes, self._among(target, tenant, name)
        )
        changed = _definition(await self._store.ask(asked, may_repeat=True))
        log.info("a queue moves to another cluster", tenant=tenant, queue=name, to=to)
        move = next((move for move in self._moves_of(changed) if move.to == to), None)
        return move if move is not None else self._next_of(changed, to)

    def _next_of(self, definition: QueueDefinition, to: str) -> QueueMove:
        """The first step of merging a queue, which follows the step in progress."""
        source = next((one for one in self.shares(definition) if one.cluster != to), QueueShare(to, 1.0))
        of = definition.tenant, definition.name
        return QueueMove(*of, source.cluster, to, "sealing", wall_clock_ms(), None, source.share)

    async def spread(self, tenant: str, name: str, over: Sequence[str]) -> None:
        """Begins to spread a queue evenly over exactly these clusters. Returns when the decision is durable. Raises
        what `begin` raises."""
        sizes = [
            ClusterSize(target.key, len(target.homes), target.lanes, self._among(target, tenant, name))
            for target in await self._targets(tenant, name, over)
        ]
        await self._store.ask(SpreadQueue(tenant, name, tuple(sizes)), may_repeat=True)
        log.info("a queue is spread over clusters", tenant=tenant, queue=name, over=list(over))

    def _among(self, target: BackendCluster, tenant: str, name: str) -> tuple[int, ...]:
        """The shards of a cluster that are replicated as the queue is now; if there are none, those for most queues."""
        queue = self._store.here(tenant, name)
        needs_one = queue.definition.single_lane or needs_single_lane(queue.config)
        asked = (Replication(mode=queue.replication.mode), Replication())
        found = (target.copying.site(one, needs_one=needs_one) for one in asked)
        return next((site.among for site in found if site is not None), ())

    async def _targets(self, tenant: str, name: str, clusters: Sequence[str]) -> list[BackendCluster]:
        """The clusters of these names, once each is ready. Raises what `begin` raises."""
        store = self._store
        if (tenant, name) not in store.metadata.queues:
            raise QueueNotFound(f"tenant {tenant!r} has no queue {name!r}")
        awaited = store.metadata.moved.going_to(tenant, name)
        if (source := next(iter(awaited), None)) is not None and source.until_ms > self._store.steady_ms():
            raise Conflict(
                f"publishes to the deleted queue {source.definition.name!r} are forwarded to queue {name!r} for a "
                "week, and would not reach it in another cluster"
            )
        by_name = {one.name: one for one in store.clusters.values()}
        if (unknown := next((cluster for cluster in clusters if cluster not in by_name), None)) is not None:
            raise NotFound(f"unknown cluster {unknown!r}; the clusters are {', '.join(sorted(by_name))}")
        targets = [by_name[cluster] for cluster in clusters]
        for target in targets:
            await self._ready(target)
        return targets

    async def _ready(self, target: BackendCluster) -> None:
        """Waits until a cluster is ready. Raises `Unavailable` if it cannot be reached, or does not take this home
        cluster's queues."""
        with suppress(TimeoutError):
            async with asyncio.timeout(OTHERS_SECONDS_MAX):
                while not target.is_ready:  # noqa: ASYNC110 - there is no event for this
                    await asyncio.sleep(READY_LOOK_SECONDS)
        if target.is_ready:
            return
        if not target.first.line.is_open:
            raise target.first.line.unavailable()
        unsaid = f"cluster {target.name!r} has not confirmed yet that it accepts this home cluster's queues"
        raise Unavailable(target.why_not or unsaid, retry_after_ms=1_000)

    async def give_up(self, tenant: str, name: str) -> None:
        """Cancels a move: the queue stays where it is. Raises `QueueNotFound`, `Conflict` if the new cluster has the
        queue already or no move is in progress, and `Unavailable`."""
        await self._store.ask(GiveUpRelocation(tenant, name))
        log.info("a queue stays in its cluster", tenant=tenant, queue=name)

    # ------------------------------------------------------------------------------------------------ step by step

    def told(self, definitions: Iterable[QueueDefinition], gone: Iterable[QueueDefinition]) -> None:
        """Takes over new and changed definitions, and those of deleted queues (`gone`)."""
        for definition in gone:
            self._over(definition.uid)
            self._shared.pop(definition.uid, None)
        for definition in definitions:
            uid = definition.uid
            if definition.is_shared:
                self._shared[uid] = definition
            else:
                self._shared.pop(uid, None)
            if definition.moving_to is None and not definition.former and not definition.goal:
                self._over(uid)
                continue
            self._moving[uid] = definition
            if uid not in self._news:
                self._news[uid] = asyncio.Event()
                self._store.background(self._go_on(uid, self._news[uid]))
            self._news[uid].set()

    def _over(self, uid: int) -> None:
        if self._moving.pop(uid, None) is not None:
            self._left = {at: left for at, left in self._left.items() if at[0] != uid}
            self._news.pop(uid).set()
            self._waits.pop(uid, None)
            self._has_groups_left.pop(uid, None)

    async def _go_on(self, uid: int, news: asyncio.Event) -> None:
        """Takes one queue's steps in a task of its own, so that a silent cluster delays no other queue."""
        while self._news.get(uid) is news:
            news.clear()
            definition = self._moving[uid]
            seconds = MOVE_LOOK_SECONDS
            try:
                async with self._steps:
                    await self._step(definition)
                seconds = self._pause(definition)
            except Exception:  # else the queue's move would stop here
                log.exception("a step of a move failed", tenant=definition.tenant, queue=definition.name)
            # At random, so that gateways rarely try the same step at once; a step decided twice counts once.
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), seconds * random.uniform(0.75, 1.25))

    def _pause(self, definition: QueueDefinition) -> float:
        if definition.moving_to is not None or (definition.goal and why_waits(definition) is None):
            return MOVE_STEP_SECONDS
        if self._has_groups_left.get(definition.uid) is False:
            return MOVE_REMEMBER_SECONDS  # retention removes what is left there
        left = [self._left.get((definition.uid, former.place)) for former in definition.former]
        if not all(former.is_settled for former in definition.former) or left != [NOTHING] * len(left):
            return MOVE_LOOK_SECONDS
        over_ms = min(_over_ms(definition, former) for former in definition.former)
        return min(MOVE_REMEMBER_SECONDS, max(MOVE_LOOK_SECONDS, (over_ms - self._store.steady_ms()) / 1000))

    async def _step(self, definition: QueueDefinition) -> None:
        steps = [partial(self._look_after, definition, former) for former in definition.former]
        if definition.moving_to is not None:
            steps.insert(0, partial(self._arrive, definition))
        elif definition.goal and why_waits(definition) is None:
            steps.insert(0, partial(self._spread_on, definition))
        waits = ""
        for step in steps:
            try:
                await step()
            except Conflict as error:
                log.debug("another gateway was faster", queue=definition.name, reason=error.detail)
            except PushqError as error:  # a step that waits for one cluster must not stop those of others
                waits = error.detail
        if waits and self._waits.get(definition.uid) != waits:
            log.info("a move waits", tenant=definition.tenant, queue=definition.name, reason=waits)
        self._waits[definition.uid] = waits

    async def _arrive(self, definition: QueueDefinition) -> None:
        """Seals the old place against publishes, and lets the new place go on after the old one's end."""
        ends, source, to = [], definition.moving_from or definition.place, definition.moving_to
        assert to is not None, "it is on its way"
        for home in self._homes_at(definition, source):
            if not home.is_first:
                await home.adopted.tell([definition])
            asked = FindEnd(definition.tenant, definition.name, definition.uid, definition.version)
            ends.append(_end(await home.ask(asked, may_repeat=True)))
        arrived = Arrive(definition.tenant, definition.name, definition.version, max(ends))
        await self._store.ask(arrived)
        log.info(
            "a queue arrived in another cluster",
            tenant=definition.tenant,
            queue=definition.name,
            source=self._name(source.cluster),
            to=self._name(to.cluster),
            share=_share(leaving_slots(definition, source)),
        )

    async def _spread_on(self, definition: QueueDefinition) -> None:
        await self._store.ask(GoOnSpreading(definition.tenant, definition.name, definition.version))

    async def _look_after(self, definition: QueueDefinition, former: FormerPlace) -> None:
        """Finds what is left at a former place, and notes it as settled or forgets it when it is due."""
        is_open = any(one.place == former.place for one in open_places(definition))
        slots = former.settling if is_open else b""  # its other slots are no part of the move
        if is_open and (former.is_settled or not slots or definition.config.ordering != "strict"):
            left = NOTHING
        else:
            found = [await self._left_at(home, definition, slots) for home in self._homes_at(definition, former.place)]
            left = Left(sum(one.unsettled for one in found), sum(one.beside for one in found))
        if definition.config.kind == "stream":
            self._has_groups_left[definition.uid] = not await self._carried(definition)
            if self._has_groups_left[definition.uid] and not left.unsettled:
                left = Left(0, 1)  # the place is not forgotten yet
        self._left[definition.uid, former.place] = left
        of = definition.tenant, definition.name, definition.version
        if not left.unsettled and not former.is_settled:
            await self._store.ask(NoteSettled(*of, former.place))
            return
        is_over = self._store.steady_ms() > _over_ms(definition, former)
        if former.is_settled and not (left.unsettled or left.beside) and is_over:
            if definition.config.kind == "stream":
                await self._stream(definition).hand_on_gaps(former.place)
            await self._store.ask(ForgetPlace(*of, former.place))
            log.info("a queue has nothing left in a cluster", queue=definition.name, cluster=self._name(former.cluster))

    async def _carried(self, definition: QueueDefinition) -> bool:
        """Carries the consumer groups of a stream that can be carried to its present place. Returns whether all are
        there."""
        return await self._stream(definition).carry_groups()

    def _stream(self, definition: QueueDefinition) -> PlacedStream:
        stream = self._store.here(definition.tenant, definition.name)
        assert isinstance(stream, PlacedStream), "it moves between clusters"
        return stream

    async def _left_at(self, home: Home, definition: QueueDefinition, slots: bytes) -> Left:
        asked = FindLeft(definition.tenant, definition.name, definition.uid, slots)
        try:
            if not home.adopted.knows(definition):
                await home.adopted.tell([definition])
            return _left(await home.ask(asked, may_repeat=True))
        except QueueNotFound:
            return NOTHING  # the place dropped the queue, and the definition does not say so yet

    def _homes_at(self, definition: QueueDefinition, place: Whereabouts) -> list[Home]:
        """The queue's home shards at a place. Raises `ClusterAway`."""
        there = msgspec.structs.replace(definition, cluster=place.cluster, shard=place.shard)
        cluster: BackendCluster = self._store.cluster_of(there)
        return list(cluster.homes_of(there))


def _share(slots: int) -> float:
    return slots.bit_count() / SLOTS


def _owner(definition: QueueDefinition, slots: int) -> Whereabouts:
    """The place that has the first of these slots now."""
    first = slots & -slots
    return next((one.place for one in open_places(definition) if unpacked(one.slots) & first), definition.place)


def _over_ms(definition: QueueDefinition, former: FormerPlace) -> int:
    """When a place with nothing left but ids may be forgotten, by the clock of the shard with the definitions."""
    return former.left_at_ms + definition.config.dedupe_window_ms + MOVE_FORGET_MS
