"""Writes the rows of a publish's answer if its message ids are consecutive: either offsets, or numbered ids.

The rows of such an answer have one size. So one row is repeated, and what differs is written column by column: a few
steps an answer, none a message.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from backend_store.client import DIGITS, NumberedNames
from push.encoding.rows import PLACE_DIGITS, pack

BY_COLUMNS_FROM: Final = 8
"""From this number of rows on, columns cost less than single rows."""
_SEQ_BYTES = 8
_BYTE = 256
_RAMP = bytes(range(_BYTE)) * (2 + 10**DIGITS // _BYTE)
"""The lowest bytes of consecutive numbers, whatever the first is."""
_HEX_HIGH, _HEX_LOW = (bytes(column) for column in zip(*(b"%02x" % byte for byte in range(_BYTE)), strict=True))
"""The two hexadecimal digits of each byte."""
_HUNDRED = 100
_TENS, _ONES = (bytes(column) for column in zip(*(b"%02d" % number for number in range(_HUNDRED)), strict=True))
_HEAD = b"\x84" + pack("id")
_SEQ = pack("seq") + b"\xcf"


def numbered_rows(partition: int, names: NumberedNames, offsets: list[int] | range, *, is_repeat: bool) -> bytes:
    """The concatenated MessagePack rows `{id, seq, partition, duplicate}`, one for each name."""
    start = _HEAD + pack(names.prefix + "0" * DIGITS)
    first = offsets[0].to_bytes(_SEQ_BYTES, "big")
    row = b"".join([start, _SEQ, first, _end(partition, is_repeat)])
    size, rows = len(row), bytearray(row * len(names))
    digits_at, seq_at = len(start) - DIGITS, len(start) + len(_SEQ)
    for at, digits in enumerate(_digits(names.first, len(names)), digits_at):
        rows[at::size] = digits
    if isinstance(offsets, range):
        rows[seq_at + _SEQ_BYTES - 1 :: size] = _RAMP[first[-1] : first[-1] + len(names)]
        same = _BYTE - first[-1]  # so many rows share the upper bytes of the first one
        for at in range(same, len(names), _BYTE):
            begin = at * size + seq_at
            count = min(_BYTE, len(names) - at)
            for byte, value in enumerate((offsets[at] >> 8).to_bytes(_SEQ_BYTES - 1, "big")):
                rows[begin + byte : begin + byte + (count - 1) * size + 1 : size] = bytes([value]) * count
    else:
        column = b"".join([offset.to_bytes(_SEQ_BYTES, "big") for offset in offsets])
        for byte in range(_SEQ_BYTES):
            rows[seq_at + byte :: size] = column[byte::_SEQ_BYTES]
    return bytes(rows)


def placed_rows(partition: int, offsets: range, *, is_repeat: bool) -> bytes:
    """`numbered_rows` for messages whose ids are their offsets."""
    head, end = _placed_head(partition), _end(partition, is_repeat)
    digits_at = len(head) + PLACE_DIGITS - 2
    seq_at = len(head) + PLACE_DIGITS + len(_SEQ) + _SEQ_BYTES - 1
    runs, first = [], offsets.start
    while first < offsets.stop:  # all offsets of a run differ in their lowest byte alone
        low, count = first % _BYTE, min(_BYTE - first % _BYTE, offsets.stop - first)
        row = b"".join([head, b"%0*x" % (PLACE_DIGITS, first), _SEQ, first.to_bytes(_SEQ_BYTES, "big"), end])
        size, rows = len(row), bytearray(row * count)
        rows[digits_at::size] = _HEX_HIGH[low : low + count]
        rows[digits_at + 1 :: size] = _HEX_LOW[low : low + count]
        rows[seq_at::size] = _RAMP[low : low + count]
        runs.append(rows)
        first += count
    return b"".join(runs)


def placed_rows_json(template: bytes, offsets: range) -> bytes:
    """`placed_rows` in JSON, with commas between the rows. `template` is a row's and takes its offset twice: as twelve
    hexadecimal digits at the end of the first text, and as the number before `,"partition"`."""
    runs, first = [], offsets.start
    while first < offsets.stop:  # a run ends where more than the two last digits change
        low, last = first % _BYTE, first % _HUNDRED
        count = min(_BYTE - low, (_HUNDRED if first >= 10 else 10) - last, offsets.stop - first)
        row = template % (first, first) + b","
        size, rows = len(row), bytearray(row * count)
        digits_at, seq_at = row.index(b'","seq":') - 2, row.index(b',"partition"') - 1
        rows[digits_at::size] = _HEX_HIGH[low : low + count]
        rows[digits_at + 1 :: size] = _HEX_LOW[low : low + count]
        rows[seq_at::size] = _ONES[last : last + count]
        if first >= 10:
            rows[seq_at - 1 :: size] = _TENS[last : last + count]
        runs.append(rows)
        first += count
    return b"".join(runs)[:-1]


@lru_cache
def _placed_head(partition: int) -> bytes:
    name = b"%d-" % partition
    return _HEAD + bytes([0xA0 | len(name) + PLACE_DIGITS]) + name


@lru_cache
def _end(partition: int, is_repeat: bool) -> bytes:
    return b"".join([pack("partition"), pack(partition), pack("duplicate"), pack(is_repeat)])


@lru_cache
def _digits(first: int, count: int) -> tuple[bytes, ...]:
    """The digits of `count` consecutive numbers by position: the first digits of all of them, then the second ones, and
    so on."""
    numbers = [b"%0*d" % (DIGITS, number) for number in range(first, first + count)]
    return tuple(bytes(column) for column in zip(*numbers, strict=True))
