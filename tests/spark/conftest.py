"""One Spark session for all tests of a process: it takes seconds to start and nothing to share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark.session import spark_session
from tests.spark.calls import Gateway
from tests.support import prerequisites
from tests.support.server import PushqServer


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    prerequisites.require("java")
    made = spark_session("tests", "local[2,2]", "1g", little=True, folder=tmp_path_factory.mktemp("spark"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One gateway for a file of tests."""
    env = {"PUSHQ_QUEUES__ALLOW_DELETE_OVER_HTTP": "true"}
    with PushqServer(tmp_path_factory.mktemp("gateway") / "data", env=env) as server:
        made = Gateway(server)
        yield made
        made.close()
