"""Encryption with real servers: what lies on the disk, which transports read it, keys replaced, lost or away."""

from __future__ import annotations

import json
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from backend_store.core.log.chunk import ENTRY_CHUNK, KIND_JSON, Draft, blocks_of, decode_chunk, encode_entry
from backend_store.core.log.sublogs import MAIN
from backend_store.model import Offset
from backend_store.storage.engine import Batch, Table
from backend_store.storage.env import open_engine
from backend_store.storage.keys import parse_entry_key
from gateway.encryption.master_keys import new_master_text
from push.client import connect
from tests.integration.calls import Client, make_key, publish, receive, refused, with_key
from tests.support.cli import Cli
from tests.support.patience import PATIENCE_S, until
from tests.support.server import PushqServer

StartServer = Callable[..., PushqServer]
MARKS = ("plain-body", "plain-header", "plain/type", "plain-reply", "plain-correlation")
WAIT_S_MAX = PATIENCE_S


def client_of(server: PushqServer, *, local: bool = False) -> Client:
    transport = httpx2.HTTPTransport(uds=str(server.data / "admin.sock")) if local else None
    return Client(base_url=server.url, headers=server.headers, timeout=15, transport=transport)


@pytest.fixture
def http(server: PushqServer) -> Iterator[Client]:
    with client_of(server) as client:
        yield client


def full(number: int, **more: Any) -> dict[str, Any]:
    return {
        "body_base64": "cGxhaW4tYm9keQ==",  # plain-body
        "content_type": "plain/type",
        "headers": {"plain-header": "plain-header"},
        "reply_to": "plain-reply",
        "correlation_id": "plain-correlation",
        "id": f"readable-{number}",
        **more,
    }


def in_folder(folder: Path, text: str) -> bool:
    """Whether some file of the data holds it; the ballast is left out, it is zeros."""
    files = [file for file in folder.iterdir() if file.is_file() and file.name != "ballast"]
    return any(text.encode() in file.read_bytes() for file in files)


def created(http: Client, name: str, **config: Any) -> str:
    answer = http.put(f"/v1/queues/{name}", json=config)
    assert answer.status_code == 201, answer.text
    return name


SHAPES: list[dict[str, Any]] = [
    {},
    {"ordering": "strict"},
    {"delivery": "exactly_once"},
    {"delivery": "at_most_once"},
    {"dedupe": "content"},
    {"fair_by": "key"},
    {"priorities": 3},
    {"partitions": 3},
    {"sequencing": "clock", "sort_window_ms": 50},
    {"kind": "stream"},
]


def test_no_queue_of_any_kind_writes_what_its_messages_say(server: PushqServer, http: Client) -> None:
    for number, config in enumerate(SHAPES):
        queue = created(http, f"q{number}", **config)
        answer = publish(http, queue, *(full(n, key=f"k{n % 3}") for n in range(5)))
        assert answer.status_code == 201, answer.text
        if config.get("kind") != "stream":
            assert publish(http, queue, full(9, delay_ms=600_000)).status_code in (201, 400)
    assert http.put("/v1/queues/q9/groups/readers", json={"position": "earliest"}).status_code == 201
    for number in range(len(SHAPES) - 1):
        found = []
        deadline = time.monotonic() + WAIT_S_MAX
        while len(found) < (1 if SHAPES[number].get("dedupe") == "content" else 3) and time.monotonic() < deadline:
            found += receive(http, f"q{number}", max=5, wait_ms=500)
        assert found and all(m["body_base64"] == "cGxhaW4tYm9keQ==" for m in found), SHAPES[number]
        assert {m["headers"]["plain-header"] for m in found} == {"plain-header"}
        receipts = [m["receipt"] for m in found[:1] if m["receipt"]]
        http.post(f"/v1/queues/q{number}/nack", json={"receipts": receipts, "delay_ms": 0})
    server.stop()
    for mark in MARKS:
        assert not in_folder(server.data, mark), f"{mark} is on the disk"
    assert in_folder(server.data, "readable-0"), "what is readable by design is found: the search works"


def test_dead_letters_redrives_and_late_messages_stay_encrypted(server: PushqServer, http: Client) -> None:
    own, named = created(http, "own", max_attempts=1), created(http, "named")
    sends = created(http, "sends", max_attempts=1, dead_letter_queue=named)
    late = created(http, "late", sequencing="producer", sort_window_ms=50)
    for queue in (own, sends):
        publish(http, queue, full(1), full(2))
        receipts = [m["receipt"] for m in receive(http, queue, wait_ms=5000)]
        http.post(f"/v1/queues/{queue}/nack", json={"receipts": receipts, "reason": "no"})
    until(lambda: len(items(http, named)) == 2, "the named queue gets its dead letters")
    until(lambda: len(items(http, f"{own}.dead")) == 2, "the companion gets its own")
    job = http.post(f"/v1/queues/{own}/redrives", json={"filter": {"header": {"plain-header": "plain-header"}}}).json()
    assert job["total"] == 2
    until(lambda: len(items(http, own)) == 2, "they are back")
    publish(http, late, full(3, producer="p", producer_seq=2))
    until(lambda: bool(receive(http, late)), "the gap is given up")
    publish(http, late, full(4, producer="p", producer_seq=1))
    until(lambda: len(items(http, f"{late}.late")) == 1, "it came too late")
    assert items(http, named, contains="plain-body") and not items(http, named, contains="other")
    for queue in (named, own, f"{late}.late"):
        assert {m["content_type"] for m in items(http, queue)} == {"plain/type"}
    server.kill()
    for mark in MARKS:
        assert not in_folder(server.data, mark), f"{mark} is on the disk"


def items(http: Client, queue: str, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get(f"/v1/queues/{queue}/messages", params=query).json()["items"]
    return found


def test_reasons_of_nacks_stay_encrypted_and_are_told_with_the_dead_letter(server: PushqServer, http: Client) -> None:
    created(http, "graveyard")
    created(http, "open", encrypted=False, max_attempts=1, dead_letter_queue="graveyard")
    created(http, "own", max_attempts=2)
    created(http, "named", max_attempts=2, dead_letter_queue="graveyard")
    reasons = {"own.dead": ["plain-why-own", "plain-why-own"], "graveyard": ["plain-why-named", "plain-why-named"]}
    for queue in ("own", "named"):
        publish(http, queue, full(1))
        for _ in range(2):
            (held,) = receive(http, queue, max=1, wait_ms=5_000)
            nack = {"receipts": [held["receipt"]], "reason": f"plain-why-{queue}", "delay_ms": 0}
            assert http.post(f"/v1/queues/{queue}/nack", json=nack).json()["results"][0]["ok"]
    for queue, wanted in reasons.items():
        (letter,) = receive(http, queue, max=1, wait_ms=10_000)
        assert [row["reason"] for row in letter["dead_letter"]["history"]] == wanted
        receipts = {"receipts": [letter["receipt"]]}
        http.post(f"/v1/queues/{queue}/nack", json=receipts | {"reason": "plain-why-again"})
        (shown,) = http.get(f"/v1/queues/{queue}/messages?state=ready").json()["items"]
        assert [row["reason"] for row in shown["dead_letter"]["history"]] == wanted
    # Out of a queue that is not encrypted it comes sealed to where everything is.
    publish(http, "open", {"body": 1, "key": "last"})
    (held,) = receive(http, "open", max=1)
    http.post("/v1/queues/open/nack", json={"receipts": [held["receipt"]], "reason": "plain-seen"})
    until(lambda: len(http.get("/v1/queues/graveyard/messages?key=last").json()["items"]) == 1, "it is moved")
    (letter,) = http.get("/v1/queues/graveyard/messages?key=last").json()["items"]
    assert [row["reason"] for row in letter["dead_letter"]["history"]] == ["plain-seen"]
    server.stop()
    assert not in_folder(server.data, "plain-why"), "a reason is on the disk"
    assert "plain-why" not in server.log_path.read_text()


def test_nacks_are_told_once_a_second_and_forged_ones_not_at_all(server: PushqServer, http: Client) -> None:
    created(http, "q", encrypted=False, max_attempts=1_000)
    publish(http, "q", *({"body": n} for n in range(20)))
    held = receive(http, "q", max=20)
    for number in range(60):
        forged = {"receipts": [f"forged-receipt-{number}"], "reason": f"forged-reason-{number}"}
        assert not http.post("/v1/queues/q/nack", json=forged).json()["results"][0]["ok"]
        if number % 3 == 0:
            given = {"receipts": [held[number // 3]["receipt"]], "reason": f"reason-{number}", "delay_ms": 60_000}
            assert http.post("/v1/queues/q/nack", json=given).json()["results"][0]["ok"]
    until(lambda: sum(told["messages"] for told in nacks_told(server)) == 20, "each is counted in some line")
    told = nacks_told(server)
    assert len(told) < 20 and told[-1]["last_reason"] == "reason-57"
    assert "forged" not in server.log_path.read_text()


def nacks_told(server: PushqServer) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in server.log_path.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == "nacked"]


@pytest.mark.parametrize("transport", ["ws", "sse", "poll"])
def test_every_transport_reads_what_an_earlier_process_sealed(start_server: StartServer, transport: Any) -> None:
    server = start_server()
    with client_of(server) as http:
        for kind in ("work", "stream"):
            created(http, kind, kind=kind)
            publish(http, kind, *({"body": {"n": n}, "headers": {"h": str(n)}} for n in range(120)))
    server.kill()
    server.start()

    async def consumed(queue: str, **start: Any) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        async with (
            connect(server.url, server.key, transport=transport) as pushq,
            pushq.subscribe(queue, **start) as messages,
        ):
            with anyio.fail_after(WAIT_S_MAX):
                async for message in messages:
                    found.append((message.body["n"], message.headers["h"]))
                    if queue == "work":
                        await message.ack()
                    if len(found) == 120:
                        break
        return found

    wanted = [(n, str(n)) for n in range(120)]
    assert sorted(anyio.run(consumed, "work")) == wanted
    assert sorted(anyio.run(lambda: consumed("stream", from_="earliest"))) == wanted


def test_a_deleted_queues_keys_are_nowhere_in_the_store_and_its_messages_in_no_memory(server: PushqServer) -> None:
    with client_of(server, local=True) as http:
        created(http, "gone")
        created(http, "stays")
        publish(http, "gone", full(1))
        publish(http, "stays", full(2))
        answer = http.delete("/v1/queues/gone", params={"confirm": "gone", "discard": "true"})
        assert answer.status_code == 200, answer.text
        assert "pushq_data_keys 1.0" in http.get("/metrics").text
    server.stop()
    with closing(open_engine(server.data)) as engine:
        keys = [key for key, _ in engine.scan(Table.META, b"data-key/", b"data-key0", 100)]
        assert keys == [b"data-key/" + (2).to_bytes(4, "big")]


# ----------------------------------------------------------------------------------------------------- forgeries


def put_in_the_clear(folder: Path, uid: int, body: bytes) -> int:
    """Puts an entry with a message of its own in place of each of a queue's, with a checksum that is right."""
    changed = 0
    with closing(open_engine(folder)) as engine:
        rows = engine.scan(Table.LOG, b"", b"\xff" * 32, 1000)
        batch = Batch()
        for key, data in rows:
            replica, shelf, offset = parse_entry_key(key)
            if replica != uid or shelf != MAIN:
                continue
            was = decode_chunk(data, seed=replica)
            blocks = blocks_of([Draft(KIND_JSON, body, {"id": f"forged-{n}"}) for n in range(was.count)]).blocks
            forged, _ = encode_entry(
                ENTRY_CHUNK,
                [block.data for block in blocks],
                seed=replica,
                epoch=was.epoch,
                offset=Offset(offset),
                time_ms=was.time_ms,
                count=was.count,
            )
            batch.put(Table.LOG, key, forged)
            changed += 1
        engine.commit(batch, lambda: None)
    return changed


def test_what_somebody_put_on_the_disk_is_no_message_of_an_encrypted_queue(server: PushqServer, http: Client) -> None:
    created(http, "sealed")
    created(http, "plain", encrypted=False)
    for queue in ("sealed", "plain"):
        publish(http, queue, full(1), full(2))
    server.stop()
    for uid in (1, 2):
        assert put_in_the_clear(server.data, uid, b'"forged"') == 1
    server.start()
    with client_of(server) as again:
        assert [m["body"] for m in receive(again, "plain", max=2)] == ["forged", "forged"], "the forgery is a good one"
        assert receive(again, "sealed", max=2, wait_ms=300) == []
        letters = receive(again, "sealed.dead", max=2, wait_ms=5_000)
        assert [m["body_base64"] for m in letters] == ["", ""]
        for letter in letters:
            assert letter["dead_letter"]["reason"] == "undeliverable"
            assert "stored unencrypted" in letter["dead_letter"]["history"][-1]["reason"]
        publish(again, "sealed", full(3))
        assert [m["id"] for m in receive(again, "sealed", wait_ms=5_000)] == ["readable-3"]


# ----------------------------------------------------------------------------------------------------- rotations


def test_a_crash_in_a_rotation_of_many_keys_loses_nothing_and_the_next_start_ends_it(
    server: PushqServer, tmp_path: Path
) -> None:
    new = tmp_path / "new.key"
    new.write_text(new_master_text() + "\n")
    with client_of(server, local=True) as http:
        for n in range(60):
            created(http, f"q{n}")
        publish(http, "q0", full(1))
        body = {"master_file": str(new), "all_queues": True}
        assert http.post("/v1/rotations", json=body).status_code == 202
        server.kill()
    server.start()
    with client_of(server) as http:
        until(lambda: (server.data / "master.key").read_text() == new.read_text(), "the old master key goes at the end")
        until(lambda: "pushq_data_keys 120.0" in http.get("/metrics").text, "every queue has a new key")
        assert publish(http, "q0", full(2)).status_code == 201
        assert [m["id"] for m in receive(http, "q0", wait_ms=2000)] == ["readable-1", "readable-2"]
    server.stop()
    (server.data / "master.key").write_text(new.read_text())
    server.start()
    with client_of(server) as http:
        assert publish(http, "q59", full(3)).status_code == 201


def test_keys_are_replaced_by_the_command_line_while_messages_flow(server: PushqServer, tmp_path: Path) -> None:
    cli, new = Cli(server), tmp_path / "new.key"
    new.write_text(new_master_text() + "\n")
    cli("queue", "create", "orders")
    cli("publish", "orders", "1")
    assert cli("rotate-keys", "--queue", "orders", *cli.data, "--json").json()["state"] == "done"
    cli("publish", "orders", "2")
    done = cli("rotate-keys", "--master", str(new), "--all-queues", *cli.data, "--json").json()
    assert (done["state"], done["done"], done["total"]) == ("done", 3, 3)
    cli("publish", "orders", "3")
    assert (server.data / "master.key").read_text() == new.read_text()
    server.restart()
    with client_of(server) as http:
        assert [m["body"] for m in receive(http, "orders", wait_ms=2000)] == [1, 2, 3]


def test_a_rotation_of_an_absent_queue_ends_with_6(server: PushqServer) -> None:
    ran = Cli(server).any("rotate-keys", "--queue", "absent", "--data", str(server.data))
    assert ran.code == 6 and "there is no queue 'absent'" in ran.err


def test_rotations_are_for_operators_and_files_for_those_on_the_machine(server: PushqServer, http: Client) -> None:
    created(http, "q")
    created(http, "open", encrypted=False)
    with with_key(http, make_key(http, "admin")["key"]) as admin:
        refused(admin.post("/v1/rotations", json={"all_queues": True}), 403, "forbidden")
    refused(http.post("/v1/rotations", json={"master_file": "/etc/passwd"}), 403, "forbidden")
    refused(http.post("/v1/rotations", json={}), 400, "invalid-request")
    absent = refused(http.post("/v1/rotations", json={"queues": ["q", "absent"]}), 404, "queue-not-found")
    assert [error["pointer"] for error in absent["errors"]] == ["/queues/1"]
    refused(http.post("/v1/rotations", json={"queues": ["open"]}), 400, "invalid-request")
    refused(http.get("/v1/rotations/absent"), 404, "not-found")
    with client_of(server, local=True) as local:
        problem = refused(local.post("/v1/rotations", json={"master_file": "/etc/passwd"}), 400, "invalid-request")
        assert "root" not in problem["detail"], "a file that is no key is not read out"
    answer = http.post("/v1/rotations", json={"queues": ["q"]})
    assert answer.status_code == 202
    until(lambda: http.get(answer.headers["location"]).json()["state"] == "done", "it ends")


# ----------------------------------------------------------------------------------------------------- master keys


def test_a_server_without_its_master_key_does_not_start_and_says_which_it_needs(server: PushqServer) -> None:
    cli, file = Cli(server), server.data / "master.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    cli("queue", "create", "q")
    server.stop()
    right = file.read_text()
    file.unlink()
    missing = cli.any("serve", *cli.data, "--listen", "127.0.0.1:0")
    assert missing.code == 3 and "master.key is missing" in missing.err
    file.write_text(new_master_text() + "\n")
    wrong = cli.any("serve", *cli.data, "--listen", "127.0.0.1:0")
    assert wrong.code == 3 and "restore the right one" in wrong.err and "restore the right one" in wrong.err
    file.write_text(file.read_text() + right)
    server.start()


HOOK = """
import base64, json, pathlib, sys
if not pathlib.Path(sys.argv[1]).exists():
    sys.exit("the key server does not answer")
asked = json.load(sys.stdin)
field = "plaintext" if asked["op"] == "wrap" else "wrapped"
turn = lambda text: base64.b64encode(bytes(b ^ 0x5A for b in base64.b64decode(text))).decode()
print(json.dumps({"keys": [turn(key[field]) for key in asked["keys"]]}))
"""


def test_while_a_key_server_is_away_queues_go_on_and_only_new_ones_wait(
    start_server: StartServer, tmp_path: Path
) -> None:
    hook, there = tmp_path / "hook.py", tmp_path / "there"
    hook.write_text(HOOK)
    there.touch()
    env = {
        "PUSHQ_ENCRYPTION__MASTER": "command",
        "PUSHQ_ENCRYPTION__COMMAND": f"{sys.executable},{hook},{there}",
        "PUSHQ_ENCRYPTION__COMMAND_KEY": "alias/one",
    }
    server = start_server(env=env)
    assert not (server.data / "master.key").exists()
    with client_of(server) as http:
        created(http, "old")
        assert publish(http, "old", full(1)).status_code == 201
        there.unlink()
        created(http, "new")
        assert publish(http, "old", full(2)).status_code == 201
        problem = refused(publish(http, "new", full(1)), 503, "unavailable")
        assert problem["retry_after_ms"] and "data key" in problem["detail"]
        assert [m["id"] for m in receive(http, "old", wait_ms=2000)] == ["readable-1", "readable-2"]
        there.touch()
        until(lambda: publish(http, "new", full(3)).status_code == 201, "its key is made when the key server is back")
        assert http.get("/v1/queues/old").json()["stats"]["dead"] == 0
    server.kill()
    there.unlink()
    cli = Cli(server)
    away = cli.any("serve", *cli.data, "--listen", "127.0.0.1:0", env=env)
    assert away.code == 3 and "the key server does not answer" in away.err
    there.touch()
    server.start()
    with client_of(server) as http:
        assert [m["id"] for m in receive(http, "new", wait_ms=2000)] == ["readable-3"]


def test_a_new_key_in_the_master_file_is_taken_up_while_the_server_runs(server: PushqServer, http: Client) -> None:
    created(http, "q")
    assert publish(http, "q", full(1)).status_code == 201
    file = server.data / "master.key"
    old, new = file.read_text().strip(), new_master_text()
    file.write_text(f"{new}\n")
    until(lambda: "lacks the master key" in server.log(), "a key that is needed must not go")
    assert publish(http, "q", full(2)).status_code == 201
    file.write_text(f"{new}\n{old}\n")
    until(
        lambda: file.read_text() == f"{new}\n", "every data key is wrapped by the new one, and the old one is dropped"
    )
    until(lambda: "\npushq_master_keys 1.0\n" in http.get("/metrics").text, "one key is in use")
    server.kill()
    server.start()
    with client_of(server) as again:
        assert [m["id"] for m in receive(again, "q", wait_ms=2000)] == ["readable-1", "readable-2"]


def test_the_master_key_of_the_environment_leaves_no_file(start_server: StartServer) -> None:
    server = start_server(env={"PUSHQ_ENCRYPTION__MASTER": "environment", "PUSHQ_MASTER_KEY": new_master_text()})
    with client_of(server) as http:
        created(http, "q")
        assert publish(http, "q", full(1)).status_code == 201
    server.restart()
    with client_of(server) as http:
        assert [m["id"] for m in receive(http, "q", wait_ms=2000)] == ["readable-1"]
    assert not (server.data / "master.key").exists()


def test_the_setting_changes_what_comes_from_then_on(server: PushqServer, http: Client) -> None:
    created(http, "q", encrypted=False)
    publish(http, "q", {"body": "in-the-clear"})
    etag = http.get("/v1/queues/q").headers["etag"]
    answer = http.patch("/v1/queues/q", json={"encrypted": True}, headers={"If-Match": etag})
    assert answer.status_code == 200 and answer.json()["config"]["encrypted"] is True
    publish(http, "q", {"body": "hidden-from-now"})
    assert json.loads(http.get("/v1/queues/q").text)["config"]["encrypted"]
    assert [m["body"] for m in receive(http, "q", wait_ms=2000)] == ["in-the-clear", "hidden-from-now"]
    server.kill()
    assert in_folder(server.data, "in-the-clear") and not in_folder(server.data, "hidden-from-now")
