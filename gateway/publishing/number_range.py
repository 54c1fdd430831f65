"""Finds JSON bodies with numbers that clients cannot decode: delivered, they would end the consumer's session."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

OUT_OF_RANGE: Final = (
    "the body has a number beyond 1.8e308, which clients cannot read; send it as a string, or the body as bytes"
)

_DIGITS_AS_ZEROS: Final = bytes.maketrans(b"123456789E", b"000000000e")
_LONG: Final = b"0" * 200
_STRING_OR_LARGE: Final = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"|(?<![\d.eE+-])(-?(?=\d[\d.]*+[eE]\+?\d{3}|\d{200})[\d.eE+-]++)', re.DOTALL
)
"""Matches a string, or as its group a number with 200 digits before its point or an exponent of three digits: all other
numbers are finite."""


def unreadable(bodies: Sequence[bytes]) -> list[int]:
    """Indexes of the bodies, each valid JSON or empty, that a client's decoder refuses."""
    if not _may_be_large(bodies[0] if len(bodies) == 1 else b",".join(bodies)):
        return []
    return [number for number, body in enumerate(bodies) if _may_be_large(body) and not _is_read(body)]


def _may_be_large(text: bytes) -> bool:
    """Whether there are 200 digits in a row, or an exponent of three digits: with less, a number stays below 1e300.

    Runs at the speed of memory. It is rarely true, and then mostly because of a string such as a UUID.
    """
    digits = text.translate(_DIGITS_AS_ZEROS)
    # `find` and not `in`, which raises an error internally each time, because it tries to read its operand as a number.
    return digits.find(b"0e000") >= 0 or digits.find(b"0e+000") >= 0 or digits.find(_LONG) >= 0


def _is_read(body: bytes) -> bool:
    """Whether each number of valid JSON is finite. Scans the body once, and builds neither its value nor a copy.

    Our own decoder takes integers of up to 4,300 digits; JavaScript silently makes Infinity of them.
    """
    return not any(found[1] and math.isinf(float(found[1])) for found in _STRING_OR_LARGE.finditer(body))
