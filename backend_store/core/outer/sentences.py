"""The longer texts of the out-cluster manager's events."""

from __future__ import annotations

from collections.abc import Sequence

from backend_store.core.outer.limits import NAMED_MAX
from backend_store.core.outer.merging import QueueMerged
from backend_store.core.outer.moving import Attempt
from backend_store.core.outer.relief import QueueSplit, Relief

_HAS_IT = "see `pushq cluster plan`"


def backends(count: int) -> str:
    return f"{count} backend" if count == 1 else f"{count} backends"


def would_cool(reliefs: Sequence[Relief]) -> str:
    """Returns the text about the queues that should leave one hot cluster."""
    halves = ["half of " if isinstance(one, QueueSplit) else "" for one in reliefs]
    named = [f"{half}{one.queue!r} to {one.to}" for half, one in zip(halves, reliefs, strict=True)]
    return f"the cluster would cool down without {_some(named)}; {_HAS_IT}"


def could_keep(merges: Sequence[QueueMerged]) -> str:
    """Returns the text about the shared queues that one cluster could handle alone."""
    return f"the cluster could handle all of {_some([repr(one.queue) for one in merges])}; {_HAS_IT}"


def begins(move: Attempt) -> str:
    return f"{_what(move)} {'is merged into' if move.is_merge else 'moves to'} {move.to!r}"


def begins_not(move: Attempt) -> str:
    return f"{_what(move)} is not {'merged into' if move.is_merge else 'moved to'} {move.to!r}"


def _what(move: Attempt) -> str:
    whose = "" if move.tenant == "default" else f" of tenant {move.tenant!r}"
    return f"{'half of ' if move.is_split else ''}queue {move.queue!r}{whose}"


def _some(named: Sequence[str]) -> str:
    more = f" and {len(named) - NAMED_MAX} more" if len(named) > NAMED_MAX else ""
    return f"{', '.join(named[:NAMED_MAX])}{more}"
