"""Computes the sums of `screen` by column while reading a file, several times faster than Spark's JSON parser and rows.

Only sums rows in the form that servers write. For anything unusual it raises `Odd`, and Spark then checks each row of
that file. The sums therefore equal those of `screen.sums_of` for the same rows, and `quality` alone decides why a row
cannot be counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.json as pj  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType, TimestampType

from spark.transforms import audit
from spark.transforms.quality import ADDED, AMOUNT_MAX, AMOUNTS, NAT
from spark.transforms.screen import HASH_BITS
from spark.transforms.sweep import LOG
from spark.usage_schema import LEDGER, LEDGER_FLOWS

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

_TYPES: Final[dict[type[DataType], pa.DataType]] = {
    LongType: pa.int64(),
    StringType: pa.string(),
    TimestampType: pa.string(),  # kept as text, not parsed
}
_MOMENT: Final = pa.timestamp("us", "UTC")
_HOUR_DIGITS: Final = 13
_SUM_MAX: Final = 2**62
_SEED: Final = 42
_PRIMES: Final = tuple(
    np.uint64(prime)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)


class Odd(Exception):
    """The file contains something that only a row-by-row check can judge."""


# ---------------------------------------------------------------------------------------------------------- reading


def table_of(lines: bytes) -> pa.Table:
    """Parses complete lines, each a countable row, into a table of `audit.COLUMNS`. Times stay text. Raises `Odd`."""
    if ADDED["ledger"]:
        raise Odd("rows of older versions lack fields")
    types = [(name, _TYPES[type(LEDGER[name].dataType)]) for name in audit.COLUMNS]
    parsing = pj.ParseOptions(explicit_schema=pa.schema(types), unexpected_field_behavior="ignore")
    reading = pj.ReadOptions(use_threads=False, block_size=len(lines))
    try:
        table = pj.read_json(pa.BufferReader(lines), reading, parsing).combine_chunks()
        table.validate(full=True)  # also checks that text is valid UTF-8
    except (pa.ArrowException, UnicodeError) as error:
        raise Odd(str(error)) from None
    if table.num_rows != lines.count(b"\n"):
        raise Odd("not one row per line")
    for name in audit.COLUMNS:
        if not LEDGER[name].nullable and table[name].null_count:
            raise Odd(f"{name} is missing")
    for name in {*NAT} & {*audit.COLUMNS}:
        if pc.min(table[name]).as_py() < 0:
            raise Odd(f"{name} is negative")
    for name in {*AMOUNTS} & {*audit.COLUMNS}:
        if pc.max(table[name]).as_py() > AMOUNT_MAX:
            raise Odd(f"{name} is too large")
    return table


# ------------------------------------------------------------------------------------------------------------- sums

SUMS: Final = StructType(
    [
        StructField("hour", StringType()),
        *[StructField(name, LEDGER[name].dataType) for name in LOG],
        *[
            StructField(name, LongType())
            for name in ("from", "to", "epoch", "epoch_last", "ends_published", "ends_held", "offsets")
        ],
        StructField("last", StructType([StructField("to", LongType()), StructField("held", LongType())])),
        *[StructField(name, LongType()) for name in ("chain_1", "chain_2", "flow", *audit.FLOWS)],
    ]
)
"""The columns of `screen.sums_of`, except the file and the day."""


def sums_of(lines: bytes) -> pa.RecordBatch:
    """The `SUMS` of complete lines. Raises `Odd`."""
    rows = table_of(lines)
    start, end, count = (_ints(rows[name]) for name in ("from", "to", "count"))
    kinds = rows["kind"].combine_chunks().dictionary_encode()
    names = kinds.dictionary.to_pylist()
    if not LEDGER_FLOWS.keys() >= set(names):
        raise Odd("kind is unknown")
    if (end <= start).any():
        raise Odd("to is not greater than from")
    _check_sums(count, len(count) << HASH_BITS)
    _check_sums(end, len(end))
    of_row = kinds.indices.to_numpy(zero_copy_only=False)
    sign = np.array([LEDGER_FLOWS[name] for name in names], np.int64)[of_row]
    is_kind = {name: of_row == at for at, name in enumerate(names)}
    none = np.zeros(len(count), np.bool_)
    is_held, is_published = is_kind.get("held", none), is_kind.get("published", none)
    by = Groups([_hours(rows["at"]), *(rows[name] for name in LOG)])
    ends = _xxhash(start) ^ _xxhash(end)
    flow = sign * count
    made: dict[str, pa.Array] = dict(zip(("hour", *LOG), by.keys, strict=True))
    made |= {"from": by.least(start), "to": by.most(end)}
    epoch = _ints(rows["epoch"])
    made |= {"epoch": by.least(epoch), "epoch_last": by.most(epoch)}
    made["ends_published"] = by.xor(ends, is_published)
    made["ends_held"] = by.xor(ends, is_held)
    made["offsets"] = by.sum(end - start, is_published)
    made["last"] = _last(by, end, count, is_held)
    for n in (1, 2):
        before, after = _weight(start, n), _weight(end, n)
        weighed = np.where(is_held, count * (after - before), flow * before)
        made[f"chain_{n}"] = by.sum(weighed, is_held | (sign != 0))
    made["flow"] = by.sum(flow, sign != 0)
    for name in audit.REPORTED:
        made[name] = by.sum(count, is_kind.get(name, none))
    for name, kinds_of in (("other_in", audit.OTHER_IN), ("other_out", audit.OTHER_OUT)):
        made[name] = by.sum(count, _any([is_kind[kind] for kind in kinds_of if kind in is_kind], none))
    return pa.RecordBatch.from_arrays([made[name] for name in SUMS.names], SUMS.names)


def _last(by: Groups, end: Numbers, count: Numbers, is_held: Mask) -> pa.Array:
    """The messages held at the last offset; the largest count if several rows end there."""
    at = by.most(end, is_held)
    last_end = _ints(pc.fill_null(at, 0))
    held = by.most(count, is_held & (end == by.spread(last_end)))
    return pa.StructArray.from_arrays([at, held], ["to", "held"], mask=pc.is_null(at))


# ----------------------------------------------------------------------------------------------------------- groups


class Groups:
    """Rows (at least one) grouped by the values of some columns. `keys` holds each column's value for each group.
    Reductions skip unmarked rows, and are null for a group without marked rows."""

    def __init__(self, columns: Iterable[pa.Array | pa.ChunkedArray]) -> None:
        encoded = [_whole(column).dictionary_encode() for column in columns]
        size, codes = 1, np.zeros(len(encoded[0]), np.int64)
        for one in encoded:
            size *= max(1, len(one.dictionary))
            if size >= _SUM_MAX:
                raise Odd("too many keys")
            codes = codes * len(one.dictionary) + one.indices.to_numpy(zero_copy_only=False)
        self._order = np.argsort(codes, kind="stable")
        ordered = codes[self._order]
        is_first = np.ones(len(codes), np.bool_)
        is_first[1:] = ordered[1:] != ordered[:-1]
        self._starts = np.flatnonzero(is_first)
        self._group = np.cumsum(is_first) - 1
        firsts = pa.array(self._order[self._starts])
        self.keys = [one.dictionary.take(one.indices.take(firsts)) for one in encoded]

    def sum(self, values: NDArray[Any], marked: Mask | None = None) -> pa.Array:
        return self._reduced(np.add, values, marked, 0)

    def xor(self, values: Numbers, marked: Mask) -> pa.Array:
        return self._reduced(np.bitwise_xor, values, marked, 0)

    def least(self, values: Numbers) -> pa.Array:
        return self._reduced(np.minimum, values, None, 0)

    def most(self, values: Numbers, marked: Mask | None = None) -> pa.Array:
        return self._reduced(np.maximum, values, marked, np.iinfo(np.int64).min)

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Broadcasts each group's value to its rows, in the order of the rows."""
        found = np.empty(len(self._order), values.dtype)
        found[self._order] = values[self._group]
        return found

    def _reduced(self, how: np.ufunc, values: NDArray[Any], marked: Mask | None, rest: int) -> pa.Array:
        if marked is None:
            return pa.array(how.reduceat(values[self._order], self._starts))
        found = how.reduceat(np.where(marked, values, rest)[self._order], self._starts)
        return pa.array(found, mask=~np.logical_or.reduceat(marked[self._order], self._starts))


def _hours(times: pa.ChunkedArray) -> pa.Array:
    """The hour digits of each time. Raises `Odd` if a time is invalid."""
    encoded = _whole(times).dictionary_encode()
    try:
        pc.cast(encoded.dictionary, _MOMENT)
    except pa.ArrowException as error:
        raise Odd(str(error)) from None
    return pc.utf8_slice_codeunits(encoded.dictionary, 0, _HOUR_DIGITS).take(encoded.indices)


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _ints(column: pa.Array | pa.ChunkedArray) -> Numbers:
    found: Numbers = _whole(column).to_numpy(zero_copy_only=False)
    return found


def _any(masks: Sequence[Mask], none: Mask) -> Mask:
    found: Mask = np.logical_or.reduce(masks) if masks else none
    return found


def _check_sums(values: Numbers, times: int) -> None:
    """Raises `Odd` unless a sum of `times` such values fits into a 64-bit integer."""
    if len(values) and int(values.max()) * times >= _SUM_MAX:
        raise Odd("a sum may overflow")


# ----------------------------------------------------------------------------------------------------------- hashes


def _xxhash(values: Numbers) -> Numbers:
    """XXH64 of 8-byte integers, equal to Spark's `xxhash64`."""
    one, two, three, four, five = _PRIMES
    with np.errstate(over="ignore"):
        mixed = _rotated(values.view(np.uint64) * two, 31) * one
        found = (np.uint64(_SEED) + five + np.uint64(8)) ^ mixed
        found = _rotated(found, 27) * one + four
        found = (found ^ (found >> np.uint64(33))) * two
        found = (found ^ (found >> np.uint64(29))) * three
        found ^= found >> np.uint64(32)
    return found.view(np.int64)


def _rotated(values: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _weight(offsets: Numbers, n: int) -> Numbers:
    """The weight of an offset, as defined in `screen`."""
    mixed = _xxhash(offsets).view(np.uint64)
    part = mixed if n == 1 else mixed >> np.uint64(HASH_BITS)
    return ((part & np.uint64((1 << HASH_BITS) - 1)) + np.uint64(1)).view(np.int64)
