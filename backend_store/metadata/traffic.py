"""Counts a metadata service's requests and connections."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import structlog

from backend_store.histogram import Histogram
from backend_store.metadata.operations import HandedOn, Operation, Reading
from backend_store.wire.versions import OtherVersion, Strangers

SECONDS_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


log = structlog.get_logger("pushq.metadata")


def _warn(why: OtherVersion) -> None:
    log.warning("who speaks another version is refused", reason=why.detail)


class Traffic:
    """The counts of one process, over all connections."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        """(Operation, "ok" or an error's code) → answers."""
        self.seconds = {"read": Histogram(SECONDS_BOUNDS), "write": Histogram(SECONDS_BOUNDS)}
        self.expired = 0
        """Requests that were not begun, because their time budget had run out."""
        self.in_progress = 0
        self.connections = 0
        self.strangers = 0
        """Connections that were refused because they showed no valid secret or certificate."""
        self.other_versions = Strangers(_warn)
        """Processes that were refused because they speak another version."""
        self.watches = 0
        self.changes_told = 0

    def answered(self, asked: Operation | None, outcome: str, seconds: float) -> None:
        """`asked`: None where the request did not parse."""
        self.requests["unknown" if asked is None else name_of(asked), outcome] += 1
        if asked is not None:
            self.seconds[kind_of(asked)].add(seconds)


def name_of(asked: Operation) -> str:
    """The name of an operation; of a forwarded one, that of the inner operation."""
    inner: Any = asked.what if isinstance(asked, HandedOn) else asked
    return str(inner.__struct_config__.tag)


def kind_of(asked: Operation) -> str:
    """ "read" or "write"."""
    return "read" if isinstance(asked.what if isinstance(asked, HandedOn) else asked, Reading) else "write"
