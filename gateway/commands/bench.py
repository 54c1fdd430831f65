"""`pushq bench`: a small load test of a running server, which shows what this machine and disk can do.

Producer, consumers and server share the machine's cores; comparable figures need separate machines.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from gateway.commands.base import F, command, json_option, run
from gateway.commands.figures import WholeRange
from gateway.commands.load import Bench, Result
from gateway.commands.output import put_json, put_table, tell
from gateway.commands.target import Target, target_options


def _number(name: str, low: int, high: int, default: int, text: str) -> Callable[[F], F]:
    return click.option(name, type=WholeRange(low, high), default=default, show_default=True, help=text)


@command("bench")
@_number("--messages", 1, 10_000_000, 50_000, "Messages in each part.")
@_number("--body-bytes", 0, 200_000, 256, "Body size in bytes.")
@_number("--consumers", 1, 100, 4, "Number of consumer connections.")
@_number("--window", 1, 10_000, 1024, "Maximum publishes in flight.")
@_number("--rate", 1, 10_000, 1000, "Messages per second in the latency part.")
@_number("--seconds", 1, 600, 3, "Duration of the latency part.")
@target_options
@json_option
def bench(
    messages: int,
    body_bytes: int,
    consumers: int,
    window: int,
    rate: int,
    seconds: int,
    target: Target,
    as_json: bool,
) -> None:
    """Benchmark a running server.

    Over WebSocket: publish, consume, both at once with every message acked, and latency at a steady rate.
    The benchmark creates and deletes its own queue, so the key needs the scope admin.
    """
    bench = Bench(target, body="x" * body_bytes, window=window)
    results = run(bench.run(messages, consumers, rate, seconds))
    if as_json:
        put_json({"body_bytes": body_bytes, "results": [each._asdict() | {"per_s": each.per_s} for each in results]})
    else:
        put_table(["measured", "messages", "seconds", "per second", "p50", "p99", "max"], [_cells(r) for r in results])
        tell("the load generator and the server ran on the same machine")


def _cells(result: Result) -> list[object]:
    latencies = (result.p50_ms, result.p99_ms, result.max_ms)
    shown = ["–" if value is None else f"{value:.2f} ms" for value in latencies]
    return [result.name, result.messages, f"{result.seconds:.2f}", f"{result.per_s:,.0f}", *shown]
