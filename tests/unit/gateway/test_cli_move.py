"""What `move` publishes of a message that it took."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from gateway.commands.mover import Taken, outgoing

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def taken(**fields: Any) -> Taken:
    return msgspec.convert({"id": "m-1", "seq": 7, "partition": 2, "receipt": "r"} | fields, Taken)


def test_what_a_producer_said_is_kept_and_what_the_server_made_is_not() -> None:
    message = msgspec.json.decode(
        b'{"id":"m-1","seq":7,"partition":2,"receipt":"r","body":{"n": 1.50},"content_type":"application/json",'
        b'"headers":{"a":"1"},"key":"ann","priority":3,"reply_to":"answers","correlation_id":"c","attempt":4}',
        type=Taken,
    )
    assert msgspec.json.encode(outgoing(message)) == (
        b'{"body":{"n": 1.50},"id":"m-1","content_type":"application/json","headers":{"a":"1"},"key":"ann",'
        b'"priority":3,"reply_to":"answers","correlation_id":"c"}'
    )


def test_bytes_stay_bytes() -> None:
    sent = outgoing(taken(body_base64="/w==", content_type="image/png"))
    assert sent == {"body_base64": "/w==", "id": "m-1", "content_type": "image/png"}


def test_a_new_id_is_the_servers() -> None:
    assert "id" not in outgoing(taken(body_base64=""), new_id=True)


def test_what_is_left_of_its_life_goes_along() -> None:
    def left(expires_at: str) -> int:
        return int(outgoing(taken(body_base64="", expires_at=expires_at), now=NOW)["ttl_ms"])

    assert left("2026-01-01T12:00:01.500Z") == 1_500
    assert left("2026-01-01T11:59:59.000Z") == 1, "it expires there, too"
