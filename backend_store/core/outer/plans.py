"""The file of `pushq cluster apply-plan`: which queues move, and how many partitions they have. JSON, checked by name.

    {"version": 1,
     "moves": [{"tenant": "default", "queue": "orders", "from": "eu", "to": "us", "partition": 3}],
     "partitions": [{"tenant": "default", "queue": "clicks", "partitions": 8, "clusters": ["eu", "us"]}]}

A move without `partition` moves the whole queue. A queue that several clusters share is evenly distributed over them;
its `partitions` are those of all of them together. With `"merge": true` a move is of a queue that `from` and `to`
share, perhaps with others: all of it moves to `to`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from backend_store.core.outer.limits import PARTITIONS_MAX, PLAN_BYTES_MAX, PLAN_ENTRIES_MAX
from backend_store.core.outer.merging import QueueMerged
from backend_store.core.outer.relief import QueueMoved, QueueSplit, Relief
from backend_store.model import InvalidRequest

PLAN_VERSION = 1


class PlannedMove(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"source": "from", "is_merge": "merge"},
    omit_defaults=True,
):
    """A move of a queue, or of one partition, from one cluster to another."""

    queue: str
    source: str
    to: str
    tenant: str = "default"
    partition: int | None = None
    """None: the whole queue."""
    is_merge: bool = False
    """Both clusters share the queue, and `to` gets all of it. Explicit, because a plan that moves a queue must not
    merge one that was split since."""


class PlannedPartitions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A queue's number of partitions, and the clusters that share them."""

    queue: str
    partitions: int
    clusters: tuple[str, ...]
    tenant: str = "default"


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    moves: tuple[PlannedMove, ...] = ()
    partitions: tuple[PlannedPartitions, ...] = ()


NO_PLAN: Final = Plan(PLAN_VERSION)
_decoder = msgspec.json.Decoder(Plan)


def parse(text: bytes) -> Plan:
    """Parses a plan file. Raises `InvalidRequest`, with the place in the file and what belongs there."""
    if len(text) > PLAN_BYTES_MAX:
        raise InvalidRequest(f"the plan must have at most {PLAN_BYTES_MAX} bytes, not {len(text)}: split it")
    try:
        plan = _decoder.decode(text)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"invalid plan: {error}") from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the plan is not valid JSON: {error}") from None
    _check(plan)
    return plan


def written(plan: Plan) -> bytes:
    """Returns the plan as a file that both a person and `parse` can read."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n"


def proposed(changes: Sequence[Relief | QueueMerged]) -> Plan:
    """Returns the changes that the manager would make as a plan, for an operator to review."""
    return Plan(
        PLAN_VERSION,
        tuple(
            PlannedMove(one.queue, one.source, one.to, one.tenant, is_merge=isinstance(one, QueueMerged))
            for one in changes
            if isinstance(one, QueueMoved | QueueMerged)
        ),
        tuple(
            PlannedPartitions(one.queue, one.partitions, (one.source, one.to), one.tenant)
            for one in changes
            if isinstance(one, QueueSplit)
        ),
    )


def check_clusters(plan: Plan, known: Collection[str]) -> None:
    """Raises `InvalidRequest` if the plan names an unknown cluster."""
    for place, name in _clusters_named(plan):
        if name not in known:
            raise InvalidRequest(
                f"{place}: unknown cluster {name!r}; the clusters are {', '.join(sorted(known)) or 'none'}"
            )


def check_queues(plan: Plan, tenant: str, partitions: Mapping[str, int]) -> None:
    """Raises `InvalidRequest` for entries that the queues of a tenant do not allow; `partitions`: their numbers of
    partitions by name. Entries of other tenants are not checked."""
    for at, move in enumerate(plan.moves):
        if move.tenant == tenant:
            has = _has(f"moves[{at}]", move.queue, partitions)
            if move.partition is not None and move.partition >= has:
                raise InvalidRequest(
                    f"moves[{at}].partition is {move.partition}; queue {move.queue!r} has partitions 0 to {has - 1}"
                )
    for at, entry in enumerate(plan.partitions):
        if entry.tenant == tenant:
            has = _has(f"partitions[{at}]", entry.queue, partitions)
            if entry.partitions < has and len(entry.clusters) == 1:  # several clusters have that many each
                raise InvalidRequest(
                    f"partitions[{at}].partitions is {entry.partitions}; queue {entry.queue!r} already has {has}, "
                    "and a plan cannot remove any"
                )


def _has(place: str, queue: str, partitions: Mapping[str, int]) -> int:
    if queue not in partitions:
        raise InvalidRequest(f"{place}.queue: there is no queue {queue!r}; make a new plan")
    return partitions[queue]


def _clusters_named(plan: Plan) -> list[tuple[str, str]]:
    named = []
    for at, move in enumerate(plan.moves):
        named += [(f"moves[{at}].from", move.source), (f"moves[{at}].to", move.to)]
    for at, entry in enumerate(plan.partitions):
        named += [(f"partitions[{at}].clusters[{number}]", name) for number, name in enumerate(entry.clusters)]
    return named


def _check(plan: Plan) -> None:
    if plan.version != PLAN_VERSION:
        raise InvalidRequest(f"version is {plan.version}; this server supports version {PLAN_VERSION}")
    for what, entries in (("moves", plan.moves), ("partitions", plan.partitions)):
        if len(entries) > PLAN_ENTRIES_MAX:
            raise InvalidRequest(f"{what} must have at most {PLAN_ENTRIES_MAX} entries, not {len(entries)}: split it")
    whole: set[tuple[str, str]] = set()
    seen: set[tuple[str, str, int | None]] = set()
    for at, move in enumerate(plan.moves):
        _check_move(f"moves[{at}]", move)
        queue = (move.tenant, move.queue)
        again = (*queue, move.partition) in seen or queue in whole
        if again or (move.partition is None and any(one[:2] == queue for one in seen)):
            raise InvalidRequest(f"moves[{at}]: queue {move.queue!r} is moved twice; list it once")
        seen.add((*queue, move.partition))
        if move.partition is None:
            whole.add(queue)
    resized: set[tuple[str, str]] = set()
    moved = {one[:2] for one in seen}
    for at, entry in enumerate(plan.partitions):
        _check_partitions(f"partitions[{at}]", entry)
        queue = (entry.tenant, entry.queue)
        if queue in resized:
            raise InvalidRequest(f"partitions[{at}]: queue {entry.queue!r} is listed twice; list it once")
        if queue in moved:
            raise InvalidRequest(f"partitions[{at}]: queue {entry.queue!r} is also moved; do one after the other")
        resized.add(queue)


def _check_move(place: str, move: PlannedMove) -> None:
    for field, value in (("queue", move.queue), ("tenant", move.tenant), ("from", move.source), ("to", move.to)):
        if not value:
            raise InvalidRequest(f"{place}.{field} is empty")
    if move.source == move.to:
        raise InvalidRequest(f"{place}.to is {move.to!r}, where the queue already is; choose another cluster")
    if move.partition is not None and move.is_merge:
        raise InvalidRequest(f"{place} has partition and merge; a queue is merged as a whole: remove partition")
    if move.partition is not None and not 0 <= move.partition < PARTITIONS_MAX:
        raise InvalidRequest(f"{place}.partition must be between 0 and {PARTITIONS_MAX - 1}, not {move.partition}")


def _check_partitions(place: str, entry: PlannedPartitions) -> None:
    if not entry.queue or not entry.tenant:
        raise InvalidRequest(f"{place}.{'queue' if not entry.queue else 'tenant'} is empty")
    if not 1 <= entry.partitions <= PARTITIONS_MAX:
        raise InvalidRequest(f"{place}.partitions must be between 1 and {PARTITIONS_MAX}, not {entry.partitions}")
    if not entry.clusters:
        raise InvalidRequest(f"{place}.clusters is empty; list the clusters that share the queue")
    if len(set(entry.clusters)) < len(entry.clusters):
        raise InvalidRequest(f"{place}.clusters lists a cluster twice")
    if len(entry.clusters) > entry.partitions:
        raise InvalidRequest(
            f"{place}.clusters has {len(entry.clusters)} clusters for {entry.partitions} partitions; list fewer"
        )
