"""Numbers of bodies: what no client could read is refused, for it would end the session of whoever is pushed it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

OUT_OF_RANGE: Final = (
    "it has a number that clients cannot read: beyond 1.8e308; send it as a string, or the body as bytes"
)

_DIGITS_AS_ZEROS: Final = bytes.maketrans(b"123456789E", b"000000000e")
_LONG: Final = b"0" * 200
_STRING_OR_LARGE: Final = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"|(?<![\d.eE+-])(-?(?=\d[\d.]*+[eE]\+?\d{3}|\d{200})[\d.eE+-]++)', re.DOTALL
)
"""A string, or as its group a number of 200 digits before its point or with an exponent of three: others are finite."""


def unreadable(bodies: Sequence[bytes]) -> list[int]:
    """The numbers of the bodies, each valid JSON or empty, that a client's decoder refuses."""
    if not _may_be_large(bodies[0] if len(bodies) == 1 else b",".join(bodies)):
        return []
    return [number for number, body in enumerate(bodies) if _may_be_large(body) and not _is_read(body)]


def _may_be_large(text: bytes) -> bool:
    """Whether there are 200 digits in a row, or an exponent of three: with less, a number stays below 1e300.

    Told at the speed of memory; it is seldom true, and then mostly of a text such as a UUID.
    """
    digits = text.translate(_DIGITS_AS_ZEROS)
    # Not by `in`, which makes an error each time, for it looks for a number first.
    return digits.find(b"0e000") >= 0 or digits.find(b"0e+000") >= 0 or digits.find(_LONG) >= 0


def _is_read(body: bytes) -> bool:
    """Whether each number of valid JSON is finite. The body is gone over once; neither its value nor a copy is built.

    Our own decoder takes an integer of any size up to 4,300 digits; JavaScript makes Infinity of it without a word.
    """
    return not any(found[1] and math.isinf(float(found[1])) for found in _STRING_OR_LARGE.finditer(body))
