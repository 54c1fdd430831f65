"""The store of a gateway whose queues are in backend processes; has the shape of `client.Store`.

Such a gateway stores nothing itself: it keeps a copy of the definitions and changes them at the backends, it borrows
leases, and what it counts is in memory until it is written to a file. Backends form one or several clusters; see
`cluster`.
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

from backend_store.client.embedded import (
    COMPANION_VIEWS,
    OUTBOX_SUFFIX,
    VIEWS_BESIDE,
    companion_config,
    companion_view,
    owner_of,
)
from backend_store.client.pulses import Pulse
from backend_store.client.since import unbounded_task
from backend_store.core.leases.leases import Lease
from backend_store.core.leases.session_snapshot import KeptSession
from backend_store.core.log.sealed_block import Seal, Sealer
from backend_store.core.log.sublogs import VIEW_DEAD, VIEW_OUTBOX
from backend_store.metadata.embedded import Tenant
from backend_store.metadata.moved import MovedAnywhere
from backend_store.metadata.relocation import places_of
from backend_store.model import (
    ClusterAway,
    Conflict,
    PushqError,
    QueueConfig,
    QueueDefinition,
    QueueNotFound,
    Replication,
    Unavailable,
    Whereabouts,
    placed,
)
from backend_store.node.node import steady_clock, wall_clock_ms
from backend_store.remote.cluster import BackendCluster, ClusterAt
from backend_store.remote.definitions.audit import RemoteAudit
from backend_store.remote.definitions.cluster_choice import Choosing
from backend_store.remote.definitions.definitions import RemoteDefinitions
from backend_store.remote.definitions.directory import Directory
from backend_store.remote.definitions.documents import RemoteDocuments
from backend_store.remote.definitions.keyring import Keyring, LearnKeys
from backend_store.remote.definitions.ledger import RemoteLedger
from backend_store.remote.definitions.moves import Moves
from backend_store.remote.definitions.unheard import Unheard
from backend_store.remote.facade import FarNode
from backend_store.remote.home import Home
from backend_store.remote.letters.carrier import LetterCarriers
from backend_store.remote.limits import CHOOSE_RETRY_MS, OTHERS_SECONDS_MAX, REPORT_SECONDS, START_SECONDS_MAX
from backend_store.remote.line.pulses import PulseBook, RemotePulses
from backend_store.remote.queues.answers import Known, Landing, LookingUp
from backend_store.remote.queues.laned import LanedQueue
from backend_store.remote.queues.looks import Looks
from backend_store.remote.queues.placed import PlacedQueue
from backend_store.remote.queues.placed_streams import PlacedStream
from backend_store.remote.queues.queue import Look, RemoteQueue
from backend_store.remote.queues.streams import RemoteStream
from backend_store.service.defining import CreateQueue, DeleteQueue, GoneQueues, MoveQueue, UpdateQueue
from backend_store.service.definitions import Definitions as News
from backend_store.service.reports import Report, TakeReport
from backend_store.service.sessions import GiveSession
from backend_store.wire.store_frames import Greeted, Place

__all__ = ["ClusterAt", "Landing", "RemoteBackends"]

log = structlog.get_logger("pushq.remote")

HOME = "main"
"""The home cluster's name if none is configured."""

_created = msgspec.msgpack.Decoder(tuple[QueueDefinition, bool]).decode
_updated = msgspec.msgpack.Decoder(QueueDefinition | None).decode
_report = msgspec.msgpack.Decoder(Report).decode


class RemoteBackends:
    """Implements `client.Store` over lines to backends. Its owner calls `open` before use and `close` at the end."""

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
        `is_local`: the storage is on this machine and shared with other gateways, which clients must not be able to
        tell apart. `zone`: the zone of this gateway."""
        self.id = f"gateway-{secrets.token_hex(6)}"
        self._loop = asyncio.get_running_loop()
        self.own_ms = steady_clock()
        """The clock of deadlines and sessions: each leader has a clock of its own, and a change of leader must not end
        or prolong them."""
        self._queues: dict[int, RemoteQueue] = {}
        self._companions: dict[tuple[int, int], RemoteQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.known = Known(looking_up, self.background)
        self._on_deleted: Callable[[RemoteQueue], None] = lambda queue: None
        self.keeps_ms = 0
        """How long backends keep the leases of this gateway's consumers beyond its end, if it stops now."""
        self.sought: Callable[[str, str], None] = self._has_no_session
        """Called with a session and its principal when another gateway is to resume it; answered by `GiveSession`."""
        self.metadata = RemoteDefinitions(self.ask, MovedAnywhere(lambda: [home.moved for home in self.homes]))
        self.documents = RemoteDocuments(self.ask, holder=self.id, are_shared=not is_local)
        self.node = FarNode(self.metadata, self._is_open, self.own_ms, lambda: self.first.line.unavailable().detail)
        self._looks = Looks(looking_up, self.background)
        self._pulses = PulseBook(self)
        self.audit = RemoteAudit(self.ask, self.known)
        self.ledger = RemoteLedger(self._counting)
        self.moves = Moves(self)
        self._carriers = LetterCarriers(self)
        self._keyring = Keyring(self.metadata, looking_up, self.background, self.hear, are_shared=is_local)
        self._unheard = Unheard(looking_up, self.background, self.hear) if is_local else None
        self.definer = ""
        """The identity of the metadata in use; "" until the home cluster has named it (its older backends never do)."""
        self.clusters: dict[str, BackendCluster] = {}
        """By the key that definitions use; the home cluster comes first."""
        for at in (ClusterAt(name, directory, addresses), *others):
            cluster = BackendCluster(self, at, self.id, tls, is_home=not self.clusters, zone=zone)
            self.clusters[cluster.key] = cluster
        self.home_cluster = self.clusters[""]
        self.first: Home = self.home_cluster.first
        """The shard that stores the definitions."""
        self.metadata.data_keys.on_used_up = self.first.line.leave_when_quiet
        self._choosing = Choosing(
            list(self.clusters.values()), self.metadata, self.documents, self.cluster_of, wall_clock_ms
        )

    async def open(self) -> None:
        """Returns once all definitions have arrived, after a short wait for the other shards and clusters. Raises
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
        """The shards of all clusters, those of the home cluster first."""
        return [home for cluster in self.clusters.values() for home in cluster.homes]

    def _counting(self) -> list[Home]:
        """The shards whose numbers together make a correct sum. Raises `ClusterAway`."""
        for key in +self.metadata.spread.queues:
            if key not in self.clusters:
                raise ClusterAway(f"queues lie in {_unnamed(key)}", retry_after_ms=5_000)
        strange = next((home for home in self.homes if not home.is_ours), None)
        if strange is not None:
            name = strange.cluster.name
            why = (
                strange.cluster.why_not
                or f"cluster {name!r} has not confirmed yet that it accepts this cluster's queues"
            )
            raise ClusterAway(why, retry_after_ms=1_000)
        return self.homes

    def cluster_of(self, definition: QueueDefinition) -> BackendCluster:
        """The cluster that a queue is in. Raises `ClusterAway` if this gateway does not know the cluster, and until the
        first contact with it: only then is its replication model known, and so the kind of its queues."""
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
        """Sets what seals and opens blocks; `learn` takes in data keys that another gateway made."""
        self._keyring.seal_with(sealer, learn)

    def _has_no_session(self, session: str, principal_id: str) -> None:
        """Until the gateway's sessions are known."""
        self.background(self._gives_nothing(session))

    async def _gives_nothing(self, session: str) -> None:
        with suppress(PushqError):
            await self.ask(GiveSession(session, None), may_repeat=True)

    def keep_leases(self, milliseconds: int) -> None:
        """Asks backends to keep the leases of this gateway's consumers for so long after it has stopped."""
        self.keeps_ms = milliseconds
        for home in self.homes:
            home.keep_leases()

    def on_deleted(self, told: Callable[[RemoteQueue], None]) -> None:
        """Sets the callback for queues that were deleted elsewhere."""
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

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._loop.call_later(seconds, call)

    # ------------------------------------------------------------------------------------------------------- clocks

    def now_s(self) -> float:
        return self._loop.time()

    def steady_ms(self) -> int:
        """The first shard's clock of leases, as estimated here."""
        return self.first.steady_ms()

    @property
    def identity(self) -> bytes:
        return self.first.backend.encode()

    # ------------------------------------------------------------------------------------------------------ queues

    def queue(self, tenant: str, name: str) -> RemoteQueue:
        """Finds a queue. Raises `QueueNotFound`, `LookingUp`, and `ClusterAway` as `cluster_of` does."""
        try:
            return self.here(tenant, name)
        except QueueNotFound:
            self.expect(f"queue {name!r}", (tenant, name))
            raise

    def expect(self, what: str, name: Hashable = None) -> None:
        """Returns if a name that is unknown here is unknown everywhere. Raises `LookingUp` while this is asked."""
        if self._unheard is not None:
            self._unheard.check(what if name is None else name, what)

    async def hear(self) -> None:
        """Returns once all that the home cluster has sent by now is applied here. Raises `PushqError`."""
        await self.ask(GoneQueues([]), may_repeat=True)  # the answer comes after all news

    async def _follow_reports(self) -> None:
        while True:
            try:
                self.node.take(_report(await self.ask(TakeReport(), may_repeat=True)))
            except PushqError:
                pass  # asked again after the pause
            except Exception:
                log.exception("a report of the storage was not taken in")
            await asyncio.sleep(REPORT_SECONDS)

    def here(self, tenant: str, name: str) -> RemoteQueue:
        """As `queue`, from the definitions known here. Raises `QueueNotFound`, `ClusterAway`."""
        try:
            definition = self.metadata.find(tenant, name)
        except QueueNotFound:
            return self._companion(tenant, name)
        found = self._queues.get(definition.uid)
        if found is None:
            kind = self._kind_of(definition)
            found = self._queues[definition.uid] = kind(self, definition, owner=name)
            self._carriers.used(definition)
        return found

    def at(self, place: Place) -> RemoteQueue:
        """The queue, companion or outbox that a backend's frame is about. Raises `QueueNotFound`, `ClusterAway`."""
        if place.name.endswith(OUTBOX_SUFFIX):
            return self.outbox(self.metadata.find(place.tenant, place.name.removesuffix(OUTBOX_SUFFIX)))
        return self.here(place.tenant, place.name)

    def has_in_use(self, uid: int) -> bool:
        """Whether a queue has been used at this gateway."""
        return uid in self._queues

    def outbox(self, definition: QueueDefinition) -> RemoteQueue:
        """The dead letters of a queue that are on their way to the queue that it names for them. Raises
        `ClusterAway`."""
        return self._beside(definition, definition.name + OUTBOX_SUFFIX, VIEW_OUTBOX)

    def _kind_of(self, definition: QueueDefinition) -> type[RemoteQueue]:
        """Raises `ClusterAway` if the only cluster cannot be used; with several clusters, the constructor may."""
        if len(self.clusters) > 1:
            return PlacedStream if definition.config.kind == "stream" else PlacedQueue
        cluster = self.cluster_of(definition)
        if definition.config.kind == "stream":
            return RemoteStream
        return LanedQueue if cluster.has_lanes_of(definition) else RemoteQueue

    def _companion(self, tenant: str, name: str) -> RemoteQueue:
        view = companion_view(name)
        if view is None:
            raise QueueNotFound(f"there is no queue {name!r}")
        return self._beside(self.metadata.find(tenant, owner_of(name)), name, view)

    def _beside(self, definition: QueueDefinition, name: str, view: int) -> RemoteQueue:
        found = self._companions.get((definition.uid, view))
        if found is None:
            own = msgspec.structs.replace(definition, name=name, config=companion_config(definition.config))
            kind = self._kind_of(own)
            owner = definition.name
            queue = self.here(definition.tenant, owner)  # the companions end with it
            found = self._companions[definition.uid, view] = kind(self, own, owner=owner, is_companion=True)
            if view == VIEW_DEAD:
                found.redrives = queue.redrives
        return found

    def all_definitions(self) -> list[QueueDefinition]:
        return list(self.metadata.queues.values())

    def pulses_of(self, definition: QueueDefinition) -> RemotePulses | None:
        """The current numbers of a queue; None if the queue is deleted or its numbers have not arrived yet."""
        return self._pulses.of(definition)

    def last_pulse(self, definition: QueueDefinition) -> Pulse | None:
        """As `pulses_of`, but only the numbers: for 100,000 queues, one object each would be too much."""
        return self._pulses.last(definition.uid)

    def listen_pulses(self) -> Callable[[], set[int]]:
        """Returns a function that gives the uids of queues that changed since its last call."""
        return self._pulses.listen()

    async def refresh_pulses(self) -> None:
        """Returns once the numbers include all that happened until now, or after a short wait."""
        await self._pulses.refresh()

    def touch(self, uid: int) -> None:
        """Marks a queue as changed in a way that its numbers do not show, or not yet."""
        self._pulses.touch(uid)

    def queues(self) -> list[RemoteQueue]:
        """All queues in use here, with their companions and consumer groups."""
        groups = [group for queue in self._queues.values() for group in queue.groups.values()]
        return [*self._queues.values(), *self._companions.values(), *groups]

    def of_uid(self, uid: int) -> Iterator[RemoteQueue]:
        """Yields a queue, its companions and its groups, as far as they are in use here."""
        if (queue := self._queues.get(uid)) is not None:
            yield queue
            yield from queue.groups.values()
        for view in VIEWS_BESIDE:
            if (companion := self._companions.get((uid, view))) is not None:
                yield companion

    def tenant(self, name: str) -> Tenant | None:
        return self.metadata.tenants.get(name)

    def tenants(self) -> list[Tenant]:
        return list(self.metadata.tenants.values())

    def names(self, tenant: str | None = None) -> Iterator[tuple[str, str]]:
        """Yields (tenant, name) of all queues, and of one tenant also the companions that hold messages. Raises
        `LookingUp`."""
        if tenant is not None:
            self._looks.check_tenant(tenant, self.homes)
        definitions = self.all_definitions() if tenant is None else self.metadata.of_tenant(tenant)
        for definition in definitions:
            yield definition.tenant, definition.name
            for suffix in COMPANION_VIEWS if tenant is not None else ():
                if self._looks.holds(Place(definition.tenant, definition.name + suffix, definition.uid)):
                    yield definition.tenant, definition.name + suffix

    def names_of(self, tenant: str, name: str) -> list[str]:
        """The names under which `names` of all tenants lists a queue."""
        return [name]

    async def look_ahead(self, names: Iterable[tuple[str, str]]) -> None:
        """Fetches the numbers of these queues together, as far as available."""
        await self._looks.together(self._found(names))

    def _found(self, names: Iterable[tuple[str, str]]) -> Iterator[RemoteQueue]:
        """Yields the queues that exist and whose clusters can be used."""
        for name in names:
            with suppress(QueueNotFound, ClusterAway):
                yield self.here(*name)

    async def held_of(self, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """Returns the messages held per queue, for those whose numbers arrive soon."""
        looks = await self._looks.together(self._found(names))
        return {(place.tenant, place.name): look.held for place, look in looks.items()}

    async def create_queue(self, tenant: str, name: str, config: QueueConfig) -> tuple[RemoteQueue, bool]:
        """Returns the queue and whether it was created. Raises `Conflict` if it exists with another config, and what
        `Choosing.chosen` raises."""
        bare, asks = config.bare(), config.replication
        if (tenant, name) in self.metadata.queues:
            _check_copied(name, asks, self.here(tenant, name).replication)
        with self._choosing.chosen(tenant, name, config) as (cluster, site):
            size = cluster.key, len(cluster.homes), cluster.lanes
            is_asked, is_led = bool(asks.asked()), asks.model == "leader_follower"
            asked = CreateQueue(tenant, name, bare, *size, among=site.among, is_asked=is_asked, single_lane=is_led)
            definition, created = _created(await self.ask(asked))
        if not created:  # another gateway made it meanwhile, and may have asked for another replication
            _check_copied(name, asks, self.cluster_of(definition).copying.of(definition))
        await self._told(definition)
        await self._keyring.ready(definition)
        return await self._pinned(tenant, name, is_new=created), created

    async def _told(self, definition: QueueDefinition) -> None:
        """Tells the queue's shards of its definition, as far as they have a leader; messages to the others wait."""
        homes = self.cluster_of(definition).homes_of(definition)
        able = [home for home in homes if not home.is_first and home.line.is_open]
        await asyncio.gather(*(_adopted(home, definition) for home in able))

    async def update_queue(self, tenant: str, name: str, config: QueueConfig, version: int) -> RemoteQueue | None:
        queue = self.here(tenant, name)
        asked, place = config.replication.asked(), queue.replication
        config = placed(config, place, name)
        if not asked.keys() <= place.asked().keys():
            detail = f"queue {name!r}: its backends do not say how they copy, as those of earlier versions; leave "
            raise Unavailable(f"{detail}`replication` out, or upgrade them", retry_after_ms=CHOOSE_RETRY_MS)
        if (away := next((home.line for home in queue.homes if home.line.is_away), None)) is not None:
            raise away.unavailable()  # before anything is changed: the answer includes that shard's numbers
        lanes = max(self._lanes_at(queue.definition, place) for place in places_of(queue.definition))
        changed = _updated(await self.ask(UpdateQueue(tenant, name, config, version, lanes)))
        if changed is None:
            return None
        await self._told(changed)
        await self._keyring.ready(changed)
        return await self._pinned(tenant, name)

    def _lanes_at(self, definition: QueueDefinition, place: Whereabouts) -> int:
        """The lanes that a queue has at a place. Raises `ClusterAway`: the cluster's model is not known then, nor what
        a queue can be there."""
        return self.cluster_of(msgspec.structs.replace(definition, cluster=place.cluster, shard=place.shard)).lanes

    async def _pinned(self, tenant: str, name: str, *, is_new: bool = False) -> RemoteQueue:
        queue = self.here(tenant, name)
        await self._looks.pin(queue, is_new=is_new)
        return queue

    async def delete_queue(self, tenant: str, name: str) -> RemoteQueue | None:
        """Deletes a queue; shards that are away drop it when they are back. Returns the queue, or None if its cluster
        has not been met, so that nothing here used it. Raises `QueueNotFound`."""
        queue, uid = None, self.metadata.find(tenant, name).uid
        with suppress(ClusterAway):
            queue = self.here(tenant, name)
        await self.ask(DeleteQueue(tenant, name))
        if queue is None:
            return None
        for home in queue.homes:
            is_awaited = home.cluster.is_home and not home.cluster.has_lanes_of(queue.definition)
            if not home.is_first and home.is_ours and (home.line.is_open or is_awaited):
                with suppress(PushqError):  # else the shard drops it when it is back
                    await home.adopted.drop([uid])
        return queue

    async def move_queue(self, tenant: str, name: str, target: str) -> RemoteQueue:
        queue = self.here(tenant, name)
        _check_at_rest(queue)
        _check_has_one_lane(queue)
        if queue.config.encrypted:
            raise Conflict(
                f"queue {name!r} is encrypted, and this version's backends cannot move messages they cannot read; "
                "consume or discard them"
            )
        found = self.here(tenant, target)
        _check_at_rest(found)
        _check_has_one_lane(found)
        if (apart := found.home.apart_from(queue.home)) is not None:
            raise Conflict(
                f"queue {target!r} is in another {apart} than {name!r}, and this version moves messages only within "
                "one; consume or discard them"
            )
        if queue.uid not in queue.home.moved:  # else an earlier request began the move and did not finish
            await queue.home.ask(MoveQueue(tenant, name, target))
        if not queue.home.is_first:
            await self.ask(DeleteQueue(tenant, name))
        return queue

    def target_of(self, tenant: str, name: str) -> RemoteQueue:
        """The queue that a publish to `name` goes to. If `name` was deleted and its messages moved to another queue, it
        is the queue they moved to. Raises `QueueNotFound`, and `LookingUp` and `ClusterAway` as `queue` does.
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
        """Asks the first shard. Raises `PushqError`."""
        return await self.first.ask(operation, may_repeat=may_repeat)

    def look(self, queue: RemoteQueue) -> Look | None:
        """Fresh numbers of a queue. Raises `LookingUp`."""
        return self._looks.of(queue)

    def forget_looks(self, place: Place | None = None) -> None:
        """Drops cached numbers after a change made here (at `place`, if given); callers that come from now on do not
        share questions asked before."""
        self.known.forget()
        self._looks.forget(place)

    # ------------------------------------------------------------------------------------- what the first shard says

    def greeted(self, frame: Greeted) -> None:
        self.metadata.data_keys.ids = range(*frame.key_ids)
        self.definer = frame.metadata

    def defined(self, news: News, *, is_first: bool, is_last: bool = True) -> None:
        """Applies news of definitions. `is_first`: all definitions are sent anew from here; `is_last`: they are
        complete with this."""
        gone = self.metadata.take(news, is_first=is_first, is_last=is_last)
        self.documents.take(news.documents, news.documents_gone, is_first=is_first, is_last=is_last)
        for definition in news.queues:
            self._redefined(definition)
        self.moves.told(news.queues, gone)
        self._carriers.told(news.queues, gone)
        for definition in gone:
            self._deleted(definition)
        self._keyring.told(news)
        # Later, because the line that brought them counts as open only after this call.
        self._loop.call_soon(self._defined_elsewhere, news.queues, gone)

    def _defined_elsewhere(self, changed: list[QueueDefinition], gone: list[QueueDefinition]) -> None:
        for home in self.homes[1:]:
            home.adopted.defined_elsewhere(changed, gone)

    def first_is_there(self) -> None:
        """The first shard has sent all definitions and can be asked."""
        for home in self.homes[1:]:
            home.adopted.go_on()

    def has_new_key(self, ids: Collection[int]) -> bool:
        """Whether one of these data keys cannot be used by this gateway yet."""
        return self._keyring.has_new(ids)

    async def learnt(self, ids: Collection[int]) -> bool:
        """Waits briefly for data keys. Returns False if this gateway cannot use them now."""
        return await self._keyring.learnt(ids)

    def deleted_elsewhere(self, queue: RemoteQueue) -> None:
        """Reports that a consumer group was deleted elsewhere."""
        self._on_deleted(queue)

    def _redefined(self, definition: QueueDefinition) -> None:
        if (queue := self._queues.get(definition.uid)) is not None:
            queue.redefined(definition)
        for view in VIEWS_BESIDE:
            if (companion := self._companions.get((definition.uid, view))) is not None:
                config = companion_config(definition.config)
                companion.redefined(msgspec.structs.replace(definition, name=companion.name, config=config))

    def met(self) -> None:
        """Called when a further cluster has said what it is, or has proved to be the one of its name: its queues can
        be served from now on."""
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
        for view in VIEWS_BESIDE:
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
            f"queue {queue.name!r} is moving to another cluster; wait until the old one has none of its messages left"
        )


def _check_has_one_lane(queue: RemoteQueue) -> None:
    """Raises `Conflict`."""
    if queue.home.cluster.has_lanes_of(queue.definition):
        raise Conflict(
            f"queue {queue.name!r} has a lane on each independent host, and this version cannot move its messages; "
            "consume or discard them"
        )


def _check_copied(name: str, asked: Replication, has: Replication) -> None:
    """Checks the replication of an existing queue. Raises `Conflict`."""
    if asked.unlike(has):
        shown = msgspec.json.encode(has).decode()
        raise Conflict(f"queue {name!r} already exists with another config: replication is {shown}, and cannot change")


def _unnamed(cluster: str) -> str:
    return f"cluster {cluster!r}, which is not in store.clusters of this gateway"


async def _adopted(home: Home, definition: QueueDefinition) -> None:
    with suppress(PushqError):
        await home.adopted.tell([definition])
