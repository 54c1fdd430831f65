"""Decides which receipt wins if several that wait for the same commit concern the same message.

The promise is that one of them wins, and that its response says so. A queue checks leases in memory first, and then
receipts of leases it does not know, because the consumer went away or the process restarted. The reference models do
the same, so that they can predict each response exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

Receipt = tuple[str, int]
"""(token, message number); a forged receipt has no token."""


def decide(
    requests: Sequence[Sequence[Receipt]], strange: Collection[str], ack: Callable[[int, Receipt], bool]
) -> list[list[bool]]:
    """The verdicts of each request, one per receipt. `ack(n, receipt)` decides one receipt of the n-th request;
    `strange` are the tokens that match no lease in memory.
    """
    won: dict[tuple[int, Receipt], bool] = {}
    for is_strange in (False, True):
        for number, receipts in enumerate(requests):
            tokens = list(dict.fromkeys(token for token, _ in receipts))
            for receipt in sorted(receipts, key=lambda r: tokens.index(r[0])):
                if (receipt[0] in strange) == is_strange:
                    won[number, receipt] = bool(receipt[0]) and ack(number, receipt)
    return [[won[number, receipt] for receipt in receipts] for number, receipts in enumerate(requests)]


class Early:
    """Verdicts made before their commit because leases were about to end, keyed by the list of a request's answers."""

    def __init__(self) -> None:
        self._acks: dict[int, dict[Receipt, bool]] = {}
        self._nacks: dict[int, list[bool]] = {}

    def ack(
        self, answers: list[Any], receipts: Sequence[Receipt], strange: Collection[str], ack: Callable[[Receipt], bool]
    ) -> None:
        """Decides the receipts that match a lease in memory."""
        known = self._acks.setdefault(id(answers), {})
        tokens = list(dict.fromkeys(token for token, _ in receipts))
        for receipt in sorted(receipts, key=lambda r: tokens.index(r[0])):
            if receipt[0] not in strange and receipt not in known:
                known[receipt] = bool(receipt[0]) and ack(receipt)

    def acked(self, answers: list[Any], receipt: Receipt, ack: Callable[[Receipt], bool]) -> bool:
        known = self._acks.get(id(answers), {})
        return known[receipt] if receipt in known else ack(receipt)

    def nack(self, answers: list[Any], decide: Callable[[], list[bool]]) -> list[bool]:
        """Decides the request, once."""
        if id(answers) not in self._nacks:
            self._nacks[id(answers)] = decide()
        return self._nacks[id(answers)]
