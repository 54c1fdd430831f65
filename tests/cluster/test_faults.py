"""Clusters of both models under load while everything fails that can: what was confirmed is there once, in order, and
stays acked.

Each run has the most telling faults of leaders and followers. `make faults` tries each fault in both models, with sync
and async replication, and holds the times to what is promised; `make soak` draws them at random, for an hour or for
`SOAK_SECONDS`, from `TEST_SEED`. In mode `async` leaders of async shards are struck, and what they confirmed alone is
published again in the end: then it is all there, too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal

import pytest

from tests.support.fault_load import PAUSE_S, FaultLoad
from tests.support.faults import FAULTS, FaultRunner
from tests.support.netted_cluster import Model, NettedCluster
from tests.support.prerequisites import require
from tests.support.recovered import recover
from tests.support.seeds import AGAIN, SEED

NAMED = os.environ.get("FAULTS", "")
"""`all`, or names of faults with commas."""
SOAK_S = float(os.environ.get("SOAK_SECONDS", "0"))
"""For both models in both modes together."""
SLACK = float(os.environ.get("FAULTS_SLACK", "10"))
"""How many times of what is promised a handover and a failover may take: the gate's machine does much else."""
GATE_PAUSE_S = 0.3
"""Between two calls of a producer, where others want the cores, too."""
SHARDS = 2
DISK_MEBIBYTES = 128
Mode = Literal["sync", "async"]
MODELS: tuple[Model, ...] = ("leader_follower", "independent_hosts")
MODES: tuple[Mode, ...] = ("sync", "async")
Case = tuple[Model, Mode, str, tuple[str, ...]]
USUAL: list[Case] = [
    ("leader_follower", "sync", "stopped and drained", ("stop-leader", "drain-leader")),
    ("leader_follower", "sync", "cut off and broken", ("cut-from-etcd", "fail-fsync")),
    ("independent_hosts", "async", "cut off, broken and lost", ("cut-from-etcd", "fail-fsync", "kill-unfollowed")),
]
"""The most telling ones: what strikes a cluster one after the other. The long run has all but the first."""


def cases() -> list[Case]:
    if not (NAMED or SOAK_S):
        return USUAL
    named = tuple(FAULTS) if NAMED == "all" else tuple(NAMED.split(",")) if NAMED else ()
    return [(model, mode, NAMED or "at random", named) for model in MODELS for mode in MODES]


CASES = [pytest.param(model, mode, faults, id=f"{model}-{mode}-{name}") for model, mode, name, faults in cases()]


@pytest.fixture(autouse=True)
def _needs_etcd() -> None:
    require("etcd")


@pytest.mark.parametrize("model", MODELS)
def test_zone_that_is_cut_off_takes_no_message_with_it(
    tmp_path: Path, model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three zones, each with a backend and a member of etcd; twice the one with a leader is away."""
    with NettedCluster(tmp_path, shards=SHARDS, model=model, is_zoned=True) as cluster:
        load = FaultLoad(
            cluster.clients, cluster.gateways, SHARDS, plain=int(model == "independent_hosts"), pause_s=GATE_PAUSE_S
        )
        runner = FaultRunner(cluster, load, SEED, slack=SLACK)
        with capsys.disabled():
            print(f"\n{model}, zones, {AGAIN}", file=sys.stderr)
            with load.running():
                for _ in range(2):
                    runner.strike("cut-zone")
            print(f"{runner.summary()}\n{load.summary()}")
        assert not (broken := load.broken()), "\n".join(broken[:20])
        assert load.confirmed > 100
        runner.judge()


@pytest.mark.parametrize(("model", "mode", "faults"), CASES)
def test_no_fault_loses_doubles_or_reorders_a_message(
    tmp_path: Path, model: Model, mode: Mode, faults: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    is_long = NAMED == "all" or SOAK_S > 0
    fills_disks = is_long or "fill-disk" in faults  # never this machine's
    with NettedCluster(
        tmp_path,
        shards=SHARDS,
        mode=mode,
        etcd_members=3 if is_long else 1,
        disk_mebibytes=DISK_MEBIBYTES if fills_disks else 0,
        model=model,
    ) as cluster:
        plain = int(model == "independent_hosts")
        pause_s = PAUSE_S if NAMED or SOAK_S else GATE_PAUSE_S
        load = FaultLoad(
            cluster.clients, cluster.gateways, SHARDS, may_lose=mode == "async", plain=plain, pause_s=pause_s
        )
        runner = FaultRunner(cluster, load, SEED, slack=SLACK)
        with capsys.disabled():
            print(f"\n{model}, {mode}, {AGAIN}", file=sys.stderr)
            with load.running():
                if SOAK_S:
                    runner.strike_at_random(SOAK_S / len(CASES))
                else:
                    for name in faults:
                        runner.strike(name)
                if mode == "async":
                    load.recovers()
                    print(f"{recover(cluster)} published again from quarantine")
            print(f"{runner.summary()}\n{load.summary()}")
        assert not (broken := load.broken()), "\n".join(broken[:20])
        assert load.confirmed > 100
        runner.judge()
