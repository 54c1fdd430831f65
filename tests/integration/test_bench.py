"""The benchmark still runs, very small, against the real server; and its page shows what it printed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from tests.bench.__main__ import main, measure, run
from tests.bench.machine import choose_cores
from tests.bench.page import PAGE, PUBLISHED, shown
from tests.bench.report import report
from tests.bench.rows import Row, read_rows
from tests.bench.scale import SMOKE
from tests.bench.scenarios import AGAINST, KNOWN, PARTS, SCENARIOS, chosen, compared
from tests.bench.world import World
from tests.support.seeds import IS_EXPLORING

ROOT = Path(__file__).resolve().parents[2]


def _measure(name: str, folder: Path) -> Row:
    return measure(name, World(SMOKE, choose_cores(pin=False), folder, against=ROOT))


IN_GATE = ("work",)
"""Each scenario starts servers, which takes time: `make explore ARGS=bench` runs them all, and so does `make bench`."""


@pytest.mark.parametrize("name", SCENARIOS | AGAINST if IS_EXPLORING else IN_GATE)
def test_scenario_moves_every_message_once(name: str, tmp_path: Path) -> None:
    row = _measure(name, tmp_path)
    assert row["rate"] > 0
    assert (row["lost"], row["duplicates"]) == (0, 0)
    assert all(goal.figure in row for goal in KNOWN[name].goals)
    assert list(tmp_path.iterdir()) == [], "a scenario leaves nothing behind"


def test_baseline_says_what_the_machine_gives(tmp_path: Path) -> None:
    row = _measure("baseline", tmp_path)
    assert all(row[figure] > 0 for figure in ("fdatasync_us", "commit_us", "rate"))


def test_name_stands_for_the_scenarios_that_begin_with_it() -> None:
    assert chosen(["work", "idle"]) == ["work", "work-json", "idle"]
    assert chosen([]) == list(SCENARIOS)


Command = Callable[..., int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    """`python -m tests.bench` with these arguments; its exit code."""

    def command(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["tests.bench", *arguments])
        return main()

    return command


def test_unknown_scenario_is_named(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("wrok") == 2
    assert "no scenario 'wrok'; there are publish, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "code", "said"), [("idle", 2, "'idle' cannot be counted"), ("publish", 1, "valgrind")]
)
def test_what_cannot_be_counted_is_said(
    name: str,
    code: int,
    said: str,
    command: Command,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    assert command("--count", name) == code and said in capsys.readouterr().err


def test_report_shows_medians_and_says_whether_goals_are_reached() -> None:
    row = {"kind": "http-publish", "unit": "req/s", "cpu_s_per_100k": 5.0}
    rows = [{**row, "rate": rate} for rate in (9_000, 12_000, 11_000)]
    text = report(rows)
    assert "11,000 [9,000–12,000]" in text
    assert "≥ 10,000 reached" in text
    assert "**missed**" in report(rows[:1])


def test_report_leaves_disturbed_runs_out_when_asked_to() -> None:
    row = {"kind": "http-publish", "unit": "req/s", "cpu_s_per_100k": 5.0}
    rows = [{**row, "rate": 9_000, "other_cpu_pct": 80.0}, {**row, "rate": 12_000, "other_cpu_pct": 1.0}]
    assert "12,000 [12,000–12,000]" in report(rows, quiet_only=True)


def test_a_run_begins_with_the_commit_the_day_and_whether_queues_are_encrypted(tmp_path: Path) -> None:
    kept = tmp_path / "run.jsonl"
    rows = run([], SMOKE, rounds=1, pin=False, folder=tmp_path, keep=kept)
    (machine,) = read_rows(kept)
    assert rows == [machine] and machine["kind"] == "machine"
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert head.startswith(machine["commit"] or "nothing") or not head
    assert machine["encrypted"] and date.fromisoformat(machine["date"])
    assert report(rows).startswith(f"Measured on {machine['date']} at ")


def test_report_says_of_what_its_figures_are() -> None:
    machine = read_rows(PUBLISHED["published.jsonl"])[0]
    stamp = {"commit": "0123456789ab", "is_changed": True, "date": "2026-01-02", "encrypted": True}
    assert report([machine | stamp]).startswith(
        "Measured on 2026-01-02 at commit `0123456789ab` with changes, queues encrypted at rest. "
    )
    before = {name: figure for name, figure in machine.items() if name not in stamp}
    assert report([before]).startswith("Measured on an unknown day at no known commit, ")


def test_report_takes_the_pairs_of_a_run_together() -> None:
    row = {"kind": "dedupe", "unit": "msg/s", "rate": 70, "rate_usual": 100, "kept_pct": [60.0, 70.0, 80.0]}
    text = report([row])
    assert "70.00 [60.00–80.00]" in text
    assert "kept, % ≥ 65 reached" in text


def test_only_one_part_is_run_when_asked_to() -> None:
    assert set(chosen(list(PARTS["plain"]))) == set(PARTS["plain"])
    assert {name for part in PARTS.values() for name in part} == set(SCENARIOS)


def test_duties_and_plain_queues_are_compared_with_another_checkout_and_nothing_else() -> None:
    assert compared([]) == list(AGAINST)
    assert compared(["duty-all"]) == ["duty-all", "duty-all-256", "duty-all-work"]
    with pytest.raises(ValueError, match="latency is not run with --against"):
        compared(["latency"])


def test_folder_without_a_server_is_refused_as_the_other_checkout(
    tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--against", str(tmp_path)) == 2
    assert "has no gateway/__main__.py" in capsys.readouterr().err


@pytest.mark.parametrize("published", PUBLISHED)
def test_page_shows_the_published_runs_and_nothing_else(published: str) -> None:
    assert shown(PAGE.read_text(), published) == report(read_rows(PUBLISHED[published]))
