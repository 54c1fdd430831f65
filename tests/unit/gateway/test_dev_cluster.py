"""The state of a development cluster: which process is whose, what is not touched, and what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.dev_cluster import layout, running
from gateway.dev_cluster.state import Part, State, StateError, load, save, started_ticks


def part(pid: int | None, started: int) -> Part:
    return Part("etcd", "etcd", "127.0.0.1:1", "http://127.0.0.1:1/health", [], {}, "log", pid, started)


def test_a_process_is_known_by_its_number_and_its_start() -> None:
    ticks = started_ticks(os.getpid())
    assert ticks is not None
    assert part(os.getpid(), ticks).is_alive
    assert not part(os.getpid(), ticks - 1).is_alive
    assert not part(None, ticks).is_alive


def test_down_leaves_a_process_alone_that_got_the_number_later(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as other:
        ticks = started_ticks(other.pid)
        assert ticks is not None
        save(tmp_path, State([part(other.pid, ticks - 1)]))
        assert running.down(tmp_path, lambda text: None) == 0
        assert other.poll() is None
        other.communicate(b"", timeout=30)
        assert other.returncode == 0


def test_a_process_that_ended_is_not_alive_before_its_parent_looks() -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        ticks = started_ticks(child.pid)
        assert ticks is not None and child.stdin is not None
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not part(child.pid, ticks).is_alive


def test_a_folder_without_a_cluster_has_none_and_a_broken_state_is_told(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    assert running.down(tmp_path, lambda text: None) == 0
    (tmp_path / "cluster.json").write_text('{"parts": [{}]}')
    with pytest.raises(StateError, match=r"cluster\.json"):
        load(tmp_path)


def test_without_etcd_the_line_is_told_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "find_program", lambda name: None)
    with pytest.raises(layout.MissingProgram, match="apt-get install -y etcd-server"):
        running.up(tmp_path / "cluster", lambda text: None)
    assert not (tmp_path / "cluster" / "cluster.json").exists()


def test_without_haproxy_clients_go_to_the_first_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "find_program", lambda name: None if name == "haproxy" else f"/usr/bin/{name}")
    state = layout.make(tmp_path)
    assert state.public.name == "gateway1" and not state.of("haproxy")
    assert len({part.address for part in state.parts}) == len(state.parts)
    save(tmp_path, state)
    assert load(tmp_path) == state


def test_a_cluster_keeps_its_model(tmp_path: Path) -> None:
    backend = Part("backend", "a", "", "", [], {"PUSHQ_CLUSTER__MODEL": "independent_hosts"}, "log", None, 0)
    save(tmp_path, State([backend]))
    with pytest.raises(StateError, match="independent_hosts, which stays"):
        running.up(tmp_path, lambda text: None, ["leader_follower"])
