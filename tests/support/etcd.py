"""Starts real etcd members as separate processes, for tests whose promise is about that server.

They listen on free local ports, keep their data in the test's folder, and can be killed, frozen and restarted in place.
"""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import time
import urllib.request
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.patience import PATIENCE_S
from tests.support.prerequisites import require
from tests.support.server import free_port

READY_S_MAX = PATIENCE_S
POLL_S = 0.02
STARTS_MAX = 3
ROOT_PASSWORD = "of the test's operator"
UNSAFE = ("--unsafe-no-fsync",)
"""Written data survives a killed process, but need not survive a crash of the machine."""


class EtcdFailed(AssertionError):
    """etcd did not start, or does not respond."""


class EtcdMember:
    """One member. `start` after `kill` reuses its ports and data."""

    def __init__(self, name: str, folder: Path, *, scheme: str = "http", flags: Sequence[str] = ()):
        self.name = name
        self.client_port, self.peer_port = free_port(), free_port()
        self.url = f"{scheme}://127.0.0.1:{self.client_port}"
        self.peer_url = f"http://127.0.0.1:{self.peer_port}"
        self.peers = f"{name}={self.peer_url}"
        self._folder = folder
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        assert self._process is None, f"{self.name} is already running"
        command = [require("etcd"), "--name", self.name, "--data-dir", str(self._folder / self.name)]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url]
        command += ["--initial-cluster", self.peers, "--logger", "zap", "--log-level", "error"]
        command += ["--experimental-watch-progress-notify-interval", "1s", *UNSAFE, *self._flags]
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """Sends SIGKILL; does nothing if it is not running."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def freeze(self) -> None:
        """Suspends it: its sockets stay open, but it does nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, f"{self.name} is not running"
        self._process.send_signal(number)


class Etcd:
    """A cluster of one or more members. They end with the `with` block."""

    def __init__(
        self,
        folder: Path,
        *,
        size: int = 1,
        flags: Sequence[str] = (),
        scheme: str = "http",
        tls: ssl.SSLContext | None = None,
    ):
        self._folder = folder
        self._size = size
        self._flags = flags
        self._scheme = scheme
        self._tls = tls
        self.members: list[EtcdMember] = []

    @property
    def endpoints(self) -> list[str]:
        return [member.url for member in self.members]

    def __enter__(self) -> Self:
        for _ in range(STARTS_MAX):
            self.members = [
                EtcdMember(f"m{number}", self._folder, scheme=self._scheme, flags=self._flags)
                for number in range(self._size)
            ]
            peers = ",".join(member.peers for member in self.members)
            for member in self.members:
                member.peers = peers
                member.start()
            if self._becomes_ready():
                return self
            self.kill()  # another process took a port in the meantime
        raise EtcdFailed(f"etcd did not start: {self.log()}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()

    def kill(self) -> None:
        for member in self.members:
            member.kill()

    def wait_ready(self) -> None:
        """Waits until every member responds and knows the leader."""
        if not self._becomes_ready():
            raise EtcdFailed(f"etcd is not ready: {self.log()}")

    def _becomes_ready(self) -> bool:
        deadline = time.monotonic() + READY_S_MAX
        while not all(self._has_leader(member) for member in self.members):
            if time.monotonic() > deadline or not all(member.is_running for member in self.members):
                return False
            time.sleep(POLL_S)
        return True

    def leader(self) -> EtcdMember:
        """The current leader, according to the running members."""
        deadline = time.monotonic() + READY_S_MAX
        while time.monotonic() < deadline:
            for member in self.members:
                status = self._status(member)
                if status.get("leader") and status["leader"] == status["header"]["member_id"]:
                    return member
            time.sleep(POLL_S)
        raise EtcdFailed(f"nobody leads: {self.log()}")

    def _has_leader(self, member: EtcdMember) -> bool:
        return bool(self._status(member).get("leader"))

    def _status(self, member: EtcdMember) -> dict[str, Any]:
        try:
            return self.post(member, "/v3/maintenance/status", {})
        except OSError:
            return {}

    def post(self, member: EtcdMember, path: str, body: dict[str, Any], *, token: str = "") -> dict[str, Any]:
        """Sends one request past the driver, as an operator would. Raises `OSError`."""
        request = urllib.request.Request(member.url + path, json.dumps(body).encode())
        if token:
            request.add_header("Authorization", token)
        with urllib.request.urlopen(request, timeout=5, context=self._tls) as answer:
            said: dict[str, Any] = json.load(answer)
            return said

    def compact(self, revision: int) -> None:
        self.post(self.members[0], "/v3/kv/compaction", {"revision": str(revision), "physical": True})

    def put(self, key: bytes, value: bytes) -> None:
        """Writes past the driver, as another program would."""
        request = {"key": b64encode(key).decode(), "value": b64encode(value).decode()}
        self.post(self.members[0], "/v3/kv/put", request)

    def demand_passwords(self, user: str, password: str, *, prefix: bytes) -> None:
        """Enables authentication in etcd; this user may do anything below the prefix."""
        first = self.members[0]
        for name, secret in (("root", ROOT_PASSWORD), (user, password)):
            self.post(first, "/v3/auth/user/add", {"name": name, "password": secret})
            self.post(first, "/v3/auth/role/add", {"name": name})
            self.post(first, "/v3/auth/user/grant", {"user": name, "role": name})
        end = prefix[:-1] + bytes([prefix[-1] + 1])
        permission = {"permType": 2, "key": b64encode(prefix).decode(), "range_end": b64encode(end).decode()}
        self.post(first, "/v3/auth/role/grant", {"name": user, "perm": permission})
        self.post(first, "/v3/auth/enable", {})

    def revoke_tokens(self, user: str, password: str) -> None:
        """Invalidates the user's tokens; the password stays valid."""
        first = self.members[0]
        root = self.post(first, "/v3/auth/authenticate", {"name": "root", "password": ROOT_PASSWORD})["token"]
        self.post(first, "/v3/auth/user/changepw", {"name": user, "password": password}, token=root)

    def log(self) -> str:
        """The end of each member's log."""
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self._folder.glob("m*.log")))
