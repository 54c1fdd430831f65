"""Clusters of backends beside the home cluster: the setting `store.clusters` as types, and what is wrong with it."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

from gateway.addresses import wrong_etcd, wrong_service
from gateway.limits import CLUSTER_ENTRIES_MAX

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")


class BackendsOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One further cluster."""

    name: str
    backends: tuple[str, ...]
    """`HOST:PORT` each."""
    coordinator: str = ""
    """`etcd://HOST:PORT[,HOST:PORT][/NAMESPACE]`, as its backends have it; with it the cluster can be shown."""


def wrong_cluster_name(name: str) -> str:
    """A sentence; "" for a name."""
    return "" if _NAME.fullmatch(name) else "it is 1 to 31 of a-z, 0-9 and hyphen, and no hyphen at first"


def cluster_entries(value: Any) -> tuple[BackendsOf, ...]:
    """The setting's value, from a file or a variable. Raises `ValueError` that names the entry and the field.

    A text is read as JSON.
    """
    given = _from_text(value)
    if not isinstance(given, list):
        raise ValueError("store.clusters is no list: write [[store.clusters]] with name and backends")
    if len(given) > CLUSTER_ENTRIES_MAX:
        raise ValueError(f"store.clusters has {len(given)} entries; it has at most {CLUSTER_ENTRIES_MAX}")
    entries = tuple(_entry(each, f"store.clusters[{number}]") for number, each in enumerate(given))
    names = [entry.name for entry in entries]
    for number, name in enumerate(names):
        if (first := names.index(name)) != number:
            raise ValueError(f"store.clusters[{number}].name: {name!r} is that of store.clusters[{first}]")
    return entries


def _from_text(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"store.clusters is no JSON: {error}") from None


def _entry(given: Any, at: str) -> BackendsOf:
    try:
        entry = msgspec.convert(given, BackendsOf)
    except msgspec.ValidationError as error:
        raise ValueError(f"{at}: {error}; an entry has name and backends") from None
    if wrong := wrong_cluster_name(entry.name):
        raise ValueError(f"{at}.name is {entry.name[:200]!r}: {wrong}")
    if not entry.backends:
        raise ValueError(f"{at}.backends: it is empty; name the cluster's backends, HOST:PORT each")
    for one in entry.backends:
        if wrong := wrong_service(one):
            raise ValueError(f"{at}.backends: {one!r}: {wrong}")
    if entry.coordinator and (wrong := wrong_etcd(entry.coordinator)):
        raise ValueError(f"{at}.coordinator: {wrong}")
    return entry
