"""Creates the Spark session that our jobs, tests and notebooks share.

A session reads times as UTC, merges small shuffle partitions, and splits files finely enough to keep two cores busy to
the end. Under `spark-submit`, its master and memory take precedence.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

LOCAL: Final = "local[*]"
MEMORY: Final = "2g"
SHUFFLE_PARTITIONS: Final = 16
SPLIT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of one file per task: even a small day makes a few splits per core, so that no core waits for another."""
LITTLE_LOCAL: Final = "local[2]"
LITTLE: Final = {
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # A job of a few seconds does not repay full compilation, and loading classes should not trigger garbage collection.
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:MetaspaceSize=256m",
}
"""Settings of a session for little data."""
_LOOPBACK: Final = "127.0.0.1"
_shipped: set[str] = set()


class CannotStart(RuntimeError):
    """No session can be created; the message says what is missing, and how to get it."""


def spark_session(
    app: str,
    master: str | None = None,
    memory: str | None = None,
    *,
    shuffle_partitions: int = SHUFFLE_PARTITIONS,
    little: bool = False,
    folder: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session of this process, created if there is none.

    `master` is Spark's (`local[2]`, `spark://host:7077`); `memory` is the driver's (`4g`), which only takes effect if
    this call starts the JVM. `little`: a session on this machine is configured for little data, unless `spark-submit`
    started it. `folder` is for Spark's own files, other than results. `settings` override all of ours. Raises
    `CannotStart` without Java.
    """
    _find_java()
    given = os.environ.get("SPARK_ENV_LOADED")  # set by spark-submit, which chooses master and memory
    wanted = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(shuffle_partitions),
        "spark.sql.files.maxPartitionBytes": str(SPLIT_BYTES_MAX),
        "spark.sql.sources.partitionOverwriteMode": "dynamic",
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # a tenant "007" is not a number
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Otherwise the JVM records the Python line of each expression, which takes longer than building the expression.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }
    if given is None:
        here = LITTLE_LOCAL if little else LOCAL
        wanted |= {"spark.master": master or here, "spark.driver.memory": memory or MEMORY}
        if wanted["spark.master"].startswith("local"):
            wanted |= LITTLE if little else {}
            wanted |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # tasks use the same Python as this process
    elif master is not None:
        wanted["spark.master"] = master
    if folder is not None:
        wanted |= {"spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    builder = SparkSession.builder.appName(app)
    for name, value in {**wanted, **(settings or {})}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def ship_code(session: SparkSession) -> None:
    """Ships this package to the session's executors, once, so that their Python can import it."""
    context = session.sparkContext
    if context.applicationId in _shipped:
        return
    package = Path(__file__).parent
    folder = Path(tempfile.mkdtemp(prefix="pushq-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # executors fetch it with their first task
    archive = folder / "pushq_spark.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for path in sorted(package.rglob("*.py")):
            zipped.write(path, str(path.relative_to(package.parent)))
    context.addPyFile(str(archive))
    _shipped.add(context.applicationId)


def _find_java() -> None:
    if "JAVA_HOME" in os.environ:
        return
    java = shutil.which("java", path=os.environ.get("PATH", os.defpath))
    if java is None:
        raise CannotStart(
            "Spark needs Java 17, and no `java` was found; install it: apt-get install openjdk-17-jre-headless"
        )
    os.environ["JAVA_HOME"] = str(Path(java).resolve().parents[1])
