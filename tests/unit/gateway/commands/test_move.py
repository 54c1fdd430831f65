"""What `move` publishes of a message that it took."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from gateway.commands.mover import ServerClock, Taken, outgoing

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def taken(**fields: Any) -> Taken:
    return msgspec.convert({"id": "m-1", "seq": 7, "partition": 2, "receipt": "r"} | fields, Taken)


def test_what_a_producer_said_is_kept_and_what_the_server_made_is_not() -> None:
    message = msgspec.json.decode(
        b'{"id":"m-1","seq":7,"partition":2,"receipt":"r","body":{"n": 1.50},"content_type":"application/json",'
        b'"headers":{"a":"1"},"key":"ann","priority":3,"reply_to":"answers","correlation_id":"c","attempt":4}',
        type=Taken,
    )
    assert msgspec.json.encode(outgoing(message, NOW)) == (
        b'{"body":{"n": 1.50},"id":"m-1","content_type":"application/json","headers":{"a":"1"},"key":"ann",'
        b'"priority":3,"reply_to":"answers","correlation_id":"c"}'
    )


def test_bytes_stay_bytes() -> None:
    sent = outgoing(taken(body_base64="/w==", content_type="image/png"), NOW)
    assert sent == {"body_base64": "/w==", "id": "m-1", "content_type": "image/png"}


def test_a_new_id_is_the_servers() -> None:
    assert "id" not in outgoing(taken(body_base64=""), NOW, new_id=True)


def test_what_is_left_of_its_life_goes_along() -> None:
    def left(expires_at: str) -> int:
        return int(outgoing(taken(body_base64="", expires_at=expires_at), NOW)["ttl_ms"])

    assert left("2026-01-01T12:00:01.500Z") == 1_500
    assert left("2026-01-01T11:59:59.000Z") == 1, "it expires there, too"


def test_time_is_the_servers_and_goes_on_from_its_latest_answer() -> None:
    clock = ServerClock()
    clock.hear("Thu, 01 Jan 2026 11:00:00 GMT", at=7.0)
    clock.hear("Thu, 01 Jan 2026 12:00:00 GMT", at=100.0)
    assert clock.now(at=100.0) == NOW
    assert clock.now(at=115.5) == NOW + timedelta(seconds=15.5)
    clock.hear(None, at=116.0)
    assert clock.now(at=116.0) == NOW + timedelta(seconds=16)


@pytest.mark.parametrize("date", [None, "", "yesterday"])
def test_time_is_ours_where_the_server_does_not_say_it(date: str | None) -> None:
    clock = ServerClock()
    clock.hear(date, at=7.0)
    before = datetime.now(UTC)
    assert before <= clock.now(at=1e6) <= datetime.now(UTC)
