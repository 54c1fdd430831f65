"""What outlives a change of a queue's partitions: dead letters, steps of several queues, a move to another queue, a
restart; and what the command line makes of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.calls import Client
from tests.integration.partition_calls import (
    all_received,
    change,
    drained,
    in_order_by_key,
    is_resized,
    keyed,
    made,
    paged,
    partitions,
    resize,
    settle,
    shown,
    stats,
    stored,
)
from tests.support.cli import Cli
from tests.support.patience import until
from tests.support.server import PushqServer

STRICT = {"ordering": "strict"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    allow = {"PUSHQ_QUEUES__ALLOW_DELETE_OVER_HTTP": "true"}
    with PushqServer(tmp_path_factory.mktemp("partitions") / "data", env=allow) as server:
        yield server


@pytest.fixture
def http(server: PushqServer) -> Iterator[Client]:
    with Client(base_url=server.url, headers=server.headers, timeout=30) as client:
        yield client


# ------------------------------------------------------------------------------------------------------ dead letters


def test_dead_letters_of_all_partitions_are_in_one_companion_and_go_back_once(http: Client) -> None:
    queue = made(http, partitions=4, max_attempts=1)
    rows = stored(http, queue, *keyed(80))
    for message in all_received(http, queue, 80):
        http.post(f"/v1/queues/{queue}/nack", json={"receipts": [message["receipt"]], "reason": "no stock"})
    resize(http, queue, 2)
    assert stats(http, queue)["dead"] == stats(http, f"{queue}.dead")["ready"] == 80
    dead = paged(http, queue, state="dead", limit=9)
    assert {item["id"] for item in dead} == {row["id"] for row in rows}
    assert {item["dead_letter"]["history"][0]["reason"] for item in dead} == {"no stock"}
    held = all_received(http, f"{queue}.dead", 10)
    assert all(settle(http, f"{queue}.dead", held))
    answer = http.post(f"/v1/queues/{queue}/redrives", json={})
    assert answer.status_code == 202, answer.text
    until(lambda: http.get(answer.headers["location"]).json()["state"] != "running", "the end of the redrive")
    job = http.get(answer.headers["location"]).json()
    assert (job["state"], job["done"]) == ("done", 70), job
    found = drained(http, queue, 70)
    assert {m["id"] for m in found} == {row["id"] for row in rows} - {m["id"] for m in held}
    assert {message["partition"] for message in found} == {0, 1}
    until(lambda: not partitions(http, queue)["draining"], "the end of the old ones")


def test_dead_letters_go_to_a_named_queue_that_has_partitions_too(http: Client) -> None:
    errors = made(http, partitions=3)
    queue = made(http, partitions=4, max_attempts=1, dead_letter_queue=errors)
    stored(http, queue, *keyed(60))
    for message in all_received(http, queue, 60):
        http.post(f"/v1/queues/{queue}/nack", json={"receipts": [message["receipt"]]})
    until(lambda: stats(http, errors)["ready"] == 60, "all dead letters")
    found = drained(http, errors, 60)
    assert {message["dead_letter"]["from"] for message in found} == {queue}
    by_key: dict[str, set[int]] = {}
    for message in found:
        by_key.setdefault(message["key"], set()).add(message["partition"])
    assert all(len(places) == 1 for places in by_key.values())


# --------------------------------------------------------------------------------------------------------- one step


def test_an_ack_publishes_into_the_partitions_of_another_queue_in_one_step(http: Client) -> None:
    source = made(http, partitions=4)
    target = made(http, partitions=3, colocate_with=source)
    stored(http, source, *keyed(40))
    held = all_received(http, source, 40)
    outputs = [{"queue": target, "messages": keyed(60)}, {"queue": source, "messages": [{"body": 1, "key": "x"}]}]
    answer = http.post(
        f"/v1/queues/{source}/ack", json={"receipts": [m["receipt"] for m in held], "publish": outputs}
    ).json()
    assert all(row["ok"] for row in answer["results"])
    rows = answer["published"][0]["messages"]
    assert {row["partition"] for row in rows} == {0, 1, 2}
    assert {item["id"] for item in paged(http, target)} == {row["id"] for row in rows}
    assert in_order_by_key(drained(http, target, 60))
    again = http.post(
        f"/v1/queues/{source}/ack", json={"receipts": [m["receipt"] for m in held], "publish": outputs}
    ).json()
    assert all(row["ok"] for row in again["results"]) and not again["published"]
    assert (stats(http, source)["ready"], stats(http, target)["ready"]) == (1, 0)


def test_a_step_with_one_stale_receipt_does_nothing_in_any_partition(http: Client) -> None:
    source = made(http, partitions=4, visibility_timeout_ms=300)
    target = made(http, partitions=3, colocate_with=source)
    stored(http, source, *keyed(40))
    held = all_received(http, source, 40)
    again = all_received(http, source, 40)
    receipts = [message["receipt"] for message in [*again[:-1], next(m for m in held if m["id"] == again[-1]["id"])]]
    body = {"receipts": receipts, "publish": [{"queue": target, "messages": keyed(30)}]}
    answer = http.post(f"/v1/queues/{source}/ack", json=body).json()
    assert {row["error"] for row in answer["results"]} == {"stale-receipt"}
    assert stats(http, target)["ready"] == 0 and stats(http, source)["acked_total"] == 0


# --------------------------------------------------------------------------------------------------- delete and move


@pytest.mark.parametrize("number", [1, 3])
def test_a_queue_that_is_deleted_moves_what_all_its_partitions_hold(http: Client, number: int) -> None:
    target = made(http, partitions=number)
    queue = made(http, partitions=4, **STRICT)
    stored(http, queue, *keyed(100))
    resize(http, queue, 2)
    stored(http, queue, *[{"body": "later", "key": f"k{n}", "delay_ms": 3_600_000} for n in range(20)])
    answer = http.delete(f"/v1/queues/{queue}", params={"confirm": queue, "move_to": target})
    assert answer.status_code == 200, answer.text
    until(lambda: (stats(http, target)["ready"], stats(http, target)["delayed"]) == (100, 20), "all that it held")
    rows = stored(http, queue, *keyed(30))
    found = drained(http, target, 130)
    assert {message["dead_letter"]["reason"] for message in found} == {"queue_deleted"}
    there = {(message["partition"], message["seq"]): message["body"] for message in found}
    assert [there[row["partition"], row["seq"]] for row in rows] == [message["body"] for message in keyed(30)]


def test_a_queue_that_is_deleted_and_made_again_is_empty(http: Client) -> None:
    queue = made(http, partitions=4)
    stored(http, queue, *keyed(100))
    assert http.delete(f"/v1/queues/{queue}?confirm={queue}&discard=true").json()["discarded"] == 100
    assert http.put(f"/v1/queues/{queue}", json={"partitions": 2}).status_code == 201
    assert partitions(http, queue)["open"] == 2 and stats(http, queue)["ready"] == 0
    assert len(stored(http, queue, *keyed(50))) == len(paged(http, queue)) == 50


# ----------------------------------------------------------------------------------------------------------- restart


@pytest.mark.parametrize("is_killed", [False, True])
def test_partitions_are_there_after_a_restart_and_go_on_moving(start_server: Any, is_killed: bool) -> None:
    server: PushqServer = start_server()
    with Client(base_url=server.url, headers=server.headers, timeout=30) as http:
        queue = made(http, partitions=2, dedupe="id", **STRICT)
        given = [message | {"id": f"{n}"} for n, message in enumerate(keyed(200))]
        rows = stored(http, queue, *given)
        held = all_received(http, queue, 20)
        change(http, queue, partitions=5)  # it may be on its way when the server ends
        server.kill() if is_killed else server.stop()
        server.start()
        until(lambda: is_resized(http, queue, 5), "five partitions")
        assert [row | {"duplicate": True} for row in rows] == stored(http, queue, *given)
        assert all(settle(http, queue, held))  # leases of a strict queue are on the disk
        assert in_order_by_key([*held, *drained(http, queue, 180)])
        assert stats(http, queue)["acked_total"] == 200


# ------------------------------------------------------------------------------------------------------ command line


def test_the_command_line_makes_changes_and_shows_partitions(server: PushqServer, http: Client) -> None:
    cli = Cli(server)
    cli("queue", "create", "cli-parts", "--partitions", "4", "--ordering", "strict")
    stored(http, "cli-parts", *keyed(40))
    told = cli("queue", "show", "cli-parts").out
    _, _, table = told.partition("\npartitions\n")
    assert "open          4" in table and "slots arriving" in table.lower()
    assert [line.split()[:3] for line in table.splitlines()[-4:]] == [[str(n), "open", "64"] for n in range(4)]
    assert cli("queue", "show", "cli-parts", "--json").json()["partitions"]["open"] == 4
    changed = cli("queue", "update", "cli-parts", "--partitions", "2")
    assert "partitions = 2" in changed.err
    until(lambda: is_resized(http, "cli-parts", 2), "two partitions")
    assert " draining " in cli("queue", "show", "cli-parts").out
    cli("queue", "update", "cli-parts", "--auto-expand", '{"of": "partition_messages", "limit": 9}')
    assert shown(http, "cli-parts")["config"]["auto_expand"]["at_percent"] == 80
    cli("queue", "update", "cli-parts", "--auto-expand", "none")
    assert shown(http, "cli-parts")["config"]["auto_expand"] is None
    one = cli("queue", "peek", "cli-parts", "--partition", "1", "--limit", "100", "--json").json()["items"]
    assert one and {item["partition"] for item in one} == {1}
    assert "partitions" not in cli("queue", "show", cli.create_queue("cli-plain")).out.partition("config")[0]
