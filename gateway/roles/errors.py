"""The error of a role that cannot start."""

from __future__ import annotations

from pathlib import Path


class CannotStart(Exception):
    """The process ends with code 3 before it serves anything; the message says why, and what to do about it."""


def clock_ahead(data: str, detail: str, days: int) -> CannotStart:
    """For a data folder whose last time is so many days behind the clock, more than it may be."""
    variable = f"PUSHQ_STORAGE__CLOCK_JUMP_DAYS_MAX={days}"
    remedy = f"set the clock, or if it is right, start with {variable}: what has outlived its time since then goes"
    return CannotStart(f"data folder {data}: {detail}; {remedy}")


def cannot_open(folder: Path | str, error: Exception) -> CannotStart:
    """The data folder cannot be opened. Of an `OSError` it has the system's words and the file, without the number."""
    why = str(error)
    if isinstance(error, OSError) and error.strerror is not None:
        is_elsewhere = error.filename is not None and str(error.filename) != str(folder)
        why = f"{error.filename}: {error.strerror}" if is_elsewhere else error.strerror
    return CannotStart(f"cannot open the data folder {folder}: {why}")
