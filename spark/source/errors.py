"""What goes wrong between Spark and a gateway. Each error names the option, and what to change."""

from __future__ import annotations


class PushqSourceError(RuntimeError):
    """The first of the tree."""


class WrongOption(PushqSourceError):
    """`option "NAME": …`: what it may be."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f'option "{name}": {detail}')
        self.option = name


class WrongRow(PushqSourceError):
    """A row that cannot become a message."""


class Refused(PushqSourceError):
    """The gateway answered, and trying again does not help."""

    def __init__(self, detail: str, status: int, code: str) -> None:
        super().__init__(f"{detail} ({status} {code})")
        self.status = status
        self.code = code


class Unreachable(PushqSourceError):
    """No gateway took the request for as long as it was tried."""


class StreamChanged(PushqSourceError):
    """A checkpoint belongs to another stream than the one that is there now."""


class DataLost(PushqSourceError):
    """The stream dropped messages before they were read."""
