"""Sealed blocks: what everybody may know of messages whose bodies only a gateway can read.

A gateway seals a block's second half and hands the store a `Seal` for each queue, by which blocks are opened where
they are shown and sealed anew where they move. The store has no key. Where a block cannot be opened, it stays whole:
`whole_copies` takes it to another shelf as it is.

    sealed half of a block whose key id is not 0 = nonce[12] | ciphertext of attributes, lengths, bodies | tag[16]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Protocol

from backend_store.core.block import ABSENT, BLOCK_HEAD, CLEAR_COLUMNS, FLAG_CLEAR, expanded, pack, unpack
from backend_store.core.places import message_id
from backend_store.model import Block, QueueDefinition, Traits

if TYPE_CHECKING:
    from backend_store.core.chunk import Chunk

IDENTITY_COLUMNS: Final = ("id", "key", "ts", "pr", "ps")
"""What names a message and stays as it is for as long as its block does. A seal binds it."""
NAMED: Final = "named"
"""In a clear part: bits of the messages whose id is the place that they had before. No producer gave those."""
CLEAR_NAMES: Final = CLEAR_COLUMNS | {"gone", NAMED}
"""All that a sealed block's clear part may have. What stands for something sealed there was put there by somebody."""
UNREADABLE_TYPE: Final = "application/vnd.pushq.unreadable"
"""The content type of what stands for a message that cannot be opened, where an operator looks at it."""
SEALED_FLAGS: Final = ~FLAG_CLEAR & 0xFF
"""Flags that a seal binds: a clear part may come later, with what became of a message."""


class CannotOpen(Exception):
    """A sealed block that does not open: its key is not there, or it is not what was sealed."""


class SealedBlock(NamedTuple):
    """A block as it is stored. `clear` is its clear part, unpacked."""

    flags: int
    key_id: int
    messages: int
    clear: Mapping[str, Any]
    sealed: bytes


class Seal(Protocol):
    """What the blocks of one queue are sealed and opened with."""

    def seal(self, blocks: Sequence[Block]) -> list[Block]:
        """The same blocks, sealed with the queue's newest key; those that are sealed stay. Raises `Unavailable`."""

    def secret(self) -> bytes:
        """A key for hashes, the same for as long as the queue has keys. Raises `Unavailable`."""

    @property
    def is_always(self) -> bool:
        """Whether every block of the queue was sealed, ever."""

    def refuse_plain(self) -> NoReturn:
        """A block that is not sealed was found where every block is. Raises `CannotOpen`."""

    def open(self, block: SealedBlock) -> bytes:
        """The second half of a block as it was before it was sealed. Raises `CannotOpen`."""

    def seal_note(self, note: bytes) -> bytes:
        """A few bytes that lie beside blocks, sealed. Raises `Unavailable`."""

    def open_note(self, sealed: bytes) -> bytes:
        """Raises `CannotOpen`."""


class Sealer(Protocol):
    """Seals for every queue of a store."""

    def of(self, definition: QueueDefinition) -> Seal: ...
    async def ready(self, definitions: Sequence[QueueDefinition]) -> None:
        """Returns when the queues can be published to, or when that has to wait for the master key."""

    def shredded(self, uid: int) -> None:
        """The queue's keys are gone from the disk, and must go from memory."""


def identity(clear: Mapping[str, Any], count: int) -> bytes:
    """What a clear part says of who its messages are, in one form; empty where it says nothing."""
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
    """(key id, begin, end) of each of so many blocks that lie one after the other."""
    for _ in range(blocks):
        _, key_id, _, clear_size, sealed_size = BLOCK_HEAD.unpack_from(data, at)
        end = at + BLOCK_HEAD.size + clear_size + sealed_size
        yield key_id, at, end
        at = end


def whole_copies(
    chunk: Chunk, bits: int, annexes: Mapping[int, Mapping[str, Any]], *, blocks_at: int, partition: int
) -> list[Block]:
    """Blocks with some of a chunk's messages, each with its whole sealed half: the other messages in it are none.

    What their place said of them is written out, and `annexes` added, as `extract` does.
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
    """The clear part of a block that lies elsewhere from now on, with only `own` of its messages."""
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
    """A column in the form that `block` writes: one value where all have it."""
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
