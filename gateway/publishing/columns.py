"""Holds the messages of a publish call column by column, as its producer sent them, and collects what is wrong.

Checks run on whole columns, so a valid column costs next to nothing per message. Only if a check fails are the messages
examined one by one, to report which ones are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, NoReturn

import msgspec

from backend_store.model import FieldError, InvalidRequest, MessageTooLarge, PushqError
from backend_store.words import counted
from push.protocol import PublishMessage

NAME_BYTES_MAX: Final = 256
HEADERS_MAX: Final = 64
HEADERS_BYTES_MAX: Final = 16 * 1024

_NAME_CHARS_SAFE: Final = NAME_BYTES_MAX // 4
"""A name of up to this many characters never exceeds `NAME_BYTES_MAX`: UTF-8 takes at most 4 bytes each."""

_BODIES_AND_NUMBERING: Final = frozenset({"body", "body_base64", "producer", "producer_seq", "timestamp", "source"})


class CallColumns:
    """A publish call's columns, each with one value per message, and the errors found so far."""

    __slots__ = ("_columns", "_large", "_wrong", "count")

    def __init__(self, count: int, columns: dict[str, Sequence[Any]]):
        self.count = count
        self._columns = columns
        self._wrong: list[tuple[int, FieldError]] = []
        self._large: list[tuple[int, FieldError]] = []

    @classmethod
    def of(cls, messages: Sequence[PublishMessage]) -> CallColumns:
        """Transposes messages of one class; leaves out columns in which no message has a value."""
        count = len(messages)
        columns = zip(
            messages[0].__struct_fields__, zip(*map(msgspec.structs.astuple, messages), strict=True), strict=True
        )
        found: dict[str, Sequence[Any]] = {name: values for name, values in columns if values.count(None) < count}
        if (priorities := found.get("priority")) is not None and None in priorities:
            found["priority"] = [priority or 0 for priority in priorities]
        return cls(count, found)

    def raw_bodies(self) -> list[bytes]:
        """Each message's `body` as it was sent; empty if it was left out."""
        return list(map(bytes, self._columns["body"]))

    def column(self, name: str) -> Sequence[Any] | None:
        """The column of a field; None if no message has a value there."""
        return self._columns.get(name)

    def beside_bodies(self) -> dict[str, Sequence[Any]]:
        """All columns as sent, except bodies, the producer's numbering and the source; a priority of 0 counts as none.

        The source of an event is part of its body or its headers.
        """
        return {
            name: values
            for name, values in self._columns.items()
            if name not in _BODIES_AND_NUMBERING and (name != "priority" or any(values))
        }

    # -------------------------------------------------------------------------------------------------- errors

    def wrong(self, number: int, name: str, detail: str) -> None:
        self._wrong.append((number, FieldError(f"/messages/{number}/{name}", detail)))

    def too_large(self, number: int, detail: str) -> None:
        self._large.append((number, FieldError(f"/messages/{number}", detail)))

    @property
    def has_errors(self) -> bool:
        return bool(self._wrong or self._large)

    def refuse(self) -> NoReturn:
        """Raises `InvalidRequest` or `MessageTooLarge` with the errors found; no message of the call is accepted."""
        found = sorted(self._wrong or self._large, key=itemgetter(0))
        kind: type[PushqError] = InvalidRequest if self._wrong else MessageTooLarge
        affected = len({number for number, _ in found})
        detail = f"{affected} of {counted(self.count, 'message')} refused, nothing was accepted: {found[0][1].detail}"
        raise kind(detail, errors=tuple(error for _, error in found))

    # -------------------------------------------------------------------------------------------- common checks

    def text(self, name: str) -> Sequence[str | None] | None:
        """A column of names, checked to have 1 to 256 bytes each."""
        values = self._columns.get(name)
        if values is None:
            return None
        sizes = [len(v) for v in values if v is not None]
        if min(sizes) < 1 or max(sizes) > _NAME_CHARS_SAFE:
            self._check_bytes(name, values)
        return values

    def _check_bytes(self, name: str, values: Sequence[str | None]) -> None:
        for number, value in enumerate(values):
            size = 1 if value is None else len(value.encode())
            if not 1 <= size <= NAME_BYTES_MAX:
                self.wrong(number, name, f"{name} must have 1 to {NAME_BYTES_MAX} bytes, not {size}")

    def number(self, name: str, low: int, high: int, unit: str = "") -> Sequence[int | None] | None:
        """A column of whole numbers, checked to lie from `low` to `high`."""
        values = self._columns.get(name)
        if values is None:
            return None
        found = values if None not in values else [v for v in values if v is not None]
        if min(found) < low or max(found) > high:
            for number, value in enumerate(values):
                if value is not None and not low <= value <= high:
                    self.wrong(number, name, f"{name} must be between {low} and {high}{unit}, not {value}")
        return values

    def headers(self) -> tuple[Sequence[dict[str, str] | None] | None, list[int]]:
        """The column of headers, checked for number and size, and the bytes of each message's headers."""
        values = self.column("headers")
        if values is None:
            return None, []
        sizes = [len("".join((*h, *h.values())).encode()) if h else 0 for h in values]
        for number, headers in enumerate(values):
            if headers and len(headers) > HEADERS_MAX:
                self.wrong(number, "headers", f"headers must have at most {HEADERS_MAX} entries, not {len(headers)}")
        if max(sizes) > HEADERS_BYTES_MAX:
            for number, size in enumerate(sizes):
                if size > HEADERS_BYTES_MAX:
                    detail = f"headers must have at most {HEADERS_BYTES_MAX} bytes, not {size}"
                    self.wrong(number, "headers", detail)
        return [h or None for h in values], sizes
