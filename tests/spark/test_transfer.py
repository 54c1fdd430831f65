"""Archives and replays on a real gateway: run twice, killed half-way, sealed, from a stream and from dead letters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark.jobs.main import parser
from spark.source import register
from spark.transfer.archive import archive
from spark.transfer.arguments import TransferFailed
from spark.transfer.replay import Wanted, replay
from tests.spark.calls import Gateway

KEY = "5e" * 32
COUNT = 600
BATCH = 50
REMEMBERED = "spark.sql.streaming.numRecentProgressUpdates"
WAIT_S_MAX = 180.0
LOOK_S = 0.05


@pytest.fixture(scope="module", autouse=True)
def source(session: SparkSession) -> None:
    register(session)


def stored(gateway: Gateway, queue: str) -> list[int]:
    return sorted(int(message["body"]) for message in gateway.stored(queue))


def archived(session: SparkSession, folder: Path) -> Any:
    return session.read.parquet(str(folder / "messages"))


def test_an_archive_grows_by_what_came_and_a_replay_brings_all_back_once(
    session: SparkSession, gateway: Gateway, tmp_path: Path
) -> None:
    queue, target = gateway.made(kind="stream", partitions=2), gateway.made(kind="stream", dedupe="id")
    gateway.publish(queue, *[{"body": n, "key": f"k{n}", "headers": {"n": str(n)}} for n in range(60)])
    assert archive(session, gateway.options(queue), str(tmp_path)) == 60
    gateway.publish(queue, *[{"body": n, "id": f"own{n}"} for n in range(60, 80)])
    assert archive(session, gateway.options(queue), str(tmp_path)) == 20
    rows = archived(session, tmp_path)
    assert sorted(int(bytes(row.body)) for row in rows.select("body").collect()) == list(range(80))
    days = [path.name for path in (tmp_path / "messages").iterdir() if path.name.startswith("day=")]
    assert 1 <= len(days) <= 2
    for _ in range(2):
        assert replay(session, str(tmp_path), gateway.options(target)) == 80
    assert stored(gateway, target) == list(range(80))
    by_body = {int(message["body"]): message for message in gateway.stored(target)}
    assert (by_body[7]["key"], by_body[7]["headers"], by_body[70]["id"]) == ("k7", {"n": "7"}, "own70")
    some = gateway.made(kind="stream", dedupe="id")
    replay(session, str(tmp_path), gateway.options(some), Wanted(since="2020-01-01", where="key in ('k1', 'k2')"))
    assert stored(gateway, some) == [1, 2]


def test_an_archive_of_more_batches_than_spark_remembers_is_counted_to_the_end(
    session: SparkSession, gateway: Gateway, tmp_path: Path
) -> None:
    queue = gateway.made(kind="stream")
    gateway.publish(queue, *[{"body": n} for n in range(10)])
    session.conf.set(REMEMBERED, "8")
    try:
        assert archive(session, gateway.options(queue, maxOffsetsPerBatch=1), str(tmp_path)) == 10
    finally:
        session.conf.unset(REMEMBERED)


def test_a_sealed_archive_of_dead_letters_shows_nothing_and_opens_with_its_key_alone(
    session: SparkSession, gateway: Gateway, tmp_path: Path
) -> None:
    queue, target = gateway.made(max_attempts=1), gateway.made(kind="stream", dedupe="id")
    gateway.publish(queue, *[{"body": f"secret {n}", "id": f"m{n}"} for n in range(5)])
    got = gateway.http.post(f"/v1/queues/{queue}/receive", json={"max": 5}).json()["messages"]
    receipts = [message["receipt"] for message in got]
    gateway.http.post(f"/v1/queues/{queue}/nack", json={"receipts": receipts, "delay_ms": 0, "reason": "no"})
    deadline = time.monotonic() + 20
    while len(gateway.stored(f"{queue}.dead")) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    options = gateway.options(f"{queue}.dead", seal="true", sealKey=KEY)
    assert archive(session, options, str(tmp_path)) == 5
    rows = archived(session, tmp_path).collect()
    assert all(row.body is None and row.dead_letter is None and row.sealed for row in rows)
    assert not any(b"secret" in bytes(row.sealed) for row in rows)
    for wrong, said in [({}, "sealKeyFile"), ({"sealKey": "00" * 32}, "another key")]:
        with pytest.raises(Exception, match=said):
            replay(session, str(tmp_path), gateway.options(target, **wrong))
    assert gateway.stored(target) == []
    replay(session, str(tmp_path), gateway.options(target, sealKey=KEY))
    found = {message["id"]: message["body"] for message in gateway.stored(target)}
    assert found == {f"m{n}": f'"secret {n}"' for n in range(5)}


def job(session: SparkSession, gateway: Gateway, folder: Path, *arguments: str) -> dict[str, Any]:
    """A job as `pushq usage run` runs it."""
    key = folder / "key"
    key.write_text(gateway.server.key)
    options = parser().parse_args([*arguments, "--url", gateway.server.url, "--key-file", str(key)])
    done: dict[str, Any] = import_module(f"spark.jobs.{options.job}").run(session, options)
    return done


def test_an_archive_whose_messages_were_purged_stops_and_skips_them_when_told_to(
    session: SparkSession, gateway: Gateway, tmp_path: Path
) -> None:
    queue, target, folder = gateway.made(kind="stream"), gateway.made(kind="stream", dedupe="id"), str(tmp_path)
    gateway.publish(queue, {"body": 1})
    assert job(session, gateway, tmp_path, "archive", queue, folder) == {"messages": 1, "folder": folder}
    gateway.publish(queue, {"body": 2})
    assert gateway.http.post(f"/v1/queues/{queue}/purge", json={"confirm": queue}).status_code == 202
    gateway.publish(queue, {"body": 3})
    with pytest.raises(TransferFailed, match=rf"^{queue!r}, partition 0: offsets \d+ to \d+ are gone"):
        job(session, gateway, tmp_path, "archive", queue, folder)
    assert job(session, gateway, tmp_path, "archive", queue, folder, "--skip-lost")["messages"] == 1
    assert job(session, gateway, tmp_path, "replay", folder, target) == {"messages": 2, "queue": target}
    assert stored(gateway, target) == [1, 3]


def test_an_archive_that_is_killed_half_way_goes_on_and_has_each_message_once(
    session: SparkSession, gateway: Gateway, tmp_path: Path
) -> None:
    queue, folder, count = gateway.made(kind="stream"), tmp_path / "archive", 4 * BATCH
    gateway.publish(queue, *[{"body": n} for n in range(count)])
    commits = folder / "checkpoint" / "commits"
    job = ["archive", queue, str(folder), "--max-offsets-per-batch", str(BATCH)]
    killed_when(lambda: bool(list(commits.glob("[0-9]*"))), job, gateway, tmp_path)
    assert not (commits / str(count // BATCH - 1)).exists(), "it was killed before its end"
    assert archive(session, gateway.options(queue), str(folder)) < count
    bodies = [int(bytes(row.body)) for row in archived(session, folder).select("body").collect()]
    assert Counter(bodies) == Counter(range(count))


def test_a_replay_that_is_killed_half_way_and_starts_again_stores_each_message_once(
    session: SparkSession, gateway: Gateway, tmp_path: Path
) -> None:
    queue, target = gateway.made(kind="stream"), gateway.made(kind="stream", dedupe="id")
    gateway.publish(queue, *[{"body": n} for n in range(COUNT)])
    assert archive(session, gateway.options(queue), str(tmp_path / "archive")) == COUNT
    job = ["replay", str(tmp_path / "archive"), target, "--messages-per-request", "2"]
    killed_when(lambda: gateway.stats(target)["published_total"] > 0, job, gateway, tmp_path)
    assert 0 < len(stored(gateway, target)) < COUNT, "it was killed before its end"
    assert replay(session, str(tmp_path / "archive"), gateway.options(target)) == COUNT
    assert stored(gateway, target) == list(range(COUNT))


def killed_when(is_time: Callable[[], bool], arguments: list[str], gateway: Gateway, folder: Path) -> None:
    """Starts a job and ends it with SIGKILL, Java included, as soon as it is time."""
    key = folder / "key"
    key.write_text(gateway.server.key)
    where = ["--url", gateway.server.url, "--key-file", str(key), "--master", "local[1]", "--memory", "512m"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PUSHQ_", "SPARK_", "PYSPARK_"))}
    command = [sys.executable, "-m", "spark.transfer", *arguments, *where]
    job = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, text=True
    )
    try:
        deadline = time.monotonic() + WAIT_S_MAX
        while not is_time():
            if job.poll() is not None:
                raise AssertionError(f"the job ended by itself: {job.communicate()[1][-2000:]}")
            assert time.monotonic() < deadline, "the job did not come so far"
            time.sleep(LOOK_S)
    finally:
        try:
            os.killpg(job.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        job.communicate(timeout=30)
