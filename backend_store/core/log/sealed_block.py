"""Sealed (encrypted) blocks: the interface to the gateway's encryption, and the parts of a block that stay readable.

A gateway seals a block's second half and gives the store a `Seal` for each queue, which opens blocks where they are
shown and seals them again where they move. The store has no key. A block that cannot be opened stays whole:
`whole_copies` moves it to another shelf as it is.

    sealed half of a block whose key id is not 0 = nonce[12] | ciphertext of attributes, lengths, bodies | tag[16]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Protocol

from backend_store.core.dedupe.message_ids import message_id
from backend_store.core.log.block import ABSENT, BLOCK_HEAD, CLEAR_COLUMNS, FLAG_CLEAR, expanded, pack, unpack
from backend_store.model import Block, QueueDefinition, Traits

if TYPE_CHECKING:
    from backend_store.core.log.chunk import Chunk

IDENTITY_COLUMNS: Final = ("id", "key", "ts", "pr", "ps")
"""Columns that identify a message and never change while its block exists. A seal binds them."""
NAMED: Final = "named"
"""Name in a clear part: bits of the messages whose id is their former place, and was not given by a producer."""
CLEAR_NAMES: Final = CLEAR_COLUMNS | {"gone", NAMED}
"""All names that a sealed block's clear part may have. A column there that should be sealed has been tampered with."""
UNREADABLE_TYPE: Final = "application/vnd.pushq.unreadable"
"""The content type of the placeholder that an operator sees for a message that cannot be opened."""
SEALED_FLAGS: Final = ~FLAG_CLEAR & 0xFF
"""Flags that a seal binds. Not among them: the flag of a clear part, which may be added later."""


class CannotOpen(Exception):
    """A sealed block that cannot be opened: its key is missing, or its bytes were changed."""


class SealedBlock(NamedTuple):
    """A block as it is stored. `clear` is its clear part, unpacked."""

    flags: int
    key_id: int
    messages: int
    clear: Mapping[str, Any]
    sealed: bytes


class Seal(Protocol):
    """Seals and opens the blocks of one queue. The gateway provides it."""

    def seal(self, blocks: Sequence[Block]) -> list[Block]:
        """Returns the blocks sealed with the queue's newest key; sealed ones stay as they are. Raises `Unavailable`."""

    def secret(self) -> bytes:
        """Returns a key for hashes, the same for as long as the queue has keys. Raises `Unavailable`."""

    @property
    def is_always(self) -> bool:
        """Whether every block of the queue has been sealed since its creation."""

    def refuse_plain(self) -> NoReturn:
        """Raises `CannotOpen` for a block that is not sealed in a queue where every block is."""

    def open(self, block: SealedBlock) -> bytes:
        """Returns the second half of a block as it was before it was sealed. Raises `CannotOpen`."""

    def seal_note(self, note: bytes) -> bytes:
        """Returns a few bytes, which are stored beside blocks, sealed. Raises `Unavailable`."""

    def open_note(self, sealed: bytes) -> bytes:
        """Returns the bytes that `seal_note` sealed. Raises `CannotOpen`."""


class Sealer(Protocol):
    """Provides the seal of every queue of a store."""

    def of(self, definition: QueueDefinition) -> Seal: ...
    async def ready(self, definitions: Sequence[QueueDefinition]) -> None:
        """Returns when the queues have keys for a publish, or when that must wait for the master key."""

    def shredded(self, uid: int) -> None:
        """Drops a queue's keys from memory after they were deleted from disk."""


def identity(clear: Mapping[str, Any], count: int) -> bytes:
    """Returns the identity columns of a clear part in canonical form; empty if it has none."""
    found = {name: clear[name] for name in IDENTITY_COLUMNS if name in clear}
    if NAMED in clear:
        bits = int.from_bytes(clear[NAMED], "little")
        ids = found.pop("id")
        given = [None if bits >> n & 1 else (ids[n] if isinstance(ids, list) else ids) for n in range(count)]
        if given.count(None) < count:
            one = given.count(given[0]) == count
            found = {"id": given[0] if one else given, **found}
    return pack(found) if found else b""


def is_sealed(data: bytes) -> bool:
    """Whether a block's second half is sealed."""
    return bool(BLOCK_HEAD.unpack_from(data)[1])


def blocks_in(data: bytes, at: int, blocks: int) -> Iterator[tuple[int, int, int]]:
    """Yields (key id, begin, end) of each of `blocks` consecutive blocks."""
    for _ in range(blocks):
        _, key_id, _, clear_size, sealed_size = BLOCK_HEAD.unpack_from(data, at)
        end = at + BLOCK_HEAD.size + clear_size + sealed_size
        yield key_id, at, end
        at = end


def whole_copies(
    chunk: Chunk, bits: int, annexes: Mapping[int, Mapping[str, Any]], *, blocks_at: int, partition: int
) -> list[Block]:
    """Returns blocks with some of a chunk's messages, each with its whole sealed half, whose other messages are holes.

    What followed from their place in the log is written out, and `annexes` added, as in `extract`.
    """
    out, first = [], 0
    for _, at, end in blocks_in(chunk.data, blocks_at, chunk.blocks):
        flags, key_id, count, clear_size, _ = BLOCK_HEAD.unpack_from(chunk.data, at)
        own = bits >> first & ((1 << count) - 1)
        if own:
            head = at + BLOCK_HEAD.size
            clear: dict[str, Any] = unpack(chunk.data[head : head + clear_size]) if clear_size else {}
            moved = _moved(clear, own, first, count, chunk, annexes, partition)
            packed = pack(moved)
            rest = chunk.data[head + clear_size : end]
            data = b"".join([BLOCK_HEAD.pack(flags | FLAG_CLEAR, key_id, count, len(packed), len(rest)), packed, rest])
            keys, expires = _column(moved, "key", count), _column(moved, "exp", count)
            traits = Traits(None, keys, expires) if keys is not None or expires is not None else None
            out.append(Block(data, count, traits=traits))
        first += count
    return out


def _moved(
    clear: dict[str, Any],
    own: int,
    first: int,
    count: int,
    chunk: Chunk,
    annexes: Mapping[int, Mapping[str, Any]],
    partition: int,
) -> dict[str, Any]:
    """Returns the clear part of a block that moves elsewhere with only `own` of its messages."""
    named = int.from_bytes(clear.get(NAMED, b""), "little")
    ids = _column(clear, "id", count) or [None] * count
    placed = sum(1 << n for n, one in enumerate(ids) if not one)
    table = {name: _column(clear, name, count) or [] for name in clear if name not in ("gone", NAMED)}
    table["id"] = [one or message_id(partition, chunk.base + first + n) for n, one in enumerate(ids)]
    table["at"] = [chunk.time_ms if at is None else at for at in _column(clear, "at", count) or [None] * count]
    for n in range(count):
        for name, value in annexes.get(first + n, {}).items() if own >> n & 1 else ():
            table.setdefault(name, [ABSENT.get(name)] * count)[n] = value or ABSENT.get(name)
    gone = (1 << count) - 1 & ~own
    out: dict[str, Any] = {name: values for name, values in table.items() if values.count(ABSENT.get(name)) < count}
    if gone:
        out["gone"] = _bytes(gone)
    if placed | named:
        out[NAMED] = _bytes(placed | named)
    moved = {name: _compact(name, values, count) for name, values in out.items()}
    if isinstance(clear.get("id"), dict):
        moved["id"] = clear["id"]  # each message has one, and keeps it
    return moved


def _compact(name: str, values: Any, count: int) -> Any:
    """Returns a column in the form that `block` writes: one value if all messages have the same."""
    if name in ("gone", NAMED) or values.count(values[0]) < count:
        return values
    return values[0]


def _column(clear: Mapping[str, Any], name: str, count: int) -> list[Any] | None:
    values = clear.get(name)
    if values is None:
        return None
    return expanded(name, values, count)


def _bytes(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")
