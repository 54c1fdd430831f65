"""A disk that fails, fills up or forgets a bit, under a real server: a clear error or a clean recovery, no loss."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import lmdb
import pytest

from tests.support.environment import AS_SHIPPED
from tests.support.patience import PATIENCE_S
from tests.support.prerequisites import require
from tests.support.server import PushqServer, ServerFailed

BODY = "x" * 4096
STRACE_SECONDS_MAX = 20.0


class Api:
    """The few calls that these tests need."""

    def __init__(self, server: PushqServer):
        self._queues = f"{server.url}/v1/queues"
        self._headers = server.headers

    def call(self, method: str, path: str, body: object = None) -> httpx2.Response:
        return httpx2.request(method, f"{self._queues}/{path}", json=body, headers=self._headers, timeout=20)

    def create(self, queue: str, **config: object) -> None:
        assert self.call("PUT", queue, config).status_code in (200, 201)

    def publish(self, queue: str, *bodies: object) -> httpx2.Response:
        return self.call("POST", f"{queue}/messages", {"messages": [{"body": body} for body in bodies]})

    def receive(self, queue: str, count: int = 1000) -> list[dict[str, object]]:
        answer = self.call("POST", f"{queue}/receive", {"max": count})
        assert answer.status_code == 200, answer.text
        return list(answer.json()["messages"])

    def ack(self, queue: str, receipts: list[object]) -> None:
        answer = self.call("POST", f"{queue}/ack", {"receipts": receipts})
        assert answer.status_code == 200 and all(r["ok"] for r in answer.json()["results"]), answer.text

    def ready(self, queue: str) -> int:
        return int(self.call("GET", queue).json()["stats"]["ready"])


def drain(api: Api, queue: str) -> list[object]:
    """Receives and acks everything; the bodies in the order they came."""
    bodies: list[object] = []
    while messages := api.receive(queue):
        api.ack(queue, [m["receipt"] for m in messages])
        bodies += [m["body"] for m in messages]
    return bodies


def until_answered(api: Api, body: object, status: int) -> int:
    """Publishes this until it is answered so, which other answers may precede for a while; how many were stored."""
    deadline, stored = time.monotonic() + PATIENCE_S, 0
    while True:
        answer = api.publish("q", body)
        stored += answer.status_code == 201
        if answer.status_code == status:
            return stored
        assert answer.status_code in (201, 507) and time.monotonic() < deadline, answer.text
        time.sleep(0.1)


def test_failed_fsync_ends_the_process_and_loses_nothing_confirmed(server: PushqServer) -> None:
    strace = require("strace")
    api = Api(server)
    api.create("q")
    for number in range(50):
        assert api.publish("q", number).status_code == 201
    tracer = subprocess.Popen(
        [strace, "-f", "-qq", "-p", str(server.pid), "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO"],
        stderr=subprocess.DEVNULL,
    )
    confirmed = list(range(50))
    try:
        deadline = time.monotonic() + STRACE_SECONDS_MAX
        number = 50
        while server.is_running() and time.monotonic() < deadline:
            try:
                if api.publish("q", number).status_code == 201:
                    confirmed.append(number)
            except httpx2.TransportError:
                break
            number += 1
        ended = server.wait(seconds_max=STRACE_SECONDS_MAX)
        assert ended.exit_code == -signal.SIGKILL
    finally:
        tracer.terminate()
        tracer.wait(10)
    assert "storage failed" in server.log()
    server.start()
    assert "verified after an unclean end" in server.log()
    present = drain(Api(server), "q")
    # The publish whose fsync failed was never answered: it may be there or not.
    assert present[: len(confirmed)] == confirmed and len(present) <= len(confirmed) + 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 32 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_full_disk_stops_publishes_and_lets_acks_make_room(small_disk: Path) -> None:
    with PushqServer(small_disk / "data", env=AS_SHIPPED) as server:
        api = Api(server)
        api.create("q")
        stored = 0
        for _ in range(200):
            answer = api.publish("q", *[BODY] * 50)
            if answer.status_code == 507:
                break
            assert answer.status_code == 201, answer.text
            stored += 50
        assert answer.status_code == 507 and answer.json()["code"] == "storage-full"
        assert api.ready("q") == stored
        assert len(drain(api, "q")) == stored
        until_answered(api, "room again", 201)  # the disk is looked at each second
        # Somebody else fills the rest of the disk: what is stored is still served and acked.
        _fill(small_disk / "other")
        filled = until_answered(api, "no room", 507)
        assert drain(api, "q") == ["room again", *["no room"] * filled]
        assert server.is_running()


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as other, contextlib.suppress(OSError):
        while other.write(bytes(1 << 20)):
            os.fsync(other.fileno())


def test_flipped_bit_is_put_aside_and_everything_else_is_served(server: PushqServer) -> None:
    api = Api(server)
    api.create("q", encrypted=False)
    for number in range(20):
        assert api.publish("q", f"message {number}").status_code == 201
    server.kill()
    _damage(server.data, b"message 7")
    server.start()
    api = Api(server)
    assert api.ready("q") == 19
    assert drain(api, "q") == [f"message {n}" for n in range(20) if n != 7]
    log = server.log()
    assert re.search(r"corrupt entry put aside", log) and re.search(r"checksum", log)
    assert "pushq_corrupt_entries_total 1" in httpx2.get(f"{server.url}/metrics", headers=server.headers).text


def test_flipped_bit_in_a_mark_delivers_messages_again_rather_than_never(server: PushqServer) -> None:
    api = Api(server)
    api.create("q")
    assert api.publish("q", *range(4)).status_code == 201
    api.ack("q", [m["receipt"] for m in api.receive("q", 2)])
    server.kill()
    _flip(server.data, b"marks", lambda key, row: 4)
    server.start()
    assert drain(Api(server), "q") == [0, 1, 2, 3]
    assert "broken mark" in server.log()


def test_queue_whose_own_row_is_broken_is_not_served(server: PushqServer) -> None:
    api = Api(server)
    api.create("q")
    assert api.publish("q", 1).status_code == 201
    server.kill()
    _flip(server.data, b"meta", lambda key, row: 5 if key.startswith(b"state/") else None)
    with pytest.raises(ServerFailed, match="exit code 3") as refused:
        server.start()
    assert "does not match its checksum; restore the folder from a backup" in str(refused.value)


def _damage(data: Path, needle: bytes) -> None:
    """Flips a bit of a stored body, as a disk would: below the checksum, past the database."""

    def place(key: bytes, row: bytes) -> int | None:
        at = row.find(needle)
        return at if at >= 0 else None

    _flip(data, b"log", place)


def _flip(data: Path, table: bytes, place: Callable[[bytes, bytes], int | None]) -> None:
    """Flips one bit in the first row for which `place` names a byte."""
    environment = lmdb.open(str(data), max_dbs=32, map_size=1 << 40, lock=False)
    try:
        rows = environment.open_db(table, create=False)
        with environment.begin(write=True) as txn:
            for key, row in list(txn.cursor(rows)):
                if (at := place(key, row)) is not None:
                    txn.put(key, row[:at] + bytes([row[at] ^ 1]) + row[at + 1 :], db=rows)
                    return
    finally:
        environment.close()
    raise AssertionError("no such row in the file")


def _fill_with(api: Api, queue: str) -> None:
    api.create(queue)
    for number in range(60):
        assert api.publish(queue, *[f"{number} " + "x" * 200] * 20).status_code == 201


def test_a_file_that_was_cut_is_refused_with_both_lengths(server: PushqServer) -> None:
    _fill_with(Api(server), "q")
    server.kill()
    file = server.data / "data.mdb"
    whole = file.stat().st_size
    os.truncate(file, whole // 2)
    with pytest.raises(ServerFailed, match="exit code 3") as refused:
        server.start()
    assert f"has {whole // 2} bytes but should have {whole}" in str(refused.value)
    assert "messages may be missing, so it is not served. Restore" in str(refused.value)


def test_a_file_that_is_cut_under_a_server_ends_it_with_the_reason(server: PushqServer) -> None:
    _fill_with(Api(server), "q")
    os.truncate(server.data / "data.mdb", 8192)
    ended = server.wait()
    # The file is looked at each second. Whoever reads behind its end before that is killed, and leaves where it was.
    assert ended.exit_code in (3, -signal.SIGBUS), server.log_tail()
    assert re.search("was truncated while in use|Fatal Python error: Bus error", server.log())
    with pytest.raises(ServerFailed, match="exit code 3"):
        server.start()


def test_broken_pages_under_a_server_are_told_to_who_asks_and_end_it(server: PushqServer) -> None:
    _fill_with(Api(server), "q")
    api = Api(server)
    held = [message["receipt"] for message in api.receive("q", 5)]
    with (server.data / "data.mdb").open("r+b") as file:
        for page in range(2, (server.data / "data.mdb").stat().st_size // 4096):
            file.seek(page * 4096 + 10)  # what kind of page it is
            file.write(bytes(2))
    answer = api.call("POST", "q/ack", {"receipts": held})
    assert (answer.status_code, answer.json()["code"]) in ((503, "unavailable"), (504, "outcome-unknown")), answer.text
    assert server.wait().exit_code == 3
    assert "stored data is corrupt, the process exits" in server.log() and "Traceback" not in server.log()
    with pytest.raises(ServerFailed, match="exit code 3") as refused:
        server.start()
    assert "is corrupt" in str(refused.value)
