"""What tests of the data source ask of a gateway beside Spark: queues, publishes, and what is in a stream."""

from __future__ import annotations

from typing import Any

from httpx2 import Client

from spark.source.exact import messages_of
from tests.support.server import PushqServer


class Gateway:
    def __init__(self, server: PushqServer) -> None:
        self.server = server
        self.http = Client(base_url=server.url, headers=server.headers, timeout=30)
        self._made = 0

    def close(self) -> None:
        self.http.close()

    def made(self, **config: Any) -> str:
        self._made += 1
        name = f"q{self._made}"
        answer = self.http.put(f"/v1/queues/{name}", json=config)
        assert answer.status_code == 201, answer.text
        return name

    def publish(self, queue: str, *messages: dict[str, Any]) -> None:
        for at in range(0, len(messages), 1000):
            batch = {"messages": messages[at : at + 1000]}
            answer = self.http.post(f"/v1/queues/{queue}/messages", json=batch)
            assert answer.status_code == 201, answer.text

    def options(self, queue: str, **more: Any) -> dict[str, str]:
        given = {"url": self.server.url, "token": self.server.key, "queue": queue, "retrySeconds": 20}
        return {name: str(value) for name, value in (given | more).items()}

    def offsets(self, queue: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.http.get(f"/v1/queues/{queue}/offsets").json()["partitions"]
        return found

    def stored(self, queue: str) -> list[dict[str, Any]]:
        """All messages of a stream or companion; `body` is JSON text."""
        found: list[dict[str, Any]] = []
        for row in self.offsets(queue):
            at = 0
            while at < row["next"]:
                path = f"/v1/queues/{queue}/partitions/{row['partition']}/messages"
                page, messages = messages_of(self.http.get(path, params={"from": at, "until": row["next"]}).text)
                found += messages
                at = page["next"]
        return found

    def stats(self, queue: str) -> dict[str, int]:
        found: dict[str, int] = self.http.get(f"/v1/queues/{queue}").json()["stats"]
        return found
