"""The vault holds every queue's data keys, unwrapped, in the memory of this process and nowhere else.

It is filled at start, before any queue is opened, so sealing and opening a block never waits. Only a new key needs the
master key. While the master key is unavailable, queues continue with the keys they have; a queue without a key refuses
publishes with `Unavailable`.
"""

from __future__ import annotations

import asyncio
import heapq
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import msgspec
import structlog

from backend_store.client import DataKey, Metadata
from backend_store.model import PushqError, QueueDefinition
from gateway.encryption.cipher import DATA_KEY_BYTES, BlockCipher, Counts, QueueSeal
from gateway.encryption.master_keys import Context, MasterError, Masters
from gateway.limits import (
    DATA_KEY_BLOCKS_MAX,
    DATA_KEY_BLOCKS_RESERVED,
    DATA_KEY_CHECK_SECONDS,
    DATA_KEY_RETRY_SECONDS,
    DATA_KEYS_PER_REQUEST_MAX,
)

log = structlog.get_logger("pushq.encryption")

T = TypeVar("T")
DAY_MS: Final = 24 * 3600 * 1000
_SPARE: Final = 64


class OtherSecrets(Protocol):
    """Secrets other than data keys that are sealed with the master key."""

    def masters(self) -> set[str]:
        """The ids of the master keys that these secrets are sealed with now."""

    async def renew(self) -> None:
        """Reseals what is not sealed with the active master key. Raises `Unavailable` and `MasterError`."""


class Vault:
    """All data keys of a process. Implements `sealed_block.Sealer`. Its task `run` makes the keys that
    publishes ask for."""

    def __init__(self, rows: Metadata, masters: Masters, *, data_key_days: int, clock_ms: Callable[[], int]):
        self.rows = rows
        self.masters = masters
        self.counts = Counts()
        self.master_failures = 0
        self.keys = 0
        """Number of data keys in memory."""
        self.others: list[OtherSecrets] = []
        self._is_away = False
        self._clock_ms = clock_ms
        self._age_ms_max = data_key_days * DAY_MS
        self._seals: dict[int, QueueSeal] = {}
        self._wanted: dict[int, QueueSeal] = {}
        self._ages: list[tuple[int, int]] = []
        """Heap of (creation time, uid of the queue) of keys; entries of queues that are gone are skipped."""
        self._looked_at_ms = 0
        self._worn: set[int] = set()
        """Uids of queues whose newest key is too old. A queue that is no longer encrypted stays here and gets no new
        one."""
        self._wake = asyncio.Event()
        self._making = asyncio.Lock()

    async def open(self) -> None:
        """Unwraps the stored keys of all queues. Raises `MasterError`, and `Unavailable` while the master key does not
        answer."""
        keys = sorted(self.rows.data_keys.by_id.values(), key=lambda key: key.id)
        definitions = {one.uid: one for one in self.rows.queues.values()}
        definitions.update({uid: moved.definition for uid, moved in self.rows.moved.items()})
        for some in _portions(keys):
            for key, secret in zip(some, await self.masters.unwrap(some), strict=True):
                if key.uid in definitions:
                    self._add(self.of(definitions[key.uid]), _cipher(key, secret))

    async def learn(self, keys: Sequence[DataKey]) -> None:
        """Unwraps keys that another gateway made, as many as open. Raises `MasterError` or `Unavailable` if some did
        not open: they may later.
        """
        definitions = {key.uid: one for key in keys if (one := self.rows.of_uid(key.uid)) is not None}
        failed: Exception | None = None
        for some in _portions([key for key in keys if key.uid in definitions]):
            failed = await self._learnt(some, definitions) or failed
        if failed is not None:
            self.master_failures += 1
            raise failed

    async def _learnt(self, keys: Sequence[DataKey], definitions: Mapping[int, QueueDefinition]) -> Exception | None:
        """Unwraps the keys together, or one by one if that fails. Returns why one did not open; None if all did."""
        new = [key for key in keys if key.id not in self.of(definitions[key.uid]).ciphers]
        try:
            secrets = await self.masters.unwrap(new) if new else []
        except (PushqError, MasterError) as error:
            if len(new) == 1:
                return error
            return next(filter(None, [await self._learnt([key], definitions) for key in new]), None)
        for key, secret in zip(new, secrets, strict=True):
            seal = self.of(definitions[key.uid])
            if key.id not in seal.ciphers:  # this gateway may have made it and then heard of it as news
                self._add(seal, _cipher(key, secret))
        return None

    # ------------------------------------------------------------------------------------------- of the store

    def of(self, definition: QueueDefinition) -> QueueSeal:
        found = self._seals.get(definition.uid)
        if found is None:
            found = self._seals[definition.uid] = QueueSeal(definition, self.counts, self._want, self._newest)
        return found

    def _add(self, seal: QueueSeal, cipher: BlockCipher) -> None:
        is_kept = self._seals.get(seal.definition.uid) is seal  # it may have been shredded while its key was made
        self.keys += is_kept and cipher.key_id not in seal.ciphers
        seal.add(cipher)
        self._note_age(cipher.created_at_ms, seal.definition.uid)
        if cipher.created_at_ms > self._clock_ms() + DAY_MS:
            self._worn.add(seal.definition.uid)

    def _note_age(self, created_at_ms: int, uid: int) -> None:
        heapq.heappush(self._ages, (created_at_ms, uid))
        if len(self._ages) > 2 * self.keys + _SPARE:  # most are of queues that are gone
            newest = ((uid, seal.current) for uid, seal in self._seals.items())
            self._ages = [(cipher.created_at_ms, uid) for uid, cipher in newest if cipher is not None]
            heapq.heapify(self._ages)

    def _newest(self, definition: QueueDefinition) -> QueueDefinition:
        known = self.rows.queues.get((definition.tenant, definition.name))
        return known if known is not None and known.uid == definition.uid else definition

    def shredded(self, uid: int) -> None:
        self._wanted.pop(uid, None)
        if (seal := self._seals.pop(uid, None)) is not None:
            self.keys -= len(seal.ciphers)
            seal.forget()

    async def ready(self, definitions: Sequence[QueueDefinition]) -> None:
        """Makes the first key of queues that have none; later, if the master key does not answer."""
        missing = [seal for one in definitions if (seal := self.of(one)).current is None]
        try:
            await self.new_keys(missing, unless_since_ms=0)
        except (PushqError, MasterError) as error:
            self._failed(error)
            for seal in missing:
                self._want(seal)

    # ---------------------------------------------------------------------------------------------- new keys

    def _want(self, seal: QueueSeal) -> None:
        self._wanted[seal.definition.uid] = seal
        self._wake.set()

    async def run(self) -> None:
        """Makes the keys that are wanted, and replaces old ones. Runs until cancelled."""
        while True:
            try:
                async with asyncio.timeout(DATA_KEY_RETRY_SECONDS if self._wanted else DATA_KEY_CHECK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self._make_wanted()
            except (PushqError, MasterError) as error:
                self._failed(error)
                await asyncio.sleep(DATA_KEY_RETRY_SECONDS)
            except Exception:
                log.exception("data key creation failed")  # a bug must not end this task
                await asyncio.sleep(DATA_KEY_RETRY_SECONDS)

    def _failed(self, error: Exception) -> None:
        self.master_failures += 1
        if not self._is_away:
            self._is_away = True
            log.error("data keys cannot be created", reason=str(error))

    async def _make_wanted(self) -> None:
        now_ms = self._clock_ms()
        self._want_worn(now_ms)
        wanted = list(self._wanted.values())
        worn: list[QueueSeal] = []
        good: list[QueueSeal] = []
        for seal in wanted:
            is_worn = not _is_fresh(seal, 0) or self._is_old(seal.current, now_ms)
            (worn if is_worn else good).append(seal)
        await self.new_keys(worn)
        async with self._making:
            await self._reserve(good)
        for seal in wanted:
            self._wanted.pop(seal.definition.uid, None)

    def _is_old(self, cipher: BlockCipher | None, now_ms: int) -> bool:
        """Whether a key is past its age. A creation time in the future comes from a wrong clock and counts as old: the
        key would otherwise be used until then, and a full age longer."""
        return cipher is not None and not -DAY_MS <= now_ms - cipher.created_at_ms < self._age_ms_max

    def _want_worn(self, now_ms: int) -> None:
        """Wants a new key for each encrypted queue whose newest key is too old."""
        while self._ages and now_ms - self._ages[0][0] >= self._age_ms_max:
            self._worn.add(heapq.heappop(self._ages)[1])
        if now_ms < self._looked_at_ms - DAY_MS:  # the clock was ahead, and keys may have been made meanwhile
            self._worn.update(self._seals)
        self._looked_at_ms = now_ms
        for uid in list(self._worn):
            definition, seal = self.rows.of_uid(uid), self._seals.get(uid)
            if seal is None or not self._is_old(seal.current, now_ms):
                self._worn.discard(uid)
            elif definition is not None and definition.config.encrypted:
                self._wanted[uid] = seal

    async def new_keys(self, seals: Iterable[QueueSeal], *, unless_since_ms: int | None = None) -> int:
        """Gives each queue a new key, which seals from then on. Returns how many keys were made.

        `unless_since_ms`: skips a queue whose newest key was made then or later and may seal more. Raises `Unavailable`
        and `MasterError`.
        """
        made = 0
        async with self._making:
            for some in _portions(list(seals)):
                worn = [seal for seal in some if unless_since_ms is None or not _is_fresh(seal, unless_since_ms)]
                made += await self._make(worn)
        if made and self._is_away:
            self._is_away = False
            log.info("data keys can be created again")
        return made

    async def _make(self, seals: Sequence[QueueSeal]) -> int:
        if not seals:
            return 0
        secrets = [os.urandom(DATA_KEY_BYTES) for _ in seals]
        contexts = [
            Context(seal.definition.tenant, seal.definition.uid, self.rows.data_keys.new_id()) for seal in seals
        ]
        wrapped = await self.masters.wrap(list(zip(contexts, secrets, strict=True)))
        now_ms = self._clock_ms()
        keys = [
            DataKey(context.key_id, context.tenant, context.uid, one.master, one.data, now_ms, DATA_KEY_BLOCKS_RESERVED)
            for context, one in zip(contexts, wrapped, strict=True)
        ]
        stored = await self.rows.add_data_keys([(s.definition.name, key) for s, key in zip(seals, keys, strict=True)])
        for seal, key, secret in zip(seals, keys, secrets, strict=True):
            if key.id in stored:  # else the queue was deleted meanwhile, or another gateway took the id
                self._add(seal, _cipher(key, secret, blocks=0))
        return len(stored)

    async def _reserve(self, seals: Iterable[QueueSeal]) -> None:
        """Stores a larger reserve for keys that used theirs up, so that a crash never lowers the count of blocks a key
        has sealed."""
        changed: list[tuple[BlockCipher, DataKey]] = []
        for seal in seals:
            cipher = seal.current
            row = self.rows.data_keys.by_id.get(cipher.key_id) if cipher is not None else None
            if cipher is not None and row is not None and cipher.blocks >= cipher.reserved:
                blocks = cipher.blocks + DATA_KEY_BLOCKS_RESERVED
                changed.append((cipher, msgspec.structs.replace(row, blocks=blocks)))
        await self.rows.change_data_keys([row for _, row in changed])
        for cipher, row in changed:
            cipher.reserved = row.blocks

    # ------------------------------------------------------------------------------------------------ rotation

    def unwrapped_by_others(self) -> list[DataKey]:
        """Data keys that are not wrapped by the active master key."""
        return [key for key in self.rows.data_keys.by_id.values() if key.master != self.masters.active]

    async def masters_needed(self) -> set[str]:
        """The ids of all master keys that a data key or another secret is sealed with."""
        async with self._making:  # waits until keys that are wrapped and not stored yet are stored
            return self._masters_needed()

    def _masters_needed(self) -> set[str]:
        return {key.master for key in self.rows.data_keys.by_id.values()}.union(*(one.masters() for one in self.others))

    @property
    def rests_on_others(self) -> bool:
        """Whether something is sealed with a master key other than the active one."""
        return bool(self._masters_needed() - {self.masters.active})

    async def rewrap(self, keys: Sequence[DataKey]) -> int:
        """Wraps keys with the active master key. Returns how many. Raises `Unavailable`."""
        async with self._making:  # so that no other code writes these rows meanwhile
            held = [(key, secret) for key in keys if (secret := self._secret(key)) is not None]
            wrapped = await self.masters.wrap([(Context(key.tenant, key.uid, key.id), secret) for key, secret in held])
            rows = [
                msgspec.structs.replace(key, master=one.master, wrapped=one.data)
                for (key, _), one in zip(held, wrapped, strict=True)
            ]
            await self.rows.change_data_keys(rows)
            return len(rows)

    def _secret(self, key: DataKey) -> bytes | None:
        seal = self._seals.get(key.uid)
        cipher = seal.ciphers.get(key.id) if seal is not None else None
        return cipher.secret if cipher is not None else None


def _portions(items: Sequence[T]) -> Iterable[Sequence[T]]:
    for start in range(0, len(items), DATA_KEYS_PER_REQUEST_MAX):
        yield items[start : start + DATA_KEYS_PER_REQUEST_MAX]


def _cipher(key: DataKey, secret: bytes, blocks: int | None = None) -> BlockCipher:
    cipher = BlockCipher(
        secret,
        tenant=key.tenant,
        uid=key.uid,
        key_id=key.id,
        created_at_ms=key.created_at_ms,
        reserved=key.blocks,
    )
    if blocks is not None:
        cipher.blocks = blocks
    return cipher


def _is_fresh(seal: QueueSeal, since_ms: int) -> bool:
    """Whether the newest key was made at `since_ms` or later, and may seal more blocks."""
    cipher = seal.current
    return cipher is not None and cipher.created_at_ms >= since_ms and cipher.blocks < DATA_KEY_BLOCKS_MAX
