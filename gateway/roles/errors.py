"""The error of a role that cannot start."""


class CannotStart(Exception):
    """The process ends with code 3 before it serves anything; the message says why, and what to do about it."""
