"""Queues that are defined in one shard, and whose messages lie in others.

One shard has the definitions of a whole cluster. A new queue goes where those lie that it names, since dead letters and
acks that publish are commits of one shard; any other one goes to the shard with the fewest queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from backend_store.model import COMPANION, Conflict, QueueConfig, QueueDefinition

HERE: Final = 0
"""The shard that has the definitions."""


class Elsewhere:
    """See the file's first sentence. In memory; who changes it has written the rows."""

    def __init__(self, definitions: Iterable[QueueDefinition]) -> None:
        self.by_name = {(one.tenant, one.name): one for one in definitions}
        self.shards = 1
        """How many there are to choose from; with one, everything is here."""
        self._queues = Counter(one.shard for one in self.by_name.values())

    def put(self, definition: QueueDefinition) -> None:
        """A new one, or one that changed."""
        name = definition.tenant, definition.name
        self._queues[definition.shard] += name not in self.by_name
        self.by_name[name] = definition

    def remove(self, definition: QueueDefinition) -> None:
        del self.by_name[definition.tenant, definition.name]
        self._queues[definition.shard] -= 1

    def choose(self, name: str, linked: Iterable[QueueDefinition | None], *, here: int) -> int:
        """Where a new queue's messages shall lie; `here` so many do already. Raises `Conflict` where those that it
        names lie apart."""
        if self.shards <= 1:
            return HERE
        if found := [one for one in linked if one is not None]:
            _check_together(name, found)
            return found[0].shard
        # The shard of the definitions has work enough: of those with as many queues it comes last.
        queues = {**self._queues, HERE: here}
        return min(range(self.shards), key=lambda shard: (queues.get(shard, 0), shard == HERE, shard))

    def check(self, definition: QueueDefinition, linked: Iterable[QueueDefinition | None]) -> None:
        """Raises `Conflict` where a queue is to name one that lies in another shard."""
        _check_together(definition.name, [definition, *(one for one in linked if one is not None)])


def links_of(config: QueueConfig) -> list[str]:
    """The queues that a config names and that must lie beside it."""
    named = (config.dead_letter_queue, config.colocate_with)
    return [name for name in named if name is not None and name != COMPANION]


def _check_together(name: str, queues: Sequence[QueueDefinition]) -> None:
    apart = next((one for one in queues if one.shard != queues[0].shard), None)
    if apart is not None:
        raise Conflict(
            f"queue {name!r}: {queues[0].name!r} lies in shard {queues[0].shard} and {apart.name!r} in shard "
            f"{apart.shard}, and what goes from one to the other must be one commit; make the queue anew with "
            f"`colocate_with` or `dead_letter_queue` naming only queues of one shard"
        )
