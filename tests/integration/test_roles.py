"""What every role says of itself, from a real process of each: one trace, one format of logs, known metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as ws_connect

from tests.support.patience import until
from tests.support.prerequisites import require
from tests.support.reference_roles import METRICS_PAGE, role_tables
from tests.support.reference_tables import rewritten
from tests.support.roles import NAMES, Roles
from tests.support.server import PushqServer, free_port
from tests.support.ws import Client

SPAN = "00f067aa0ba902b7"
TRACES = {name: f"{number:032x}" for number, name in enumerate(("ws", "sse", "poll", "admin"), start=0xFACE)}
SECRET = "hunter2hunter2hunter2"
URL_SECRET = "passwordInAnAddress"
KEY = f"pushq_0123456789abcdef_{SECRET}"
JWT = f"eyJhbGciOiJIUzI1NiJ9.{SECRET}.{SECRET}"
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
AS_TEXT = ("server", "metadata")
"""Roles whose logs are for people."""


def parent(name: str) -> str:
    return f"00-{TRACES[name]}-{SPAN}-01"


class Used(Roles):
    """Every role, after messages went through all transports and strangers tried every door."""

    def __init__(self, folder: Path) -> None:
        env = {"": {"PUSHQ_LOGS__LEVEL": "debug", "PUSHQ_LOGS__ACCESS": "true", "PUSHQ_LOGS__FORMAT": "json"}}
        env |= {role: {"PUSHQ_LOGS__FORMAT": "text"} for role in AS_TEXT}
        env["server"]["PUSHQ_REDIS__URL"] = f"redis://user:{URL_SECRET}@127.0.0.1:{free_port()}/0"
        env["manager"] = {"PUSHQ_MANAGER__PROVISIONER": f"/bin/true --secret {URL_SECRET}"}
        super().__init__(folder, env)
        self.secrets = [SECRET, URL_SECRET]
        self.contexts: list[str] = []
        """The trace contexts that consumers were given."""

    def use(self) -> None:
        for server in (self.gateway, self.server):
            self._knock(server)
        for name in ("ws", "sse", "poll"):
            _asked(self.gateway, "PUT", f"/v1/queues/{name}", {}, "admin").raise_for_status()
        _asked(self.server, "PUT", "/v1/queues/elsewhere", {}, "admin").raise_for_status()
        body = {"messages": [{"body": SECRET}]}
        _asked(self.server, "POST", "/v1/queues/elsewhere/messages", body, "admin").raise_for_status()
        asyncio.run(self._by_websocket())
        self._by_sse()
        self._by_poll()

    async def _by_websocket(self) -> None:
        async with Client(self.gateway) as client:
            await client.send(type="subscribe", id=1, queue="ws", credit=10, ack="manual")
            messages = [{"body": SECRET, "headers": {"token": SECRET}}]
            await client.send(type="publish", id=2, queue="ws", messages=messages, traceparent=parent("ws"))
            (message,) = (await client.next("deliver"))["messages"]
            self.contexts.append(message["traceparent"])
            await client.send(type="ack", id=3, queue="ws", receipts=[message["receipt"]])
            while (await client.next("ok"))["id"] != 3:
                pass

    def _by_sse(self) -> None:
        url, headers = f"{self.gateway.url}/v1/queues/sse/events?credit=5", self.gateway.headers
        with httpx2.stream("GET", url, headers=headers, trust_env=False) as events:
            self._publish("sse")
            data = next(line for line in events.iter_lines() if line.startswith("data:"))
        message = json.loads(data.removeprefix("data:"))
        self.contexts.append(message["traceparent"])
        self._ack("sse", message)

    def _by_poll(self) -> None:
        self._publish("poll")
        body = {"max": 1, "wait_ms": 20_000}
        (message,) = _asked(self.gateway, "POST", "/v1/queues/poll/receive", body, "poll").json()["messages"]
        self.contexts.append(message["traceparent"])
        self._ack("poll", message)

    def _publish(self, name: str) -> None:
        body = {"messages": [{"body": SECRET, "key": SECRET, "headers": {"token": SECRET}}]}
        _asked(self.gateway, "POST", f"/v1/queues/{name}/messages", body, name).raise_for_status()

    def _ack(self, name: str, message: dict[str, Any]) -> None:
        self.secrets.append(message["receipt"])
        _asked(self.gateway, "POST", f"/v1/queues/{name}/ack", {"receipts": [message["receipt"]]}, name)

    def _knock(self, server: PushqServer) -> None:
        """By every door that takes a secret, with good and bad ones."""
        self.secrets += [server.key, (server.data / "master.key").read_text().strip()]
        for secret in (f"Bearer {KEY}", f"Basic {SECRET}", f"Bearer {JWT}"):
            httpx2.get(f"{server.url}/v1/queues", headers={"Authorization": secret}, trust_env=False)
        for path in ("/v1/queues/ws/events", f"/v1/queues/{KEY}", f"/{KEY}"):
            httpx2.get(f"{server.url}{path}?ticket={SECRET}&token={SECRET}", trust_env=False)
        made = _asked(server, "POST", "/v1/keys", {"name": "k", "scopes": ["admin"]}).json()
        ticket = _asked(server, "POST", "/v1/tickets", {}).json()
        hook = {"name": "hook", "type": "webhook", "url": f"https://hooks.example/{SECRET}"}
        receiver = _asked(server, "POST", "/v1/alert-receivers", hook).json()
        self.secrets += [made["key"], ticket["ticket"], receiver["secret"]]
        _asked(server, "POST", "/v1/alert-receivers", hook | {"url": f"http://u:{URL_SECRET}@127.0.0.1/"})
        for frame in ({"type": "connect", "token": KEY}, {"type": "connect", "ticket": SECRET}, {"type": SECRET}):
            with ws_connect(server.ws_url) as client, contextlib.suppress(ConnectionClosed, TimeoutError):
                client.send(json.dumps(frame))
                while True:
                    client.recv(timeout=20)


def _asked(server: PushqServer, method: str, path: str, body: Any, trace: str | None = None) -> httpx2.Response:
    headers = server.headers if trace is None else {**server.headers, "traceparent": parent(trace)}
    return httpx2.request(method, f"{server.url}{path}", json=body, headers=headers, timeout=30, trust_env=False)


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    with Used(tmp_path_factory.mktemp("roles")) as found:
        found.use()
        yield found


# ------------------------------------------------------------------------------------------------------------- spans


def spans_of(roles: Roles, role: str, trace: str) -> dict[str, dict[str, Any]]:
    """By name, those of one trace."""
    return {span["name"]: span for span in roles.spans(role) if span["context"]["trace_id"] == f"0x{trace}"}


@pytest.mark.parametrize("name", ["ws", "sse", "poll"])
def test_one_trace_leads_from_the_producer_over_the_gateway_to_the_backend(roles: Used, name: str) -> None:
    until(lambda: f"append {name}" in spans_of(roles, "backend", TRACES[name]), "the backend's span is there")
    sent = spans_of(roles, "gateway", TRACES[name])[f"send {name}"]
    append = spans_of(roles, "backend", TRACES[name])[f"append {name}"]
    assert sent["parent_id"] == f"0x{SPAN}" and append["parent_id"] == sent["context"]["span_id"]
    assert (sent["kind"], append["kind"]) == ("SpanKind.PRODUCER", "SpanKind.SERVER")
    assert sent["start_time"] <= append["start_time"] <= append["end_time"] <= sent["end_time"]
    assert append["attributes"] == {
        "rpc.system.name": "pushq", "rpc.method": "append", "messaging.system": "pushq",
        "messaging.destination.name": name, "pushq.tenant": "default", "pushq.shard": 0,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "operation"), [("ws", "deliver"), ("sse", "deliver"), ("poll", "receive")])
def test_what_a_consumer_gets_is_linked_to_the_producer(roles: Used, name: str, operation: str) -> None:
    (span,) = [one for one in roles.spans("gateway") if one["name"] == f"{operation} {name}"]
    linked = [(link["context"]["trace_id"], link["context"]["span_id"]) for link in span["links"]]
    assert linked == [(f"0x{TRACES[name]}", f"0x{SPAN}")]
    assert parent(name) in roles.contexts, "and a consumer has the context for a span of its own"


@pytest.mark.parametrize("name", ["ws", "sse", "poll"])
def test_an_ack_goes_on_in_the_backend(roles: Used, name: str) -> None:
    (asked,) = [one for one in roles.spans("gateway") if one["name"] == f"ack {name}"]
    trace = asked["context"]["trace_id"].removeprefix("0x")
    until(lambda: f"ack {name}" in spans_of(roles, "backend", trace), "the backend's span is there")
    assert spans_of(roles, "backend", trace)[f"ack {name}"]["parent_id"] == asked["context"]["span_id"]
    assert name == "ws" or trace == TRACES[name], "over HTTP it is the caller's trace"


def test_a_change_of_definitions_is_seen_in_the_metadata_service(roles: Used) -> None:
    until(lambda: "create_queue" in spans_of(roles, "metadata", TRACES["admin"]), "its span is there")
    made = spans_of(roles, "metadata", TRACES["admin"])["create_queue"]
    assert made["parent_id"] == f"0x{SPAN}" and made["kind"] == "SpanKind.SERVER"


def test_a_look_of_the_manager_is_a_trace_that_backends_are_part_of(roles: Used) -> None:
    def heard() -> bool:
        looks = {one["context"]["trace_id"]: one for one in roles.spans("manager") if one["name"] == "look at clusters"}
        reports = [one for one in roles.spans("backend") if one["name"] == "take_report"]
        return any(one["parent_id"] == looks[found]["context"]["span_id"]
                   for one in reports if (found := one["context"]["trace_id"]) in looks)  # fmt: skip

    until(heard, "a report was given to a look")


def test_no_span_of_any_role_has_a_secret(roles: Used) -> None:
    for role in NAMES:
        told = (roles.folder / f"{role}.spans").read_text()
        assert told and not [secret for secret in roles.secrets if secret in told], role


# -------------------------------------------------------------------------------------------------------------- logs


@pytest.mark.parametrize("role", NAMES)
def test_no_log_of_any_role_has_a_secret(roles: Used, role: str) -> None:
    assert len(roles.secrets) > 10
    log = roles.log(role)
    assert log and not [secret for secret in roles.secrets if secret in log]


@pytest.mark.parametrize("role", [name for name in NAMES if name not in AS_TEXT])
def test_logs_have_one_format_in_every_role(roles: Used, role: str) -> None:
    lines = [json.loads(line) for line in roles.log(role).splitlines() if line.startswith("{")]
    assert lines
    for line in lines:
        assert {"ts", "level", "event"} <= line.keys(), line
        assert datetime.fromisoformat(line["ts"]).utcoffset() is not None and line["ts"].endswith("Z")
        assert line["level"] in ("debug", "info", "warning", "error", "critical")


@pytest.mark.parametrize("role", AS_TEXT)
def test_logs_for_people_are_no_json(roles: Used, role: str) -> None:
    assert roles.log(role) and '{"' not in roles.log(role)


def test_a_request_in_the_log_says_which_trace_it_belongs_to(roles: Used) -> None:
    lines = [json.loads(line) for line in roles.log("gateway").splitlines() if line.startswith("{")]
    requests = [line for line in lines if line["event"] == "request" and line.get("queue") == "poll"]
    assert TRACES["poll"] in {line.get("trace_id") for line in requests}


# ----------------------------------------------------------------------------------------------------------- metrics


@pytest.mark.parametrize("role", NAMES)
def test_metrics_of_every_role_hold_in_both_formats(roles: Used, role: str) -> None:
    plain, page = roles.scraped(role), roles.scraped(role, OPENMETRICS)
    ended = subprocess.run([require("promtool"), "check", "metrics"], input=plain, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert page.endswith("# EOF\n")
    families = {family.name: family for family in openmetrics_families(page)}
    assert {"pushq_build", "pushq_loop_lag_seconds", "process_cpu_seconds"} <= families.keys()
    told = {name.removesuffix("_info") for name in re.findall(r"^# TYPE (\S+) (?:gauge|histogram)$", plain, re.M)}
    assert told - families.keys() == set(), "one format has what the other has"


def test_an_example_of_the_wait_leads_to_its_trace(roles: Used) -> None:
    families = {family.name: family for family in openmetrics_families(roles.scraped("gateway", OPENMETRICS))}
    samples = families["pushq_push_latency_seconds"].samples
    seen = {sample.labels["transport"]: sample.exemplar.labels["trace_id"] for sample in samples if sample.exemplar}
    assert seen == {"ws": TRACES["ws"], "sse": TRACES["sse"], "poll": TRACES["poll"]}
    counts = {one.labels["transport"]: one.value for one in samples if one.name.endswith("_count")}
    assert counts == {"ws": 1, "sse": 1, "poll": 1}


def test_the_page_of_metrics_lists_what_each_role_has_and_nothing_else(roles: Used) -> None:
    text = METRICS_PAGE.read_text()
    assert text == rewritten(text, role_tables(roles)), "write them anew: python -m tests.support.reference_roles"
