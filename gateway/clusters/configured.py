"""Types and checks of the setting `store.clusters`: clusters of backends beside the home cluster."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from gateway.config.addresses import named_twice, wrong_etcd, wrong_service
from gateway.config.tables import check_unlike, explained, given_entries
from gateway.limits import CLUSTER_ENTRIES_MAX

_KEY: Final = "store.clusters"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")


class BackendsOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One entry: a further cluster."""

    name: str
    backends: tuple[str, ...]
    """`HOST:PORT` each."""
    coordinator: str = ""
    """`etcd://HOST:PORT[,HOST:PORT][/NAMESPACE]`, as on its backends; needed to show the cluster."""


def wrong_cluster_name(name: str) -> str:
    """What is wrong with a cluster's name; "" if it is valid."""
    return (
        ""
        if _NAME.fullmatch(name)
        else "must be 1 to 31 characters from a-z, 0-9 and hyphen, not starting with a hyphen"
    )


def cluster_entries(value: Any) -> tuple[BackendsOf, ...]:
    """Parses the setting's value, from a file or, as JSON, from a variable. Raises `ValueError`, which names the entry
    and the field.
    """
    given = given_entries(value, _KEY, CLUSTER_ENTRIES_MAX, "name and backends")
    entries = tuple(_entry(each, f"{_KEY}[{number}]") for number, each in enumerate(given))
    check_unlike([entry.name for entry in entries], _KEY, "name")
    return entries


def _entry(given: Any, at: str) -> BackendsOf:
    try:
        entry = msgspec.convert(given, BackendsOf)
    except msgspec.ValidationError as error:
        raise ValueError(f"{at}: {explained(error, BackendsOf)}; an entry needs name and backends") from None
    if wrong := wrong_cluster_name(entry.name):
        raise ValueError(f"{at}.name is {entry.name[:200]!r}: {wrong}")
    if not entry.backends:
        raise ValueError(f"{at}.backends is empty; list the cluster's backends as HOST:PORT")
    for one in entry.backends:
        if wrong := wrong_service(one):
            raise ValueError(f"{at}.backends: {one!r}: {wrong}")
    if wrong := named_twice(entry.backends):
        raise ValueError(f"{at}.backends: {wrong}")
    if entry.coordinator and (wrong := wrong_etcd(entry.coordinator)):
        raise ValueError(f"{at}.coordinator: {wrong}")
    return entry
