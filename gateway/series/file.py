"""Stores the series on the disk: one file, replaced atomically, and read up to the first damaged record.

Losing the file costs only plots, so no other work waits for it.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
import structlog

from gateway.series.book import Place, queue_series
from gateway.series.core.columns import NODE_COLUMNS, QUEUE_COLUMNS
from gateway.series.core.ring import TIERS, Series, Tier
from gateway.series.limits import QUEUES_PER_WRITE_MAX
from gateway.series.packed import Packed, compressed, copied, last_row, packed, unpacked

log = structlog.get_logger("pushq.series")

FILE: Final = "series.bin"
_FRAME_BYTES: Final = 8
"""Length and checksum before each record."""


class Head(msgspec.Struct, frozen=True):
    """The meaning of a file's rows; a file with another head is not read."""

    version: int
    tiers: tuple[Tier, ...]
    queue: tuple[str, ...]
    node: tuple[str, ...]


HEAD: Final = Head(1, TIERS, QUEUE_COLUMNS, NODE_COLUMNS)


class Record(msgspec.Struct, array_like=True, frozen=True):
    """One series: its place, the last slots of its rings, their values, and the last row written. Older files lack the
    row."""

    tenant: str
    uid: int
    lasts: Sequence[int]
    values: Sequence[bytes]
    row: Sequence[float] = ()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode
_decode_head = msgspec.msgpack.Decoder(Head).decode


class SeriesFile:
    """The file `DIR/series.bin`; owned by `Sampler`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    async def write(self, all_of_them: Iterator[tuple[Place, Series | Packed]]) -> None:
        """Copies a few series per turn of the loop and writes them in a thread. On an error the previous file stays."""
        partial = self._partial
        try:
            with _Created(partial) as fd:
                await _to_the_end(_put, fd, [_encode(HEAD)])
                while some := [_copied(*one) for one in islice(all_of_them, QUEUES_PER_WRITE_MAX)]:
                    await _to_the_end(_put_records, fd, some)
                await _to_the_end(os.fsync, fd)
            os.replace(partial, self.path)
        except OSError as error:
            self._failed(error)

    def write_now(self, all_of_them: Iterable[tuple[Place, Series | Packed]]) -> None:
        """Writes all series in one go, when the process ends."""
        try:
            with _Created(self._partial) as fd:
                _put(fd, [_encode(HEAD)])
                _put_records(fd, [_copied(*one) for one in all_of_them])
                os.fsync(fd)
            os.replace(self._partial, self.path)
        except OSError as error:
            self._failed(error)

    @property
    def _partial(self) -> Path:
        return self.path.with_suffix(".partial")

    def _failed(self, error: OSError) -> None:
        log.warning("cannot write the series", file=str(self.path), error=str(error))
        self._partial.unlink(missing_ok=True)

    def read(self) -> list[tuple[Place, Packed]]:
        """The series up to the first damaged record; none if there is no file, or it has another head."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            log.warning("cannot read the series", file=str(self.path), error=str(error))
            return []
        found: list[tuple[Place, Packed]] = []
        try:
            records = _records(data)
            if _decode_head(next(records)) != HEAD:
                return []
            found.extend(_restored(_decode(record)) for record in records)
        except (ValueError, StopIteration, zlib.error, msgspec.MsgspecError) as error:
            log.warning("part of the series cannot be read", file=str(self.path), read=len(found), error=str(error))
        return found


async def _to_the_end(call: Callable[..., None], *arguments: object) -> None:
    """Runs `call` in a thread and waits for it even when cancelled: it writes to a descriptor that is closed next, and
    whose number another file may then get."""
    work = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if (failed := cancelled or work.exception()) is not None:
        raise failed


class _Created:
    """Context manager: creates a file that only its owner may read, and returns its descriptor."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> int:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _copied(place: Place, held: Series | Packed) -> tuple[Place, Packed, bool]:
    """Also returns whether the copy is already compressed."""
    return (place, held, True) if isinstance(held, Packed) else (place, copied(held), False)


def _put_records(fd: int, copies: Iterable[tuple[Place, Packed, bool]]) -> None:
    _put(fd, [_encode(_record(*one)) for one in copies])


def _record(place: Place, held: Packed, is_small: bool) -> Record:
    small = held if is_small else compressed(held)
    if not small.values:
        small = packed(unpacked(small, queue_series()))  # older versions read series by their rings alone
    return Record(*place, small.lasts, small.values, small.row)


def _put(fd: int, records: Iterable[bytes]) -> None:
    data = b"".join(len(one).to_bytes(4, "big") + zlib.crc32(one).to_bytes(4, "big") + one for one in records)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        record = data[at + _FRAME_BYTES : at + _FRAME_BYTES + size]
        if len(record) != size or zlib.crc32(record) != int.from_bytes(data[at + 4 : at + _FRAME_BYTES], "big"):
            raise ValueError(f"the record at byte {at} is damaged")
        yield record
        at += _FRAME_BYTES + size


def _restored(record: Record) -> tuple[Place, Packed]:
    if [len(record.lasts), len(record.values)] != [len(TIERS)] * 2:
        raise ValueError("a series has an unexpected shape")
    small = Packed(record.lasts, record.values, record.row)
    if record.uid and not small.row:
        small = msgspec.structs.replace(small, row=last_row(unpacked(small, queue_series())))
    return (record.tenant, record.uid), small
