"""Routes receipts of a stream to the consumer group that gave each out, in the partition it came from."""

from __future__ import annotations

from backend_store.client.views import AskView, Together
from backend_store.core.leases.receipts import partition_of_token
from backend_store.node.partition import Partition
from backend_store.node.partitions import Partitions
from backend_store.node.views.acks import SettleReply
from backend_store.node.views.group import RunningGroup
from backend_store.node.views.view import View


class GroupReceipts:
    def __init__(self, partitions: Partitions):
        self._partitions = partitions

    def by_view(self, grouped: dict[str, int]) -> list[tuple[View, dict[str, int]]]:
        """Receipts by the view that gave them out; those of no view are left out."""
        found: list[tuple[View, dict[str, int]]] = []
        for partition, own in self._by_partition(grouped):
            if partition.groups is not None:
                found += partition.groups.by_view(own).items()
        return found

    def _by_partition(self, grouped: dict[str, int]) -> list[tuple[Partition, dict[str, int]]]:
        partitions = self._partitions
        if len(partitions.all) == 1:
            return [(partitions.all[0], grouped)]
        found: dict[Partition, dict[str, int]] = {}
        for token, bits in grouped.items():
            number = partition_of_token(token)
            partition = partitions.get(number) if number is not None else None
            if partition is not None:
                found.setdefault(partition, {})[token] = bits
        return list(found.items())

    def of_one_group(self, grouped: dict[str, int]) -> list[tuple[View, dict[str, int]]]:
        """The same if one group gave out all of them; otherwise empty."""
        found = self.by_view(grouped)
        names = {view.group.name for view, _ in found if isinstance(view, RunningGroup)}
        return found if len(names) == 1 and sum(len(own) for _, own in found) == len(grouped) else []

    def ask(self, grouped: dict[str, int], ask: AskView, reply: SettleReply) -> None:
        """Has each group decide about its own receipts; `reply` gets all answers in one."""
        found = self.by_view(grouped)
        if not found:
            reply({})
            return
        answer = Together(len(found), reply)
        for view, own in found:
            ask(view, own, answer.told)
