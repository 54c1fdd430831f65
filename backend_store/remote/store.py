"""The queues of a backend in another process, with the shape of `client.Store`.

A gateway that uses it stores nothing itself: definitions are known here and changed there, leases are held on loan, and
what was counted here is in memory until it is in a file.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import msgspec
import structlog

from backend_store.client.embedded import COMPANION_VIEWS, companion_config, companion_view, owner_of
from backend_store.client.since import ASKED_AT
from backend_store.core.kept import KeptSession
from backend_store.core.leases import Lease
from backend_store.core.sealing import Seal, Sealer
from backend_store.core.shelves import VIEW_DEAD
from backend_store.core.slots import SlotTable, first_table
from backend_store.metadata.data_keys import DataKey
from backend_store.metadata.embedded import Tenant
from backend_store.model import (
    COMPANION,
    Conflict,
    FieldError,
    InvalidRequest,
    PushqError,
    QueueConfig,
    QueueDefinition,
    QueueNotFound,
    QueueStats,
)
from backend_store.node.ledger import LedgerBook, QueueTotal, together
from backend_store.node.node import wall_clock_ms
from backend_store.remote.audit import RemoteAudit
from backend_store.remote.definitions import RemoteDefinitions
from backend_store.remote.directory import Directory
from backend_store.remote.documents import RemoteDocuments
from backend_store.remote.doors import Doors
from backend_store.remote.facade import FarNode
from backend_store.remote.home import FIRST, Home
from backend_store.remote.known import Flight, Known, Landing, LookingUp
from backend_store.remote.laned import LanedQueue, whole_look
from backend_store.remote.learning import Learning
from backend_store.remote.limits import LOOK_FRESH_MS, OTHERS_SECONDS_MAX, REPORT_SECONDS, START_SECONDS_MAX
from backend_store.remote.pulses import PulseBook, RemotePulses
from backend_store.remote.queue import Look, RemoteQueue
from backend_store.remote.streams import RemoteStream
from backend_store.remote.unheard import Unheard
from backend_store.service.definitions import Definitions as News
from backend_store.service.operations import (
    CreateQueue,
    DeleteQueue,
    DropQueues,
    GoneQueues,
    MoveQueue,
    Totals,
    UpdateQueue,
)
from backend_store.service.operations import Look as LookAt
from backend_store.service.reports import Report, TakeReport
from backend_store.storage.engine import Batch
from backend_store.storage.memory import MemoryEngine
from backend_store.wire.store_frames import Greeted, Place

__all__ = ["Landing", "RemoteBackends"]

log = structlog.get_logger("pushq.remote")

_created = msgspec.msgpack.Decoder(tuple[QueueDefinition, bool]).decode
_updated = msgspec.msgpack.Decoder(QueueDefinition | None).decode
_looks = msgspec.msgpack.Decoder(list[Look]).decode
_report = msgspec.msgpack.Decoder(Report).decode
_totals = msgspec.msgpack.Decoder(list[QueueTotal]).decode

LearnKeys = Callable[[list[DataKey]], Coroutine[Any, Any, None]]


class RemoteBackends:
    """See the file's first sentence. `open` before use, `close` at the end."""

    def __init__(
        self,
        directory: Directory,
        tls: ssl.SSLContext | None,
        looking_up: LookingUp,
        *,
        addresses: Sequence[tuple[str, int]] = (),
        is_local: bool = False,
    ):
        """`addresses`: of the backends, for the doors of independent hosts. `is_local`: the storage of this machine,
        with other gateways beside this one, which their callers must not be able to tell apart."""
        self.id = f"gateway-{secrets.token_hex(6)}"
        self._loop = asyncio.get_running_loop()
        self._looking_up = looking_up
        self._queues: dict[int, RemoteQueue] = {}
        self._companions: dict[tuple[int, int], RemoteQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._looks: dict[Place, tuple[float, Look | None]] = {}
        self._tenant_looks: dict[str, float] = {}
        self._pinned: dict[Place, tuple[float, Look]] = {}
        self._flights: dict[Any, Flight] = {}
        self.known = Known(looking_up, self.background)
        self._sealer: Sealer | None = None
        self._learning: Learning | None = None
        self._on_deleted: Callable[[RemoteQueue], None] = lambda queue: None
        self._engine = MemoryEngine()
        self.metadata = RemoteDefinitions(self.ask, lambda: [one for home in self.homes for one in home.moved.values()])
        self.documents = RemoteDocuments(self.ask, holder=self.id, are_shared=not is_local)
        self.node = FarNode(self.metadata, self._is_open, self.steady_ms)
        self._directory = directory
        self._tls = tls
        self._pulses = PulseBook(self)
        self.audit = RemoteAudit(self.ask, self.known)
        self.ledger = RemoteLedger(self)
        self.lanes = 0
        """How many every queue has, where the backends are independent hosts; 0: a queue lies in one shard."""
        self._addresses = addresses
        self._doors: Doors | None = None
        self._unheard = Unheard(looking_up, self.background, self._hear) if is_local else None
        self._unlearnt = Unheard(looking_up, self.background, self._hear_keys)
        self._keyed: set[int] = set()
        """Numbers of queues that have a key which can be used here."""
        self.homes: list[Home] = []
        """By the numbers of the shards; the first has the definitions."""
        self.home(FIRST)

    async def open(self) -> None:
        """Returns when the definitions are here, and the other shards, if they come soon. Raises `Unavailable`."""
        first = self.home(FIRST).line
        if not await first.opened(START_SECONDS_MAX):
            raise first.unavailable()
        doors = self._doors.lines if self._doors is not None else []
        lines = [*(home.line for home in self.homes[1:]), *doors]
        await asyncio.gather(*(line.opened(OTHERS_SECONDS_MAX) for line in lines))
        if self._unheard is not None:
            self.background(self._follow_reports())

    def home(self, shard: int) -> Home:
        while len(self.homes) <= shard:
            self.homes.append(Home(self, len(self.homes), self._directory, self.id, self._tls))
        return self.homes[shard]

    @property
    def doors(self) -> Doors:
        assert self._doors is not None, "a queue with lanes has doors"
        return self._doors

    @cached_property
    def lane_slots(self) -> SlotTable:
        """Which lane is home to which slots, the same at every host."""
        return first_table(self.lanes)

    def seal_with(self, sealer: Sealer, learn: LearnKeys) -> None:
        """Blocks are sealed and opened here; `learn` takes in data keys that another gateway made."""
        self._sealer = sealer
        self._learning = Learning(learn, self.background)

    def on_deleted(self, told: Callable[[RemoteQueue], None]) -> None:
        """`told` hears of queues that were deleted elsewhere."""
        self._on_deleted = told

    async def close(self, sessions: list[KeptSession] | None = None) -> None:
        for home in self.homes:
            for queue in home.queues():
                for token, bits in queue.stock.clear_waiting():
                    queue.tell_unsent(token, bits)
        if self._doors is not None:
            await self._doors.close()
        await asyncio.gather(*(home.line.close() for home in self.homes))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, batch: Batch) -> None:
        self._engine.commit(batch, lambda: None)

    def _is_open(self) -> bool:
        return any(home.line.is_open for home in self.homes)

    def background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name="remote store")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    # ------------------------------------------------------------------------------------------------------- clocks

    def steady_ms(self) -> int:
        """The first shard's clock of leases, as far as it is known here."""
        return int(self._loop.time() * 1000) + self.homes[FIRST].skew_ms

    @property
    def identity(self) -> bytes:
        return self.homes[FIRST].backend.encode()

    # ------------------------------------------------------------------------------------------------------ queues

    def queue(self, tenant: str, name: str) -> RemoteQueue:
        """Raises `QueueNotFound`, and `LookingUp`."""
        try:
            return self.here(tenant, name)
        except QueueNotFound:
            self.expect(f"queue {name!r}", (tenant, name))
            raise

    def expect(self, what: str, name: Hashable = None) -> None:
        """Returns where a name that is not known here is known nowhere. Raises `LookingUp` while that is asked."""
        if self._unheard is not None:
            self._unheard.check(what if name is None else name, what)

    async def _hear(self) -> None:
        await self.ask(GoneQueues([]), may_repeat=True)  # its answer comes after all news

    async def _hear_keys(self) -> None:
        await self._hear()
        if self._learning is not None:
            await self._learning.learnt(self._learning.unlearnt)

    def _expect_key(self, queue: RemoteQueue) -> None:
        """Another gateway made the queue, and then its key: whoever was answered there can publish here. Raises
        `LookingUp` while the key is on its way."""
        if self._unheard is None or self._learning is None or queue.uid in self._keyed or not queue.config.encrypted:
            return
        ids = [key.id for key in self.metadata.data_keys.by_id.values() if key.uid == queue.uid]
        if not ids or self._learning.lacks(ids):
            self._unlearnt.check(queue.uid, f"the key of queue {queue.name!r}")
        else:
            self._keyed.add(queue.uid)

    async def _follow_reports(self) -> None:
        while True:
            with suppress(PushqError):
                self.node.take(_report(await self.ask(TakeReport(), may_repeat=True)))
            await asyncio.sleep(REPORT_SECONDS)

    def here(self, tenant: str, name: str) -> RemoteQueue:
        try:
            definition = self.metadata.find(tenant, name)
        except QueueNotFound:
            return self._companion(tenant, name)
        found = self._queues.get(definition.uid)
        if found is None:
            kind = RemoteStream if definition.config.kind == "stream" else self._kind
            found = self._queues[definition.uid] = kind(self, definition, owner=name)
        return found

    @property
    def _kind(self) -> type[RemoteQueue]:
        return LanedQueue if self.lanes else RemoteQueue

    def _companion(self, tenant: str, name: str) -> RemoteQueue:
        owner, view = owner_of(name), companion_view(name)
        if view is None:
            raise QueueNotFound(f"there is no queue {name!r}")
        definition = self.metadata.find(tenant, owner)
        found = self._companions.get((definition.uid, view))
        if found is None:
            own = msgspec.structs.replace(definition, name=name, config=companion_config(definition.config))
            found = self._companions[definition.uid, view] = self._kind(self, own, owner=owner, is_companion=True)
            if view == VIEW_DEAD:
                found.redrives = self.here(tenant, owner).redrives
        return found

    def all_definitions(self) -> list[QueueDefinition]:
        return list(self.metadata.queues.values())

    def pulses_of(self, definition: QueueDefinition) -> RemotePulses | None:
        """None for a queue that is gone, and until its numbers are here."""
        return self._pulses.of(definition)

    def queues(self) -> list[RemoteQueue]:
        """Companions and groups among them."""
        groups = [group for queue in self._queues.values() for group in queue.groups.values()]
        return [*self._queues.values(), *self._companions.values(), *groups]

    def tenant(self, name: str) -> Tenant | None:
        return self.metadata.tenants.get(name)

    def tenants(self) -> list[Tenant]:
        return list(self.metadata.tenants.values())

    def names(self, tenant: str | None = None) -> Iterator[tuple[str, str]]:
        """Queues, and of one tenant the companions that hold something. Raises `LookingUp`."""
        if tenant is not None and self._tenant_looks.get(tenant, 0.0) < self._fresh_since():
            raise self._look_up(f"the queues of {tenant!r}", tenant, LookAt([], tenant), self.homes)
        for definition in list(self.metadata.queues.values()):
            if tenant is not None and definition.tenant != tenant:
                continue
            yield definition.tenant, definition.name
            for suffix in COMPANION_VIEWS if tenant is not None else ():
                place = Place(definition.tenant, definition.name + suffix, definition.uid)
                if self._looks.get(place, (0.0, None))[1] is not None:
                    yield definition.tenant, definition.name + suffix

    def held_bytes(self, tenant: str, name: str) -> int:
        """As it was when last looked at; that begins another look."""
        try:
            queue = self.here(tenant, name)
        except QueueNotFound:
            return 0  # it was deleted meanwhile
        known = self._looks.get(queue.place_there)
        if known is None or known[0] < self._loop.time() - 1:
            self._look_up(name, queue.place_there, LookAt([queue.place_there]), queue.homes)
        return known[1].held if known is not None and known[1] is not None else 0

    async def create_queue(self, tenant: str, name: str, config: QueueConfig) -> tuple[RemoteQueue, bool]:
        _check_dead_letters(name, config)
        definition, created = _created(await self.ask(CreateQueue(tenant, name, config)))
        await self._told(definition)
        await self._seal_ready(definition)
        return await self._pinned_at(tenant, name, is_new=created), created

    async def _told(self, definition: QueueDefinition) -> None:
        """Its shard knows of it, or will: while nobody leads that one, messages wait."""
        homes = self.homes if self.lanes else [self.home(definition.shard)]
        able = [home for home in homes if home.shard != FIRST and home.line.is_open]
        await asyncio.gather(*(_adopted(home, definition) for home in able))

    async def update_queue(self, tenant: str, name: str, config: QueueConfig, version: int) -> RemoteQueue | None:
        _check_dead_letters(name, config)
        changed = _updated(await self.ask(UpdateQueue(tenant, name, config, version)))
        if changed is None:
            return None
        await self._told(changed)
        await self._seal_ready(changed)
        return await self._pinned_at(tenant, name)

    async def _pinned_at(self, tenant: str, name: str, *, is_new: bool = False) -> RemoteQueue:
        """A queue that was just changed, with its numbers: who answers must not begin anew for want of them."""
        queue = self.here(tenant, name)
        found = [Look(queue.place_there, QueueStats(), {}, None, 0)] if is_new else []
        if all(home.line.is_open for home in queue.homes) and not is_new:
            with suppress(PushqError):
                found = await _looks_at(LookAt([queue.place_there]), queue.homes)
        self._pinned = {look.place: (self._loop.time(), look) for look in found}
        return queue

    async def _seal_ready(self, definition: QueueDefinition) -> None:
        if self._sealer is not None and definition.config.encrypted:
            await self._sealer.ready([definition])

    async def delete_queue(self, tenant: str, name: str) -> RemoteQueue:
        queue = self.here(tenant, name)
        await self.ask(DeleteQueue(tenant, name))
        for home in queue.homes:
            if home.shard != FIRST and (home.line.is_open or not self.lanes):
                with suppress(PushqError):  # else it goes when the shard is back
                    await home.ask(DropQueues([queue.uid]), may_repeat=True)
        return queue

    async def move_queue(self, tenant: str, name: str, target: str) -> RemoteQueue:
        queue = self.here(tenant, name)
        if self.lanes:
            raise Conflict(
                f"queue {name!r} lies at independent hosts, and this version does not move messages from there; "
                "consume them, or discard them"
            )
        if queue.config.encrypted:
            raise Conflict(
                f"queue {name!r} is encrypted, and this version's backends cannot move what they cannot read; "
                "consume its messages, or discard them"
            )
        if self.here(tenant, target).home is not queue.home:
            raise Conflict(
                f"queue {target!r} lies in another shard than {name!r}, and this version moves messages only within "
                "one; consume them, or discard them"
            )
        if queue.uid not in queue.home.moved:  # else somebody began, and did not come to the end
            await queue.home.ask(MoveQueue(tenant, name, target))
        if queue.home.shard != FIRST:
            await self.ask(DeleteQueue(tenant, name))
        return queue

    def target_of(self, tenant: str, name: str) -> RemoteQueue:
        """Where a publish to `name` goes, if need be by way of a deleted queue's shard, which knows where its messages
        went. Raises `QueueNotFound`.
        """
        try:
            queue = self.queue(tenant, name)
            self._expect_key(queue)
            return queue
        except QueueNotFound:
            now_ms = wall_clock_ms()
            moved = [
                one.definition
                for one in self.metadata.moved.values()
                if (one.definition.tenant, one.definition.name) == (tenant, name) and one.until_ms > now_ms
            ]
            if not moved:
                raise
            return RemoteQueue(self, max(moved, key=lambda definition: definition.uid), owner=name)

    def take_kept(self) -> tuple[list[KeptSession], dict[str, Lease]]:
        return [], {}

    def seal_of(self, queue: RemoteQueue) -> Seal | None:
        if self._sealer is None:
            return None
        definition = self.metadata.queues.get((queue.tenant, queue.owner), queue.definition)
        return self._sealer.of(definition)

    # ----------------------------------------------------------------------------------------------------- questions

    async def ask(self, operation: Any, *, may_repeat: bool = False) -> msgspec.Raw:
        """Of the first shard. Raises `PushqError`."""
        return await self.homes[FIRST].ask(operation, may_repeat=may_repeat)

    def look(self, queue: RemoteQueue) -> Look | None:
        """Numbers that are fresh. Raises `LookingUp`."""
        place, since = queue.place_there, self._fresh_since()
        for known in (self._looks.get(place), self._pinned.get(place)):
            if known is not None and known[0] >= since:
                return known[1]
        raise self._look_up(f"queue {queue.name!r}", place, LookAt([place]), queue.homes)

    def forget_looks(self, place: Place | None = None) -> None:
        """Something was changed from here, of that place: numbers from before do not count."""
        if self._pinned and place is not None:
            self._pinned.pop(place, None)
        self.known.forget()
        if self._looks:
            self._looks.clear()
            self._tenant_looks.clear()

    def _look_up(self, what: str, key: Any, operation: LookAt, homes: Sequence[Home]) -> PushqError:
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = Flight(self.background(self._looked(key, operation, homes)))
        return self._looking_up(what, flight)

    def _fresh_since(self) -> float:
        """From when on numbers count. Where other gateways change them, too, from when the request came."""
        asked_at = ASKED_AT.get() if self._unheard is not None else None
        return max(self._loop.time() - LOOK_FRESH_MS / 1000, asked_at or 0.0)

    async def _looked(self, key: Any, operation: LookAt, homes: Sequence[Home]) -> None:
        asked_at = self._loop.time()
        try:
            found = await _looks_at(operation, homes)
        finally:
            del self._flights[key]
        now = self._loop.time() if self._unheard is None else asked_at
        self._looks.update(dict.fromkeys(operation.places, (now, None)))
        self._looks.update({look.place: (now, look) for look in found})
        if operation.tenant is not None:
            self._tenant_looks[operation.tenant] = now

    # ------------------------------------------------------------------------------------- what the first shard says

    def greeted(self, frame: Greeted) -> None:
        self.metadata.data_keys.ids = range(*frame.key_ids)
        if frame.lanes and self._doors is None:
            self.lanes = frame.lanes
            self._doors = Doors(self._addresses, self.id, self._tls)
        for shard in range(len(self.homes), frame.shards):
            self.home(shard)

    def defined(self, news: News, *, is_first: bool) -> None:
        self.metadata.take(news, is_first=is_first)
        self.documents.take(news.documents, news.documents_gone, is_first=is_first)
        for definition in news.queues:
            self._redefined(definition)
        there = {definition.uid for definition in self.metadata.queues.values()}
        for uid in [uid for uid in self._queues if uid not in there]:
            self._deleted(uid)
        if self._learning is not None:
            self._learning.told(news.data_keys, news.data_keys_gone)
        for home in self.homes[1:]:
            home.defined_elsewhere(news.queues)

    def has_new_key(self, ids: Collection[int]) -> bool:
        """Whether something is sealed with a key that this gateway cannot use yet."""
        if self._learning is None or not ids:
            return False
        return self._learning.lacks(ids) or any(key_id not in self.metadata.data_keys.by_id for key_id in ids)

    async def learnt(self, ids: Collection[int]) -> bool:
        """Waits a moment for keys. False: they are there, and this gateway cannot use them now."""
        assert self._learning is not None, "nothing is sealed here"
        if any(key_id not in self.metadata.data_keys.by_id for key_id in ids):
            try:
                await self.ask(GoneQueues([]), may_repeat=True)  # the news of the key comes before the answer
            except PushqError:
                return False
        return await self._learning.learnt(ids)

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

    def _deleted(self, uid: int) -> None:
        queue = self._queues.pop(uid)
        self._keyed.discard(uid)
        queue.end()
        queue.ended_elsewhere()
        for group in queue.groups.values():
            group.deleted = True
            queue.companions.append(group)
        for view in COMPANION_VIEWS.values():
            if (companion := self._companions.pop((uid, view), None)) is not None:
                companion.end()
                queue.companions.append(companion)
        if self._sealer is not None:
            self._sealer.shredded(uid)
        for one in (queue, *queue.companions):
            self._on_deleted(one)


async def _adopted(home: Home, definition: QueueDefinition) -> None:
    with suppress(PushqError):
        await home.adopt([definition])


async def _looks_at(operation: LookAt, homes: Sequence[Home]) -> list[Look]:
    """One of each place. Raises `PushqError`."""
    answers = await asyncio.gather(*(home.ask(operation, may_repeat=True) for home in homes))
    found: dict[Place, list[Look]] = {}
    for answer in answers:
        for look in _looks(answer):
            found.setdefault(look.place, []).append(look)
    return [whole_look(looks) for looks in found.values()]


class RemoteLedger(LedgerBook):
    """Totals are the backend's; nothing is counted here."""

    def __init__(self, store: RemoteBackends):
        super().__init__(store._engine, store._write, lambda: (), wall_clock_ms)
        self._remote = store

    async def totals(
        self, *, first_day: int, last_day: int, tenant: str | None = None, queue: str | None = None
    ) -> list[QueueTotal]:
        wanted = Totals(first_day, last_day, tenant, queue)
        answers = await asyncio.gather(*(home.ask(wanted, may_repeat=True) for home in self._remote.homes))
        return together(total for answer in answers for total in _totals(answer))


def _check_dead_letters(name: str, config: QueueConfig) -> None:
    """Backends have no keys: what is sealed for one queue would open in no other."""
    if config.encrypted and config.dead_letter_queue not in (None, COMPANION):
        detail = (
            f"queue {name!r} is encrypted, and this version's backends cannot seal its dead letters for another queue; "
            f"leave it out for {name}.dead, or set encrypted: false"
        )
        raise InvalidRequest(detail, errors=(FieldError("/dead_letter_queue", detail),))
