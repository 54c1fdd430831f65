"""Receipts: the proof of one lease that a consumer sends with an ack, checked without a look-up.

A lease of up to 256 messages of one chunk has one *token*; the receipt of its n-th message is `token` + `.` + two hex
digits of n. The token names partition, epoch, group, chunk, lease and the lease's first and last message, and ends with
a 96-bit MAC, so it cannot be forged and can still be checked after a restart, when the lease table is gone.
"""

from __future__ import annotations

import binascii
import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from typing import NamedTuple

# partition index, key id, queue uid, epoch, group, chunk base, lease, first and last index
_FIELDS = struct.Struct(">HBIIIQQBB")
_MAC_BYTES = 12
TOKEN_CHARS = (_FIELDS.size + _MAC_BYTES) * 4 // 3 + (1 if (_FIELDS.size + _MAC_BYTES) % 3 else 0)
INDEX_OF = {f"{n:02x}": n for n in range(256)}
SUFFIXES = tuple(f"{n:02x}" for n in range(256))


class TokenFields(NamedTuple):
    """The fields of a token. `group` has the view in its low 24 bits and the chunk's shelf above them."""

    partition: int
    key_id: int
    queue_uid: int
    epoch: int
    group: int
    base: int
    lease: int
    first: int
    last: int

    @property
    def view(self) -> int:
        return self.group & _VIEW_MASK

    @property
    def shelf(self) -> int:
        return self.group >> _SHELF_SHIFT

    @property
    def bits(self) -> int:
        """The messages for which the token may be used."""
        return (2 << self.last) - (1 << self.first)


_SHELF_SHIFT = 24
_VIEW_MASK = (1 << _SHELF_SHIFT) - 1
_VIEW_CHARS = slice(16, 20)
"""The view's three bytes in the text of a token: bytes 12 to 14 of its fields."""


def group_field(view: int, shelf: int) -> int:
    """Returns the token's `group` field."""
    return shelf << _SHELF_SHIFT | view


def make_token(key: bytes, fields: TokenFields) -> str:
    """Returns the token with its trailing dot, so that token + two digits is a receipt."""
    packed = _FIELDS.pack(*fields)
    mac = hmac.digest(key, packed, "sha256")[:_MAC_BYTES]
    return urlsafe_b64encode(packed + mac).rstrip(b"=").decode() + "."


def claimed_fields(token: str) -> TokenFields | None:
    """Returns the fields that a token (with its dot) claims, without checking its MAC; None if it is no token."""
    raw = _raw(token)
    return None if raw is None else TokenFields(*_FIELDS.unpack_from(raw))


def _raw(token: str) -> bytes | None:
    if len(token) != TOKEN_CHARS + 1 or not token.endswith(".") or not token.isascii():
        return None
    try:
        raw = urlsafe_b64decode(token[:-1] + "=" * (-(len(token) - 1) % 4))
    except (binascii.Error, ValueError):
        return None
    # The decoder skips characters that are not base64, so the rest may be too short.
    return raw if len(raw) == _FIELDS.size + _MAC_BYTES else None


def read_token(key: bytes, token: str) -> TokenFields | None:
    """Returns the fields of a genuine token (with its dot), or None."""
    raw = _raw(token)
    if raw is None:
        return None
    packed, mac = raw[: _FIELDS.size], raw[_FIELDS.size :]
    if not hmac.compare_digest(hmac.digest(key, packed, "sha256")[:_MAC_BYTES], mac):
        return None
    # The last base64 character has spare bits: only the spelling that was issued is accepted.
    if urlsafe_b64encode(raw).rstrip(b"=").decode() != token[:-1]:
        return None
    return TokenFields(*_FIELDS.unpack(packed))


def partition_of_token(token: str) -> int | None:
    """Returns the partition that a token claims, without checking its MAC; None if it cannot be decoded."""
    try:
        return int.from_bytes(urlsafe_b64decode(token[:4])[:2])
    except (binascii.Error, ValueError):
        return None


def view_of_token(token: str) -> int | None:
    """Returns the view that a token claims, to find the view that must check it; None if it cannot be decoded."""
    try:
        return int.from_bytes(urlsafe_b64decode(token[_VIEW_CHARS]))
    except (binascii.Error, ValueError):
        return None


def by_token(receipts: Iterable[str]) -> dict[str, int]:
    """Groups receipts into token → bits. Text that is no receipt is its own key, with no bits."""
    grouped: dict[str, int] = {}
    get = grouped.get
    for receipt in receipts:
        token = receipt[:-2]
        index = INDEX_OF.get(receipt[-2:])
        if index is None:
            grouped.setdefault(receipt, 0)
        else:
            grouped[token] = get(token, 0) | (1 << index)
    return grouped
