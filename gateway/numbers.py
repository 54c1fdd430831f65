"""Numbers of bodies: what no client could read is refused, for it would end the session of whoever is pushed it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

OUT_OF_RANGE: Final = (
    "it has a number that clients cannot read: beyond 1.8e308; send it as a string, or the body as bytes"
)

_DIGITS_AS_ZEROS: Final = bytes.maketrans(b"123456789E", b"000000000e")
_LONG: Final = b"0" * 200
_HUGE_INTEGERS: Final = re.compile(rb"(?<![\d.eE+-])-?\d{309,}(?![\d.eE])")

_decode: Final = msgspec.json.Decoder().decode


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
    try:
        _decode(body)
    except msgspec.MsgspecError:
        return False
    except RecursionError:
        return True  # for its depth it is refused elsewhere
    # Ours takes an integer of any size up to 4,300 digits; JavaScript makes Infinity of it without a word.
    return not any(math.isinf(float(text)) for text in _huge_integers(body))


def _huge_integers(body: bytes) -> Iterator[bytes]:
    """Those of valid JSON that are no part of a string: an even number of quotes that open or close one comes before.

    It goes over each part of the body once, and makes one copy of it at most.
    """
    is_in_string, seen = False, 0
    for found in _HUGE_INTEGERS.finditer(body):
        is_in_string ^= _quotes(body[seen : found.start()]) % 2 == 1
        seen = found.end()
        if not is_in_string:
            yield found[0]


def _quotes(part: bytes) -> int:
    """How many quotes open or close a string. A part begins behind a digit or nothing, so in no escape: what is left
    of a run of backslashes when its pairs are gone escapes what follows.
    """
    unpaired = part.replace(rb"\\", b"")
    return unpaired.count(b'"') - unpaired.count(rb"\"")
