"""Computes a message's due time, expiry, priority, and the stamp that its order is sorted by."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from backend_store.client import HybridClock, parse_stamp
from backend_store.model import QueueConfig, Stamp
from gateway.limits import HORIZON_MS_MAX, PRODUCER_SEQ_MAX
from gateway.publishing.columns import CallColumns

SECONDS_KEPT_MAX: Final = 4_096
"""Parsed seconds that are cached: the messages of a call were stamped within a few."""

Column = Sequence[Any] | None


def priorities(given: CallColumns, config: QueueConfig) -> Column:
    """Priorities from 0 to `priorities` - 1; None if all are 0."""
    values = given.column("priority")
    if values is None or values.count(0) == given.count:
        return None
    return given.number("priority", 0, config.priorities - 1, " in this queue")


def due_times(given: CallColumns, config: QueueConfig, now_ms: int) -> Sequence[int] | None:
    """Due times in ms, 0 for at once; None if all are. A message has `delay_ms` or `deliver_at`, else the queue's
    delay."""
    if (why := _why_no_delay(config)) is not None:
        _refuse(given, "deliver_at", why)
        if any(given.column("delay_ms") or ()):
            _refuse(given, "delay_ms", why)
        return None
    delays = given.number("delay_ms", 0, HORIZON_MS_MAX)
    times = _times_us(given, "deliver_at")
    usual = now_ms + config.delay_ms if config.delay_ms else 0
    if times is None:
        if delays is None:
            return [usual] * given.count if usual else None
        return [usual if d is None else now_ms + d if d else 0 for d in delays]
    out = []
    for number, (delay, time) in enumerate(zip(delays or [None] * given.count, times, strict=True)):
        due_ms = usual if delay is None else now_ms + delay if delay else 0
        if time is not None:
            if delay is not None:
                given.wrong(number, "deliver_at", "set either `delay_ms` or `deliver_at`, not both")
            due_ms = -(-time // 1000)
            if due_ms > now_ms + HORIZON_MS_MAX:
                given.wrong(number, "deliver_at", f"deliver_at must be at most {HORIZON_MS_MAX} ms from now")
        out.append(due_ms if due_ms > now_ms else 0)
    return out


def expiries(given: CallColumns, config: QueueConfig, now_ms: int, dues: Sequence[int] | None) -> Sequence[int] | None:
    """Expiry times in ms, 0 for never; None if no message expires. A delayed message's TTL begins when it is due."""
    if config.kind == "stream":
        _refuse(given, "ttl_ms", "a stream keeps all messages for its retention_ms")
        return None
    ttls = given.number("ttl_ms", 1, HORIZON_MS_MAX)
    if ttls is not None and config.sequencing == "clock":
        _refuse_short_lives(given, ttls, config.sort_window_ms)
    usual = config.message_ttl_ms
    if ttls is None:
        if usual is None:
            return None
        return [now_ms + usual] * given.count if dues is None else [(due or now_ms) + usual for due in dues]
    longest = HORIZON_MS_MAX if usual is None else usual
    starts = [now_ms] * given.count if dues is None else [due or now_ms for due in dues]
    none = 0 if usual is None else usual
    lives = [none if ttl is None else min(ttl, longest) for ttl in ttls]
    return [start + life if life else 0 for start, life in zip(starts, lives, strict=True)]


def _why_no_delay(config: QueueConfig) -> str | None:
    """Why messages of the queue cannot be delayed; None if they can."""
    if config.kind == "stream":
        return "a stream is read in log order, so messages cannot be delayed"
    if config.sequencing != "arrival":
        return f"this queue is sorted (`sequencing: {config.sequencing}`), so messages cannot be delayed"
    return None


def _refuse_short_lives(given: CallColumns, ttls: Sequence[int | None], window_ms: int) -> None:
    for number, ttl in enumerate(ttls):
        if ttl is not None and ttl <= window_ms:
            detail = (
                f"ttl_ms must be more than {window_ms}, the queue's sort_window_ms, not {ttl}: the message would "
                "expire before its position in the order is known"
            )
            given.wrong(number, "ttl_ms", detail)


def _refuse(given: CallColumns, name: str, why: str) -> None:
    for number, value in enumerate(given.column(name) or ()):
        if value:
            given.wrong(number, name, f"{why}; remove {name}")


# ------------------------------------------------------------------------------------------------------- stamps


def stamp_columns(given: CallColumns, config: QueueConfig, now_ms: int, clock: HybridClock) -> dict[str, Sequence[Any]]:
    """The columns `ts` (timestamp, µs), `pr` and `ps` (producer and its sequence number), if messages have them."""
    out: dict[str, Sequence[Any]] = {}
    times: Column = _times_us(given, "timestamp")
    if config.sequencing == "clock":
        times = _stamped(given.count, times, now_ms * 1000, clock)
    if times is not None:
        out["ts"] = times
    producers = given.text("producer")
    numbers = given.number("producer_seq", 1, PRODUCER_SEQ_MAX)
    if producers is not None or numbers is not None:
        _check_both(given, producers, numbers)
        out["pr"] = producers or [None] * given.count
        out["ps"] = numbers or [None] * given.count
    if config.sequencing == "producer" and (producers is None or None in producers):
        _require_producer(given, producers)
    return out


def stamps(given: CallColumns, config: QueueConfig, columns: dict[str, Sequence[Any]]) -> Sequence[Stamp | None] | None:
    """What the leader sorts by; None if the queue keeps the order of arrival."""
    if config.sequencing == "arrival" or given.has_errors:
        return None
    none = [None] * given.count
    times, producers, numbers = columns.get("ts", none), columns.get("pr", none), columns.get("ps", none)
    return [
        Stamp(time or 0, producer or "", number or 0)
        for time, producer, number in zip(times, producers, numbers, strict=True)
    ]


def _stamped(count: int, times: Column, now_us: int, clock: HybridClock) -> Sequence[int]:
    """A time for each message: its own, or the gateway's hybrid clock, which never falls behind a time it has seen."""
    if times is None:
        return list(clock.span(count, now_us))
    own = [time for time in times if time is not None]
    if own:
        clock.receive(max(own), now_us)
    return [clock.tick(now_us) if time is None else time for time in times]


def _check_both(given: CallColumns, producers: Column, numbers: Column) -> None:
    for number in range(given.count):
        has_name = producers is not None and producers[number] is not None
        has_number = numbers is not None and numbers[number] is not None
        if has_name != has_number:
            missing = "producer_seq" if has_name else "producer"
            given.wrong(number, missing, "set `producer` and `producer_seq` together")


def _require_producer(given: CallColumns, producers: Column) -> None:
    detail = (
        "this queue is ordered by producer (`sequencing: producer`): set `producer` to a name and increase "
        "`producer_seq` from 1 with each message, as the SDKs do"
    )
    for number in range(given.count):
        if producers is None or producers[number] is None:
            given.wrong(number, "producer", detail)


def _times_us(given: CallColumns, name: str) -> Sequence[int | None] | None:
    texts = given.column(name)
    if texts is None:
        return None
    try:
        return [None if text is None else time_us(text) for text in texts]
    except ValueError:
        return [_time_us(given, number, name, text) for number, text in enumerate(texts)]


def _time_us(given: CallColumns, number: int, name: str, text: str | None) -> int | None:
    try:
        return None if text is None else time_us(text)
    except ValueError as error:
        given.wrong(number, name, f"invalid time {text!r:.100} for {name}: {error}")
        return None


def time_us(text: str) -> int:
    """An RFC 3339 time in µs since 1970. Raises `ValueError`."""
    if text[19:20] == "." and text[26:] == "Z" and (digits := text[20:26]).isdigit() and digits.isascii():
        return _second_us(text[:19]) + int(digits)  # as SDKs write it
    return parse_stamp(text)


@lru_cache(maxsize=SECONDS_KEPT_MAX)
def _second_us(text: str) -> int:
    return parse_stamp(text + "Z")
