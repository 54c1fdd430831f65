"""A queue on independent hosts, in a world drawn from a seed: hosts, a coordinator, clients, a network, and faults.

Time is simulated milliseconds. The cores of `backend_store.core.host_lanes` and the slot keeper decide; replication is
the model in `lane_log`, for it has a core and tests of its own. `owned` and `host` are the shell, `checks` watches.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

from backend_store.core.partitions import slots
from backend_store.model import Conflict
from tests.simulation.lanes.checks import Checks
from tests.simulation.lanes.clients import Client, Consumer, IdProducer, Merger, PlainProducer, Producer
from tests.simulation.lanes.coordinator import Coordinator
from tests.simulation.lanes.host import Host
from tests.simulation.lanes.lane_log import LaneLog
from tests.simulation.lanes.process import Core, Mix, Process, Violation

FAULTS_END_MS = 16_000
LOAD_END_MS = 17_000
GIVE_UP_MS = 90_000
"""A world that is not at rest so long after its last fault never will be."""
CLUSTERS = {"a": ["a0", "a1", "a2"], "b": ["b0", "b1"]}
WITHOUT_A_LANE = "a3"


class World:
    def __init__(self, seed: int, core: Core | None = None, breaks: frozenset[str] = frozenset()):
        self.seed = seed
        self.rng = Random(seed)
        self.mix = Mix(self.rng)
        self.core = core or Core()
        self.breaks = breaks
        self.now = 0.0
        self.faults = True
        self.clock_jumps_ms = 0.0
        self.slots_in_use: list[int] = []
        self._cut: set[tuple[str, str]] = set()
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self.checks = Checks(self)
        clusters = dict(list(CLUSTERS.items())[: self.mix.clusters])
        self.first_table = self.core.table.first_lanes(clusters, min_in_sync=2)
        self.logs = {number: LaneLog(self, number, lane.holders) for number, lane in self.first_table.lanes.items()}
        self.coordinator = Coordinator(self, self.first_table)
        self.hosts = {name: Host(self, name, cluster) for cluster, names in clusters.items() for name in names}
        self.hosts[WITHOUT_A_LANE] = Host(self, WITHOUT_A_LANE, "a")
        self.merger = Merger(self, list(self.first_table.lanes))
        self.clients: list[Client] = [Producer(self, f"keyed-{n}") for n in range(3)]
        self.clients += [IdProducer(self, f"by-id-{n}") for n in range(2)]
        if not self.mix.is_strict:
            self.clients += [PlainProducer(self, f"plain-{n}") for n in range(2)]
        self.clients += [Consumer(self, f"consumer-{name}", host) for name, host in self.hosts.items()]

    @property
    def is_loaded(self) -> bool:
        return self.now < LOAD_END_MS

    # ------------------------------------------------------------------------------------------- time and network

    def at(self, delay_ms: float, what: Callable[..., None], *args: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + delay_ms, self._number, what, args))

    def send(
        self, source: str, target: Process | None, what: Callable[..., None], *args: Any, once: bool = False
    ) -> None:
        """A datagram: may be late, doubled, lost or cut off. `once`: not doubled, as on a connection. Clients (None)
        have no machine to be down."""
        mix, rng = self.mix, self.rng
        if target is not None and (source, target.name) in self._cut:
            return
        if target is not None and source == target.name:
            self.at(0.01, target.arrive, what, args)
            return
        if self.faults and rng.random() < mix.lost:
            return
        for _ in range(2 if self.faults and not once and rng.random() < mix.twice else 1):
            late = rng.uniform(0, mix.late_ms) if self.faults and rng.random() < mix.late else 0.0
            delay_ms = rng.expovariate(1) + 0.2 + late
            if target is None:
                self.at(delay_ms, what, *args)
            else:
                self.at(delay_ms, target.arrive, what, args)

    def reach_each_other(self, one: str, other: str) -> bool:
        cut = (one, other) in self._cut or (other, one) in self._cut
        return not cut and self.hosts[one].runs and self.hosts[other].runs

    # ----------------------------------------------------------------------------------------------------- faults

    def do_harm(self) -> None:
        if not self.faults:
            return
        rng, kind = self.rng, self.rng.choice(self.mix.faults)
        host = rng.choice(list(self.hosts.values()))
        lasts_ms = rng.choice([100, 1500, 5000])
        self.checks.counts[kind] += 1
        match kind:
            case "crash":
                self._crash(host, lasts_ms)
            case "pause" if host.runs:
                host.pause()
                self.at(lasts_ms, host.resume)
            case "cut":
                other = rng.choice([*self.hosts, "coordinator", "merger"])
                self._cut_off({(host.name, other)} if rng.random() < 0.5 else {(other, host.name)}, lasts_ms)
            case "island":
                # Alone, or within reach of the others and not of the coordinator.
                others = ["coordinator"] if rng.random() < 0.5 else [*self.hosts, "coordinator", "merger"]
                self._cut_off({pair for o in others for pair in [(host.name, o), (o, host.name)]}, lasts_ms)
            case "clock":
                jump_ms = rng.choice([-3000, -600, -100, 100, 600, 3000])
                host.skew_us += jump_ms * 1000
                self.clock_jumps_ms += abs(jump_ms)
            case "coordinator" if self.coordinator.is_up:
                self.coordinator.crash()
                self.at(lasts_ms, self.coordinator.restart)
            case "owner":
                owners = [h for h in self.hosts.values() if any(owned.written for owned in h.owned.values())]
                if owners:
                    self._crash(rng.choice(owners), lasts_ms)
            case "power":
                # Several at once, as if they hung on one line; they come back one by one.
                for each in rng.sample(list(self.hosts.values()), 2):
                    self._crash(each, lasts_ms + rng.uniform(0, 4000))
            case "merger":
                self._crash(self.merger, lasts_ms)
        self.at(rng.expovariate(1 / self.mix.fault_ms), self.do_harm)

    def _crash(self, process: Process, back_ms: float) -> None:
        if process.is_up:
            process.crash()
            self.at(back_ms, process.restart)

    def _cut_off(self, pairs: set[tuple[str, str]], lasts_ms: float) -> None:
        self._cut |= pairs
        self.at(lasts_ms, self._cut.difference_update, pairs)

    def plan_something(self) -> None:
        """Moves slots that are in use, whenever the last plan is done."""
        if not self.faults:
            return
        rng = self.rng
        if self.slots_in_use and self.coordinator.is_up:
            chosen = rng.sample(self.slots_in_use, min(len(self.slots_in_use), 3))
            target = rng.choice(list(self.first_table.lanes))
            try:
                plan = slots.moved(self.coordinator.table.slots, chosen, target)
            except Conflict:
                plan = self.coordinator.table.slots
            self.coordinator.change(lambda table: table.with_slots(plan))
        self.at(rng.expovariate(1 / self.mix.plan_ms), self.plan_something)

    def heal(self) -> None:
        self.faults = False
        self._cut.clear()
        for process in (self.coordinator, self.merger, *self.hosts.values()):
            process.restart()
            if process.is_paused:
                process.resume()

    # -------------------------------------------------------------------------------------------------------- run

    def run(self) -> World:
        """A whole life: some load, some faults, then rest. Raises `Violation`."""
        self.at(1000 + self.rng.expovariate(1 / self.mix.fault_ms), self.do_harm)
        self.at(1000 + self.rng.expovariate(1 / self.mix.plan_ms), self.plan_something)
        self.at(FAULTS_END_MS, self.heal)
        look_ms = LOAD_END_MS + 200.0
        while self._events:
            self.now, _, what, args = heapq.heappop(self._events)
            what(*args)
            if self.now > look_ms:
                look_ms = self.now + 300
                unrest = self.unrest()
                if not unrest:
                    break
                if self.now > GIVE_UP_MS:
                    raise Violation(f"not at rest: {unrest[:5]}")
        self.checks.at_rest()
        return self

    def unrest(self) -> list[str]:
        table = self.coordinator.table
        found = [f"{client.name} has no answer" for client in self.clients if not client.is_idle]
        found += [f"{move} has not arrived" for move in table.slots.moves]
        for number, lane in table.lanes.items():
            owned = self.hosts[lane.preferred].owned.get(number)
            if not lane.is_home or set(lane.in_sync) != set(lane.holders):
                found.append(f"lane {number} is not at home with all its holders: {lane}")
            elif owned is None or not owned.serves:
                found.append(f"lane {number} is not served")
            elif owned.waiting:
                found.append(f"lane {number}: {list(owned.waiting.items())[:2]} wait")
            elif owned.slots.holds or owned.slots.drains:
                found.append(f"lane {number}: slots drain")
        missing = [place for place in self.checks.places if place not in self.checks.merged]
        return found + [f"{place} is not merged" for place in missing[:1]]
