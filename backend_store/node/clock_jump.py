"""The last time that a data folder knows, and starts with a clock that is far beyond it.

Lives, windows and retention go by the clock of a start. One that is years ahead would end at once what was to stay for
years, and only a person can tell it from a long pause.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from backend_store.storage.engine import Batch, ClockAhead, Engine, Table
from backend_store.storage.keys import META_RESTORED

SEEN: Final = b"seen-at"
"""The latest time of a process that had the folder open, in milliseconds, u64. A folder of an earlier version
has none."""
_DAY_MS = 86_400_000


def refuse_clock_jump(engine: Engine, now_ms: int, days_max: int) -> None:
    """Raises `ClockAhead`."""
    seen_ms = _last_ms(engine)
    if seen_ms is not None and now_ms - seen_ms > days_max * _DAY_MS:
        days = -(-(now_ms - seen_ms) // _DAY_MS)
        detail = f"the clock says {_day(now_ms)}, {days} days after the last time in it, {_day(seen_ms)}"
        raise ClockAhead(detail, days=days)


def days_since_seen(engine: Engine, now_ms: int) -> int:
    """Whole days between the last time of the folder and now; 0 if it has none."""
    seen_ms = _last_ms(engine)
    return 0 if seen_ms is None else max(0, now_ms - seen_ms) // _DAY_MS


def note_seen(engine: Engine, batch: Batch, now_ms: int) -> None:
    """Adds the time to the batch, unless an earlier process knew a later one: a start with a clock that is behind must
    not make the right one look far ahead."""
    if (seen_ms := _time(engine, SEEN)) is None or seen_ms < now_ms:
        batch.put(Table.META, SEEN, now_ms.to_bytes(8))


def _last_ms(engine: Engine) -> int | None:
    """A backup may be older than it is allowed to be: the time of its restore counts."""
    seen_ms = _time(engine, SEEN)
    return None if seen_ms is None else max(seen_ms, _time(engine, META_RESTORED) or 0)


def _time(engine: Engine, key: bytes) -> int | None:
    row = engine.get(Table.META, key)
    return None if row is None else int.from_bytes(row)


def _day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).date().isoformat()
