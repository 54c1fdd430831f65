"""The error of a role that cannot start."""


class CannotStart(Exception):
    """The process ends with code 3 before it serves anything; the message says why, and what to do about it."""


def clock_ahead(data: str, detail: str, days: int) -> CannotStart:
    """For a data folder whose last time is so many days behind the clock, more than it may be."""
    variable = f"PUSHQ_STORAGE__CLOCK_JUMP_DAYS_MAX={days}"
    remedy = f"set the clock, or if it is right, start with {variable}: what has outlived its time since then goes"
    return CannotStart(f"data folder {data}: {detail}; {remedy}")
