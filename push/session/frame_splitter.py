"""Splits the bytes from a WebSocket client into messages and bytes for the library (RFC 6455, section 5).

Nearly all frames are whole messages, whole in one read, and the library's parser would cost more than their handling.
Those are taken out here; everything else goes to the library as it came: control frames, fragments, frames that a read
cut, and invalid data. So the rules of the protocol are kept in one place, and this one only has to know a frame's
length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from websockets.frames import apply_mask  # type: ignore[attr-defined]  # in C where that was built

_WHOLE: Final = (0x81, 0x82)
"""The first byte of a text and of a binary message in one frame."""
_FIN: Final = 0x80
_MASKED: Final = 0x80
_LENGTH: Final = 0x7F
_OPCODE: Final = 0x0F
_CONTINUATION: Final = 0x0
_DATA: Final = frozenset({0x1, 0x2})
_CLOSE: Final = 0x8
_MASK_BYTES: Final = 4


class FrameSplitter:
    """The splitter of one connection, from a frame's first byte on."""

    __slots__ = ("_head", "_is_fragmented", "_is_over", "_message_bytes_max", "_owed")

    def __init__(self, message_bytes_max: int) -> None:
        self._message_bytes_max = message_bytes_max
        self._head = b""
        """The beginning of a frame whose length is not known yet."""
        self._owed = 0
        """Bytes still to come of a frame whose beginning the library has."""
        self._is_fragmented = False
        """A fragmented message is under way: the library counts its fragments."""
        self._is_over = False
        """A close frame came: the rest goes to the library."""

    def feed(self, data: bytes) -> Iterator[tuple[bool, bytes]]:
        """Pieces in order: (True, a message) or (False, bytes for the library)."""
        if self._head:
            data, self._head = self._head + data, b""
        at, size = 0, len(data)
        if self._owed:
            at = min(self._owed, size)
            self._owed -= at
            yield False, data[:at]
        while at < size and not self._is_over:
            body, end = _bounds(data, at)
            if not end:
                self._head = data[at:]
                return
            head = data[at]
            if (
                head in _WHOLE
                and end <= size
                and data[at + 1] & _MASKED
                and not self._is_fragmented
                and end - body <= self._message_bytes_max
            ):
                yield True, apply_mask(data[body:end], data[body - _MASK_BYTES : body])
            else:
                self._note(head)
                self._owed = max(0, end - size)
                yield False, data[at:end]
            at = end
        if at < size:
            yield False, data[at:]

    def _note(self, head: int) -> None:
        opcode = head & _OPCODE
        if opcode in _DATA:
            self._is_fragmented = not head & _FIN
        elif opcode == _CONTINUATION and head & _FIN:
            self._is_fragmented = False
        elif opcode == _CLOSE:
            self._is_over = True


def _bounds(data: bytes, at: int) -> tuple[int, int]:
    """Where the payload of the frame at `at` begins and ends; the end is 0 while the length is incomplete."""
    left = len(data) - at
    if left < 2:
        return 0, 0
    second = data[at + 1]
    length = second & _LENGTH
    body = at + 2
    if length == 126:
        body += 2
        if left < 4:
            return 0, 0
        length = int.from_bytes(data[at + 2 : body])
    elif length == 127:
        body += 8
        if left < 10:
            return 0, 0
        length = int.from_bytes(data[at + 2 : body])
    if second & _MASKED:
        body += _MASK_BYTES
    return body, body + length
