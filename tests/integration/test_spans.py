"""Spans of a real server: its exporter gets them, and nothing is imported where nobody wants any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.server import PushqServer, ServerFailed

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
EXPORTER = """
import os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

out = open(os.environ["SPANS_FILE"], "a", buffering=1)
exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\\n")
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""
"""What opentelemetry-instrument does before a program starts, in short."""
IMPORTS = """
import atexit, os, sys

def tell():
    with open(os.environ["MODULES_FILE"], "w") as out:
        out.write("\\n".join(sys.modules))

atexit.register(tell)
"""


def plugin(folder: Path, source: str) -> str:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(source)
    return str(folder)


def test_spans_of_a_server_reach_its_exporter(tmp_path: Path) -> None:
    written = tmp_path / "spans.jsonl"
    env = {"PUSHQ_TRACING__SPANS": "true", "PYTHONPATH": plugin(tmp_path / "site", EXPORTER)}
    with PushqServer(tmp_path / "data", env=env | {"SPANS_FILE": str(written)}) as server:
        with httpx2.Client(base_url=f"{server.url}/v1/queues/", headers=server.headers) as http:
            http.put("orders", json={}).raise_for_status()
            http.post("orders/messages", json={"messages": [{"body": "secret"}]}, headers={"traceparent": PARENT})
            messages = http.post("orders/receive", json={}).json()["messages"]
            http.post("orders/ack", json={"receipts": [messages[0]["receipt"]]}).raise_for_status()
        assert server.stop().exit_code == 0
    text = written.read_text()
    spans: dict[str, dict[str, Any]] = {span["name"]: span for span in map(json.loads, text.splitlines())}
    assert list(spans) == ["send orders", "receive orders", "ack orders"]
    send, receive = spans["send orders"], spans["receive orders"]
    assert send["context"]["trace_id"] == f"0x{PARENT[3:35]}" and send["parent_id"] == f"0x{PARENT[36:52]}"
    assert send["kind"] == "SpanKind.PRODUCER" and send["resource"]["attributes"]["telemetry.sdk.name"]
    assert receive["links"][0]["context"]["span_id"] == f"0x{PARENT[36:52]}"
    assert messages[0]["traceparent"] == PARENT
    assert "secret" not in text and server.key not in text and messages[0]["receipt"] not in text


def test_server_without_the_setting_imports_nothing_of_it(tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    env = {"PYTHONPATH": plugin(tmp_path / "site", IMPORTS), "MODULES_FILE": str(modules)}
    with PushqServer(tmp_path / "data", env=env) as server:
        with httpx2.Client(base_url=f"{server.url}/v1/queues/", headers=server.headers) as http:
            http.put("orders", json={}).raise_for_status()
            http.post("orders/messages", json={"messages": [{"body": 1}]}, headers={"traceparent": PARENT})
            http.post("orders/receive", json={}).raise_for_status()
        server.stop()
    imported = modules.read_text().splitlines()
    assert "push.session.session" in imported
    assert not [name for name in imported if name.startswith("opentelemetry") or name == "push.spans"]


def test_server_cannot_start_with_spans_and_without_the_package(tmp_path: Path) -> None:
    absent = tmp_path / "site" / "opentelemetry"
    absent.mkdir(parents=True)
    (absent / "__init__.py").write_text("raise ModuleNotFoundError('no such package', name='opentelemetry')")
    env = {"PUSHQ_TRACING__SPANS": "true", "PYTHONPATH": str(absent.parent)}
    with pytest.raises(ServerFailed) as failed:
        PushqServer(tmp_path / "data", env=env).start()
    assert "exit code 3" in str(failed.value)
    assert "tracing.spans requires opentelemetry: pip install 'pushq[otel]'" in str(failed.value)


def test_spans_that_nobody_takes_are_said_at_the_start(tmp_path: Path) -> None:
    with PushqServer(tmp_path / "data", env={"PUSHQ_TRACING__SPANS": "true"}) as server:
        assert "no span exporter is configured" in server.log_tail()
