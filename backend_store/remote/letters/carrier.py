"""Carries dead letters from the outbox of a queue in a cluster to the queue that it names for them.

Backends have no keys. So a gateway leases encrypted letters, opens them with the key of their queue, encrypts them for
the other one, and sends them back. The backend then moves them in one commit, as it moves unencrypted ones by itself.
A gateway that ends meanwhile loses nothing: its leases end, and another gateway gets the letters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from backend_store.core.leases.leases import Lease
from backend_store.core.limits import TAKE_MESSAGES_MAX
from backend_store.core.log.chunk import Chunk, clear_column
from backend_store.core.partitions.slots import by_slot
from backend_store.model import COMPANION, Block, PushqError, QueueDefinition, QueueFull, QueueNotFound, Unavailable
from backend_store.node.limits import TRANSFER_LEASE_MS, TRANSFER_RETRY_SECONDS
from backend_store.node.transfer.reseal import resealed
from backend_store.node.transfer.transfer import as_new, by_priority, usual_due
from backend_store.remote.limits import LETTERS_CARRIED_MAX
from backend_store.remote.queues.leases import lowest_bits
from backend_store.remote.queues.parted import PartedQueue
from backend_store.service.operations import MoveLetters
from backend_store.wire.store_frames import of_bits, sent_blocks

if TYPE_CHECKING:
    from backend_store.remote.queues.queue import RemoteQueue
    from backend_store.remote.store import RemoteBackends

log = structlog.get_logger("pushq.remote")

_moved: Final = msgspec.msgpack.Decoder(bool).decode


class LetterCarrier:
    """Carries the letters of one outbox at one shard. A holder of leases, like a consumer."""

    gateway = ""

    def __init__(self, store: RemoteBackends, outbox: RemoteQueue):
        self._store = store
        self._outbox = outbox
        self._letters = 0
        """Letters that are being moved."""
        self._waits = False
        """A move failed, and is tried again later."""
        self._said_why = False
        outbox.on_ready(self._pump, self._wanted)
        outbox.wanted_changed()

    def end(self) -> None:
        self._outbox.on_ready(lambda: None, dict)
        self._outbox.wanted_changed()

    def _wanted(self) -> Mapping[int, int]:
        room = 0 if self._waits else LETTERS_CARRIED_MAX - self._letters
        return {TRANSFER_LEASE_MS: room} if room > 0 else {}

    def _pump(self) -> None:
        while not self._waits and self._letters < LETTERS_CARRIED_MAX:
            lease = self._outbox.take(TAKE_MESSAGES_MAX, self, TRANSFER_LEASE_MS)
            if lease is None:
                return
            self._letters += lease.bits.bit_count()
            self._store.background(self._carry(lease))

    async def _carry(self, lease: Lease) -> None:
        letters = lease.bits.bit_count()
        try:
            await self._move(lease)
            self._said_why = False
        except PushqError as error:
            self._try_later(error.detail)
        except Exception:
            # A bug with these letters: they stay leased for a while, so that others may move, and are then tried again.
            log.exception("dead letters could not be moved", queue=self._outbox.owner)
            self._go_on(lease, letters)
            return
        self._go_on(lease, letters, returns=True)

    def _go_on(self, lease: Lease, letters: int, *, returns: bool = False) -> None:
        """Forgets a lease; `returns`: what is left of it is ready again at once."""
        self._letters -= letters
        lease.chunk = None
        if returns and lease.bits:
            self._outbox.unsent(lease)
        self._pump()

    async def _move(self, lease: Lease) -> None:
        """Moves what a lease holds, or as much as the other queue has room for. Raises `PushqError`."""
        outbox, chunk = self._outbox, lease.chunk
        assert chunk is not None, "a lease is moved with its chunk in memory"
        target = self._target()
        if target is None:
            outbox.undeliverable(lease)  # they stay with their queue
            return
        if unreadable := chunk.unreadable & lease.bits:
            outbox.give_up(lease, unreadable, chunk.why_unreadable)
        count = lease.bits.bit_count()
        while lease.bits:
            bits = lowest_bits(lease.bits, min(count, lease.bits.bit_count()))
            asked = MoveLetters(
                outbox.place_there,
                {lease.token: of_bits(bits)},
                target.place_there,
                sent_blocks(list(blocks_for(target, chunk, bits))),
            )
            try:
                has_moved = _moved(await outbox.ask(asked, is_change=True))
            except QueueFull:
                if count == 1:
                    raise
                count //= 2
                continue
            if not has_moved:
                return  # the lease has run out
            outbox.lease_ended(lease.token, bits, is_lost=False)

    def _target(self) -> RemoteQueue | None:
        """The queue that the letters are for; None if there is none any more. Raises `PushqError`."""
        outbox = self._outbox
        known = self._store.metadata.queues.get((outbox.tenant, outbox.owner))
        name = known.config.dead_letter_queue if known is not None else None
        if name is None or name == COMPANION:
            return None
        try:
            target = self._store.here(outbox.tenant, name).at(outbox.home)
        except QueueNotFound:
            return None
        if target is None or not target.takes_at(outbox.home):
            raise Unavailable(f"queue {name!r} is not where the dead letters of {outbox.owner!r} are")
        return target

    def _try_later(self, why: str) -> None:
        if not self._said_why:
            log.warning("dead letters wait for their queue", queue=self._outbox.owner, reason=why)
            self._said_why = True
        if not self._waits:
            self._waits = True
            self._store.later(TRANSFER_RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._waits = False
        if not self._outbox.deleted:
            self._outbox.wanted_changed()
            self._pump()

    # A holder of leases, as the queue sees it

    def released(self, count: int) -> None:
        """There is no credit to return."""

    def lost(self, receipts: list[str], *, ran_out: bool = True) -> None:
        """Lost letters are leased again later."""

    def sendable(self) -> None:
        """Sends nothing."""


def blocks_for(target: RemoteQueue, chunk: Chunk, bits: int) -> Iterator[Block]:
    """Letters of a chunk as the blocks that another queue stores, encrypted as that queue's are. Raises `Unavailable`
    while it has no key."""
    due_ms = usual_due(target)
    keys = clear_column(chunk, "key")
    for priority, ranked in by_priority(chunk, bits, target, {}, None):
        annexes = as_new({}, ranked, target, due_ms, is_new=True)
        parts = [(0, ranked)] if target.slot_table is None else by_slot(keys, ranked, target.routing)
        for slots, own in parts:
            for block in resealed(
                chunk,
                own,
                annexes,
                partition=chunk.partition,
                seal=target.seal,
                is_encrypted=target.config.encrypted,
            ):
                yield msgspec.structs.replace(block, priority=priority, due_ms=due_ms, slots=slots or block.slots)


class LetterCarriers:
    """The carriers of one gateway: one for each outbox of a queue in use here, or whose dead-letter queue is in use."""

    def __init__(self, store: RemoteBackends):
        self._store = store
        self._carriers: dict[int, dict[RemoteQueue, LetterCarrier]] = {}
        self._naming: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        """Dead-letter queue → the uids of queues that name it."""
        self._named: dict[int, tuple[str, str]] = {}

    def told(self, changed: Iterable[QueueDefinition], gone: Iterable[QueueDefinition]) -> None:
        """Definitions have changed. Queues that are gone end their outboxes by themselves."""
        for definition in gone:
            self._note(definition.uid, None)
            self._carriers.pop(definition.uid, None)
        for definition in changed:
            letters = definition.config.dead_letter_queue
            is_named = letters is not None and letters != COMPANION
            self._note(definition.uid, (definition.tenant, letters) if is_named and letters else None)
        for definition in changed:
            if self._store.has_in_use(definition.uid):
                self.used(definition)

    def _note(self, uid: int, named: tuple[str, str] | None) -> None:
        before = self._named.pop(uid, None)
        if before is not None:
            self._naming[before].discard(uid)
            if not self._naming[before]:
                del self._naming[before]
        if named is not None:
            self._named[uid] = named
            self._naming[named].add(uid)

    def used(self, definition: QueueDefinition) -> None:
        """A queue is in use at this gateway: its letters are carried, and those of queues that name it."""
        for uid in (definition.uid, *self._naming.get((definition.tenant, definition.name), ())):
            if uid in self._named or uid in self._carriers:
                self._store.soon(partial(self._ensure, uid))

    def _ensure(self, uid: int) -> None:
        definition = self._store.metadata.of_uid(uid)
        known = self._carriers.get(uid, {})
        wanted = self._outboxes(definition) if definition is not None and self._is_carried(definition) else []
        for outbox in [one for one in known if one not in wanted]:
            known.pop(outbox).end()
        for outbox in wanted:
            if outbox not in known:
                known[outbox] = LetterCarrier(self._store, outbox)
        if known:
            self._carriers[uid] = known
        else:
            self._carriers.pop(uid, None)

    def _outboxes(self, definition: QueueDefinition) -> list[RemoteQueue]:
        try:
            outbox = self._store.outbox(definition)
            return outbox.leaves if isinstance(outbox, PartedQueue) else [outbox]
        except PushqError:
            return []  # its cluster cannot be used now; the next use of the queue tries again

    def _is_carried(self, definition: QueueDefinition) -> bool:
        """Whether backends leave the letters to gateways: they, or the queue that they are for, are encrypted."""
        named = self._named.get(definition.uid)
        target = self._store.metadata.queues.get(named) if named is not None else None
        return named is not None and (definition.config.encrypted or (target is not None and target.config.encrypted))
