"""Messages with keys, ids, numbers, times and priorities, encoded ahead of time to keep the generator cheap.

Only in MessagePack, where a frame is a head followed by its messages.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from tests.bench.clients import Publisher
from tests.bench.codec import Codec, client_frame
from tests.bench.scale import BODY_BYTES, PER_FRAME, STAMP_DIGITS

Feed = Callable[[int], list[bytes]]
"""Returns the next `n` messages, each encoded."""

HOT = b"h"
"""Follows the stamp in the bodies of hot messages, so that consumers need not look at keys."""
_BINARY = 2
_NUMBER_DIGITS = 12
_MARK = "#" * _NUMBER_DIGITS
_BODY = b"0" * STAMP_DIGITS + b"x" * (BODY_BYTES - STAMP_DIGITS)
_HOT_BODY = b"0" * STAMP_DIGITS + HOT + b"x" * (BODY_BYTES - STAMP_DIGITS - len(HOT))
_POOL_MESSAGES = 8_192
_DUE_POOL_MESSAGES = 100_000
_SEED = 7
_encode = msgspec.msgpack.Encoder().encode


class FeedPublisher(Publisher):
    """Sends the messages of its feed, in frames of up to `per_frame` messages."""

    def __init__(
        self, codec: Codec, port: int, token: str, *, queue: str, feed: Feed, per_frame: int = PER_FRAME
    ) -> None:
        super().__init__(codec, port, token, queue=queue, per_frame=per_frame)
        self.feed = feed
        self._feed_per_frame = per_frame
        empty = _encode({"type": "publish", "id": 1, "queue": queue, "messages": []})
        self._feed_head = empty[:-1] + b"\xdc"

    def send(self, count: int) -> None:
        self.sent += count
        while count > 0:
            size = min(count, self._feed_per_frame)
            payload = b"".join([self._feed_head, size.to_bytes(2, "big"), *self.feed(size)])
            self.transport.write(client_frame(payload, _BINARY))
            count -= size


def _message(body: bytes = _BODY, **fields: Any) -> bytes:
    return _encode({"body": body, **fields})


def pool(messages: list[bytes]) -> Feed:
    """The same messages over and over, in order."""
    at, size = 0, len(messages)
    twice = messages * 2
    assert size >= PER_FRAME, "a frame must contain each message at most once"

    def take(count: int) -> list[bytes]:
        nonlocal at
        found = twice[at : at + count]
        at = (at + count) % size
        return found

    return take


def keyed(keys: int) -> Feed:
    """Each message has one of `keys` keys at random."""
    chance = random.Random(_SEED)
    return pool([_message(key=f"key-{chance.randrange(keys)}") for _ in range(_POOL_MESSAGES)])


def hot(keys: int, *, is_one_key: bool) -> Feed:
    """Every second message is hot: hot messages share one key, or, for comparison, have as many keys as the others."""
    chance = random.Random(_SEED)
    usual = [_message(key=f"key-{chance.randrange(keys)}") for _ in range(_POOL_MESSAGES // 2)]
    warm = [
        _message(_HOT_BODY, key="hot" if is_one_key else f"key-{chance.randrange(keys)}")
        for _ in range(_POOL_MESSAGES // 2)
    ]
    return pool([message for pair in zip(usual, warm, strict=True) for message in pair])


def prioritised(priorities: int) -> Feed:
    chance = random.Random(_SEED)
    return pool([_message(priority=chance.randrange(priorities)) for _ in range(_POOL_MESSAGES)])


def identified() -> Feed:
    """Each message has its own id."""
    before, after = _message(id=_MARK).split(_MARK.encode())
    begin = 0

    def take(count: int) -> list[bytes]:
        nonlocal begin
        begin += count
        return [b"%b%012d%b" % (before, number, after) for number in range(begin - count, begin)]

    return take


def numbered(producer: str) -> Feed:
    """Each message has its producer's next number."""
    before, after = _message(producer=producer, producer_seq=0xFFFFFFFF).split(b"\xce\xff\xff\xff\xff")
    begin = 1

    def take(count: int) -> list[bytes]:
        nonlocal begin
        begin += count
        return [before + b"\xce" + n.to_bytes(4, "big") + after for n in range(begin - count, begin)]

    return take


def clocked() -> Feed:
    """Each message has its own time, which is now to a microsecond, or later than the previous one."""
    form = "2000-01-01T00:00:00.000000Z"
    before, after = _message(timestamp=form).split(form.encode())
    last_us = 0

    def take(count: int) -> list[bytes]:
        nonlocal last_us
        first_us = max(last_us + 1, time.time_ns() // 1000)
        last_us = first_us + count - 1
        return [before + _rfc3339(us) + after for us in range(first_us, first_us + count)]

    return take


_seconds: dict[int, bytes] = {}


def _rfc3339(us: int) -> bytes:
    second, micros = divmod(us, 1_000_000)
    said = _seconds.get(second)
    if said is None:
        _seconds.clear()
        said = _seconds[second] = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()
    return b"%b.%06dZ" % (said, micros)


def due_within(first_unix_s: float, spread_ms: int, *, per_time: int) -> Feed:
    """Due at random milliseconds within `spread_ms` of the first moment; `per_time` messages share each."""
    chance = random.Random(_SEED)
    first_us = int(first_unix_s * 1000) * 1000
    messages: list[bytes] = []
    while len(messages) < _DUE_POOL_MESSAGES:
        due = _rfc3339(first_us + chance.randrange(spread_ms) * 1000).decode()
        messages += [_message(deliver_at=due)] * per_time
    return pool(messages)


def due_in(delay_ms: int) -> Feed:
    """One message for a moment on both clocks: its `deliver_at`, and the beginning of its body.

    The moment counts from now, not from when the server reads the message, so messages of a burst are not due later.
    """
    due_us = (time.time_ns() // 1_000_000 + delay_ms) * 1_000
    due_ns = time.monotonic_ns() + due_us * 1_000 - time.time_ns()
    message = _message(b"%016x" % due_ns + _BODY[STAMP_DIGITS:], deliver_at=_rfc3339(due_us).decode())
    return lambda count: [message] * count
