"""`/v1/cluster/recovery`: shows, republishes or drops the messages that backends keep in quarantine.

A chunk of messages is published under a claim made from its place, which is the same on every backend and in every run,
so the partition recognizes a repeat within the queue's `dedupe_window_ms`. The backend stores when the publishing of a
chunk began; a chunk begun longer ago and not released is in doubt, and is published again only on request. A chunk is
released when the queue has confirmed it.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any, Final

import msgspec
import structlog

from backend_store.client import KIND_BYTES, HybridClock, NumberedNames, indexes, message_id, timestamp
from backend_store.core.log.chunk import Chunk, CorruptEntry, clear_column, decode_chunk
from backend_store.core.log.sublogs import priority_of
from backend_store.model import (
    Claim,
    ClusterAway,
    Conflict,
    InvalidRequest,
    NotFound,
    Offset,
    Original,
    OutcomeUnknown,
    Published,
    PushqError,
    QueueNotFound,
    Unavailable,
)
from backend_store.remote.definitions.operators import ask_backend
from backend_store.remote.queues.queue import RemoteQueue
from backend_store.remote.store import RemoteBackends
from backend_store.service.recovering import Begin, Forget, Kept, Place, Some, Survey
from backend_store.shard.recovery import Piece
from backend_store.words import counted
from gateway.api.shapes.recovery import (
    RecoveryDropped,
    RecoveryMessage,
    RecoveryPiece,
    RecoveryPieces,
    RecoveryPublish,
    RecoveryPublished,
    RecoveryShown,
)
from gateway.clusters.watch import ClusterWatch
from gateway.limits import RECOVERY_BATCH_BYTES, RECOVERY_BEGUN_MAX, RECOVERY_SECONDS_MAX, RECOVERY_SHOWN_MAX
from gateway.publishing import encode
from gateway.publishing.idempotency_keys import Named
from push.protocol import PublishMessage

log = structlog.get_logger("pushq.cluster")

_pieces = msgspec.msgpack.Decoder(list[Piece]).decode
_some = msgspec.msgpack.Decoder(list[tuple[Place, Kept]]).decode
_WINDOW_PART: Final = 0.5
"""Part of the queue's `dedupe_window_ms` for which a repeat of a chunk is surely recognized."""

PieceKey = tuple[int, int, int]
"""(shard, epoch, uid)."""


@dataclass(slots=True)
class Outcome:
    published: int = 0
    already_there: int = 0
    expired: int = 0
    in_doubt: int = 0
    problems: list[str] = field(default_factory=list)
    left: dict[Place, int] = field(default_factory=dict)
    """Chunk → messages that stay in quarantine; several backends may keep the same chunk."""


def is_in_doubt(kept: Kept, *, window_ms: int, wall_ms: int) -> bool:
    """Whether the queue may have stored these messages and not recognize a repeat any more."""
    # A begin in the future means that a clock was set since, so its true age is unknown.
    is_old = kept.begun_ms > 0 and abs(wall_ms - kept.begun_ms) > window_ms * _WINDOW_PART
    return kept.is_in_doubt or is_old


def _cluster_of(node: str) -> str:
    """The cluster in a backend's name; "" for the home cluster."""
    return node.rpartition("/")[0]


class Recovery:
    """The recovery operations of one gateway."""

    def __init__(self, watch: ClusterWatch, store: RemoteBackends, tls: ssl.SSLContext | None) -> None:
        self._watch = watch
        self._store = store
        self._tls = tls
        self._clock = HybridClock()

    # ------------------------------------------------------------------------------------------------------ asking

    async def survey(self) -> RecoveryPieces:
        """All pieces in quarantine, and the backends that did not answer. Raises `Unavailable`."""
        found, unreachable = await self._survey()
        return RecoveryPieces([self._view(key, found[key]) for key in sorted(found)], unreachable)

    async def show(self, name: str) -> RecoveryShown:
        """The first messages of a piece, and the number of others. Raises `InvalidRequest`, `NotFound`,
        `Unavailable`."""
        key, kept_by, _ = await self._piece(name)
        shown: dict[tuple[Place, int], RecoveryMessage] = {}
        for node in kept_by:
            after: Place | None = None
            while len(shown) < RECOVERY_SHOWN_MAX and (batch := await self._some(node, key, after)):
                for place, kept in batch:
                    shown.update(_shown(place, kept))
                after = batch[-1][0]
        view = self._view(key, kept_by)
        first = [shown[at] for at in sorted(shown)][:RECOVERY_SHOWN_MAX]
        return RecoveryShown(view, first, max(0, max(view.messages, len(shown)) - len(first)))

    def _addresses(self) -> dict[str, str | None]:
        """Backend → its address, or None if it is away; those of further clusters as `CLUSTER/HOST:PORT`. Raises
        `Unavailable`."""
        # Queues of another home cluster may have the same uids as ours: only backends known to be ours are asked.
        named = {
            f"{cluster.name}/{address}": address if cluster.first.is_ours else None
            for cluster in self._store.clusters.values()
            if not cluster.is_home
            for address in cluster.named
        }
        return {**self._watch.backends(), **named}

    async def _survey(self) -> tuple[dict[PieceKey, dict[str, Piece]], list[str]]:
        """(piece → backend → what it keeps of the piece, backends that could not be asked)."""
        addresses = self._addresses()
        here = [name for name, address in addresses.items() if address is not None]
        answers = await asyncio.gather(*(self._ask(name, Survey()) for name in here), return_exceptions=True)
        unreachable = [name for name, address in addresses.items() if address is None]
        found: dict[PieceKey, dict[str, Piece]] = {}
        for name, answer in zip(here, answers, strict=True):
            if isinstance(answer, Unavailable):
                unreachable.append(name)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                for piece in _pieces(answer):
                    found.setdefault((piece.shard, piece.epoch, piece.uid), {})[name] = piece
        return found, sorted(unreachable)

    async def _ask(self, node: str, operation: Any) -> msgspec.Raw:
        address = self._addresses().get(node)
        if address is None:
            raise Unavailable(f"backend {node} is unreachable", retry_after_ms=1000)
        return await ask_backend(address, self._tls, "operator", operation)

    async def _some(self, node: str, key: PieceKey, after: Place | None) -> Sequence[tuple[Place, Kept]]:
        return _some(await self._ask(node, Some(*key, after, RECOVERY_BATCH_BYTES)))

    async def _piece(self, name: str) -> tuple[PieceKey, dict[str, Piece], list[str]]:
        parts = name.split("-")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
            raise InvalidRequest(
                f"invalid piece name {name[:100]!r}; use one from `pushq recover list`, such as 0-7-12"
            )
        shard, epoch, uid = map(int, parts)
        found, unreachable = await self._survey()
        if (shard, epoch, uid) not in found:
            away = f"; {', '.join(unreachable)} could not be reached" if unreachable else ""
            raise NotFound(f"no backend has a piece {name}{away}")
        return (shard, epoch, uid), found[shard, epoch, uid], unreachable

    def _view(self, key: PieceKey, kept_by: dict[str, Piece]) -> RecoveryPiece:
        most = max(kept_by.values(), key=lambda piece: piece.messages)
        return RecoveryPiece(
            "-".join(map(str, key)),
            str(key[0]),
            key[1],
            most.tenant,
            most.queue,
            self._exists(most.tenant, most.queue, most.uid),
            most.messages,
            most.bytes,
            max(piece.in_doubt for piece in kept_by.values()),
            timestamp(min(piece.first_ms for piece in kept_by.values())),
            timestamp(max(piece.last_ms for piece in kept_by.values())),
            timestamp(max(piece.aside_ms for piece in kept_by.values())),
            sorted(kept_by),
        )

    def _exists(self, tenant: str, name: str, uid: int) -> bool:
        try:
            return self._queue(tenant, name, uid) is not None
        except ClusterAway:  # only its definition is known now
            return True

    def _queue(self, tenant: str, name: str, uid: int) -> RemoteQueue | None:
        """Raises `ClusterAway`."""
        try:
            queue = self._store.here(tenant, name)
        except QueueNotFound:
            return None
        return queue if queue.uid == uid and not queue.deleted else None

    # ---------------------------------------------------------------------------------------------------- publishing

    async def publish(self, name: str, wanted: RecoveryPublish) -> RecoveryPublished:
        """Publishes a piece again, as much as can be done in `RECOVERY_SECONDS_MAX`. Raises `InvalidRequest`,
        `NotFound`, `Conflict`, `Unavailable`."""
        key, kept_by, unreachable = await self._piece(name)
        view = self._view(key, kept_by)
        queue = self._queue(view.tenant, view.queue, key[2])
        unreachable = [one for one in unreachable if _cluster_of(one) in map(_cluster_of, kept_by)]
        if queue is None:
            raise Conflict(
                f"queue {view.queue!r} of tenant {view.tenant!r} was deleted, so piece {name} cannot be published "
                "again; inspect it with `pushq recover show`, then drop it"
            )
        if unreachable and not wanted.partial:
            raise Unavailable(
                f"{', '.join(unreachable)} could not be reached and may hold copies of the same messages, which "
                "would be published twice later; start it, or request a partial run and drop what it brings back",
                retry_after_ms=5000,
            )
        outcome, until = Outcome(), time.monotonic() + RECOVERY_SECONDS_MAX
        for node in sorted(kept_by):
            await self._publish_from(node, key, queue, sorted(kept_by), wanted, outcome, until)
        left = sum(outcome.left.values())
        if not wanted.dry_run:
            log.warning("quarantined messages republished", piece=name, published=outcome.published, left=left)
        return RecoveryPublished(
            outcome.published,
            outcome.already_there,
            outcome.expired,
            outcome.in_doubt,
            left,
            list(dict.fromkeys(outcome.problems))[:10],
            wanted.dry_run,
        )

    async def _publish_from(
        self,
        node: str,
        key: PieceKey,
        queue: RemoteQueue,
        nodes: Sequence[str],
        wanted: RecoveryPublish,
        outcome: Outcome,
        until: float,
    ) -> None:
        after: Place | None = None
        while batch := await self._some(node, key, after):
            after = batch[-1][0]
            due: list[tuple[Place, Kept]] = []
            for place, kept in batch:
                if place in outcome.left:
                    continue
                outcome.left[place] = kept.number_of_messages
                window_ms, wall_ms = queue.config.dedupe_window_ms, time.time_ns() // 1_000_000
                if is_in_doubt(kept, window_ms=window_ms, wall_ms=wall_ms) and not wanted.in_doubt:
                    outcome.in_doubt += kept.number_of_messages
                else:
                    due.append((place, kept))
            if wanted.dry_run:
                self._rehearse(due, queue, outcome)
            for at in range(0, 0 if wanted.dry_run else len(due), RECOVERY_BEGUN_MAX):
                some = due[at : at + RECOVERY_BEGUN_MAX]
                if time.monotonic() >= until or not await self._publish_some(key, some, queue, nodes, outcome):
                    return

    async def _publish_some(
        self,
        key: PieceKey,
        due: Sequence[tuple[Place, Kept]],
        queue: RemoteQueue,
        nodes: Sequence[str],
        outcome: Outcome,
    ) -> bool:
        """Publishes some chunks and releases those that were confirmed. False: the queue is away, stop."""
        await self._everywhere(nodes, Begin(key[0], [place for place, _ in due]))
        done: list[Place] = []
        refused: list[Place] = []
        is_there = True
        for place, kept in due:
            try:
                await self._publish_chunk(key, place, kept, queue, outcome)
                done.append(place)
                del outcome.left[place]
            except (OutcomeUnknown, Unavailable) as error:
                # It may be stored even if the queue is reported as away: a leader may have died meanwhile.
                outcome.problems.append(error.detail)
                is_there = False
                break
            except (PushqError, CorruptEntry) as error:
                outcome.problems.append(error.detail if isinstance(error, PushqError) else f"damaged: {error}")
                if not kept.begun_ms:
                    refused.append(place)  # nothing was stored by this run or an earlier one
        if refused:
            await self._everywhere(nodes, Begin(key[0], refused, is_begun=False))
        await self._everywhere(nodes, Forget(key[0], done))
        return is_there

    async def _everywhere(self, nodes: Sequence[str], operation: Begin | Forget) -> None:
        await asyncio.gather(*(self._ask(node, operation) for node in nodes))

    def _rehearse(self, due: Sequence[tuple[Place, Kept]], queue: RemoteQueue, outcome: Outcome) -> None:
        for _, kept in due:
            try:
                expired = _expired(_chunk_of(kept), _bits(kept), queue.steady_ms())
            except CorruptEntry as error:
                outcome.problems.append(f"damaged: {error}")
                continue
            outcome.expired += expired.bit_count()
            outcome.published += kept.number_of_messages - expired.bit_count()

    async def _publish_chunk(
        self, key: PieceKey, place: Place, kept: Kept, queue: RemoteQueue, outcome: Outcome
    ) -> None:
        """Publishes what has not expired of a chunk. Raises `PushqError`, `CorruptEntry`: then all of it stays."""
        chunk, bits, now_ms = _chunk_of(kept), _bits(kept), queue.steady_ms()
        await queue.learnt([kept.data])
        chunk.seal = self._store.seal_of(queue)
        if bits & chunk.unreadable:
            unreadable = (bits & chunk.unreadable).bit_count()
            raise Conflict(f"{counted(unreadable, 'message')} cannot be published: {chunk.why_unreadable}")
        expired = _expired(chunk, bits, now_ms)
        messages = [as_given(chunk, kept, number, now_ms) for number in indexes(bits & ~expired)]
        if messages:
            until_ms = self._store.own_ms() + int(RECOVERY_SECONDS_MAX * 1000)
            result = await _stored(queue, self._prepared(key, place, queue, messages, now_ms), until_ms)
            others = result.others or {}
            refused = [one for one in others.values() if isinstance(one, PushqError)]
            if refused:
                raise OutcomeUnknown(f"some messages of a batch were refused: {refused[0].detail}")
            known = len(messages) if result.is_repeat else sum(isinstance(one, Original) for one in others.values())
            outcome.already_there += known
            outcome.published += len(messages) - known
        outcome.expired += expired.bit_count()

    def _prepared(
        self, key: PieceKey, place: Place, queue: RemoteQueue, messages: list[PublishMessage], now_ms: int
    ) -> tuple[list[Any], Claim]:
        whole = msgspec.json.encode(("recovered", key[0], *place, key[2]))
        claim = Claim(_hash(whole, b"pushq-key"), _hash(whole, b"pushq-payload"))
        names = NumberedNames(f"{_hash(whole, b'pushq-id').hex()[:24]}-", len(messages))
        prepared = encode.prepare(
            queue.config,
            messages,
            "json",
            now_ms=now_ms,
            clock=self._clock,
            encode=queue.blocks,
            content_key=lambda: queue.content_key,
            name=lambda kind, bodies, lengths, fields: Named(claim, names),
        )
        return queue.sealed(prepared.blocks), claim

    # ------------------------------------------------------------------------------------------------------ dropping

    async def drop(self, name: str, messages: int) -> RecoveryDropped:
        """Drops a piece. Raises `InvalidRequest`, `NotFound`, `Unavailable`, and `Conflict` if it does not have
        `messages` messages."""
        key, kept_by, unreachable = await self._piece(name)
        view = self._view(key, kept_by)
        if messages != view.messages:
            raise Conflict(f"piece {name} has {counted(view.messages, 'message')}, not {messages}; inspect it again")
        for node in sorted(kept_by):
            after: Place | None = None
            while batch := await self._some(node, key, after):
                after = batch[-1][0]
                await self._ask(node, Forget(key[0], [place for place, _ in batch]))
        log.warning("quarantined messages dropped", piece=name, queue=view.queue, messages=messages)
        return RecoveryDropped(messages, unreachable)


async def _stored(queue: RemoteQueue, prepared: tuple[list[Any], Claim], until_ms: int) -> Published:
    answer: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()

    def reply(result: Published | PushqError) -> None:
        if not answer.done():
            answer.set_result(result)

    blocks, claim = prepared
    queue.publish(blocks, reply, claim, until_ms=until_ms)
    result = await answer
    if isinstance(result, PushqError):
        raise result
    return result


def _hash(data: bytes, person: bytes) -> bytes:
    return blake2b(data, digest_size=16, person=person).digest()


def _bits(kept: Kept) -> int:
    return int.from_bytes(kept.bits, "little")


def _chunk_of(kept: Kept) -> Chunk:
    """Raises `CorruptEntry`."""
    chunk = decode_chunk(kept.data, seed=kept.replica, offset=Offset(kept.base))
    chunk.partition = kept.partition
    return chunk


def _expired(chunk: Chunk, bits: int, now_ms: int) -> int:
    expires = clear_column(chunk, "exp")
    return 0 if expires is None else sum(1 << n for n in indexes(bits) if expires[n] and expires[n] <= now_ms)


def _shown(place: Place, kept: Kept) -> dict[tuple[Place, int], RecoveryMessage]:
    try:
        chunk = _chunk_of(kept)
        ids, keys, expires = (clear_column(chunk, name) for name in ("id", "key", "exp"))
    except CorruptEntry:
        broken = RecoveryMessage("(damaged)", None, timestamp(kept.confirmed_ms), None, kept.is_in_doubt)
        return {(place, 0): broken}
    return {
        (place, n): RecoveryMessage(
            (ids[n] if ids is not None else None) or message_id(kept.partition, chunk.base + n),
            keys[n] if keys is not None else None,
            timestamp(kept.confirmed_ms),
            timestamp(expires[n]) if expires is not None and expires[n] else None,
            kept.is_in_doubt,
        )
        for n in indexes(_bits(kept))
    }


def as_given(chunk: Chunk, kept: Kept, number: int, now_ms: int) -> PublishMessage:
    """The message as its producer sent it. One identified by its place gets a new id, because the place is taken."""
    kind, bodies, columns = chunk.messages
    table = columns or {}

    def given(name: str) -> Any:
        return table[name][number] if name in table else None

    own_kind = given("kind") if "kind" in table else kind
    body = bodies[number]
    is_bytes = own_kind == KIND_BYTES
    due_ms = next((due_ms for due_ms, bits in kept.dues if bits >> number & 1), 0)
    delay_ms = max(0, due_ms - now_ms) or None
    expires_ms = given("exp") or 0
    return PublishMessage(
        body=msgspec.Raw() if is_bytes else msgspec.Raw(body),
        body_base64=b64encode(body).decode() if is_bytes else None,
        content_type=given("content_type"),
        id=given("id"),
        key=given("key"),
        headers=given("headers"),
        reply_to=given("reply_to"),
        correlation_id=given("correlation_id"),
        priority=priority_of(kept.shelf),
        delay_ms=delay_ms,
        ttl_ms=max(1, expires_ms - now_ms - (delay_ms or 0)) if expires_ms else None,
        producer=given("pr"),
        producer_seq=given("ps"),
        timestamp=_time(given("ts")),
    )


def _time(time_us: int | None) -> str | None:
    if not time_us:
        return None
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)).isoformat().replace("+00:00", "Z")
