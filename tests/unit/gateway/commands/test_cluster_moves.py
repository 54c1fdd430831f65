"""`pushq cluster move`, `split`, `moves` and `apply-plan` at a server whose queues move as fast as a test wants."""

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
        self.shares: dict[tuple[str, str], dict[str, float]] = {}
        """Of queues in several clusters."""
        self.goals: dict[tuple[str, str], list[str]] = {}
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
            if "over" in body:
                return self._spread(body["tenant"], body["queue"], body["over"])
            return self._begin(body["tenant"], body["queue"], body["to"])
        _, _, tenant, queue = path.split("/")
        if (tenant, queue) not in self.lies:
            return _problem(404, "queue-not-found", f"there is no queue {queue!r}")
        if method == "DELETE":
            del self.moves[tenant, queue]
            self.goals.pop((tenant, queue), None)
            return 204, None
        self._look(tenant, queue)
        return 200, self._place(tenant, queue)

    def _place(self, tenant: str, queue: str) -> dict[str, Any]:
        at = tenant, queue
        shares = self.shares.get(at, {self.lies[at]: 1.0})
        return {
            "tenant": tenant,
            "queue": queue,
            "cluster": self.lies[at],
            "moves": [self.moves[at]] if at in self.moves else [],
            "clusters": [{"cluster": cluster, "share": share} for cluster, share in shares.items()],
            "goal": self.goals.get(at, []),
        }

    def _spread(self, tenant: str, queue: str, over: list[str]) -> tuple[int, Any]:
        if (tenant, queue) not in self.goals:
            self.goals[tenant, queue] = over
            self.moves[tenant, queue] = move_of(tenant, queue, over[0], over[-1], self.looks_until_sealed)
            self.moves[tenant, queue]["share"] = 1 / len(over)
        return 202, self._place(tenant, queue)

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
            if over := self.goals.pop((tenant, queue), []):
                self.shares[tenant, queue] = dict.fromkeys(over, round(1 / len(over), 4))
            else:
                self.lies[tenant, queue] = move["to"]
                self.shares.pop((tenant, queue), None)


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
        "share": 1.0,
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
ORDERS_SHARED = {"queue": "orders", "partitions": 2, "clusters": ["us", "eu"]}


def begun(queue: str, tenant: str = "default") -> str:
    return f"POST /v1/cluster/moves {json.dumps({'tenant': tenant, 'queue': queue, 'to': 'eu'})}"


def spread(queue: str) -> str:
    return f"POST /v1/cluster/moves {json.dumps({'tenant': 'default', 'queue': queue, 'over': ['us', 'eu']})}"


def test_a_move_is_waited_for_until_publishes_arrive(shell: Shell) -> None:
    found = shell("move", "orders", "--to", "eu")
    assert found.exit_code == 0 and shell.clusters.acts == [begun("orders")], found.output
    assert 'publishes to "orders" go to eu; us still has 3 messages' in found.output
    again = shell("move", "orders", "--to", "eu", "--json")
    assert (json.loads(again.output)["cluster"], shell.clusters.acts) == ("eu", [begun("orders")])


def test_a_queue_is_split_and_that_is_waited_for(shell: Shell) -> None:
    found = shell("split", "orders", "--over", "us", "--over", "eu")
    assert found.exit_code == 0 and shell.clusters.acts == [spread("orders")], found.output
    said = 'publishes to "orders" go to us (50%) and eu (50%); us still has 3 messages'
    assert said in found.output
    again = shell("split", "orders", "--over", "eu", "--over", "us")
    assert again.exit_code == 0 and 'queue "orders" is already in us (50%) and eu (50%)' in again.output
    assert len(shell.clusters.acts) == 1


def test_a_split_goes_on_without_who_began_it_and_may_be_given_up(shell: Shell) -> None:
    shell.clusters.looks_until_sealed = NEVER
    at_once = shell("split", "orders", "--over", "us", "--over", "eu", "--wait", "0", "--json")
    assert (at_once.exit_code, json.loads(at_once.output)["goal"]) == (0, ["us", "eu"])
    late = shell("split", "orders", "--over", "us", "--over", "eu", "--wait", "0.05")
    assert late.exit_code == Exit.FAILED and "not in us and eu yet; it is in us" in late.output
    assert "the move continues" in late.output
    assert 'queue "orders" stays in us' in shell("move", "orders", "--give-up").output
    assert not shell.clusters.goals


def test_what_was_given_up_half_way_is_spread_evenly_when_asked_again(shell: Shell) -> None:
    shell.clusters.shares["default", "orders"] = {"us": 0.75, "eu": 0.25}
    found = shell("split", "orders", "--over", "us", "--over", "eu")
    assert found.exit_code == 0 and shell.clusters.acts == [spread("orders")], found.output


def test_a_queue_of_several_clusters_is_merged(shell: Shell) -> None:
    shell.clusters.shares["default", "orders"] = {"us": 0.5, "eu": 0.5}
    at_once = shell("move", "orders", "--to", "eu", "--wait", "0")
    assert 'moving queue "orders" from us (50%) and eu (50%) to eu' in at_once.output
    found = shell("move", "orders", "--to", "eu", "--json")
    assert found.exit_code == 0 and json.loads(found.output)["clusters"] == [{"cluster": "eu", "share": 1.0}]


@pytest.mark.parametrize("arguments", [(), ("--over", "us"), ("--over", "us", "--over", "us")])
def test_a_queue_is_split_over_two_clusters_at_least(shell: Shell, arguments: tuple[str, ...]) -> None:
    found = shell("split", "orders", *arguments)
    assert found.exit_code == Exit.USAGE and "at least two clusters" in found.output and shell.clusters.acts == []


def test_a_move_goes_on_without_who_began_it(shell: Shell) -> None:
    shell.clusters.looks_until_sealed = NEVER
    at_once = shell("move", "orders", "--to", "eu", "--wait", "0")
    assert at_once.exit_code == 0 and 'moving queue "orders" from us to eu' in at_once.output
    late = shell("move", "orders", "--to", "eu", "--wait", "0.05")
    assert late.exit_code == Exit.FAILED and "not in eu yet; it is in us" in late.output
    assert "the move continues" in late.output


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
    assert "no queue is moving" in shell("moves").output
    shell.clusters.looks_until_sealed = NEVER
    shell("move", "orders", "--to", "eu", "--wait", "0")
    shell("split", "clicks", "--over", "us", "--over", "eu", "--wait", "0")
    shell.clusters.moves["default", "orders"]["left"] = None
    shell.clusters.moves["default", "clicks"]["left"] = 7
    table = shell("moves").output.splitlines()
    assert [line.split() for line in table] == [
        ["TENANT", "QUEUE", "FROM", "TO", "STATE", "SINCE", "LEFT", "SHARE"],
        ["default", "orders", "us", "eu", "sealing", SINCE, "–", "all"],
        ["default", "clicks", "us", "eu", "sealing", SINCE, "7", "50%"],
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


def test_a_queue_of_a_plan_is_split_and_each_cluster_gets_its_part_of_the_partitions(shell: Shell) -> None:
    shared = CLICKS | {"partitions": 7, "clusters": ["us", "eu"]}
    few = ORDERS_SHARED | {"partitions": 2}
    shell.clusters.partitions["orders"] = 3
    found = shell.apply("--yes", "--json", partitions=[shared, few], moves=[THEIRS])
    assert found.exit_code == 0, found.output
    resized = 'PATCH /v1/queues/clicks {"partitions": 4}'
    assert shell.clusters.acts == [resized, spread("clicks"), spread("orders"), begun("theirs", "acme")]
    rows = [(row["what"], row["to"], row["state"]) for row in json.loads(found.output)["items"]]
    assert rows[1:] == [
        ("split, 7 partitions", ["us", "eu"], "done"),
        ("split, 2 partitions", ["us", "eu"], "done"),
    ]
    again = shell.apply("--yes", partitions=[shared, few], moves=[THEIRS])
    assert again.exit_code == 0 and again.output.count("passed over") == 3, again.output


def test_a_queue_of_a_plan_is_merged_and_passed_over_when_that_is_done(shell: Shell) -> None:
    shell.clusters.shares["default", "orders"] = {"us": 0.5, "eu": 0.5}
    merge = ORDERS | {"merge": True}
    asked = shell.apply(moves=[merge, THEIRS], answers="n\n")
    assert "Move 1 queue to other clusters and merge 1 queue into one cluster each, at" in asked.output
    dry = shell.apply("--dry-run", moves=[merge, THEIRS])
    assert "the plan is valid: 1 move, 1 merge\n" in dry.output and shell.clusters.acts == []
    found = shell.apply("--yes", "--json", moves=[merge])
    assert found.exit_code == 0 and shell.clusters.acts == [begun("orders")], found.output
    [row] = json.loads(found.output)["items"]
    assert (row["what"], row["from"], row["to"], row["state"]) == ("merge", "us", ["eu"], "done")
    again = shell.apply("--yes", moves=[merge])
    assert again.exit_code == 0 and "passed over" in again.output and len(shell.clusters.acts) == 1


def test_a_plan_that_moves_a_queue_merges_none_that_was_split_since(shell: Shell) -> None:
    shell.clusters.shares["default", "orders"] = {"us": 0.5, "eu": 0.5}
    found = shell.apply("--yes", moves=[ORDERS])
    assert found.exit_code == Exit.FAILED and shell.clusters.acts == []
    assert "moves[0].from is 'us'; queue 'orders' is in 'us' and 'eu'; make a new plan" in found.output


def test_a_split_of_a_plan_that_is_under_way_is_waited_for(shell: Shell) -> None:
    shell.clusters.looks_until_sealed = NEVER
    late = shell.apply("--yes", "--wait", "1", partitions=[ORDERS_SHARED])
    assert late.exit_code == Exit.FAILED and "not in us and eu yet" in late.output
    assert "stopped at partitions[0]; 0 of 1 are done" in late.output
    shell.clusters.moves["default", "orders"]["left"] = 1
    assert shell.apply("--yes", partitions=[ORDERS_SHARED]).exit_code == 0


def test_a_plan_that_is_run_again_does_what_is_left(shell: Shell) -> None:
    shell.clusters.refuses = {"theirs"}
    broken = shell.apply("--yes", moves=[ORDERS, THEIRS], partitions=[CLICKS])
    assert broken.exit_code == Exit.FAILED and "cannot move now" in broken.output
    assert "stopped at moves[1]; 2 of 3 are done. Run it again" in broken.output
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
    assert "not in eu yet" in late.output and "stopped at moves[0]; 0 of 2 are done" in late.output


def test_a_plan_is_asked_for_and_nothing_is_done_without_the_answer(shell: Shell) -> None:
    refused = shell.apply(moves=[ORDERS], partitions=[CLICKS], answers="n\n")
    assert refused.exit_code == Exit.FAILED and shell.clusters.acts == []
    assert "Move 1 queue to other clusters and set the partitions of 1 queue, at http://" in refused.output
    split = shell.apply(moves=[THEIRS], partitions=[CLICKS, ORDERS_SHARED], answers="n\n")
    said = "Move 1 queue to other clusters, split 1 queue over several clusters and set the partitions of 1 queue, at"
    assert split.exit_code == Exit.FAILED and said in split.output
    assert shell.apply(moves=[ORDERS], answers="y\n").exit_code == 0
    assert shell.clusters.acts == [begun("orders")]


@pytest.mark.parametrize("is_dry", [False, True])
def test_a_plan_with_entries_that_cannot_be_carried_out_begins_nothing(shell: Shell, is_dry: bool) -> None:
    clicks = {"queue": "clicks", "from": "us", "to": "eu", "partition": 0}
    moves = [THEIRS | {"from": "eu", "to": "us"}, clicks, THEIRS | {"queue": "gone"}]
    shell.clusters.lies |= {("acme", "theirs"): "asia", ("default", "orders"): "asia"}
    found = shell.apply("--dry-run" if is_dry else "--yes", moves=moves, partitions=[ORDERS_SHARED])
    assert found.exit_code == Exit.FAILED and shell.clusters.acts == []
    assert "4 entries cannot be applied; nothing was started" in found.output
    for said in (
        "moves[0].from is 'eu'",
        "moves[1].partition is 0",
        "moves[2].queue",
        "partitions[0].clusters are 'us' and 'eu'; queue 'orders' is in 'asia'",
    ):
        assert said in found.output


def test_a_plan_with_a_cluster_that_there_is_not_begins_nothing(shell: Shell) -> None:
    found = shell.apply("--yes", moves=[ORDERS | {"to": "asia"}])
    assert found.exit_code == Exit.FAILED and "moves[0].to: unknown cluster 'asia'" in found.output
    assert shell.clusters.acts == []


def test_a_dry_run_shows_what_would_be_done(shell: Shell) -> None:
    shell("move", "theirs", "--to", "eu", "--tenant", "acme")
    shared = CLICKS | {"clusters": ["us", "eu"]}
    found = shell.apply("--dry-run", moves=[ORDERS, THEIRS], partitions=[shared])
    assert found.exit_code == 0 and "the plan is valid: 2 moves, 1 split\n" in found.output
    assert "to do" in found.output and "passed over" in found.output
    assert shell.clusters.acts == [begun("theirs", "acme")]


def test_without_clusters_a_plan_is_checked_and_not_carried_out(shell: Shell) -> None:
    shell.clusters.has_clusters = False
    checked = shell.apply("--dry-run", moves=[ORDERS, THEIRS])
    assert checked.exit_code == 0 and "not looked up" in checked.output
    refused = shell.apply("--yes", moves=[ORDERS])
    assert refused.exit_code == Exit.NOT_FOUND and "keeps its messages itself" in refused.output
