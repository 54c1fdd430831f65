"""Errors of the data source. Each names the option to change, and how."""

from __future__ import annotations


class PushqSourceError(RuntimeError):
    """The base class of these errors."""


class WrongOption(PushqSourceError):
    """`option "NAME": …`, with the values it accepts."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f'option "{name}": {detail}')
        self.option = name


class WrongRow(PushqSourceError):
    """A row that cannot be published as a message."""


class Refused(PushqSourceError):
    """The gateway refused a request, and retrying does not help."""

    def __init__(self, detail: str, status: int, code: str) -> None:
        super().__init__(f"{detail} ({status} {code})")
        self.status = status
        self.code = code


class Unreachable(PushqSourceError):
    """No gateway accepted the request for as long as it was retried."""


class StreamChanged(PushqSourceError):
    """A checkpoint belongs to an earlier stream of the same name."""


class DataLost(PushqSourceError):
    """The stream trimmed messages before they were read."""
