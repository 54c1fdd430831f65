"""`pushq queue export` and `import` against a real server: the same queues are the same bytes; nothing is deleted."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli
from tests.support.server import PushqServer


@pytest.fixture(scope="module")
def cli(shared_server: PushqServer) -> Cli:
    return Cli(shared_server)


@pytest.fixture
def name() -> str:
    return f"q-{uuid.uuid4().hex[:12]}"


def config(cli: Cli, queue: str) -> dict[str, Any]:
    found: dict[str, Any] = cli.http("GET", f"/v1/queues/{queue}")["config"]
    return found


def drop(cli: Cli, *queues: str) -> None:
    for queue in queues:
        cli("queue", "delete", queue, "--discard", "--yes", *cli.data)


def test_what_is_exported_makes_the_same_queues_again(cli: Cli, name: str) -> None:
    dead, stream = f"{name}-dead", f"{name}-stream"
    cli("queue", "create", dead)
    cli("queue", "create", stream, "--kind", "stream", "--retention", "1h", "--tags", '{"team": "ü"}')
    cli("queue", "create", name, "--delivery", "exactly_once", "--dead-letter-queue", dead, "--max-attempts", "3")
    names = (stream, name, dead)
    before = [config(cli, queue) for queue in names]
    written = cli("queue", "export", *names).out
    assert "created_at" not in written and "uid" not in written
    assert [entry["name"] for entry in json.loads(written)["queues"]] == sorted(names)
    drop(cli, name, stream, dead)
    made = cli("queue", "import", "-", stdin=written)
    assert made.out.splitlines() == [f"{queue}: created" for queue in sorted(names)]
    assert [config(cli, queue) for queue in names] == before
    assert cli("queue", "export", *reversed(names)).out == written, "the same bytes"
    again = cli("queue", "import", "-", stdin=written)
    assert again.out.splitlines() == [f"{queue}: same" for queue in sorted(names)]


def test_all_exports_every_queue_and_no_companion(cli: Cli, name: str) -> None:
    cli("queue", "create", name, "--max-attempts", "1")
    cli("publish", name, "x")
    receipt = cli.http("POST", f"/v1/queues/{name}/receive", b"{}")["messages"][0]["receipt"]
    cli.http("POST", f"/v1/queues/{name}/nack", json.dumps({"receipts": [receipt]}).encode())
    assert f"{name}.dead" in cli.queues()
    exported = [entry["name"] for entry in cli("queue", "export", "--all").json()["queues"]]
    assert name in exported and f"{name}.dead" not in exported
    assert exported == sorted(exported)


def test_what_differs_is_told_and_changed_only_when_asked(cli: Cli, name: str, tmp_path: Path) -> None:
    cli("queue", "create", name, "--max-attempts", "3")
    file = tmp_path / "queues.json"
    file.write_text(json.dumps({"queues": [{"name": name, "config": {"max_attempts": 5}}]}))
    told = cli.any("queue", "import", str(file))
    assert told.code == 1 and "--update" in told.err
    assert told.out.splitlines() == [f"{name}: differs", "  max_attempts: 3 → 5"]
    dry = cli("queue", "import", str(file), "--update", "--dry-run", "--json").json()
    assert dry["items"][0] == {
        "name": name,
        "result": "differs",
        "changes": {"max_attempts": {"is": 3, "wanted": 5}},
    }
    assert config(cli, name)["max_attempts"] == 3
    assert f"{name}: updated" in cli("queue", "import", str(file), "--update").out
    assert config(cli, name)["max_attempts"] == 5
    assert cli("queue", "import", str(file), "--update").out == f"{name}: same\n"


def test_dry_run_makes_nothing(cli: Cli, name: str) -> None:
    written = json.dumps({"queues": [{"name": name, "config": {}}]})
    assert cli("queue", "import", "-", "--dry-run", stdin=written).out == f"{name}: would be created\n"
    assert name not in cli.queues()


def test_what_cannot_change_is_told_and_stays(cli: Cli, name: str) -> None:
    cli("queue", "create", name)
    written = json.dumps({"queues": [{"name": name, "config": {"kind": "stream", "max_attempts": 5}}]})
    ran = cli.any("queue", "import", "-", "--update", stdin=written)
    assert ran.code == 1 and "another name" in ran.err
    assert "kind: work → stream (cannot change)" in ran.out
    assert (config(cli, name)["kind"], config(cli, name)["max_attempts"]) == ("work", 10)


def test_queues_that_name_each_other_are_made(cli: Cli, name: str) -> None:
    a, b = f"{name}-a", f"{name}-b"
    entries = [
        {"name": a, "config": {"colocate_with": b}},
        {"name": b, "config": {"colocate_with": a, "dead_letter_queue": a}},
    ]
    cli("queue", "import", "-", stdin=json.dumps({"queues": entries}))
    assert config(cli, a)["colocate_with"] == b
    assert (config(cli, b)["colocate_with"], config(cli, b)["dead_letter_queue"]) == (a, a)


def test_a_wrong_file_and_one_that_the_server_refuses(cli: Cli, name: str) -> None:
    entries = [{"name": name, "config": {}}, {"name": f"{name}-2", "config": {"max_atempts": 5}}]
    wrong = cli.any("queue", "import", "-", stdin=json.dumps({"queues": entries}))
    assert wrong.code == 2 and "FILE" in wrong.err and "max_attempts" in wrong.err
    assert name not in cli.queues(), "it is checked before anything is made"
    entries[1]["config"] = {"dead_letter_queue": "absent"}
    refused = cli.any("queue", "import", "-", stdin=json.dumps({"queues": entries}))
    assert refused.code == 1 and "absent" in refused.err
    assert refused.out.splitlines() == [f"{name}: created", f"{name}-2: missing"]


@pytest.mark.parametrize(
    ("arguments", "told", "code"),
    [
        ([], "--all", 2),
        (["q", "--all"], "--all", 2),
        (["q.dead"], 'belongs to queue "q"', 2),
        (["absent"], "absent", 6),
    ],
)
def test_export_refuses_what_it_cannot_write(arguments: list[str], told: str, code: int, cli: Cli) -> None:
    ran = cli.any("queue", "export", *arguments)
    assert (ran.code, ran.out) == (code, "") and told in ran.err
