"""Dashboards for Grafana: whole, and a real Prometheus that scrapes a process of each role answers each query."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.backends import ROLE, Backend
from tests.support.prometheus import Prometheus
from tests.support.roles import a_manager, a_metadata_service
from tests.support.server import PushqServer
from tests.support.tls import Authority, settings

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "grafana"
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
FILLED = {"$__rate_interval": "1m", "$instance": ".*", "$tenant": ".*", "$queue": ".*"}
WITHOUT_SAMPLES = {
    "pushq_websocket_closes_total", "pushq_rate_limited_total", "pushq_too_many_connections_total",
    "pushq_dependency_state", "pushq_overload_refused_total", "pushq_metadata_requests_total",
    "pushq_push_latency_seconds_bucket", "pushq_metadata_request_seconds_bucket",
}  # fmt: skip
"""Series that a server has only once something happened, or that depend on settings."""


WITH_ETCD = {
    "pushq_metadata_look_ups_total", "pushq_metadata_lag_seconds", "pushq_metadata_hosts", "pushq_metadata_arcs",
    "pushq_metadata_records", "pushq_metadata_handed_on_total",
}  # fmt: skip
"""Series of hosts whose records are in etcd: `test_directory_forms` asks such hosts for them."""
CUSTOMERS = "pushq-customer"


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]


def named(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w:])(?:pushq|process)_\w+", text))


def test_there_is_one_for_each_role_and_one_for_customers() -> None:
    of_roles = {"pushq-gateways", "pushq-backends", "pushq-managers", "pushq-metadata"}
    assert set(DASHBOARDS) == {"pushq-queues", CUSTOMERS} | of_roles
    assert all(dashboard["uid"] == name for name, dashboard in DASHBOARDS.items())


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_is_whole(name: str) -> None:
    dashboard = DASHBOARDS[name]
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    for panel in panels(dashboard):
        assert panel["title"] and panel["description"] and panel["targets"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
    used = set(re.findall(r"\$(\w+)", " ".join(queries(dashboard)))) - {"__rate_interval"}
    assert used <= variables and ("queue" if name == CUSTOMERS else "instance") in used


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("grafana")
    authority = Authority(folder / "authority")
    backend = Backend("a", folder, authority, "embedded", ROLE)
    with PushqServer(folder / "data", env=settings(authority.issue()), tls=authority.context()) as server:
        backend.start()
        try:
            with (
                a_manager(backend, folder, authority) as manager,
                a_metadata_service(folder) as metadata,
                Prometheus(
                    folder,
                    [server.url.replace("127.0.0.1", "localhost"), backend.http, manager.http, metadata.http],
                    ca=authority.certificate,
                ) as prometheus,
            ):
                worked(server)
                prometheus.wait_for("pushq_manager_cluster_heard == 1")
                prometheus.wait_for("rate(pushq_metadata_changes_told_total[1m])")
                prometheus.wait_for("rate(pushq_messages_ended_total[1m])")
                prometheus.wait_for("rate(pushq_messages_acked_total[1m])")
                prometheus.wait_for("rate(pushq_backend_dropped_messages_total[1m])")
                prometheus.wait_for("pushq_shard_serving == 1")
                yield prometheus
        finally:
            backend.end()


def worked(server: PushqServer) -> None:
    """Every kind of queue there is, and messages in them."""
    kinds = {"orders": {}, "wide": {"partitions": 2}, "news": {"kind": "stream"}, "fails": {"max_attempts": 1}}
    for queue, config in kinds.items():
        asked(server, "PUT", f"/v1/queues/{queue}", config)
        asked(server, "POST", f"/v1/queues/{queue}/messages", {"messages": [{"body": 1}] * 3})
    asked(server, "POST", "/v1/queues/news/receive", {"group": "readers", "max": 1})
    (message,) = asked(server, "POST", "/v1/queues/fails/receive", {"max": 1})["messages"]
    asked(server, "POST", "/v1/queues/fails/nack", {"receipts": [message["receipt"]]})


def asked(server: PushqServer, method: str, path: str, body: object) -> Any:
    headers = {**server.headers, "Content-Type": "application/json"}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request, context=server.tls, timeout=20) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def customers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has what a tenant may have, and nothing else."""
    folder = tmp_path_factory.mktemp("customers")
    with PushqServer(folder / "data") as server:
        targets = [f"{server.url}/v1/metrics"]
        with Prometheus(folder, targets, ca=Authority(folder / "authority").certificate, key=server.key) as prometheus:
            worked(server)
            prometheus.wait_for("rate(pushq_messages_ended_total[1m])")
            prometheus.wait_for("rate(pushq_messages_acked_total[1m])")
            yield prometheus


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_query_is_answered_and_names_series_that_are_there(
    name: str, prometheus: Prometheus, customers: Prometheus
) -> None:
    if name == CUSTOMERS:
        prometheus = customers
    known = prometheus.names() | WITH_ETCD
    for query in queries(DASHBOARDS[name]):
        assert named(query) <= known, query
        filled = query
        for variable, value in FILLED.items():
            filled = filled.replace(variable, value)
        assert "$" not in filled
        found = prometheus.query(filled)
        assert found or named(query) & (WITHOUT_SAMPLES | WITH_ETCD), f"no samples: {filled}"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_choice_of_a_dashboard_is_a_label_that_is_there(
    name: str, prometheus: Prometheus, customers: Prometheus
) -> None:
    if name == CUSTOMERS:
        prometheus = customers
    for variable in DASHBOARDS[name]["templating"]["list"]:
        if variable["type"] != "query":
            continue
        match = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variable["query"]["query"])
        assert match is not None and match[2] == variable["name"]
        assert all(match[2] in sample["metric"] for sample in prometheus.query(match[1]))
