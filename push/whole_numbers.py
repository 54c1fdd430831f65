"""JSON has one kind of number: 6.0 is 6, and some languages write it so. Our decoder tells the two apart."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

_FRACTION: Final = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_EXACT_BELOW: Final = 2**53
"""From here on a float is not one whole number but the nearest of several."""

_info = cache(inspect.type_info)


def with_whole_numbers(text: bytes, kind: Any) -> bytes:
    """The same JSON, with 6 for 6.0 and 100 for 1e2 where `kind` has an integer; all else is left as it was written.

    It takes far longer than to decode the text, so it is for what the decoder refused. Raises `msgspec.DecodeError` or
    `RecursionError` where it cannot read on.
    """
    return bytes(_written(msgspec.Raw(text), _info(kind)))


def _written(value: msgspec.Raw, info: inspect.Type) -> msgspec.Raw:
    """`value` as `info` would have it; itself where that says nothing about it."""
    text = bytes(value).strip()
    if isinstance(info, inspect.Metadata):
        return _written(value, info.type)
    if isinstance(info, inspect.UnionType):
        return _written(value, part) if (part := _part_for(text, info)) is not None else value
    if isinstance(info, inspect.StructType) and text.startswith(b"{"):
        return _object(text, info)
    if isinstance(info, inspect.ListType) and text.startswith(b"["):
        items = [_written(item, info.item_type) for item in msgspec.json.decode(text, type=list[msgspec.Raw])]
        return msgspec.Raw(msgspec.json.encode(items))
    if isinstance(info, inspect.IntType) and _FRACTION.fullmatch(text):
        number = float(text)
        return msgspec.Raw(b"%d" % number) if number.is_integer() and abs(number) < _EXACT_BELOW else value
    return value


def _object(text: bytes, info: inspect.StructType) -> msgspec.Raw:
    kinds = {field.encode_name: field.type for field in info.fields}
    fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    written = {name: _written(value, kinds[name]) if name in kinds else value for name, value in fields.items()}
    return msgspec.Raw(msgspec.json.encode(written))


def _part_for(text: bytes, union: inspect.UnionType) -> inspect.Type | None:
    """The part of a union that a value of this form belongs to, if it can hold an integer."""
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
