"""What is to be done for a plan, by where its queues lie: decided before anything begins. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from backend_store.client.plans import Plan, PlannedMove, PlannedPartitions

Place = Mapping[str, Any]
"""As `GET /v1/cluster/queues/{tenant}/{queue}` answers."""


class Step(NamedTuple):
    """An entry of a plan, as it stands at the server."""

    at: str
    """Its place in the file: `moves[0]`."""
    entry: PlannedMove | PlannedPartitions
    is_done: bool = False
    """It was done before, and is passed over."""
    why_not: str = ""
    """What is wrong with it, with the place in the file and what to do instead; "" for nothing."""


def lies_in(place: Place) -> str:
    """The cluster that takes a queue's publishes, as far as is known."""
    leaving = [move["from"] for move in place["moves"] if move["state"] == "sealing"]
    return str(leaving[0] if leaving else place["cluster"])


def is_at(place: Place, to: str) -> bool:
    """Whether publishes arrive there."""
    return lies_in(place) == to


def steps(
    plan: Plan, places: Mapping[tuple[str, str], Place | None], tenant: str, partitions: Mapping[str, int]
) -> list[Step]:
    """What a plan asks for, in the order in which it is done: numbers of partitions first, for they are done at once.

    `places`: of all its queues, by tenant and name; None for one that there is not. `tenant`, `partitions`: of the key,
    and how many the queues of that tenant were given.
    """
    resized = [
        _resized(f"partitions[{at}]", entry, places[entry.tenant, entry.queue], tenant, partitions)
        for at, entry in enumerate(plan.partitions)
    ]
    moved = [_moved(f"moves[{at}]", entry, places[entry.tenant, entry.queue]) for at, entry in enumerate(plan.moves)]
    return [*resized, *moved]


def _moved(at: str, entry: PlannedMove, place: Place | None) -> Step:
    if entry.partition is not None:
        whole = "one partition does not move alone: leave it out, and the whole queue moves"
        return Step(at, entry, why_not=f"{at}.partition is {entry.partition}; {whole}")
    if place is None:
        return Step(at, entry, why_not=_absent(at, entry.tenant, entry.queue))
    if is_at(place, entry.to):
        return Step(at, entry, is_done=True)
    if (here := lies_in(place)) != entry.source:
        lies = f"queue {entry.queue!r} lies in {here!r}; make the plan anew"
        return Step(at, entry, why_not=f"{at}.from is {entry.source!r}; {lies}")
    others = [move["to"] for move in place["moves"] if move["state"] == "sealing" and move["to"] != entry.to]
    if others:
        way = f"queue {entry.queue!r} is on its way to {others[0]!r}"
        return Step(at, entry, why_not=f"{at}.to is {entry.to!r}; {way}: wait for that, and make the plan anew")
    return Step(at, entry)


def _resized(
    at: str, entry: PlannedPartitions, place: Place | None, tenant: str, partitions: Mapping[str, int]
) -> Step:
    if len(entry.clusters) > 1:
        apart = "a queue lies in one cluster: name that one, and add a move of the queue to another plan"
        return Step(at, entry, why_not=f"{at}.clusters names {len(entry.clusters)}; {apart}")
    if place is None:
        return Step(at, entry, why_not=_absent(at, entry.tenant, entry.queue))
    [cluster] = entry.clusters
    if not is_at(place, cluster):
        lies = f"queue {entry.queue!r} lies in {lies_in(place)!r}: name that, or move it first"
        return Step(at, entry, why_not=f"{at}.clusters[0] is {cluster!r}; {lies}")
    if entry.tenant != tenant:
        theirs = f"the key is of {tenant!r}: put the entry into a plan of its own, and apply it with a key of theirs"
        return Step(at, entry, why_not=f"{at}.tenant is {entry.tenant!r}; {theirs}")
    return Step(at, entry, is_done=partitions.get(entry.queue) == entry.partitions)


def _absent(at: str, tenant: str, queue: str) -> str:
    return f"{at}.queue: tenant {tenant!r} has no queue {queue!r}; make the plan anew"
