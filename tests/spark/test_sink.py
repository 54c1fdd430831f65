"""Rows into queues on a real gateway: whatever task fails or query starts again, each message is stored once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from spark.source import register
from spark.transfer.replay import replay_id
from tests.spark.calls import Gateway
from tests.support.patience import until

QUERY_S_MAX = 120


@pytest.fixture(scope="module", autouse=True)
def source(session: SparkSession) -> None:
    register(session)


def numbered(session: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    return session.range(0, count, 1, tasks).select(F.col("id").cast("string").alias("body"))


def write(rows: DataFrame, gateway: Gateway, queue: str, **more: Any) -> None:
    rows.write.format("pushq").options(**gateway.options(queue, **more)).mode("append").save()


def bodies(gateway: Gateway, queue: str) -> list[int]:
    return sorted(int(message["body"]) for message in gateway.stored(queue))


def spoilt(attempts: int) -> Any:
    """In so many first attempts of each task, one row is no JSON: the writer fails with what it stored before."""

    def body(text: str) -> str:
        context = TaskContext.get()
        fails = context is not None and context.attemptNumber() < attempts
        return "no JSON" if fails and int(text) % 100 == 60 else text

    return F.udf(body, StringType(), useArrow=False).asNondeterministic()


def test_a_task_that_fails_half_way_and_runs_again_stores_nothing_twice(
    session: SparkSession, gateway: Gateway
) -> None:
    queue = gateway.made(kind="stream", dedupe="id")
    rows, small = numbered(session, 200), {"run": "import-3", "messagesPerRequest": 10}
    with pytest.raises(Exception, match=r"row 60 of the task.*not JSON"):
        write(rows.select(spoilt(2)("body").alias("body")), gateway, queue, **small)
    there = bodies(gateway, queue)  # of a task's both attempts, which published the same 50 rows
    assert len(there) >= 50 and set(Counter(there).values()) == {1}
    assert 60 not in there and 160 not in there
    write(rows.select(spoilt(1)("body").alias("body")), gateway, queue, **small)
    assert bodies(gateway, queue) == list(range(200))


def test_equal_rows_are_all_stored_and_a_run_that_starts_again_adds_none(
    session: SparkSession, gateway: Gateway
) -> None:
    queue = gateway.made(kind="stream", dedupe="id")
    rows = numbered(session, 40).select((F.col("body").cast("int") % 4).cast("string").alias("body"))
    for order in ("asc", "desc"):
        again = rows.repartition(2, "body").sortWithinPartitions(getattr(F, order)("body"))
        write(again, gateway, queue, run="backfill-7")
    assert Counter(bodies(gateway, queue)) == dict.fromkeys(range(4), 10)
    write(rows, gateway, queue, run="backfill-8")
    assert len(bodies(gateway, queue)) == 80


def test_an_id_column_is_what_counts_and_every_column_arrives(session: SparkSession, gateway: Gateway) -> None:
    queue = gateway.made(kind="stream", dedupe="id")
    rows = session.createDataFrame(
        [("a", "k", '{"x":1.10}', {"h": "v"}), ("b", None, "[]", None), ("a", "k", '{"x":2}', None)],
        "order string, key string, body string, headers map<string,string>",
    ).coalesce(1)
    write(rows, gateway, queue, idColumn="order")
    first, second = gateway.stored(queue)
    assert (first["id"], first["key"], first["body"], first["headers"]) == ("a", "k", '{"x":1.10}', {"h": "v"})
    assert (second["id"], second["body"]) == ("b", "[]")


def test_messages_without_ids_of_two_streams_are_told_apart(session: SparkSession, gateway: Gateway) -> None:
    sources = [gateway.made(kind="stream"), gateway.made(kind="stream")]
    target = gateway.made(kind="stream", dedupe="id")
    for number, queue in enumerate(sources):
        gateway.publish(queue, *[{"body": number * 10 + n} for n in range(2)], {"body": 99, "id": "own"})
    one, two = (session.read.format("pushq").options(**gateway.options(queue)).load() for queue in sources)
    for _ in range(2):
        write(one.union(two), gateway, target)
    assert bodies(gateway, target) == [0, 1, 10, 11, 99], "the id that a producer gave stays as it is"


def test_dead_letters_without_ids_of_two_queues_are_told_apart(session: SparkSession, gateway: Gateway) -> None:
    sources = [gateway.made(max_attempts=1), gateway.made(max_attempts=1)]
    for number, queue in enumerate(sources):
        gateway.publish(queue, *[{"body": number * 10 + n} for n in range(2)])
        got = gateway.http.post(f"/v1/queues/{queue}/receive", json={"max": 2}).json()["messages"]
        receipts = [message["receipt"] for message in got]
        gateway.http.post(f"/v1/queues/{queue}/nack", json={"receipts": receipts, "delay_ms": 0})
        until(partial(has_dead, gateway, queue, 2), "the messages are dead", within_s=QUERY_S_MAX)
    target = gateway.made(kind="stream", dedupe="id")
    one, two = (session.read.format("pushq").options(**gateway.options(f"{queue}.dead")).load() for queue in sources)
    rows = one.union(two)
    write(rows, gateway, target)
    assert bodies(gateway, target) == [0, 1, 10, 11]
    told = rows.select(replay_id().alias("id")).collect()
    assert {row.id for row in told} == {message["id"] for message in gateway.stored(target)}, "a replay says the same"


def has_dead(gateway: Gateway, queue: str, count: int) -> bool:
    return gateway.stats(queue)["dead"] == count


def test_bytes_go_as_bytes(session: SparkSession, gateway: Gateway) -> None:
    queue = gateway.made(kind="stream", dedupe="id")
    write(session.createDataFrame([(bytearray(b"\x00\xff"),)], "body binary"), gateway, queue)
    assert [message["body_base64"] for message in gateway.stored(queue)] == ["AP8="]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("struct(id) as body", r'column "body" is struct.*to_json'),
        ("id", 'no column "body"'),
        ("'x' as body", "not JSON"),
        ("'1' as body, 7 as colour", 'column "colour" is not a field of a message'),
    ],
)
def test_a_row_that_cannot_be_a_message_says_what_to_do(
    session: SparkSession, gateway: Gateway, columns: str, said: str
) -> None:
    queue = gateway.made(kind="stream", dedupe="id")
    with pytest.raises(Exception, match=said):
        write(session.range(1).selectExpr(*columns.split(", ")), gateway, queue)
    assert gateway.stored(queue) == []


def test_a_queue_that_forgets_ids_is_refused_unless_asked_for(session: SparkSession, gateway: Gateway) -> None:
    queue = gateway.made(kind="stream", dedupe="none")
    with pytest.raises(Exception, match=r'option "exactlyOnce".*dedupe'):
        write(numbered(session, 3), gateway, queue)
    write(numbered(session, 3), gateway, queue, exactlyOnce="false")
    assert bodies(gateway, queue) == [0, 1, 2]


def test_a_streaming_query_that_runs_its_last_batch_again_stores_nothing_twice(
    session: SparkSession, gateway: Gateway, tmp_path: Path
) -> None:
    source, target = gateway.made(kind="stream", partitions=2), gateway.made(kind="stream", dedupe="id")
    gateway.publish(source, *[{"body": n, "key": f"k{n}"} for n in range(100)])

    def run() -> None:
        read = session.readStream.format("pushq").options(**gateway.options(source, maxOffsetsPerBatch=40)).load()
        rows = read.select("body", "encoding", "key")  # without ids of its own
        writer = rows.writeStream.format("pushq").options(**gateway.options(target))
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_S_MAX)

    run()
    assert bodies(gateway, target) == list(range(100))
    last = max((tmp_path / "commits").iterdir(), key=lambda path: int(path.name) if path.name.isdigit() else -1)
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)  # as if the process had died before it wrote that down
    gateway.publish(source, *[{"body": n, "key": f"k{n}"} for n in range(100, 120)])
    run()
    assert bodies(gateway, target) == list(range(120))


def test_a_gateway_that_is_killed_and_starts_again_during_a_write_costs_and_doubles_nothing(
    session: SparkSession, gateway: Gateway
) -> None:
    queue, rows, back = gateway.made(kind="stream", dedupe="id"), 1600, []

    def restart() -> None:
        deadline = time.monotonic() + QUERY_S_MAX
        while gateway.stats(queue)["published_total"] == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        gateway.server.kill()
        gateway.server.start()
        back.append(time.monotonic())

    thread = threading.Thread(target=restart)
    thread.start()
    try:
        write(numbered(session, rows), gateway, queue, messagesPerRequest=4, retrySeconds=100)
        ended = time.monotonic()
    finally:
        thread.join(QUERY_S_MAX)
    assert back and ended > back[0], "the write was not over when the gateway went"
    assert bodies(gateway, queue) == list(range(rows))
