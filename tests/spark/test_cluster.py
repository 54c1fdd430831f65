"""Jobs on a standalone master with two workers, started as the pages say: by `spark-submit`, and with `--master`."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.spark.calls import Gateway
from tests.spark.cluster import SparkCluster, env_of, write_defaults
from tests.spark.test_jobs import history, table, total
from tests.support import prerequisites
from tests.support.spark import file

ROOT = Path(__file__).resolve().parents[2]
JOB_S_MAX = 180
MESSAGES = 60


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    prerequisites.require("java")
    with SparkCluster(tmp_path / "cluster") as running:
        yield running


@pytest.fixture
def small_cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    prerequisites.require("java")
    with SparkCluster(tmp_path / "cluster", workers=1) as running:
        yield running


def submitted() -> tuple[str, str]:
    """The command that the page shows: what is submitted, and with what."""
    page = (ROOT / "docs" / "how-to" / "usage-jobs.md").read_text()
    (command,) = re.findall(r"^spark-submit .*$", page, re.MULTILINE)
    what, job, arguments = command.partition(" usage_rollup ")
    assert job
    return what, job + arguments


def done(command: list[str], env: dict[str, str], cwd: Path) -> dict[str, Any]:
    """What a job prints as its last line."""
    ended = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=JOB_S_MAX)
    assert ended.returncode == 0, ended.stderr[-4_000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def applications(cluster: SparkCluster) -> list[set[str]]:
    """Of each worker, those that had an executor there."""
    return [{path.name for path in cluster.work_dir(n).glob("app-*")} for n in range(cluster.workers)]


def test_spark_submit_as_the_page_has_it_runs_a_rollup_on_both_workers(
    session: SparkSession, cluster: SparkCluster, tmp_path: Path
) -> None:
    ledger = history()
    file(tmp_path / "usage", "ledger", 1, ledger[::2])
    file(tmp_path / "usage", "ledger", 2, ledger[1::2])
    command = "".join(submitted())
    before = applications(cluster)
    there = done(["bash", "-c", command.replace("/srv/", f"{shlex.quote(str(tmp_path))}/")], cluster.env(), tmp_path)
    assert (there["files"], there["quarantined"], there["rows"]) == (2, 0, len(ledger))
    bill = table(session, tmp_path / "tables", "bill", "published", "delivered", "expired")
    sums = tuple(map(sum, zip(*bill, strict=True)))
    assert sums == tuple(total(ledger, kind) for kind in ("published", "settled", "expired"))
    new = [now - old for now, old in zip(applications(cluster), before, strict=True)]
    assert len(new) == 2 and new[0] == new[1] and len(new[0]) == 1


def test_an_executor_that_has_none_of_our_code_reads_a_stream_with_what_is_shipped(
    session: SparkSession, gateway: Gateway, tmp_path: Path
) -> None:
    """What was submitted starts the executor, in a process of its own."""
    write_defaults(tmp_path / "conf", "local-cluster[1,1,1024]")
    command = f"{submitted()[0]} archive"
    stream_is_read(session, gateway, tmp_path, command, partial(env_of, tmp_path / "conf"))


@pytest.mark.parametrize("how", ["spark-submit", "pushq"])
def test_executors_of_a_cluster_that_have_none_of_our_code_read_a_stream_with_what_is_shipped(
    session: SparkSession, small_cluster: SparkCluster, gateway: Gateway, tmp_path: Path, how: str
) -> None:
    if how == "pushq":
        given = ["usage", "run", "archive", "--master", small_cluster.url]
        command = shlex.join([sys.executable, "-m", "gateway", *given])
    else:
        command = f"{submitted()[0]} archive"
    stream_is_read(session, gateway, tmp_path, command, small_cluster.env)


def stream_is_read(
    session: SparkSession, gateway: Gateway, folder: Path, command: str, env: Callable[..., dict[str, str]]
) -> None:
    """A command with an archive's arguments behind it, where executors have no package of ours, has every message."""
    queue = gateway.made(kind="stream", partitions=2)
    gateway.publish(queue, *[{"body": n, "key": f"k{n}"} for n in range(MESSAGES)])
    bare = bare_python(folder)
    assert subprocess.run([bare, "-c", "import pyspark, pyarrow"], cwd=folder).returncode == 0
    without = subprocess.run([bare, "-c", "import spark.source"], cwd=folder, capture_output=True, text=True)
    assert "No module named 'spark'" in without.stderr
    (folder / "key").write_text(gateway.server.key)
    to = folder / "archive"
    given = [queue, str(to), "--url", gateway.server.url, "--key-file", str(folder / "key")]
    theirs = env(PYSPARK_PYTHON=bare, PYSPARK_DRIVER_PYTHON=sys.executable)
    assert done(["bash", "-c", f"{command} {shlex.join(given)}"], theirs, ROOT)["messages"] == MESSAGES
    rows = session.read.parquet(str(to / "messages")).select("body").collect()
    assert sorted(int(bytes(row.body)) for row in rows) == list(range(MESSAGES))


def bare_python(folder: Path) -> str:
    """An interpreter with Spark and Arrow, for executors: it follows no links to packages elsewhere, such as ours."""
    packages = Path(pyspark.__file__).parents[1]
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}" exec "{sys.executable}" -S "$@"\n')
    path.chmod(0o755)
    return str(path)
