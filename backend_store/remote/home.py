"""One shard as a gateway knows it: the line to who leads it, its clock, and the queues that it has taken over.

Definitions come from the first shard. A queue that lies in another one is told to that shard by every gateway that
misses it there, so it makes no difference which of them dies between the one and the other.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from backend_store.client.embedded import owner_of
from backend_store.client.streams import Gap
from backend_store.core.chunk import Chunk, CorruptEntry, decode_chunk
from backend_store.core.leases import ChunkState
from backend_store.core.receipts import claimed_fields
from backend_store.core.slots import PartitionMap
from backend_store.metadata.embedded import MovedQueue
from backend_store.metadata.relocation import as_known_in
from backend_store.model import (
    ClusterAway,
    Conflict,
    Overloaded,
    PushqError,
    QueueDefinition,
    QueueNotFound,
    Unavailable,
)
from backend_store.remote.directory import Directory
from backend_store.remote.leases import Unassigned, keys_of
from backend_store.remote.limits import (
    ADOPT_RETRY_SECONDS,
    ADOPT_RETRY_SECONDS_MAX,
    ADOPT_SECONDS_MAX,
    ADOPTED_AT_ONCE_MAX,
    CLAIM_RETRY_SECONDS,
    DROP_AFTER_SECONDS,
    LINE_CALLS_MAX,
    RECALL_ASKS_MAX,
)
from backend_store.remote.line import Line
from backend_store.remote.queue import RemoteQueue
from backend_store.remote.streams import RemoteGroup, RemoteStream
from backend_store.service.defining import AdoptQueues, DropQueues, GoneQueues, NameCluster
from backend_store.service.definitions import Definitions as News
from backend_store.wire.store_frames import (
    Bits,
    Defined,
    Ended,
    Greeted,
    GroupNews,
    Handed,
    Leases,
    Place,
    Tails,
    of_bits,
    to_bits,
)

if TYPE_CHECKING:
    from backend_store.remote.cluster import BackendCluster
    from backend_store.remote.store import RemoteBackends

log = structlog.get_logger("pushq.remote")

FIRST = 0
"""The shard that, in the home cluster, has the definitions of all."""

_news = msgspec.msgpack.Decoder(News).decode
_uids = msgspec.msgpack.Decoder(list[int]).decode

Waiting = Callable[[PushqError | None], None]
"""Goes on once the shard has the queue, or is told why it has not."""


class Home:
    """See the file's first sentence."""

    def __init__(
        self,
        store: RemoteBackends,
        cluster: BackendCluster,
        shard: int,
        directory: Directory,
        gateway: str,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.cluster = cluster
        self.shard = shard
        self.is_first = cluster.is_home and shard == FIRST
        """Whether it has the definitions of all."""
        self.is_ours = cluster.is_home
        """Whether it takes what our home cluster defines, and nothing else."""
        self.backend = ""
        self._identity = ""
        """Of the shard's metadata."""
        self.skew_ms = 0
        self.maps: dict[int, PartitionMap] = {}
        self.moved: dict[int, MovedQueue] = {}
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._there: dict[int, int] = {}
        """Uid → version, of the queues that the shard has taken over."""
        self._names: dict[tuple[str, str], int] = {}
        self._waiting: dict[int, deque[Waiting]] = {}
        self._unknown: list[tuple[Place, str]] = []
        self._later: deque[Leases] = deque()
        """Frames that wait for a key, and those behind them."""
        self._is_claiming = self._is_adopting = self._is_dropping = False
        self._defined_anew = asyncio.Event()
        """Wakes who tells the shard what it lacks."""
        self._knows_definers = True
        self.recalling = asyncio.Semaphore(RECALL_ASKS_MAX)
        """Taken by who asks what is known here of publishes: see `recalls`."""
        self.line = Line(shard, directory, self, gateway, tls, cluster=cluster.key)

    def apart_from(self, other: Home) -> str | None:
        """ "cluster" or "shard", whichever is not the same; None: what goes from one to the other is one commit."""
        if self is other:
            return None
        return "shard" if self.cluster is other.cluster else "cluster"

    async def ask(self, operation: Any, *, may_repeat: bool = False, is_change: bool = False) -> msgspec.Raw:
        """See `Line.ask`."""
        return await self.line.ask(operation, may_repeat=may_repeat, is_change=is_change)

    def queues(self) -> Iterator[RemoteQueue]:
        """Those that lie here; of a queue with lanes its lane here."""
        return (here for queue in self._store.queues() if (here := queue.at(self)) is not None)

    # ------------------------------------------------------------------------------------------ queues taken over

    def has(self, definition: QueueDefinition) -> bool:
        """Whether it serves the queue, as far as is known here; and nobody waits for that to begin."""
        if self.is_first or definition.uid in self.moved:
            return True
        return definition.uid in self._there and definition.uid not in self._waiting

    def knows(self, definition: QueueDefinition) -> bool:
        """Whether it has been told of this version."""
        return self.is_first or self._there.get(definition.uid, 0) >= definition.version

    def when_there(self, definition: QueueDefinition, go_on: Waiting) -> None:
        """Has `go_on` called, in the order of the calls, once the shard serves the queue."""
        waiting = self._waiting.get(definition.uid)
        if waiting is None:
            waiting = self._waiting[definition.uid] = deque()
            self._store.background(self._adopted_for(definition, waiting))
        if len(waiting) >= LINE_CALLS_MAX:
            go_on(Overloaded(f"{LINE_CALLS_MAX} requests wait for the backend", retry_after_ms=500))
        else:
            waiting.append(go_on)

    async def _adopted_for(self, definition: QueueDefinition, waiting: deque[Waiting]) -> None:
        error: PushqError | None = self.line.unavailable()
        try:
            error = await self._adopt_soon(definition)
        finally:
            self._waiting.pop(definition.uid, None)
            while waiting:
                try:
                    waiting.popleft()(error)
                except Exception:
                    log.exception("what waited for a queue failed", shard=self.shard, queue=definition.name)

    async def _adopt_soon(self, definition: QueueDefinition) -> PushqError | None:
        """None: the shard has it. The error, where it cannot be told in time; it may have no leader meanwhile."""
        over = self._loop.time() + ADOPT_SECONDS_MAX
        while True:
            try:
                await self.adopt([definition])
            except PushqError as error:
                may_come = isinstance(error, Unavailable) and not self.cluster.is_away
                if not may_come or self._loop.time() >= over:
                    return error
                await asyncio.sleep(ADOPT_RETRY_SECONDS)
            else:
                return None

    async def adopt(self, definitions: list[QueueDefinition]) -> None:
        """Returns when the shard has them, as they are known here. Raises `PushqError`."""
        if definitions and not self._store.first.line.is_open:
            raise self._store.first.line.unavailable()  # it may have been deleted meanwhile, or have moved away
        definitions = [self._as_told(one) for one in definitions]
        definer = self._definer()
        is_new = self is self.cluster.first and not self.is_ours
        if is_new:
            await self._name(is_only_asked=True)
        await self.ask(AdoptQueues([] if is_new else definitions, definer), may_repeat=True)
        if is_new:
            await self._name()
        self.is_ours = True
        if is_new and definitions:
            await self.ask(AdoptQueues(definitions, definer), may_repeat=True)

    def _as_told(self, definition: QueueDefinition) -> QueueDefinition:
        """Of a companion its queue, which it lies with."""
        known = self._store.metadata.queues.get((definition.tenant, owner_of(definition.name)))
        if known is not None and known.uid == definition.uid:
            definition = known
        return as_known_in(definition, self.cluster.key, self.cluster.any_or(self.shard))

    async def _name(self, *, is_only_asked: bool = False) -> None:
        """Of a further cluster: raises `ClusterAway` where it is another one than that of its name."""
        asked = NameCluster(self.cluster.name, self._identity, is_only_asked)
        try:
            await self._store.ask(asked, may_repeat=True)
        except Conflict as error:
            self.cluster.why_not = error.detail
            raise ClusterAway(error.detail, retry_after_ms=5_000) from None
        if self.cluster.why_not:
            self.cluster.why_not = ""
            self._store.met()

    async def drop(self, uids: Sequence[int], moved: Sequence[tuple[int, int]] = ()) -> None:
        """Of queues that are defined no more; `moved` are those that lie here no more, with the versions that say so.
        Raises `PushqError`."""
        await self.ask(DropQueues(list(uids), self._definer(), tuple(moved)), may_repeat=True)

    def _definer(self) -> str:
        """By what a shard of a further cluster knows us; "" within the home cluster. Raises `Unavailable`."""
        if self.cluster.is_home:
            return ""
        definer = self._store.definer
        if not definer and not self._store.first.line.is_open:
            raise self._store.first.line.unavailable()
        if not (definer and self._knows_definers):
            older = f"cluster {self.cluster.name!r}" if definer else "the home cluster"
            raise Unavailable(f"backends of {older} are of a version without further clusters; upgrade them first")
        # Of another home cluster the first shard alone is sure to know a queue: who has that one has all.
        if self is not self.cluster.first and not self.cluster.first.is_ours:
            unsaid = f"cluster {self.cluster.name!r} has not said yet that it takes this home cluster's queues"
            detail = self.cluster.why_not or unsaid
            raise Unavailable(detail, retry_after_ms=500)
        return definer

    async def _claim(self) -> None:
        """Makes sure of a further cluster's shard before any queue is put there."""
        told = ""
        while self.line.is_open and not self.is_ours:
            try:
                await self.adopt([])
            except PushqError as error:
                is_known = self._store.first.line.is_open  # else the home cluster is not there to be asked who it is
                if self is self.cluster.first and is_known and error.detail != told:
                    told = error.detail
                    log.error("a cluster gets no queues", cluster=self.cluster.name, shard=self.shard, reason=told)
                await asyncio.sleep(CLAIM_RETRY_SECONDS)
        self._is_claiming = False
        if self.is_ours:
            self.defined_elsewhere(list(self._store.metadata.queues.values()))

    def defined_elsewhere(self, changed: Iterable[QueueDefinition]) -> None:
        """The first shard told of these: those that lie here are taken over, if they are not yet."""
        is_able = self.line.is_open and self.is_ours and self._store.first.line.is_open
        if is_able and any(self._lacks(one) for one in changed):
            self._defined_anew.set()
            if not self._is_adopting:
                self._is_adopting = True
                self._store.background(self._adopt_missing())
        self.drop_soon()

    def _lacks(self, one: QueueDefinition) -> bool:
        is_here = self.cluster.lies_in(one, self.shard)
        return is_here and self._there.get(one.uid, 0) < one.version and one.uid not in self.moved

    async def _adopt_missing(self) -> None:
        """Until it has all, or one of the two shards is lost: whichever comes back begins this anew."""
        pause, told = ADOPT_RETRY_SECONDS, ""
        try:
            while (error := await self._adopt_all()) is not None:
                if error.detail != told:
                    told = error.detail
                    log.info("a shard did not take its queues over", shard=self.shard, error=told)
                self._defined_anew.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._defined_anew.wait(), pause)
                pause = min(ADOPT_RETRY_SECONDS_MAX, 2 * pause)
        finally:
            self._is_adopting = False

    async def _adopt_all(self) -> PushqError | None:
        """Tells each leader of the shard each version that it lacks, once. The last error, where it is to be told
        again."""
        tried: set[tuple[int, int]] = set()
        error: PushqError | None = None
        connection = self.line.connections
        while self.line.is_open and self._store.first.line.is_open:
            if connection != self.line.connections:
                connection = self.line.connections
                tried.clear()
            missing = [one for one in self._store.metadata.queues.values() if self._lacks(one)]
            missing = [one for one in missing if (one.uid, one.version) not in tried][:ADOPTED_AT_ONCE_MAX]
            if not missing:
                return error
            tried.update((one.uid, one.version) for one in missing)
            try:
                await self.adopt(missing)
            except PushqError as refused:
                error = refused
        return None

    def drop_soon(self) -> None:
        """Some of what lies here may be defined no more."""
        if not self.is_first and self.is_ours and not self._is_dropping and self._strangers():
            self._is_dropping = True
            self._store.background(self._drop())

    def _strangers(self) -> list[int]:
        known = self._store.metadata.queues
        return [uid for name, uid in self._names.items() if not self._is_known(known.get(name), uid)]

    def _is_known(self, definition: QueueDefinition | None, uid: int) -> bool:
        return definition is not None and definition.uid == uid and self.cluster.lies_in(definition, self.shard)

    async def _drop(self) -> None:
        """News of the two shards come as they come: who has the definitions is asked before anything goes. What is
        refused is asked for again, until one of the two is lost: whichever comes back begins this anew."""
        asked: set[int] = set()
        pause, told, connection = DROP_AFTER_SECONDS, "", self.line.connections
        try:
            while True:
                await asyncio.sleep(pause)
                if connection != self.line.connections:  # another leader may have what this one has dropped
                    connection = self.line.connections
                    asked.clear()
                strangers = [uid for uid in self._strangers() if uid not in asked] if self.is_ours else []
                if not strangers:
                    return
                try:
                    gone = _uids(await self._store.ask(self._gone(strangers), may_repeat=True))
                    if gone:
                        await self._drop_of(set(gone))
                except PushqError as error:
                    if error.detail != told:
                        told = error.detail
                        log.info("a shard did not drop its queues", shard=self.shard, error=told)
                    if not (self.line.is_open and self._store.first.line.is_open):
                        return
                    pause = min(ADOPT_RETRY_SECONDS_MAX, 2 * pause)
                else:
                    pause = DROP_AFTER_SECONDS
                    asked.update(strangers)
        finally:
            self._is_dropping = False

    async def _drop_of(self, uids: set[int]) -> None:
        """As they are known now: one may have come back meanwhile."""
        gone, moved = [], []
        for name, uid in self._names.items():
            known = self._store.metadata.queues.get(name) if uid in uids else None
            if known is not None and known.uid == uid:
                if not self.cluster.lies_in(known, self.shard):
                    moved.append((uid, known.version))
            elif uid in uids:
                gone.append(uid)
        await self.drop(gone, moved)

    def _gone(self, uids: list[int]) -> GoneQueues:
        return GoneQueues(uids, self.cluster.key, self.cluster.any_or(self.shard))

    # --------------------------------------------------------------------------------------- what the line says

    def held(self) -> list[tuple[Place, str, Bits]]:
        return [(q.place_there, token, of_bits(bits)) for q in self.queues() for token, bits in q.stock.held()]

    def greeted(self, frame: Greeted) -> None:
        if self.backend and frame.backend != self.backend:
            log.warning(
                "another backend leads",
                cluster=self.cluster.name,
                shard=self.shard,
                before=self.backend,
                now=frame.backend,
            )
        self.backend = frame.backend
        self.skew_ms = frame.time_ms - int(self._loop.time() * 1000)
        self._unknown = frame.unknown
        self._knows_definers = bool(frame.metadata)
        if frame.metadata != self._identity:
            self._identity = frame.metadata
            self.is_ours = self.cluster.is_home
        if self.shard == FIRST:
            self.cluster.greeted(frame)
        if self.is_first:
            self._store.greeted(frame)

    def defined(self, frame: Defined, *, is_first: bool) -> None:
        news = _news(frame.data)
        if is_first:
            self.maps.clear()
            self.moved.clear()
        self.maps.update({one.uid: one for one in news.maps})
        self.moved.update({one.definition.uid: one for one in news.moved})
        for uid in news.maps_gone:
            self.maps.pop(uid, None)
        for uid in news.moved_gone:
            self.moved.pop(uid, None)
        if self.is_first:
            self._store.defined(news, is_first=is_first)
        else:
            self._took_over(news, is_first=is_first)
        if is_first:
            self._loop.call_soon(self._reopened)

    def _took_over(self, news: News, *, is_first: bool) -> None:
        if is_first:
            self._there.clear()
            self._names.clear()
        for name in news.queues_gone:
            if (uid := self._names.pop(name, None)) is not None:
                self._there.pop(uid, None)
        for definition in news.queues:
            is_new = definition.uid not in self._there
            name = definition.tenant, definition.name
            if (before := self._names.get(name)) is not None and before != definition.uid:
                self._there.pop(before, None)
            self._names[name] = definition.uid
            self._there[definition.uid] = definition.version
            if is_new and not is_first:
                self._came_to_be(definition)
        if is_first:
            self._loop.call_soon(self._begin)
        else:
            self.drop_soon()

    def _begin(self) -> None:
        """It is connected, and what it has is known."""
        if self.is_ours:
            self.defined_elsewhere(list(self._store.metadata.queues.values()))
        elif not self._is_claiming:
            self._is_claiming = True
            self._store.background(self._claim())

    def _came_to_be(self, definition: QueueDefinition) -> None:
        """It is served here now: who waits for messages is heard."""
        for queue in self.queues():
            if queue.uid == definition.uid:
                queue.came_to_be()

    def _reopened(self) -> None:
        unknown: dict[Place, list[str]] = {}
        for place, token in self._unknown:
            unknown.setdefault(place, []).append(token)
        for queue in self.queues():
            queue.line_opened(unknown.get(queue.place_there, ()))

    def lost(self) -> None:
        self._later.clear()
        self._store.forget_looks()
        for queue in self.queues():
            queue.line_lost()

    def group_news(self, frame: GroupNews) -> None:
        for place, gaps in frame.missed:
            group = self._queue_at(place)
            if isinstance(group, RemoteGroup):
                group.missed([Gap(*gap) for gap in gaps], told=True)
        for place in frame.gone:
            group = self._queue_at(place)
            if isinstance(group, RemoteGroup) and place.group is not None:
                group.stream.group_gone(place.group)
                self._store.deleted_elsewhere(group)

    def tails(self, frame: Tails) -> None:
        for place, news in frame.tails:
            stream = self._queue_at(place)
            if isinstance(stream, RemoteStream):
                stream.tails_moved(news)

    def leased(self, frame: Leases) -> None:
        if self._later or self._store.has_new_key(_keys_of(frame.handed)):
            self._later.append(frame)
            if len(self._later) == 1:
                self._store.background(self._leased_later())
            return
        self._leased(frame)

    async def _leased_later(self) -> None:
        """A block under a key that is being learnt must not be taken for one that does not open. What came behind it
        waits, too: nothing is overtaken."""
        while self._later:
            frame = self._later[0]
            is_known = await self._store.learnt(_keys_of(frame.handed))
            if not self._later or self._later[0] is not frame:
                return  # the line was lost meanwhile
            self._later.popleft()
            if is_known:
                self._leased(frame)
            else:
                self._refuse(frame)

    def _refuse(self, frame: Leases) -> None:
        """Nobody can say now what these are sealed with: they come again."""
        for one in frame.handed:
            if (queue := self._queue_at(one.place)) is not None:
                bits = to_bits(one.bits)
                queue.came(one.visibility_ms, bits.bit_count())
                queue.refused(one.token, bits)

    def _leased(self, frame: Leases) -> None:
        changed: dict[Place, RemoteQueue] = {}
        for one in frame.handed:
            queue = self._queue_at(one.place)
            if queue is None:
                continue
            bits = to_bits(one.bits)
            queue.came(one.visibility_ms, bits.bit_count())
            try:
                chunk = queue.opened(decode_chunk(one.chunk, seed=one.seed), one.partition)
            except CorruptEntry as error:
                log.error("a chunk was broken on its way", queue=queue.name, reason=str(error))
                queue.refused(one.token, bits)
                continue
            queue.stock.came(one.visibility_ms, _unassigned(one, chunk, bits))
            changed[one.place] = queue
        for idle in frame.idle:
            if (queue := self._queue_at(idle.place)) is not None:
                queue.idle(idle.visibility_ms, idle.granted)
        for queue in changed.values():
            queue.deal()

    def _queue_at(self, place: Place) -> RemoteQueue | None:
        try:
            queue = self._store.here(place.tenant, place.name)
        except (QueueNotFound, ClusterAway):
            return None
        if queue.uid != place.uid:
            return None
        return queue.at(self) if place.group is None else queue.groups.get(place.group)

    def ended(self, frame: Ended) -> None:
        self._store.forget_looks()
        of_uid: dict[int, list[RemoteQueue]] = {}
        for queue in self.queues():
            of_uid.setdefault(queue.uid, []).append(queue)  # a queue, its companions and its groups
        for tokens, is_lost in ((frame.lost, True), (frame.gone, False)):
            for token, bits in tokens:
                fields = claimed_fields(token)
                for queue in of_uid.get(fields.queue_uid, ()) if fields is not None else ():
                    queue.lease_ended(token, to_bits(bits), is_lost=is_lost)


def _keys_of(handed: Iterable[Handed]) -> set[int]:
    return keys_of(one.chunk for one in handed)


def _unassigned(handed: Handed, chunk: Chunk, bits: int) -> Unassigned:
    state = ChunkState(chunk)
    state.attempts = handed.attempts
    state.chunk = None  # the lease has it until its messages are encoded
    return Unassigned(handed.token, state, chunk, bits, has_receipts=handed.has_receipts)
