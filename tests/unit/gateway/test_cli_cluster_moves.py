"""`pushq cluster move`, `moves` and `apply-plan` at a server whose queues move as fast as a test wants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli import cli
from gateway.commands.exits import Exit

SINCE = "2026-01-31T12:00:00.000Z"
NEVER = 1_000_000


class Clusters:
    """us and eu; queues of the tenants default and acme."""

    def __init__(self) -> None:
        self.lies = {("default", "orders"): "us", ("default", "clicks"): "us", ("acme", "theirs"): "us"}
        self.partitions = {"orders": 1, "clicks": 2}
        self.moves: dict[tuple[str, str], dict[str, Any]] = {}
        self.looks_until_sealed = 1
        self.has_clusters = True
        self.refuses: set[str] = set()
        """Queues that cannot move."""
        self.acts: list[str] = []

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        path = path.partition("?")[0]
        if method != "GET":
            self.acts.append(f"{method} {path} {json.dumps(body)}" if body else f"{method} {path}")
        if path.startswith("/v1/cluster"):
            if not self.has_clusters:
                return _problem(404, "not-found", "this server keeps its messages itself")
            return self._of_clusters(method, path.removeprefix("/v1/cluster"), body)
        if path == "/v1/usage":
            return 200, {"tenant": "default", "items": [], "next": None}
        if path == "/v1/queues":
            return 200, {"items": [self._queue(name) for name in self.partitions], "next": None}
        name = path.removeprefix("/v1/queues/")
        if method == "PATCH":
            self.partitions[name] = body["partitions"]
        return 200, self._queue(name)

    def _queue(self, name: str) -> dict[str, Any]:
        return {"name": name, "config": {"partitions": self.partitions[name]}}

    def _of_clusters(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if path == "":
            return 200, {"clusters": [{"name": "us"}, {"name": "eu"}]}
        if path == "/moves" and method == "GET":
            return 200, {"items": list(self.moves.values())}
        if path == "/moves":
            return self._begin(body["tenant"], body["queue"], body["to"])
        _, _, tenant, queue = path.split("/")
        if (tenant, queue) not in self.lies:
            return _problem(404, "queue-not-found", f"there is no queue {queue!r}")
        if method == "DELETE":
            del self.moves[tenant, queue]
            return 204, None
        self._look(tenant, queue)
        found = [move for move in self.moves.values() if (move["tenant"], move["queue"]) == (tenant, queue)]
        return 200, {"tenant": tenant, "queue": queue, "cluster": self.lies[tenant, queue], "moves": found}

    def _begin(self, tenant: str, queue: str, to: str) -> tuple[int, Any]:
        if queue in self.refuses:
            return _problem(409, "conflict", f"queue {queue!r} cannot move now")
        source = self.lies[tenant, queue]
        if (tenant, queue) not in self.moves:
            self.moves[tenant, queue] = move_of(tenant, queue, source, to, self.looks_until_sealed)
        return 202, self.moves[tenant, queue]

    def _look(self, tenant: str, queue: str) -> None:
        move = self.moves.get((tenant, queue))
        if move is None or move["state"] != "sealing":
            return
        move["left"] -= 1
        if move["left"] < 0:
            move.update(state="draining", left=3)
            self.lies[tenant, queue] = move["to"]


def move_of(tenant: str, queue: str, source: str, to: str, left: int) -> dict[str, Any]:
    """`left`: how often it is looked at before it is sealed."""
    return {
        "tenant": tenant,
        "queue": queue,
        "from": source,
        "to": to,
        "state": "sealing",
        "since": SINCE,
        "left": left,
    }


def _problem(status: int, code: str, detail: str) -> tuple[int, Any]:
    return status, {"type": "about:blank", "title": "No", "status": status, "code": code, "detail": detail}


class Shell:
    def __init__(self, url: str, clusters: Clusters, folder: Path) -> None:
        self.clusters = clusters
        self._env = {"PUSHQ_KEY": "pushq_0_0", "PUSHQ_URL": url}
        self._file = folder / "plan.json"

    def __call__(self, *arguments: str, answers: str = "") -> Result:
        return CliRunner().invoke(cli, ["cluster", *arguments], env=self._env, prog_name="pushq", input=answers)

    def apply(self, *arguments: str, answers: str = "", **plan: Any) -> Result:
        self._file.write_text(json.dumps({"version": 1, **plan}))
        return self("apply-plan", str(self._file), *arguments, answers=answers)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setattr("gateway.commands.cluster_moves.LOOK_S", 0.01)
    clusters = Clusters()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, found = clusters.answer(self.command, self.path, json.loads(given) if given else None)
            body = b"" if found is None else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json" if status < 300 else "application/problem+json")
            self.send_header("content-length", str(len(body)))
            self.send_header("etag", '"1-1"')
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PATCH = do_DELETE = do_GET

        def log_message(self, *arguments: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as http:
        Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield Shell(f"http://127.0.0.1:{http.server_address[1]}", clusters, tmp_path)
        finally:
            http.shutdown()


ORDERS = {"queue": "orders", "from": "us", "to": "eu"}
THEIRS = {"queue": "theirs", "tenant": "acme", "from": "us", "to": "eu"}
CLICKS = {"queue": "clicks", "partitions": 4, "clusters": ["us"]}


def begun(queue: str, tenant: str = "default") -> str:
    return f"POST /v1/cluster/moves {json.dumps({'tenant': tenant, 'queue': queue, 'to': 'eu'})}"


def test_a_move_is_waited_for_until_publishes_arrive(shell: Shell) -> None:
    found = shell("move", "orders", "--to", "eu")
    assert found.exit_code == 0 and shell.clusters.acts == [begun("orders")], found.output
    assert 'publishes to "orders" arrive at eu; us delivers 3 messages that it still has' in found.output
    again = shell("move", "orders", "--to", "eu", "--json")
    assert (json.loads(again.output)["cluster"], shell.clusters.acts) == ("eu", [begun("orders")])


def test_a_move_goes_on_without_who_began_it(shell: Shell) -> None:
    shell.clusters.looks_until_sealed = NEVER
    at_once = shell("move", "orders", "--to", "eu", "--wait", "0")
    assert at_once.exit_code == 0 and "on its way from us to eu" in at_once.output
    late = shell("move", "orders", "--to", "eu", "--wait", "0.05")
    assert late.exit_code == Exit.FAILED and "not in eu yet, it lies in us" in late.output
    assert "the move goes on" in late.output


def test_a_move_that_somebody_gave_up_is_not_waited_for_without_end(shell: Shell) -> None:
    shell.clusters.looks_until_sealed = NEVER
    shell("move", "orders", "--to", "eu", "--wait", "0")
    stayed = shell("move", "orders", "--give-up")
    assert stayed.exit_code == 0 and 'queue "orders" stays in us' in stayed.output
    assert shell.clusters.acts[-1] == "DELETE /v1/cluster/moves/default/orders" and not shell.clusters.moves


def test_a_queue_of_another_tenant_is_named_with_it(shell: Shell) -> None:
    assert shell("move", "theirs", "--to", "eu", "--tenant", "acme").exit_code == 0
    assert shell.clusters.acts == [begun("theirs", "acme")]
    absent = shell("move", "theirs", "--to", "eu")
    assert absent.exit_code == Exit.NOT_FOUND


@pytest.mark.parametrize("arguments", [(), ("--to", "eu", "--give-up")])
def test_a_queue_goes_somewhere_or_is_left(shell: Shell, arguments: tuple[str, ...]) -> None:
    found = shell("move", "orders", *arguments)
    assert found.exit_code == Exit.USAGE and shell.clusters.acts == []


def test_what_is_on_its_way_is_listed(shell: Shell) -> None:
    assert "no queue is on its way" in shell("moves").output
    shell.clusters.looks_until_sealed = NEVER
    shell("move", "orders", "--to", "eu", "--wait", "0")
    shell.clusters.moves["default", "orders"]["left"] = None
    table = shell("moves").output.splitlines()
    assert [line.split() for line in table] == [
        ["TENANT", "QUEUE", "FROM", "TO", "STATE", "SINCE", "LEFT"],
        ["default", "orders", "us", "eu", "sealing", SINCE, "–"],
    ]
    assert json.loads(shell("moves", "--json").output)["items"][0]["queue"] == "orders"


def test_a_plan_is_carried_out_one_queue_after_the_other(shell: Shell) -> None:
    found = shell.apply("--yes", "--json", moves=[ORDERS, THEIRS], partitions=[CLICKS])
    assert found.exit_code == 0, found.output
    resized = 'PATCH /v1/queues/clicks {"partitions": 4}'
    assert shell.clusters.acts == [resized, begun("orders"), begun("theirs", "acme")]
    rows = json.loads(found.output)["items"]
    assert [(row["queue"], row["state"]) for row in rows] == [
        ("orders", "done"),
        ("theirs", "done"),
        ("clicks", "done"),
    ]
    assert {move["state"] for move in shell.clusters.moves.values()} == {"draining"}


def test_a_plan_that_is_run_again_does_what_is_left(shell: Shell) -> None:
    shell.clusters.refuses = {"theirs"}
    broken = shell.apply("--yes", moves=[ORDERS, THEIRS], partitions=[CLICKS])
    assert broken.exit_code == Exit.FAILED and "cannot move now" in broken.output
    assert "this was moves[1]; 2 of 3 are done: run it again" in broken.output
    shell.clusters.refuses, shell.clusters.acts = set(), []
    again = shell.apply("--yes", moves=[ORDERS, THEIRS], partitions=[CLICKS])
    assert again.exit_code == 0 and shell.clusters.acts == [begun("theirs", "acme")], again.output
    assert again.output.count("passed over") == 2
    nothing = shell.apply(moves=[ORDERS, THEIRS], partitions=[CLICKS])
    assert nothing.exit_code == 0 and nothing.output.count("passed over") == 3


def test_a_plan_stops_at_a_queue_that_does_not_arrive(shell: Shell) -> None:
    shell.clusters.looks_until_sealed = NEVER
    late = shell.apply("--yes", "--wait", "1", moves=[ORDERS, THEIRS])
    assert late.exit_code == Exit.FAILED and shell.clusters.acts == [begun("orders")]
    assert "not in eu yet" in late.output and "this was moves[0]; 0 of 2 are done" in late.output


def test_a_plan_is_asked_for_and_nothing_is_done_without_the_answer(shell: Shell) -> None:
    refused = shell.apply(moves=[ORDERS], partitions=[CLICKS], answers="n\n")
    assert refused.exit_code == Exit.FAILED and shell.clusters.acts == []
    assert "Move 1 queue to other clusters and set the partitions of 1 queue, at http://" in refused.output
    assert shell.apply(moves=[ORDERS], answers="y\n").exit_code == 0
    assert shell.clusters.acts == [begun("orders")]


@pytest.mark.parametrize("is_dry", [False, True])
def test_a_plan_with_entries_that_cannot_be_carried_out_begins_nothing(shell: Shell, is_dry: bool) -> None:
    clicks = {"queue": "clicks", "from": "us", "to": "eu", "partition": 0}
    split = {"queue": "orders", "partitions": 4, "clusters": ["us", "eu"]}
    moves = [THEIRS | {"from": "eu", "to": "us"}, clicks, THEIRS | {"queue": "gone"}]
    shell.clusters.lies["acme", "theirs"] = "asia"
    found = shell.apply("--dry-run" if is_dry else "--yes", moves=moves, partitions=[split])
    assert found.exit_code == Exit.FAILED and shell.clusters.acts == []
    assert "4 entries cannot be carried out, and nothing was begun" in found.output
    for said in (
        "moves[0].from is 'eu'",
        "moves[1].partition is 0",
        "moves[2].queue",
        "partitions[0].clusters names 2",
    ):
        assert said in found.output


def test_a_plan_with_a_cluster_that_there_is_not_begins_nothing(shell: Shell) -> None:
    found = shell.apply("--yes", moves=[ORDERS | {"to": "asia"}])
    assert found.exit_code == Exit.FAILED and "moves[0].to: there is no cluster 'asia'" in found.output
    assert shell.clusters.acts == []


def test_a_dry_run_shows_what_would_be_done(shell: Shell) -> None:
    shell("move", "theirs", "--to", "eu", "--tenant", "acme")
    found = shell.apply("--dry-run", moves=[ORDERS, THEIRS])
    assert found.exit_code == 0 and "the plan is good: 2 moves" in found.output
    assert "to do" in found.output and "passed over" in found.output
    assert shell.clusters.acts == [begun("theirs", "acme")]


def test_without_clusters_a_plan_is_checked_and_not_carried_out(shell: Shell) -> None:
    shell.clusters.has_clusters = False
    checked = shell.apply("--dry-run", moves=[ORDERS, THEIRS])
    assert checked.exit_code == 0 and "not looked up" in checked.output
    refused = shell.apply("--yes", moves=[ORDERS])
    assert refused.exit_code == Exit.NOT_FOUND and "keeps its messages itself" in refused.output
