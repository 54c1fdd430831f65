"""Checks the settings `node.*` and `cluster.*`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from gateway.clusters.etcd_access import access_of, wrong_access
from gateway.config.addresses import ETCD, EtcdAt, parse_address, parse_etcd, wrong_address, wrong_etcd, wrong_service
from gateway.config.settings import ClusterSettings, NodeSettings

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


def wrong_name(name: str) -> str:
    is_name = not name or _NAME.fullmatch(name) is not None
    return "" if is_name else "must be 1 to 63 characters from a-z, 0-9, dot and hyphen, like a host name"


def _wrong_coordinator(text: str) -> str:
    if text == "embedded":
        return ""
    wrong = wrong_etcd(text)
    return wrong if not wrong or text.startswith(ETCD) else f'it is "embedded", or {wrong.removeprefix("it is ")}'


def coordinator_of(cluster: ClusterSettings) -> EtcdAt | None:
    """Where the cluster's records are stored in etcd; None without etcd."""
    if not cluster.coordinator.startswith(ETCD):
        return None
    return parse_etcd(cluster.coordinator, tls=bool(cluster.etcd_tls_ca))


BACKEND_CHECKS: Final[dict[str, Callable[[str], str]]] = {
    "node.name": wrong_name,
    "node.zone": wrong_name,
    "node.listen": wrong_address,
    "node.http": wrong_address,
    "node.service": wrong_service,
    "cluster.coordinator": _wrong_coordinator,
}
"""Setting → function that returns what is wrong with a value; "" if it is valid."""


def wrong_backend(node: NodeSettings, cluster: ClusterSettings) -> tuple[str, str] | None:
    """The setting that conflicts with others, and a message; None if there is none."""
    files = {"tls_cert": node.tls_cert, "tls_key": node.tls_key, "tls_ca": node.tls_ca}
    missing = [name for name, file in files.items() if not file]
    if missing and len(missing) < len(files):
        return (
            f"node.{missing[0]}",
            f"node.{missing[0]} is missing: node.tls_cert, node.tls_key and node.tls_ca must be set together",
        )
    if missing and not parse_address(node.service).is_loopback:
        return "node.service", (
            f"node.service is {node.service}: gateways on other machines need node.tls_cert, node.tls_key and "
            "node.tls_ca; create them with `pushq ca`"
        )
    if missing and not parse_address(node.listen).is_loopback:
        return "node.listen", (
            f"node.listen is {node.listen}: backends on several machines need node.tls_cert, node.tls_key and "
            "node.tls_ca; create them with `pushq ca`"
        )
    at = coordinator_of(cluster)
    wrong = wrong_access(
        at.members if at is not None else [], access_of(cluster), lambda field: f"cluster.etcd_{field}"
    )
    if wrong is not None:
        return f"cluster.etcd_{wrong[0]}" if wrong[0] else "cluster.coordinator", wrong[1]
    if cluster.model == "independent_hosts" and at is None:
        return "cluster.coordinator", (
            "cluster.model independent_hosts needs several hosts, but cluster.coordinator is embedded: set it to "
            "etcd://HOST:PORT"
        )
    if cluster.model == "independent_hosts" and cluster.min_in_sync > cluster.lanes:
        return "cluster.min_in_sync", (
            f"cluster.min_in_sync is {cluster.min_in_sync}, but cluster.lanes is {cluster.lanes}; raise "
            f"cluster.lanes, or set at most {cluster.lanes}"
        )
    if cluster.min_in_sync > cluster.replicas:
        return "cluster.min_in_sync", (
            f"cluster.min_in_sync is {cluster.min_in_sync}, but cluster.replicas is {cluster.replicas}; set at most "
            f"{cluster.replicas}"
        )
    return None
