"""What pages are made of: tables, words, payloads and addresses."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import web_console
from web_console.door import safe_target
from web_console.pages import alerts, cluster, dead_letters, messages, overview, queues, records, render
from web_console.server import QueueRow
from web_console.tables import Column, Table, as_csv, as_json, cut, page_of
from web_console.wording import age, counted, line_points, number, percent, plural, rate, size

TREE = Path(web_console.__file__).parents[1]


@pytest.mark.parametrize("folder", ["web_console/static/vendor", "tests/browser/vendor"])
def test_vendored_files_are_those_of_the_manifest(folder: str) -> None:
    place = TREE / folder
    rows = json.loads((place / "manifest.json").read_text())["files"]
    for row in rows:
        assert hashlib.sha256((place / row["file"]).read_bytes()).hexdigest() == row["sha256"], row["file"]
        assert row["version"] and row["licence"] and (place / row["licence_file"]).read_text()
    licences = {row["licence_file"] for row in rows}
    assert {path.name for path in place.iterdir()} == {row["file"] for row in rows} | licences | {"manifest.json"}


def _table(rows: list[dict[str, object]], **query: str) -> Table:
    columns = (Column("name", "Name", is_sortable=True), Column("n", "N", "number", is_sortable=True))
    return cut(Table("T", columns, rows, "", path="/console/t", query=query), query, default="name")


def test_a_table_is_sorted_as_the_query_asks() -> None:
    rows: list[dict[str, object]] = [{"name": "b", "n": 1}, {"name": "a", "n": None}, {"name": "C", "n": 5.5}]
    assert [row["name"] for row in _table(list(rows)).rows] == ["a", "b", "C"]
    assert [row["n"] for row in _table(list(rows), sort="-n").rows] == [5.5, 1, None]
    assert [row["name"] for row in _table(list(rows), sort="secret").rows] == ["a", "b", "C"]


def test_a_page_beyond_the_last_is_the_last() -> None:
    rows: list[dict[str, object]] = [{"name": f"q{number:03}", "n": number} for number in range(120)]
    table = _table(rows, page="99", sort="n")
    assert (table.page, table.pages) == (3, 3)
    assert [row["n"] for row in page_of(table)] == list(range(100, 120))
    assert table.address(page="2") == "/console/t?page=2&sort=n"


def test_exported_texts_are_no_formulas() -> None:
    table = _table([{"name": "=HYPERLINK(1)", "n": -3}])
    assert as_csv(table).splitlines() == ["name,n", "'=HYPERLINK(1),-3"]
    assert json.loads(as_json(table)) == {"items": [{"name": "=HYPERLINK(1)", "n": -3}]}


def test_values_read_well() -> None:
    assert (number(None), number(1234567), number(1.25)) == ("–", "1\u202f234\u202f567", "1.2")
    assert (size(999), size(1536)) == ("999 B", "1.5 KiB")
    assert (percent(1.0), percent(0.332), percent(1 / 256), percent(0)) == ("100%", "33%", "0.4%", "0%")
    assert (age(5), age(65_000), age(3 * 86_400_000 + 4 * 3_600_000)) == ("5 ms", "1 min 5 s", "3 d 4 h")
    assert (rate(0.25), rate(1500.0)) == ("0.2/s", "1500/s")
    assert line_points([1, None, 3]) == "0.0,18.0 120.0,2.0" and line_points([1]) == ""


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("/console/queues?sort=name", "/console/queues?sort=name"),
        (None, "/console"),
        ("https://elsewhere.example/console", "/console"),
        ("//elsewhere.example/console", "/console"),
        ("/\\elsewhere.example", "/console"),
        ("/consoles", "/console"),
        ("/console/login", "/console"),
        ("//[", "/console"),
        ("/console/\n", "/console"),
    ],
)
def test_signing_in_leads_to_pages_of_the_console_only(text: str | None, place: str) -> None:
    assert safe_target(text) == place


def test_a_payload_is_shown_in_each_form() -> None:
    message = {"body": {"a": [1, "é"]}}
    assert messages.payload(message, "json") == '{\n  "a": [\n    1,\n    "é"\n  ]\n}'
    assert messages.payload(message, "text") == '{"a":[1,"é"]}'
    assert messages.payload({"body_base64": "AAH/"}, "raw") == "\\x00\\x01\\xff"
    assert messages.payload({"body_base64": "AAH/QQ=="}, "hex").startswith("00000000  00 01 ff 41 ")
    assert messages.payload({"body_base64": "AAH/"}, "json") == "\x00\x01\ufffd"
    assert messages.is_hidden({"id": "1"})


def _row(name: str, *, age_ms: int, ready: int, grown: float | None) -> QueueRow:
    rates = (None, None) if grown is None else (grown + 1, 1.0)
    return QueueRow(name, "work", ready, 0, 0, 0, age_ms, 1, 0, 0, *rates)


def test_an_old_backlog_that_grows_comes_before_an_older_one_that_does_not() -> None:
    rows = [
        _row("idle", age_ms=0, ready=0, grown=None),
        _row("stuck", age_ms=60_000, ready=5, grown=0.0),
        _row("growing", age_ms=30_000, ready=5, grown=9.0),
        _row("draining", age_ms=30_000, ready=5, grown=-9.0),
    ]
    assert [row.name for row in overview.worse(rows)] == ["growing", "stuck", "draining"]


class Looking:
    """A visit of somebody who may see queues and nothing else."""

    path, query = "/console", dict[str, str]()

    def __init__(self, rows: list[QueueRow], alerts: list[dict[str, Any]] | None = None) -> None:
        self._rows = rows
        self._alerts = None if alerts is None else {"items": alerts}

    async def queues(self) -> list[QueueRow]:
        return self._rows

    async def maybe(self, path: str, **query: Any) -> dict[str, Any] | None:
        return self._alerts if path == "/v1/alerts" else None

    def may_see(self, view: str) -> bool:
        return False


@pytest.mark.anyio
async def test_what_a_stream_keeps_is_no_backlog() -> None:
    news = QueueRow("news", "stream", 900, 0, 0, 0, 86_400_000, 0, 900, 0, 9.0, 0.0)
    orders = _row("orders", age_ms=60_000, ready=5, grown=0.0)
    shown = await overview.load(Looking([news, orders]))  # type: ignore[arg-type]
    tiles = {label: value for label, value, *_ in shown["tiles"]}
    assert (tiles["Backlog"], tiles["Oldest unacknowledged"], tiles["Published"]) == (5, 60_000, 10.0)
    assert [row["name"] for row in shown["table"].rows] == ["orders"]
    assert queues.why(news) == "" and queues.picked([news, orders], "", "unattended") == []


@pytest.mark.anyio
async def test_the_overview_says_how_many_alerts_it_leaves_out() -> None:
    firing = {"rule_name": "r", "subject": "s", "detail": "r: s: d", "silenced_by": None}
    silenced = firing | {"silenced_by": "x"}
    shown = await overview.load(Looking([], [silenced, *[firing] * 8]))  # type: ignore[arg-type]
    assert (len(shown["alerts"]), shown["more_alerts"]) == (5, 3)
    shown = await overview.load(Looking([], [silenced, *[firing] * 5]))  # type: ignore[arg-type]
    assert (len(shown["alerts"]), shown["more_alerts"]) == (5, 0)


@pytest.mark.anyio
async def test_the_overview_says_of_how_many_queues_it_shows_the_worst() -> None:
    for count, said in ((15, "oldest age × growth"), (16, "worst 15 of 16")):
        rows = [_row(f"q{number}", age_ms=1_000, ready=1, grown=0.0) for number in range(count)]
        table = (await overview.load(Looking(rows)))["table"]  # type: ignore[arg-type]
        assert table.caption.endswith(said) and len(table.rows) == 15


def test_a_dead_letter_is_listed_with_what_its_last_consumer_said() -> None:
    history = [{"outcome": "expired", "reason": None}, {"outcome": "nacked", "reason": "no such street"}]
    end = {"reason": "max_attempts", "at": "2026-11-30T20:44:11Z", "attempts": 2}
    assert dead_letters.ended({"dead_letter": {**end, "history": history}}) == {**end, "said": "nacked: no such street"}
    assert dead_letters.ended({"dead_letter": {**end, "history": history[:1]}})["said"] == "expired"
    assert dead_letters.ended({"dead_letter": {**end, "history": []}})["said"] is None


def test_a_queue_whose_cluster_is_away_is_listed_without_numbers() -> None:
    away = QueueRow("far", "work", 0, 0, 0, 0, 0, 0, 0, 0, is_away=True)
    shown = queues.as_row(away)
    assert {shown[name] for name in queues.NUMBERS} == {None} and shown["why"] == "its cluster is away"
    assert overview.worse([away, _row("idle", age_ms=0, ready=0, grown=None)]) == [away]


def test_one_of_something_is_no_plural() -> None:
    assert [counted(count, "message") for count in (0, 1, 2)] == ["0 messages", "1 message", "2 messages"]
    assert [plural(count, "copy", "copies") for count in (1, 1.5)] == ["copy", "copies"]
    counts = {"queues": 1, "in_flight": 1, "dead": 0, "consumers": 2}
    source = (TREE / "web_console/templates/console/overview.html").read_text()
    line = next(line for line in source.splitlines() if "counts[name]" in line)
    shown = render.templates().from_string(line).render(counts=counts)
    assert shown == '<p class="note">1 queue, 1 message in flight, 0 dead letters, 2 consumers.</p>'


def test_plots_name_their_lines_in_words() -> None:
    names = [name for _, _, wanted in (*queues.PLOTS, *records.NODE_PLOTS) for name in wanted]
    series = {"start_ms": 0, "step_ms": 1000, "series": {name: [1.0, 90_000.0] for name in names}}
    made = queues.plots(series, (*queues.PLOTS, *records.NODE_PLOTS))
    assert made[0][2] == "waiting 90\u202f000, in flight 90\u202f000, delayed 90\u202f000"
    assert made[2][2] == "oldest 1 min 30 s"
    told = {heading: said for heading, _, said, _ in made}
    assert told["Loop lag"] == "loop lag 90\u202f000 ms" and told["Disk used"] == "disk used 90\u202f000 %"
    assert [said for _, _, said, data in made if "_" in said or "_per_s" in data] == []
    assert queues.plots(series, words=queues.OF_STREAM)[0][2].startswith("kept ")


def test_what_an_empty_table_says_names_no_command() -> None:
    """It is read in a browser, by people without the command line."""
    said = [
        line for file in sorted((TREE / "web_console/pages").glob("*.py")) for line in file.read_text().splitlines()
    ]
    for file in sorted((TREE / "web_console/templates").rglob("*.html")):
        said += [line for line in file.read_text().splitlines() if 'class="empty"' in line]
    assert [line for line in said if "`pushq " in line or "<code>pushq " in line] == []


def test_whoever_ends_a_silence_waits_for_no_second_word_on_what_fires_already() -> None:
    assert "not notified again" in alerts._end_silence({"id": "silence_1"}).question


def _node(**fields: Any) -> dict[str, Any]:
    return {"name": "a", "alive": True, "draining": False, "removing": False, "copies": 2, **fields}


def test_what_is_asked_of_a_backend_says_what_happens_to_it() -> None:
    shards = [{"name": "0", "leader": "a"}, {"name": "1", "leader": "b"}, {"name": "2", "leader": "a"}]
    row = cluster.node_row(_node(), shards)
    assert row["leads"] == "0, 2" and [button.act for button in row["buttons"]] == ["drain", "remove"]
    assert row["buttons"][0].question.startswith("a hands over shards 0, 2.")
    assert "2 replicas of a" in row["buttons"][1].question and row["buttons"][1].word == "a"
    idle = cluster.node_row(_node(draining=True, removing=True, copies=1), shards[1:2])
    assert idle["leads"] is None and [button.act for button in idle["buttons"]] == ["end-drain", "end-removal"]
    assert cluster.node_row(_node(), [])["buttons"][0].question.startswith("a leads no shards now.")
