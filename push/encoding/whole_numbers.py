"""Rewrites JSON floats as integers: 6.0 is 6 in JSON, and some languages write it so, but our decoder tells the two
apart."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from backend_store.model import MESSAGES_PER_REQUEST_MAX

_FRACTION: Final = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_EXACT_BELOW: Final = 2**53
"""From this number on, a float stands not for one integer but for the nearest of several."""
_HOLDERS: Final = (inspect.IntType, inspect.StructType, inspect.ListType, inspect.UnionType)
"""Types that may contain an integer. A list of any other type is skipped."""
_ITEMS_MAX: Final = 2 * MESSAGES_PER_REQUEST_MAX
"""Items of lists that are checked: more than any request has that is not refused for their number."""

_info = cache(inspect.type_info)


class _TooMany(Exception):
    """There are more items than are checked."""


def text_with_whole_numbers(text: bytes, kind: Any) -> bytes:
    """The same JSON, with 6 for 6.0 and 100 for 1e2 where `kind` has an integer; all else stays as it was written.

    It takes far longer than decoding, so it is only for text that the decoder refused. Raises `msgspec.DecodeError` or
    `RecursionError` for text that it cannot read.
    """
    try:
        return bytes(_Writer().written(msgspec.Raw(text), _info(kind)))
    except _TooMany:
        return text


class _Writer:
    """Rewrites one text. What the type does not describe stays as it is."""

    def __init__(self) -> None:
        self._left = _ITEMS_MAX

    def written(self, value: msgspec.Raw, info: inspect.Type) -> msgspec.Raw:
        text, info = bytes(value).strip(), _bare(info)
        if isinstance(info, inspect.UnionType):
            return self.written(value, part) if (part := _part_for(text, info)) is not None else value
        if isinstance(info, inspect.StructType) and text.startswith(b"{"):
            return self._object(text, info)
        if isinstance(info, inspect.ListType) and text.startswith(b"[") and isinstance(_bare(info.item_type), _HOLDERS):
            return self._list(text, info.item_type)
        if isinstance(info, inspect.IntType) and _FRACTION.fullmatch(text):
            number = float(text)
            return msgspec.Raw(b"%d" % number) if number.is_integer() and abs(number) < _EXACT_BELOW else value
        return value

    def _object(self, text: bytes, info: inspect.StructType) -> msgspec.Raw:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        for field in info.fields:
            if field.encode_name in fields:
                fields[field.encode_name] = self.written(fields[field.encode_name], field.type)
        return msgspec.Raw(msgspec.json.encode(fields))

    def _list(self, text: bytes, item: inspect.Type) -> msgspec.Raw:
        items = msgspec.json.decode(text, type=list[msgspec.Raw])
        self._left -= len(items)
        if self._left < 0:
            raise _TooMany
        return msgspec.Raw(msgspec.json.encode([self.written(one, item) for one in items]))


def _bare(info: inspect.Type) -> inspect.Type:
    return _bare(info.type) if isinstance(info, inspect.Metadata) else info


def _part_for(text: bytes, union: inspect.UnionType) -> inspect.Type | None:
    """The part of a union that a value of this form belongs to, if that part can hold an integer."""
    if text.startswith(b"{"):
        structs = [part for part in union.types if isinstance(part, inspect.StructType)]
        return structs[0] if len(structs) == 1 else _tagged(text, structs)
    wanted = inspect.ListType if text.startswith(b"[") else inspect.IntType
    return next((part for part in union.types if isinstance(part, wanted)), None)


def _tagged(text: bytes, structs: list[inspect.StructType]) -> inspect.StructType | None:
    fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    for struct in structs:
        tag = fields.get(struct.tag_field or "")
        if tag is not None and msgspec.json.decode(tag) == struct.tag:
            return struct
    return None
