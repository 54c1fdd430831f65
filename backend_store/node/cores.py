"""Which core reads which shelves of a partition, by the queue's config."""

from __future__ import annotations

from collections.abc import Callable

from backend_store.core.policy import companion_policy, policy_of
from backend_store.core.records import PartitionState, Tally
from backend_store.core.runs import ArrivalRuns, Runs
from backend_store.core.shelves import SHELF_OF_VIEW, VIEW_MAIN
from backend_store.core.work import ReceiptKey, WorkView
from backend_store.model import Offset, QueueConfig


def core_of(config: QueueConfig, view: int, state: PartitionState, key: ReceiptKey, first_lease: int) -> WorkView:
    """The core of one view."""
    if view == VIEW_MAIN:
        return WorkView(
            key,
            next_scan=Offset(state.floor),
            more=state.end > state.floor,
            first_lease=first_lease,
            policy=policy_of(config),
            shelves=range(config.priorities),
            make_runs=runs_of(config),
            reads_keys=reads_keys(config),
        )
    return WorkView(
        key,
        next_scan=Offset(state.views.get(view, Tally()).floor),
        first_lease=first_lease,
        view=view,
        policy=companion_policy(config),
        shelves=(SHELF_OF_VIEW[view],),
    )


def reads_keys(config: QueueConfig) -> bool:
    """Whether the order or the share of messages hangs on their keys."""
    return config.ordering == "strict" or config.fair_by == "key"


def runs_of(config: QueueConfig) -> Callable[[], Runs]:
    """How a lane of the queue orders what is ready."""
    return ArrivalRuns


def reconfigure(core: WorkView, config: QueueConfig) -> None:
    """Lets a changed config hold in a view that runs."""
    if core.number == VIEW_MAIN:
        core.policy = policy_of(config)
        core.lanes.grow(range(config.priorities))
