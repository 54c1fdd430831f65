"""A real Prometheus that scrapes the test's targets every second."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.patience import PATIENCE_S
from tests.support.prerequisites import require
from tests.support.server import free_port

READY_S_MAX = PATIENCE_S


class Prometheus:
    """It ends with the `with` block. `targets`: `http(s)://HOST:PORT`, optionally with a path to scrape instead of
    `/metrics`; `ca`: the authority of their certificates; `key`: the API key sent to them."""

    def __init__(self, folder: Path, targets: Sequence[str], *, ca: Path, key: str = "") -> None:
        self._folder = folder
        self._url = f"http://127.0.0.1:{free_port()}"
        self._log = folder / "prometheus.log"
        self._process: subprocess.Popen[bytes] | None = None
        jobs = [
            {
                "job_name": f"pushq{number}",
                "scheme": urllib.parse.urlsplit(target).scheme,
                "tls_config": {"ca_file": str(ca)},
                "metrics_path": urllib.parse.urlsplit(target).path or "/metrics",
                **({"authorization": {"credentials": key}} if key else {}),
                "static_configs": [{"targets": [urllib.parse.urlsplit(target).netloc]}],
            }
            for number, target in enumerate(targets)
        ]
        # JSON is YAML.
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
        (folder / "prometheus.yml").write_text(json.dumps(config))

    def __enter__(self) -> Self:
        command = [
            require("prometheus"),
            f"--config.file={self._folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._folder / 'tsdb'}",
            f"--web.listen-address={urllib.parse.urlsplit(self._url).netloc}",
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def query(self, expression: str) -> list[Any]:
        """The current samples. Raises `AssertionError` if Prometheus rejects the expression."""
        answer = self._asked("query", query=expression)
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        found: list[Any] = answer["data"]["result"]
        return found

    def names(self) -> set[str]:
        """The names of all scraped series, and of families without samples yet."""
        families = self._asked("metadata")["data"]
        # In OpenMetrics the name of a counter's family lacks the suffix of its samples.
        counters = {f"{name}_total" for name, known in families.items() if known[0]["type"] == "counter"}
        return set(self._asked("label/__name__/values")["data"]) | set(families) | counters

    def wait_for(self, expression: str) -> None:
        """Waits until the expression has a sample."""
        deadline = time.monotonic() + READY_S_MAX
        while True:
            try:
                if self.query(expression):
                    return
            except OSError:
                assert self._process is not None and self._process.poll() is None, self._log.read_text()[-2000:]
            assert time.monotonic() < deadline, f"no sample: {expression}\n{self._log.read_text()[-2000:]}"
            time.sleep(0.1)

    def _asked(self, path: str, **query: str) -> dict[str, Any]:
        address = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(address, timeout=20) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code >= 500:
                raise
            found = json.load(error)
        return found
