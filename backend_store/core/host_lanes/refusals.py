"""What a queue of a cluster of independent hosts cannot be yet: refused by name where it is made or changed.

Each rule has a reason: what it asks for is decided over all messages of a queue, and a lane knows its own alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from backend_store.model import FieldError, InvalidRequest, QueueConfig

_RULES: Final[tuple[tuple[str, Callable[[QueueConfig], bool], str], ...]] = (
    ("kind", lambda c: c.kind != "work", "streams and their groups; choose work"),
    ("partitions", lambda c: c.partitions != 1, "partitions of a lane; it has one lane a host: choose 1"),
    ("auto_expand", lambda c: c.auto_expand is not None, "lanes that split; leave it out"),
    ("sequencing", lambda c: c.sequencing != "arrival", "an order over all lanes; choose arrival"),
    ("max_messages", lambda c: c.max_messages is not None, "limits over all lanes; leave it out"),
    ("max_bytes", lambda c: c.max_bytes is not None, "limits over all lanes; leave it out"),
    ("colocate_with", lambda c: c.colocate_with is not None, "acks that publish; leave it out"),
)
"""Setting, when it is refused, and what there is not yet."""


def check_supported(name: str, config: QueueConfig) -> None:
    """Raises `InvalidRequest` with an error for each setting that is refused."""
    errors = tuple(
        FieldError(f"/{setting}", f"a cluster of independent hosts does not have {lacks}")
        for setting, is_refused, lacks in _RULES
        if is_refused(config)
    )
    if errors:
        settings = ", ".join(error.pointer.removeprefix("/") for error in errors)
        raise InvalidRequest(
            f"queue {name!r}: a cluster of independent hosts does not take {settings} as given", errors=errors
        )
