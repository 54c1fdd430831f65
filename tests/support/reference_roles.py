"""The tables of `docs/reference/metrics.md` about roles other than servers, from a real process of each role.

`python -m tests.support.reference_roles` rewrites them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import httpx2

from gateway.observability.exposition import Format
from gateway.observability.metrics.metadata import of_directory
from tests.support.patience import until
from tests.support.reference_metrics import rows
from tests.support.reference_tables import REFERENCE, Table, rewritten
from tests.support.roles import Roles

METRICS_PAGE: Final = REFERENCE / "metrics.md"


def role_tables(roles: Roles) -> dict[str, Table]:
    """Heading → table."""
    asked = f"{roles.server.url}/v1/queues/none"
    httpx2.get(asked, headers=roles.server.headers, trust_env=False)
    until(lambda: "pushq_manager_cluster_heard{" in roles.scraped("manager"), "the manager hears its cluster")
    until(lambda: "pushq_shard_lag_entries" in roles.scraped("backend"), "the backend leads its shard")
    return {
        "Of backends": rows(roles.scraped("backend")),
        "Of managers": rows(roles.scraped("manager")),
        "Of metadata services": [*rows(roles.scraped("metadata")), *_of_hosts()],
    }


def _of_hosts() -> Table:
    """The metrics that hosts with etcd have in addition or instead: just names and texts, so no host is needed."""
    store = SimpleNamespace(
        hits=0, misses=0, records=0, arcs=0, hosts={}, staleness_s=0.0, ring=SimpleNamespace(version=0)
    )
    service: Any = SimpleNamespace(store=store)
    page = Format().part(of_directory(cast(Any, service), None)).decode()
    return rows(page)[2:]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Roles(Path(folder)) as roles:
        METRICS_PAGE.write_text(rewritten(METRICS_PAGE.read_text(), role_tables(roles)))


if __name__ == "__main__":
    main()
