"""One step of the out-cluster manager: from its stored state and new reports to what must be written and done.

The manager's whole state is in documents, so the next holder of the duty continues from there. A call to the
provisioner is recorded before it is made: if its manager does not live to see its end, the call is given up when its
time is over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from backend_store.core.outer.clusters import Cluster, Report, heard
from backend_store.core.outer.limits import (
    CALL_MS_MAX,
    CALL_SLACK_MS,
    EXPAND_AFTER_MS,
    PAUSE_MS,
    RELIEF_MS,
    RELIEF_REFUSED_MS,
    RELIEF_REST_MS,
    REPORT_MS_MAX,
    SHRINK_AFTER_MS,
    TURNS_MAX,
    TURNS_MS,
)
from backend_store.core.outer.merging import ColdQueue, ColdQueues, Shared
from backend_store.core.outer.moving import Attempt, Attempts, NotBegun, Planned, UnderWay
from backend_store.core.outer.plans import NO_PLAN, Plan, proposed
from backend_store.core.outer.relief import Load, relieve
from backend_store.core.outer.sentences import backends, begins, begins_not, could_keep, would_cool
from backend_store.core.outer.sizing import called_off, grown, resized, size

EventKind = Literal[
    "manager",
    "known",
    "forgotten",
    "hot",
    "cool",
    "ill",
    "well",
    "silent",
    "heard",
    "resize",
    "provisioned",
    "provision-failed",
    "relief",
    "moves",
]


@dataclass(frozen=True, slots=True)
class Event:
    """What the manager saw or decided, and why."""

    number: int
    """Rises with each event."""
    time_ms: int
    kind: str
    """An `EventKind`, or one of a later version."""
    cluster: str
    """"" if it is about no cluster."""
    text: str
    manager: str = ""


@dataclass(frozen=True, slots=True)
class ProvisionCall:
    """A call to the provisioner for a number of nodes, the last one of its cluster."""

    number: int
    """The number of the event that announced the call, which is unique."""
    cluster: str
    nodes: int
    """How many nodes the cluster had."""
    wanted: int
    reason: str
    begun_ms: int
    ended_ms: int | None = None
    """None: the call is in progress, as far as is known."""


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The end of a call to the provisioner."""

    number: int
    cluster: str
    is_ok: bool
    text: str
    """How the call ended, for people."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """Which queues should move from hot clusters to others, or be merged, as a plan that an operator may apply."""

    at_ms: int
    plan: Plan = NO_PLAN


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of the manager that a step applies."""

    nodes_min: int = 3
    nodes_max: int = 1_000
    grow_after_ms: int = EXPAND_AFTER_MS
    shrink_after_ms: int = SHRINK_AFTER_MS
    pause_ms: int = PAUSE_MS
    call_ms_max: int = CALL_MS_MAX
    has_provisioner: bool = False
    moves_queues: bool = False
    """Whether the manager carries out the moves, splits and merges of the plan, instead of only showing them."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The manager's state as read from the documents."""

    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    calls: Mapping[str, ProvisionCall] = field(default_factory=dict)
    """By cluster."""
    proposed: Proposed = field(default_factory=lambda: Proposed(0))
    attempts: tuple[Attempt, ...] = ()
    """Queues that are left alone, because they were moved, split or merged, or cannot be; some of these may be over."""
    next_event: int = 1
    cold: tuple[ColdQueue, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """The input of a step: what arrived since the last one."""

    reports: Mapping[str, Report]
    """By cluster; silent clusters are missing."""
    ended: Sequence[CallEnded] = ()
    under_way: Collection[int] = ()
    """Numbers of the calls in progress in this process."""
    loads: Sequence[Load] = ()
    moving: Sequence[UnderWay] = ()
    not_begun: Sequence[NotBegun] = ()
    shared: Sequence[Shared] = ()


@dataclass(frozen=True, slots=True)
class Decided:
    """The result of a step, written in one commit; then the calls of `begin` and the moves of `move` are started."""

    clusters: tuple[Cluster, ...] = ()
    gone: tuple[str, ...] = ()
    """Clusters that the settings no longer name."""
    calls: tuple[ProvisionCall, ...] = ()
    proposed: Proposed | None = None
    """None: unchanged."""
    attempts: tuple[Attempt, ...] | None = None
    """All attempts; None: unchanged."""
    cold: tuple[ColdQueue, ...] | None = None
    """All cold queues; None: unchanged."""
    events: tuple[Event, ...] = ()
    begin: tuple[ProvisionCall, ...] = ()
    move: tuple[Attempt, ...] = ()


def step(
    memory: Memory, seen: Seen, now_ms: int, *, named: Sequence[str], manager: str, rules: Rules, is_new: bool = False
) -> Decided:
    """Returns the decisions of one step. `named`: the clusters of the settings. `is_new`: this manager has just got the
    duty.
    """
    return _Step(memory, seen, now_ms, manager, rules).decide(named, is_new=is_new)


def closing(
    memory: Memory, ended: Sequence[CallEnded], not_begun: Sequence[NotBegun], now_ms: int, manager: str
) -> Decided:
    """Returns what a manager writes when it stops: how its calls ended, and which moves were refused."""
    last = _Step(memory, Seen({}), now_ms, manager, Rules())
    last.clusters = dict(memory.clusters)
    for one in ended:
        last.end_call(one)
    for move in not_begun:
        last.end_move(move)
    return last.decided()


class _Step:
    """The work of one step."""

    def __init__(self, memory: Memory, seen: Seen, now_ms: int, manager: str, rules: Rules) -> None:
        self.memory = memory
        self.seen = seen
        self.now_ms = now_ms
        self.manager = manager
        self.rules = rules
        self.clusters: dict[str, Cluster] = {}
        """The clusters after this step."""
        self.are_several = False
        """Whether there are several clusters. A single one gets all queues, however hot it is."""
        self.calls: dict[str, ProvisionCall] = {}
        """The calls that changed."""
        self.begin: list[ProvisionCall] = []
        self.attempts = Attempts(memory.attempts, now_ms)
        self.gaps: set[str] = set()
        """Clusters that were silent until this step."""
        self.events: list[Event] = []

    def decide(self, named: Sequence[str], *, is_new: bool) -> Decided:
        memory = self.memory
        self.are_several = len(named) > 1
        if is_new:
            self.tell("manager", "", f"{self.manager} is now the manager")
        gone = tuple(name for name in memory.clusters if name not in named)
        for name in gone:
            self.tell("forgotten", name, "the cluster was removed from the settings")
        for name in named:
            self.look_at(name)
        for ended in self.seen.ended:
            self.end_call(ended)
        self.end_lost_calls()
        for name in named:
            self.size(name)
        for one in self.seen.not_begun:
            self.end_move(one)
        cold = ColdQueues(memory.cold, self.seen.shared, self.clusters, self.now_ms, gaps=self.gaps)
        plan = self.propose(cold)
        move = self.move(plan, cold) if self.rules.moves_queues else ()
        return replace(self.decided(), gone=gone, proposed=plan, cold=cold.changed, move=move)

    def decided(self) -> Decided:
        known = self.memory.clusters
        return Decided(
            clusters=tuple(one for name, one in self.clusters.items() if one != known.get(name)),
            calls=tuple(self.calls.values()),
            attempts=self.attempts.changed,
            events=tuple(self.events),
            begin=tuple(self.begin),
        )

    def tell(self, kind: EventKind, cluster: str, text: str) -> int:
        number = self.memory.next_event + len(self.events)
        self.events.append(Event(number, self.now_ms, kind, cluster, text, self.manager))
        return number

    # -------------------------------------------------------------------------------------------------------- reports

    def look_at(self, name: str) -> None:
        before, report = self.memory.clusters.get(name), self.seen.reports.get(name)
        if report is None:
            if before is not None:
                self.clusters[name] = self.silent(before)
            return
        after = self.clusters[name] = replace(heard(before, report), is_silent=False)
        if before is None or abs(report.at_ms - before.report.at_ms) > REPORT_MS_MAX:
            self.gaps.add(name)
        used = f"{report.utilisation:.0%} used, {report.detail}"
        if before is None:
            self.tell("known", name, f"{backends(report.nodes)}, {used}")
        elif before.is_silent:
            silence_s = (report.at_ms - before.report.at_ms) // 1000
            self.tell("heard", name, f"responds again after {silence_s} s; {used}")
        was_hot, was_well = before is not None and before.is_hot, before is None or before.report.is_healthy
        if after.is_hot != was_hot:
            follows = f": it gets {'no' if after.is_hot else 'new'} queues" if self.are_several else ""
            self.turn("hot" if after.is_hot else "cool", name, f"{used}{follows}")
        if after.report.is_healthy != was_well:
            self.turn("well" if report.is_healthy else "ill", name, report.detail)

    def turn(self, kind: EventKind, name: str, text: str) -> None:
        """Adds an event for a change of state, except while a cluster flaps: the last event before that says so."""
        cluster = self.clusters[name]
        turns, since_ms = cluster.turns, cluster.turns_since_ms
        if abs(self.now_ms - since_ms) >= TURNS_MS:
            turns, since_ms = 0, self.now_ms
        if turns < TURNS_MAX:
            turns += 1
            more = f"; the state changes often, so changes are not reported for the next {TURNS_MS // 60_000} minutes"
            self.tell(kind, name, f"{text}{more if turns == TURNS_MAX else ''}")
            since_ms = self.now_ms if turns == TURNS_MAX else since_ms
            self.clusters[name] = replace(cluster, turns=turns, turns_since_ms=since_ms)

    def silent(self, cluster: Cluster) -> Cluster:
        if cluster.is_silent or cluster.is_heard(self.now_ms):
            return cluster
        silent_s = (self.now_ms - cluster.report.at_ms) // 1000
        self.tell("silent", cluster.name, f"no report for {silent_s} s")
        return replace(cluster, is_silent=True)

    # ------------------------------------------------------------------------------------------------ the provisioner

    def size(self, name: str) -> None:
        cluster, call = self.clusters.get(name), self.call_of(name)
        if cluster is None or (call is not None and call.ended_ms is None):
            return
        rules = self.rules
        wanted = size(
            cluster,
            self.now_ms,
            nodes_min=rules.nodes_min,
            nodes_max=rules.nodes_max,
            grow_after_ms=rules.grow_after_ms,
            shrink_after_ms=rules.shrink_after_ms,
            pause_ms=rules.pause_ms,
        )
        if wanted is None:
            return
        self.clusters[name] = resized(cluster, self.now_ms)
        nodes = cluster.report.nodes
        text = f"{backends(nodes)}, but {wanted.nodes} are needed: {wanted.reason}"
        if not rules.has_provisioner:
            self.clusters[name] = grown(self.clusters[name], nodes, wanted.nodes)
            self.tell("resize", name, f"{text}; manager.provisioner is not set, so add or remove servers yourself")
            return
        number = self.tell("resize", name, text)
        begun = ProvisionCall(number, name, nodes, wanted.nodes, wanted.reason, self.now_ms)
        self.calls[name] = begun
        self.begin.append(begun)

    def call_of(self, name: str) -> ProvisionCall | None:
        return self.calls.get(name) or self.memory.calls.get(name)

    def end_call(self, ended: CallEnded) -> None:
        """Records the end of a call. Ignores one that has ended before or is not the last of its cluster."""
        call = self.call_of(ended.cluster)
        if call is None or call.number != ended.number or call.ended_ms is not None:
            return
        self.calls[call.cluster] = replace(call, ended_ms=self.now_ms)
        change = f"from {call.nodes} to {backends(call.wanted)}"
        self.tell("provisioned" if ended.is_ok else "provision-failed", call.cluster, f"{change}: {ended.text}")
        if (cluster := self.clusters.get(call.cluster)) is not None:
            # The effect of the call shows from its end on, not from its request.
            after = resized(cluster, self.now_ms) if ended.is_ok else called_off(cluster)
            self.clusters[call.cluster] = grown(after, call.nodes, call.wanted) if ended.is_ok else after

    def end_lost_calls(self) -> None:
        for call in self.memory.calls.values():
            # A call with a far later time is from a clock that was wrong: it is not waited for either.
            is_over = abs(self.now_ms - call.begun_ms) > self.rules.call_ms_max + CALL_SLACK_MS
            if call.ended_ms is None and call.number not in self.seen.under_way and is_over:
                text = "the manager that made the call did not see it finish, and its time is over"
                self.end_call(CallEnded(call.number, call.cluster, is_ok=False, text=text))

    # --------------------------------------------------------------------------------------------------------- relief

    def propose(self, cold: ColdQueues) -> Proposed | None:
        """Returns a new plan, or None if it stays the same. A plan stands for a minute, because measured needs are
        never the same twice. An empty plan is computed again at each step, because loads may have been unknown.
        """
        before = self.memory.proposed
        told = {event.kind for event in self.events}
        # The effect of moves must show first; if a queue cannot move, a new plan is made at once.
        since_ms = max(0 if "moves" in told else before.at_ms, self.attempts.last_ms)
        is_planned = before.plan != NO_PLAN or bool(self.attempts.last_ms)
        if is_planned and not told & {"hot", "cool"} and 0 <= self.now_ms - since_ms < RELIEF_MS:
            return None
        # Queues that cannot move must not keep others from moving.
        refused = self.attempts.refused
        loads = [one for one in self.seen.loads if (one.tenant, one.queue) not in refused]
        reliefs = relieve(self.clusters.values(), loads, self.now_ms)
        # While a cluster must be cooled, no cluster gets more load by merges.
        merges = [] if reliefs else cold.merges(but=refused)
        plan = proposed([*reliefs, *merges])
        if plan == before.plan:
            return None
        for name in dict.fromkeys(relief.source for relief in reliefs):
            self.tell("relief", name, would_cool([relief for relief in reliefs if relief.source == name]))
        for name in dict.fromkeys(merge.to for merge in merges):
            self.tell("relief", name, could_keep([merge for merge in merges if merge.to == name]))
        return Proposed(self.now_ms, plan)

    def move(self, now: Proposed | None, cold: ColdQueues) -> tuple[Attempt, ...]:
        """Returns the attempts that begin now, from entries that were in the plan at the last step already."""
        stood = _entries(self.memory.proposed.plan)
        planned = _entries(now.plan) if now is not None else stood
        begun = self.attempts.begin(stood, planned, self.clusters, self.seen.moving, cold)
        for one in begun:
            at = one.to if one.is_merge else one.source
            used = f"{self.clusters[at].report.utilisation:.0%} used"
            self.tell("moves", at, f"{used}: {begins(one)}")
        return begun

    def end_move(self, ended: NotBegun) -> None:
        """Records the end of a move that was refused, or not answered."""
        if self.attempts.end(ended):
            move, rest_ms = ended.attempt, RELIEF_REFUSED_MS if ended.is_refused else RELIEF_REST_MS
            text = f"{begins_not(move)}, and is not retried for {rest_ms // 60_000} minutes: {ended.text}"
            self.tell("moves", move.to if move.is_merge else move.source, text)


def _entries(plan: Plan) -> tuple[Planned, ...]:
    return (*plan.moves, *plan.partitions)
