"""The plan that `pushq cluster apply-plan` reads: queues that get more partitions, and partitions that change cluster.

    {"version": 1,
     "moves": [{"tenant": "default", "queue": "orders", "from": "eu", "to": "us", "partition": 3}],
     "partitions": [{"tenant": "default", "queue": "clicks", "partitions": 8, "clusters": ["eu", "us"]}]}

A queue appears at most once, in one of the lists: adding partitions already spreads it over the clusters.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

PLAN_VERSION: Final = 1
PROPOSALS_MAX: Final = 1_000
"""Limit for each kind; the heaviest queues come first."""
PARTITIONS_MAX: Final = 256
"""The largest number of partitions of a queue."""


@dataclass(frozen=True)
class Placed:
    """The cluster that hosts a partition of a queue."""

    uid: int
    partition: int
    cluster: str


def placements(given: object) -> list[Placed]:
    """Parses a list of {uid, partition, cluster}. Raises `ValueError` with the index of the invalid item."""
    if not isinstance(given, list):
        raise ValueError("it is not a list of {uid, partition, cluster}")
    found: dict[tuple[int, int], Placed] = {}
    for at, one in enumerate(given):
        try:
            uid, partition, cluster = (one[name] for name in ("uid", "partition", "cluster"))
        except (KeyError, TypeError):
            raise ValueError(f"[{at}] needs uid, partition and cluster") from None
        if type(uid) is not int or type(partition) is not int or not 0 <= partition < PARTITIONS_MAX:
            raise ValueError(f"[{at}]: uid must be a number, and partition one from 0 to {PARTITIONS_MAX - 1}")
        if not isinstance(cluster, str) or not cluster:
            raise ValueError(f"[{at}].cluster must be the name of a cluster")
        if (uid, partition) in found:
            raise ValueError(f"[{at}]: partition {partition} of queue {uid} is listed twice")
        found[uid, partition] = Placed(uid, partition, cluster)
    return list(found.values())


def proposed(
    wider: Iterable[Mapping[str, Any]],
    hot: Iterable[Mapping[str, Any]],
    placed: Sequence[Placed],
    clusters: Iterable[str] = (),
) -> dict[str, Any]:
    """The plan. `wider`: queues (`tenant`, `queue`, `queue_uid`, `partitions_wanted`) that need more partitions; `hot`:
    hot queues. In both, the heaviest come first. `clusters`: clusters in addition to those in `placed`."""
    where: dict[int, list[Placed]] = {}
    for one in sorted(placed, key=lambda one: (one.uid, one.partition)):
        where.setdefault(one.uid, []).append(one)
    known = sorted({*clusters, *(one.cluster for one in placed)})
    named: set[tuple[str, str]] = set()
    partitions: list[dict[str, Any]] = []
    for row in wider:
        here = where.get(row["queue_uid"], [])
        wanted = min(int(row["partitions_wanted"]), PARTITIONS_MAX)
        is_gone = bool(placed) and not here
        if not known or is_gone or wanted <= len(here) or _name(row) in named or len(partitions) == PROPOSALS_MAX:
            continue
        named.add(_name(row))
        entry = {"partitions": wanted, "clusters": _shared_by(here, known)[:wanted]}
        partitions.append({"tenant": row["tenant"], "queue": row["queue"], **entry})
    still = [row for row in hot if _name(row) not in named]
    return {"version": PLAN_VERSION, "moves": _moves(still, where, known), "partitions": partitions}


def written(plan: Mapping[str, Any]) -> str:
    """The file's text."""
    return json.dumps(plan, indent=2) + "\n"


def _shared_by(here: Sequence[Placed], known: Sequence[str]) -> list[str]:
    """All clusters, those with most partitions of the queue first, so that the fewest partitions move."""
    have = Counter(one.cluster for one in here)
    return sorted(known, key=lambda cluster: (-have[cluster], cluster))


def _moves(
    hot: Sequence[Mapping[str, Any]], where: Mapping[int, Sequence[Placed]], known: Sequence[str]
) -> list[dict[str, Any]]:
    """Spreads hot queues: if several partitions of a queue share a cluster, all but the first move to the clusters with
    the fewest partitions of hot queues."""
    load = dict.fromkeys(known, 0)
    for uid in {row["queue_uid"] for row in hot}:
        for one in where.get(uid, ()):
            load[one.cluster] += 1
    moves: list[dict[str, Any]] = []
    seen: set[tuple[str, str]] = set()
    for row in hot:
        here = where.get(row["queue_uid"], ())
        if not here or _name(row) in seen:
            continue
        seen.add(_name(row))
        used: set[str] = set()
        for one in here:
            at, emptiest = one.cluster, min(load, key=lambda cluster: (load[cluster], cluster))
            if at in used and load[emptiest] < load[at] - 1:
                load[at] -= 1
                load[emptiest] += 1
                move = {"tenant": row["tenant"], "queue": row["queue"], "from": at, "to": emptiest}
                moves.append({**move, "partition": one.partition})
                at = emptiest
            used.add(at)
    return moves[:PROPOSALS_MAX]


def _name(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["tenant"], row["queue"]
