"""A role that writes its spans to a file, one per line as JSON: `python -m tests.support.traced gateway backend`.

It does in short what `opentelemetry-instrument` does before a program starts.
"""

from __future__ import annotations

import os
import runpy
import sys

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

SPANS_FILE = "SPANS_FILE"


def take_spans() -> None:
    out = open(os.environ[SPANS_FILE], "a", buffering=1)  # noqa: SIM115 - it stays open until the process ends
    exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\n")
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


if __name__ == "__main__":
    take_spans()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
