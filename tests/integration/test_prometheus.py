"""Rules for Prometheus: promtool takes them, their unit tests hold, and every metric they name is in a live scrape."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.alerts.core.rules import KINDS, Rule
from gateway.alerts.prometheus import rules_file
from tests.support.prerequisites import require
from tests.support.server import PushqServer
from tests.support.tls import Authority, settings

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    folder = tmp_path_factory.mktemp("prometheus")
    authority = Authority(folder / "authority")
    with PushqServer(folder / "data", env=settings(authority.issue()), tls=authority.context()) as server:
        yield server


def promtool(*arguments: str) -> str:
    ended = subprocess.run([require("promtool"), *arguments], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def asked(server: PushqServer, method: str, path: str, body: object = None) -> bytes:
    data = json.dumps(body).encode() if body is not None else None
    headers = {**server.headers, "Content-Type": "application/json"}
    request = urllib.request.Request(server.url + path, data=data, headers=headers, method=method)
    with urllib.request.urlopen(request, context=server.tls, timeout=20) as answer:
        found: bytes = answer.read()
    return found


def scraped(server: PushqServer) -> set[str]:
    text = asked(server, "GET", "/metrics").decode()
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) | set(re.findall(r"^(pushq_\w+)", text, re.MULTILINE))


def named(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w:])pushq_\w+", text))


def of_clusters() -> set[str]:
    """Those of the other roles and of several clusters, as their pages list them; `test_roles` compares the pages with
    what the roles answer."""
    names = ("how-to/run-backends.md", "how-to/manage-clusters.md", "reference/metrics.md")
    pages = [RULES.parents[1] / "docs" / name for name in names]
    text = "\n".join(page.read_text() for page in pages)
    listed = set(re.findall(r"^\| `(pushq_\w+)` \|", text, re.MULTILINE))
    histograms = re.findall(r"^\| `(pushq_\w+)` \| histogram", text, re.MULTILINE)
    return listed | {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}


def test_the_rules_for_operators_hold() -> None:
    promtool("check", "rules", str(RULES / "pushq.rules.yml"))
    promtool("test", "rules", str(RULES / "pushq.rules.test.yml"))


def test_every_metric_of_the_rules_is_there(server: PushqServer) -> None:
    asked(server, "PUT", "/v1/queues/orders", {})
    known = scraped(server) | of_clusters()
    assert named((RULES / "pushq.rules.yml").read_text()) <= known


def test_exported_rules_are_taken_and_name_metrics_that_are_there(server: PushqServer, tmp_path: Path) -> None:
    for kind, known in KINDS.items():
        if known.about == "shard":
            continue  # this server watches no cluster
        body = {"name": f"about {kind}", "kind": kind, "for_ms": 60_000, "keep_ms": 30_000}
        body |= {"objective": 99.9} if known.is_slo else {"limit": 5.5}
        body |= {"latency_ms": 100} if kind == "slo_latency" else {}
        asked(server, "POST", "/v1/alert-rules", body)
    text = asked(server, "GET", "/v1/alert-rules/prometheus").decode()
    text += "".join(of_shards())
    (tmp_path / "rules.yml").write_text(text)
    assert f"{len(KINDS)} rules found" in promtool("check", "rules", str(tmp_path / "rules.yml"))
    assert named(text) <= scraped(server) | of_clusters()


def of_shards() -> Iterator[str]:
    """The entries of rules about shards, as the file of a server that watches a cluster has them."""
    for kind in ("out_of_sync", "replica_lag"):
        rule = Rule(
            f"rule_{kind}", "default", kind, kind, "*", 0, 0, 60_000, 0, 60_000, "warning", (), True, "", None, None,
            0, "me", 0,
        )  # fmt: skip
        yield rules_file([rule]).partition("    rules:\n")[2]
