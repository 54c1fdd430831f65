"""Encrypts the blocks of a queue when they are published, and decrypts them when they are delivered or shown.

A block's second half becomes nonce | AES-256-GCM ciphertext | tag. Associated data, so that a change is detected: the
tenant, the queue, the key, the number of messages, their kinds, and what identifies them in the clear part (id, key,
producer, number, timestamp). Later state of a message (expiry, its end) is not included, because the store writes it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from backend_store.client import BLOCK_HEAD, CLEAR_NAMES, SEALED_FLAGS, CannotOpen, SealedBlock, identity, unpack
from backend_store.model import Block, QueueDefinition, Unavailable

log = structlog.get_logger("pushq.encryption")

NONCE_BYTES: Final = 12
"""Nonces are random. A key seals far fewer blocks than would make a repeat likely: see `DATA_KEY_BLOCKS_MAX`."""
SEAL_BYTES: Final = NONCE_BYTES + 16
DATA_KEY_BYTES: Final = 32
NONCES_DRAWN: Final = 256
KEY_AWAY_RETRY_MS: Final = 1_000

_BOUND = struct.Struct(">HB")  # messages, flags
_OWNER = struct.Struct(">H")
_KEY = struct.Struct(">QI")  # uid, key id
_FORMAT: Final = b"pushq block 1\0"
_NOTE: Final = b"pushq note 1\0"
"""Prefix of a note's associated data, so that a note never passes as a block's second half."""
_NOTE_KEY = struct.Struct(">I")
_may_be_clear: Final = frozenset(CLEAR_NAMES).issuperset
_NAMES_ALONE: Final = b"\x81\xa2id"
"""First bytes of a clear part that has ids and nothing else: such a part is its own `identity`."""


class Nonces:
    """Random nonces, drawn from the system many at a time: one system call costs a third of a seal."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: list[bytes] = []
        # A child of this process must not give out the same ones.
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self._left = []

    def __call__(self) -> bytes:
        """A nonce that was never returned before, to any thread."""
        try:
            return self._left.pop()
        except IndexError:
            drawn = os.urandom(NONCE_BYTES * NONCES_DRAWN)
            left = [drawn[at : at + NONCE_BYTES] for at in range(0, len(drawn), NONCE_BYTES)]
            nonce = left.pop()
            self._left = left
            return nonce


_fresh: Final = Nonces()


class Counts:
    """Blocks that a process sealed and opened. `failed` counts every attempt at a block that does not open."""

    __slots__ = ("failed", "opened", "sealed")

    def __init__(self) -> None:
        self.sealed = self.opened = self.failed = 0


class BlockCipher:
    """Seals and opens with one data key."""

    __slots__ = ("_aes", "_bound", "blocks", "created_at_ms", "key_id", "reserved", "secret")

    def __init__(self, secret: bytes, *, tenant: str, uid: int, key_id: int, created_at_ms: int, reserved: int):
        self.secret = secret
        self.key_id = key_id
        self.created_at_ms = created_at_ms
        self.blocks = reserved
        """Upper bound of the blocks it has sealed: after a start, as many as were reserved."""
        self.reserved = reserved
        self._aes = AESGCM(secret)
        owner = tenant.encode()
        self._bound = _FORMAT + _OWNER.pack(len(owner)) + owner + _KEY.pack(uid, key_id)

    def seal(self, block: Block) -> Block:
        data = block.data
        flags, _, count, clear_size, sealed_size = BLOCK_HEAD.unpack_from(data)
        at = BLOCK_HEAD.size + clear_size
        bound = self._bound + _BOUND.pack(count, flags & SEALED_FLAGS)
        clear = data[BLOCK_HEAD.size : at]
        if clear:
            bound += clear if clear.startswith(_NAMES_ALONE) else identity(unpack(clear), count)
        nonce = _fresh()
        head = BLOCK_HEAD.pack(flags, self.key_id, count, clear_size, sealed_size + SEAL_BYTES)
        sealed = b"".join((head, clear, nonce, self._aes.encrypt(nonce, memoryview(data)[at:], bound)))
        return Block(sealed, block.count, block.priority, block.due_ms, block.traits, block.slots)

    def seal_note(self, note: bytes) -> bytes:
        nonce = _fresh()
        return _NOTE_KEY.pack(self.key_id) + nonce + self._aes.encrypt(nonce, note, _NOTE + self._bound)

    def open_note(self, sealed: bytes) -> bytes:
        """Opens a note; `sealed` is what follows the key id. Raises `InvalidTag`."""
        return self._aes.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], _NOTE + self._bound)

    def open(self, block: SealedBlock) -> bytes:
        """The plain second half of a block. Raises `InvalidTag`."""
        bound = self._bound + _BOUND.pack(block.messages, block.flags & SEALED_FLAGS)
        if block.clear:
            bound += identity(block.clear, block.messages)
        if len(block.sealed) < SEAL_BYTES:
            raise InvalidTag
        return self._aes.decrypt(block.sealed[:NONCE_BYTES], block.sealed[NONCE_BYTES:], bound)


class QueueSeal:
    """The data keys of one queue: the newest seals, all of them open. Implements `sealed_block.Seal`;
    the `Vault` owns it."""

    __slots__ = ("_counts", "_failed", "_wanted", "ciphers", "current", "definition", "_newest_of")

    def __init__(
        self,
        definition: QueueDefinition,
        counts: Counts,
        wanted: Callable[[QueueSeal], None],
        newest: Callable[[QueueDefinition], QueueDefinition] = lambda definition: definition,
    ):
        """`wanted` is called when a new key or a larger reserve is needed: there is no key, or it has sealed as many
        blocks as were reserved. `newest` returns the current definition of the queue.
        """
        self.definition = definition
        self._newest_of = newest
        self.ciphers: dict[int, BlockCipher] = {}
        self.current: BlockCipher | None = None
        self._counts = counts
        self._wanted = wanted
        self._failed = False

    def add(self, cipher: BlockCipher) -> None:
        """Adds a key. Ids rise, so the highest is the newest."""
        self.ciphers[cipher.key_id] = cipher
        self.current = self.ciphers[max(self.ciphers)]

    def forget(self) -> None:
        """Drops all keys: the queue is shredded, and none of its blocks opens any more."""
        self.ciphers.clear()
        self.current = None
        self._failed = True  # blocks that are still in flight do not open, and that is not worth a log line

    def seal(self, blocks: Sequence[Block]) -> list[Block]:
        cipher = self._newest()
        cipher.blocks += len(blocks)
        if cipher.blocks >= cipher.reserved:
            self._wanted(self)
        self._counts.sealed += len(blocks)
        seal = cipher.seal
        return [seal(block) for block in blocks]

    def seal_note(self, note: bytes) -> bytes:
        cipher = self._newest()
        cipher.blocks += 1
        if cipher.blocks >= cipher.reserved:
            self._wanted(self)
        return cipher.seal_note(note)

    def open_note(self, sealed: bytes) -> bytes:
        if len(sealed) < _NOTE_KEY.size + SEAL_BYTES:
            raise CannotOpen("the ciphertext is too short")
        (key_id,) = _NOTE_KEY.unpack_from(sealed)
        cipher = self.ciphers.get(key_id)
        if cipher is None:
            raise CannotOpen(f"key {key_id} does not belong to this queue")
        try:
            return cipher.open_note(sealed[_NOTE_KEY.size :])
        except InvalidTag:
            raise CannotOpen(f"data encrypted with key {key_id} has been altered") from None

    def secret(self) -> bytes:
        """The secret of the oldest key, which stays the same when keys are added. Raises `Unavailable`."""
        self._newest()
        return self.ciphers[min(self.ciphers)].secret

    def _newest(self) -> BlockCipher:
        if self.current is None:
            self._wanted(self)
            detail = (
                f"queue {self.definition.name!r}: its data key is not available yet because the master key could "
                "not be reached"
            )
            raise Unavailable(detail, retry_after_ms=KEY_AWAY_RETRY_MS)
        return self.current

    @property
    def is_always(self) -> bool:
        return self._newest_of(self.definition).is_always_sealed

    def refuse_plain(self) -> NoReturn:
        raise self._cannot("the message is stored unencrypted, but this queue only ever had encrypted messages")

    def open(self, block: SealedBlock) -> bytes:
        cipher = self.ciphers.get(block.key_id)
        if cipher is None:
            raise self._cannot(f"key {block.key_id} does not belong to this queue")
        if not _may_be_clear(block.clear):
            raise self._cannot("the unencrypted part contains fields that must be encrypted")
        try:
            plain = cipher.open(block)
        except InvalidTag:
            why = f"data encrypted with key {block.key_id} has been altered, or belongs to other messages"
            raise self._cannot(why) from None
        self._counts.opened += 1
        return plain

    def _cannot(self, why: str) -> CannotOpen:
        self._counts.failed += 1
        if not self._failed:
            self._failed = True
            queue = self.definition
            log.error("messages cannot be decrypted", tenant=queue.tenant, queue=queue.name, reason=why)
        return CannotOpen(why)
