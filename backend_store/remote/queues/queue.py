"""A queue in a backend process, as the gateway uses it; has the shape of `client.queue.EmbeddedQueue`.

Delivery: the gateway grants the backend credit for what its consumers would take, and the backend sends leases as
messages become ready. Numbers of the queue are fetched on demand; until they arrive, `LookingUp` (given by the maker of
the store) makes a request handler start again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import structlog

from backend_store.client.filters import PeekFilter
from backend_store.client.groups import GroupInfo
from backend_store.client.layout import PartitionInfo
from backend_store.client.queue import STALE, PublishReply, Purge, SettledAndPublished, VerdictsReply, remember
from backend_store.core.leases.leases import Holder, Lease
from backend_store.core.leases.nack_reasons import sealed_reason
from backend_store.core.leases.receipts import INDEX_OF, by_token
from backend_store.core.log.chunk import Blocks, Chunk, Columns, column_blocks
from backend_store.core.log.sealed_block import Seal
from backend_store.core.partitions.routing import routed_blocks
from backend_store.core.partitions.slots import Routing, SlotTable, routing_of
from backend_store.model import (
    CHUNK_MESSAGES_MAX,
    Block,
    Claim,
    OutcomeUnknown,
    PeekPage,
    PushqError,
    QueueConfig,
    QueueDefinition,
    QueueNotFound,
    QueueStats,
    Replication,
    Unavailable,
    Verdict,
)
from backend_store.node.limits import PEEK_LEASES_MAX
from backend_store.node.views.group import Mode
from backend_store.remote.limits import (
    ACK_WAIT_MS,
    LOOK_WAIT_SECONDS_MAX,
    SEALS_AFTER_SECONDS,
    SETTLE_MS_MAX,
    TAKE_OVER_MS_MAX,
)
from backend_store.remote.line.line import Call
from backend_store.remote.line.recalls import Recalls
from backend_store.remote.queues.grants import Grants
from backend_store.remote.queues.leases import Stock, far_lease, keys_of, receipts_of
from backend_store.remote.queues.peeks import peek_at
from backend_store.remote.queues.ranges import Ranges
from backend_store.remote.redrives.redrives import Redriving, RemoteRedrives
from backend_store.service.operations import Cancel, SettleAndPublish
from backend_store.service.operations import Purge as PurgeQueue
from backend_store.wire.store_frames import (
    Grouped,
    Place,
    Placed,
    Publish,
    Settle,
    Want,
    of_bits,
    published,
    sent_blocks,
    to_bits,
)

if TYPE_CHECKING:
    from backend_store.remote.home import Home
    from backend_store.remote.redrives.whole_redrives import WholeRedrives
    from backend_store.remote.store import RemoteBackends

log = structlog.get_logger("pushq.remote")

T = TypeVar("T")
_total = msgspec.msgpack.Decoder(int).decode
_outcome = msgspec.msgpack.Decoder(str).decode
_placed = msgspec.msgpack.Decoder(Placed).decode
_joint = msgspec.msgpack.Decoder(tuple[list[bool], list[Placed]]).decode
_OK = Verdict(True)
_STALE = Verdict(False, STALE)


class Look(msgspec.Struct):
    """A recent snapshot of a queue's numbers."""

    place: Place
    stats: QueueStats
    ended: dict[str, int]
    layout: list[PartitionInfo] | None
    held: int


class _Step(NamedTuple):
    """An ack that publishes, in flight. `grouped`: the messages it settles, token → bits. `behind`: later calls about
    the same leases, sent once it is decided, because they could overtake it on the line."""

    grouped: dict[str, int]
    behind: list[Callable[[], None]]


class RemoteQueue(Redriving, Ranges):
    """A queue at one shard. `RemoteBackends` owns it: one object per queue, for as long as the queue exists."""

    def __init__(
        self,
        store: RemoteBackends,
        definition: QueueDefinition,
        *,
        owner: str,
        is_companion: bool = False,
        home: Home | None = None,
    ):
        """`home`: the shard of a lane, if it differs from the queue's own."""
        self._store = store
        self.definition = definition
        self._seals_until = 0.0
        self.owner = owner
        self.is_companion = is_companion
        self.place_there = Place(definition.tenant, definition.name, definition.uid)
        self.stock = Stock()
        self._consumers = 0
        self.deleted = False
        self.companions: list[RemoteQueue] = []
        self.purges: dict[str, Purge] = {}
        self.redrives: Any = self._no_redrives()
        self.extras: dict[str, Any] = {}
        self.groups: dict[str, RemoteQueue] = {}
        self._wake: Callable[[], None] = _nothing
        self._wanted: Callable[[], Mapping[int, int]] = dict
        self._grants = Grants()
        self._asked: set[int] = set()
        """Visibility timeouts of wants that the backend has not answered."""
        self._looked: asyncio.Event = asyncio.Event()
        self._is_granting = False
        self.home: Home = home or store.cluster_of(definition).home(definition.shard)
        self._recalls = Recalls(self)
        self._steps: list[_Step] = []
        self.whole: RemoteQueue = self
        """The queue that this one is a part of; itself if it is not a part."""

    def _no_redrives(self) -> RemoteRedrives | WholeRedrives:
        """The initial redrives of a queue."""
        return RemoteRedrives(self)

    # --------------------------------------------------------------------------------------------------- what it is

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def place(self) -> str:
        return self.name

    @property
    def root(self) -> RemoteQueue:
        return self

    @property
    def group(self) -> str | None:
        return None

    @property
    def mode(self) -> Mode | None:
        return None

    @property
    def one_at_a_time(self) -> bool:
        return False

    @property
    def tenant(self) -> str:
        return self.definition.tenant

    @property
    def uid(self) -> int:
        return self.definition.uid

    @property
    def config(self) -> QueueConfig:
        return self.definition.config

    @property
    def consumers(self) -> int:
        """The number of consumers at this gateway."""
        return self._consumers

    @consumers.setter
    def consumers(self, count: int) -> None:
        self._consumers = count
        self._store.touch(self.uid)

    @property
    def gone(self) -> PushqError:
        return QueueNotFound(f"queue {self.name!r} was deleted")

    def take_gaps(self) -> list[Any]:
        return []

    def put_back_gaps(self, gaps: Sequence[Any]) -> None:
        """Does nothing: only groups have gaps."""

    def on_gap(self, tell: Callable[[], None]) -> None:
        """Does nothing: only groups have gaps."""

    def list_groups(self) -> list[GroupInfo]:
        return []

    def find_group(self, name: str) -> GroupInfo | None:
        return None

    # -------------------------------------------------------------------------------------------------- its backend

    @property
    def homes(self) -> Sequence[Home]:
        """The shards that hold its messages."""
        return [self.home]

    def at(self, home: Home) -> RemoteQueue | None:
        """The part of the queue at a shard; None if it has none there."""
        return self if home is self.home else None

    def takes_at(self, home: Home) -> bool:
        """Whether published messages may be stored at a shard."""
        return home is self.home

    def redefined(self, definition: QueueDefinition) -> None:
        if self.config.encrypted and not definition.config.encrypted:
            self._seals_until = asyncio.get_running_loop().time() + SEALS_AFTER_SECONDS
        for one in (self, *self.groups.values()):
            one.definition = definition

    def end(self) -> None:
        self.deleted = True

    def piece_gone(self, piece: RemoteQueue) -> None:
        """Called when one of the parts of this queue was deleted."""

    async def ask(self, operation: Any, *, may_repeat: bool = False, is_change: bool = False) -> msgspec.Raw:
        """Returns the answer of the queue's shard; see `Line.ask`. Raises `PushqError`."""
        if not self.home.adopted.has(self.definition):
            await self.home.adopted.tell([self.definition])
        return await self.home.ask(operation, may_repeat=may_repeat, is_change=is_change)

    def beside(self, name: str) -> RemoteQueue:
        """Another queue of the tenant. Raises `QueueNotFound`."""
        return self._store.here(self.tenant, name)

    def known(self, what: str, key: str, ask: Callable[[], Coroutine[Any, Any, T]], *, is_used_up: bool = False) -> T:
        """Returns a fresh answer to `ask`, known by `key`. `is_used_up`: the answer serves one caller only. Raises
        `LookingUp` until it arrives."""
        return self._store.known.of((self.place_there, key), what, ask, is_used_up=is_used_up)

    def background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._store.background(work)

    def soon(self, call: Callable[[], None]) -> None:
        """Runs `call` in the next turn of the event loop."""
        self._store.soon(call)

    def want(self, want: Want) -> None:
        self.home.line.want(want)

    def ended_elsewhere(self) -> None:
        """Called when the queue was deleted."""

    async def learnt(self, chunks: list[bytes]) -> None:
        """Returns once the data keys that these chunks are sealed with can be used. Raises `Unavailable`."""
        ids = keys_of(chunks)
        if self._store.has_new_key(ids) and not await self._store.learnt(ids):
            detail = f"queue {self.name!r}: a data key that another gateway made cannot be used here yet"
            raise Unavailable(detail, retry_after_ms=1000)

    def forget_looks(self) -> None:
        self._store.forget_looks(self.place_there)

    def wake(self) -> None:
        """Wakes consumers: there may be something to deliver."""
        self._wake()

    # ------------------------------------------------------------------------------------------------------ publish

    @property
    def seal(self) -> Seal | None:
        """Encrypts and decrypts its messages; None where this gateway has no master key."""
        return self._store.seal_of(self)

    @property
    def is_split(self) -> bool:
        return self.uid in self.home.maps

    @property
    def slot_table(self) -> SlotTable | None:
        """The slot table by which the backend splits calls; None if it does not, or if this gateway splits them as it
        sends them."""
        known = self.home.maps.get(self.uid)
        return known.table if known is not None else None

    @property
    def encoding_table(self) -> SlotTable | None:
        """The slot table by which calls are encoded so that no block is cut later; None if it does not matter."""
        return self.slot_table

    @property
    def routing(self) -> Routing:
        return routing_of(self.config)

    def blocks(self, columns: Columns, trace: str | None) -> Blocks:
        table = self.encoding_table
        return column_blocks(columns, trace) if table is None else routed_blocks(columns, trace, self.routing, table)

    def sealed(self, blocks: list[Block]) -> list[Block]:
        """Seals blocks of an encrypted queue. Raises `Unavailable`."""
        seal = self.seal
        if seal is None or not (self.config.encrypted or self._still_seals):
            return blocks
        return seal.seal(blocks)

    @property
    def _still_seals(self) -> bool:
        """Whether `encrypted` was switched off only just now: gateways that have not heard of it yet would take
        unsealed messages for a forgery.
        """
        return self._seals_until > 0 and asyncio.get_running_loop().time() < self._seals_until

    @property
    def content_key(self) -> bytes:
        """The key for content hashes of an encrypted queue; empty for other queues. Raises `Unavailable`."""
        seal = self.seal
        return seal.secret() if seal is not None and self.config.encrypted else b""

    def steady_ms(self) -> int:
        """The clock of the shard that messages go to; of several places, the first."""
        return self.home.steady_ms()

    def publish(
        self, blocks: list[Block], reply: PublishReply, claim: Claim | None = None, *, until_ms: int = 0
    ) -> None:
        """Stores messages; `reply` gets their place or an error. If the backend is lost before it answers, the call is
        sent again if the backend can recognise it: it has an idempotency key, or all messages have ids. `until_ms` is a
        time of the store's `own_ms`."""
        if not self.home.adopted.has(self.definition):
            self._publish_later(blocks, reply, claim, until_ms)
            return
        line = self.home.line
        now_ms = self._store.own_ms()
        budget_ms = until_ms - now_ms if until_ms else SETTLE_MS_MAX
        sent = sent_blocks(blocks)
        frame = Publish(line.next_number(), budget_ms, self.tenant, self.name, self.uid, sent, claim, self.told)

        def done(result: Any) -> None:
            self._store.forget_looks(self.place_there)
            reply(published(result) if isinstance(result, Placed) else result)

        may_repeat = claim is not None or all(map(is_known_again, blocks))
        size = sum(len(block.data) for block in blocks)
        line.call(Call(frame, done, line.now_ms() + budget_ms, may_repeat, size, self._known_ms))

    @property
    def told(self) -> int:
        """The version of the definition known here if some of the queue's ids are in other places, else 0."""
        return self.definition.version if self.definition.since else 0

    @property
    def _known_ms(self) -> int:
        """How long after its first send a repeated publish is surely recognised: half the dedupe window, to allow for
        the time on the way."""
        return self.config.dedupe_window_ms // 2

    def _publish_later(self, blocks: list[Block], reply: PublishReply, claim: Claim | None, until_ms: int) -> None:
        """Publishes once the shard has taken the queue over."""

        def go_on(error: PushqError | None) -> None:
            if error is None and self.deleted:
                error = self.gone
            is_over = until_ms and self._store.own_ms() >= until_ms
            if error is None and (is_over or not self.home.adopted.has(self.definition)):
                error = Unavailable(f"queue {self.name!r} is not known to its shard yet", retry_after_ms=500)
            if error is not None:
                reply(error)
            else:
                self.publish(blocks, reply, claim, until_ms=until_ms)

        self.home.adopted.when_there(self.definition, go_on, until_ms=until_ms)

    def recall(self, blocks: list[Block], claim: Claim | None, reply: PublishReply) -> None:
        """Asks what the queue's shard remembers of a call's messages; nothing is stored. `reply` runs later. See
        `recalls`."""
        self._recalls.add(blocks, claim, reply)

    def why_full(self, messages: int = 1, size: int = 1) -> PushqError | None:
        return None

    def is_colocated_with(self, other: RemoteQueue) -> bool:
        if self.tenant != other.tenant or other.is_companion:
            return False
        return other.name in (self.name, self.config.colocate_with) or other.config.colocate_with == self.name

    def settle_and_publish(
        self,
        receipts: list[str],
        publishes: Sequence[tuple[RemoteQueue, list[Block]]],
        reply: Callable[[SettledAndPublished | PushqError], None],
    ) -> None:
        asked = [(queue.place_there, sent_blocks(blocks)) for queue, blocks in publishes]
        step = _Step(by_token(receipts), [])
        self._steps.append(step)

        def decided(result: SettledAndPublished | PushqError) -> None:
            self._steps.remove(step)
            reply(result)
            for go_on in step.behind:
                go_on()

        async def ask() -> None:
            try:
                verdicts, places = _joint(await self.home.ask(SettleAndPublish(self.place_there, receipts, asked)))
            except PushqError as error:
                decided(error)
                return
            except Exception:  # the caller must not wait for ever
                log.exception("invalid response from a backend", queue=self.name)
                decided(OutcomeUnknown("the backend's response was invalid; it may have completed the request"))
                return
            self._settled(by_token([r for r, ok in zip(receipts, verdicts, strict=True) if ok]))
            decided(SettledAndPublished([_OK if ok else _STALE for ok in verdicts], [published(one) for one in places]))
            self._wake()

        self._store.background(ask())

    # ------------------------------------------------------------------------------------------------------- settle

    def settle(self, receipts: list[str], reply: VerdictsReply) -> None:
        self._ask("ack", by_token(receipts), lambda done: reply(_verdicts(receipts, done)))

    def settle_quietly(self, receipts: list[str]) -> None:
        self._ask("ack", by_token(receipts), _unheard, ACK_WAIT_MS)

    def settle_lease(self, lease: Lease) -> None:
        if lease.receipts and lease.bits:
            self._ask("ack", {lease.token: lease.bits}, _unheard, ACK_WAIT_MS)

    def give_back(
        self,
        receipts: list[str],
        delay_ms: int | None,
        reply: VerdictsReply,
        reason: str | None = None,
        *,
        tried: bool = True,
    ) -> None:
        grouped = by_token(receipts)
        if self._comes_behind(grouped, partial(self.give_back, receipts, delay_ms, reply, reason, tried=tried)):
            return
        if reason is not None and self.config.encrypted:
            reason = sealed_reason(reason, self.seal)
        self._ask("nack", grouped, lambda done: reply(_verdicts(receipts, done)), delay_ms, reason, tried=tried)

    def extend(self, receipts: list[str], visibility_ms: int, reply: VerdictsReply) -> None:
        self._ask("extend", by_token(receipts), lambda done: reply(_verdicts(receipts, done)), visibility_ms)

    async def take_over(self, wanted: Mapping[str, int], holder: Holder) -> list[Lease]:
        """Takes leases (token → messages as bits) from the other gateways that have them, and gives them to `holder`.
        Returns those that there still were. Raises `PushqError`."""
        answer: asyncio.Future[list[Lease]] = asyncio.get_running_loop().create_future()

        def told(found: Grouped | PushqError) -> None:
            if isinstance(found, PushqError):
                if not answer.done():
                    answer.set_exception(found)
                return
            leases = [far_lease(token, to_bits(bits), holder) for token, bits in found.items()]
            for lease in leases:
                self.stock.hold(lease)  # now: the next frame may end it
            if not answer.done():
                answer.set_result(leases)
                return
            for lease in leases:
                self.give_back_lease(lease)

        line = self.home.line
        sent = {token: of_bits(bits) for token, bits in wanted.items()}
        frame = Settle(line.next_number(), self.place_there, "take", sent)
        line.call(Call(frame, told, line.now_ms() + TAKE_OVER_MS_MAX, may_repeat=True))
        return await answer

    def _ask(
        self,
        verb: str,
        grouped: dict[str, int],
        reply: Callable[[dict[str, int] | PushqError], None],
        milliseconds: int | None = None,
        reason: str | None = None,
        *,
        tried: bool = True,
    ) -> None:
        line = self.home.line
        sent = {token: of_bits(bits) for token, bits in grouped.items()}

        def done(result: Grouped | PushqError) -> None:
            self._store.forget_looks(self.place_there)
            if isinstance(result, PushqError):
                reply(result)
                return
            bits = {token: to_bits(found) for token, found in result.items()}
            is_released = verb != "extend" and self._settled(bits)
            reply(bits)
            if is_released:
                self._wake()

        frame = Settle(line.next_number(), self.place_there, verb, sent, milliseconds, reason, tried)
        line.call(Call(frame, done, line.now_ms() + SETTLE_MS_MAX, may_repeat=True))

    def _settled(self, done: Mapping[str, int]) -> bool:
        """Ends leases of messages (token → bits). Returns whether consumers here held some of them."""
        ended = [self.stock.ended(token, bits) for token, bits in done.items()]
        return any(ended)

    def _comes_behind(self, tokens: Collection[str], go_on: Callable[[], None]) -> bool:
        """Whether an ack that publishes is in flight for some of these leases; if so, `go_on` is called when it is
        decided."""
        for step in reversed(self._steps):
            if not step.grouped.keys().isdisjoint(tokens):
                step.behind.append(go_on)
                return True
        return False

    def give_back_lease(self, lease: Lease) -> None:
        if self._comes_behind((lease.token,), partial(self.give_back_lease, lease)):
            return
        self._let_go("unsent", lease, lease.bits & lease.untried)
        self._let_go("return", lease, lease.bits)

    def unsent(self, lease: Lease) -> None:
        self._let_go("unsent", lease, lease.bits)

    def undeliverable(self, lease: Lease) -> None:
        self.give_up(lease, lease.bits, None)

    def end_unreadable(self, lease: Lease) -> None:
        assert lease.chunk is not None, "a lease is looked at with its chunk in memory"
        if not self.is_companion and (bits := lease.chunk.unreadable & lease.bits):
            self.give_up(lease, bits, lease.chunk.why_unreadable)

    def detach(self, lease: Lease) -> None:
        """The messages are sent as the answer to a request: they stay leased if this gateway ends."""
        if lease.receipts and lease.bits:
            self.stock.detach(lease.token, lease.bits)
            self._tell("detach", lease.token, lease.bits, None)

    def give_up(self, lease: Lease, bits: int, why: str | None) -> None:
        """Ends some of a lease's messages as undeliverable. `why`: None where their queue is not to blame."""
        if lease.receipts:
            self._tell("undeliverable", lease.token, bits, why)
            self.stock.ended(lease.token, bits)
        else:
            lease.bits ^= bits
            lease.holder.released(bits.bit_count())

    def _let_go(self, verb: str, lease: Lease, bits: int) -> None:
        """Returns messages whose holder has left and needs no credit back."""
        if not bits or not lease.receipts:
            return
        self._tell(verb, lease.token, bits, None)
        lease.holder = _NOBODY
        self.stock.ended(lease.token, bits)

    def refused(self, token: str, bits: int) -> None:
        """Returns a lease that cannot be used here now: its messages are delivered again, here or elsewhere."""
        self.tell_unsent(token, bits)
        self._grant_soon()

    def came_to_be(self) -> None:
        """The shard serves the queue from now on and knows of no earlier credit: grants it anew."""
        self._grants.begin_anew()
        self.line_opened(())

    def tell_unsent(self, token: str, bits: int) -> None:
        """Returns messages that were leased but not sent to any consumer."""
        self._tell("unsent", token, bits, None)

    def _tell(self, verb: str, token: str, bits: int, why: str | None) -> None:
        self._store.forget_looks(self.place_there)
        self.home.line.tell(Settle(0, self.place_there, verb, {token: of_bits(bits)}, reason=why))

    # ----------------------------------------------------------------------------------------------------- delivery

    def take(self, limit: int, holder: Holder, visibility_ms: int) -> Lease | None:
        """Leases up to `limit` messages that have arrived to `holder`. Returns None if there are none, and grants the
        backend credit."""
        lease = self.stock.take(visibility_ms, limit, holder)
        if lease is None:
            self._grant_soon()
        elif lease.receipts and self.config.ordering == "strict":
            self._give_rest_back(lease.token, visibility_ms)
        return lease

    def _give_rest_back(self, token: str, visibility_ms: int) -> None:
        """Returns the rest of a lease that was cut: in strict order it may have messages of the same keys, which no
        other consumer may receive meanwhile. No other lease has messages of these keys."""
        if rest := self.stock.clear_rest(visibility_ms, token):
            self._tell("unsent", token, rest, None)

    @property
    def has_ready(self) -> bool:
        return self.stock.waiting > 0

    def check_there(self) -> None:
        """Raises `ClusterAway` if no shard of the queue can be reached: an empty answer would say that nothing is
        ready."""
        if all(home.line.is_away for home in self.homes):
            raise self.home.line.unavailable()

    @property
    def is_looking(self) -> bool:
        """Whether the backend has not said yet if messages are ready."""
        return self.home.line.is_open and (self._is_granting or bool(self._asked))

    async def next_look(self) -> None:
        self._looked.clear()
        try:
            await asyncio.wait_for(self._looked.wait(), LOOK_WAIT_SECONDS_MAX)
        except TimeoutError:
            self._asked.clear()

    @property
    def ready(self) -> int:
        return self.stock.waiting

    def on_ready(self, wake: Callable[[], None], wanted: Callable[[], Mapping[int, int]] | None = None) -> None:
        self._wake = wake
        if wanted is not None:
            self._wanted = wanted

    def wanted_changed(self) -> None:
        self._grant_soon()

    def waiting_for(self, visibility_ms: int) -> int:
        """The number of messages that have arrived and are not leased to a consumer yet."""
        return self.stock.waiting_for(visibility_ms)

    def _grant_soon(self) -> None:
        if not self._is_granting:
            self._is_granting = True
            self.soon(self._grant)

    def _grant(self) -> None:
        """Grants the backend credit for what consumers would take beyond what has arrived."""
        self._is_granting = False
        if self.deleted or not self.home.line.is_open:
            return
        now_s = self._store.now_s()
        for visibility_ms, granted, messages in self._grants.renew(self._wanted(), self.stock.waiting_for, now_s):
            self.want(Want(self.place_there, visibility_ms, granted, CHUNK_MESSAGES_MAX))
            if messages:
                self._asked.add(visibility_ms)
            else:
                self._asked.discard(visibility_ms)
        if self.home.ends_wants:
            for visibility_ms in self._grants.forget(now_s):
                self.want(Want(self.place_there, visibility_ms, 0, 0))

    def came(self, visibility_ms: int, count: int) -> None:
        """Counts a lease of `count` messages that was put into the stock."""
        self._grants.came(visibility_ms, count)
        self._asked.discard(visibility_ms)
        self._looked.set()
        self._store.forget_looks(self.place_there)

    def deal(self) -> None:
        """Delivers what came in this frame, and returns to the backend what no consumer wants any more."""
        self._wake()
        for visibility_ms in self.stock.times:
            if self.stock.waiting_for(visibility_ms) and not self._wanted().get(visibility_ms):
                for token, bits in self.stock.clear_waiting(visibility_ms):
                    self._tell("unsent", token, bits, None)
        self._grant_soon()

    def idle(self, visibility_ms: int, granted: int) -> None:
        if self._grants.is_told(visibility_ms, granted):
            self._asked.discard(visibility_ms)
            self._looked.set()

    def lease_ended(self, token: str, bits: int, *, is_lost: bool) -> None:
        """Ends a lease that ended at the backend. `is_lost`: its holder is told that the receipts are lost."""

        def lost(holder: Holder, mine: int) -> None:
            holder.lost(receipts_of(token, mine))

        self.stock.void(token, bits)
        if self.stock.ended(token, bits, lost if is_lost else None):
            self._wake()

    def line_lost(self) -> None:
        """Stops deliveries: messages that no consumer has yet go back to the backend."""
        for token, bits in self.stock.clear_waiting():
            self.tell_unsent(token, bits)  # the next leader may not know that this gateway had it
        self._grants.clear()
        self._asked.clear()
        self._looked.set()

    def line_opened(self, unknown: Sequence[str]) -> None:
        """Resumes deliveries. `unknown`: tokens of leases that the backend does not know. Their messages are delivered
        again; until then the old receipts still ack them."""
        for token in unknown:
            self.stock.ended(token, (1 << CHUNK_MESSAGES_MAX) - 1)
        if detached := self.stock.detached():  # the backend may not have heard it, or be another one
            sent = {token: of_bits(bits) for token, bits in detached.items()}
            self.home.line.tell(Settle(0, self.place_there, "detach", sent))
        self._wake()
        self._grant_soon()
        self.redrives.line_opened(self)

    def opened(self, chunk: Chunk, seed_partition: int) -> Chunk:
        """Prepares a chunk of this queue for consumers here: sets partition, seal and uid."""
        chunk.partition = seed_partition
        chunk.seal = self.seal
        chunk.uid = self.uid
        return chunk

    # ------------------------------------------------------------------------------------------------ administration

    def stats(self) -> QueueStats:
        """Raises `LookingUp`."""
        look = self._store.look(self)
        if look is None:
            return QueueStats(consumers=self.consumers)
        return QueueStats(**{**_fields(look.stats), "consumers": self.consumers})

    @property
    def replication(self) -> Replication:
        """How the queue is replicated; of several places, in the first."""
        return self.home.cluster.copying.of(self.definition)

    @property
    def layout(self) -> list[PartitionInfo] | None:
        look = self._store.look(self)
        return look.layout if look is not None else None

    @property
    def ended(self) -> Mapping[str, int]:
        look = self._store.look(self)
        return look.ended if look is not None else {}

    async def peek(self, wanted: PeekFilter) -> PeekPage:
        return await peek_at(self, wanted)

    def held_by(self, partition: int, offset: int) -> Lease | None:
        """See `client.queue.EmbeddedQueue.held_by`. Leases of other gateways' consumers are unknown here."""
        return self.stock.holding(partition, offset, most=PEEK_LEASES_MAX)

    async def purge(self, purge_id: str) -> Purge:
        total = _total(await self.ask(PurgeQueue(self.place_there, purge_id)))
        self._store.forget_looks(self.place_there)
        purge = Purge(purge_id, total)
        remember(self.purges, purge)
        return purge

    async def cancel(self, message_id: str) -> str:
        outcome = _outcome(await self.ask(Cancel(self.place_there, message_id)))
        self._store.forget_looks(self.place_there)
        return outcome


class _Nobody:
    """Stands for a holder that has left."""

    gateway = ""

    def released(self, count: int) -> None: ...
    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None: ...
    def sendable(self) -> None: ...


_NOBODY = _Nobody()


def _fields(stats: QueueStats) -> dict[str, int]:
    return {name: getattr(stats, name) for name in QueueStats.__dataclass_fields__}


def _verdicts(receipts: list[str], done: dict[str, int] | PushqError) -> list[Verdict] | PushqError:
    if isinstance(done, PushqError):
        return done
    out = []
    for receipt in receipts:
        index = INDEX_OF.get(receipt[-2:])
        ok = index is not None and done.get(receipt[:-2], 0) >> index & 1
        out.append(_OK if ok else _STALE)
    return out


def is_known_again(block: Block) -> bool:
    """Whether the leader would recognise each of the block's messages if it came a second time."""
    ids = block.traits.ids if block.traits is not None else None
    return ids is not None and None not in ids


def _unheard(result: Any) -> None:
    """Ignores an answer."""


def _nothing() -> None:
    """Until `on_ready` sets a listener."""
