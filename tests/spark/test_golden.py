"""Files of real servers, a folder for each version of the rows: the tables are those that stand beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from gateway.usage.schema import SCHEMA_VERSION
from gateway.usage.verify import verify
from spark.transforms.quality import ADDED, with_defaults
from spark.usage_schema import SCHEMAS
from tests.support.usage_data import EXPECTED, TABLES, tables_of

DATA = Path(__file__).resolve().parents[1] / "data"
FOLDERS = sorted(DATA.glob("usage_v*"))


def test_there_are_files_of_every_version() -> None:
    assert [folder.name for folder in FOLDERS] == [f"usage_v{n}" for n in range(1, SCHEMA_VERSION + 1)]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.name))
def test_files_of_a_version_make_the_tables_that_stand_beside_them(
    session: SparkSession, tmp_path: Path, folder: Path
) -> None:
    expected = json.loads((folder / EXPECTED).read_text())
    made = tables_of(session, folder, tmp_path)
    for name in TABLES:
        assert made[name] == expected[name], name
    assert not (tmp_path / "quarantine").exists()
    # What another reader of the same files says, which knows nothing of Spark.
    report = verify(folder)
    assert report.broken == [] and expected["audit_faults"] == []
    for kind in ("published", "settled", "expired", "dead_lettered"):
        assert sum(log.totals[kind] for log in report.logs.values()) == sum(row[kind] for row in expected["flows"])
    assert sum(log.held for log in report.logs.values()) == sum(row["outstanding"] for row in expected["audit_queues"])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.name))
def test_acts_of_a_version_are_read_with_the_types_of_today(session: SparkSession, folder: Path) -> None:
    read = session.read.schema(SCHEMAS["audit"]).option("mode", "FAILFAST")
    acts = read.json(str(folder / "audit-*.ndjson.gz")).orderBy("at", "seq").collect()
    told = [(row["tenant"], row["action"]) for row in acts if row["outcome"] == "ok"]
    assert told == [
        *[("default", "queues.put")] * 3,
        ("default", "purges.start"),
        ("default", "queues.put"),
        ("default", "tenants.put"),
        ("default", "keys.create"),
        ("acme", "queues.put"),
    ]


def test_rows_of_an_older_version_get_what_stands_for_the_fields_that_they_do_not_have(session: SparkSession) -> None:
    assert all(set(ADDED[kind]) <= {field.name for field in SCHEMAS[kind].fields} for kind in SCHEMAS)
    rows = session.createDataFrame([(1, None), (2, 7), (2, None)], "version long, retries long")
    told = with_defaults(rows, "minutes", {"minutes": {"retries": (2, 0)}})
    assert [row["retries"] for row in told.orderBy("version", F.desc("retries")).collect()] == [0, 7, None]
