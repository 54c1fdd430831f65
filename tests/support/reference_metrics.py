"""The metrics of `/metrics`, read from a real server after it has done a little of everything."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from push.client import Admin, connect
from tests.support.issuers import SigningKey, issuers_env
from tests.support.server import PushqServer, free_port
from tests.support.tls import Authority, settings

_OF_THE_LIBRARY = ("process_", "python_")


def metrics_table(folder: Path) -> list[str]:
    """Name, kind, labels and help of each metric, in the order of the page."""
    authority = Authority(folder / "authority")
    # An unavailable Redis has its metrics, too.
    env = {**settings(authority.issue()), "PUSHQ_REDIS__URL": f"redis://127.0.0.1:{free_port()}/0"}
    (folder / "keys.json").write_text(json.dumps({"keys": [SigningKey("ES256", "k").jwk]}))
    env |= issuers_env({"issuer": "shop", "tenant": "default", "jwks_file": str(folder / "keys.json")})
    with PushqServer(folder / "data", env=env, tls=authority.context()) as server:
        asyncio.run(_a_little_of_everything(server))
        with urllib.request.urlopen(f"{server.url}/metrics", context=server.tls) as answer:
            text = answer.read().decode()
    return rows(text)


def rows(text: str) -> list[str]:
    """The table of a metrics page in Prometheus text format, except for the client library's own metrics."""
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
    async with Admin(server.url, server.key, tls=server.tls) as admin:
        await admin.create_queue("orders", {"max_attempts": 1})
        await admin.create_queue("news", {"kind": "stream"})
        await admin.create_queue("parcels", {"partitions": 2})
        await admin.put_group("news", "readers", position="earliest")
    async with connect(server.url, server.key, tls=server.tls) as pushq:
        await pushq.publish("orders", "hello")
        await pushq.publish("orders", "nobody can handle this")
        async with pushq.subscribe("orders") as messages:
            await (await messages.get()).ack()
            await (await messages.get()).nack()
