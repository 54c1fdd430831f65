"""Checks the other queues that a queue's config names: they must exist, and dead letters must not go in a circle."""

from __future__ import annotations

from collections.abc import Callable

from backend_store.model import COMPANION, QueueConfig
from push.operations.checks import field as invalid_field

Find = Callable[[str], QueueConfig | None]
"""Returns the config of a queue of the same tenant; None if there is none."""


def check_links(name: str, config: QueueConfig, find: Find, *, known: QueueConfig | None = None) -> None:
    """Raises `InvalidRequest` for a link to a queue that does not exist or does not fit. Links unchanged from `known`
    are not checked: their targets may be gone meanwhile, which must not prevent changes to other settings.
    """
    target, beside = config.dead_letter_queue, config.colocate_with
    if target not in (None, COMPANION) and (known is None or target != known.dead_letter_queue):
        _check_dead_letter_queue(name, target, find)
    if beside is not None and (known is None or beside != known.colocate_with) and find(beside) is None:
        raise invalid_field("/colocate_with", f"there is no queue {beside!r}; create it first")


def _check_dead_letter_queue(name: str, target: str, find: Find) -> None:
    pointer = "/dead_letter_queue"
    found = find(target)
    if found is None:
        raise invalid_field(pointer, f"there is no queue {target!r}; create it first, or omit it to use {name}.dead")
    if found.sequencing != "arrival":
        detail = f"{target!r} is sorted by {found.sequencing}, and dead letters have no position in its order"
        raise invalid_field(pointer, f"{detail}; choose a queue with sequencing 'arrival'")
    path = _path(name, target, find)
    if path[-1] == name:
        detail = f"dead letters would circulate forever: {' → '.join(path)}"
        raise invalid_field(pointer, f"{detail}; end the chain with a queue that keeps its own")


def _path(name: str, target: str, find: Find) -> list[str]:
    """The queues that dead letters pass, up to the last one or to the first that repeats."""
    path = [name, target]
    while path[-1] not in path[:-1]:
        found = find(path[-1])
        if found is None or found.dead_letter_queue in (None, COMPANION):
            break
        path.append(found.dead_letter_queue)
    return path
