"""Publishes rows to a queue, each once: every message has an id, and a queue with `dedupe: id` stores each id once.

A retried task, or a batch after a restart, publishes the same ids; nothing is stored twice within the queue's
`dedupe_window_ms`. Messages become visible as their tasks store them, not all at once at the end of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark.source.errors import Refused, WrongOption, WrongRow
from spark.source.gateway import Gateway
from spark.source.ids import DerivedIds
from spark.source.limits import PUBLISH_BYTES_MAX
from spark.source.options import Options
from spark.source.outgoing import check_columns, content_of, message_json
from spark.source.rows import opened, told_apart
from spark.source.sealing import Sealer

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """The result of one task. `known` counts messages that the queue already had."""

    messages: int
    known: int


def checked_target(options: Options, overwrite: bool) -> None:
    """Raises `WrongOption` if the queue cannot be written as requested."""
    if overwrite:
        raise WrongOption("mode", 'a queue cannot be overwritten: use .mode("append")')
    if not options.exactly_once:
        return
    with Gateway(options.url, options.token, options.retry_s) as gateway:
        config = gateway.config(options.queue)
    if config.get("dedupe") != "id" and config.get("delivery") != "exactly_once":
        raise WrongOption(
            "exactlyOnce",
            f"queue {options.queue!r} does not keep ids (dedupe is {config.get('dedupe')!r}): a retried task would "
            'publish twice. Set the queue\'s dedupe to "id", or this option to false for at-least-once delivery',
        )


class BatchWriter(DataSourceWriter):
    """Writes one job. Set `run` if a restarted job must not publish twice."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_columns(schema, options.id_column)
        self._options = options
        self._run = options.run or uuid4().hex
        """Chosen once, on the driver, and shared by all tasks of the job."""

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return written(self._options, iterator, DerivedIds(self._run, None, _context().partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Does nothing: what the tasks published is already stored."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Does nothing: what tasks stored remains; restarting the job with the same `run` stores the rest."""


class StreamWriter(DataSourceStreamWriter):
    """Writes the batches of a streaming query, whose checkpoint identifies the run."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_columns(schema, options.id_column)
        self._options = options

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        context = _context()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        assert query is not None, "a streaming query has an id"
        assert batch is not None, "a batch of a streaming query has a number"
        run = self._options.run or query
        return written(self._options, iterator, DerivedIds(run, int(batch), context.partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: what the tasks published is already stored."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: what tasks stored remains; running the batch again stores the rest."""


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "tasks write"
    return context


def written(options: Options, rows: Iterator[Row], ids: DerivedIds) -> Written:
    """Publishes the rows of one task. Raises `WrongRow`, `Refused`, `Unreachable`."""
    sealer = Sealer(options.seal_key) if options.seal_key is not None else None
    done = Written(0, 0)
    waiting: list[str] = []
    size = 0
    with Gateway(options.url, options.token, options.retry_s) as gateway:
        for number, row in enumerate(rows):
            text = _message(options, row.asDict(), ids, sealer, number)
            if waiting and (len(waiting) >= options.per_request or size + len(text) > PUBLISH_BYTES_MAX):
                _publish(gateway, options, waiting, done)
                waiting, size = [], 0
            waiting.append(text)
            size += len(text)
        if waiting:
            _publish(gateway, options, waiting, done)
    return done


def _message(options: Options, row: Mapping[str, Any], ids: DerivedIds, sealer: Sealer | None, number: int) -> str:
    try:
        if row.get("sealed") is not None:
            if sealer is None:
                raise WrongOption("sealKeyFile", "the rows are sealed: give the key they were sealed with")
            row = opened(row, sealer)
        content = content_of(row)
        if options.id_column is None:
            message_id = told_apart(row.get("id"), row.get("queue"), row.get("uid"))
        else:
            message_id = row.get(options.id_column)
        if message_id is None and options.id_column is not None:
            raise WrongRow(f'column "{options.id_column}" is null, but it is the idColumn')
        if message_id is None and options.exactly_once:
            message_id = ids.next(content)
        return message_json(content, None if message_id is None else str(message_id))
    except WrongRow as error:
        raise WrongRow(f"row {number} of the task: {error}") from None


def _publish(gateway: Gateway, options: Options, messages: list[str], done: Written) -> None:
    try:
        stored = gateway.publish(options.queue, messages, may_repeat=options.exactly_once)
    except Refused as error:
        if error.code == "message-too-large":
            raise WrongRow(f"{error}: raise the queue's max_message_bytes, or write smaller bodies") from None
        raise
    done.messages += len(messages)
    done.known += sum(1 for row in stored if row.get("duplicate"))
