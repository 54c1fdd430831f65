"""Sets of messages of one chunk as integers: bit n is the chunk's n-th message."""

from __future__ import annotations

from collections.abc import Iterator


def lowest(bits: int, count: int) -> int:
    """Returns the `count` lowest set bits, or all if there are fewer."""
    if not bits:
        return 0
    low = (bits & -bits).bit_length() - 1
    run = ((1 << count) - 1) << low
    if bits & run == run:
        return run
    if bits.bit_count() <= count:
        return bits
    # The `count`-th set bit is bit number `end` - 1; bisection finds it faster than counting.
    start, end = low + count, bits.bit_length()
    while start < end:
        middle = (start + end) // 2
        if (bits & ((1 << middle) - 1)).bit_count() < count:
            start = middle + 1
        else:
            end = middle
    return bits & ((1 << end) - 1)


def indexes(bits: int) -> Iterator[int] | range:
    """Returns the numbers of the set bits, ascending. A run without gaps, the usual case, costs no loop."""
    if not bits:
        return range(0)
    low = (bits & -bits).bit_length() - 1
    high = bits.bit_length()
    if bits == (1 << high) - (1 << low):
        return range(low, high)
    return _each(bits)


def _each(bits: int) -> Iterator[int]:
    while bits:
        bit = bits & -bits
        yield bit.bit_length() - 1
        bits ^= bit
