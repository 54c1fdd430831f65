"""What an HTTP subscription holds: over HTTP nobody else counts what was delivered and not settled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from push.client.frames import UnreadMessage, WireMessage


class Held(NamedTuple):
    """A message that was delivered and not settled."""

    receipt: str
    is_begun: bool


class Outstanding:
    """Receipts in the order of delivery, each with its partition."""

    def __init__(self) -> None:
        self.commits = False
        """Does an ack cover what its partition delivered before? It does in a group with offsets."""
        self._partitions: dict[str, int] = {}
        self._begun: set[str] = set()

    def __len__(self) -> int:
        return len(self._partitions)

    def hold(self, messages: Iterable[WireMessage | UnreadMessage]) -> None:
        """These were delivered."""
        for message in messages:
            if message.receipt is not None:
                self._partitions[message.receipt] = message.partition

    def settle(self, receipts: Sequence[str], *, is_ack: bool) -> int:
        """These were settled: how many are over with them."""
        before = len(self)
        for receipt in receipts:
            if is_ack and self.commits:
                self._commit(receipt)
            else:
                self._drop(receipt)
        return before - len(self)

    def begin(self, receipts: Iterable[str]) -> None:
        """A handler has these. Those that are not held belong to another subscription."""
        self._begun.update(receipt for receipt in receipts if receipt in self._partitions)

    def held(self) -> list[Held]:
        """What is held still."""
        return [Held(receipt, receipt in self._begun) for receipt in self._partitions]

    def _commit(self, acked: str) -> None:
        partition = self._partitions.get(acked)
        if partition is None:
            return
        covered: list[str] = []
        for receipt, its_partition in self._partitions.items():
            if its_partition == partition:
                covered.append(receipt)
            if receipt == acked:
                break
        for receipt in covered:
            self._drop(receipt)

    def _drop(self, receipt: str) -> None:
        self._partitions.pop(receipt, None)
        self._begun.discard(receipt)
