"""Places queues whose messages lie in other shards than the one that defines them, of the same or another cluster.

One shard of the home cluster has all definitions. A new queue goes to the shard of the queues that it names, since dead
letters and acks that publish are commits of one shard; any other queue goes to the cluster that the gateway chose, and
there to the shard with the fewest queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from backend_store.metadata.queue_rows import QueueRows
from backend_store.model import COMPANION, Conflict, QueueConfig, QueueDefinition, Unavailable, Whereabouts
from backend_store.wire.store_frames import Copies

HERE: Final = Whereabouts("", 0)
"""The shard that has the definitions."""


class ClusterSize(NamedTuple):
    """A cluster where a queue is to lie, with its number of shards or lanes; "": the home cluster, whose numbers the
    shard of the definitions knows."""

    cluster: str
    shards: int = 1
    lanes: int = 0
    among: tuple[int, ...] = ()
    """Shards, or lanes, one of which takes the queue; (): any."""


HOME: Final = ClusterSize("")


class Elsewhere:
    """The queues that lie in other shards. In memory: the caller has written the rows before a change."""

    def __init__(self, definitions: Iterable[QueueDefinition]) -> None:
        self.by_name = QueueRows(definitions)
        self.shards = 1
        """Number of shards to choose from in the home cluster; with one, all of its queues are here."""
        self.usual: Callable[[], Sequence[int]] = tuple
        """Returns the shards for queues that ask for no mode; () if these are not known: any shard."""
        self.lanes = 0
        """Number of lanes of a home cluster of independent hosts; 0: its backends are not independent hosts."""
        self._queues = Counter(one.place for one in self.by_name.values())

    def put(self, definition: QueueDefinition) -> None:
        """Adds a definition, or replaces one that changed."""
        name = definition.tenant, definition.name
        if (before := self.by_name.get(name)) is not None:
            self._queues[before.place] -= 1
        self._queues[definition.place] += 1
        self.by_name[name] = definition

    def remove(self, definition: QueueDefinition) -> None:
        del self.by_name[definition.tenant, definition.name]
        self._queues[definition.place] -= 1

    def choose(
        self,
        name: str,
        linked: Iterable[QueueDefinition | None],
        size: ClusterSize = HOME,
        *,
        here: int,
        is_asked: bool = False,
        single_lane: bool = False,
        turn: int = 0,
    ) -> Whereabouts:
        """Chooses the place of a new queue in the cluster that the gateway chose. `here`: number of queues in the shard
        of the definitions. `linked`: the queues that it names, whose place it takes even if that is not among the
        shards of `size`, unless `is_asked`. `single_lane`: see `QueueDefinition`; such queues take the home cluster's
        lanes by `turn`. Raises `Conflict` if the linked queues lie apart, or in none of the shards asked for, and
        `Unavailable` if they lie in another cluster than the gateway chose, as it had not heard of them."""
        cluster, shards, lanes, among = size if size.cluster else HOME._replace(lanes=self.lanes, among=size.among)
        if found := [one for one in linked if one is not None]:
            if lanes:
                _check_lanes(name, found, single_lane=single_lane)
            _check_together(name, found, is_laned=lanes > 0)
            if found[0].cluster != cluster:
                detail = (
                    f"queue {name!r} must be placed with {found[0].name!r}, which this gateway does not know yet; retry"
                )
                raise Unavailable(detail, retry_after_ms=200)
            if is_asked and among and found[0].shard not in among:
                detail = f"queue {name!r} must be placed with {found[0].name!r}, whose replication does not match"
                raise Conflict(f"{detail}; omit `replication`, or recreate both queues with it")
            return found[0].place
        if lanes and single_lane and not cluster:
            among = among or tuple(range(lanes))
            return Whereabouts(cluster, among[turn % len(among)])
        if not cluster:
            shards = self.shards
            if not lanes and not among:
                among = tuple(self.usual())  # a gateway of an earlier version knows nothing of modes
        # The shard of the definitions has other work, too: it comes last among shards with equally many queues.
        queues = {**self._queues, HERE: here}
        able = [Whereabouts(cluster, shard) for shard in among or range(max(1, shards))]
        return min(able, key=lambda place: (queues.get(place, 0), place == HERE, place.shard))

    def check(self, definition: QueueDefinition, linked: Iterable[QueueDefinition | None], *, lanes: int = 0) -> None:
        """Raises `Conflict` if a queue names one that lies in another shard. `lanes`: of the further cluster, if the
        queue lies in one."""
        named = [one for one in linked if one is not None]
        lanes = lanes if definition.cluster else self.lanes
        if lanes:
            _check_lanes(definition.name, named, single_lane=definition.single_lane)
        _check_together(definition.name, [definition, *named], is_laned=lanes > 0)


def usual_shards(copies: Sequence[Copies], mode: str) -> list[int]:
    """The shards for queues that ask for no mode: those of the cluster's mode, or all placed ones if none has it."""
    placed = [number for number, one in enumerate(copies) if one.mode]
    if mode == "async":
        return placed  # including the shard of the definitions, which is sync
    return [number for number in placed if copies[number].mode == mode] or placed


def links_of(config: QueueConfig) -> list[str]:
    """The queues that a config names and that must lie beside it."""
    named = (config.dead_letter_queue, config.colocate_with)
    return [name for name in named if name is not None and name != COMPANION]


def check_linked(name: str, queues: Iterable[QueueDefinition | None]) -> None:
    """Raises `Conflict` if a queue, or one that it names, is split over several clusters or moves to another one:
    messages that go from one to the other would be left behind."""
    moving = next((one for one in queues if one is not None and one.is_on_its_way), None)
    if moving is not None and moving.beside:
        raise Conflict(f"queue {name!r}: {moving.name!r} is split over several clusters; merge it first")
    if moving is not None:
        raise Conflict(
            f"queue {name!r}: {moving.name!r} is moving to another cluster; wait until the old one has none of its "
            "messages left"
        )


def _check_lanes(name: str, linked: Iterable[QueueDefinition], *, single_lane: bool) -> None:
    """For independent hosts: raises `Conflict` if a queue of one lane names one with a lane at each host, or the
    reverse. No commit spans all lanes of the latter, and a key's lane there may be at another host."""
    other = next((one for one in linked if one.single_lane != single_lane), None)
    if other is not None:
        has, lies = (other.name, name) if single_lane else (name, other.name)
        raise Conflict(
            f"queue {name!r}: {has!r} has a lane on each independent host, but {lies!r} is on only one of them, so "
            f"messages cannot move between them in one commit; recreate {has!r} with one lane, using "
            "replication.model leader_follower"
        )


def _check_together(name: str, queues: Sequence[QueueDefinition], *, is_laned: bool) -> None:
    apart = next((one for one in queues if one.cluster != queues[0].cluster), None)
    if apart is None and (queues[0].single_lane or not is_laned):
        apart = next((one for one in queues if one.place != queues[0].place), None)
    if apart is not None:
        raise Conflict(
            f"queue {name!r}: {queues[0].name!r} is in {queues[0].place} and {apart.name!r} in {apart.place}, but "
            "messages must move between them in one commit; recreate the queue with `colocate_with` or "
            "`dead_letter_queue` naming only queues of one shard"
        )
