"""Derives ids for messages that have none: a row of a batch gets the same id each time its task runs.

An id is made from the query's run, the batch, the task's partition, the row's contents, and a counter of equal rows. A
repeated task may therefore see its rows in another order, as a shuffle does not guarantee one.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from spark.source.errors import WrongRow
from spark.source.limits import ROWS_COUNTED_MAX


class DerivedIds:
    def __init__(self, run: str, batch: int | None, partition: int, rows_max: int = ROWS_COUNTED_MAX) -> None:
        self._prefix = f"{run}/{'' if batch is None else batch}/{partition}".encode()
        self._seen: dict[bytes, int] = {}
        self._rows_max = rows_max

    def next(self, content: Mapping[str, Any]) -> str:
        """The id of a row. Raises `WrongRow` if a task has too many rows."""
        digest = blake2b(_written(content), key=blake2b(self._prefix).digest(), digest_size=16).digest()
        nth = self._seen.get(digest, 0)
        if not nth and len(self._seen) >= self._rows_max:
            raise WrongRow(
                f"a task has more than {self._rows_max} rows without ids: split the data into more tasks with "
                'repartition(n), or name a column with option "idColumn"'
            )
        self._seen[digest] = nth + 1
        return f"s-{digest.hex()}-{nth}"


def _written(content: Mapping[str, Any]) -> bytes:
    """The contents as bytes, each value with its name and length, so that different contents give different bytes."""
    parts = []
    for name in sorted(content):
        value = content[name]
        data = value if isinstance(value, bytes) else repr(_ordered(value)).encode()
        parts.append(b"%b:%d:%b" % (name.encode(), len(data), data))
    return b";".join(parts)


def _ordered(value: Any) -> Any:
    return sorted(value.items()) if isinstance(value, Mapping) else value
