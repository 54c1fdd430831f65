"""Spark's own standalone master and workers, as processes on this machine's loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
import pyspark

from tests.support.patience import until
from tests.support.server import free_port

READY_S_MAX = 90.0
STOP_S_MAX = 30.0
LOG_TAIL_BYTES = 4_000
_HOME = Path(pyspark.__file__).parent
_DEFAULTS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.default.parallelism": "2",
    "spark.sql.codegen.wholeStage": "false",  # a few rows are sooner counted than Java is compiled
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


class SparkCluster:
    """A master and some workers of one core each. Their logs and what executors write are in `folder`."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.workers = workers
        self.url = f"spark://127.0.0.1:{free_port()}"
        self._page = f"http://127.0.0.1:{free_port()}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        write_defaults(self.folder / "conf", self.url)
        port, page_port = self.url.rpartition(":")[2], self._page.rpartition(":")[2]
        try:
            self._start("Master", "--port", port, "--webui-port", page_port)
            until(lambda: self._state() is not None, self._logs, within_s=READY_S_MAX)
            for number in range(self.workers):
                place = ["--work-dir", str(self.work_dir(number)), "--webui-port", "0", "--port", "0"]
                self._start("Worker", "--cores", "1", "--memory", "1g", *place, self.url)
            until(lambda: (self._state() or {}).get("aliveworkers") == self.workers, self._logs, within_s=READY_S_MAX)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def work_dir(self, worker: int) -> Path:
        """What executors of a worker write, a folder for each application."""
        return self.folder / f"worker-{worker}"

    def env(self, **more: str) -> dict[str, str]:
        """Of somebody who submits to this cluster: its address is in Spark's defaults."""
        return env_of(self.folder / "conf", **more)

    def _start(self, what: str, *arguments: str) -> None:
        command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{what.lower()}.{what}"]
        env = self.env(SPARK_DAEMON_MEMORY="256m")
        with (self.folder / f"{what.lower()}-{len(self._processes)}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*command, "--host", "127.0.0.1", *arguments],
                    env=env,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # a worker's executors end with it
                )
            )

    def _state(self) -> dict[str, Any] | None:
        """What the master says of itself; None while it does not answer."""
        assert all(process.poll() is None for process in self._processes), self._logs()
        try:
            found: dict[str, Any] = httpx2.get(f"{self._page}/json/", timeout=5, trust_env=False).json()
        except (httpx2.HTTPError, ValueError):
            return None
        return found

    def _end(self) -> None:
        for process in reversed(self._processes):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait(STOP_S_MAX)

    def _logs(self) -> str:
        ends = [path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace") for path in self.folder.glob("*.log")]
        return "\n".join(ends)


def write_defaults(settings: Path, master: str) -> None:
    """A folder of Spark's settings that name a master."""
    settings.mkdir(parents=True)
    lines = {"spark.master": master, **_DEFAULTS}
    (settings / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in lines.items()))


def env_of(settings: Path, **more: str) -> dict[str, str]:
    """Of somebody who has these settings, and nothing of the tests' own."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PUSHQ_", "SPARK_", "PYSPARK_", "PYTHON"))
    }
    path = f"{_HOME / 'bin'}:{Path(sys.executable).parent}:{clean['PATH']}"
    return {
        **clean,
        "PATH": path,
        "SPARK_CONF_DIR": str(settings),
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **more,
    }
