"""A metadata service of three host processes over a real etcd."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from gateway.dev_ca import Pair
from tests.support.etcd import Etcd
from tests.support.forked import Forked
from tests.support.patience import PATIENCE_S

READY_S_MAX = PATIENCE_S
SECRET = "the secret of these tests"
_ROOT = Path(__file__).resolve().parents[2]


class DirectoryHosts:
    """The hosts choose their ports; `start` after `kill` brings back the same host on another port."""

    def __init__(
        self,
        folder: Path,
        etcd: Etcd,
        form: str,
        *,
        count: int = 3,
        flags: Sequence[str] = (),
        zones: Sequence[str] = (),
        tls: tuple[Pair, Path] | None = None,
    ) -> None:
        """`flags`: more command-line flags. `zones`: one per host. `tls`: the hosts' certificate, and the CA file."""
        self.form = form
        self.names = [f"h{number}" for number in range(count)]
        self.urls: dict[str, str] = {}
        self.secret_file = folder / "secret"
        self.secret_file.write_text(SECRET)
        self._folder = folder
        self._etcd = etcd
        self._flags = flags
        self._zones = dict(zip(self.names, zones, strict=False))
        self._tls = {} if tls is None else {"cert": str(tls[0].certificate), "key": str(tls[0].key), "ca": str(tls[1])}
        self._running: dict[str, Forked] = {}

    def __enter__(self) -> Self:
        try:
            for name in self.names:
                self.start(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def key(self) -> str:
        return (self._folder / self.names[0] / "admin.key").read_text().strip()

    @property
    def env(self) -> dict[str, str]:
        """Environment of a server that uses the service."""
        return {
            "PUSHQ_METADATA__URL": ",".join(self.urls.values()),
            "PUSHQ_METADATA__SECRET_FILE": str(self.secret_file),
            "PUSHQ_METADATA__FORM": self.form,
            **{f"PUSHQ_METADATA__TLS_{what.upper()}": file for what, file in self._tls.items()},
        }

    def start(self, name: str) -> None:
        command = ["gateway", "metadata", "--data", str(self._folder / name)]
        command += ["--listen", self.urls.get(name, "ws://127.0.0.1:0").partition("://")[2], "--form", self.form]
        command += ["--host", name, "--secret-file", str(self.secret_file)]
        for url in self._etcd.endpoints:
            command += ["--etcd", url]
        command += [*self._flags, *(["--zone", self._zones[name]] if name in self._zones else [])]
        for what, file in self._tls.items():
            command += [f"--tls-{what}", file]
        with (self._folder / f"{name}.log").open("ab") as log:
            process = Forked(command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=log)
        self._running[name] = process
        assert process.stdout is not None
        deadline = time.monotonic() + READY_S_MAX
        for line in process.stdout:
            if line.startswith("  url"):
                self.urls[name] = line.split()[1]
            if line.startswith("ready"):
                return
            assert time.monotonic() < deadline, "pushq metadata was not ready in time"
        raise AssertionError(f"{name} ended: {(self._folder / f'{name}.log').read_text()[-2000:]}")

    def signal(self, name: str, number: signal.Signals) -> None:
        self._running[name].send_signal(number)

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()

    def close(self) -> None:
        for name in list(self._running):
            self.kill(name)
