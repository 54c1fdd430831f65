"""How full a process is, from numbers that it has anyway: one core is all an interpreter can keep busy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backend_store.node.meter import COMMITS_MAX, METER_SECONDS, WAITED_MS_FULL, Meter, cores_allowed


class Store:
    """A node, as far as a meter looks at it."""

    def __init__(self) -> None:
        self.writer = SimpleNamespace(commit_seconds=SimpleNamespace(sum=0.0))
        self.committer = SimpleNamespace(waited_ms=0)


def metered(*stores: Store, cores: float) -> Meter:
    there: Any = list(stores)
    return Meter(lambda: there, cores=cores)


def test_a_process_that_keeps_one_core_busy_is_full_however_many_there_are() -> None:
    meter = metered(cores=8)
    for second in range(5):
        meter.look(second, second * 0.9)
    assert meter.load("a").cpu == pytest.approx(0.9) and meter.load().cores == 8


def test_on_less_than_a_core_it_is_full_when_it_keeps_that_busy() -> None:
    meter = metered(cores=0.5)
    for second in range(5):
        meter.look(second, second * 0.4)
    assert meter.load().cpu == pytest.approx(0.8)


def test_only_the_last_seconds_count() -> None:
    meter = metered(cores=1)
    for second in range(100):
        meter.look(second, second * 1.0)
    for second in range(100, 100 + round(METER_SECONDS) + 1):
        meter.look(second, 100.0)
    assert meter.load().cpu == pytest.approx(0, abs=0.01)


def test_publishes_that_wait_fill_it_and_a_commit_that_is_always_under_way_does_not() -> None:
    one, other = Store(), Store()
    meter = metered(one, other, cores=1)
    for second in range(5):
        meter.look(second, 0.0)
        one.writer.commit_seconds.sum += 1.0
        other.writer.commit_seconds.sum += 0.5
    load = meter.load()
    assert (load.commits_busy, load.commits_waited) == (1.0, 0.0) and load.fullest(disk=0.1) == 0.1
    one.committer.waited_ms = round(WAITED_MS_FULL * 100)
    for second in range(5, 30):
        meter.look(second, 0.0)
    assert meter.load().commits_waited == COMMITS_MAX


def test_one_stall_of_the_disk_does_not_fill_it() -> None:
    store = Store()
    meter = metered(store, cores=1)
    for second in range(10):
        store.committer.waited_ms = round(WAITED_MS_FULL * 100) if second == 5 else 0
        meter.look(second, 0.0)
    assert meter.load().commits_waited == COMMITS_MAX / 10


def test_before_the_second_look_nothing_is_known() -> None:
    meter = metered(Store(), cores=1)
    meter.look(0, 100.0)
    assert meter.load().fullest(disk=0.0) == 0.0


@pytest.mark.parametrize(
    ("line", "files", "cores"),
    [
        ("0::/box/inner", {"sys/fs/cgroup/box/cpu.max": "50000 100000"}, 0.5),
        ("0::/box", {"sys/fs/cgroup/box/cpu.max": "max 100000"}, None),
        (
            "4:cpu,cpuacct:/box",
            {"sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "25000", "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000"},
            0.25,
        ),
        (
            "4:cpu,cpuacct:/box",
            {"sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000"},
            None,
        ),
    ],
)
def test_control_groups_of_both_versions_bound_the_cores(
    tmp_path: Path, line: str, files: dict[str, str], cores: float | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{line}\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert cores_allowed(tmp_path) == (cores if cores is not None else cores_allowed(tmp_path / "nowhere"))
