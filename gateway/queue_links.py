"""What a queue's config says of other queues: they must be there, and dead letters must come to an end somewhere."""

from __future__ import annotations

from collections.abc import Callable

from backend_store.model import COMPANION, QueueConfig
from push.checks import field as invalid_field

Find = Callable[[str], QueueConfig | None]
"""The config of a queue of the same tenant."""


def check_links(name: str, config: QueueConfig, find: Find, *, known: QueueConfig | None = None) -> None:
    """Raises `InvalidRequest`. Links that the queue has already, as `known` has them, are not asked for again: what
    they lead to may be gone meanwhile, and other settings change all the same.
    """
    target, beside = config.dead_letter_queue, config.colocate_with
    if target not in (None, COMPANION) and (known is None or target != known.dead_letter_queue):
        _check_dead_letter_queue(name, target, find)
    if beside is not None and (known is None or beside != known.colocate_with) and find(beside) is None:
        raise invalid_field("/colocate_with", f"there is no queue {beside!r}; make it first")


def _check_dead_letter_queue(name: str, target: str, find: Find) -> None:
    pointer = "/dead_letter_queue"
    found = find(target)
    if found is None:
        raise invalid_field(pointer, f"there is no queue {target!r}; make it first, or leave it out for {name}.dead")
    if found.sequencing != "arrival":
        detail = f"{target!r} sorts by {found.sequencing}, and dead letters have no place in its order"
        raise invalid_field(pointer, f"{detail}; name a queue of sequencing 'arrival'")
    path = _path(name, target, find)
    if path[-1] == name:
        detail = f"dead letters would go round for ever: {' → '.join(path)}"
        raise invalid_field(pointer, f"{detail}; end the line with a queue that keeps its own")


def _path(name: str, target: str, find: Find) -> list[str]:
    """Where dead letters go from queue to queue, to the end or to the first queue that comes again."""
    path = [name, target]
    while path[-1] not in path[:-1]:
        found = find(path[-1])
        if found is None or found.dead_letter_queue in (None, COMPANION):
            break
        path.append(found.dead_letter_queue)
    return path
