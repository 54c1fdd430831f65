"""A gateway's view of one shard: the line to its leader, its clock, and the frames that it sends about its queues."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from backend_store.client.streams import Gap
from backend_store.core.leases.leases import ChunkState
from backend_store.core.leases.receipts import claimed_fields
from backend_store.core.log.chunk import Chunk, CorruptEntry, decode_chunk
from backend_store.core.partitions.slots import PartitionMap
from backend_store.metadata.moved import MovedQueues
from backend_store.metadata.relocation import Spot
from backend_store.model import (
    ClusterAway,
    QueueDefinition,
    QueueNotFound,
)
from backend_store.remote.definitions.adopted import Adopted
from backend_store.remote.definitions.definitions import untold
from backend_store.remote.definitions.directory import Directory
from backend_store.remote.limits import (
    RECALL_ASKS_MAX,
)
from backend_store.remote.line.line import Line
from backend_store.remote.queues.leases import Unassigned, keys_of
from backend_store.remote.queues.queue import RemoteQueue
from backend_store.remote.queues.streams import RemoteGroup, RemoteStream
from backend_store.service.definitions import Definitions as News
from backend_store.wire.store_frames import (
    Bits,
    Copies,
    Defined,
    Ended,
    Greeted,
    GroupNews,
    Handed,
    Leases,
    Place,
    Settle,
    Sought,
    Tails,
    of_bits,
    to_bits,
)

if TYPE_CHECKING:
    from backend_store.remote.cluster import BackendCluster
    from backend_store.remote.store import RemoteBackends

log = structlog.get_logger("pushq.remote")

FIRST = 0
"""The shard that, in the home cluster, has the definitions of all queues."""

_news = msgspec.msgpack.Decoder(News).decode


class Home:
    """See the file's first sentence. `BackendCluster` owns it; it is the owner of its line."""

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
        """Whether it has the definitions of all queues."""
        self.backend = ""
        self.ends_wants = False
        """Whether its backend resets the count of a grant that ends; see `Greeted.ends_wants`."""
        self.skew_ms = 0
        self.maps: dict[int, PartitionMap] = {}
        self.moved = MovedQueues()
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._is_midway = self._is_anew = False
        """Whether a full listing of definitions is incomplete; whether the connection began with a full listing."""
        self._untold: list[dict[int, None]] = [{}, {}]
        """During a full listing: the maps and moved queues that it has not named yet, by uid."""
        self._unknown: list[tuple[Place, str]] = []
        self._later: deque[Leases] = deque()
        """Frames that wait for a data key, and those behind them."""
        self.recalling = asyncio.Semaphore(RECALL_ASKS_MAX)
        """Bounds the concurrent requests of `recalls` to this shard."""
        self.line = Line(shard, directory, self, gateway, tls, cluster=cluster.key, addresses=cluster.addresses)
        self.adopted = Adopted(self, store)

    @property
    def is_ours(self) -> bool:
        """Whether the shard takes the queues that our home cluster defines, and no others."""
        return self.adopted.is_ours

    @property
    def spot(self) -> Spot:
        return self.cluster.spot(self.shard)

    def apart_from(self, other: Home) -> str | None:
        """ "cluster" if the clusters differ, else "shard"; None for the same shard, where a transfer is one commit."""
        if self is other:
            return None
        return "shard" if self.cluster is other.cluster else "cluster"

    async def ask(self, operation: Any, *, may_repeat: bool = False, is_change: bool = False) -> msgspec.Raw:
        """See `Line.ask`."""
        return await self.line.ask(operation, may_repeat=may_repeat, is_change=is_change)

    def steady_ms(self) -> int:
        """The shard's clock of leases in ms, estimated from its greeting."""
        return self._store.own_ms() + self.skew_ms

    def queues(self) -> Iterator[RemoteQueue]:
        """The queues of this shard; of a queue with lanes its lane here."""
        return (here for queue in self._store.queues() if (here := queue.at(self)) is not None)

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
        self.ends_wants = frame.ends_wants
        self.skew_ms = frame.time_ms - self._store.own_ms()
        self._unknown = frame.unknown
        self.adopted.greeted(frame.metadata)
        if self.shard == FIRST:
            self.cluster.greeted(frame)
        if self.is_first:
            self._store.greeted(frame)

    def copied(self, copies: list[Copies]) -> None:
        if self.shard == FIRST:
            self.cluster.copied(copies)

    def defined(self, frame: Defined, *, is_first: bool) -> None:
        news = _news(frame.data)
        is_begin = is_first and not self._is_midway and not frame.goes_on
        if is_first and not self._is_midway:
            self._is_anew = is_begin
        self._is_midway = is_first and not frame.is_last
        if is_begin:
            self._untold = [dict.fromkeys(self.maps), dict.fromkeys(self.moved)]
        maps, moved = self._untold
        news.maps_gone += untold(maps, (one.uid for one in news.maps), frame.is_last)
        news.moved_gone += untold(moved, (one.definition.uid for one in news.moved), frame.is_last)
        self.maps.update({one.uid: one for one in news.maps})
        for one in news.moved:
            self.moved.put(one)
        for uid in news.maps_gone:
            self.maps.pop(uid, None)
        for uid in news.moved_gone:
            self.moved.forget(uid)
        if self.is_first:
            self._store.defined(news, is_first=is_begin, is_last=frame.is_last)
        else:
            self.adopted.told(news, is_first=is_begin, is_open=not is_first)
        if is_first and frame.is_last:
            self._loop.call_soon(self._reopened)

    def came_to_be(self, definition: QueueDefinition) -> None:
        """The shard has begun to serve the queue: grants of waiting consumers are sent."""
        for queue in self._of_uid(definition.uid):
            queue.came_to_be()

    def _of_uid(self, uid: int) -> list[RemoteQueue]:
        """The queue of a uid and its companions here. News come often and must not scan all queues."""
        return [here for queue in self._store.of_uid(uid) if (here := queue.at(self)) is not None]

    def _reopened(self) -> None:
        if self.is_first:
            self._store.first_is_there()
        else:
            self.adopted.begin(is_anew=self._is_anew)
        unknown: dict[Place, list[str]] = {}
        for place, token in self._unknown:
            unknown.setdefault(place, []).append(token)
        for queue in self.queues():
            queue.line_opened(unknown.get(queue.place_there, ()))
        self.keep_leases()

    def keep_leases(self) -> None:
        """If this gateway stops, has the backend keep the leases of its consumers for a while."""
        place = next((queue.place_there for queue in self.queues() if queue.stock.is_held), None)
        if self._store.keeps_ms and place is not None:
            self.line.tell(Settle(0, place, "keep", {}, self._store.keeps_ms))

    def lost(self) -> None:
        self._is_midway = False
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
            if isinstance(group, RemoteGroup):
                group.gone_elsewhere()

    def tails(self, frame: Tails) -> None:
        for place, news in frame.tails:
            stream = self._queue_at(place)
            if isinstance(stream, RemoteStream):
                stream.tails_moved(news)

    def sought(self, frame: Sought) -> None:
        self._store.sought(frame.session, frame.principal_id)

    def leased(self, frame: Leases) -> None:
        if self._later or self._store.has_new_key(_keys_of(frame.handed)):
            self._later.append(frame)
            if len(self._later) == 1:
                self._store.background(self._leased_later())
            return
        self._leased(frame)

    async def _leased_later(self) -> None:
        """Takes in the waiting frames, in order. A block whose data key is still being fetched must not count as one
        that cannot be opened; frames behind it wait, so the order is kept."""
        try:
            await self._lease_in_order()
        except Exception:
            # As with frames that do not wait: the next connection sends again what is not held here.
            log.exception("leases that waited for a key were not taken in", cluster=self.cluster.name, shard=self.shard)
            self._later.clear()
            self.line.cut()

    async def _lease_in_order(self) -> None:
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
        """Refuses messages whose data keys cannot be had now; the backend delivers them again."""
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
            queue = self._store.at(place)
        except (QueueNotFound, ClusterAway):
            return None
        if queue.uid != place.uid:
            return None
        here = queue.at(self)
        return here if place.group is None or here is None else here.groups.get(place.group)

    def ended(self, frame: Ended) -> None:
        self._store.forget_looks()
        of_uid: dict[int, list[RemoteQueue]] = {}
        for tokens, is_lost in ((frame.lost, True), (frame.gone, False)):
            for token, bits in tokens:
                fields = claimed_fields(token)
                if fields is None:
                    continue
                if (queues := of_uid.get(fields.queue_uid)) is None:
                    queues = of_uid[fields.queue_uid] = self._of_uid(fields.queue_uid)
                for queue in queues:
                    queue.lease_ended(token, to_bits(bits), is_lost=is_lost)


def _keys_of(handed: Iterable[Handed]) -> set[int]:
    return keys_of(one.chunk for one in handed)


def _unassigned(handed: Handed, chunk: Chunk, bits: int) -> Unassigned:
    state = ChunkState(chunk)
    state.attempts = handed.attempts
    state.chunk = None  # the lease has it until its messages are encoded
    return Unassigned(handed.token, state, chunk, bits, has_receipts=handed.has_receipts)
