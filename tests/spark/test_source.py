"""`format("pushq")` on a real gateway: streams are read, and restarted, without loss and without doubles."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark.source import SCHEMA, register
from tests.spark.calls import Gateway
from tests.support.patience import until

QUERY_S_MAX = 120


@pytest.fixture(scope="module", autouse=True)
def source(session: SparkSession) -> None:
    register(session)


def read(session: SparkSession, gateway: Gateway, queue: str, **more: Any) -> DataFrame:
    return session.read.format("pushq").options(**gateway.options(queue, **more)).load()


def stream(session: SparkSession, gateway: Gateway, queue: str, **more: Any) -> DataFrame:
    return session.readStream.format("pushq").options(**gateway.options(queue, **more)).load()


def ended(query: StreamingQuery) -> StreamingQuery:
    """Waits for a query that takes what there is."""
    assert query.awaitTermination(QUERY_S_MAX), query.status
    return query


def into_files(rows: DataFrame, folder: Path) -> StreamingQuery:
    writer = rows.writeStream.format("json").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(availableNow=True).start(str(folder / "rows"))


def numbers(session: SparkSession, folder: Path) -> list[int]:
    rows = session.read.json(str(folder / "rows"))
    return sorted(int(row.body) for row in rows.select("body").collect())


def text(rows: DataFrame) -> DataFrame:
    return rows.withColumn("body", F.col("body").cast("string"))


def test_a_batch_reads_every_message_of_every_partition_once(session: SparkSession, gateway: Gateway) -> None:
    queue = gateway.made(kind="stream", partitions=3)
    headers = {"region": "eu"}
    gateway.publish(queue, *[{"body": n, "key": f"k{n % 7}", "headers": headers, "id": f"m{n}"} for n in range(300)])
    rows = read(session, gateway, queue, offsetsPerTask=40)
    assert rows.schema == SCHEMA
    assert rows.rdd.getNumPartitions() >= 6
    found = text(rows).collect()
    assert sorted(int(row.body) for row in found) == list(range(300))
    by_id = {row.id: row for row in found}
    row = by_id["m12"]
    assert (row.queue, row.key, row.headers, row.encoding) == (queue, "k5", headers, "json")
    assert {row.partition for row in found} == {0, 1, 2}
    (first,) = [one for one in gateway.stored(queue) if one["id"] == "m12"]
    assert (first["partition"], first["seq"]) == (row.partition, row.offset)


def test_bodies_come_as_they_were_published(session: SparkSession, gateway: Gateway) -> None:
    queue = gateway.made(kind="stream")
    exact = '{"a":1.10,"b":123456789012345678901234567890,"ü":"é"}'
    body = f'{{"messages":[{{"body":{exact}}},{{"body_base64":"AP8="}}]}}'
    answer = gateway.http.post(
        f"/v1/queues/{queue}/messages", content=body.encode(), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 201
    found = read(session, gateway, queue).orderBy("offset").collect()
    assert [bytes(row.body) for row in found] == [exact.encode(), b"\x00\xff"]
    assert [row.encoding for row in found] == ["json", "bytes"]


def test_start_and_end_are_offsets_in_each_partition(session: SparkSession, gateway: Gateway) -> None:
    queue = gateway.made(kind="stream")
    gateway.publish(queue, *[{"body": n} for n in range(50)])
    seqs = [message["seq"] for message in gateway.stored(queue)]
    bounds = {"startingOffsets": json.dumps({"0": seqs[10]}), "endingOffsets": json.dumps({"0": seqs[20]})}
    found = text(read(session, gateway, queue, **bounds)).collect()
    assert sorted(int(row.body) for row in found) == list(range(10, 20))
    assert read(session, gateway, queue, startingOffsets="latest").count() == 0


def test_a_restarted_query_neither_loses_nor_doubles(session: SparkSession, gateway: Gateway, tmp_path: Path) -> None:
    queue = gateway.made(kind="stream", partitions=2)
    gateway.publish(queue, *[{"body": n, "key": f"k{n}"} for n in range(200)])
    rows = text(stream(session, gateway, queue, maxOffsetsPerBatch=60))
    query = ended(into_files(rows, tmp_path))
    assert query.lastProgress is not None
    assert query.lastProgress.batchId >= 3, "the bound cuts it into several batches"
    gateway.publish(queue, *[{"body": n, "key": f"k{n}"} for n in range(200, 260)])
    ended(into_files(rows, tmp_path))
    assert numbers(session, tmp_path) == list(range(260))


def test_a_checkpoint_of_the_stream_before_is_refused(session: SparkSession, gateway: Gateway, tmp_path: Path) -> None:
    queue = gateway.made(kind="stream")
    gateway.publish(queue, {"body": 1})
    ended(into_files(text(stream(session, gateway, queue)), tmp_path))
    gateway.http.delete(f"/v1/queues/{queue}", params={"confirm": queue, "discard": "true"})
    assert gateway.http.put(f"/v1/queues/{queue}", json={"kind": "stream"}).status_code == 201
    gateway.publish(queue, {"body": 2})
    with pytest.raises(Exception, match=r"created again.*new checkpointLocation"):
        ended(into_files(text(stream(session, gateway, queue)), tmp_path))


def test_messages_that_are_gone_before_they_were_read_stop_the_query(
    session: SparkSession, gateway: Gateway, tmp_path: Path
) -> None:
    queue = gateway.made(kind="stream")
    gateway.publish(queue, {"body": 1})
    ended(into_files(text(stream(session, gateway, queue)), tmp_path))
    gateway.publish(queue, {"body": 2})
    assert gateway.http.post(f"/v1/queues/{queue}/purge", json={"confirm": queue}).status_code == 202
    gateway.publish(queue, {"body": 3})
    with pytest.raises(Exception, match=r"are gone .*failOnDataLoss"):
        ended(into_files(text(stream(session, gateway, queue)), tmp_path))
    ended(into_files(text(stream(session, gateway, queue, failOnDataLoss="false")), tmp_path))
    assert numbers(session, tmp_path) == [1, 3]


def test_a_stream_of_an_older_backup_stops_the_query_that_had_come_further(
    session: SparkSession, gateway: Gateway, tmp_path: Path
) -> None:
    queue, backup = gateway.made(kind="stream"), tmp_path / "backup"
    gateway.publish(queue, {"body": 1})
    gateway.server.stop()
    shutil.copytree(gateway.server.data, backup)
    gateway.server.start()
    gateway.publish(queue, *[{"body": n} for n in range(2, 50)])
    ended(into_files(text(stream(session, gateway, queue)), tmp_path))
    gateway.server.stop()
    shutil.rmtree(gateway.server.data)
    shutil.move(backup, gateway.server.data)
    gateway.server.start()
    with pytest.raises(Exception, match=r"the stream ends at offset .*backup.*failOnDataLoss"):
        ended(into_files(text(stream(session, gateway, queue)), tmp_path))
    ended(into_files(text(stream(session, gateway, queue, failOnDataLoss="false")), tmp_path))
    gateway.publish(queue, {"body": 50})
    ended(into_files(text(stream(session, gateway, queue)), tmp_path))
    assert numbers(session, tmp_path) == list(range(1, 51)), "it goes on from where the stream ended"


def test_a_work_queue_is_acknowledged_when_its_batch_is_committed(
    session: SparkSession, gateway: Gateway, tmp_path: Path
) -> None:
    queue = gateway.made()
    gateway.publish(queue, *[{"body": n} for n in range(60)])
    rows = text(stream(session, gateway, queue, maxMessagesPerBatch=40))
    ended(into_files(rows, tmp_path))
    stats = gateway.stats(queue)
    assert numbers(session, tmp_path) == list(range(60))
    assert (stats["ready"], stats["in_flight"], stats["acked_total"]) == (0, 0, 60)
    gateway.publish(queue, *[{"body": n} for n in range(60, 70)])
    ended(into_files(rows, tmp_path))
    assert numbers(session, tmp_path) == list(range(70)), "a query that goes on takes what came since"


def test_a_query_that_waits_for_more_has_acknowledged_its_last_batch(
    session: SparkSession, gateway: Gateway, tmp_path: Path
) -> None:
    queue = gateway.made()
    gateway.publish(queue, *[{"body": n} for n in range(5)])
    rows = text(stream(session, gateway, queue, waitMs=100))
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        until(lambda: gateway.stats(queue)["acked_total"] == 5, lambda: str(gateway.stats(queue)), within_s=QUERY_S_MAX)
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("url", "gateway:8080", 'option "url".*http://gateway:8080'),
        ("queue", "", 'option "queue": is missing'),
        ("startingOffsets", "first", 'option "startingOffsets".*earliest, latest'),
        ("maxOffsetsPerBatch", "0", 'option "max[oO]ffsets[pP]er[bB]atch".*of at least 1'),
        ("startOffsets", "earliest", "did you mean startingOffsets"),
        ("token", "nobody", 'option "token": the gateway does not know this key'),
        ("queue", "nowhere", 'option "queue".*no queue of that name'),
        ("seal", "true", 'option "seal": needs a key'),
    ],
)
def test_a_wrong_option_is_named_with_its_fix(
    session: SparkSession, gateway: Gateway, option: str, value: str, said: str
) -> None:
    options = gateway.options(gateway.made(kind="stream")) | {option: value}
    with pytest.raises(Exception, match=said):
        session.read.format("pushq").options(**options).load().collect()


def test_no_plan_shows_the_key(session: SparkSession, gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    queue = gateway.made(kind="stream")
    read(session, gateway, queue).explain(mode="extended")
    plan = capsys.readouterr().out
    assert "pushq" in plan
    assert gateway.server.key not in plan
