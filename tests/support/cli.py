"""Runs `pushq` as a user or a script would: as a process of its own against a real server.

Each process is forked from one that has already imported the command line, see `forked`.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

from tests.support.forked import Forked
from tests.support.patience import PATIENCE_S
from tests.support.server import PushqServer

OF_OUR_TERMINAL = ("COLUMNS", "LINES", "TERM")
"""Terminal settings in our environment, which must not reach a command under test."""
RUN_S_MAX = PATIENCE_S
_ROOT = Path(__file__).resolve().parents[2]


class Ran(NamedTuple):
    """The output and exit code of a command."""

    out: str
    err: str
    code: int

    def json(self) -> Any:
        return json.loads(self.out)


class Started:
    """A command that runs alongside the test: the part of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str],
        stdin: IO[Any] | int = subprocess.DEVNULL,
        stdout: IO[Any] | int = subprocess.PIPE,
        stderr: IO[Any] | int = subprocess.PIPE,
    ) -> None:
        """Streams are as in `Popen`."""
        self.stdin: BinaryIO | None = None
        self.stdout: BinaryIO | None = None
        self.stderr: BinaryIO | None = None
        with ExitStack() as theirs:
            if stdin == subprocess.PIPE:
                given, self.stdin = _pipe()
                stdin = theirs.enter_context(given)
            if stdout == subprocess.PIPE:
                self.stdout, says = _pipe()
                stdout = theirs.enter_context(says)
            if stderr == subprocess.PIPE:
                self.stderr, complains = _pipe()
                stderr = theirs.enter_context(complains)
            streams: dict[str, Any] = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
            self._process = Forked(["gateway", *arguments], cwd=_ROOT, env=env, **streams)
        self.pid = self._process.pid
        self.poll, self.wait, self.kill = self._process.poll, self._process.wait, self._process.kill
        self.terminate, self.send_signal = self._process.terminate, self._process.send_signal

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def communicate(self, given: bytes = b"", *, timeout: float) -> tuple[bytes, bytes]:
        """Writes `given`, reads all output, and waits for the end. Raises `subprocess.TimeoutExpired`."""
        with ThreadPoolExecutor(3) as threads:
            threads.submit(_write, self.stdin, given)
            out, err = threads.submit(_read, self.stdout), threads.submit(_read, self.stderr)
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                self.wait()
                raise
            return out.result(RUN_S_MAX), err.result(RUN_S_MAX)

    def close(self) -> None:
        """Kills it if it is still running."""
        self.kill()
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


def run(*arguments: str, env: Mapping[str, str], stdin: str | bytes = "", within_s: float = RUN_S_MAX) -> Ran:
    """Runs a `pushq` command to its end. Raises `subprocess.TimeoutExpired`."""
    with closing(Started(*arguments, env=env, stdin=subprocess.PIPE)) as process:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        out, err = process.communicate(given, timeout=within_s)
        assert process.returncode is not None
        return Ran(out.decode(), err.decode(), process.returncode)


class Cli:
    """Runs commands against one server, given by the environment."""

    def __init__(self, server: PushqServer) -> None:
        self.server = server
        others = {name: value for name, value in os.environ.items() if not name.startswith("PUSHQ_")}
        clean = {name: value for name, value in others.items() if name not in OF_OUR_TERMINAL}
        self.env = clean | {"PUSHQ_URL": server.url, "PUSHQ_KEY": server.key, "NO_COLOR": "1", "TERM": "xterm"}
        self.data = ("--data", str(server.data))

    def __call__(self, *arguments: str, stdin: str | bytes = "", env: dict[str, str] | None = None) -> Ran:
        """Runs a command to its end, which must be successful."""
        ran = self.any(*arguments, stdin=stdin, env=env)
        assert ran.code == 0, ran
        return ran

    def any(self, *arguments: str, stdin: str | bytes = "", env: dict[str, str] | None = None) -> Ran:
        """Runs a command to its end, successful or not."""
        return run(*arguments, env=self.env | (env or {}), stdin=stdin)

    @contextmanager
    def running(self, *arguments: str, **options: Any) -> Iterator[Started]:
        """A command that runs alongside the test; stdout and stderr are pipes unless `options` override them."""
        with closing(Started(*arguments, **{"env": self.env, **options})) as process:
            yield process

    def http(self, method: str, path: str, body: bytes | None = None) -> Any:
        """A request that a test needs around a command, without a second process."""
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


def _pipe() -> tuple[BinaryIO, BinaryIO]:
    """The reading and the writing end."""
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb"), os.fdopen(writing, "wb")


def _write(pipe: BinaryIO | None, what: bytes) -> None:
    if pipe is not None:
        with suppress(BrokenPipeError), pipe:
            pipe.write(what)


def _read(pipe: BinaryIO | None) -> bytes:
    return b"" if pipe is None else pipe.read()
