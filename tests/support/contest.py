"""Which receipt wins where several that wait for one commit are about one message.

Promised is that one of them wins, and that its answer says so. A queue looks at leases in memory first, and then at
receipts of leases that it does not know, because their consumer went away or the process began anew; the references
follow that, so that they can say exactly what each answer is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

Receipt = tuple[str, int]
"""(token, number of the message); a forged receipt has no token."""


def decide(
    requests: Sequence[Sequence[Receipt]], strange: Collection[str], ack: Callable[[int, Receipt], bool]
) -> list[list[bool]]:
    """The verdicts of each request, receipt by receipt. `ack(n, receipt)` decides one receipt of the n-th request;
    `strange` are the tokens that no lease in memory explains.
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
    """What was decided before its commit, because leases were about to end: by the list of a request's answers."""

    def __init__(self) -> None:
        self._acks: dict[int, dict[Receipt, bool]] = {}
        self._nacks: dict[int, list[bool]] = {}

    def ack(
        self, answers: list[Any], receipts: Sequence[Receipt], strange: Collection[str], ack: Callable[[Receipt], bool]
    ) -> None:
        """Decides those that a lease in memory explains."""
        known = self._acks.setdefault(id(answers), {})
        tokens = list(dict.fromkeys(token for token, _ in receipts))
        for receipt in sorted(receipts, key=lambda r: tokens.index(r[0])):
            if receipt[0] not in strange and receipt not in known:
                known[receipt] = bool(receipt[0]) and ack(receipt)

    def acked(self, answers: list[Any], receipt: Receipt, ack: Callable[[Receipt], bool]) -> bool:
        known = self._acks.get(id(answers), {})
        return known[receipt] if receipt in known else ack(receipt)

    def nack(self, answers: list[Any], decide: Callable[[], list[bool]]) -> list[bool]:
        """Decides it, once."""
        if id(answers) not in self._nacks:
            self._nacks[id(answers)] = decide()
        return self._nacks[id(answers)]
