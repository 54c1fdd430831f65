"""Why a role does not start."""


class CannotStart(Exception):
    """Why the process ends with code 3 before it serves anything, and what to do about it."""
