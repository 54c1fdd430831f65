"""Runs `pushq` as a person or a script does: a process of its own against a real server.

What runs to its end is the fork of a process that has imported the command line, see `forked`; what goes on beside a
test is an interpreter of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.forked import Forked
from tests.support.patience import PATIENCE_S
from tests.support.server import PushqServer

OF_OUR_TERMINAL = ("COLUMNS", "LINES", "TERM")
"""What our environment says of it, or says where there is none: a command is to see its own."""
RUN_S_MAX = PATIENCE_S
_ROOT = Path(__file__).resolve().parents[2]


class Ran(NamedTuple):
    """What a command said and how it ended."""

    out: str
    err: str
    code: int

    def json(self) -> Any:
        return json.loads(self.out)


def run(*arguments: str, env: Mapping[str, str], stdin: str | bytes = "", within_s: float = RUN_S_MAX) -> Ran:
    """A command of `pushq`, to its end. Raises `subprocess.TimeoutExpired`."""
    (reading, writing), (out, out_theirs), (err, err_theirs) = os.pipe(), os.pipe(), os.pipe()
    with open(reading, "rb") as given, open(out_theirs, "wb") as says, open(err_theirs, "wb") as complains:
        pipes: dict[str, Any] = {"stdin": given, "stdout": says, "stderr": complains}
        process = Forked(["gateway", *arguments], cwd=_ROOT, env=env, **pipes)
    with ThreadPoolExecutor(3) as threads:
        threads.submit(_write, writing, stdin.encode() if isinstance(stdin, str) else stdin)
        said, complaint = threads.submit(_read, out), threads.submit(_read, err)
        try:
            code = process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        return Ran(said.result(RUN_S_MAX).decode(), complaint.result(RUN_S_MAX).decode(), code)


def _take_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Cli:
    """Runs commands against one server, which the environment names."""

    def __init__(self, server: PushqServer) -> None:
        self.server = server
        others = {name: value for name, value in os.environ.items() if not name.startswith("PUSHQ_")}
        clean = {name: value for name, value in others.items() if name not in OF_OUR_TERMINAL}
        self.env = clean | {"PUSHQ_URL": server.url, "PUSHQ_KEY": server.key, "NO_COLOR": "1", "TERM": "xterm"}
        self.data = ("--data", str(server.data))

    def __call__(self, *arguments: str, stdin: str | bytes = "", env: dict[str, str] | None = None) -> Ran:
        """Run to the end, which must be a good one."""
        ran = self.any(*arguments, stdin=stdin, env=env)
        assert ran.code == 0, ran
        return ran

    def any(self, *arguments: str, stdin: str | bytes = "", env: dict[str, str] | None = None) -> Ran:
        """Run to the end, however it ends."""
        return run(*arguments, env=self.env | (env or {}), stdin=stdin)

    @contextmanager
    def running(self, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """A command that goes on while the test does; stdout and stderr are pipes unless `options` say otherwise."""
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        argv = [sys.executable, "-m", "gateway", *arguments]
        # Whoever started the tests in the background may have had Ctrl-C ignored: the command is one in a terminal.
        fresh = {"env": self.env, **pipes, "preexec_fn": _take_interrupts, **options}
        with subprocess.Popen(argv, cwd=_ROOT, **fresh) as process:
            try:
                yield process
            finally:
                process.kill()

    def http(self, method: str, path: str, body: bytes | None = None) -> Any:
        """What a test needs around a command, without a second process."""
        headers = self.server.headers | {"Content-Type": "application/json"}
        request = urllib.request.Request(self.server.url + path, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=RUN_S_MAX) as answer:
            return json.load(answer)

    def create_queue(self, name: str) -> str:
        self.http("PUT", f"/v1/queues/{name}", b"{}")
        return name

    def queues(self) -> list[str]:
        return [item["name"] for item in self.http("GET", "/v1/queues?limit=1000")["items"]]

    def stats(self, queue: str) -> dict[str, int]:
        stats: dict[str, int] = self.http("GET", f"/v1/queues/{queue}")["stats"]
        return stats


def _write(pipe: int, what: bytes) -> None:
    with suppress(BrokenPipeError), open(pipe, "wb") as file:
        file.write(what)


def _read(pipe: int) -> bytes:
    with open(pipe, "rb") as file:
        return file.read()
