"""The queues of backends in other processes, with the shape of `client.Store`.

A gateway that uses it stores nothing itself: definitions are known here and changed there, leases are held on loan, and
what was counted here is in memory until it is in a file. Backends are of one cluster or of several; see `cluster`.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from backend_store.client.embedded import COMPANION_VIEWS, companion_config, companion_view, owner_of
from backend_store.client.pulses import Pulse
from backend_store.client.since import unbounded_task
from backend_store.core.kept import KeptSession
from backend_store.core.leases import Lease
from backend_store.core.sealing import Seal, Sealer
from backend_store.core.shelves import VIEW_DEAD
from backend_store.metadata.embedded import Tenant
from backend_store.metadata.moved import MovedAnywhere
from backend_store.metadata.relocation import places_of
from backend_store.model import (
    COMPANION,
    ClusterAway,
    Conflict,
    FieldError,
    InvalidRequest,
    PushqError,
    QueueConfig,
    QueueDefinition,
    QueueNotFound,
    Replication,
    Whereabouts,
    placed,
)
from backend_store.node.node import steady_clock, wall_clock_ms
from backend_store.remote.audit import RemoteAudit
from backend_store.remote.choosing import Choosing
from backend_store.remote.cluster import BackendCluster, ClusterAt
from backend_store.remote.definitions import RemoteDefinitions
from backend_store.remote.directory import Directory
from backend_store.remote.documents import RemoteDocuments
from backend_store.remote.facade import FarNode
from backend_store.remote.home import Home
from backend_store.remote.keyring import Keyring, LearnKeys
from backend_store.remote.known import Known, Landing, LookingUp
from backend_store.remote.laned import LanedQueue
from backend_store.remote.ledger import RemoteLedger
from backend_store.remote.limits import OTHERS_SECONDS_MAX, REPORT_SECONDS, START_SECONDS_MAX
from backend_store.remote.looks import Looks
from backend_store.remote.moving import Moves
from backend_store.remote.placed import PlacedQueue
from backend_store.remote.placed_streams import PlacedStream
from backend_store.remote.pulses import PulseBook, RemotePulses
from backend_store.remote.queue import Look, RemoteQueue
from backend_store.remote.streams import RemoteStream
from backend_store.remote.unheard import Unheard
from backend_store.service.defining import CreateQueue, DeleteQueue, GoneQueues, MoveQueue, UpdateQueue
from backend_store.service.definitions import Definitions as News
from backend_store.service.reports import Report, TakeReport
from backend_store.wire.store_frames import Greeted, Place

__all__ = ["ClusterAt", "Landing", "RemoteBackends"]

log = structlog.get_logger("pushq.remote")

HOME = "main"
"""What the home cluster is called where nobody gave it a name."""

_created = msgspec.msgpack.Decoder(tuple[QueueDefinition, bool]).decode
_updated = msgspec.msgpack.Decoder(QueueDefinition | None).decode
_report = msgspec.msgpack.Decoder(Report).decode


class RemoteBackends:
    """See the file's first sentence. `open` before use, `close` at the end."""

    def __init__(
        self,
        directory: Directory,
        tls: ssl.SSLContext | None,
        looking_up: LookingUp,
        *,
        addresses: Sequence[tuple[str, int]] = (),
        name: str = HOME,
        others: Sequence[ClusterAt] = (),
        is_local: bool = False,
        zone: str = "",
    ):
        """`directory`, `addresses`, `name`: of the home cluster; see `ClusterAt`. `others`: further clusters.
        `is_local`: the storage of this machine, with other gateways beside this one, which their callers must not be
        able to tell apart. `zone`: where this gateway stands."""
        self.id = f"gateway-{secrets.token_hex(6)}"
        self._loop = asyncio.get_running_loop()
        self.own_ms = steady_clock()
        """Deadlines and sessions go by it: another leader has another clock, and must not end or prolong them."""
        self._queues: dict[int, RemoteQueue] = {}
        self._companions: dict[tuple[int, int], RemoteQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.known = Known(looking_up, self.background)
        self._on_deleted: Callable[[RemoteQueue], None] = lambda queue: None
        self.metadata = RemoteDefinitions(self.ask, MovedAnywhere(lambda: [home.moved for home in self.homes]))
        self.documents = RemoteDocuments(self.ask, holder=self.id, are_shared=not is_local)
        self.node = FarNode(self.metadata, self._is_open, self.own_ms, lambda: self.first.line.unavailable().detail)
        self._looks = Looks(looking_up, self.background)
        self._pulses = PulseBook(self)
        self.audit = RemoteAudit(self.ask, self.known)
        self.ledger = RemoteLedger(self._counting)
        self.moves = Moves(self)
        self._keyring = Keyring(self.metadata, looking_up, self.background, self.hear, are_shared=is_local)
        self._unheard = Unheard(looking_up, self.background, self.hear) if is_local else None
        self.definer = ""
        """Whose definitions these are; "" until the home cluster has said so, which its older backends do not."""
        self.clusters: dict[str, BackendCluster] = {}
        """As definitions name them, the home cluster first."""
        for at in (ClusterAt(name, directory, addresses), *others):
            cluster = BackendCluster(self, at, self.id, tls, is_home=not self.clusters, zone=zone)
            self.clusters[cluster.key] = cluster
        self.home_cluster = self.clusters[""]
        self.first: Home = self.home_cluster.first
        """The shard that has the definitions."""
        self.metadata.data_keys.on_used_up = self.first.line.leave_when_quiet
        self._choosing = Choosing(
            list(self.clusters.values()), self.metadata, self.documents, self.cluster_of, wall_clock_ms
        )

    async def open(self) -> None:
        """Returns when the definitions are here, and the other shards and clusters, if they come soon. Raises
        `Unavailable`."""
        first = self.first.line
        if not await first.opened(START_SECONDS_MAX):
            raise first.unavailable()
        others = [cluster.first.line for cluster in self.clusters.values() if not cluster.is_home]
        lines = [*self.home_cluster.other_lines, *others]
        await asyncio.gather(*(line.opened(OTHERS_SECONDS_MAX) for line in lines))
        if self._unheard is not None:
            self.background(self._follow_reports())

    @property
    def homes(self) -> list[Home]:
        """Of all clusters, those of the home cluster first."""
        return [home for cluster in self.clusters.values() for home in cluster.homes]

    def _counting(self) -> list[Home]:
        """Whose numbers make a sum that is right. Raises `Unavailable`."""
        for key in +self.metadata.spread.queues:
            if key not in self.clusters:
                raise ClusterAway(f"queues lie in {_unnamed(key)}", retry_after_ms=5_000)
        strange = next((home for home in self.homes if not home.is_ours), None)
        if strange is not None:
            name = strange.cluster.name
            why = strange.cluster.why_not or f"cluster {name!r} has not said yet that it takes this one's queues"
            raise ClusterAway(why, retry_after_ms=1_000)
        return self.homes

    def cluster_of(self, definition: QueueDefinition) -> BackendCluster:
        """Raises `ClusterAway` for one that is not known here, and until it has been met: its model says what its
        queues are."""
        found = self.clusters.get(definition.cluster)
        if found is None:
            detail = f"queue {definition.name!r} lies in {_unnamed(definition.cluster)}"
            raise ClusterAway(detail, retry_after_ms=5_000)
        if found.why_not:
            raise ClusterAway(f"queue {definition.name!r}: {found.why_not}", retry_after_ms=5_000)
        if not found.is_met:
            raise ClusterAway(found.first.line.unavailable().detail, retry_after_ms=1_000)
        return found

    def seal_with(self, sealer: Sealer, learn: LearnKeys) -> None:
        """Blocks are sealed and opened here; `learn` takes in data keys that another gateway made."""
        self._keyring.seal_with(sealer, learn)

    def on_deleted(self, told: Callable[[RemoteQueue], None]) -> None:
        """`told` hears of queues that were deleted elsewhere."""
        self._on_deleted = told

    async def close(self, sessions: list[KeptSession] | None = None) -> None:
        for home in self.homes:
            for queue in home.queues():
                for token, bits in queue.stock.clear_waiting():
                    queue.tell_unsent(token, bits)
        await asyncio.gather(*(cluster.close() for cluster in self.clusters.values()))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_open(self) -> bool:
        return any(home.line.is_open for home in self.homes)

    def background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = unbounded_task(work, name="remote store")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    # ------------------------------------------------------------------------------------------------------- clocks

    def now_s(self) -> float:
        return self._loop.time()

    def steady_ms(self) -> int:
        """The first shard's clock of leases, as far as it is known here."""
        return self.first.steady_ms()

    @property
    def identity(self) -> bytes:
        return self.first.backend.encode()

    # ------------------------------------------------------------------------------------------------------ queues

    def queue(self, tenant: str, name: str) -> RemoteQueue:
        """Raises `QueueNotFound`, `LookingUp`, and `ClusterAway` as `cluster_of` does."""
        try:
            return self.here(tenant, name)
        except QueueNotFound:
            self.expect(f"queue {name!r}", (tenant, name))
            raise

    def expect(self, what: str, name: Hashable = None) -> None:
        """Returns where a name that is not known here is known nowhere. Raises `LookingUp` while that is asked."""
        if self._unheard is not None:
            self._unheard.check(what if name is None else name, what)

    async def hear(self) -> None:
        """Returns when all is known here that the home cluster has said by now. Raises `PushqError`."""
        await self.ask(GoneQueues([]), may_repeat=True)  # its answer comes after all news

    async def _follow_reports(self) -> None:
        while True:
            try:
                self.node.take(_report(await self.ask(TakeReport(), may_repeat=True)))
            except PushqError:
                pass  # it is asked again
            except Exception:
                log.exception("a report of the storage was not taken in")
            await asyncio.sleep(REPORT_SECONDS)

    def here(self, tenant: str, name: str) -> RemoteQueue:
        """As `queue`, of what is known here."""
        try:
            definition = self.metadata.find(tenant, name)
        except QueueNotFound:
            return self._companion(tenant, name)
        found = self._queues.get(definition.uid)
        if found is None:
            kind = self._kind_of(definition)
            found = self._queues[definition.uid] = kind(self, definition, owner=name)
        return found

    def _kind_of(self, definition: QueueDefinition) -> type[RemoteQueue]:
        """Raises `ClusterAway` where its cluster is not there, and of several the queue itself may."""
        if len(self.clusters) > 1:
            return PlacedStream if definition.config.kind == "stream" else PlacedQueue
        cluster = self.cluster_of(definition)
        if definition.config.kind == "stream":
            return RemoteStream
        return LanedQueue if cluster.has_lanes_of(definition) else RemoteQueue

    def _companion(self, tenant: str, name: str) -> RemoteQueue:
        owner, view = owner_of(name), companion_view(name)
        if view is None:
            raise QueueNotFound(f"there is no queue {name!r}")
        definition = self.metadata.find(tenant, owner)
        found = self._companions.get((definition.uid, view))
        if found is None:
            own = msgspec.structs.replace(definition, name=name, config=companion_config(definition.config))
            kind = self._kind_of(own)
            queue = self.here(tenant, owner)  # whose end is that of its companions
            found = self._companions[definition.uid, view] = kind(self, own, owner=owner, is_companion=True)
            if view == VIEW_DEAD:
                found.redrives = queue.redrives
        return found

    def all_definitions(self) -> list[QueueDefinition]:
        return list(self.metadata.queues.values())

    def pulses_of(self, definition: QueueDefinition) -> RemotePulses | None:
        """None for a queue that is gone, and until its numbers are here."""
        return self._pulses.of(definition)

    def last_pulse(self, definition: QueueDefinition) -> Pulse | None:
        """The same as numbers alone: of 100,000 queues nobody wants a queue for each."""
        return self._pulses.last(definition.uid)

    def listen_pulses(self) -> Callable[[], set[int]]:
        """What gives the uids of queues that something happened to since it was called before."""
        return self._pulses.listen()

    async def refresh_pulses(self) -> None:
        """Returns when what happened until now is known, or does not come soon."""
        await self._pulses.refresh()

    def touch(self, uid: int) -> None:
        """Something happened to a queue that its numbers do not tell of, or not yet."""
        self._pulses.touch(uid)

    def queues(self) -> list[RemoteQueue]:
        """Companions and groups among them."""
        groups = [group for queue in self._queues.values() for group in queue.groups.values()]
        return [*self._queues.values(), *self._companions.values(), *groups]

    def of_uid(self, uid: int) -> Iterator[RemoteQueue]:
        """A queue as far as somebody here has asked for it, its companions and its groups."""
        if (queue := self._queues.get(uid)) is not None:
            yield queue
            yield from queue.groups.values()
        for view in COMPANION_VIEWS.values():
            if (companion := self._companions.get((uid, view))) is not None:
                yield companion

    def tenant(self, name: str) -> Tenant | None:
        return self.metadata.tenants.get(name)

    def tenants(self) -> list[Tenant]:
        return list(self.metadata.tenants.values())

    def names(self, tenant: str | None = None) -> Iterator[tuple[str, str]]:
        """Queues, and of one tenant the companions that hold something. Raises `LookingUp`."""
        if tenant is not None:
            self._looks.check_tenant(tenant, self.homes)
        definitions = self.all_definitions() if tenant is None else self.metadata.of_tenant(tenant)
        for definition in definitions:
            yield definition.tenant, definition.name
            for suffix in COMPANION_VIEWS if tenant is not None else ():
                if self._looks.holds(Place(definition.tenant, definition.name + suffix, definition.uid)):
                    yield definition.tenant, definition.name + suffix

    def names_of(self, tenant: str, name: str) -> list[str]:
        """A queue as `names` of all tenants has it."""
        return [name]

    async def look_ahead(self, names: Iterable[tuple[str, str]]) -> None:
        """Asks for the numbers of these queues together, as far as they can be had."""
        await self._looks.together(self._found(names))

    def _found(self, names: Iterable[tuple[str, str]]) -> Iterator[RemoteQueue]:
        """Those that there are, and whose clusters are there."""
        for name in names:
            with suppress(QueueNotFound, ClusterAway):
                yield self.here(*name)

    async def held_of(self, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """What queues hold, of those of which that is heard soon."""
        looks = await self._looks.together(self._found(names))
        return {(place.tenant, place.name): look.held for place, look in looks.items()}

    async def create_queue(self, tenant: str, name: str, config: QueueConfig) -> tuple[RemoteQueue, bool]:
        """Raises `Conflict` where the queue is there with another config, and what `Choosing.chosen` does."""
        _check_dead_letters(name, config)
        bare, asks = config.bare(), config.replication
        if (tenant, name) in self.metadata.queues:
            _check_copied(name, asks, self.here(tenant, name).replication)
        with self._choosing.chosen(tenant, name, config) as (cluster, site):
            size = cluster.key, len(cluster.homes), cluster.lanes
            is_asked, is_led = bool(asks.asked()), asks.model == "leader_follower"
            asked = CreateQueue(tenant, name, bare, *size, among=site.among, is_asked=is_asked, single_lane=is_led)
            definition, created = _created(await self.ask(asked))
        if not created:  # another gateway made it meanwhile, who may have asked for something else
            _check_copied(name, asks, self.cluster_of(definition).copying.of(definition))
        await self._told(definition)
        await self._keyring.ready(definition)
        return await self._pinned(tenant, name, is_new=created), created

    async def _told(self, definition: QueueDefinition) -> None:
        """Its shard knows of it, or will: while nobody leads that one, messages wait."""
        homes = self.cluster_of(definition).homes_of(definition)
        able = [home for home in homes if not home.is_first and home.line.is_open]
        await asyncio.gather(*(_adopted(home, definition) for home in able))

    async def update_queue(self, tenant: str, name: str, config: QueueConfig, version: int) -> RemoteQueue | None:
        _check_dead_letters(name, config)
        queue = self.here(tenant, name)
        config = placed(config, queue.replication, name)
        if (away := next((home.line for home in queue.homes if home.line.is_away), None)) is not None:
            raise away.unavailable()  # before anything is done: its numbers go with the answer
        lanes = max(self._lanes_at(queue.definition, place) for place in places_of(queue.definition))
        changed = _updated(await self.ask(UpdateQueue(tenant, name, config, version, lanes)))
        if changed is None:
            return None
        await self._told(changed)
        await self._keyring.ready(changed)
        return await self._pinned(tenant, name)

    def _lanes_at(self, definition: QueueDefinition, place: Whereabouts) -> int:
        """Raises `ClusterAway`: what its model is nobody knows then, and so not what a queue may be there."""
        return self.cluster_of(msgspec.structs.replace(definition, cluster=place.cluster, shard=place.shard)).lanes

    async def _pinned(self, tenant: str, name: str, *, is_new: bool = False) -> RemoteQueue:
        queue = self.here(tenant, name)
        await self._looks.pin(queue, is_new=is_new)
        return queue

    async def delete_queue(self, tenant: str, name: str) -> RemoteQueue | None:
        """Where its cluster is away the shards drop it when they are back. None: nobody here had anything of it, as the
        cluster has not been met."""
        queue, uid = None, self.metadata.find(tenant, name).uid
        with suppress(ClusterAway):
            queue = self.here(tenant, name)
        await self.ask(DeleteQueue(tenant, name))
        if queue is None:
            return None
        for home in queue.homes:
            is_awaited = home.cluster.is_home and not home.cluster.has_lanes_of(queue.definition)
            if not home.is_first and home.is_ours and (home.line.is_open or is_awaited):
                with suppress(PushqError):  # else it goes when the shard is back
                    await home.adopted.drop([uid])
        return queue

    async def move_queue(self, tenant: str, name: str, target: str) -> RemoteQueue:
        queue = self.here(tenant, name)
        _check_at_rest(queue)
        _check_has_one_lane(queue)
        if queue.config.encrypted:
            raise Conflict(
                f"queue {name!r} is encrypted, and this version's backends cannot move what they cannot read; "
                "consume its messages, or discard them"
            )
        found = self.here(tenant, target)
        _check_at_rest(found)
        _check_has_one_lane(found)
        if (apart := found.home.apart_from(queue.home)) is not None:
            raise Conflict(
                f"queue {target!r} lies in another {apart} than {name!r}, and this version moves messages only within "
                "one; consume them, or discard them"
            )
        if queue.uid not in queue.home.moved:  # else somebody began, and did not come to the end
            await queue.home.ask(MoveQueue(tenant, name, target))
        if not queue.home.is_first:
            await self.ask(DeleteQueue(tenant, name))
        return queue

    def target_of(self, tenant: str, name: str) -> RemoteQueue:
        """Where a publish to `name` goes, if need be by way of a deleted queue's shard, which knows where its messages
        went. Raises `QueueNotFound`.
        """
        try:
            queue = self.queue(tenant, name)
            self._keyring.expect(queue)
            return queue
        except QueueNotFound:
            now_ms = self.steady_ms()
            found = (home.moved.last(tenant, name, now_ms) for home in self.homes)
            moved = [one.definition for one in found if one is not None]
            if not moved:
                raise
            return RemoteQueue(self, max(moved, key=lambda definition: definition.uid), owner=name)

    def take_kept(self) -> tuple[list[KeptSession], dict[str, Lease]]:
        return [], {}

    def seal_of(self, queue: RemoteQueue) -> Seal | None:
        return self._keyring.seal_of(queue)

    # ----------------------------------------------------------------------------------------------------- questions

    async def ask(self, operation: Any, *, may_repeat: bool = False) -> msgspec.Raw:
        """Of the first shard. Raises `PushqError`."""
        return await self.first.ask(operation, may_repeat=may_repeat)

    def look(self, queue: RemoteQueue) -> Look | None:
        """Numbers that are fresh. Raises `LookingUp`."""
        return self._looks.of(queue)

    def forget_looks(self, place: Place | None = None) -> None:
        """Something was changed from here, of that place: numbers from before do not count."""
        self.known.forget()
        self._looks.forget(place)

    # ------------------------------------------------------------------------------------- what the first shard says

    def greeted(self, frame: Greeted) -> None:
        self.metadata.data_keys.ids = range(*frame.key_ids)
        self.definer = frame.metadata

    def defined(self, news: News, *, is_first: bool, is_last: bool = True) -> None:
        """`is_first`: with it everything is told anew; `is_last`: with it that is complete."""
        gone = self.metadata.take(news, is_first=is_first, is_last=is_last)
        self.documents.take(news.documents, news.documents_gone, is_first=is_first, is_last=is_last)
        for definition in news.queues:
            self._redefined(definition)
        self.moves.told(news.queues, gone)
        for definition in gone:
            self._deleted(definition)
        self._keyring.told(news)
        # The line that brought them counts as open from then on only.
        self._loop.call_soon(self._defined_elsewhere, news.queues, gone)

    def _defined_elsewhere(self, changed: list[QueueDefinition], gone: list[QueueDefinition]) -> None:
        for home in self.homes[1:]:
            home.adopted.defined_elsewhere(changed, gone)

    def first_is_there(self) -> None:
        """All that it has to tell is known, and it can be asked."""
        for home in self.homes[1:]:
            home.adopted.go_on()

    def has_new_key(self, ids: Collection[int]) -> bool:
        """Whether something is sealed with a key that this gateway cannot use yet."""
        return self._keyring.has_new(ids)

    async def learnt(self, ids: Collection[int]) -> bool:
        """Waits a moment for keys. False: they are there, and this gateway cannot use them now."""
        return await self._keyring.learnt(ids)

    def deleted_elsewhere(self, queue: RemoteQueue) -> None:
        """A consumer group is gone."""
        self._on_deleted(queue)

    def _redefined(self, definition: QueueDefinition) -> None:
        if (queue := self._queues.get(definition.uid)) is not None:
            queue.redefined(definition)
        for view in COMPANION_VIEWS.values():
            if (companion := self._companions.get((definition.uid, view))) is not None:
                config = companion_config(definition.config)
                companion.redefined(msgspec.structs.replace(definition, name=companion.name, config=config))

    def met(self) -> None:
        """A further cluster has said what it is, or that it is the one of its name after all: what lies in it can be
        served."""
        for queue in (*self._queues.values(), *self._companions.values()):
            if isinstance(queue, PlacedQueue):
                queue.met()

    def _deleted(self, definition: QueueDefinition) -> None:
        uid = definition.uid
        if (queue := self._queues.pop(uid, None)) is None:
            return
        queue.end()
        queue.ended_elsewhere()
        for group in queue.groups.values():
            group.deleted = True
            queue.companions.append(group)
        for view in COMPANION_VIEWS.values():
            if (companion := self._companions.pop((uid, view), None)) is not None:
                companion.end()
                queue.companions.append(companion)
        self._keyring.shredded(uid)
        for one in (queue, *queue.companions):
            self._on_deleted(one)


def _check_at_rest(queue: RemoteQueue) -> None:
    """Raises `Conflict`."""
    if queue.definition.beside:
        raise Conflict(f"queue {queue.name!r} is split over several clusters; merge it first")
    if queue.definition.is_on_its_way:
        raise Conflict(
            f"queue {queue.name!r} is on its way to another cluster; wait until it has nothing left in the old one"
        )


def _check_has_one_lane(queue: RemoteQueue) -> None:
    """Raises `Conflict`."""
    if queue.home.cluster.has_lanes_of(queue.definition):
        raise Conflict(
            f"queue {queue.name!r} has a lane at each of independent hosts, and this version moves no messages "
            "from there or to there; consume them, or discard them"
        )


def _check_copied(name: str, asked: Replication, has: Replication) -> None:
    """Of a queue that is there. Raises `Conflict`."""
    if asked.unlike(has):
        shown = msgspec.json.encode(has).decode()
        raise Conflict(f"queue {name!r} exists with another config: replication is {shown}, and cannot change")


def _unnamed(cluster: str) -> str:
    return f"cluster {cluster!r}, which store.clusters of this gateway does not name"


async def _adopted(home: Home, definition: QueueDefinition) -> None:
    with suppress(PushqError):
        await home.adopted.tell([definition])


def _check_dead_letters(name: str, config: QueueConfig) -> None:
    """Backends have no keys: what is sealed for one queue would open in no other."""
    if config.encrypted and config.dead_letter_queue not in (None, COMPANION):
        detail = (
            f"queue {name!r} is encrypted, and this version's backends cannot seal its dead letters for another queue; "
            f"leave it out for {name}.dead, or set encrypted: false"
        )
        raise InvalidRequest(detail, errors=(FieldError("/dead_letter_queue", detail),))
