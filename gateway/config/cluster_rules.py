"""Checks the setting `store.clusters` against the other settings."""

from __future__ import annotations

from gateway.clusters.configured import BackendsOf
from gateway.clusters.etcd_access import access_of, wrong_access
from gateway.config.addresses import one_backend, parse_etcd
from gateway.config.settings import ClusterSettings, StoreSettings


def wrong_clusters(store: StoreSettings, cluster: ClusterSettings) -> tuple[str, str] | None:
    """The setting that conflicts with others, and a message; None if there is none. `cluster`: has the access settings
    for every etcd."""
    if not store.clusters:
        return None
    if not store.backends:
        return "store.clusters", (
            "store.clusters adds further clusters, but there is no home cluster to store definitions: set "
            "store.backends"
        )
    owners = dict.fromkeys(map(one_backend, store.backends), "store.backends")
    for number, entry in enumerate(store.clusters):
        at = f"store.clusters[{number}]"
        if entry.name == store.cluster:
            return (
                "store.clusters",
                f"{at}.name: {entry.name!r} is already the name of the home cluster (store.cluster); rename one",
            )
        for address in entry.backends:
            if (owner := owners.setdefault(one_backend(address), f"{at}.backends")) != f"{at}.backends":
                return (
                    "store.clusters",
                    f"{at}.backends: {address} is already in {owner}; a backend belongs to one cluster",
                )
        if wrong := _wrong_members(entry, cluster):
            return "store.clusters", f"{at}.coordinator: {wrong}"
    return None


def _wrong_members(entry: BackendsOf, cluster: ClusterSettings) -> str:
    if not entry.coordinator:
        return ""
    members = parse_etcd(entry.coordinator, tls=bool(cluster.etcd_tls_ca)).members
    wrong = wrong_access(members, access_of(cluster), lambda field: f"cluster.etcd_{field}")
    return wrong[1] if wrong is not None and not wrong[0] else ""
