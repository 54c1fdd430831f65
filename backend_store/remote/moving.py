"""Queues on their way from one cluster to another: begun and given up here, and carried on by every gateway.

Nobody remembers a move but the queue's definition, which the home cluster has: each step is a change of it that names
the version before, so it makes no difference which gateway takes it, or how many try. See `metadata.relocation`.
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
from backend_store.core.slots import ALL_SLOTS, SLOTS, unpacked
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
from backend_store.remote.placed_streams import PlacedStream
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
"""sealing: the old cluster is about to take no more publishes. draining: publishes go to the new one, and what the old
one has is delivered from there. remembering: nothing is left there but what it knows of ids."""

_end = msgspec.msgpack.Decoder(int).decode
_left = msgspec.msgpack.Decoder(Left).decode
_definition = msgspec.msgpack.Decoder(QueueDefinition).decode


NOTHING = Left(0, 0)


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
    """Messages that the old cluster still has, dead letters among them; None: that is not known. Where the cluster has
    other parts of the queue: those that the new one waits for, in strict order."""
    share: float = 1.0
    """Which part of the queue goes; of one that left in several steps, with the last."""


class QueueShare(NamedTuple):
    """Which part of a queue's publishes goes to a cluster, which is called by its name."""

    cluster: str
    share: float


class Moves:
    """See the file's first sentence."""

    def __init__(self, store: RemoteBackends) -> None:
        self._store = store
        self._left: dict[tuple[int, Whereabouts], Left] = {}
        """As it was when last asked for, of former places."""
        self._moving: dict[int, QueueDefinition] = {}
        """By uid, the queues with something left to do."""
        self._shared: dict[int, QueueDefinition] = {}
        """By uid, those that several clusters share."""
        self._news: dict[int, asyncio.Event] = {}
        """Wakes who takes the steps of a queue: its definition has changed."""
        self._has_groups_left: dict[int, bool] = {}
        """By uid, of streams: whether consumer groups have something before them where it was."""
        self._waits: dict[int, str] = {}
        """By uid, what was said last of why it waits."""
        self._steps = asyncio.Semaphore(MOVE_STEPS_MAX)

    def under_way(self) -> list[QueueMove]:
        """All of them, by tenant and queue. A queue that came by several clusters has one for each that it left."""
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
        """Queues that several clusters share, and nothing of which is on its way."""
        return list(self._shared.values())

    def shares(self, definition: QueueDefinition) -> list[QueueShare]:
        """Where publishes of a queue go now."""
        places = open_places(definition)
        return [QueueShare(self._name(one.cluster), _share(unpacked(one.slots))) for one in places]

    def goal(self, definition: QueueDefinition) -> list[str]:
        """Over which clusters a queue is being spread; []: nothing more is to come."""
        return [self._name(place.cluster) for place in definition.goal]

    def _name(self, cluster: str) -> str:
        known = self._store.clusters.get(cluster)
        return known.name if known is not None else cluster

    async def begin(self, tenant: str, name: str, to: str) -> QueueMove:
        """Has a queue move, all of it where it is split. The answer comes when that is durable, not when it is done. A
        queue that is on its way to that very cluster is no error. Raises `QueueNotFound`, `NotFound` for a cluster that
        there is not, `Conflict` for a queue that cannot move now, `InvalidRequest` for one that never can, and
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
        """The step with which a queue begins to be merged, when the one before is over."""
        source = next((one for one in self.shares(definition) if one.cluster != to), QueueShare(to, 1.0))
        of = definition.tenant, definition.name
        return QueueMove(*of, source.cluster, to, "sealing", wall_clock_ms(), None, source.share)

    async def spread(self, tenant: str, name: str, over: Sequence[str]) -> None:
        """Has a queue lie in all of these clusters, evenly, and nowhere else. Errors and answer are as with `begin`."""
        sizes = [
            ClusterSize(target.key, len(target.homes), target.lanes, self._among(target, tenant, name))
            for target in await self._targets(tenant, name, over)
        ]
        await self._store.ask(SpreadQueue(tenant, name, tuple(sizes)), may_repeat=True)
        log.info("a queue is spread over clusters", tenant=tenant, queue=name, over=list(over))

    def _among(self, target: BackendCluster, tenant: str, name: str) -> tuple[int, ...]:
        """The shards of a cluster that are copied as the queue is now; where there is none, those for most queues."""
        queue = self._store.here(tenant, name)
        needs_one = queue.definition.single_lane or needs_single_lane(queue.config)
        asked = (Replication(mode=queue.replication.mode), Replication())
        found = (target.copying.site(one, needs_one=needs_one) for one in asked)
        return next((site.among for site in found if site is not None), ())

    async def _targets(self, tenant: str, name: str, clusters: Sequence[str]) -> list[BackendCluster]:
        """The clusters of these names, which are there. Raises what `begin` does."""
        store = self._store
        if (tenant, name) not in store.metadata.queues:
            raise QueueNotFound(f"tenant {tenant!r} has no queue {name!r}")
        awaited = store.metadata.moved.going_to(tenant, name)
        if (source := next(iter(awaited), None)) is not None and source.until_ms > self._store.steady_ms():
            raise Conflict(
                f"what is published to {source.definition.name!r}, which was deleted, goes to queue {name!r} for a "
                "week after that, and would not find it in another cluster"
            )
        by_name = {one.name: one for one in store.clusters.values()}
        if (unknown := next((cluster for cluster in clusters if cluster not in by_name), None)) is not None:
            raise NotFound(f"there is no cluster {unknown!r}; there are {', '.join(sorted(by_name))}")
        targets = [by_name[cluster] for cluster in clusters]
        for target in targets:
            await self._ready(target)
        return targets

    async def _ready(self, target: BackendCluster) -> None:
        """Raises `Unavailable` where a cluster is not there, or does not take this home cluster's queues."""
        with suppress(TimeoutError):
            async with asyncio.timeout(OTHERS_SECONDS_MAX):
                while not target.is_ready:  # noqa: ASYNC110 - whoever has its line does not tell
                    await asyncio.sleep(READY_LOOK_SECONDS)
        if target.is_ready:
            return
        if not target.first.line.is_open:
            raise target.first.line.unavailable()
        unsaid = f"cluster {target.name!r} has not said yet that it takes this home cluster's queues"
        raise Unavailable(target.why_not or unsaid, retry_after_ms=1_000)

    async def give_up(self, tenant: str, name: str) -> None:
        """Leaves a queue where it is. Raises `QueueNotFound`, `Conflict` where the new cluster has it already or
        nothing is under way, and `Unavailable`."""
        await self._store.ask(GiveUpRelocation(tenant, name))
        log.info("a queue stays in its cluster", tenant=tenant, queue=name)

    # ------------------------------------------------------------------------------------------------ step by step

    def told(self, definitions: Iterable[QueueDefinition], gone: Iterable[QueueDefinition]) -> None:
        """`definitions` are new or changed, and the queues of the others are there no more."""
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
        """One queue's steps, so that a cluster that does not answer holds up no others'."""
        while self._news.get(uid) is news:
            news.clear()
            definition = self._moving[uid]
            seconds = MOVE_LOOK_SECONDS
            try:
                async with self._steps:
                    await self._step(definition)
                seconds = self._pause(definition)
            except Exception:  # the queue would be looked after no more
                log.exception("a step of a move failed", tenant=definition.tenant, queue=definition.name)
            # Gateways do not step on each other's feet, and what they decide twice counts once.
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), seconds * random.uniform(0.75, 1.25))

    def _pause(self, definition: QueueDefinition) -> float:
        if definition.moving_to is not None or (definition.goal and why_waits(definition) is None):
            return MOVE_STEP_SECONDS
        if self._has_groups_left.get(definition.uid) is False:
            return MOVE_REMEMBER_SECONDS  # what it has goes as it grows old
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
            except PushqError as error:  # what waits for one cluster is no matter of another
                waits = error.detail
        if waits and self._waits.get(definition.uid) != waits:
            log.info("a move waits", tenant=definition.tenant, queue=definition.name, reason=waits)
        self._waits[definition.uid] = waits

    async def _arrive(self, definition: QueueDefinition) -> None:
        """Has the old place take no more publishes, and the new one go on from there."""
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
        """What is left at a former place, and what follows from that."""
        is_open = any(one.place == former.place for one in open_places(definition))
        slots = former.settling if is_open else b""  # what else it has is no part of the move
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
            await self._store.ask(ForgetPlace(*of, former.place))
            log.info("a queue has nothing left in a cluster", queue=definition.name, cluster=self._name(former.cluster))

    async def _carried(self, definition: QueueDefinition) -> bool:
        """Whether all consumer groups of a stream are where it lies now; those that can are taken there."""
        stream = self._store.here(definition.tenant, definition.name)
        assert isinstance(stream, PlacedStream), "it moves between clusters"
        return await stream.carry_groups()

    async def _left_at(self, home: Home, definition: QueueDefinition, slots: bytes) -> Left:
        asked = FindLeft(definition.tenant, definition.name, definition.uid, slots)
        try:
            if not home.adopted.knows(definition):
                await home.adopted.tell([definition])
            return _left(await home.ask(asked, may_repeat=True))
        except QueueNotFound:
            return NOTHING  # it was let go of here, and nobody came to write that down

    def _homes_at(self, definition: QueueDefinition, place: Whereabouts) -> list[Home]:
        """Raises `ClusterAway`."""
        there = msgspec.structs.replace(definition, cluster=place.cluster, shard=place.shard)
        cluster: BackendCluster = self._store.cluster_of(there)
        return list(cluster.homes_of(there))


def _share(slots: int) -> float:
    return slots.bit_count() / SLOTS


def _owner(definition: QueueDefinition, slots: int) -> Whereabouts:
    """Who has the first of some slots now."""
    first = slots & -slots
    return next((one.place for one in open_places(definition) if unpacked(one.slots) & first), definition.place)


def _over_ms(definition: QueueDefinition, former: FormerPlace) -> int:
    """When a place may be forgotten that has nothing left but ids: by the clock of the shard with the definitions."""
    return former.left_at_ms + definition.config.dedupe_window_ms + MOVE_FORGET_MS
