"""A session is made with what our jobs rely on, and says what is missing."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from spark.session import CannotStart, ship_code, spark_session


def test_a_session_counts_in_utc_and_replaces_partitions_one_by_one(session: SparkSession) -> None:
    assert session.conf.get("spark.sql.session.timeZone") == "UTC"
    assert session.conf.get("spark.sql.sources.partitionOverwriteMode").lower() == "dynamic"  # type: ignore[union-attr]
    assert session.range(5).count() == 5


def test_without_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CannotStart, match="apt-get install openjdk-17-jre-headless"):
        spark_session("none")


def test_shipped_code_is_imported_by_tasks(session: SparkSession) -> None:
    ship_code(session)

    def where(_: int) -> str:
        import spark

        return str(spark.__file__)

    (found,) = set(session.sparkContext.parallelize([1, 2], 2).map(where).collect())
    assert "pushq_spark.zip" in found or found.endswith("spark/__init__.py")
