"""`pushq cluster` at a server that says what a test wants: all clusters, one of them, and one of an earlier version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from click.testing import CliRunner, Result

from gateway.cli import cli

OF_BEFORE = {"nodes": [], "shards": [], "events": []}
EU = {
    "name": "eu",
    "is_home": False,
    "model": None,
    "backends": None,
    "queues": 7,
    "utilisation": None,
    "fullest": None,
    "state": "silent",
    "detail": None,
    "hot_since": None,
    "reported_at": None,
}
NOBODY = {"holder": None, "term": None, "since": None, "seen_at": None, "is_silent": True}
GONE = NOBODY | {"holder": "one", "since": "2026-01-31T12:00:00.000Z", "seen_at": "2026-01-31T13:00:00.000Z"}
EVENT = {
    "number": 7,
    "at": "2026-01-31T12:00:00.000Z",
    "kind": "silent",
    "cluster": "eu",
    "text": "t",
    "manager": "one",
}


@contextmanager
def server(state: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Its URL, and what it was asked."""
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("content-length", 0))
            asked.append(" ".join(filter(None, (self.command, self.path, self.rfile.read(length).decode()))))
            body = json.dumps(state).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_DELETE = do_GET

        def log_message(self, *arguments: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as http:
        Thread(target=http.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{http.server_address[1]}", asked
        finally:
            http.shutdown()


def ran(state: dict[str, Any], *arguments: str) -> tuple[Result, list[str]]:
    with server(state) as (url, asked):
        env = {"PUSHQ_KEY": "pushq_0_0", "PUSHQ_URL": url}
        return CliRunner().invoke(cli, ["cluster", *arguments], env=env, prog_name="pushq"), asked


def test_a_cluster_that_was_never_heard_is_a_row_of_unknowns() -> None:
    state = OF_BEFORE | {"clusters": [EU], "managers": NOBODY, "manager_events": []}
    found, asked = ran(state, "status")
    assert found.exit_code == 0 and asked == ["GET /v1/cluster"]
    assert "no manager  –" in found.output and "no manager has run" in found.output
    assert "silent" not in found.output


def test_a_manager_that_is_silent_is_said_to_be_with_its_decisions() -> None:
    state = OF_BEFORE | {"clusters": [EU], "managers": GONE, "manager_events": [EVENT]}
    found, _ = ran(state, "status", "--events")
    assert (
        "manager away" in found.output
        and "one has been the manager since" in found.output
        and "last seen 2026-01-31T13:00" in found.output
    )
    assert "DECISION" in found.output


def test_a_cluster_that_a_manager_listens_to_and_does_not_hear_is_silent() -> None:
    state = OF_BEFORE | {"clusters": [EU], "managers": GONE | {"is_silent": False}, "manager_events": []}
    found, _ = ran(state, "status")
    assert "silent" in found.output and "manager away" not in found.output


def test_a_server_without_the_coordinator_shows_all_clusters_and_names_the_setting() -> None:
    state = OF_BEFORE | {"clusters": [EU], "managers": GONE, "manager_events": [EVENT], "backends_known": False}
    found, _ = ran(state, "status", "--events")
    assert found.exit_code == 0 and "eu" in found.output and "DECISION" in found.output
    assert "NODE" not in found.output and "cluster.coordinator = etcd://" in found.output


def test_a_server_of_before_shows_its_one_cluster() -> None:
    found, _ = ran(OF_BEFORE, "status", "--events")
    assert found.exit_code == 0 and "NODE" in found.output and "DECISION" not in found.output
    plan, _ = ran(OF_BEFORE, "plan")
    assert plan.exit_code != 0 and "does not support plans" in plan.output
    told, _ = ran(OF_BEFORE, "plan", "--json")
    assert json.loads(told.stderr)["title"] == "this server's version does not support plans; upgrade it"


def test_a_plan_is_the_same_file_with_and_without_json() -> None:
    state: dict[str, Any] = OF_BEFORE | {"plan": {"version": 1, "moves": [], "partitions": []}}
    plain, _ = ran(state, "plan")
    asked, _ = ran(state, "plan", "--json")
    assert plain.stdout == asked.stdout and json.loads(asked.stdout) == state["plan"]


def test_another_cluster_is_named_in_every_call() -> None:
    state: dict[str, Any] = OF_BEFORE | {"moves": [], "started": False}
    for arguments, calls in (
        (("status",), ["GET /v1/cluster?cluster=eu"]),
        (("drain", "a"), ["PUT /v1/cluster/nodes/a/drain?cluster=eu", "GET /v1/cluster?cluster=eu"]),
        (("drain", "a", "--undo"), ["DELETE /v1/cluster/nodes/a/drain?cluster=eu"]),
        (("remove", "a"), ["PUT /v1/cluster/nodes/a/removal?cluster=eu", "GET /v1/cluster?cluster=eu"]),
    ):
        found, asked = ran(state, *arguments, "--cluster", "eu")
        assert found.exit_code == 0 and asked == calls, found.output
    _, [asked_for] = ran(state, "rebalance", "--dry-run", "--cluster", "eu")
    call, path, body = asked_for.split(" ", 2)
    assert (call, path, json.loads(body)) == ("POST", "/v1/cluster/rebalance", {"dry_run": True, "cluster": "eu"})
