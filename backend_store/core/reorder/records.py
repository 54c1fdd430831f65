"""The state that a sorted queue stores beside its messages: records with absolute values, and their rows.

A row of `Table.PRODUCERS` is keyed by the replica and the producer's name; the watermark is one row of the partition.
Both are written in the same commit as the messages that changed them.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from backend_store.model import Stamp

_VERSION = 1


class WatermarkRaised(NamedTuple):
    """The stamp of the last message that was released: no message below it is released any more."""

    stamp: Stamp
    time_ms: int
    """When it was released, by the leader's clock."""


class ProducerAdvanced(NamedTuple):
    """The state of a producer: the last number whose turn has come, and the numbers given up or accepted before."""

    producer: str
    last: int
    time_ms: int
    """When its last message arrived, by the leader's clock."""
    gaps: tuple[tuple[int, int], ...]
    """(first, last) of numbers that were given up, ascending."""
    recent: tuple[tuple[int, int, int], ...]
    """(number, offset, count) of runs that were accepted recently, the latest last."""


class ProducerForgotten(NamedTuple):
    """The producer's row is deleted: it was idle for longer than the dedupe window, and another needed its place."""

    producer: str


OrderRecord = WatermarkRaised | ProducerAdvanced | ProducerForgotten


class _ProducerRow(msgspec.Struct, array_like=True):
    version: int
    last: int
    time_ms: int
    gaps: tuple[tuple[int, int], ...]
    recent: tuple[tuple[int, int, int], ...]


class _WatermarkRow(msgspec.Struct, array_like=True):
    version: int
    time_ms: int
    time_us: int
    producer: str
    number: int


_encode = msgspec.msgpack.Encoder().encode
_producer_row = msgspec.msgpack.Decoder(_ProducerRow)
_watermark_row = msgspec.msgpack.Decoder(_WatermarkRow)


def encode_producer(record: ProducerAdvanced) -> bytes:
    """Returns the value of a producer's row; its name is in the key."""
    return _encode(_ProducerRow(_VERSION, *record[1:]))


def decode_producer(producer: str, data: bytes) -> ProducerAdvanced:
    """Decodes a producer's row. Raises `ValueError` for another version, `msgspec.DecodeError` if it is no row."""
    row = _producer_row.decode(data)
    _check(row.version)
    return ProducerAdvanced(producer, row.last, row.time_ms, row.gaps, row.recent)


def encode_watermark(record: WatermarkRaised) -> bytes:
    return _encode(_WatermarkRow(_VERSION, record.time_ms, *record.stamp))


def decode_watermark(data: bytes) -> WatermarkRaised:
    """Decodes the watermark's row. Raises `ValueError` for another version, `msgspec.DecodeError` if it is no row."""
    row = _watermark_row.decode(data)
    _check(row.version)
    return WatermarkRaised(Stamp(row.time_us, row.producer, row.number), row.time_ms)


def _check(version: int) -> None:
    if version != _VERSION:
        raise ValueError(f"version {version} of a sorted queue's row: this program reads version {_VERSION}")
