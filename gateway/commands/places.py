"""Computes the steps of a plan from where its queues are, before any step begins. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from web_console.wording import percent

if TYPE_CHECKING:
    from backend_store.client.plans import Plan, PlannedMove, PlannedPartitions

Place = Mapping[str, Any]
"""The answer of `GET /v1/cluster/queues/{tenant}/{queue}`."""

UNEVEN_MAX: Final = 0.01
"""The most by which a cluster's share of an evenly spread queue may differ from the others: parts have a minimum
size."""


class Step(NamedTuple):
    """An entry of a plan, and its state at the server."""

    at: str
    """Its position in the file: `moves[0]`."""
    entry: PlannedMove | PlannedPartitions
    is_done: bool = False
    """It was done before, and is skipped."""
    why_not: str = ""
    """Why it cannot be carried out, with its position in the file and a remedy; "" if it can."""
    partitions: int | None = None
    """The number of partitions to give the queue first; None if it has enough."""

    @property
    def is_merge(self) -> bool:
        """Whether clusters that share the queue are to stop sharing it."""
        return bool(getattr(self.entry, "is_merge", False))


def shares(place: Place) -> dict[str, float]:
    """By cluster, its share of a queue's publishes, as far as it is known."""
    if (found := place.get("clusters")) is not None:
        return {one["cluster"]: one["share"] for one in found}
    leaving = [move["from"] for move in place["moves"] if move["state"] == "sealing"]
    return {leaving[0] if leaving else place["cluster"]: 1.0}  # a server of an earlier version splits none


def lies_in(place: Place) -> str:
    """The clusters that take a queue's publishes, as text: `us`, or `us (50%) and eu (50%)`."""
    found = shares(place)
    return listed(found) if len(found) == 1 else listed([f"{name} ({percent(part)})" for name, part in found.items()])


def listed(names: Collection[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def is_at(place: Place, to: str) -> bool:
    """Whether all publishes go to this cluster, and that is not about to change."""
    return is_over(place, [to])


def is_over(place: Place, clusters: Collection[str]) -> bool:
    """Whether these clusters share the queue evenly, and that is not about to change."""
    found = shares(place)
    is_even = all(abs(part - 1 / len(found)) <= UNEVEN_MAX for part in found.values())
    is_sealing = any(move["state"] == "sealing" for move in place["moves"])
    return not place.get("goal") and not is_sealing and found.keys() == set(clusters) and is_even


def steps(
    plan: Plan, places: Mapping[tuple[str, str], Place | None], tenant: str, partitions: Mapping[str, int]
) -> list[Step]:
    """The steps of a plan, in order: those that only add partitions first, as they are done at once.

    `places`: of all queues in the plan, by tenant and name; None for a missing queue. `tenant`: the key's.
    `partitions`: the number of partitions of that tenant's queues.
    """
    in_order = sorted(enumerate(plan.partitions), key=lambda numbered: is_split(numbered[1]))
    shared = [
        (_split if is_split(entry) else _resized)(
            f"partitions[{at}]", entry, places[entry.tenant, entry.queue], tenant, partitions
        )
        for at, entry in in_order
    ]
    moved = [_moved(f"moves[{at}]", entry, places[entry.tenant, entry.queue]) for at, entry in enumerate(plan.moves)]
    return [*shared, *moved]


def is_split(entry: PlannedPartitions) -> bool:
    """Whether several clusters are to share the queue."""
    return len(entry.clusters) > 1


def _moved(at: str, entry: PlannedMove, place: Place | None) -> Step:
    if entry.partition is not None:
        whole = "single partitions cannot move: remove it to move the whole queue"
        return Step(at, entry, why_not=f"{at}.partition is {entry.partition}; {whole}")
    if place is None:
        return Step(at, entry, why_not=_absent(at, entry.tenant, entry.queue))
    if is_at(place, entry.to):
        return Step(at, entry, is_done=True)
    if not _goes(place, [entry.to]) and (why_not := _not_from(at, entry, shares(place))):
        return Step(at, entry, why_not=why_not)
    if others := _elsewhere(place, [entry.to]):
        way = f"queue {entry.queue!r} is moving to {_named(others)}"
        return Step(at, entry, why_not=f"{at}.to is {entry.to!r}; {way}: wait until it is done, then make a new plan")
    return Step(at, entry)


def _not_from(at: str, entry: PlannedMove, found: Collection[str]) -> str:
    """Why the queue is not where the plan assumes; "" if it is."""
    lies = f"queue {entry.queue!r} is in {_named(found)}; make a new plan"
    if not entry.is_merge:
        return "" if list(found) == [entry.source] else f"{at}.from is {entry.source!r}; {lies}"
    for field, name in (("from", entry.source), ("to", entry.to)):
        if name not in found:
            return f"{at}.{field} is {name!r}; {lies}"
    return ""


def _goes(place: Place, clusters: Collection[str]) -> bool:
    """Whether the queue is being spread over these clusters."""
    return set(place.get("goal", ())) == set(clusters)


def _elsewhere(place: Place, clusters: Collection[str]) -> list[str]:
    """The clusters that it is on its way to and should not be."""
    if goal := place.get("goal"):
        return [] if _goes(place, clusters) else list(goal)
    return [move["to"] for move in place["moves"] if move["state"] == "sealing" and move["to"] not in clusters]


def _resized(
    at: str, entry: PlannedPartitions, place: Place | None, tenant: str, partitions: Mapping[str, int]
) -> Step:
    if place is None:
        return Step(at, entry, why_not=_absent(at, entry.tenant, entry.queue))
    [cluster] = entry.clusters
    if list(shares(place)) != [cluster]:
        lies = f"queue {entry.queue!r} is in {_named(shares(place))}: name that cluster, or move it first"
        return Step(at, entry, why_not=f"{at}.clusters[0] is {cluster!r}; {lies}")
    if entry.tenant != tenant:
        return Step(at, entry, why_not=_theirs(at, entry, tenant))
    is_done = partitions.get(entry.queue) == entry.partitions
    return Step(at, entry, is_done=is_done, partitions=None if is_done else entry.partitions)


def _split(at: str, entry: PlannedPartitions, place: Place | None, tenant: str, partitions: Mapping[str, int]) -> Step:
    """`entry.partitions` is the total of all its clusters; each gets the same number, rounded up."""
    if place is None:
        return Step(at, entry, why_not=_absent(at, entry.tenant, entry.queue))
    if shares(place).keys().isdisjoint(entry.clusters):
        lies = f"queue {entry.queue!r} is in {_named(shares(place))}: also name that cluster, or move it first"
        return Step(at, entry, why_not=f"{at}.clusters are {_named(entry.clusters)}; {lies}")
    if others := _elsewhere(place, entry.clusters):
        way = f"queue {entry.queue!r} is moving to {_named(others)}: wait until it is done, then make a new plan"
        return Step(at, entry, why_not=f"{at}.clusters are {_named(entry.clusters)}; {way}")
    if entry.tenant != tenant:
        return Step(at, entry, why_not=_theirs(at, entry, tenant))
    each = -(-entry.partitions // len(entry.clusters))
    more = each if partitions.get(entry.queue, each) < each else None
    return Step(at, entry, is_done=more is None and is_over(place, entry.clusters), partitions=more)


def _named(names: Collection[str]) -> str:
    return listed([repr(name) for name in names])


def _theirs(at: str, entry: PlannedPartitions, tenant: str) -> str:
    alone = "put the entry into a plan of its own, and apply it with a key of that tenant"
    return f"{at}.tenant is {entry.tenant!r}; the key belongs to {tenant!r}: {alone}"


def _absent(at: str, tenant: str, queue: str) -> str:
    return f"{at}.queue: tenant {tenant!r} has no queue {queue!r}; make a new plan"
