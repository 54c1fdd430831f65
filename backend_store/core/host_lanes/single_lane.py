"""Which queues of independent hosts have a single lane: those with a decision over all of their messages.

A lane knows only its own messages. A queue whose config requires an order, a limit or a commit over all messages has a
single lane, which is adopted and given back like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from backend_store.model import FieldError, InvalidRequest, QueueConfig

_RULES: Final[tuple[tuple[str, Callable[[QueueConfig], bool], str], ...]] = (
    ("kind", lambda c: c.kind != "work", "a stream has offsets over all of its messages"),
    ("partitions", lambda c: c.partitions != 1, "partitions lie beside each other in one lane"),
    ("auto_expand", lambda c: c.auto_expand is not None, "partitions lie beside each other in one lane"),
    ("sequencing", lambda c: c.sequencing != "arrival", "an order of time or producers is over all messages"),
    ("max_messages", lambda c: c.max_messages is not None, "the limit is for all messages"),
    ("max_bytes", lambda c: c.max_bytes is not None, "the limit is for all messages"),
    ("colocate_with", lambda c: c.colocate_with is not None, "an ack that publishes is one commit of one lane"),
)
"""Setting, the condition under which it requires a single lane, and the reason."""


def needs_single_lane(config: QueueConfig) -> bool:
    return any(is_asked(config) for _, is_asked, _ in _RULES)


def check_has_lanes(name: str, config: QueueConfig) -> None:
    """Checks the config of a queue that has, or will have, a lane at each host. Raises `InvalidRequest` with an error
    for each setting that requires a single lane.
    """
    errors = tuple(
        FieldError(f"/{setting}", f"{why}, but this queue has a lane on each host; recreate it with this setting")
        for setting, is_asked, why in _RULES
        if is_asked(config)
    )
    if errors:
        settings = ", ".join(error.pointer.removeprefix("/") for error in errors)
        raise InvalidRequest(
            f"queue {name!r} has a lane on each independent host, but {settings} as given requires a single lane, "
            "which can only be chosen when the queue is created",
            errors=errors,
        )
