"""Late messages at the head of their keys, on the real server: also when it is killed while a consumer has the key."""

from __future__ import annotations

from typing import Any

from tests.integration.calls import Client, publish, receive
from tests.support.server import PushqServer

CONFIG = {"ordering": "strict", "sequencing": "producer", "late_messages": "head", "sort_window_ms": 0}


def sent(http: Client, *numbers: int, key: str = "k", producer: str = "till") -> None:
    for number in numbers:
        answer = publish(http, "sales", {"body": number, "key": key, "producer": producer, "producer_seq": number})
        assert answer.status_code == 201, answer.text


def ack(http: Client, *messages: dict[str, Any]) -> None:
    http.post("/v1/queues/sales/ack", json={"receipts": [m["receipt"] for m in messages]}).raise_for_status()


def test_a_late_message_waits_for_the_consumer_of_its_key_and_then_comes_first(server: PushqServer) -> None:
    with Client(base_url=server.url, headers=server.headers, timeout=15) as http:
        assert http.put("/v1/queues/sales", json=CONFIG).status_code == 201
        sent(http, 3, 4)
        (held,) = receive(http, "sales", max=1, wait_ms=5000)
        assert held["body"] == 3
        sent(http, 1)
        server.kill()
        server.start()
        sent(http, 2)
        sent(http, 7, key="other", producer="other")
        (other,) = receive(http, "sales", wait_ms=5000)
        assert other["body"] == 7 and receive(http, "sales") == []
        ack(http, held, other)
        came = receive(http, "sales", max=1, wait_ms=5000)
        for _ in range(2):
            ack(http, came[-1])
            came += receive(http, "sales", max=1, wait_ms=5000)
        assert [(m["body"], (m.get("ordering") or {}).get("late", False)) for m in came] == [
            (1, True),
            (2, True),
            (4, False),
        ]
