"""Reads a work queue as a stream: messages are leased for a batch, and acknowledged once Spark has committed it and
asks for more.

Delivery is at least once: messages that were not acknowledged, because the query ended or a batch outlasted the lease,
are delivered again. A batch passes through the driver, which alone has its receipts, so it is kept small; for large
volumes use a stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from spark.source.errors import StreamChanged, WrongOption
from spark.source.exact import messages_of
from spark.source.gateway import Gateway
from spark.source.limits import QUEUE_BATCH_MESSAGES_MAX, RECEIPTS_PER_REQUEST, RECEIVE_MESSAGES
from spark.source.options import Options
from spark.source.rows import row_of
from spark.source.sealing import Sealer


class Lot(InputPartition):
    """Rows that the driver already has."""

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        super().__init__(len(rows))
        self.rows = rows


class WorkReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is the number of a batch. This process holds the leases, so a batch of an earlier process is empty."""

    def __init__(self, options: Options, uid: str) -> None:
        if options.max_messages > QUEUE_BATCH_MESSAGES_MAX:
            detail = f"is {options.max_messages}; for a work queue it is at most {QUEUE_BATCH_MESSAGES_MAX}"
            raise WrongOption("maxMessagesPerBatch", detail)
        self._options = options
        self._uid = uid
        self._gateway = Gateway(options.url, options.token, options.retry_s)
        self._path = f"/v1/queues/{quote(options.queue, safe='')}"
        self._rows: dict[int, list[tuple[Any, ...]]] = {}
        self._receipts: dict[int, list[str]] = {}
        self._left: int | None = None
        """With `availableNow`: how many more messages the query takes."""

    def initialOffset(self) -> dict[str, Any]:
        return {"queue": self._options.queue, "uid": self._uid, "batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        stats = json.loads(self._gateway.ask("GET", self._path))["stats"]
        self._left = int(stats["ready"])

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if start.get("uid") != self._uid:
            raise StreamChanged(
                f"the checkpoint belongs to a queue with uid {start.get('uid')}, but {self._options.queue!r} now has "
                f"uid {self._uid}: use a new checkpointLocation"
            )
        # Spark reports a commit only along with the next batch, which may never come. The batch of `start` is
        # committed.
        self.commit(start)
        number = int(start["batch"]) + 1
        if number not in self._rows:
            rows, receipts = self._received()
            if not rows:
                return start
            self._rows[number], self._receipts[number] = rows, receipts
        return {**start, "batch": number}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """A batch held by an earlier process is empty: its messages are delivered again in a later one."""
        numbers = range(int(start["batch"]) + 1, int(end["batch"]) + 1)
        return [Lot(rows) for number in numbers if (rows := self._rows.get(number))]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Lot)
        return iter(partition.rows)

    def commit(self, end: dict[str, Any]) -> None:
        for number in [number for number in self._receipts if number <= int(end["batch"])]:
            receipts = self._receipts.pop(number)
            self._rows.pop(number, None)
            for at in range(0, len(receipts), RECEIPTS_PER_REQUEST):
                body = json.dumps({"receipts": receipts[at : at + RECEIPTS_PER_REQUEST]}).encode()
                self._gateway.ask("POST", f"{self._path}/ack", body=body)

    def stop(self) -> None:
        """Closes the connection; leased messages are delivered again when their leases expire."""
        self._gateway.close()

    def _received(self) -> tuple[list[tuple[Any, ...]], list[str]]:
        options = self._options
        sealer = Sealer(options.seal_key) if options.seal and options.seal_key is not None else None
        rows: list[tuple[Any, ...]] = []
        receipts: list[str] = []
        room = options.max_messages if self._left is None else min(options.max_messages, self._left)
        while len(rows) < room:
            wait_ms = 0 if rows or self._left is not None else options.wait_ms
            wanted = {
                "max": min(RECEIVE_MESSAGES, room - len(rows)),
                "wait_ms": wait_ms,
                "visibility_timeout_ms": options.visibility_ms,
            }
            _, messages = messages_of(
                self._gateway.ask("POST", f"{self._path}/receive", body=json.dumps(wanted).encode())
            )
            if not messages:
                break
            rows += [row_of(options.queue, self._uid, message, sealer) for message in messages]
            receipts += [message["receipt"] for message in messages if message["receipt"] is not None]
        if self._left is not None:
            self._left -= len(rows)
        return rows, receipts
