"""The messages that an HTTP subscription holds: over HTTP the client itself must count what is delivered and not
settled."""

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
        """Whether an ack covers all earlier messages of its partition: true for a group with offsets."""
        self._partitions: dict[str, int] = {}
        self._begun: set[str] = set()

    def __len__(self) -> int:
        return len(self._partitions)

    def hold(self, messages: Iterable[WireMessage | UnreadMessage]) -> None:
        """Adds delivered messages."""
        for message in messages:
            if message.receipt is not None:
                self._partitions[message.receipt] = message.partition

    def settle(self, receipts: Sequence[str], *, is_ack: bool) -> int:
        """Removes settled messages. Returns how many are removed."""
        before = len(self)
        for receipt in receipts:
            if is_ack and self.commits:
                self._commit(receipt)
            else:
                self._drop(receipt)
        return before - len(self)

    def begin(self, receipts: Iterable[str]) -> None:
        """Marks messages as begun by a handler. Receipts that are not held belong to another subscription."""
        self._begun.update(receipt for receipt in receipts if receipt in self._partitions)

    def held(self) -> list[Held]:
        """The messages that are still held."""
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
