"""How much memory there is for the process: the least of its control groups and the machine."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from gateway import serve
from gateway.admission.memory import keep_what_is_imported, limit_bytes, used_bytes
from gateway.config.settings import Settings

MIB = 1 << 20


def machine(root: Path, *, cgroup: str, files: dict[str, str]) -> Path:
    for name, text in {
        "proc/meminfo": "MemTotal:        8388608 kB\nMemFree: 1 kB\n",
        "proc/self/cgroup": cgroup,
        "proc/self/status": "VmRSS:\t 5000 kB\nRssAnon:\t   2048 kB\nRssFile:\t9 kB\nRssShmem:\t 1024 kB\n",
        **files,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_groups_around_the_own_one_count_too(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": f"{512 * MIB}\n"}
    assert limit_bytes(machine(tmp_path, cgroup="0::/a/b\n", files=files)) == 512 * MIB


def test_the_first_version_of_control_groups(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": f"{256 * MIB}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    cgroup = "5:cpu,cpuacct:/pod\n4:memory:/pod\n"
    assert limit_bytes(machine(tmp_path, cgroup=cgroup, files=files)) == 256 * MIB


def test_without_a_limit_the_machine_is_the_limit(tmp_path: Path) -> None:
    assert limit_bytes(machine(tmp_path, cgroup="0::/\n", files={})) == 8 * 1024 * MIB


def test_mapped_pages_of_the_database_are_not_the_processs_own(tmp_path: Path) -> None:
    assert used_bytes(machine(tmp_path, cgroup="", files={})) == 3 * MIB


def test_on_this_machine_both_are_there() -> None:
    assert MIB < used_bytes() < limit_bytes()


def test_modules_are_not_looked_through_for_garbage_and_what_is_made_later_is() -> None:
    before, threshold = len(gc.get_objects()), gc.get_threshold()
    try:
        keep_what_is_imported()
        assert len(gc.get_objects()) < before // 10
        ring: list[object] = []
        ring.append(ring)
        del ring
        assert gc.collect() >= 1
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)


def test_the_store_is_opened_behind_it_so_that_a_queue_that_is_deleted_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue is a ring of references: one that was kept from the collector would stay when it is deleted."""
    kept: list[int] = []

    async def serving(settings: Any, place: Any) -> None:
        kept.append(gc.get_freeze_count())

    monkeypatch.setattr(serve, "_serve", serving)
    monkeypatch.setattr(serve, "configure_logs", lambda logs: None)
    monkeypatch.setattr(serve, "_raise_open_files_limit", lambda: 1 << 20)
    settings = Settings()
    before, threshold = gc.get_freeze_count(), gc.get_threshold()
    try:
        serve.serve_as(settings, serve.Alone())
        assert kept[0] > before
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
