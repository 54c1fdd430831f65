"""The state of a development cluster: which process is whose, what is not touched, and what is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gateway.config.load import load_settings
from gateway.dev_ca import CaError
from gateway.dev_cluster import layout, processes, resizing, running, state
from gateway.dev_cluster.state import Part, State, StateError, alone, load, save, started_ticks
from tests.support.dev_cluster import DevCluster
from tests.support.patience import until


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


KILLED = """
import os, signal, sys
from pathlib import Path
from gateway.dev_cluster import processes
from gateway.dev_cluster.state import Part, State

def save(folder, state):
    (folder / "pid").write_text(str(state.parts[0].pid))
    os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[1])
argv = ["/bin/sh", "-c", "touch ran; exec sleep 600"]
part = Part("etcd", "etcd", "127.0.0.1:1", "http://127.0.0.1:1/health", argv, {}, str(folder / "log"))
processes.save = save
processes.start(folder, State([part]), [part], print)
"""


def test_nothing_runs_that_was_not_written_down_before_its_command_was_killed(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=60)
    assert ran.returncode == -signal.SIGKILL
    pid = int((tmp_path / "pid").read_text())
    try:
        until(lambda: started_ticks(pid) is None or (tmp_path / "ran").exists(), "it has ended, or begun")
        assert not (tmp_path / "ran").exists()
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_part_that_was_started_is_the_program_itself_and_reads_nothing(tmp_path: Path) -> None:
    [port] = layout.free_ports(1)
    argv = [sys.executable, "-m", "http.server", "--bind", layout.HOST, str(port)]
    one = Part("etcd", "etcd", "", f"http://{layout.HOST}:{port}/", argv, {"A": "1"}, str(tmp_path / "log"))
    processes.start(tmp_path, State([one]), [one], print)
    try:
        there = load(tmp_path)
        assert there is not None and there.parts[0].is_alive and there.parts[0].pid == one.pid
        process = Path(f"/proc/{one.pid}")
        assert (process / "cmdline").read_bytes().split(b"\0")[:-1] == [os.fsencode(word) for word in argv]
        assert (process / "fd" / "0").readlink() == Path("/dev/null")
    finally:
        assert processes.end([one], print) == 1
    assert not one.is_alive


def test_a_state_of_a_newer_version_is_refused_by_its_number(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"version": 2, "parts": [], "moods": []}')
    with pytest.raises(StateError, match="has format 2, but this version of Pushq reads format 1: use the newer"):
        load(tmp_path)


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
    made = layout.make(tmp_path)
    assert made.public.name == "gateway1" and not made.of("haproxy") and not made.of("manager")
    assert len({part.address for part in made.parts}) == len(made.parts)
    save(tmp_path, made)
    assert load(tmp_path) == made


def test_a_cluster_keeps_its_model(tmp_path: Path) -> None:
    backend = Part("backend", "a", "", "", [], {"PUSHQ_CLUSTER__MODEL": "independent_hosts"}, "log", None, 0)
    save(tmp_path, State([backend]))
    with pytest.raises(StateError, match="independent_hosts and cannot change"):
        running.up(tmp_path, lambda text: None, ["leader_follower"])


@pytest.mark.usefixtures("programs")
def test_a_cluster_keeps_its_mode_of_replication_also_in_a_further_backend(tmp_path: Path) -> None:
    made = layout.make(tmp_path, replication="async")
    further = layout.add_backend(tmp_path, made, "main")
    for part in made.of("backend"):
        assert load_settings({}, part.env).settings.cluster.replication == "async"
    assert further in made.of("backend")
    save(tmp_path, made)
    with pytest.raises(StateError, match=r"the replication in .* is async and cannot change"):
        running.up(tmp_path, lambda text: None, replication="sync")
    earlier = State([Part("backend", "a", "", "", [], {}, "log", None, 0)])
    assert layout.replication_of(earlier) == "sync", "as one of an earlier version has it"


# ---------------------------------------------------------------------------------------------------- several clusters


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has etcd and HAProxy, as far as the layout asks."""
    monkeypatch.setattr(layout, "find_program", lambda name: f"/usr/bin/{name}")


@pytest.mark.usefixtures("programs")
def test_each_cluster_has_backends_and_a_namespace_and_all_parts_have_settings_that_are_good(tmp_path: Path) -> None:
    made = layout.make(tmp_path, ["leader_follower", "independent_hosts"])
    assert made.clusters == ["main", "cluster2"]
    assert layout.models_of(made) == ["leader_follower", "independent_hosts"]
    for cluster in made.clusters:
        backends = made.backends_of(cluster)
        assert len({one.name for one in backends}) == len({one.env["PUSHQ_DATA"] for one in backends}) == 3
        assert len({one.env["PUSHQ_NODE__ZONE"] for one in backends}) == 3
        [coordinator] = {one.env["PUSHQ_CLUSTER__COORDINATOR"] for one in backends}
        assert coordinator.endswith("/cluster2") == (cluster == "cluster2")
    [manager] = made.of("manager")
    for part in (manager, *made.of("gateway")):
        store = load_settings({}, part.env).settings.store
        assert store.cluster == "main" and len(store.backends) == 3
        assert [(one.name, len(one.backends)) for one in store.clusters] == [("cluster2", 3)]


@pytest.mark.usefixtures("programs")
def test_a_further_backend_is_as_the_others_with_a_name_and_ports_that_nobody_had(tmp_path: Path) -> None:
    made = layout.make(tmp_path, ["leader_follower"] * 2)
    first = layout.add_backend(tmp_path, made, "cluster2")
    assert (first.name, first.cluster, first.number) == ("cluster2-backend4", "cluster2", 4)
    assert made.parts.index(first) == made.parts.index(made.backends_of("cluster2")[-2]) + 1
    like = made.backends_of("cluster2")[0].env
    differ = {name for name, value in first.env.items() if like.get(name) != value}
    assert differ == {
        f"PUSHQ_NODE__{name}" for name in ("NAME", "LISTEN", "HTTP", "SERVICE", "TLS_CERT", "TLS_KEY")
    } | {"PUSHQ_DATA"}
    assert len({part.address for part in made.parts}) == len(made.parts)
    made.parts.remove(first)
    save(tmp_path, made)
    again = load(tmp_path)
    assert again is not None
    assert layout.add_backend(tmp_path, again, "cluster2").name == "cluster2-backend5"
    assert layout.add_backend(tmp_path, again, "main").name == "backend4"


def test_a_cluster_that_was_started_by_an_earlier_version_is_the_home_cluster_and_can_get_a_backend(
    tmp_path: Path, programs: None
) -> None:
    made = layout.make(tmp_path)
    made.last.clear()
    for part in made.parts:
        part.number = 0
    assert made.clusters == ["main"]
    assert layout.add_backend(tmp_path, made, "main").name == "backend4"


def test_the_number_of_clusters_and_their_models_go_together_and_stay(tmp_path: Path, programs: None) -> None:
    with pytest.raises(StateError, match="3 models for 2 clusters"):
        running.up(tmp_path / "new", lambda text: None, ["leader_follower"] * 3, 2)
    save(tmp_path, layout.make(tmp_path, ["leader_follower"] * 2))
    with pytest.raises(StateError, match="already has 2 clusters"):
        running.up(tmp_path, lambda text: None, (), 3)
    with pytest.raises(StateError, match="leader_follower, leader_follower and cannot change"):
        running.up(tmp_path, lambda text: None, ["leader_follower", "independent_hosts"])


@pytest.mark.usefixtures("programs")
def test_a_cluster_whose_making_was_cut_short_is_made_and_nobody_elses_authority_is_touched(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    layout.make(tmp_path / "ours")
    assert layout.make(tmp_path / "ours").clusters == ["main"]
    theirs = tmp_path / "theirs" / "ca"
    theirs.mkdir(parents=True)
    (theirs / "ca.key").write_text("theirs")
    for _ in range(2):
        with pytest.raises(CaError, match="already exists; create the authority in a folder of"):
            layout.make(tmp_path / "theirs")
    assert (theirs / "ca.key").read_text() == "theirs"


# ------------------------------------------------------------------------------------------------------------ resizing


@pytest.fixture
def leaving(tmp_path: Path) -> Iterator[Part]:
    """The fourth backend of a running cluster, which has given all its copies away."""
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        try:
            parts = [Part("etcd", "etcd", "", "", [], {}, "log", os.getpid(), started_ticks(os.getpid()) or 0)]
            for number in range(1, 5):
                data = tmp_path / f"backend{number}"
                data.mkdir()
                parts.append(Part("backend", data.name, "", "", [], {"PUSHQ_DATA": str(data)}, "log", number=number))
            last = parts[-1]
            last.pid, last.started, last.is_leaving = sleeper.pid, started_ticks(sleeper.pid) or 0, True
            save(tmp_path, State(parts))
            yield last
        finally:
            sleeper.kill()


def test_a_backend_that_was_taken_back_at_the_last_moment_stays(
    tmp_path: Path, leaving: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty_and_then_taken_back(folder: Path, known: State, *_: str) -> Any:
        known.parts[-1].is_leaving = False
        save(folder, known)
        return {"nodes": [{"name": leaving.name, "removing": True, "copies": 0}]}

    monkeypatch.setattr(resizing, "_ask", empty_and_then_taken_back)
    with pytest.raises(resizing.ResizeError, match="stays after all: another request came in"):
        resizing._let_leave(tmp_path, leaving, print)
    there = load(tmp_path)
    assert there is not None and there.parts[-1].is_alive and Path(leaving.env["PUSHQ_DATA"]).is_dir()


def test_a_backend_that_has_given_all_away_ends_and_is_forgotten(
    tmp_path: Path, leaving: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"nodes": [{"name": leaving.name, "removing": True, "copies": 0}]}
    monkeypatch.setattr(resizing, "_ask", lambda *_: answer)
    resizing._let_leave(tmp_path, leaving, print)
    there = load(tmp_path)
    assert there is not None and [part.name for part in there.of("backend")] == ["backend1", "backend2", "backend3"]
    assert not leaving.is_alive and not Path(leaving.env["PUSHQ_DATA"]).exists()


class Gateway(BaseHTTPRequestHandler):
    """One whose cluster has a backend that it will not let go, or that is in trouble."""

    status, problem = 409, {"code": "conflict", "detail": "there is none that could take its place"}

    def do_GET(self) -> None:
        self._answer(200, {"nodes": [{"name": "backend4", "removing": False, "copies": 3}]})

    def do_PUT(self) -> None:
        assert self.path == "/v1/cluster/nodes/backend4/removal?cluster=main"
        self._answer(self.status, self.problem)

    def _answer(self, status: int, answer: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def gateway(tmp_path: Path, leaving: Part) -> Iterator[type[Gateway]]:
    """Of the cluster that a backend is to leave. Its class says how it answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Of this test", (Gateway,), {})) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        there = load(tmp_path)
        assert there is not None
        address, ticks = f"127.0.0.1:{server.server_port}", started_ticks(os.getpid()) or 0
        there.parts.append(Part("gateway", "gateway1", address, "", [], {}, "log", os.getpid(), ticks))
        save(tmp_path, there)
        running.key_file(tmp_path).parent.mkdir(parents=True, exist_ok=True)
        running.key_file(tmp_path).write_text("key")
        yield server.RequestHandlerClass  # type: ignore[misc]
        server.shutdown()


@pytest.mark.usefixtures("gateway")
def test_whoever_shrinks_a_cluster_hears_why_a_backend_may_not_leave(
    tmp_path: Path, leaving: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked for again until the time was over, and the copies were said to be the reason."""
    monkeypatch.setattr(resizing, "LEAVE_SECONDS_MAX", 1.0)
    with pytest.raises(
        resizing.ResizeError, match=r"^backend4 stays in main: there is none that could take its place$"
    ):
        resizing._let_leave(tmp_path, leaving, print)
    there = load(tmp_path)
    assert there is not None
    [still] = [part for part in there.of("backend") if part.name == "backend4"]
    assert still.is_alive and not still.is_leaving


def test_whoever_waits_for_a_backend_to_leave_hears_at_last_what_was_in_the_way(
    tmp_path: Path, leaving: Part, gateway: type[Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.status, gateway.problem = 503, {"code": "unavailable", "detail": "no coordinator"}
    monkeypatch.setattr(resizing, "LEAVE_SECONDS_MAX", 0.05)
    monkeypatch.setattr(resizing, "LEAVE_LOOK_SECONDS", 0.01)
    with pytest.raises(resizing.ResizeError, match=r"again later; last error: gateway1 returned 503: .*no coordinator"):
        resizing._let_leave(tmp_path, leaving, print)


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        (b"", "invalid provisioner request"),
        (b'{"version": 1, "cluster": "main"}', "`wanted`"),
        (b'{"version": 1, "cluster": "main", "wanted": "4"}', r"\$\.wanted"),
        (b'{"version": 2, "cluster": "main", "wanted": 4}', "unsupported version 2"),
    ],
)
def test_a_call_that_is_not_understood_is_refused_by_its_field(call: bytes, wrong: str) -> None:
    with pytest.raises(resizing.ResizeError, match=wrong):
        resizing.call_of(call)


def test_what_a_manager_says_beside_the_number_may_change() -> None:
    body = b'{"version": 1, "call": 17, "cluster": "cluster2", "action": "add", "nodes": 3, "wanted": 4, "later": true}'
    assert resizing.call_of(body) == resizing.Call(1, "cluster2", 4)


@pytest.mark.usefixtures("programs")
def test_only_a_cluster_that_runs_is_resized_and_only_so_far(tmp_path: Path) -> None:
    def refused(cluster: str, wanted: int, *, error: type[Exception] = resizing.ResizeError) -> str:
        with pytest.raises(error) as found:
            resizing.resize(tmp_path, cluster, wanted, lambda text: None)
        return str(found.value)

    assert "3 to 6 backends here, not 2" in refused("main", 2)
    assert "3 to 6 backends here, not 7" in refused("main", 7)
    assert "no cluster is running in" in refused("main", 4, error=StateError)
    made = layout.make(tmp_path, ["leader_follower", "independent_hosts"])
    save(tmp_path, made)
    assert "`pushq dev-cluster up`" in refused("main", 4, error=StateError)
    [etcd] = made.of("etcd")
    etcd.pid, etcd.started = os.getpid(), started_ticks(os.getpid()) or 0
    save(tmp_path, made)
    assert "the clusters are main, cluster2" in refused("cluster3", 4)
    assert load(tmp_path) == made, "nothing was added"


def test_two_commands_do_not_change_a_cluster_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "TURN_SECONDS_MAX", 0.0)
    refused = pytest.raises(StateError, match="another command is changing the cluster in")
    with alone(tmp_path), refused, alone(tmp_path):
        pass
    with alone(tmp_path):
        pass


def test_a_call_that_cannot_be_done_fails_and_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path / "none")
    ran = cluster.run("provision", stdin='{"version": 1, "cluster": "main", "wanted": 4}')
    assert ran.code == 1 and "no cluster is running in" in ran.err
    ran = cluster.run("provision", stdin="grow")
    assert ran.code == 1 and "invalid provisioner request" in ran.err
    assert not cluster.folder.exists()


@pytest.mark.parametrize("wanted", [3, 4])
def test_a_backend_that_had_left_when_its_call_was_cut_short_is_forgotten_whatever_is_wanted(
    tmp_path: Path, leaving: Part, monkeypatch: pytest.MonkeyPatch, wanted: int
) -> None:
    """Where another one was wanted it was to stay, which its cluster, that knew it no more, refused each time."""

    def cut_short(parts: Sequence[Part], say: object) -> int:
        raise KeyboardInterrupt

    started: list[str] = []
    monkeypatch.setattr(resizing, "start", lambda folder, state, parts, say: started.extend(one.name for one in parts))
    monkeypatch.setattr(resizing, "_ask", lambda *_: {"nodes": [{"name": leaving.name, "removing": True, "copies": 0}]})
    with monkeypatch.context() as cut:
        cut.setattr(resizing, "end", cut_short)
        with pytest.raises(KeyboardInterrupt):
            resizing._let_leave(tmp_path, leaving, print)
    layout.create(tmp_path / "ca")
    there = load(tmp_path)
    assert there is not None
    there.last["main"] = 4
    for part in there.of("backend"):
        part.env |= {"PUSHQ_CLUSTER__COORDINATOR": "etcd://127.0.0.1:1"}
    save(tmp_path, there)
    resizing.resize(tmp_path, "main", wanted, print)
    assert started == ["backend1", "backend2", "backend3", "backend5"][:wanted]
    assert not leaving.is_alive and not Path(leaving.env["PUSHQ_DATA"]).exists()


def test_a_backend_that_is_to_stay_is_started_before_its_cluster_is_told(
    tmp_path: Path, leaving: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def ask(folder: Path, state: State, method: str, path: str, cluster: str) -> Any:
        asked.append(f"{method} {path}")
        if len(asked) < 3:
            raise OSError("there is no such backend in the cluster")

    monkeypatch.setattr(resizing, "LEAVE_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(resizing, "start", lambda folder, state, parts, say: asked.append(f"start {len(parts)}"))
    monkeypatch.setattr(resizing, "_ask", ask)
    resizing.resize(tmp_path, "main", 4, print)
    assert asked == ["start 1", *["DELETE /nodes/backend4/removal"] * 2, "start 4"]
    there = load(tmp_path)
    assert there is not None and not there.parts[-1].is_leaving
