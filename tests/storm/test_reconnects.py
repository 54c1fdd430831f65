"""Everybody comes back at once: after the clients' network was cut, and after the server was killed.

Short in every run and beside other tests, with figures far from their bounds. `make storm` holds them to those, and has
as many clients as the files of this machine allow and the pace of a server as it is installed. With `STORM_RECORD=FILE`
it writes down what it measured, as rows that `tests.bench` prints.
"""

from __future__ import annotations

import os
import resource
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

from tests.bench.machine import Cores, describe
from tests.bench.rows import append_row, percentiles_ms
from tests.bench.stamp import stamp
from tests.support.crowd import CrowdProcess
from tests.support.patience import FAR
from tests.support.server import PushqServer

FILES_KEPT = 500
CLIENTS = min(int(os.environ.get("STORM_CLIENTS", "60")), resource.getrlimit(resource.RLIMIT_NOFILE)[1] - FILES_KEPT)
IS_LONG = "STORM_CLIENTS" in os.environ
PACE = {
    "PUSHQ_LIMITS__ACCEPTS_PER_S": "200" if IS_LONG else "20",
    "PUSHQ_LIMITS__ACCEPTS_BURST": "500" if IS_LONG else "20",
}
"""Far below what a busy machine brings along, so that somebody must wait."""
COME_SECONDS_MAX = 300.0
"""For the crowd to be there before the storm, which is no part of it."""
BACK_SECONDS_MAX = 120.0
BACK_PART = 0.99 if IS_LONG else 0.6
"""Of those whose server was killed: who is refused is asked to come at any time within half a minute."""
SLACK = 1.0 if IS_LONG else FAR
PUBLISH_P99_SECONDS_MAX = 1.0 * SLACK
SOCKET_KIB_MAX = 64 * SLACK
"""Memory of the server for each socket, its sessions and leases that wait for their client among it."""
PUBLISHES_PER_SECOND = 40
LOAD_BEFORE = round(os.getloadavg()[0], 1)
RECORD = os.environ.get("STORM_RECORD")


def record(kind: str, publisher: Publisher, first: int, *, back_s: float, refused: int, rss_kib: int) -> None:
    """One row a storm. The load is that of the minute before the clients came: it says how quiet the machine was."""
    if RECORD is None:
        return
    row = {
        "kind": kind,
        "round": 1,
        "rate": CLIENTS,
        "unit": "clients",
        "back_s": round(back_s, 2),
        "refused": refused,
        **percentiles_ms(int(seconds * 1e9) for seconds in publisher.seconds[first:]),
        "publishes": len(publisher.seconds) - first,
        "rss_anon_mib": round(rss_kib / 1024, 1),
        "load_before": LOAD_BEFORE,
    }
    append_row(Path(RECORD), row)


@dataclass
class Publisher:
    """Publishes numbers at a steady rate and writes down what was confirmed, and how long that took."""

    server: PushqServer
    first: int
    confirmed: set[int] = field(default_factory=set)
    seconds: list[float] = field(default_factory=list)
    refused: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        number = self.first
        with httpx2.Client(base_url=self.server.url, headers=self.server.headers, timeout=10) as http:
            while not self._over.wait(1 / PUBLISHES_PER_SECOND):
                number += 1
                began = time.monotonic()
                try:
                    answer = http.post("/v1/queues/q/messages", json={"messages": [{"body": number}]})
                except httpx2.TransportError:
                    continue  # the server is down; whether this one is there is not known
                if answer.status_code != 201:
                    self.refused += 1
                    continue
                self.seconds.append(time.monotonic() - began)
                self.confirmed.add(number)

    @contextmanager
    def at_work(self) -> Iterator[Publisher]:
        thread = threading.Thread(target=self.run, name="publisher")
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def p99_since(self, first: int) -> float:
        return statistics.quantiles(self.seconds[first:], n=100)[98]


def everything_seen(crowd: CrowdProcess, confirmed: set[int]) -> set[int]:
    """What is missing, after a while in which late messages may still come."""
    deadline = time.monotonic() + 10
    while (missing := confirmed - set(crowd.ask("seen"))) and time.monotonic() < deadline:
        time.sleep(0.2)
    return missing


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PushqServer, CrowdProcess]]:
    if RECORD is not None:
        where = describe(tmp_path_factory.getbasetemp(), Cores(None, None))
        Path(RECORD).write_text("")
        append_row(Path(RECORD), {"kind": "machine", **stamp(), "rounds": 1, "patience_s": 0.0, **where})
    with PushqServer(tmp_path_factory.mktemp("storm") / "data") as server:
        httpx2.put(f"{server.url}/v1/queues/q", headers=server.headers).raise_for_status()
        with CrowdProcess(server, "q", CLIENTS) as crowd:
            yield server, crowd


def test_everybody_is_cut_at_once(crowded: tuple[PushqServer, CrowdProcess]) -> None:
    server, crowd = crowded
    crowd.wait_for(1.0, COME_SECONDS_MAX)
    with Publisher(server, first=0).at_work() as publisher:
        time.sleep(1)
        first = len(publisher.seconds)
        crowd.ask("cut")
        back = crowd.wait_for(0.99, BACK_SECONDS_MAX)
        time.sleep(1)
        rss_kib = server.rss_anon_kib()
    record("storm-cut", publisher, first, back_s=back, refused=crowd.ask("state")["refused"], rss_kib=rss_kib)
    print(f"{CLIENTS} clients cut, 99 % back after {back:.1f} s, publish p99 {publisher.p99_since(first):.3f} s")
    assert publisher.p99_since(first) < PUBLISH_P99_SECONDS_MAX and not publisher.refused
    assert not everything_seen(crowd, publisher.confirmed)
    assert rss_kib < 100 * 1024 + CLIENTS * SOCKET_KIB_MAX


def test_the_server_is_killed_and_comes_back_at_a_pace(crowded: tuple[PushqServer, CrowdProcess]) -> None:
    server, crowd = crowded
    crowd.wait_for(1.0, COME_SECONDS_MAX)
    before = crowd.ask("state")["refused"]
    with Publisher(server, first=1_000_000).at_work() as publisher:
        time.sleep(1)
        server.kill()
        paced = PushqServer(server.data, env=PACE)
        paced.port, paced.url = server.port, server.url
        first = len(publisher.seconds)
        with paced:
            back = crowd.wait_for(BACK_PART, BACK_SECONDS_MAX)
            time.sleep(1)
            refused = crowd.ask("state")["refused"] - before
            rss_kib = paced.rss_anon_kib()
            record("storm-killed", publisher, first, back_s=back, refused=refused, rss_kib=rss_kib)
            print(
                f"{CLIENTS} clients, server killed, {BACK_PART:.0%} back after {back:.1f} s, {refused} refused, "
                f"publish p99 {publisher.p99_since(first):.3f} s, {rss_kib / 1024:.0f} MiB"
            )
            assert refused, "the door paced nobody: this was no storm"
            assert publisher.p99_since(first) < PUBLISH_P99_SECONDS_MAX and not publisher.refused
            assert not everything_seen(crowd, publisher.confirmed)
            assert rss_kib < 100 * 1024 + CLIENTS * SOCKET_KIB_MAX
