"""The series of `/metrics`, read from a real server after a little of everything has happened to it."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from push.client import Admin, connect
from tests.support.server import PushqServer

_OF_THE_LIBRARY = ("process_", "python_")


def metrics_table(folder: Path) -> list[str]:
    """Name, kind, labels and help of each series, in the order of the page."""
    with PushqServer(folder / "data") as server:
        asyncio.run(_a_little_of_everything(server))
        with urllib.request.urlopen(f"{server.url}/metrics") as answer:
            text = answer.read().decode()
    lines = ["| Series | Kind | Labels | Meaning |", "| --- | --- | --- | --- |"]
    for family in text_string_to_metric_families(text):
        if family.name.startswith(_OF_THE_LIBRARY):
            continue
        labels = sorted({name for sample in family.samples for name in sample.labels} - {"le"})
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        shown = ", ".join(f"`{label}`" for label in labels) or "–"
        lines.append(f"| `{name}` | {family.type} | {shown} | {family.documentation} |")
    return lines


async def _a_little_of_everything(server: PushqServer) -> None:
    async with Admin(server.url, server.key) as admin:
        await admin.create_queue("orders", {"max_attempts": 1})
        await admin.create_queue("news", {"kind": "stream"})
        await admin.create_queue("parcels", {"partitions": 2})
        await admin.put_group("news", "readers", position="earliest")
    async with connect(server.url, server.key) as pushq:
        await pushq.publish("orders", "hello")
        await pushq.publish("orders", "nobody can handle this")
        async with pushq.subscribe("orders") as messages:
            await (await messages.get()).ack()
            await (await messages.get()).nack()
