"""The manager's looks: what it writes, tells and asks for, and that whoever has the duty next goes on from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from backend_store.core.outer import records
from backend_store.core.outer.clusters import Report
from backend_store.core.outer.limits import (
    CALL_SLACK_MS,
    COOL_AT,
    EVENTS_MAX,
    EXPAND_AFTER_MS,
    HOT_AT,
    PAUSE_DOUBLINGS_MAX,
    PAUSE_MS,
    RELIEF_MS,
    RELIEF_REFUSED_MS,
    RELIEF_REST_MS,
    REPORT_MS_MAX,
    SHRINK_BELOW,
    TURNS_MAX,
    TURNS_MS,
)
from backend_store.core.outer.managing import CallEnded, Decided, Memory, ProvisionCall, Rules, Seen, closing, step
from backend_store.core.outer.merging import Shared
from backend_store.core.outer.moving import Attempt, NotBegun, UnderWay
from backend_store.core.outer.relief import Load

EVERY_MS = 5_000
RULES = Rules(has_provisioner=True, call_ms_max=600_000)


@dataclass
class World:
    """The documents, and a manager that looks at them: nothing else is remembered from look to look."""

    named: Sequence[str] = ("eu",)
    rules: Rules = RULES
    now_ms: int = 1_000_000
    rows: dict[tuple[str, str], bytes] = field(default_factory=dict)
    begun: list[ProvisionCall] = field(default_factory=list)
    under_way: set[int] = field(default_factory=set)
    moving: list[UnderWay] = field(default_factory=list)
    moved: list[Attempt] = field(default_factory=list)

    def all(self, kind: str) -> list[tuple[str, bytes]]:
        return sorted((name, data) for (of, name), data in self.rows.items() if of == kind)

    @property
    def memory(self) -> Memory:
        return records.memory_of(self.all)

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(event.kind, event.cluster) for event in records.events_of(self.all)]

    def decided(
        self,
        reports: Mapping[str, Report],
        ended: Sequence[CallEnded] = (),
        loads: Sequence[Load] = (),
        not_begun: Sequence[NotBegun] = (),
        shared: Sequence[Shared] = (),
    ) -> Decided:
        seen = Seen(reports, ended, self.under_way, loads, self.moving, not_begun, shared)
        return step(self.memory, seen, self.now_ms, named=self.named, manager="m1", rules=self.rules)

    def write(self, decided: Decided) -> None:
        for kind, name, data in records.rows_of(decided):
            if data is None:
                self.rows.pop((kind, name), None)
            else:
                self.rows[kind, name] = data
        self.begun += decided.begin
        self.moved += decided.move
        self.under_way |= {call.number for call in decided.begin}

    def look(
        self,
        *,
        ended: Sequence[CallEnded] = (),
        loads: Sequence[Load] = (),
        not_begun: Sequence[NotBegun] = (),
        shared: Sequence[Shared] = (),
        is_healthy: bool = True,
        nodes: int = 4,
        **used: float,
    ) -> None:
        """One look, at reports of these utilisations by cluster."""
        self.now_ms += EVERY_MS
        reports = {name: Report(name, self.now_ms, nodes, part, is_healthy) for name, part in used.items()}
        self.write(self.decided(reports, ended, loads, not_begun, shared))

    def looks(self, for_ms: int, **used: float) -> None:
        for _ in range(for_ms // EVERY_MS):
            self.look(**used)

    def hot_until_called(self) -> ProvisionCall:
        self.looks(EXPAND_AFTER_MS + 2 * EVERY_MS, eu=0.9)
        return self.begun[-1]


def test_what_a_cluster_says_is_written_down_and_told_when_it_turns() -> None:
    world = World()
    world.look(eu=0.5)
    world.look(eu=0.6)
    assert world.told == [("known", "eu")]
    world.look(eu=0.6, is_healthy=False)
    world.look(eu=0.6)
    assert world.told[1:] == [("ill", "eu"), ("well", "eu")]
    assert world.memory.clusters["eu"].report.utilisation == 0.6


def test_a_cluster_near_the_edge_is_told_once_and_not_with_each_look() -> None:
    world = World()
    edge = (HOT_AT + COOL_AT) / 2
    world.look(eu=0.5)
    for _ in range(20):
        world.look(eu=HOT_AT)
        world.look(eu=edge)
    world.looks(60_000, eu=COOL_AT)
    assert world.told == [("known", "eu"), ("hot", "eu"), ("resize", "eu"), ("cool", "eu")]


def test_a_cluster_that_is_hot_on_a_noisy_measure_grows_and_one_that_only_was_does_not() -> None:
    world, edge = World(), (HOT_AT + COOL_AT) / 2
    world.look(eu=HOT_AT)
    world.looks(EXPAND_AFTER_MS * 4, eu=edge)
    assert not world.begun
    world.look(eu=HOT_AT)
    assert [call.nodes for call in world.begun] == [4]


def test_a_cluster_that_flaps_does_not_push_out_all_other_events() -> None:
    world = World(rules=replace(RULES, grow_after_ms=TURNS_MS * 10))
    for _ in range(TURNS_MS // EVERY_MS):
        world.look(eu=COOL_AT)
        world.look(eu=HOT_AT, is_healthy=False)
    events = records.events_of(world.all)
    assert TURNS_MAX < len(events) <= 3 * TURNS_MAX + 1
    assert sum("the state changes often, so changes are not reported" in event.text for event in events) in (2, 3)
    world.looks(TURNS_MS, eu=COOL_AT)
    world.look(eu=HOT_AT)
    assert world.told[-1] == ("hot", "eu"), "later it is told again"


def test_growth_that_cools_nothing_is_asked_for_less_and_less_often() -> None:
    """However many backends come, each of them is as full as those before."""
    world, nodes, asked_ms = World(), 3, list[int]()
    while len(asked_ms) < PAUSE_DOUBLINGS_MAX + 3:
        world.look(eu=0.9, nodes=nodes)
        if len(world.begun) > len(asked_ms):
            call = world.begun[-1]
            nodes = call.wanted
            asked_ms.append(world.now_ms)
            world.under_way.clear()
            world.look(eu=0.9, nodes=nodes, ended=[CallEnded(call.number, "eu", True, "done")])
    pauses = [(later - before) // PAUSE_MS for before, later in pairwise(asked_ms)]
    assert pauses == [1, 2, 4, 8, 16, 16]
    world.look(eu=0.5, nodes=nodes)
    assert world.memory.clusters["eu"].grown == 0


def test_what_a_wrong_clock_wrote_of_a_far_later_time_is_not_waited_for() -> None:
    world = World()
    call = world.hot_until_called()
    world.under_way.clear()
    world.now_ms -= 10 * (RULES.call_ms_max + PAUSE_MS)
    world.look(eu=0.9)
    assert world.told[-1] == ("provision-failed", "eu")
    world.looks(EXPAND_AFTER_MS + EVERY_MS, eu=0.9)
    assert len(world.begun) == 2 and world.begun[-1].begun_ms < call.begun_ms


def test_a_silence_is_told_once_when_it_is_long_and_so_is_its_end() -> None:
    world = World()
    world.look(eu=0.5)
    world.looks(REPORT_MS_MAX)
    assert world.told == [("known", "eu")]
    world.looks(REPORT_MS_MAX * 4)
    assert world.told[1:] == [("silent", "eu")]
    assert not world.memory.clusters["eu"].takes_queues(world.now_ms)
    world.look(eu=0.5)
    world.look(eu=0.5)
    assert world.told[2:] == [("heard", "eu")]


def test_a_cluster_that_never_said_anything_is_nowhere() -> None:
    world = World(named=("eu", "us"))
    world.look(eu=0.5)
    world.looks(REPORT_MS_MAX * 4, eu=0.5)
    assert list(world.memory.clusters) == ["eu"]


def test_a_cluster_that_is_named_no_more_is_forgotten() -> None:
    world = World(named=("eu", "us"))
    world.look(eu=0.5, us=0.5)
    world.named = ("eu",)
    world.look(eu=0.5)
    assert list(world.memory.clusters) == ["eu"] and world.told[-1] == ("forgotten", "us")


def test_a_hot_cluster_is_given_servers_by_one_call_and_by_no_second_one_while_that_is_under_way() -> None:
    world = World()
    call = world.hot_until_called()
    assert (call.cluster, call.nodes) == ("eu", 4) and call.wanted > 4
    world.looks(PAUSE_MS * 4, eu=0.9)
    assert len(world.begun) == 1
    world.under_way.clear()
    world.look(eu=0.9, ended=[CallEnded(call.number, "eu", True, "done")])
    assert world.told[-1] == ("provisioned", "eu")


def test_a_call_that_failed_is_made_again_after_a_pause_and_only_if_it_is_still_wanted() -> None:
    world = World()
    call = world.hot_until_called()
    world.under_way.clear()
    world.look(eu=0.9, ended=[CallEnded(call.number, "eu", False, "it ended with 3")])
    assert world.told[-1] == ("provision-failed", "eu")
    world.looks(EXPAND_AFTER_MS - EVERY_MS, eu=0.9)
    assert len(world.begun) == 1
    world.looks(EVERY_MS * 2, eu=0.9)
    assert len(world.begun) == 2 and world.begun[1].number > call.number

    world.under_way.clear()
    world.look(eu=0.5, ended=[CallEnded(world.begun[1].number, "eu", False, "it ended with 3")])
    world.looks(PAUSE_MS * 2, eu=0.5)
    assert len(world.begun) == 2


def test_a_manager_that_was_restarted_makes_no_second_call_until_the_first_ones_time_is_over() -> None:
    world = World()
    call = world.hot_until_called()
    world.under_way.clear()  # another process, which has nothing but the documents
    over_ms = call.begun_ms + RULES.call_ms_max + CALL_SLACK_MS
    while world.now_ms < over_ms:
        world.look(eu=0.9)
    assert len(world.begun) == 1 and ("provision-failed", "eu") not in world.told
    world.look(eu=0.9)
    assert world.told[-1] == ("provision-failed", "eu")
    world.looks(EXPAND_AFTER_MS + EVERY_MS, eu=0.9)
    assert len(world.begun) == 2


def test_what_was_decided_and_not_written_is_decided_again_by_the_next_one() -> None:
    """The duty went to another one between the decision and the commit."""
    world = World()
    world.looks(EXPAND_AFTER_MS, eu=0.9)
    report = {"eu": Report("eu", world.now_ms + EVERY_MS, 4, 0.9)}
    world.now_ms += EVERY_MS
    lost = world.decided(report)
    again = world.decided(report)
    assert lost == again and lost.begin
    world.write(again)
    assert [call.number for call in world.begun] == [call.number for call in lost.begin]


def test_the_end_of_a_call_is_told_once_and_that_of_an_older_one_never() -> None:
    world = World()
    call = world.hot_until_called()
    ended = CallEnded(call.number, "eu", True, "done")
    world.look(eu=0.9, ended=[ended, ended, replace(ended, number=1)])
    world.look(eu=0.9, ended=[ended])
    assert world.told.count(("provisioned", "eu")) == 1


def test_a_manager_that_stops_writes_the_ends_of_its_calls_and_begins_none() -> None:
    world = World()
    call = world.hot_until_called()
    ends = closing(world.memory, [CallEnded(call.number, "eu", False, "stopped")], [], world.now_ms, "m1")
    world.write(ends)
    assert world.told[-1] == ("provision-failed", "eu") and not ends.begin
    assert world.memory.clusters.keys() == {"eu"}
    world.under_way.clear()
    world.looks(EXPAND_AFTER_MS + 2 * EVERY_MS, eu=0.9)
    assert len(world.begun) == 2


def test_without_a_provisioner_it_is_told_what_is_wanted_and_again_after_a_pause() -> None:
    world = World(rules=Rules())
    world.looks(EXPAND_AFTER_MS + PAUSE_MS, eu=0.9)
    assert world.told.count(("resize", "eu")) == 1 and not world.begun and not world.memory.calls
    world.looks(PAUSE_MS, eu=0.9)
    assert world.told.count(("resize", "eu")) == 2


def test_an_idle_cluster_gives_one_node_back() -> None:
    world = World()
    world.looks(RULES.shrink_after_ms + 2 * EVERY_MS, eu=SHRINK_BELOW / 2)
    assert [(call.nodes, call.wanted) for call in world.begun] == [(4, 3)]


def test_what_would_cool_a_cluster_is_kept_as_a_plan_and_told_when_it_changes() -> None:
    world = World(named=("eu", "us"))
    loads = [Load("default", "orders", "eu", 1.0), Load("default", "clicks", "eu", 0.2)]
    for _ in range(10):
        world.look(eu=0.9, us=0.1, loads=loads)
    [move] = world.memory.proposed.plan.moves
    assert (move.queue, move.source, move.to) == ("orders", "eu", "us")
    assert world.told.count(("relief", "eu")) == 1
    world.looks(RELIEF_MS * 2, eu=0.5, us=0.1)
    assert not world.memory.proposed.plan.moves


def test_a_hot_cluster_is_planned_for_as_soon_as_it_is_known_what_queues_need() -> None:
    world = World(named=("eu", "us"))
    for loads in ([], [], [Load("default", "orders", "eu", 1.0)]):
        world.look(eu=0.9, us=0.1, loads=loads)
    assert [move.queue for move in world.memory.proposed.plan.moves] == ["orders"]


ORDERS, CLICKS = Load("default", "orders", "eu", 1.0), Load("acme", "clicks", "eu", 0.9)
MOVES = Rules(moves_queues=True)


def moving() -> World:
    """A cluster is hot, another has room, and there is a plan."""
    world = World(named=("eu", "us"), rules=MOVES)
    world.look(eu=0.9, us=0.1, loads=[ORDERS, CLICKS])
    assert [move.queue for move in world.memory.proposed.plan.moves] == ["orders"] and not world.moved
    return world


def test_a_move_of_the_plan_begins_at_the_second_look_that_plans_it_and_is_told() -> None:
    world = moving()
    world.look(eu=0.9, us=0.1, loads=[ORDERS, CLICKS])
    assert [(one.queue, one.source, one.to) for one in world.moved] == [("orders", "eu", "us")]
    [event] = [event for event in records.events_of(world.all) if event.kind == "moves"]
    assert (event.cluster, event.text) == ("eu", "90% used: queue 'orders' moves to 'us'")


def test_what_is_only_shown_does_not_move() -> None:
    world = World(named=("eu", "us"))
    for _ in range(5):
        world.look(eu=0.9, us=0.1, loads=[ORDERS])
    assert world.memory.proposed.plan.moves and not world.moved and not world.memory.attempts


WIDE = Load("default", "wide", "eu", 3.0, partitions=2)
"""No other cluster can take it whole."""


def test_a_queue_that_no_cluster_can_take_whole_is_split_and_that_is_told() -> None:
    world = World(named=("eu", "us"), rules=MOVES)
    world.look(eu=0.9, us=0.1, loads=[WIDE])
    [planned] = world.memory.proposed.plan.partitions
    assert (planned.queue, planned.partitions, planned.clusters) == ("wide", 4, ("eu", "us"))
    world.look(eu=0.9, us=0.1, loads=[WIDE])
    assert [(one.queue, one.to, one.is_split) for one in world.moved] == [("wide", "us", True)]
    told = {event.kind: event.text for event in records.events_of(world.all)}
    assert told["relief"].startswith("the cluster would cool down without half of 'wide' to us;")
    assert told["moves"] == "90% used: half of queue 'wide' moves to 'us'"
    ended = NotBegun(world.moved[0], "queue 'wide' is a stream", is_refused=True)
    world.look(eu=0.9, us=0.1, loads=[WIDE], not_begun=[ended])
    text = "half of queue 'wide' is not moved to 'us', and is not retried for 60 minutes: queue 'wide' is a stream"
    assert [event.text for event in records.events_of(world.all) if event.kind == "moves"][-1] == text
    assert [(one.queue, one.is_split) for one in world.memory.attempts] == [("wide", True)], "the next manager knows"


def test_a_plan_that_is_over_at_the_second_look_moves_nothing() -> None:
    world = moving()
    world.look(eu=COOL_AT, us=0.1, loads=[ORDERS, CLICKS])
    assert not world.moved and not world.memory.proposed.plan.moves


def test_what_a_move_does_shows_before_another_one_is_planned() -> None:
    world = moving()
    world.look(eu=0.9, us=0.1, loads=[ORDERS, CLICKS])
    begun_ms = world.now_ms
    while len(world.moved) < 2:
        world.look(eu=0.85, us=0.1, loads=[CLICKS])
    assert world.moved[-1].queue == "clicks" and world.now_ms >= begun_ms + RELIEF_MS


def test_a_queue_that_was_moved_rests_also_for_a_manager_that_takes_over() -> None:
    """Now the other cluster is hot, and the queue is the one that would cool it."""
    world = moving()
    world.look(eu=0.9, us=0.1, loads=[ORDERS, CLICKS])
    there, begun_ms = replace(ORDERS, cluster="us"), world.now_ms
    while len(world.moved) < 2:
        world.look(eu=0.1, us=0.9, loads=[there])
    assert [(one.queue, one.to) for one in world.moved] == [("orders", "us"), ("orders", "eu")]
    assert world.now_ms - begun_ms == RELIEF_REST_MS


def test_a_queue_that_cannot_move_is_told_left_alone_for_an_hour_and_not_in_the_way_of_others() -> None:
    world = moving()
    world.look(eu=0.9, us=0.1, loads=[ORDERS, CLICKS])
    [refused] = world.moved
    ended = NotBegun(refused, "queue 'orders' is a stream", is_refused=True)
    world.look(eu=0.9, us=0.1, loads=[ORDERS, CLICKS], not_begun=[ended])
    text = [event.text for event in records.events_of(world.all) if event.kind == "moves"][-1]
    assert text == "queue 'orders' is not moved to 'us', and is not retried for 60 minutes: queue 'orders' is a stream"
    world.look(eu=0.9, us=0.1, loads=[ORDERS, CLICKS], not_begun=[ended])
    assert [one.queue for one in world.moved] == ["orders", "clicks"]
    assert world.told.count(("moves", "eu")) == 3, "the refusal is told once"
    began_ms = world.moved[0].at_ms
    while len(world.moved) < 3 or world.moved[-1].queue == "clicks":
        world.look(eu=0.9, us=0.1, loads=[ORDERS])
    assert world.now_ms - began_ms >= RELIEF_REFUSED_MS


def test_a_move_that_was_not_answered_rests_like_one_that_was() -> None:
    world = moving()
    world.look(eu=0.9, us=0.1, loads=[ORDERS])
    ended = NotBegun(world.moved[0], "the home cluster is away", is_refused=False)
    world.look(eu=0.9, us=0.1, loads=[ORDERS], not_begun=[ended])
    assert "not retried for 10 minutes" in records.events_of(world.all)[-1].text
    while len(world.moved) < 2:
        world.look(eu=0.9, us=0.1, loads=[ORDERS])
    assert world.moved[1].at_ms - world.moved[0].at_ms == RELIEF_REST_MS


def test_a_manager_that_stops_writes_down_what_was_refused() -> None:
    world = moving()
    world.look(eu=0.9, us=0.1, loads=[ORDERS])
    ended = NotBegun(world.moved[0], "queue 'orders' is a stream", is_refused=True)
    world.write(closing(world.memory, [], [ended], world.now_ms, "m1"))
    assert [one.is_refused for one in world.memory.attempts] == [True]


def test_events_are_a_ring() -> None:
    world = World()
    for _ in range(EVENTS_MAX):
        world.named = ("eu", "us")
        world.look(eu=0.5, us=0.5)
        world.named = ("eu",)
        world.look(eu=0.5)
    events = records.events_of(world.all)
    assert len(events) == EVENTS_MAX
    assert [event.number for event in events] == list(range(events[0].number, events[0].number + EVENTS_MAX))
