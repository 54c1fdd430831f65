"""The supervisor of `pushq demo`: small programs play the server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.commands.demo import RESTARTS_MAX, RestartBudget
from tests.support.patience import FAR, PATIENCE_S
from tests.support.server import free_port

ROOT = Path(__file__).resolve().parents[3]
WAIT_S_MAX = PATIENCE_S
SUPERVISOR = """
import sys
from gateway.commands.demo import Supervisor
from gateway.commands.exits import Failure
port = int(sys.argv[1])
try:
    sys.exit(Supervisor([sys.executable, "-c", sys.argv[2], str(port)], ("127.0.0.1", port)).run("http://demo"))
except Failure as failure:
    print(failure.message, file=sys.stderr)
    sys.exit(failure.exit_code)
"""
SERVES = """
import os, signal, socket, sys, time
print("pid", os.getpid(), flush=True)
def drain(number, frame):
    print("drained by", signal.Signals(number).name, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, drain)
signal.signal(signal.SIGINT, drain)
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    listening.accept()[0].close()
"""
LEAVES = "import sys; print('pid 0', flush=True); sys.exit({code})"


class Supervised:
    """A running supervisor and what it and its children said."""

    def __init__(self, program: str, log: Path, port: int) -> None:
        self.log = log
        with log.open("wb") as out:
            argv = [sys.executable, "-c", SUPERVISOR, str(port), program]
            self.process = subprocess.Popen(argv, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)

    def said(self) -> str:
        return self.log.read_text()

    def children(self) -> list[int]:
        return [int(line.split()[1]) for line in self.said().splitlines() if line.startswith("pid ")]

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        while not condition():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.01)


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[[str], Supervised]]:
    started: list[Supervised] = []

    def start(program: str) -> Supervised:
        started.append(Supervised(program, tmp_path / f"log{len(started)}", free_port()))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_server_that_crashes_is_back_within_a_second(supervise: Callable[[str], Supervised]) -> None:
    demo = supervise(SERVES)
    demo.until(lambda: "demo: http://demo" in demo.said())
    os.kill(demo.children()[0], signal.SIGKILL)
    began = time.monotonic()
    demo.until(lambda: len(demo.children()) == 2)
    assert time.monotonic() - began < FAR * 1.0
    assert "stopped by SIGKILL; restarting it (1 in the last minute)" in demo.said()
    assert demo.said().count("demo: http://demo") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_passed_on_once_and_the_exit_code_is_the_servers(
    number: signal.Signals, supervise: Callable[[str], Supervised]
) -> None:
    demo = supervise(SERVES)
    demo.until(lambda: "demo: http://demo" in demo.said())
    # To the whole group, as a terminal's Ctrl-C does.
    os.killpg(demo.process.pid, number)
    assert demo.process.wait(WAIT_S_MAX) == 0
    assert demo.said().count("drained by") == 1


def test_server_ends_with_a_supervisor_that_was_killed(supervise: Callable[[str], Supervised]) -> None:
    demo = supervise(SERVES)
    demo.until(lambda: "demo: http://demo" in demo.said())
    demo.process.kill()
    demo.process.wait()
    demo.until(lambda: is_gone(demo.children()[0]))


@pytest.mark.parametrize("code", [0, 2, 3])
def test_server_that_cannot_start_is_not_started_again(code: int, supervise: Callable[[str], Supervised]) -> None:
    demo = supervise(LEAVES.format(code=code))
    assert demo.process.wait(WAIT_S_MAX) == code
    assert len(demo.children()) == 1


def test_server_that_crashes_again_and_again_is_given_up(supervise: Callable[[str], Supervised]) -> None:
    demo = supervise(LEAVES.format(code=1))
    assert demo.process.wait(3 * WAIT_S_MAX) == 1
    assert len(demo.children()) == RESTARTS_MAX + 1
    assert "crashed 20 times within a minute; last crash: with exit code 1" in demo.said()


def test_restarts_of_more_than_a_minute_ago_are_forgiven() -> None:
    budget = RestartBudget()
    assert [budget.spend(float(second)) for second in range(RESTARTS_MAX)] == list(range(1, RESTARTS_MAX + 1))
    assert budget.spend(59.0) is None
    assert budget.spend(60.0) == RESTARTS_MAX
    assert budget.spend(60.5) is None
    assert budget.spend(1_000.0) == 1


def test_taken_port_ends_with_3_before_anything_starts(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        demo = Supervised(SERVES, tmp_path / "log", taken.getsockname()[1])
        assert demo.process.wait(WAIT_S_MAX) == 3
    assert "is already in use" in demo.said()
    assert demo.children() == []
