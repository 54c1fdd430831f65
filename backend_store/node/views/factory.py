"""Chooses the core and the shelves of each view, by the queue's config."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from backend_store.core.groups import GroupView, LeasedGroup, OffsetGroup
from backend_store.core.leases.leasing import ReceiptKey
from backend_store.core.log.records import GroupRow, PartitionState, Tally
from backend_store.core.log.sublogs import SHELF_OF_VIEW, VIEW_MAIN
from backend_store.core.ready.arrival import ArrivalRuns, Runs
from backend_store.core.ready.attempt_policy import Policy, companion_policy, policy_of
from backend_store.core.ready.late import LateRuns
from backend_store.core.ready.strict import StrictRuns
from backend_store.core.ready.work_queue import WorkView
from backend_store.model import VISIBILITY_MS_MAX, Offset, QueueConfig
from backend_store.node.views.reorder import HEAD_LANE, ORDER_LANE


def core_of(
    config: QueueConfig,
    view: int,
    state: PartitionState,
    key: ReceiptKey,
    first_lease: int,
    group: tuple[GroupRow, Offset] | None = None,
) -> WorkView:
    """The core of one view; of a group, from its row and the offset where its first chunk begins."""
    if group is not None:
        return _group_core(config, *group, key, first_lease)
    if view == VIEW_MAIN and config.sequencing != "arrival":
        # Its lanes read rows of the release order, by number: the usual rows, and those for the head of the queue.
        core = WorkView(
            key,
            next_scan=Offset(0),
            first_lease=first_lease,
            policy=policy_of(config),
            shelves=(ORDER_LANE, HEAD_LANE),
            make_runs=runs_of(config),
            reads_keys=reads_keys(config),
            is_fair=config.fair_by == "key",
        )
        order, head = core.lanes.all
        if isinstance(order.runs, StrictRuns):
            head.runs = LateRuns(order.runs)
        return core
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
            is_fair=config.fair_by == "key",
        )
    return WorkView(
        key,
        next_scan=Offset(state.views.get(view, Tally()).floor),
        first_lease=first_lease,
        view=view,
        policy=companion_policy(config),
        shelves=(SHELF_OF_VIEW[view],),
    )


def _group_core(config: QueueConfig, row: GroupRow, low: Offset, key: ReceiptKey, first_lease: int) -> GroupView:
    if row.mode == "offsets":
        return OffsetGroup(key, row, low=low, first_lease=first_lease, policy=group_policy(config, row.mode))
    return LeasedGroup(
        key,
        row,
        low=low,
        first_lease=first_lease,
        policy=group_policy(config, row.mode),
        make_runs=runs_of(config),
        reads_keys=reads_keys(config),
    )


def group_policy(config: QueueConfig, mode: str) -> Policy:
    """Groups in mode `offsets` have no limit of attempts: a message keeps its place until it is acked."""
    if mode == "leases":
        return policy_of(config)
    return Policy(
        backoff_ms=config.retry_backoff_ms,
        backoff_ms_max=config.retry_backoff_ms_max or VISIBILITY_MS_MAX,
        exclusive=True,
    )


def reads_keys(config: QueueConfig) -> bool:
    """Whether order or fairness depends on message keys."""
    return config.ordering == "strict" or config.fair_by == "key"


def runs_of(config: QueueConfig) -> Callable[[], Runs]:
    """How a lane of the queue orders ready messages."""
    if config.ordering == "strict":
        return partial(StrictRuns, config.key_run_max, is_patient=True)
    return ArrivalRuns  # `fair_by: key` makes a lane fair when its first message with a key comes


def reconfigure(core: WorkView, config: QueueConfig) -> None:
    """Applies a changed config to a running view."""
    if core.number == VIEW_MAIN:
        core.policy = policy_of(config)
        for lane in core.lanes.all:
            if isinstance(lane.runs, StrictRuns):
                lane.runs.key_run_max = config.key_run_max
        if config.sequencing == "arrival":
            core.lanes.grow(range(config.priorities))
    elif isinstance(core, GroupView):
        core.policy = group_policy(config, core.mode)
