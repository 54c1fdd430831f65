"""What the pages about Spark show is run: examples on a real gateway, and commands over a real server's files."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark.session
from backend_store.core.outer import plans
from spark.jobs import main as jobs
from tests.spark.calls import Gateway
from tests.support.cli import Cli
from tests.support.usage_data import EXPECTED, TABLES, rows_of

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"
USAGE = Path(__file__).resolve().parents[1] / "data" / "usage_v1"
ENDLESS = "live_usage"


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)


def commands(page: str, start: str) -> list[list[str]]:
    """The arguments of a page's commands."""
    lines = (PAGES / page).read_text().splitlines()
    return [shlex.split(line)[len(start.split()) :] for line in lines if line.startswith(start)]


@pytest.mark.parametrize("how_many", ["to write and to read", "all"])
def test_examples_of_the_data_source_do_what_the_page_says(
    session: SparkSession, gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how_many: str
) -> None:
    monkeypatch.setattr(spark.session, "spark_session", lambda app: session)
    cli = Cli(gateway.server)
    made = commands("spark.md", "pushq queue create")
    assert len(made) == 3
    for arguments in made:
        gateway.http.delete(f"/v1/queues/{arguments[0]}", params={"confirm": arguments[0], "discard": "true"})
        cli("queue", "create", *arguments)
    examples = blocks("spark.md", "py")
    assert len(examples) >= 5
    if how_many != "all":
        examples = [example for example in examples if "Stream" not in example and "archive" not in example]
        assert len(examples) == 3
    # Spark was started before this gateway, so its environment does not have the address: options say it.
    names: dict[str, object] = {"HERE": {"url": gateway.server.url, "token": gateway.server.key}}
    for example in examples:
        told = example.replace('.format("pushq")', '.format("pushq").options(**HERE)').replace(
            '{"queue"', '{**HERE, "queue"'
        )
        exec(compile(told.replace("/srv/pushq", str(tmp_path)), "spark.md", "exec"), names)


def test_commands_over_usage_files_run_as_the_page_has_them(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jobs, "spark_session", lambda *given, **settings: session)
    monkeypatch.setattr(SparkSession, "stop", lambda self: None)  # the other tests go on with it
    (tmp_path / "usage").symlink_to(USAGE)
    shown = commands("usage-jobs.md", "pushq usage run")
    assert {one[0] for one in shown} >= {
        "usage_rollup",
        "delivery_audit",
        "report",
        "capacity_plan",
        "anomalies",
        ENDLESS,
    }
    for arguments in shown:
        here = [one.replace("/srv", str(tmp_path)) for one in arguments]
        if arguments[0] == ENDLESS:
            jobs.parser().parse_args(here)
            continue
        assert jobs.main(here) == 0, arguments
        done = json.loads(capsys.readouterr().out)
        assert done, arguments
        if arguments[0] == "capacity_plan":
            plans.parse((Path(here[here.index("--to") + 1]) / "plan.json").read_bytes())
    assert "Accounted for" in (tmp_path / "usage.html").read_text()
    expected = json.loads((USAGE / EXPECTED).read_text())
    for name in TABLES:
        assert rows_of(session, tmp_path / "tables" / name) == expected[name], name


def test_commands_for_archives_take_what_the_page_gives_them() -> None:
    shown = commands("spark.md", "pushq usage run")
    assert [jobs.parser().parse_args(one).job for one in shown] == ["archive", "replay"]
