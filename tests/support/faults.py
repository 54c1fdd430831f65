"""Faults of a cluster, and the runner that injects them one after the other under load, in an order given by a seed.

Each fault is a context manager: it strikes on entry and heals on exit. The service must come back while the fault
lasts, not only afterwards.
"""

from __future__ import annotations

import bisect
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Final, NamedTuple

from tests.support.fault_load import FaultLoad
from tests.support.netted_cluster import Backend, NettedCluster, both

STOOD_S: Final = 8.0
"""Longer than a session lasts, so that a suspended leader is deposed when it wakes up."""
CUT_S: Final = 9.0
"""Longer than detection takes: messages that were sent after it and acked were served despite the cut."""
ALONE_S: Final = (0.5, 6.0)
"""Shorter and longer than the time after which a sync leader gives up its leadership."""
ETCD_AWAY_S: Final = 7.0
REFUSED_S: Final = 6.0
"""How long a disk stays full."""
LOOK_S: Final = 0.3
SLOW_S: Final = 30.0
"""If a message took longer than this, its trail is shown."""

Fault = Callable[[NettedCluster, random.Random], AbstractContextManager[float | None]]
"""It yields the seconds that it lasts at least before the service is checked. None: publishes may be refused for as
long as it lasts."""


def _shard(cluster: NettedCluster, rng: random.Random) -> int:
    """In mode `async`, a shard replicated in that mode: the first one has the definitions, and is always `sync`."""
    return rng.randrange(int(cluster.mode == "async"), cluster.shards)


def _leader(cluster: NettedCluster, rng: random.Random) -> Backend:
    return cluster.leader(_shard(cluster, rng))


@contextmanager
def kill_leader(cluster: NettedCluster, rng: random.Random) -> Iterator[float]:
    with _killed(_leader(cluster, rng)):
        yield 0.0


@contextmanager
def kill_any(cluster: NettedCluster, rng: random.Random) -> Iterator[float]:
    with _killed(rng.choice(cluster.backends)):
        yield rng.uniform(0, 3)


@contextmanager
def kill_each(cluster: NettedCluster, rng: random.Random) -> Iterator[float]:
    """Kills all three, one after the other, each when the previous one is back."""
    first = _leader(cluster, rng)
    for one in cluster.others(first):
        with _killed(one):
            pass
        cluster.whole()
    with _killed(first):
        yield 0.0


@contextmanager
def _killed(backend: Backend) -> Iterator[None]:
    backend.kill()
    with _started_again(backend):
        yield


@contextmanager
def _started_again(backend: Backend) -> Iterator[None]:
    try:
        yield
    finally:
        backend.start()


@contextmanager
def stop_leader(cluster: NettedCluster, rng: random.Random) -> Iterator[float]:
    """Suspends the leader until another one leads; after waking up it must not serve what it led."""
    leader = _leader(cluster, rng)
    leader.send(signal.SIGSTOP)
    try:
        yield STOOD_S
    finally:
        leader.send(signal.SIGCONT)
    for _ in range(5):
        assert not (twice := cluster.led_twice()), f"shards {twice} are served twice: {cluster.state()}"


@contextmanager
def cut_from_followers(cluster: NettedCluster, rng: random.Random) -> Iterator[float]:
    """The leader reaches etcd and gateways, but no other backend."""
    leader = _leader(cluster, rng)
    with cluster.cut(*both(leader.host, [one.host for one in cluster.others(leader)])):
        yield CUT_S


@contextmanager
def kill_unfollowed(cluster: NettedCluster, rng: random.Random) -> Iterator[float]:
    """The leader reaches etcd and gateways, but no other backend, and then its machine is gone: in mode `async`, with
    everything it confirmed in the meantime."""
    shard = _shard(cluster, rng)
    leader = cluster.leader(shard)
    with cluster.cut(*both(leader.host, [one.host for one in cluster.others(leader)])):
        time.sleep(rng.uniform(*ALONE_S))
        leader.kill()
    with _started_again(leader):
        cluster.leader(shard)  # another one: the old leader must not return with all it had
        yield 0.0


@contextmanager
def cut_from_etcd(cluster: NettedCluster, rng: random.Random) -> Iterator[float]:
    with cluster.cut(*both(_leader(cluster, rng).host, [cluster.etcd_host])):
        yield CUT_S


@contextmanager
def cut_from_all(cluster: NettedCluster, rng: random.Random) -> Iterator[float]:
    """The leader's network cable is unplugged."""
    leader = _leader(cluster, rng)
    others = [one.host for one in cluster.others(leader)]
    with cluster.cut(*both(leader.host, [*others, cluster.etcd_host, cluster.clients])):
        yield CUT_S


@contextmanager
def cut_zone(cluster: NettedCluster, rng: random.Random) -> Iterator[float]:
    """Cuts off the leader's zone, with the backend and the etcd member in it."""
    host = _leader(cluster, rng).host
    others = [one.host for one in cluster.backends if one.host is not host]
    with cluster.cut(*both(host, [*others, cluster.clients])):
        yield CUT_S


@contextmanager
def mute_leader(cluster: NettedCluster, rng: random.Random) -> Iterator[float]:
    """The other backends do not hear the leader, but it hears them."""
    leader = _leader(cluster, rng)
    with cluster.cut(*((leader.host, one.host) for one in cluster.others(leader))):
        yield CUT_S


@contextmanager
def deaf_leader(cluster: NettedCluster, rng: random.Random) -> Iterator[float]:
    """The leader does not hear the other backends, but they hear it."""
    leader = _leader(cluster, rng)
    with cluster.cut(*((one.host, leader.host) for one in cluster.others(leader))):
        yield CUT_S


@contextmanager
def kill_etcd(cluster: NettedCluster, rng: random.Random) -> Iterator[float]:
    """Kills all members for longer than a session: no leader can be elected, so nobody else leads."""
    for member in cluster.etcd:
        member.kill()
    began = time.monotonic()
    try:
        while time.monotonic() - began < ETCD_AWAY_S:
            time.sleep(LOOK_S)
            assert not (twice := cluster.led_twice()), f"shards {twice} are served twice: {cluster.state()}"
        yield 0.0
    finally:
        for member in cluster.etcd:
            member.begin()
        for member in cluster.etcd:
            member.wait_up()


@contextmanager
def stop_etcd(cluster: NettedCluster, rng: random.Random) -> Iterator[float]:
    """Suspends one member; if there are several, the others carry on."""
    member = rng.choice(cluster.etcd)
    member.send(signal.SIGSTOP)
    try:
        yield rng.uniform(2, ETCD_AWAY_S)
    finally:
        member.send(signal.SIGCONT)


@contextmanager
def fill_disk(cluster: NettedCluster, rng: random.Random) -> Iterator[float | None]:
    """Another program fills the leader's disk: publishes are refused, or it ends and another one leads."""
    leader = _leader(cluster, rng)
    with leader.full_disk():
        yield None
    time.sleep(LOOK_S)  # a write that did not fit is ending the process
    if not leader.is_running:
        leader.start()


@contextmanager
def fail_fsync(cluster: NettedCluster, rng: random.Random) -> Iterator[float]:
    """The leader's disk reports an error: the process ends at once, and restarts."""
    leader = _leader(cluster, rng)
    with leader.failing_fsync():
        code = leader.wait_end("ends when its disk fails")
    assert code == -signal.SIGKILL, f"{code}: {leader.tail()}"
    try:
        yield 0.0
    finally:
        leader.start()


@contextmanager
def drain_leader(cluster: NettedCluster, rng: random.Random) -> Iterator[float]:
    """Stops the leader gracefully, and restarts it."""
    leader = _leader(cluster, rng)
    _drained(leader)
    try:
        yield 0.0
    finally:
        leader.start()


def _drained(backend: Backend) -> None:
    backend.send(signal.SIGTERM)
    assert backend.wait_end("drains") == 0, backend.tail()


@contextmanager
def drain_all(cluster: NettedCluster, rng: random.Random) -> Iterator[float]:
    """Stops and restarts every backend gracefully, each when all is well again."""
    for backend in rng.sample(cluster.backends, len(cluster.backends)):
        _drained(backend)
        backend.start()
        cluster.whole()
    yield 0.0


FAULTS: Final[Mapping[str, Fault]] = {
    "stop-leader": stop_leader,
    "kill-each": kill_each,
    "kill-leader": kill_leader,
    "kill-any": kill_any,
    "kill-unfollowed": kill_unfollowed,
    "kill-etcd": kill_etcd,
    "stop-etcd": stop_etcd,
    "drain-leader": drain_leader,
    "drain-all": drain_all,
    "fill-disk": fill_disk,
    "fail-fsync": fail_fsync,
    "cut-from-followers": cut_from_followers,
    "cut-from-etcd": cut_from_etcd,
    "cut-from-all": cut_from_all,
    "mute-leader": mute_leader,
    "deaf-leader": deaf_leader,
}
OF_ZONES: Final[Mapping[str, Fault]] = {"cut-zone": cut_zone}
"""For clusters whose backends are in zones."""
GENTLE: Final = frozenset({"drain-leader", "drain-all"})
"""These cause no redeliveries."""
UNREAD: Final = frozenset({"kill-unfollowed"})
"""Consumers ack nothing during these, so that there is something to lose."""
REFUSING: Final = frozenset({"fill-disk"})
"""Publishes may be refused while these last."""
HANDOVER_S_MAX: Final = 0.2
"""The longest that a planned handover delays a publish."""
FAILOVER_S_MAX: Final = 10.0
"""The longest delay in 99 of 100 other faults."""
STEPS_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds of the histogram of call durations."""
WEIGHTS: Final[Mapping[str, int]] = {"kill-leader": 10, "kill-any": 6, "kill-each": 1, "drain-all": 1}
"""How often a fault is drawn, compared with 2 for each other fault."""


def drawn(rng: random.Random, names: Sequence[str] = tuple(FAULTS)) -> Iterator[str]:
    """An endless sequence of faults, each as frequent as its weight."""
    weights = [WEIGHTS.get(name, 2) for name in names]
    while True:
        yield rng.choices(names, weights)[0]


class Struck(NamedTuple):
    """The effects of one fault."""

    fault: str
    wait_s: float
    """The longest that a publish waited for its confirmation, from the fault until full recovery."""
    acked_s: float
    """The longest time from a message's first publish to its confirmed ack in that period."""
    whole_s: float
    """From the end of the fault until every copy is in sync."""
    again: int
    """Repeated deliveries."""
    refused: int
    """Publishes that were answered with an error."""

    def __str__(self) -> str:
        return (
            f"{self.fault}: a publish waited up to {self.wait_s:.2f} s, an ack up to {self.acked_s:.2f} s,"
            f" recovered after {self.whole_s:.1f} s, {self.again} redelivered, {self.refused} refused"
        )


class FaultRunner:
    """Injects faults into a cluster under load, and keeps the effects of each."""

    def __init__(self, cluster: NettedCluster, load: FaultLoad, seed: int, *, slack: float = 1.0) -> None:
        """`slack`: factor by which the promised times may be exceeded, on a machine that is busy with other things."""
        self._slack = slack
        self.struck: list[Struck] = []
        self._cluster = cluster
        self._load = load
        self._rng = random.Random(seed)

    def strike(self, name: str) -> Struck:
        """Injects one fault into a healthy cluster, and waits for recovery; the service must return while it lasts."""
        cluster, load = self._cluster, self._load
        load.serves()
        began, again, refused = time.monotonic(), load.again, load.refused
        with nullcontext() if load.losses is None or name in GENTLE else load.losses.possible():
            with ExitStack() as fault:
                with load.holding() if name in UNREAD else nullcontext():
                    seconds = fault.enter_context({**FAULTS, **OF_ZONES}[name](cluster, self._rng))
                time.sleep(max(0.0, began + (REFUSED_S if seconds is None else seconds) - time.monotonic()))
                if seconds is not None:
                    load.serves()
            whole_s = cluster.whole()
        load.serves()
        acked_s, slowest = load.slowest(began)
        struck = Struck(name, load.longest_wait(began), acked_s, whole_s, load.again - again, load.refused - refused)
        self.struck.append(struck)
        print(f"{time.strftime('%H:%M:%S')} {struck}", flush=True)
        if acked_s > SLOW_S:
            print(slowest, flush=True)
        if name in GENTLE:
            assert struck.again == struck.refused == 0, (
                f"{struck}: redelivered or refused because of a planned handover\n{load.details()}"
            )
            assert struck.wait_s <= self._slack * HANDOVER_S_MAX, f"{struck}: more than {HANDOVER_S_MAX} s"
        assert not (broken := load.broken_so_far()), "\n".join(broken[:20])
        return struck

    def strike_at_random(self, seconds: float) -> None:
        """Injects random faults for this long."""
        until_s = time.monotonic() + seconds
        for name in drawn(self._rng):
            if time.monotonic() >= until_s:
                return
            self.strike(name)

    def summary(self) -> str:
        """For each fault, how often it struck, and the longest wait."""
        waits: defaultdict[str, list[float]] = defaultdict(list)
        for one in self.struck:
            waits[one.fault].append(one.wait_s)
        lines = [f"{name}: {len(found)} times, longest wait {max(found):.2f} s" for name, found in waits.items()]
        lines.append(f"all: {len(self.struck)} faults, p99 of the longest waits {self.failover_p99_s:.2f} s")
        calls = Counter(bisect.bisect_left(STEPS_S, seconds) for seconds in self._load.waits())
        steps = [*(f"<= {step:g} s" for step in STEPS_S), f"> {STEPS_S[-1]:g} s"]
        lines.append(
            "calls confirmed: " + ", ".join(f"{calls[at]} {step}" for at, step in enumerate(steps) if calls[at])
        )
        return "\n".join(lines)

    @property
    def failover_p99_s(self) -> float:
        """Over the longest waits of faults under which the service must come back."""
        every = sorted(one.wait_s for one in self.struck if one.fault not in REFUSING)
        return every[max(0, -(-len(every) * 99 // 100) - 1)] if every else 0.0

    def judge(self) -> None:
        """Checks, after the last fault, that the service came back within the promised times."""
        assert self.failover_p99_s <= self._slack * FAILOVER_S_MAX, self.summary()
