"""Decides whether a failed call may be repeated: each call earns a fraction of a retry, each retry costs a whole one.

Without a budget, callers that all repeat failed calls multiply the load on a failing dependency. With it, the
dependency gets at most a tenth more calls than were asked for, however many fail. The form is a token bucket whose
tokens are earned by calls and not by time, as in Finagle's `RetryBudget`.
"""

from __future__ import annotations

from fractions import Fraction

from throttling.config import RETRIES_PER_CALL_FRACTION, RETRIES_SAVED_MAX


class RetryBudget:
    """The budget for one dependency. It begins empty, so retries are never more than their fraction of the calls."""

    def __init__(self, per_call: float = RETRIES_PER_CALL_FRACTION, saved_max: int = RETRIES_SAVED_MAX) -> None:
        part = Fraction(per_call).limit_denominator(1000)
        self._earned = part.numerator
        self._price = part.denominator
        """Integers: a sum of tenths as floats would grant the tenth call nothing."""
        self._max = saved_max * self._price
        self._tokens = 0

    def earn(self) -> None:
        """A call was made."""
        self._tokens = min(self._tokens + self._earned, self._max)

    def take(self) -> bool:
        """Whether a call may be repeated; if so, the retry is paid for."""
        if self._tokens < self._price:
            return False
        self._tokens -= self._price
        return True
